"""The client half: answer a request, or say why not.

A stored answer is sent again. A client whose budget would not hold does not train. Everyone else
trains, and the charge and the answer are committed to the ledger together before the answer leaves.
The same code answers for all clients of a simulation at once, or for a single one whose whole state
is in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from udpfl.accounting.events import Event
from udpfl.accounting.shuffling import unshuffled
from udpfl.algorithms import Algorithm, ClientMessage, Tensors
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.engine import (
    BallClipper,
    Clipper,
    Correct,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    Noiseless,
    Noiser,
    NormClipper,
    PrivateStream,
    Trained,
    Unclipped,
    train_round,
)
from udpfl.engine.counting import WEIGHT, counted_within
from udpfl.engine.randomness import Key, poisson_indices
from udpfl.errors import BudgetExceeded, Unsupported
from udpfl.federation.participants import Participant, scaled
from udpfl.harmonizer.charges import Charge
from udpfl.harmonizer.ledger import Ledger

WEAKEST = "weakest"
"""What clients receive beside the method's own: the last model of the largest budget's owner."""
_PULL = "pull"
CLIP = "clip"
"""The same: today's clip over the one that was planned, where it adapts."""
WITHIN = "within"
"""What clients send beside the method's own: the noisy share of records within the clip."""


@dataclass(frozen=True)
class Site:
    """What a client knows and the server does not: its records and its account."""

    participant: Participant
    account: int
    records: Tensor
    note: str | None = None
    """What a statement about this client has to add."""


@dataclass(frozen=True)
class Request:
    """What the server asks of some clients in one round."""

    round: int
    received: Tensors
    learning_rate: float
    settled: int = -1
    """Rounds up to this one are safe with the server: it will not ask for them again."""


@dataclass
class Answers:
    """Released messages, refusals by client, and diagnostics of a simulation."""

    messages: list[ClientMessage] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    count: int = 0
    """Clients that answered."""
    bytes_up: int = 0
    bytes_down: int = 0
    clipped_fraction: float | None = None
    signal_to_noise: float | None = None


Protection = Callable[[Sequence[Participant]], tuple[Clipper, Noiser]]
"""What stands between records and releases. An auditor hands in one of its own."""


class Clients:
    """The client half for any number of clients at once."""

    def __init__(
        self,
        run: str,
        key: str,
        model: LaneModel,
        inputs: Tensor,
        targets: Tensor,
        algorithm: Algorithm,
        ledger: Ledger,
        stream: PrivateStream,
        limits: Limits,
        protection: Protection | None = None,
        all_or_none: bool = False,
        note: str = "",
    ) -> None:
        self._run, self._key = run, key
        self._model, self._inputs, self._targets = model, inputs, targets
        self._algorithm, self._ledger = algorithm, ledger
        self._stream, self._limits = stream, limits
        self._protection = protection or planned_protection
        self._all_or_none = all_or_none
        self._note = note  # beside every charge in the ledger
        # Nothing is known about noise that somebody brought along: such answers claim nothing.
        self._claimed = protection is None

    def answer(self, request: Request, sites: Sequence[Site]) -> Answers:
        """Answer for these clients.

        Guarantee: every message returned is stored in the ledger together with its charge, and no
        client's charges exceed its budget.
        """
        answers = Answers()
        stored: dict[str, bytes] = {}
        willing = []
        for site in sites:
            name = site.participant.name
            again = self._ledger.message(self._run, site.account, request.round)
            if again is not None:
                stored[name] = again
                continue
            event = site.participant.at(request.round).round_event
            if event is not None and self._ledger.would_exceed(site.account, event):
                answers.refused[name] = "the budget does not allow another round"
                continue
            willing.append(site)
        if answers.refused and self._all_or_none:
            return answers  # before anyone spends on a round that will not be used
        if willing:
            together = len(stored) + len(willing)
            willing = [
                replace(site, participant=site.participant.among(together)) for site in willing
            ]
            stored |= self._train_and_charge(request, willing, answers)
        for site in sites:  # in the order asked, however they came about
            if data := stored.get(site.participant.name):
                answers.messages.append(ClientMessage.from_bytes(data))
                answers.count += 1
                answers.bytes_up += len(data)
        return answers

    def _train_and_charge(
        self, request: Request, sites: Sequence[Site], answers: Answers
    ) -> dict[str, bytes]:
        train = _Training(self, request, sites)
        state = self._states(request, sites)
        tensors, state = self._algorithm.client_step(request.received, state, train)
        if any(site.participant.count for site in sites):
            tensors = {**tensors, WITHIN: train.within(request.received["model"])}
        answers.clipped_fraction, answers.signal_to_noise = train.diagnostics()
        charges = []
        for lane, site in enumerate(sites):
            message = ClientMessage(
                site.participant.name,
                request.round,
                {name: tensor[lane] for name, tensor in tensors.items()},
                tuple(train.events[lane]),
                {"declared_size": site.participant.declared_size},
            )
            own = {name: tensor[lane] for name, tensor in state.items()}
            kept = tensors_to_bytes(own) if own else b""
            charges.append(
                Charge(
                    site.account,
                    self._run,
                    request.round,
                    message.events,
                    message.to_bytes(),
                    kept,
                    self._note,
                )
            )
        try:
            self._ledger.commit(charges, request.settled)
        except BudgetExceeded:
            # Another process spent from the same budget meanwhile: charge one by one, and let only
            # those go whose budget is used up. What they computed is dropped, not released. Nobody
            # knows yet how many are left to be shuffled, so nothing is counted for that.
            charges = [
                charge
                for charge in map(_alone, charges)
                if self._committed(charge, request.settled, sites, answers)
            ]
        names = {site.account: site.participant.name for site in sites}
        return {names[charge.account]: charge.message for charge in charges}

    def _committed(
        self, charge: Charge, settled: int, sites: Sequence[Site], answers: Answers
    ) -> bool:
        try:
            self._ledger.commit([charge], settled)
        except BudgetExceeded as reason:
            name = next(s.participant.name for s in sites if s.account == charge.account)
            answers.refused[name] = str(reason)
            return False
        return True

    def _takes_part(self, person: Participant, round_: int) -> bool:
        """By a coin that nobody else sees; a client pays whichever way it falls."""
        key = Key(self._key, person.name, round_, 0, "participation")
        return len(poisson_indices(self._stream, key, torch.arange(1), person.participation)) == 1

    def _states(self, request: Request, sites: Sequence[Site]) -> Tensors:
        """The clients' own state, stacked along the lane axis."""
        device = self._inputs.device
        fresh = self._algorithm.client_init(request.received["model"])
        if not fresh:
            return {}
        rows = []
        for site in sites:
            kept = self._ledger.state(self._run, site.account)
            rows.append(tensors_from_bytes(kept)[0] if kept else fresh)
        return {name: torch.stack([row[name].to(device) for row in rows]) for name in fresh}


