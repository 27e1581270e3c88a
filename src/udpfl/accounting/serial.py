"""Events as plain data, and back: what a ledger stores and an auditor reads years later.

The round trip is exact. Every field is checked in both directions, so nothing is ever written that
could not be read. A built-in mechanism is stored by name; any other by the class that defines it
and a digest of its density, because a class may change while the file that names it does not.
Reading imports nothing that the data names: `udpfl.plugins.mechanism_class` says which classes are
known.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from hashlib import blake2b
from typing import Any, get_args

import numpy as np

from udpfl.accounting.events import (
    Composed,
    Event,
    Neighbours,
    NominallyShuffled,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Shuffled,
    Unit,
)
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import BUILT_IN, Mechanism
from udpfl.plugins import mechanism_class
from udpfl.sensitivity import Norm, Sensitivity, whole

_TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (Release, PureDP, PoissonSampled, SecretlySelected, Shuffled, Repeated, Composed)
}
_LATER = {"releases": 1}
"""Fields that earlier versions did not write, and what was true of their events. Where it is true
still the field is not written, so that the text of an event stays the same."""
_POINTS = (np.arange(64) + 0.5) / 8  # in standard deviations: the digest looks 8 of them far


def event_to_dict(event: Event) -> dict[str, Any]:
    """The event as data that JSON can hold, floats in full."""
    if isinstance(event, NominallyShuffled):
        raise Unsupported("a nominal shuffle is not an event that happened; store Shuffled")
    if type(event) not in _TYPES.values():
        raise Unsupported(f"not an event that can be stored: {event!r}")
    return {"type": type(event).__name__, **_plain_fields(event)}


def event_from_dict(data: dict[str, Any]) -> Event:
    """The event that `event_to_dict` wrote; anything else raises."""
    if not isinstance(data, dict):
        raise InvalidInput("event", f"must be a JSON object, got {data!r}")
    kind = _TYPES.get(data["type"]) if isinstance(data.get("type"), str) else None
    if kind is None:
        known = ", ".join(_TYPES)
        raise InvalidInput("event.type", f"must be one of {known}, got {data.get('type')!r}")
    rest = {name: value for name, value in data.items() if name != "type"}
    event: Event = kind(**_read_fields(kind, rest))
    return event


@lru_cache(maxsize=4096)
def event_to_json(event: Event) -> str:
    """The canonical text of an event: equal events have equal texts."""
    return json.dumps(event_to_dict(event), sort_keys=True, allow_nan=False)


def event_texts(several: Iterable[Sequence[Event]]) -> list[tuple[str, ...]]:
    """The canonical texts of several clients' events; one object is written once."""
    several = list(several)  # as long as all of them are alive their identities differ
    each = {id(event): event for events in several for event in events}
    texts = {key: event_to_json(event) for key, event in each.items()}
    return [tuple(texts[id(event)] for event in events) for events in several]


@lru_cache(maxsize=4096)
def event_from_json(text: str) -> Event:
    """The event of a text that `event_to_json` wrote."""
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput("event", f"is not JSON: {error}") from None
    return event_from_dict(data)


def _plain_fields(part: Any) -> dict[str, Any]:
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    written = {n: own for n, own in values.items() if n not in _LATER or own != _LATER[n]}
    return {name: _FIELDS[name][0](name, own) for name, own in written.items()}


def _read_fields(kind: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    names = [f.name for f in fields(kind) if f.name in data or f.name not in _LATER]
    _exactly(kind.__name__, data, names)
    return {name: _FIELDS[name][1](name, data[name]) for name in names}


def _exactly(owner: str, data: dict[str, Any], names: Iterable[str]) -> None:
    """Refuse unknown and missing fields alike: a guessed default would be a guessed privacy."""
    for name in sorted(data.keys() ^ set(names)):
        state = "unknown" if name in data else "missing"
        raise InvalidInput(f"event.{name}", f"{state} field of {owner}")


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"event.{name}", f"must be a JSON object, got {value!r}")
    return value


def _number(name: str, value: Any) -> float:
    number = isinstance(value, (int, float, np.floating, np.integer))
    if not number or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"event.{name}", f"must be a finite number, got {value!r}")
    return float(value)


def _optional_whole(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"event.{name}", f"must be true or false, got {value!r}")
    return bool(value)


def _one_of(choices: tuple[str, ...]) -> Callable[[str, Any], str]:
    def choice(name: str, value: Any) -> str:
        if value not in choices:
            raise InvalidInput(f"event.{name}", f"must be one of {choices}, got {value!r}")
        return str(value)

    return choice


