"""Every problem of a configuration that can be told before any record is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from udpfl import algorithms, data, models
from udpfl.config import Config
from udpfl.config.reading import OWN
from udpfl.data.options import known
from udpfl.data.table import check_options
from udpfl.errors import InvalidInput, UdpflError
from udpfl.federation._combinations import check_combination
from udpfl.federation._own_noise import own_noise
from udpfl.federation.builders import build_algorithm
from udpfl.plugins import offered, own_mechanism, resolve

_SIZE, _DIMENSION = 100, 1000
"""Of a client and a model, where a method's noise has to be looked at without either."""


def settings_problems(config: Config) -> list[tuple[str, str]]:
    """The keys that are wrong, and why: names, options, and settings that a method cannot keep.

    The code that a configuration names is imported for this.

    Args:
        config: Settings that are right by themselves.

    Returns:
        An empty list where nothing was found.

    Example:
        >>> from udpfl.config import load
        >>> from udpfl.federation.checking import settings_problems
        >>> [key for key, _ in settings_problems(load({"training": {"algorithm": "ldp-fed"}}))]
        ['privacy.norm', 'privacy.unit']
    """
    return list(dict.fromkeys(_problems(config)))


def _problems(config: Config) -> Iterator[tuple[str, str]]:
    yield from _found("data.name", lambda: _check_data(config))
    yield from _found("model.name", lambda: _check_model(config))
    yield from _found("privacy.mechanism", lambda: _check_mechanisms(config))
    method: list[algorithms.Algorithm] = []
    yield from _found("training.algorithm", lambda: method.append(build_algorithm(config)))
    for made in method:
        yield from _method_problems(config, made)


def _method_problems(config: Config, made: algorithms.Algorithm) -> Iterator[tuple[str, str]]:
    key = "training.algorithm"
    yield from _found(key, lambda: check_combination(config, made))
    yield from _found(key, lambda: own_noise(config, made, [_SIZE], _DIMENSION))
    if made.needs_public and not config.data.public:
        yield (
            "data.public",
            f"{made.name} learns from public records, but there are none: give a fraction or a "
            "number, for example 0.05",
        )


def _found(key: str, check: Callable[[], Any]) -> Iterator[tuple[str, str]]:
    """What a check refuses, under its own key or, where it names none, under this one."""
    try:
        check()
    except InvalidInput as error:
        yield from error.problems
    except UdpflError as error:
        yield key, str(error)


def _check_data(config: Config) -> None:
    name, options = config.data.name, config.data.options
    if name == OWN:
        return
    resolve("data", name, data.BUILT_IN)
    if name in data.BUILT_IN:
        source = data.source_of(name)
        known(name, options, source.options)
        if missing := [own for own in source.needs if not options.get(own)]:
            raise InvalidInput(f"data.options.{missing[0]}", f"is needed for data.name = {name!r}")
    if name == "table":
        check_options(options)


def _check_model(config: Config) -> None:
    name = config.model.name
    if name != OWN:
        factory = resolve("models", name, models.BUILT_IN)
        if callable(factory):
            models.check_options(name, factory, (1,), 1, config.model.options)


def _check_mechanisms(config: Config) -> None:
    named = config.privacy.mechanism
    for name in named if isinstance(named, list) else [named]:
        if ":" in name or name in offered("mechanisms"):
            own_mechanism(name)
