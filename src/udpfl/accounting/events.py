"""What was released, as data. Accountants interpret events; an event they cannot handle raises.

Release          noise on a clipped sum: one message, one charge
PureDP           any epsilon-DP randomiser
PoissonSampled   the event, run on records drawn independently at a rate
SecretlySelected the event, run only if its client was picked, and nobody learns who was
Shuffled         the event's message, mixed with those of other clients before anyone sees it
Repeated         the event, `count` times in a row (adaptively)
Composed         several events, one after another (adaptively)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from udpfl.errors import InvalidInput, Unsupported
from udpfl.mechanisms import Mechanism
from udpfl.mechanisms.base import positive
from udpfl.sensitivity import Sensitivity, whole

Unit = Literal["record", "client"]
Neighbours = Literal["add-remove", "replace-one"]


def _probability(name: str, value: float) -> None:
    positive(name, value)
    if value > 1:
        raise InvalidInput(name, f"must lie in (0, 1], got {value!r}")


@dataclass(frozen=True)
class Release:
    """Independent noise on every coordinate of a sum clipped to `sensitivity`.

    `unit` says whose presence the sensitivity bounds: one record, or a whole client.

    Raises:
        InvalidInput: A field has another type, or `unit` is neither of the two.

    Example:
        >>> from udpfl import Laplace, Release, Sensitivity
        >>> Release(Laplace(2.0), Sensitivity(1.0, "l1", dimension=10)).unit
        'record'
    """

    mechanism: Mechanism
    """The noise."""
    sensitivity: Sensitivity
    """How far one unit can move the sum."""
    unit: Unit = "record"
    """Whose presence the sensitivity bounds: "record" or "client"."""

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise InvalidInput("mechanism", f"must be a mechanism, got {self.mechanism!r}")
        if not isinstance(self.sensitivity, Sensitivity):
            raise InvalidInput("sensitivity", f"must be a Sensitivity, got {self.sensitivity!r}")
        if self.unit not in get_args(Unit):
            raise InvalidInput("unit", f"must be record or client, got {self.unit!r}")

    def scaled(self, *, noise: float = 1.0, clip: float = 1.0) -> Release:
        """With other noise, or with both noise and clip in another unit of length."""
        bound = replace(self.sensitivity, bound=self.sensitivity.bound * clip)
        return replace(self, mechanism=self.mechanism.scaled(noise * clip), sensitivity=bound)


@dataclass(frozen=True)
class PureDP:
    """Any randomiser with the pure guarantee `epsilon`, accounted as randomised response.

    Raises:
        InvalidInput: `epsilon` is not a finite number above 0.

    Example:
        >>> from udpfl import PureDP, account
        >>> account(PureDP(0.5), delta=0).epsilon
        0.5
    """

    epsilon: float
    """Of one use, at delta = 0."""
    unit: Unit = "record"
    """Whose presence it hides: "record" or "client"."""
    neighbours: Neighbours = "add-remove"
    """Whether data sets differ by one unit more ("add-remove") or by another one
    ("replace-one")."""
    discrete: bool = False
    """The output takes finitely or countably many values (a condition of the shuffle theorem)."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)


@dataclass(frozen=True)
class PoissonSampled:
    """Each record takes part independently with probability `rate`, anew in every repetition.

    With unit "client" this needs a trusted server that keeps the selection secret.

    Raises:
        InvalidInput: `rate` is not in (0, 1].
        Unsupported: The event is no single release, or not for add-remove neighbours.

    Example:
        >>> from udpfl import Gaussian, PoissonSampled, Release, Sensitivity
        >>> PoissonSampled(0.01, Release(Gaussian(1.0), Sensitivity(1.0))).rate
        0.01
    """

    rate: float
    """In (0, 1]."""
    event: Release | PureDP
    """What is released about the sample."""

    def __post_init__(self) -> None:
        _probability("sampling_rate", self.rate)
        if not isinstance(self.event, (Release, PureDP)):
            raise Unsupported(
                f"Poisson sampling of a {type(self.event).__name__} event has no proved bound: "
                "sample each release on its own"
            )
        if isinstance(self.event, PureDP) and self.event.neighbours != "add-remove":
            raise Unsupported("Poisson sampling is accounted for add-remove neighbours only")


@dataclass(frozen=True)
class SecretlySelected:
    """A client takes part in the round with `probability`; only aggregates are ever seen.

    Both neighbours share the case "not selected", so the moment is mixed, not the rate:
    RDP <= log(1 - p + p e^{(a-1) g}) / (a-1). It is never a Poisson rate p q.

    Raises:
        InvalidInput: `probability` is not in (0, 1].

    Example:
        >>> from udpfl import Gaussian, Release, SecretlySelected, Sensitivity
        >>> round_ = Release(Gaussian(1.0), Sensitivity(1.0), "client")
        >>> SecretlySelected(0.1, round_).probability
        0.1
    """

    probability: float
    """In (0, 1]."""
    event: Event
    """What the client releases if it takes part."""

    def __post_init__(self) -> None:
        _probability("probability", self.probability)