def _read_events(name: str, value: Any) -> tuple[Event, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"event.{name}", f"must be a list, got {value!r}")
    return tuple(event_from_dict(inner) for inner in value)


def _plain_mechanism(_: str, mechanism: Mechanism) -> dict[str, Any]:
    kind = type(mechanism)
    parameters = {name: _scalar(name, value) for name, value in mechanism.parameters.items()}
    if BUILT_IN.get(mechanism.name) is kind:  # a subclass may behave differently
        return {"name": mechanism.name, "parameters": parameters}
    path = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ == "__main__" or not _is_importable(kind):
        raise Unsupported(
            f"mechanism {path} cannot be stored, because nobody else could load it: "
            "define its class at the top level of a module that can be imported"
        )
    plain = {"class": path, "parameters": parameters, "digest": behaviour(mechanism)}
    if _read_mechanism("mechanism", plain) != mechanism:
        raise Unsupported(f"mechanism {path} is not the same when built from its parameters")
    return plain


def _is_importable(kind: type) -> bool:
    """Whether the class lies in its module under its own name."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind


def _read_mechanism(name: str, value: Any) -> Mechanism:
    data = _object(name, value)
    if "class" not in data:
        _exactly("a mechanism", data, ("name", "parameters"))
        kind = BUILT_IN.get(data["name"]) if isinstance(data["name"], str) else None
        if kind is None:
            known = ", ".join(BUILT_IN)
            raise InvalidInput("event.mechanism", f"must be {known}, got {data['name']!r}")
        return _built(kind, data["name"], data["parameters"])
    _exactly("a mechanism", data, ("class", "parameters", "digest"))
    path = data["class"]
    if not isinstance(path, str):
        raise InvalidInput("event.class", f"must be package.module:Class, got {path!r}")
    mechanism = _built(mechanism_class(path), path, data["parameters"])
    if behaviour(mechanism) != data["digest"]:
        raise Unsupported(
            f"mechanism {path} has another density than when it was stored: "
            "bring back the version of its code that was used then"
        )
    return mechanism


def _built(kind: type[Mechanism], path: str, parameters: Any) -> Mechanism:
    values = _object("parameters", parameters)
    _exactly(path, values, (f.name for f in fields(kind)))
    try:
        return kind(**{name: _scalar(name, value) for name, value in values.items()})
    except TypeError as error:  # a constructor of its own
        raise Unsupported(
            f"mechanism {path} cannot be built from its parameters: {error}"
        ) from None


def _scalar(name: str, value: Any) -> float | int | str | bool | None:
    """A mechanism's parameter, provided that JSON keeps it exactly."""
    if isinstance(value, (np.floating, np.integer, np.bool_)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise Unsupported(f"mechanism parameter {name} = {value!r} cannot be stored exactly")


def behaviour(mechanism: Mechanism) -> str:
    """A digest of the density: the same noise has the same digest on every machine."""
    spread = mechanism.noise_std if math.isfinite(mechanism.noise_std) else 1.0
    values = np.asarray(mechanism.log_density(_POINTS * spread), dtype="<f8")
    rounded = np.round(values, 9) + 0.0  # + 0.0: there is a negative zero
    return blake2b(rounded.tobytes(), digest_size=16).hexdigest()


_FIELDS: dict[str, tuple[Callable[[str, Any], Any], Callable[[str, Any], Any]]] = {
    # field: (as plain data, back again); a name means the same in every event
    **dict.fromkeys(("rate", "probability", "epsilon", "bound"), (_number, _number)),
    **dict.fromkeys(("count", "clients", "releases"), (whole, whole)),
    **dict.fromkeys(("discrete", "identical"), (_flag, _flag)),
    "dimension": (_optional_whole, _optional_whole),
    "unit": (_one_of(get_args(Unit)),) * 2,
    "neighbours": (_one_of(get_args(Neighbours)),) * 2,
    "norm": (_one_of(get_args(Norm)),) * 2,
    "mechanism": (_plain_mechanism, _read_mechanism),
    "sensitivity": (
        lambda name, value: _plain_fields(value),
        lambda name, value: Sensitivity(**_read_fields(Sensitivity, _object(name, value))),
    ),
    "event": (
        lambda name, value: event_to_dict(value),
        lambda name, value: event_from_dict(value),
    ),
    "events": (
        lambda name, value: [event_to_dict(inner) for inner in value],
        _read_events,
    ),
}