def _alone(charge: Charge) -> Charge:
    """The same answer, charged as if no other message were mixed with it."""
    events = tuple(unshuffled(event) for event in charge.events)
    if events == charge.events:
        return charge
    message = replace(ClientMessage.from_bytes(charge.message), events=events)
    return replace(charge, events=events, message=message.to_bytes())


class _Training:
    """Local training as a method sees it. It notes the events of every call."""

    def __init__(self, home: Clients, request: Request, sites: Sequence[Site]) -> None:
        self._home, self._round = home, request.round
        device = home._inputs.device
        people = [site.participant.at(request.round) for site in sites]
        self.clients = tuple(person.name for person in people)
        self.learning_rates = torch.full((len(sites),), request.learning_rate, device=device)
        self.steps = torch.tensor([person.steps for person in people], device=device)
        self.events: list[list[Event]] = [[] for _ in sites]
        # In another unit of length a release costs the same: it is charged as it was planned.
        unit = float(request.received.get(CLIP, torch.ones(())))
        clipper, noiser = home._protection([_in_unit(person, unit) for person in people])
        self._whole: tuple[Clipper, Noiser] | None = None
        if any(person.release is not None and person.release.unit == "client" for person in people):
            # Records are trained on as they are; what comes of them leaves as one update.
            trusted = home._algorithm.trusts_server
            self._whole = clipper, (Noiseless() if trusted else noiser)
            clipper, noiser = Unclipped(), Noiseless()
        steps = tuple(
            person.steps if home._takes_part(person, request.round) else 0 for person in people
        )
        self._lanes = Lanes(
            runs=(home._key,) * len(sites),
            clients=self.clients,
            records=tuple(site.records for site in sites),
            rates=tuple(person.rate for person in people),
            denominators=torch.tensor(
                [person.rate * person.declared_size for person in people], device=device
            ),
            learning_rates=self.learning_rates,
            steps=steps,
            clipper=clipper,
            noiser=noiser,
        )
        self._people = people
        self._weakest = request.received.get(WEAKEST)
        self._calls = 0
        self._measured: list[tuple[float, float]] = []

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        home = self._home
        correct, own = self._pulled(start, correct, state or {})
        lanes = self._lanes.with_state(own, self._calls * max(self._lanes.steps))
        for events, person in zip(self.events, self._people, strict=True):
            event = person.event()
            if event is not None and home._claimed:
                events.append(event)
        trained = self._trained(start, lanes, correct)
        parameters = trained.parameters
        over, ratio = trained.clipped_fraction, trained.signal_to_noise
        if self._whole is not None:
            origin = self._origin(start, lanes, correct)
            moved, over, ratio = self._released(parameters - origin, *self._whole)
            parameters = origin + moved
        self._calls += 1
        self._measured.append((float(over.float().mean()), float(ratio.mean())))
        return parameters

    def _origin(self, start: Tensor, lanes: Lanes, correct: Correct | None) -> Tensor:
        """What whole clients are measured from [L, d], so that one without records sends zeros.

        Guarantee: a function of what was received and of what the clients released before. Where a
        correction moves clients without records, they are trained without any, by the same code.
        """
        home, person = self._home, self._people[0]
        if person.parameters:
            return torch.zeros_like(start)
        if correct is None or person.diameter or home._algorithm.trusts_server:
            return start
        empty = replace(lanes, records=tuple(rows[:0] for rows in lanes.records))
        first, second = (self._trained(start, empty, correct).parameters for _ in range(2))
        if not torch.equal(first, second):
            raise Unsupported(
                f"{home._algorithm.name} corrects gradients at random: what a client without "
                "records would send is not known, and whole clients cannot be hidden by it"
            )
        says = home._algorithm.without_records
        if says == "stays" and not self._pulls and not torch.equal(first, start):
            raise Unsupported(
                f"{home._algorithm.name} says that a client without records stays where it is "
                "(`without_records`), and its correction moves it"
            )
        return first

    def _trained(self, start: Tensor, lanes: Lanes, correct: Correct | None) -> Trained:
        home = self._home
        return train_round(
            home._model, home._inputs, home._targets, start, lanes, self._round,
            home._stream, home._limits, correct,
        )  # fmt: skip

    def within(self, model: Tensor) -> Tensor:
        """The share of each client's records whose gradient at this model is within its clip [L].

        Guarantee: a noisy count, charged by itself; the declared size is what it is divided by.
        """
        home, lanes = self._home, self._lanes
        counted = counted_within(
            home._model, home._inputs, home._targets, model.expand(len(lanes), -1), lanes,
            self._round, home._stream, home._limits,
        )  # fmt: skip
        releases = [person.count for person in self._people]
        noiser = MechanismNoiser([release.mechanism for release in releases if release])
        keys = [Key(home._key, client, self._round, 0, "count") for client in self.clients]
        noisy = noiser.add(counted.unsqueeze(1), home._stream, keys)[:, 0]
        for events, person in zip(self.events, self._people, strict=True):
            event = person.count_event
            if event is not None and home._claimed:
                events.append(event)
        return noisy / (2 * WEIGHT) / lanes.denominators + 0.5

    def _released(
        self, updates: Tensor, clipper: Clipper, noiser: Noiser
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Whole updates or parameters, each clipped and noised, with the diagnostics of that."""
        home, clipped = self._home, clipper.clipped_rows(updates)
        keys = [
            Key(home._key, client, self._round, self._calls, "update") for client in self.clients
        ]
        size = noiser.std(updates.device) * updates.shape[1] ** 0.5
        ratio = torch.where(size > 0, clipped.sum.norm(dim=1).float() / size, 0.0)
        noisy = noiser.add(clipped.sum, home._stream, keys).to(updates.dtype)
        return noisy, clipped.clipped, ratio

    def _pulled(
        self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]
    ) -> tuple[Correct | None, Mapping[str, Tensor]]:
        """The method's own correction, and the pull of clients with smaller budgets.

        Guarantee: what pulls was released in an earlier round, how strongly was settled before the
        run, and both are added to the noisy gradient, so the pull costs nothing.
        """
        if not self._pulls:
            return correct, state
        assert self._weakest is not None
        pulls = torch.tensor([person.penalty for person in self._people], device=start.device)

        def pulled(gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
            own = gradient if correct is None else correct(gradient, parameters, lane)
            return own + lane[_PULL] * (parameters - lane[WEAKEST])

        return pulled, {
            **state,
            WEAKEST: self._weakest.expand_as(start),
            _PULL: pulls.unsqueeze(1),
        }

    @property
    def _pulls(self) -> bool:
        """Whether anyone is pulled towards the model of the largest budget."""
        return self._weakest is not None and any(person.penalty for person in self._people)

    def diagnostics(self) -> tuple[float | None, float | None]:
        """Mean clip fraction and signal-to-noise ratio; None where nothing is clipped."""
        if not self._measured or self._people[0].release is None:
            return None, None
        fractions, ratios = zip(*self._measured, strict=True)
        return sum(fractions) / len(fractions), sum(ratios) / len(ratios)


def _in_unit(person: Participant, unit: float) -> Participant:
    """With clip and noise in another unit of length."""
    if unit == 1 or person.release is None:
        return person
    return replace(person, release=scaled(person.release, clip=unit))


def planned_protection(people: Sequence[Participant]) -> tuple[Clipper, Noiser]:
    """The clipper and the noiser whose release was planned and will be charged."""
    releases = [person.release for person in people]
    if all(release is None for release in releases):
        return Unclipped(), Noiseless()
    planned = [release for release in releases if release is not None]
    assert len(planned) == len(releases), "either everyone is private or no one is"
    norm = planned[0].sensitivity.norm
    bounds = [release.sensitivity.bound for release in planned]
    clipper = NormClipper(norm, bounds)
    if any(person.diameter for person in people):
        clipper = BallClipper(norm, [bound / 2 for bound in bounds])
    for lane, release in enumerate(planned):
        dimension = release.sensitivity.dimension
        assert dimension is not None
        assert clipper.sensitivity(lane, dimension) == release.sensitivity
    return clipper, MechanismNoiser([release.mechanism for release in planned])
