"""What was released, as data. Accountants interpret events; an event they cannot handle raises.

Release          noise on a clipped sum: one message, one charge
PureDP           any epsilon-DP randomiser
PoissonSampled   the event, run on records drawn independently at a rate; repetitions inside of it
                 look at the same sample
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
from udpfl.mechanisms import Mechanism, Radial
from udpfl.mechanisms.base import positive
from udpfl.sensitivity import Sensitivity, whole

Unit = Literal["record", "person", "client"]
"""Whose presence is hidden: a record, a person with all its rows at a client, or a client."""
Neighbours = Literal["add-remove", "replace-one"]


def _probability(name: str, value: float) -> None:
    positive(name, value)
    if value > 1:
        raise InvalidInput(name, f"must lie in (0, 1], got {value!r}")


@dataclass(frozen=True)
class Release:
    """Noise on a sum clipped to `sensitivity`.

    `unit` says whose presence the sensitivity bounds: one record, a person, or a whole client.

    Raises:
        InvalidInput: A field has another type, `unit` is none of them, or noise of whole
            vectors is for another dimension.

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
    """Whose presence the sensitivity bounds: "record", "person" or "client"."""

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise InvalidInput("mechanism", f"must be a mechanism, got {self.mechanism!r}")
        if not isinstance(self.sensitivity, Sensitivity):
            raise InvalidInput("sensitivity", f"must be a Sensitivity, got {self.sensitivity!r}")
        if self.unit not in get_args(Unit):
            raise InvalidInput("unit", f"must be record, person or client, got {self.unit!r}")
        self._check_dimension()

    def _check_dimension(self) -> None:
        noise, dimension = self.mechanism, self.sensitivity.dimension
        if isinstance(noise, Radial) and noise.dimension != dimension:
            raise InvalidInput(
                "dimension",
                f"{noise.name} noise for vectors of {noise.dimension:,} coordinates does not fit a "
                f"sum of {'unknown dimension' if dimension is None else f'{dimension:,}'}",
            )

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
    """Whose presence it hides: "record", "person" or "client"."""
    neighbours: Neighbours = "add-remove"
    """Whether data sets differ by one unit more ("add-remove") or by another one
    ("replace-one")."""
    discrete: bool = False
    """The output takes finitely or countably many values (a condition of the shuffle theorem)."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)


@dataclass(frozen=True)
class PoissonSampled:
    """Each record takes part independently with probability `rate`.

    `Repeated(PoissonSampled(q, release), n)` draws n samples and releases each once.
    `PoissonSampled(q, Repeated(release, n))` draws one sample and releases it n times: one coin
    decides about a record for all of them, which costs more as a rule. docs/mathematics.md, section
    4.1, has the proof. With unit "client" this needs a trusted server that keeps the selection
    secret.

    Raises:
        InvalidInput: `rate` is not in (0, 1].
        Unsupported: The event is no release and no repeated release, or not for add-remove
            neighbours.

    Example:
        >>> from udpfl import Gaussian, PoissonSampled, Release, Repeated, Sensitivity, account
        >>> release = Release(Gaussian(2.0), Sensitivity(1.0))
        >>> one_sample = PoissonSampled(0.1, Repeated(release, 4))
        >>> four_samples = Repeated(PoissonSampled(0.1, release), 4)
        >>> account(one_sample, 1e-5).epsilon > account(four_samples, 1e-5).epsilon
        True
    """

    rate: float
    """In (0, 1]."""
    event: Release | PureDP | Repeated
    """What is released about the sample."""

    def __post_init__(self) -> None:
        _probability("sampling_rate", self.rate)
        inner, _ = self.passes
        if not isinstance(inner, (Release, PureDP)):
            raise Unsupported(
                f"Poisson sampling of a {type(inner).__name__} event has no proved bound: "
                "sample each release on its own"
            )
        if isinstance(inner, PureDP) and inner.neighbours != "add-remove":
            raise Unsupported("Poisson sampling is accounted for add-remove neighbours only")

    @property
    def passes(self) -> tuple[Release | PureDP, int]:
        """The release, and how many times it looks at the same sample."""
        if isinstance(self.event, Repeated):
            return self.event.event, self.event.count  # type: ignore[return-value]
        return self.event, 1


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

    A message may hold several `releases` that are alike, as those of several local steps. The event
    stands for one of them: a message is so many of these events. No theorem speaks of such a
    message. Nominal accounting applies the paper's lemma to the whole of it and counts an equal
    part for each release.

    Raises:
        InvalidInput: `clients` or `releases` is not a whole number above 0.
        Unsupported: The event is not a single release.

    Example:
        >>> from udpfl import PureDP, Shuffled
        >>> Shuffled(PureDP(1.0, discrete=True), clients=1000, identical=True).clients
        1000
    """

    event: Release | PureDP | PoissonSampled
    """The message of one client, or one of the releases in it."""
    clients: int
    """How many messages are permuted."""
    identical: bool = False
    """Every client runs the same randomiser with the same epsilon."""
    releases: int = 1
    """How many releases like this one a message holds."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", whole("clients", self.clients))
        object.__setattr__(self, "releases", whole("releases", self.releases))
        if not isinstance(self.event, (Release, PureDP, PoissonSampled)):
            raise Unsupported(
                "a message is made of single releases (Release, PureDP or PoissonSampled): give "
                "one of them, and in `releases` how many the message holds"
            )


@dataclass(frozen=True)
class NominallyShuffled:
    """The paper's reading of a shuffle: its lemma without the conditions.

    Only scalar accounting makes these, out of `Shuffled` events; no guarantee accepts them.
    """

    event: Release | PureDP | PoissonSampled
    clients: int
    releases: int = 1


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


def message_of(
    release: Release, rate: float = 1.0, shuffled: int = 0, releases: int = 1, passes: int = 1
) -> Event:
    """What a client releases of one Poisson sample, in so many passes over it.

    `shuffled` is with how many messages that is mixed, its own included, 0 where it is not;
    `releases` how many like this one message holds.
    """
    on_sample = PoissonSampled(rate, Repeated(release, passes) if passes > 1 else release)
    return Shuffled(on_sample, shuffled, releases=releases) if shuffled else on_sample


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


def release_count(event: Event) -> int:
    """How many releases a unit takes part in, where it is drawn into every sample."""
    total = 0
    for leaf, count in leaves(event).items():
        match leaf:
            case PoissonSampled():
                total += count * leaf.passes[1]
            case SecretlySelected(event=inner) | Shuffled(event=inner):
                total += count * release_count(inner)
            case _:
                total += count
    return total


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
