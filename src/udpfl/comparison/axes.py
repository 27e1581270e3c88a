"""What varies in a comparison: keys by themselves, keys that go together, and seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.config import apply
from udpfl.config.documents import known_keys
from udpfl.config.explaining import hint
from udpfl.config.models import SECTIONS
from udpfl.errors import InvalidInput

_PAIR = "epsilon=2,8 with learning_rate=1,2"
_NOT_VARIED = {
    "seed": "use --seeds for that",
    "out": "all runs of a comparison are in one folder",
    "threads": "does not change what is trained",
    "device": "does not change what is trained",
    "schema_version": "has one value only",
    "privacy": "vary privacy.mechanism instead, with none as one of its values",
    "training": "is a section: vary one of its keys",
    "training.target": "does not change what is trained",
    "privacy.ledger": "every run of a comparison has its own ledger",
}


Pairs = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
"""Keys whose values go together: those of one pair, or of several."""


@dataclass(frozen=True)
class Axis:
    """One direction of a grid: a key, or keys that go together, and what they are set to."""

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    """For each step along the axis, a value for each key."""


def axes_of(vary: Mapping[str, Sequence[Any]], pairs: Pairs = ()) -> tuple[Axis, ...]:
    """The axes of a grid, keys by themselves first.

    Of keys that go together, the first values belong to one cell, the second ones to the next:
    there must be as many of each.
    """
    axes = []
    for name, values in vary.items():
        key = key_of(name)
        axes.append(Axis((key,), _distinct((value,) for value in _listed("vary", key, values))))
    for pair in [pairs] if isinstance(pairs, Mapping) else pairs:
        axes.append(_paired(pair))
    keys = [key for axis in axes for key in axis.keys]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise InvalidInput("pair" if pairs else "vary", f"{twice[0]} is varied twice")
    return tuple(axes)


def _paired(pair: Mapping[str, Sequence[Any]]) -> Axis:
    if not isinstance(pair, Mapping) or len(pair) < 2:
        raise InvalidInput("pair", f"needs two keys or more with their values, got {pair!r}")
    keys = tuple(key_of(name, "pair") for name in pair)
    lists = [_listed("pair", key, own) for key, own in zip(keys, pair.values(), strict=True)]
    if len({len(own) for own in lists}) > 1:
        counts = ", ".join(f"{key} has {len(own)}" for key, own in zip(keys, lists, strict=True))
        raise InvalidInput(
            "pair",
            f"values that go together must be as many for each key: {counts}; use --vary for "
            "every combination",
        )
    return Axis(keys, _distinct(zip(*lists, strict=True)))


def key_of(name: str, parameter: str = "vary") -> str:
    """The full name of a key: its last part will do where no other key ends like it."""
    keys = known_keys()
    if (why := _NOT_VARIED.get(name)) is not None:
        raise InvalidInput(parameter, f"{name} cannot be varied: {why}")
    if name in SECTIONS:
        return f"{name}.name"  # a model or data set by its name, as in udpfl.run(model="mlp")
    section, dot, rest = name.partition(".")
    option = f"{section}.options" in keys and rest.startswith("options.") and all(name.split("."))
    if name in keys or option:
        return name
    same = [key for key in keys if key.rpartition(".")[2] == name]
    if len(same) == 1 and not dot:
        if (why := _NOT_VARIED.get(same[0])) is not None:
            raise InvalidInput(parameter, f"{same[0]} cannot be varied: {why}")
        return same[0]
    if same:
        raise InvalidInput(parameter, f"{name} is ambiguous: write {' or '.join(same)}")
    raise InvalidInput(parameter, f"there is no key {name!r}; {hint(name)}")


def short(key: str) -> str:
    """What a key is called where room is scarce: its last part, unless others end like it."""
    leaf = key.rpartition(".")[2]
    same = [known for known in known_keys() if known.rpartition(".")[2] == leaf]
    if leaf == "name":
        return key.partition(".")[0]
    return leaf if len(same) <= 1 else key


def said(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(said, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_vary(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Values by key from texts like "epsilon=2,[2, 8]"; each value is read as in --set."""
    vary: dict[str, list[Any]] = {}
    for text in texts:
        name, values = _read(text, "vary", f"must look like epsilon=2,4,8, got {text!r}")
        if name in vary:
            raise InvalidInput("vary", f"{name} is varied twice")
        vary[name] = values
    return vary


def read_pairs(texts: Iterable[str]) -> list[dict[str, list[Any]]]:
    """Keys that go together, from texts like "epsilon=2,8 with learning_rate=1,2"."""
    pairs = []
    for text in texts:
        parts = re.split(r"\s+with\s+(?=[\w.]+\s*=)", text.strip())
        form = f"must look like {_PAIR!r}, got {text!r}"
        read = [_read(part, "pair", form) for part in parts]
        if len(read) < 2:
            raise InvalidInput("pair", form)
        if len(names := dict(read)) < len(read):
            raise InvalidInput("pair", f"a key is named twice: {text!r}")
        pairs.append(names)
    return pairs


def _read(text: str, parameter: str, form: str) -> tuple[str, list[Any]]:
    """A key in full, and its values."""
    name, equals, values = (part.strip() for part in text.partition("="))
    parts = _split(values)
    if not equals or not name or not all(parts):
        raise InvalidInput(parameter, form)
    return key_of(name, parameter), [apply({}, [f"value={part}"])["value"] for part in parts]


def read_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves with commas between them."""
    parts = [part.strip() for part in text.strip().removesuffix(",").split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidInput("seeds", f"must look like 3 or 3,5,8, got {text!r}")
    numbers = [int(part) for part in parts]
    return numbers if "," in text else numbers[0]


def _split(text: str) -> list[str]:
    """At the commas that stand in no list, table or quoted text."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if character == "," and not quote and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _listed(parameter: str, key: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(parameter, f"{key} needs a list of values, got {values!r}")
    if not (listed := list(values)):
        raise InvalidInput(parameter, f"{key} has no values")
    return listed


def _distinct(values: Iterable[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    found: list[tuple[Any, ...]] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds, each once; of a number, as many from 0 on."""
    wanted = range(seeds) if isinstance(seeds, int) else list(seeds)
    for seed in wanted:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise InvalidInput("seeds", f"must be whole numbers >= 0, got {seed!r}")
    if not wanted:
        raise InvalidInput("seeds", f"at least one is needed, got {seeds!r}")
    return tuple(dict.fromkeys(wanted))
