"""Events in words, for whoever reads a ledger."""

from __future__ import annotations

from udpfl.accounting.events import (
    Composed,
    Event,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    SecretlySelected,
    Shuffled,
)
from udpfl.errors import Unsupported


def described(event: Event) -> str:
    """One phrase: which noise, at which clip, how often."""
    match event:
        case Release(mechanism, sensitivity, unit):
            clip = f"{sensitivity.norm} clip {sensitivity.bound:g} per {unit}"
            return f"{mechanism.name} ({mechanism.parameters_in_words()}), {clip}"
        case PureDP(epsilon):
            return f"any {epsilon:g}-DP answer"
        case PoissonSampled(rate, Repeated(inner, count)):
            return f"{described(inner)}, {count:,} times on one sample at {rate:g}"
        case PoissonSampled(rate, inner):
            return f"{described(inner)}, sampled at {rate:g}"
        case SecretlySelected(probability, inner):
            return f"{described(inner)}, in secret with probability {probability:g}"
        case Shuffled(inner, clients, _, releases):
            of = f", one of {releases:,} in a message" if releases > 1 else ""
            return f"{described(inner)}{of}, shuffled among {clients:,}"
        case Repeated(inner, count):
            return f"{count:,} times {described(inner)}"
        case Composed(events):
            return "; ".join(described(inner) for inner in events)
        case _:
            raise Unsupported(f"not an event that can be stored: {event!r}")


def counted(number: int, noun: str) -> str:
    """So many of them: 1 client, 1,000 clients."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
