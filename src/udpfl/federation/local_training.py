"""Local training of some clients in one round: what they compute and what that costs.

Nothing here knows accounts or budgets. Whoever lets a result out has charged it before
(`client.py`); an audit that looks at what would be released needs no ledger.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from udpfl.accounting.events import Event
from udpfl.algorithms import Algorithm, LocalTraining, Tensors
from udpfl.engine import (
    Clipper,
    Correct,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    Noiseless,
    Noiser,
    PrivateStream,
    Trained,
    Unclipped,
    train_round,
)
from udpfl.engine.counting import WEIGHT, counted_within
from udpfl.engine.merging import Call as EngineCall
from udpfl.engine.randomness import Key, poisson_indices
from udpfl.errors import Unsupported
from udpfl.federation._isolation import (
    SHOWN,
    Call,
    RepeatedTraining,
    Shown,
    TakeTurns,
    are_equal,
    are_same,
    copied,
    on_copies,
)
from udpfl.federation._replaying import is_replayable, replayed
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import Protection, planned_protection, scale_release
from udpfl.federation.request import CLIP, PULL_TARGET, WITHIN, Request

_PULL = "pull"


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

    def on_cpu(self) -> Step:
        """The same with its tensors in the memory of the CPU, each moved there in one piece."""
        tensors = {name: tensor.cpu() for name, tensor in self.tensors.items()}
        return replace(self.state_on_cpu(), tensors=tensors)

    def state_on_cpu(self) -> Step:
        """The same with what clients keep in the memory of the CPU."""
        return replace(self, state={name: tensor.cpu() for name, tensor in self.state.items()})


@dataclass(frozen=True)
class Trainer:
    """Trains clients by a federated method, with the clipping and the noise that were planned."""

    key: str
    """What stands for this run in the keys of random numbers."""
    model: LaneModel
    """The network, for many clients at once."""
    inputs: Tensor
    """Of all training records [n, ...]."""
    targets: Tensor
    """Of all training records [n] or [n, k]."""
    algorithm: Algorithm
    """The method, of which the client half is used."""
    stream: PrivateStream
    """Where sampling and noise come from."""
    limits: Limits
    """How much is computed at once."""
    protection: Protection | None = None
    """Clipping and noise in place of what was planned. Nothing is known about those, so such a step
    has no events and claims nothing."""

    def train(
        self,
        request: Request,
        plans: Sequence[ReleasePlan],
        records: Sequence[Tensor],
        state: Tensors,
    ) -> Step:
        """One round of these clients, each on its own records, from what each has kept [L, ...].

        Guarantee: whatever records do to the tensors and the state goes through releases, and the
        events are those of all of them. Where gradients have no noise and the method's own code
        sees them, clients take turns: nothing that it keeps of one reaches another.
        """
        try:
            return self._train(request, plans, records, state)
        except TakeTurns:
            each = [slice(client, client + 1) for client in range(len(plans))]
            steps = [
                self._train(
                    request,
                    plans[own],
                    records[own],
                    {name: kept[own] for name, kept in state.items()},
                )
                for own in each
            ]
            return _joined(steps)

    def _train(
        self,
        request: Request,
        plans: Sequence[ReleasePlan],
        records: Sequence[Tensor],
        state: Tensors,
    ) -> Step:
        """One round of clients that are computed together."""
        training = _Training(self, request, plans, records)
        if training.whole:
            tensors, state = self._in_isolation(request, state, training)
        else:
            tensors, state = self.algorithm.client_step(request.tensors, state, training)
        return _step(training, request, plans, tensors, state)

    def train_in_calls(self, work: Work) -> Generator[EngineCall, Trained, Step]:
        """The same as `train`, for a caller that trains: yields every call of the engine, and is
        sent what came of it.

        Guarantee: every call that is yielded is charged once, however often the method is replayed.
        """
        request = work.request
        training = _Training(self, request, work.plans, work.records)
        tensors, state = yield from replayed(self.algorithm, request.tensors, work.state, training)
        return _step(training, request, work.plans, tensors, state)

    def trains_in_calls(self, plans: Sequence[ReleasePlan]) -> bool:
        """Whether `train_in_calls` comes to what `train` comes to, and nothing is seen on the way:
        the method can be replayed, and its gradients have the noise that was planned."""
        whole = any(own.release is not None and own.release.unit == "client" for own in plans)
        return self.protection is None and not whole and is_replayable(self.algorithm)

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
            return method.client_step(copied(request.tensors), copied(kept), train)

        tensors, state = (copied(own) for own in answer(training))
        training.require_success()
        for shown in SHOWN:
            repeated = RepeatedTraining(training, shown)
            again = answer(repeated)
            same = are_same(tensors, again[0]) and are_same(state, again[1])
            if not (repeated.is_same and same):
                raise Unsupported(
                    f"{self.algorithm.name} sends or keeps something that depends on gradients "
                    f"without noise: with privacy.unit = 'client' it may use only the parameters "
                    f"that a training returns"
                )
        return tensors, state

    def initial_state(self, request: Request, clients: int) -> Tensors:
        """What clients have kept that were never asked before [L, ...]."""
        fresh = self.algorithm.client_init(request.tensors["model"])
        return {name: torch.stack([tensor] * clients) for name, tensor in fresh.items()}


def _step(
    training: _Training,
    request: Request,
    plans: Sequence[ReleasePlan],
    tensors: Tensors,
    state: Tensors,
) -> Step:
    """What a method has made of all its trainings."""
    training.require_success()
    if any(plan.count for plan in plans):
        tensors = {**tensors, WITHIN: training.within(request.tensors["model"])}
    events = tuple(tuple(own) for own in training.events)
    return Step(tensors, state, events, *training.diagnostics())


@dataclass(frozen=True)
class Work:
    """A round of some clients that is to be computed: the arguments of `Trainer.train`."""

    trainer: Trainer
    request: Request
    plans: Sequence[ReleasePlan]
    records: Sequence[Tensor]
    state: Tensors

    def train(self) -> Step:
        """Compute it by itself."""
        return self.trainer.train(self.request, self.plans, self.records, self.state)

    @property
    def calls(self) -> Generator[EngineCall, Trained, Step] | None:
        """The same call by call, where calls may be answered together with others."""
        if not self.trainer.trains_in_calls(self.plans):
            return None
        return self.trainer.train_in_calls(self)


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


class _Begun(NamedTuple):
    """What a training asks of the engine."""

    start: Tensor
    lanes: Lanes
    correct: Correct | None


class _Training(Shown):
    """Local training as a method sees it. It notes the events of every call."""

    hands_over = True
    """Whatever a call returns is in memory of its own, which the caller may change."""

    def __init__(
        self,
        home: Trainer,
        request: Request,
        plans: Sequence[ReleasePlan],
        records: Sequence[Tensor],
    ) -> None:
        self._home = home
        device = home.inputs.device
        plans = [plan.at(request.round) for plan in plans]
        super().__init__(
            tuple(plan.name for plan in plans),
            request.round,
            torch.full((len(plans),), request.learning_rate, device=device),
            torch.tensor([plan.steps for plan in plans], device=device),
        )
        self.events: list[list[Event]] = [[] for _ in plans]
        # With clip and noise multiplied alike a release costs the same: charged as planned.
        clip = float(request.tensors.get(CLIP, torch.ones(())))
        protection = home.protection or planned_protection
        clipper, noiser = protection([scale_release(plan, clip) for plan in plans])
        self._whole: tuple[Clipper, Noiser] | None = None
        if any(plan.release is not None and plan.release.unit == "client" for plan in plans):
            # Records are trained on as they are; what comes of them leaves as one update.
            trusted = home.algorithm.trusts_server
            self._whole = clipper, (Noiseless() if trusted else noiser)
            clipper, noiser = Unclipped(), Noiseless()
        if len({(plan.batches, plan.epochs) for plan in plans}) > 1:
            raise Unsupported("clients that train together need the same batches and epochs")
        steps = tuple(plan.steps if self._takes_part(plan) else 0 for plan in plans)
        self._lanes = Lanes(
            runs=(home.key,) * len(plans),
            clients=self.clients,
            records=tuple(records),
            rates=tuple(plan.rate for plan in plans),
            denominators=torch.tensor([plan.expected_batch for plan in plans], device=device),
            learning_rates=self.learning_rates,
            steps=steps,
            clipper=clipper,
            noiser=noiser,
            batches=plans[0].batches,
            epochs=plans[0].epochs,
            apart=self._whole is not None,
        )
        self._plans = plans
        self._pull_target = request.tensors.get(PULL_TARGET)
        self._calls = 0
        self._measured: list[Tensor] = []  # on the device: to look at them is to wait
        self.returned: list[Call] = []
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
        if self.whole and correct is not None and len(self._plans) > 1:
            raise TakeTurns
        if self.whole:  # a correction may write to what its method handed over
            start = start.clone()
        origin = self.origin(start, correct, state or {})
        begun = self._begin(start, correct, state or {})
        return self._finish(origin, begun, self._trained(*begun))

    def _begin(self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]) -> _Begun:
        """What is asked of the engine. It is charged from here on."""
        home = self._home
        correct, own = self._pulled(start, correct, state)
        lanes = self._lanes.with_state(own, self._calls * max(self._lanes.steps))
        for events, plan in zip(self.events, self._plans, strict=True):
            event = plan.event()
            if event is not None and home.protection is None:
                events.append(event)
        return _Begun(start, lanes, correct)

    def _finish(self, origin: Tensor, begun: _Begun, trained: Trained) -> Tensor:
        """The parameters that a method gets to see."""
        home, (start, lanes, correct) = self._home, begun
        parameters = trained.parameters
        over, ratio = trained.clipped_fraction, trained.signal_to_noise
        if self._whole is not None:
            if not are_equal(origin, self._origin(start, lanes, correct)):
                raise Unsupported(
                    f"the correction of {home.algorithm.name} does not lead a client without "
                    f"records to a fixed place: it draws random numbers, keeps something of "
                    f"earlier gradients, or is not finite at zero. It cannot be used with "
                    f"privacy.unit = 'client'"
                )
            moved, over, ratio = self._released(parameters - origin, *self._whole)
            parameters = origin + moved
        self._calls += 1
        self._measured.append(torch.stack((over.float().mean(), ratio.mean())))
        if not self.whole:  # nobody here looks at them again
            return parameters
        self.returned.append(Call(origin, parameters))
        return parameters.clone()

    def in_calls(
        self, start: Tensor, correct: Correct | None, state: Mapping[str, Tensor]
    ) -> Generator[EngineCall, Trained, Tensor]:
        """A training whose only call of the engine somebody else answers."""
        home, begun = self._home, self._begin(start, correct, state)
        trained = yield EngineCall(
            home.model, home.inputs, home.targets, start, begun.lanes, self._round,
            home.stream, home.limits, begun.correct,
        )  # fmt: skip
        return self._finish(start, begun, trained)

    @property
    def whole(self) -> bool:
        """Whether whole clients are hidden, so that gradients have no noise of their own."""
        return self._whole is not None

    def _takes_part(self, plan: ReleasePlan) -> bool:
        """By a coin that nobody else sees; a client pays whichever way it falls."""
        key = Key(self._home.key, plan.name, self._round, 0, "participation")
        coin = poisson_indices(self._home.stream, key, torch.arange(1), plan.participation)
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
        home, plan = self._home, self._plans[0]
        if self._whole is None:
            return start
        if plan.diameter or home.algorithm.trusts_server:
            return torch.zeros_like(start) if plan.parameters else start.clone()
        if correct is None:
            return start.clone()
        empty = replace(lanes, records=tuple(rows[:0] for rows in lanes.records))
        moved = self._trained(start, empty, correct).parameters
        says = home.algorithm.without_records
        if says == "stays" and not self._pulls and not torch.equal(moved, start):
            raise Unsupported(
                f"{home.algorithm.name} says that a client without records stays where it is "
                "(`without_records`), but its correction moves such a client"
            )
        return moved

    def _trained(self, start: Tensor, lanes: Lanes, correct: Correct | None) -> Trained:
        home = self._home
        if self.whole:  # gradients have no noise yet
            lanes = replace(lanes, state=copied(lanes.state))
            correct = None if correct is None else on_copies(correct)
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
        releases = [plan.count for plan in self._plans]
        noiser = MechanismNoiser([release.mechanism for release in releases if release])
        keys = [Key(home.key, client, self._round, 0, "count") for client in self.clients]
        noisy = noiser.add(counted.unsqueeze(1), home.stream, keys)[:, 0]
        for events, plan in zip(self.events, self._plans, strict=True):
            event = plan.count_event
            if event is not None and home.protection is None:
                events.append(event)
        # A count looks at a whole sample of its own, whatever the batches of a step.
        expected = lanes.denominators * lanes.batches
        return noisy / (2 * WEIGHT) / expected + 0.5

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
        assert self._pull_target is not None
        pulls = torch.tensor([plan.penalty for plan in self._plans], device=start.device)

        def pulled(gradient: Tensor, parameters: Tensor, lane: Mapping[str, Tensor]) -> Tensor:
            own = gradient if correct is None else correct(gradient, parameters, lane)
            return own + lane[_PULL] * (parameters - lane[PULL_TARGET])

        return pulled, {
            **state,
            PULL_TARGET: self._pull_target.expand_as(start),
            _PULL: pulls.unsqueeze(1),
        }

    @property
    def _pulls(self) -> bool:
        """Whether anyone is pulled towards the model of the largest budget."""
        return self._pull_target is not None and any(plan.penalty for plan in self._plans)

    def diagnostics(self) -> tuple[float | None, float | None]:
        """Mean clip fraction and signal-to-noise ratio; None where nothing is clipped."""
        if not self._measured or self._plans[0].release is None:
            return None, None
        fractions, ratios = zip(*torch.stack(self._measured).tolist(), strict=True)
        return sum(fractions) / len(fractions), sum(ratios) / len(ratios)
