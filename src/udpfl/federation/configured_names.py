"""The names in a configuration: what they stand for, and who has named them.

A configuration that a person wrote may name code to import. The one in a run folder is a file: what
it names has to be built in, installed, or named by a person as well.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from udpfl import algorithms, data, mechanisms, models
from udpfl.config import Config, load
from udpfl.config.reading import OWN
from udpfl.federation import stages
from udpfl.plugins import Kind, require_trusted, resolve
from udpfl.runs.folder import RunFolder

_BUILT_IN: dict[Kind, Mapping[str, Any]] = {
    "data": data.BUILT_IN,
    "models": models.BUILT_IN,
    "algorithms": algorithms.BUILT_IN,
    "mechanisms": ChainMap({"auto": "auto"}, mechanisms.BUILT_IN),
    "stages": stages.BUILT_IN,
}


def refuse_unknown(configs: Iterable[Config]) -> None:
    """Raise at the first name that nothing resolves; one that is found may still not fit.

    The configurations are a person's own: what they name is imported. The runs of a grid start one
    after the other, and a slip of the pen in the last value of a key would otherwise come to light
    only after all the others were trained.
    """
    for kind, name in dict.fromkeys(name for config in configs for name in _names(config)):
        resolve(kind, name, _BUILT_IN[kind])


def trusted_settings(folder: RunFolder, own: Config | None = None) -> Config:
    """The configuration of a run folder.

    Guarantee: no name in it leads to an import that no person asked for.

    Args:
        folder: Of the run.
        own: A configuration that a person wrote; what it names may be imported.
    """
    settings = load(folder.config)
    asked = set() if own is None else set(_names(own))
    for kind, name in _names(settings):
        if (kind, name) not in asked:
            require_trusted(kind, name)
    return settings


def own_places(config: Config) -> list[str]:
    """The places of code of one's own that the configuration names, each once."""
    return list(dict.fromkeys(name for _, name in _names(config) if ":" in name))


def _names(config: Config) -> Iterator[tuple[Kind, str]]:
    # A model or data set that was handed over in Python has no name; its run says so itself.
    if config.data.name != OWN:
        yield "data", config.data.name
    if config.model.name != OWN:
        yield "models", config.model.name
    yield "algorithms", config.training.algorithm
    for name in config.training.stages:
        yield "stages", name
    if config.privacy.enabled:
        asked = config.privacy.mechanism
        for name in [asked] if isinstance(asked, str) else asked:
            yield "mechanisms", name
