"""Local training of some clients in one round: what they compute and what that costs.

Nothing here knows accounts or budgets. Whoever lets a result out has charged it before
(`clients.py`); an audit that looks at what would be released needs no ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from udpfl.accounting.events import Event
from udpfl.algorithms import Algorithm, LocalTraining, Tensors
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
from udpfl.errors import Unsupported
from udpfl.federation.participants import Participant, scaled

WEAKEST = "weakest"
"""What clients receive beside the method's own: the last model of the largest budget's owner."""
_PULL = "pull"
CLIP = "clip"
"""The same: today's clip over the one that was planned, where it adapts."""
WITHIN = "within"
"""What clients send beside the method's own: the noisy share of records within the clip."""

_SHOWN = (0.0, 1.0, 1e30)
"""Gradients that a method is shown in place of those of records, to see what it makes of them."""

Protection = Callable[[Sequence[Participant]], tuple[Clipper, Noiser]]
"""What stands between records and releases. An auditor hands in one of its own."""


@dataclass(frozen=True)
class Request:
    """What the server asks of some clients in one round."""

    round: int
    received: Tensors
    learning_rate: float
    settled: int = -1
    """Rounds up to this one are safe with the server: it will not ask for them again."""


@dataclass(frozen=True)
class Step:
    """What clients have computed in a round. It is for them alone until its events are charged."""

    tensors: Tensors
    """What each would release [L, ...]."""
    state: Tensors
    """What each would keep [L, ...]."""
    events: tuple[tuple[Event, ...], ...]
    """What releasing the tensors costs each client; nothing where no privacy is claimed."""
    clipped_fraction: float | None
    """Simulation only, as the next one."""
    signal_to_noise: float | None


@dataclass(frozen=True)
class Trainer:
    """Trains clients by a federated method, with the clipping and the noise that were planned."""

    key: str
    """The run in the keys of its random numbers."""
    model: LaneModel
    inputs: Tensor
    targets: Tensor
    algorithm: Algorithm
    stream: PrivateStream
    limits: Limits
    protection: Protection | None = None
    """Clipping and noise in place of what was planned. Nothing is known about those, so such a step
    has no events and claims nothing."""

    def train(
        self,
        request: Request,
        people: Sequence[Participant],
        records: Sequence[Tensor],
        state: Tensors,
    ) -> Step:
        """One round of these clients, each on its own records, from what each has kept [L, ...].

        Guarantee: whatever records do to the tensors and the state goes through releases, and the
        events are those of all of them. Where gradients have no noise and the method's own code
        sees them, clients take turns: nothing that it keeps of one reaches another.
        """
        try:
            return self._train(request, people, records, state)
        except _TakeTurns:
            each = [slice(client, client + 1) for client in range(len(people))]
            steps = [
                self._train(
                    request,
                    people[own],
                    records[own],
                    {name: kept[own] for name, kept in state.items()},
                )
                for own in each
            ]
            return _joined(steps)

    def _train(
        self,
        request: Request,
        people: Sequence[Participant],
        records: Sequence[Tensor],
        state: Tensors,
    ) -> Step:
        """One round of clients that are computed together."""
        training = _Training(self, request, people, records)
        if training.whole:
            tensors, state = self._in_isolation(request, state, training)
        else:
            tensors, state = self.algorithm.client_step(request.received, state, training)
        training.require_success()
        if any(person.count for person in people):
            tensors = {**tensors, WITHIN: training.within(request.received["model"])}
        events = tuple(tuple(own) for own in training.events)
        return Step(tensors, state, events, *training.diagnostics())

    def _in_isolation(
        self, request: Request, kept: Tensors, training: _Training
    ) -> tuple[Tensors, Tensors]:
        """A method's round where it sees gradients that have no noise.

        Guarantee: what is sent and kept depends on records through the returned parameters alone,
        as far as that shows when gradients are others. The method works on copies, so nothing that
        it keeps of gradients outlives the round.
        """

        def answer(train: LocalTraining) -> tuple[Tensors, Tensors]:
            method = copy.deepcopy(self.algorithm)
            return method.client_step(_copied(request.received), _copied(kept), train)

        tensors, state = (_copied(own) for own in answer(training))
        training.require_success()
        for shown in _SHOWN:
            repeated = _Repeated(training, shown)
            again = answer(repeated)
            same = _same(tensors, again[0]) and _same(state, again[1])
            if not (repeated.is_same and same):
                raise Unsupported(
                    f"what {self.algorithm.name} sends or keeps depends on gradients that have no "
                    "noise: where whole clients are hidden it may use nothing of a training but "
                    "the parameters that it returns"
                )
        return tensors, state

    def initial_state(self, request: Request, clients: int) -> Tensors:
        """What clients have kept that were never asked before [L, ...]."""
        fresh = self.algorithm.client_init(request.received["model"])
        return {name: torch.stack([tensor] * clients) for name, tensor in fresh.items()}


class _TakeTurns(BaseException):
    """Says that clients have to be trained one after the other; not for a method to catch."""


