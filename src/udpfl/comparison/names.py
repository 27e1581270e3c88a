"""Names that stand for nothing, found before the first run of a comparison is begun.

A run looks its data set, model, method and mechanisms up when it starts, and the runs of a grid
start one after the other: a slip of the pen in the last value of a key would otherwise come to
light only after all the others were trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from udpfl import algorithms, data, mechanisms, models
from udpfl.config import Config, PrivacyConfig
from udpfl.federation.parts import OWN
from udpfl.plugins import Kind, resolve

_BUILT_IN: dict[Kind, Mapping[str, Any]] = {
    "data": data.BUILT_IN,
    "models": models.BUILT_IN,
    "algorithms": algorithms.BUILT_IN,
    "mechanisms": {**mechanisms.BUILT_IN, "auto": "auto"},
}


def refuse_unknown(configs: Iterable[Config]) -> None:
    """Raise at the first name that nothing resolves; one that is found may still not fit."""
    for kind, name in dict.fromkeys(name for config in configs for name in _names(config)):
        resolve(kind, name, _BUILT_IN[kind])


def _names(config: Config) -> Iterator[tuple[Kind, str]]:
    # A model or data set that was handed over in Python has no name; its run says so itself.
    if config.data.name != OWN:
        yield "data", config.data.name
    if config.model.name != OWN:
        yield "models", config.model.name
    yield "algorithms", config.training.algorithm
    if isinstance(config.privacy, PrivacyConfig):
        asked = config.privacy.mechanism
        for name in [asked] if isinstance(asked, str) else asked:
            yield "mechanisms", name
