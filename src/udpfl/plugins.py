"""Models, data sets, methods and mechanisms of one's own, found by name.

A name is, in this order, built in, a place to import from ("package.module:attribute"), or an
entry point that an installed package declares in the group `udpfl.models`, `udpfl.data`,
`udpfl.algorithms` or `udpfl.mechanisms`:

    [project.entry-points."udpfl.models"]
    resnet = "my_package.networks:resnet"
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from udpfl.errors import InvalidInput, UdpflError

Kind = Literal["models", "data", "algorithms", "mechanisms"]

_CONFIG_KEYS: dict[Kind, str] = {
    "models": "model.name",
    "data": "data.name",
    "algorithms": "training.algorithm",
    "mechanisms": "privacy.mechanism",
}


def resolve(kind: Kind, name: str, built_in: Mapping[str, Any]) -> Any:
    """What the name stands for. Importing runs the code of the module it names."""
    key = _CONFIG_KEYS[kind]
    if name in built_in:
        return built_in[name]
    if ":" in name:
        return _imported(key, name)
    offers = offered(kind)
    if name in offers:
        return _from_package(key, name, offers[name])
    known = sorted({*built_in, *offers})
    if kind == "mechanisms":
        known.append("none")  # no mechanism, and a word of the configuration all the same
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(
        key,
        f"there is no {name!r}; {hint}known are {', '.join(known) or 'none'}, "
        "and package.module:attribute for one's own",
    )


def offered(kind: Kind) -> dict[str, list[EntryPoint]]:
    """Entry points by name; the same one seen twice on the path counts once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=f"udpfl.{kind}"):
        found.setdefault(point.name, {})[point.value] = point
    return {name: list(points.values()) for name, points in found.items()}


def _from_package(key: str, name: str, points: list[EntryPoint]) -> Any:
    if len(points) > 1:
        places = " and ".join(point.value for point in points)
        raise InvalidInput(key, f"{name!r} is offered by {places}; write out the one that is meant")
    point = points[0]
    return _attempt(key, point.load, f"{name!r} ({point.value})")


def _imported(key: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in f"{module_name}.{attribute}".split(".")):
        raise InvalidInput(key, f"must look like package.module:attribute, got {name!r}")
    look_here_too()
    importlib.invalidate_caches()  # the module may be younger than the running interpreter
    module = _attempt(key, lambda: importlib.import_module(module_name), repr(module_name))
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [n for n in vars(module) if n[0] != "_"], n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise InvalidInput(key, f"cannot import {name!r}: {error}{hint}") from error


def look_here_too() -> None:
    """Let modules in the current folder be imported."""
    # An installed command has its own folder first on the path where `python -m` has the current
    # one; a module that lies next to the configuration should be found either way.
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def _attempt(key: str, load: Callable[[], Any], what: str) -> Any:
    try:
        return load()
    except UdpflError:
        raise  # says itself what is wrong, such as an extra that is not installed
    except ImportError as error:
        raise InvalidInput(key, f"cannot import {what}: {error}") from error
    except Exception as error:  # the module's own code failed, in whatever way
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(key, f"cannot import {what}: {reason}") from error