def _joined(steps: Sequence[Step]) -> Step:
    """What several clients have computed, one after the other."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def stacked(parts: Sequence[Tensors]) -> Tensors:
        return {name: torch.cat([own[name] for own in parts]) for name in parts[0]}

    return Step(
        stacked([step.tensors for step in steps]),
        stacked([step.state for step in steps]),
        tuple(own for step in steps for own in step.events),
        mean([step.clipped_fraction for step in steps]),
        mean([step.signal_to_noise for step in steps]),
    )


class _Shown:
    """What a method may know of a training. What it writes to a tensor reaches nobody."""

    def __init__(self, clients: tuple[str, ...], learning_rates: Tensor, steps: Tensor) -> None:
        self.clients = clients
        self._learning_rates, self._steps = learning_rates, steps

    @property
    def learning_rates(self) -> Tensor:
        """[L], this round's."""
        return self._learning_rates.clone()

    @property
    def steps(self) -> Tensor:
        """[L] local steps of one call."""
        return self._steps.clone()


class _Training(_Shown):
    """Local training as a method sees it. It notes the events of every call."""

    def __init__(
        self,
        home: Trainer,
        request: Request,
        people: Sequence[Participant],
        records: Sequence[Tensor],
    ) -> None:
        self._home, self._round = home, request.round
        device = home.inputs.device
        people = [person.at(request.round) for person in people]
        super().__init__(
            tuple(person.name for person in people),
            torch.full((len(people),), request.learning_rate, device=device),
            torch.tensor([person.steps for person in people], device=device),
        )
        self.events: list[list[Event]] = [[] for _ in people]
        # In another unit of length a release costs the same: it is charged as it was planned.
        unit = float(request.received.get(CLIP, torch.ones(())))
        protection = home.protection or planned_protection
        clipper, noiser = protection([_in_unit(person, unit) for person in people])
        self._whole: tuple[Clipper, Noiser] | None = None
        if any(person.release is not None and person.release.unit == "client" for person in people):
            # Records are trained on as they are; what comes of them leaves as one update.
            trusted = home.algorithm.trusts_server
            self._whole = clipper, (Noiseless() if trusted else noiser)
            clipper, noiser = Unclipped(), Noiseless()
        steps = tuple(person.steps if self._takes_part(person) else 0 for person in people)
        self._lanes = Lanes(
            runs=(home.key,) * len(people),
            clients=self.clients,
            records=tuple(records),
            rates=tuple(person.rate for person in people),
            denominators=torch.tensor(
                [person.rate * person.declared_size for person in people], device=device
            ),
            learning_rates=self.learning_rates,
            steps=steps,
            clipper=clipper,
            noiser=noiser,
            apart=self._whole is not None,
        )
        self._people = people
        self._weakest = request.received.get(WEAKEST)
        self._calls = 0
        self._measured: list[tuple[float, float]] = []
        self.returned: list[_Call] = []
        self._failed: BaseException | None = None

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        try:
            return self._call(start, correct, state)
        except BaseException as error:  # whatever a method does about it
            self._failed = error
            raise

    def require_success(self) -> None:
        """Raise what a training raised: to send something else instead would tell of records."""
        if self._failed is not None:
            raise self._failed

    def _call(
        self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor] | None
    ) -> Tensor:
        home = self._home
        if self.whole and correct is not None and len(self._people) > 1:
            raise _TakeTurns
        if self.whole:  # a correction may write to what its method handed over
            start = start.clone()
        origin = self.origin(start, correct, state or {})
        correct, own = self._pulled(start, correct, state or {})
        lanes = self._lanes.with_state(own, self._calls * max(self._lanes.steps))
        for events, person in zip(self.events, self._people, strict=True):
            event = person.event()
            if event is not None and home.protection is None:
                events.append(event)
        trained = self._trained(start, lanes, correct)
        parameters = trained.parameters
        over, ratio = trained.clipped_fraction, trained.signal_to_noise
        if self._whole is not None:
            if not _equal(origin, self._origin(start, lanes, correct)):
                raise Unsupported(
                    f"the correction of {home.algorithm.name} leads a client without records to no "
                    "certain place: it draws random numbers, keeps something of the gradients it "
                    "saw, or is not finite at zero. Whole clients cannot be hidden by it"
                )
            moved, over, ratio = self._released(parameters - origin, *self._whole)
            parameters = origin + moved
        self._calls += 1
        self._measured.append((float(over.float().mean()), float(ratio.mean())))
        self.returned.append(_Call(origin, parameters))
        return parameters.clone()

    @property
    def whole(self) -> bool:
        """Whether whole clients are hidden, so that gradients have no noise of their own."""
        return self._whole is not None

    def _takes_part(self, person: Participant) -> bool:
        """By a coin that nobody else sees; a client pays whichever way it falls."""
        key = Key(self._home.key, person.name, self._round, 0, "participation")
        coin = poisson_indices(self._home.stream, key, torch.arange(1), person.participation)
        return len(coin) == 1

    def origin(self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]) -> Tensor:
        """What whole clients are measured from in a call with these arguments [L, d]."""
        correct, own = self._pulled(start, correct, state)
        return self._origin(start, self._lanes.with_state(own, 0), correct)

    def _origin(self, start: Tensor, lanes: Lanes, correct: Correct | None) -> Tensor:
        """What whole clients are measured from [L, d], so that one without records sends zeros.

        Guarantee: a function of what was received and of what the clients released before. Where a
        correction moves clients without records, they are trained without any, by the same code.
        """
        home, person = self._home, self._people[0]
        if self._whole is None:
            return start
        if person.diameter or home.algorithm.trusts_server:
            return torch.zeros_like(start) if person.parameters else start.clone()
        if correct is None:
            return start.clone()
        empty = replace(lanes, records=tuple(rows[:0] for rows in lanes.records))
        moved = self._trained(start, empty, correct).parameters
        says = home.algorithm.without_records
        if says == "stays" and not self._pulls and not torch.equal(moved, start):
            raise Unsupported(
                f"{home.algorithm.name} says that a client without records stays where it is "
                "(`without_records`), and its correction moves it"
            )
        return moved

    def _trained(self, start: Tensor, lanes: Lanes, correct: Correct | None) -> Trained:
        home = self._home
        if self.whole:  # gradients have no noise yet
            lanes = replace(lanes, state=_copied(lanes.state))
            correct = None if correct is None else _on_copies(correct)
        return train_round(
            home.model, home.inputs, home.targets, start, lanes, self._round,
            home.stream, home.limits, correct,
        )  # fmt: skip

    def within(self, model: Tensor) -> Tensor:
        """The share of each client's records whose gradient at this model is within its clip [L].

        Guarantee: a noisy count, charged by itself; the declared size is what it is divided by.
        """
        home, lanes = self._home, self._lanes
        counted = counted_within(
            home.model, home.inputs, home.targets, model.expand(len(lanes), -1), lanes,
            self._round, home.stream, home.limits,
        )  # fmt: skip
        releases = [person.count for person in self._people]
        noiser = MechanismNoiser([release.mechanism for release in releases if release])
        keys = [Key(home.key, client, self._round, 0, "count") for client in self.clients]
        noisy = noiser.add(counted.unsqueeze(1), home.stream, keys)[:, 0]
        for events, person in zip(self.events, self._people, strict=True):
            event = person.count_event
            if event is not None and home.protection is None:
                events.append(event)
        return noisy / (2 * WEIGHT) / lanes.denominators + 0.5

    def _released(
        self, updates: Tensor, clipper: Clipper, noiser: Noiser
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Whole updates or parameters, each clipped and noised, with the diagnostics of that."""
        home, clipped = self._home, clipper.clipped_rows(updates)
        keys = [
            Key(home.key, client, self._round, self._calls, "update") for client in self.clients
        ]
        size = noiser.std(updates.device) * updates.shape[1] ** 0.5
        ratio = torch.where(size > 0, clipped.sum.norm(dim=1).float() / size, 0.0)
        noisy = noiser.add(clipped.sum, home.stream, keys).to(updates.dtype)
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


class _Call(NamedTuple):
    """One call of a training: what whole clients were measured from, and what was returned."""

    origin: Tensor
    parameters: Tensor


class _Repeated(_Shown):
    """A training that returns what another one did, and shows corrections other gradients.

    What a method makes of it is the same if it uses nothing of gradients but what is returned. The
    same holds for what it calls it with: that is added to the noisy difference again, as it is.
    """

    def __init__(self, training: _Training, shown: float) -> None:
        super().__init__(training.clients, training.learning_rates, training.steps)
        self._training, self._calls, self._shown = training, list(training.returned), shown
        self._failed = False

    @property
    def is_same(self) -> bool:
        """Whether it was called as often as the other one, from the same places."""
        return not self._failed and not self._calls

    def __call__(
        self,
        start: Tensor,
        correct: Correct | None = None,
        state: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        try:
            call = self._calls.pop(0)
            if not _equal(self._training.origin(start.clone(), correct, state or {}), call.origin):
                self._failed = True
            if correct is not None:
                own, gradient = _copied(state or {}), torch.full_like(start, self._shown)
                for _ in range(int(self.steps.max())):
                    _on_copies(correct)(gradient, start, own)
            return call.parameters.clone()
        except BaseException:
            self._failed = True
            raise


def _copied(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _on_copies(correct: Correct) -> Correct:
    """The same correction; what it writes to gradient or parameters reaches nobody."""
    return lambda gradient, parameters, state: correct(gradient.clone(), parameters.clone(), state)


def _same(some: Tensors, others: Tensors) -> bool:
    """The same names in the same order, with the same numbers."""
    return list(some) == list(others) and all(map(_equal, some.values(), others.values()))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, bit by bit: zeros with other signs are not."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = [t.detach().contiguous().view(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*bits)


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
