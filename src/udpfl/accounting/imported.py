"""Spending that other libraries recorded, as events that our accountants and the ledger take.

Only what is accounted without a guess is taken: noise on a sum clipped in norm, on all records or
on a Poisson sample of them. Everything else raises `Unsupported`, with its name and the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from udpfl.accounting.events import (
    Composed,
    Event,
    PoissonSampled,
    Release,
    Repeated,
    Unit,
    leaves,
    message_of,
)
from udpfl.accounting.serial import event_from_dict
from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import Gaussian, Laplace
from udpfl.sensitivity import Sensitivity, whole

_OPACUS_ACCOUNTANTS = ("rdp", "prv", "gdp")
_FIXED_BATCHES = (
    "batches of a fixed size, accounted as Poisson sampling at the same rate, would understate "
    "epsilon: for one record added or removed no amplification is proved for them here"
)
_NO_NOISE = "a release without noise has no epsilon: no budget can cover it"


def from_opacus(history: Any, *, poisson_sampling: bool = True, unit: Unit = "record") -> Event:
    """What an Opacus accountant recorded: an accountant, its `state_dict()` or its `history`.

    Every accountant of Opacus keeps the same history of (noise multiplier, sampling rate, steps);
    what its own formula made of it plays no part. The history does not say how batches were drawn:
    pass `make_private`'s `poisson_sampling`, because only Poisson sampling can be imported.

    Guarantee: for one record added or removed, where each step clipped every gradient to norm C,
    drew its batch by Poisson sampling and added noise of std `noise multiplier * C` to the sum.
    Adaptive clipping (`clipping="adaptive"`, `PrivacyEngineAdaptiveClipping`) is not covered: it
    also releases how many gradients were not clipped. Opacus 1.6 counts that as if the size of the
    Poisson batch were public, which it is not; earlier releases may not count it at all. The
    history looks the same, so this is not noticed here.
    """
    if poisson_sampling is not True:
        raise Unsupported(f"an Opacus history with poisson_sampling=False: {_FIXED_BATCHES}")
    steps = [_opacus_step(row, unit) for row in _rows(history)]
    if not steps:
        raise InvalidInput("history", "is empty: there is nothing to import")
    return Composed(steps)


def from_dp_accounting(event: Any, *, dimension: int | None = None, unit: Unit = "record") -> Event:
    """A `DpEvent` of dp_accounting, or an accountant of it with everything it composed.

    Gaussian, Laplace, Poisson sampled, composed and self-composed events are known, and no-ops cost
    nothing. A `LaplaceDpEvent` does not say how many coordinates it noises: `dimension` does.

    Guarantee: for one record added or removed. An accountant for other neighbours is refused; an
    event does not say which neighbours it was meant for, and is taken to mean these.
    """
    events = list(_converted(_recorded(event), dimension, unit))
    if not events:
        raise InvalidInput("event", "releases nothing: there is nothing to import")
    return Composed(events)


def read_opacus(path: Path) -> Event:
    """A file that holds an Opacus `state_dict()` or `history` as JSON."""
    return _read(path, "opacus", from_opacus)


def read_events(path: Path) -> Event:
    """A file that holds one event, or a list of them, as `event_to_dict` writes them."""

    def parsed(plain: Any) -> Event:
        if plain == []:
            raise InvalidInput("events", "is empty: there is nothing to import")
        parts = plain if isinstance(plain, list) else [plain]
        return Composed(event_from_dict(part) for part in parts)

    return _read(path, "events", parsed)


def _read(path: Path, option: str, parse: Callable[[Any], Event]) -> Event:
    """Whatever is wrong inside the file is said of the option that named it."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInput(option, f"cannot read {str(path)!r}: {error.strerror}") from None
    except InvalidInput as error:
        raise InvalidInput(option, f"{str(path)!r}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(option, f"{str(path)!r} is not JSON: {error}") from None


def _rows(history: Any) -> Sequence[Any]:
    """The list of steps inside an accountant, its state or the list itself."""
    if isinstance(history, Mapping):
        if "history" not in history:
            raise InvalidInput(
                "history",
                f"is missing; an Opacus state_dict() has one, this has {sorted(history)}",
            )
        mechanism, rows = history.get("mechanism", "rdp"), history["history"]
    elif hasattr(history, "history"):
        named = getattr(history, "mechanism", None)
        mechanism, rows = named() if callable(named) else "rdp", history.history
    else:
        mechanism, rows = "rdp", history
    if mechanism not in _OPACUS_ACCOUNTANTS:
        known = ", ".join(_OPACUS_ACCOUNTANTS)
        raise Unsupported(f"an Opacus accountant {mechanism!r}; known are {known}")
    if not isinstance(rows, (list, tuple)):
        raise InvalidInput("history", f"must be a list of steps, got {type(rows).__name__}")
    return rows


def _opacus_step(row: Any, unit: Unit) -> Event:
    if not isinstance(row, (list, tuple)) or len(row) != 3:
        raise InvalidInput(
            "history", f"must hold (noise multiplier, sampling rate, steps), got {row!r}"
        )
    noise, rate, steps = row
    if isinstance(steps, float) and steps.is_integer():  # as some JSON writers leave it
        steps = int(steps)
    sampled = PoissonSampled(_number("sample_rate", rate), _gaussian(noise, unit))
    return Repeated(sampled, whole("num_steps", steps))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInput(name, f"must be a finite number, got {value!r}")
    return float(value)


def _noise(value: Any) -> float:
    noise = _number("noise_multiplier", value)
    if noise == 0:
        raise Unsupported(f"a noise multiplier of 0: {_NO_NOISE}")
    return noise


def _gaussian(noise: Any, unit: Unit) -> Release:
    """Noise relative to the clip, so the clip is 1; Gaussian noise needs no dimension."""
    return Release(Gaussian(_noise(noise)), Sensitivity(1.0, "l2"), unit)


def _recorded(event: Any) -> Any:
    """What an accountant composed, if its neighbours are ours; an event is itself."""
    if not hasattr(event, "ledger"):
        return event
    relation = getattr(getattr(event, "neighboring_relation", None), "name", "unknown")
    if relation != "ADD_OR_REMOVE_ONE":
        raise Unsupported(
            f"an accountant with the neighbouring relation {relation}: its events, accounted here "
            "for one record added or removed (ADD_OR_REMOVE_ONE), would understate epsilon"
        )
    return event.ledger


def _converted(event: Any, dimension: int | None, unit: Unit) -> Iterator[Event]:
    """The releases of a DpEvent: none for a no-op, several for a composition."""
    import dp_accounting as dp  # takes a second; most programs import nothing

    # Exact types: a subclass may mean something else.
    kind = type(event)
    if not isinstance(event, dp.DpEvent):
        raise InvalidInput("event", f"must be a DpEvent of dp_accounting, got {kind.__name__}")
    if kind is dp.NoOpDpEvent:
        return
    if kind is dp.GaussianDpEvent:
        yield _gaussian(event.noise_multiplier, unit)
    elif kind is dp.LaplaceDpEvent:
        if dimension is None:
            raise InvalidInput(
                "dimension",
                "is needed: a LaplaceDpEvent does not say how many coordinates it noises "
                "(1 for a single number)",
            )
        noise = _noise(event.noise_multiplier)
        yield Release(Laplace(noise), Sensitivity(1.0, "l1", dimension), unit)
    elif kind is dp.ComposedDpEvent:
        for part in event.events:
            yield from _converted(part, dimension, unit)
    elif kind is dp.SelfComposedDpEvent:
        count = whole("count", event.count)
        for part in _converted(event.event, dimension, unit):
            yield Repeated(part, count)
    elif kind is dp.PoissonSampledDpEvent:
        yield from _sampled(event, dimension, unit)
    else:
        raise Unsupported(f"a {kind.__name__} cannot be imported{_reason(kind.__name__)}")


def _sampled(event: Any, dimension: int | None, unit: Unit) -> Iterator[Event]:
    """Releases of one Poisson sample: one, the same one several times, or Gaussian ones.

    Releases of one sample are not releases of several samples. Gaussian noise of stds s_i on the
    same records, each looking at the ones before, costs what one of std (sum s_i^-2)^(-1/2) costs.
    """
    inner = leaves(Composed(_converted(event.event, dimension, unit)))
    if not inner:
        return
    rate = _number("sampling_probability", event.sampling_probability)
    stds = [
        (leaf.mechanism.std, count)
        for leaf, count in inner.items()
        if isinstance(leaf, Release) and isinstance(leaf.mechanism, Gaussian)
    ]
    single, times = next(iter(inner.items()))
    if isinstance(single, Release) and len(inner) == 1:
        yield message_of(single, rate, passes=times)
    elif len(stds) == len(inner):
        together = math.fsum(count / std**2 for std, count in stds) ** -0.5
        yield PoissonSampled(rate, _gaussian(together, unit))
    else:
        raise Unsupported(
            "a PoissonSampledDpEvent of anything but one kind of release, or Gaussian releases, "
            "cannot be imported: several releases of one sample are not several samples"
        )


def _reason(name: str) -> str:
    if name in ("SampledWithoutReplacementDpEvent", "SampledWithReplacementDpEvent"):
        return f": {_FIXED_BATCHES}"
    if name == "NonPrivateDpEvent":
        return f": {_NO_NOISE}"
    return ": there is no event of ours that means the same"
