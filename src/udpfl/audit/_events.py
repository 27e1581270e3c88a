"""A second reading of stored events: plain JSON in, what was released out.

It shares no code with `udpfl.accounting`: an error there must not repeat itself here.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

NO_CLAIM = "null"


@dataclass(frozen=True)
class Noise:
    """Symmetric noise by name, with its numbers in alphabetical order of their names."""

    name: str
    numbers: tuple[float, ...]


@dataclass(frozen=True)
class Seen:
    """One release as an adversary meets it."""

    noise: Noise | None
    """None for a randomiser of which only its pure epsilon is known."""
    clip: float
    """The bound on a record, or that epsilon."""
    norm: str = "l2"
    dimension: int | None = None
    rate: float = 1.0
    passes: int = 1
    """How many such releases look at the same sample."""
    hidden: str = ""
    """What may make it cost less than it seems: a secret selection, a shuffle."""

    @property
    def euclidean(self) -> float:
        """The largest l2 norm of what one record adds; inf where that is not known."""
        if self.norm != "linf" or self.dimension == 1:
            return self.clip
        return math.inf if self.dimension is None else self.clip * math.sqrt(self.dimension)


def read(text: object) -> Counter[Seen]:
    """How often each release happens in an event; ValueError where that cannot be said."""
    if not isinstance(text, str):
        raise ValueError("it is not a text")
    try:
        found = Counter[Seen]()
        for seen, count in _walk(json.loads(text), 1):
            found[seen] += count
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return found


def _walk(data: Mapping[str, Any], times: int) -> Iterator[tuple[Seen, int]]:
    match data["type"]:
        case "Release":
            bound = data["sensitivity"]
            if bound["norm"] not in ("l1", "l2", "linf"):
                raise ValueError(f"an unknown norm {bound['norm']!r}")
            dimension = None if bound["dimension"] is None else _whole(bound["dimension"])
            noise = _noise(data["mechanism"])
            if noise.name == "staircase-l1" and noise.numbers[1] != dimension:
                raise ValueError(f"noise of vectors of {noise.numbers[1]:g} coordinates")
            yield Seen(noise, _positive(bound["bound"]), bound["norm"], dimension), times
        case "PureDP":
            yield Seen(None, _positive(data["epsilon"])), times
        case "PoissonSampled":
            inner, passes = data["event"], 1
            if inner["type"] == "Repeated":  # all of it on one sample
                inner, passes = inner["event"], _whole(inner["count"])
            if inner["type"] not in ("Release", "PureDP"):
                raise ValueError("only one kind of release can be sampled")
            for seen, _ in _walk(inner, 1):
                yield _with(seen, rate=_probability(data["rate"]), passes=passes), times
        case "SecretlySelected":
            _probability(data["probability"])
            for seen, count in _walk(data["event"], times):
                yield _with(seen, hidden="a secret selection"), count
        case "Shuffled":
            _whole(data["clients"])
            _whole(data.get("releases", 1))  # not written where it is 1
            for seen, count in _walk(data["event"], times):
                yield _with(seen, hidden="a shuffle"), count
        case "Repeated":
            yield from _walk(data["event"], times * _whole(data["count"]))
        case "Composed":
            for inner in data["events"]:
                yield from _walk(inner, times)
        case kind:
            raise ValueError(f"an unknown kind of event {kind!r}")


def _noise(data: Mapping[str, Any]) -> Noise:
    name, given = data.get("name", data.get("class")), data["parameters"]
    expected = {
        "gaussian": {"std"},
        "laplace": {"scale"},
        "staircase": {"decay", "period", "split"},
        "staircase-l1": {"decay", "dimension", "period", "split"},
        "r2dp": {"concentration", "scale"},
    }
    if not isinstance(name, str) or ("name" in data and name not in expected):
        raise ValueError(f"an unknown mechanism {name!r}")
    if given.keys() != expected.get(name, given.keys()):
        raise ValueError(f"the parameters of {name} are {sorted(given)}")
    if name not in expected:
        return Noise(name, ())
    return Noise(name, tuple(_number(given[key], 0.0) for key in sorted(given)))


def _with(seen: Seen, **changes: Any) -> Seen:
    return Seen(**{f.name: getattr(seen, f.name) for f in fields(Seen)} | changes)


def _number(value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is not a number")
    if not math.isfinite(value) or value < least:
        raise ValueError(f"{value!r} is out of range")
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value, 0.0)
    if number == 0:
        raise ValueError("a bound of zero")
    return number


def _probability(value: Any) -> float:
    if _positive(value) > 1:
        raise ValueError(f"{value!r} is no probability")
    return float(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a whole number >= 1")
    return value


# Events as the package holds them


def flattened(event: object, times: int = 1) -> Counter[str]:
    """How often each release happens in an event object, under a text of its own."""
    kind, found = type(event).__name__, Counter[str]()
    if event is None:
        return found
    if kind == "Repeated":
        return flattened(event.event, times * event.count)  # type: ignore[attr-defined]
    if kind == "Composed":
        for inner in event.events:  # type: ignore[attr-defined]
            found.update(flattened(inner, times))
        return found
    found[_key(_plain(event))] = times
    return found


def same_text(text: str) -> str:
    """The text under which `flattened` counts the stored event."""
    return _key(json.loads(text))


def _plain(part: Any) -> Any:
    if hasattr(part, "parameters"):
        kind = type(part)
        own = not kind.__module__.startswith("udpfl.")
        name = f"{kind.__module__}:{kind.__qualname__}" if own else part.name
        return {"class" if own else "name": name, "parameters": dict(part.parameters)}
    if is_dataclass(part) and not isinstance(part, type):
        plain = {f.name: _plain(getattr(part, f.name)) for f in fields(part)}
        return plain if type(part).__name__ == "Sensitivity" else plain | _type(part)
    return [_plain(inner) for inner in part] if isinstance(part, tuple) else part


def _type(part: object) -> dict[str, str]:
    return {"type": type(part).__name__}


def _key(data: Any) -> str:
    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = {"digest"} if "class" in value else set()
            left_out |= {"releases"} if value.get("releases") == 1 else set()
            return {name: bare(inner) for name, inner in value.items() if name not in left_out}
        if isinstance(value, list):
            return [bare(inner) for inner in value]
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if plain else value

    return json.dumps(bare(data), sort_keys=True)
