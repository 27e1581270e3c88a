"""What the shell offers: names, and after `--set` the keys of a configuration and their values.

The shell waits for every answer, so nothing here may import torch. What is slow to import is
imported where a completion needs it, because every verb imports this module.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Keys that take a name, and the group of entry points that may offer more of them.
NAMED = {
    "data.name": "data",
    "model.name": "models",
    "privacy.mechanism": "mechanisms",
    "training.algorithm": "algorithms",
}


def one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Completes to those of the names that begin like what was typed."""

    def beginning(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return beginning


def assignments(incomplete: str) -> list[tuple[str, str]]:
    """Assignments that begin like this, each with what the key means."""
    from udpfl.config.documents import known_keys
    from udpfl.config.models import SECTIONS

    keys = {key: field for key, field in known_keys().items() if key not in SECTIONS}
    wanted, equals, _ = incomplete.partition("=")
    found = [key for key in keys if (key == wanted if equals else key.startswith(wanted))]
    if len(found) != 1:
        return [(f"{key}=", keys[key]["description"]) for key in found]
    # A single key is offered with its values, so that the shell goes straight on to them.
    (key,) = found
    offered = [f"{key}={value}" for value in values(key)] or [f"{key}="]
    return [(each, keys[key]["description"]) for each in offered if each.startswith(incomplete)]


def values(key: str) -> list[str]:
    """What a key may be, where that can be listed."""
    from udpfl.config.documents import known_keys

    field = known_keys()[key]
    if key not in NAMED:
        return list(_choices(field))
    group = NAMED[key]
    names = [field["default"], *_built_in(group)]
    names += [point.name for point in entry_points(group=f"udpfl.{group}")]
    return list(dict.fromkeys(names))


def _choices(field: Mapping[str, Any]) -> Iterator[str]:
    yield from field.get("enum", ())
    for kind in field.get("anyOf", ()):
        yield from _choices(kind)


def _built_in(package: str) -> list[str]:
    """The keys of `BUILT_IN = {...}` in `udpfl.PACKAGE`, from its source: importing is slow."""
    if package == "mechanisms":
        from udpfl.mechanisms import BUILT_IN as MECHANISMS

        return [*MECHANISMS, "none"]
    spec = find_spec(f"udpfl.{package}")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.AnnAssign(ast.Name("BUILT_IN"), value=ast.Dict(keys)):
                return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return []