@dataclass(frozen=True)
class Shuffled:
    """`clients` messages, one from each, permuted uniformly before anyone sees them.

    Amplification is granted only where every condition of the theorem holds; see
    `udpfl.accounting.shuffling`. Elsewhere the event costs what its message costs.

    Raises:
        InvalidInput: `clients` is not a whole number above 0.
        Unsupported: The event is not a single message.

    Example:
        >>> from udpfl import PureDP, Shuffled
        >>> Shuffled(PureDP(1.0, discrete=True), clients=1000, identical=True).clients
        1000
    """

    event: Release | PureDP | PoissonSampled
    """The message of one client."""
    clients: int
    """How many messages are permuted."""
    identical: bool = False
    """Every client runs the same randomiser with the same epsilon."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", whole("clients", self.clients))
        if not isinstance(self.event, (Release, PureDP, PoissonSampled)):
            raise Unsupported("a client shuffles one message: a Release, PureDP or PoissonSampled")


@dataclass(frozen=True)
class NominallyShuffled:
    """The paper's reading of a shuffle: its lemma without the conditions.

    Only scalar accounting makes these, out of `Shuffled` events; no guarantee accepts them.
    """

    event: Release | PureDP | PoissonSampled
    clients: int


@dataclass(frozen=True)
class Repeated:
    """The event `count` times, each free to depend on everything released before.

    Raises:
        InvalidInput: `count` is not a whole number from 1 to 10^12.

    Example:
        >>> from udpfl import PureDP, Repeated, account
        >>> account(Repeated(PureDP(0.5), 4), delta=0).epsilon
        2.0
    """

    event: Event
    """What is repeated."""
    count: int
    """How many times."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", whole("steps", self.count))


@dataclass(frozen=True)
class Composed:
    """Events one after another, each free to depend on everything released before.

    Example:
        >>> from udpfl import Composed, PureDP, account
        >>> account(Composed([PureDP(0.5), PureDP(0.25)]), delta=0).epsilon
        0.75
    """

    events: tuple[Event, ...]
    """In any order: the cost does not depend on it."""

    def __init__(self, events: Iterable[Event]) -> None:
        object.__setattr__(self, "events", tuple(events))


Leaf = Release | PureDP | PoissonSampled | SecretlySelected | Shuffled | NominallyShuffled
Event = Leaf | Repeated | Composed


def message_of(release: Release, rate: float = 1.0, shuffled: int = 0) -> Event:
    """One message of a client: a release on a Poisson sample, and with how many it is shuffled."""
    message = PoissonSampled(rate, release)
    return Shuffled(message, shuffled) if shuffled else message


def leaves(event: Event) -> dict[Leaf, int]:
    """How often each distinct release happened. Counts are multiplied here and nowhere else."""
    counts: dict[Leaf, int] = {}
    for leaf, count in _walk(event, 1):
        counts[leaf] = counts.get(leaf, 0) + count
    return counts


def _walk(event: Event, times: int) -> Iterator[tuple[Leaf, int]]:
    match event:
        case Repeated(inner, count):
            yield from _walk(inner, times * count)
        case Composed(events):
            for inner in events:
                yield from _walk(inner, times)
        case (
            Release()
            | PureDP()
            | PoissonSampled()
            | SecretlySelected()
            | Shuffled()
            | NominallyShuffled()
        ):
            yield event, times
        case _:
            raise Unsupported(f"not an event: {event!r}")


def basis(event: Event) -> tuple[Unit, Neighbours]:
    """The unit and the neighbour relation that a whole event speaks about."""
    found: set[tuple[Unit, Neighbours]] = set()
    for leaf in leaves(event):
        match leaf:
            case Release(unit=unit):
                found.add((unit, "add-remove"))
            case PureDP(unit=unit, neighbours=neighbours):
                found.add((unit, neighbours))
            case (
                PoissonSampled(event=inner)
                | SecretlySelected(event=inner)
                | Shuffled(event=inner)
                | NominallyShuffled(event=inner)
            ):
                found.add(basis(inner))
    if len(found) != 1:
        raise Unsupported(
            "events with different units or neighbour relations cannot be added up: "
            + ", ".join(f"{unit} ({neighbours})" for unit, neighbours in sorted(found))
            if found
            else "nothing to account: the composition is empty"
        )
    return found.pop()
