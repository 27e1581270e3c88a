"""Audit of a configuration or of a finished run: its own model, data, clip, noise and sampling."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from udpfl.accounting import (
    Release,
    account,
)
from udpfl.accounting.events import Event, release_count
from udpfl.accounting.randomised import Randomised
from udpfl.audit._bounds import check_error
from udpfl.audit._one_run import SurerGuesses, one_run
from udpfl.audit._randomised import audit_message
from udpfl.audit._whole_client import AsReleased, ClientUnderAudit, Worlds, rounds_to_try
from udpfl.audit.lattice import ROUNDING, audit_lattice
from udpfl.audit.mechanism import audit_releases, check_trials
from udpfl.audit.replay import Subject, per_sample, replayed, verdict_of
from udpfl.audit.result import AuditResult, Progress
from udpfl.audit.verdict import Verdict
from udpfl.audit.worlds import Releases
from udpfl.config import Config, load
from udpfl.data.persons import NO_LABEL
from udpfl.data.records import Indices
from udpfl.engine import Entropy, LaneModel, Loss
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.builders import choose_device, prepare_records
from udpfl.federation.configured_names import trusted_settings
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import planned_protection
from udpfl.federation.setup import Setup
from udpfl.mechanisms import Radial
from udpfl.mechanisms.arrays import Floats
from udpfl.runs.folder import RunFolder

log = logging.getLogger(__name__)

FAR = 0.05
"""A large delta, where too little noise shows soonest: the accountant answers for every delta."""
_CANDIDATES = 32
"""Records of a client among which the canary is looked for."""
_STEPS = 10
"""Of a training that are replayed at most."""


@dataclass(frozen=True)
class Target:
    """What is audited: one client of a run."""

    setup: Setup
    number: int
    """Which client is audited."""
    plan: ReleasePlan
    """What it releases, and is charged for; with the least noise, where it follows results."""
    release: Release | Randomised

    @classmethod
    def of(
        cls,
        where: str | Path | Config,
        data: Any = None,
        model: nn.Module | None = None,
        loss: Loss | None = None,
    ) -> Target:
        """From a configuration, with fresh weights; from a run folder, with trained ones."""
        folder = None
        if not isinstance(where, Config) and Path(where).is_dir():
            folder = RunFolder.open(Path(where), "config")
        settings = trusted_settings(folder) if folder else load(where)
        _require_claim(settings)
        setup = Setup.of(settings, data=data, model=copy.deepcopy(model), loss=loss)
        plans = setup.plans() if folder is None else _read_plans(folder, setup.network)
        # The client with the most records: it takes the most canaries.
        asked = [i for i, plan in enumerate(plans) if plan.release is not None]
        first = max(asked, key=lambda i: len(setup.parts[i]))
        plan = plans[first]
        if plan.levels:  # the least noise that a round may have
            plan = plan.at_level(plan.levels[-1])
        assert plan.release is not None
        if plan.parameters:
            raise Unsupported(
                f"{settings.training.algorithm} releases parameters, but this audit replays "
                f"updates: use `udpfl audit mechanism` to audit its noise"
            )
        return cls(setup, first, plan, plan.release)

    @property
    def records(self) -> Indices:
        """The client's records, as positions in the training set."""
        return self.setup.parts[self.number]

    def epsilon(self, event: Event | None, delta: float) -> float:
        """What the run's accountant claims of an event of the plan."""
        assert event is not None, "a plan with a release has events"
        privacy = self.setup.config.privacy
        return account(event, delta, privacy.accountant, privacy.accounting).epsilon

    def canary(self) -> tuple[Tensor, Tensor, Tensor]:
        """A record, the label that pulls hardest, and one that pulls another way."""
        rows = self.records[:_CANDIDATES]
        x, labels = self._inputs(rows), self._labels(rows)
        gradients = per_sample(self.setup.trained_network, self.setup.trained_loss)
        weights = {
            n: p.detach() for n, p in self.setup.network.named_parameters() if p.requires_grad
        }
        sizes = torch.stack([gradients(weights, x, label).norm(dim=1) for label in labels])
        sizes = sizes.nan_to_num(0.0, 0.0, 0.0)  # the engine drops what is not finite
        best = int(sizes.argmax())
        if not sizes.any():
            raise Unsupported(
                f"no record of {self.plan.name} has a gradient at this model, so there is nothing "
                f"that an adversary could detect"
            )
        label, row = divmod(best, len(rows))
        other = int(sizes[:, row].scatter(0, torch.tensor(label), -1.0).argmax())
        return x[row : row + 1], labels[label][row : row + 1], labels[other][row : row + 1]

    def _inputs(self, rows: Indices) -> Tensor:
        records = self.setup.data.train.subset(rows)
        return prepare_records(self.setup.network, records, torch.device("cpu"))

    def _labels(self, rows: Indices) -> list[Tensor]:
        """What each of the records might have been labelled; all rows of a person alike."""
        targets = torch.from_numpy(self.setup.data.train.targets[rows])
        if self.setup.data.task == "classification":
            labels = range(self.setup.data.outputs)
            return [torch.where(targets == NO_LABEL, NO_LABEL, label) for label in labels]
        spread = 3 * float(self.setup.data.train.rows.targets.std())
        return [targets + spread, targets - spread]

    def whole(self) -> Worlds:
        """What the client lets out at this model, with all its records and without any."""
        rows = self.records
        x = self._inputs(rows)
        y = torch.from_numpy(self.setup.data.train.targets[rows])
        self.setup.show_public_records()
        model = LaneModel(self.setup.trained_network, self.setup.trained_loss)
        model.check(model.initial(), x[:3], y[:3])
        rate = self.setup.config.training.learning_rate
        return ClientUnderAudit(self.plan, self.setup.algorithm, model, x, y, rate).worst()

    def subjects(self) -> dict[str, Subject]:
        """The record alone, sampled as in the run; and in a full batch with two that oppose it."""
        assert isinstance(self.release, Release), "a randomiser hides whole clients"
        x, label, other = self.canary()
        samples, epochs, batches = _few_steps(self.plan)
        device = choose_device(self.setup.config.device)
        alone = Subject(
            self.setup.trained_network,
            self.setup.trained_loss,
            x,
            label,
            self.release,
            self.plan.rate,
            samples * epochs * batches,
            device=device,
            precision=self.setup.precision,
            batches=batches,
            epochs=epochs,
        )
        crowd = Subject(
            self.setup.trained_network, self.setup.trained_loss,
            x.repeat(3, *[1] * (x.dim() - 1)), torch.cat([other, other, label]), self.release,
            chunk=2, device=device, precision=self.setup.precision,
        )  # fmt: skip
        steps = "1 step" if alone.steps == 1 else f"{alone.steps} steps"
        if self.plan.epochs * self.plan.batches > 1:
            steps = f"{samples * epochs} epochs of {batches} batches"
        unit = self.release.unit
        return {f"{unit} alone, {steps} as sampled": alone, f"{unit} in a full batch": crowd}


def _few_steps(plan: ReleasePlan) -> tuple[int, int, int]:
    """Samples of a training, and epochs and batches of each, of which there are ten steps or so."""
    epochs = min(plan.epochs, _STEPS)
    batches = min(plan.batches, max(1, _STEPS // epochs))
    return min(plan.sampled[1], max(1, _STEPS // (epochs * batches))), epochs, batches


def _require_claim(settings: Config) -> None:
    if not settings.privacy.enabled:
        raise Unsupported("privacy is turned off: nothing is claimed, so nothing can be refuted")
    if settings.privacy.randomness == "seeded":
        raise Unsupported(
            "a seeded run claims nothing: anyone who has the seed can remove its noise"
        )


def _read_plans(folder: RunFolder, network: nn.Module) -> list[ReleasePlan]:
    """The plans of a finished run, whose trained weights the network gets."""
    if not folder.model.is_file():
        raise InvalidInput(
            "run",
            f"{str(folder.path)!r} has no model: it is not finished, or no client trained in it",
        )
    network.load_state_dict(load_file(folder.model))
    return [ReleasePlan.from_row(row) for row in folder.clients]


def audit_run(
    where: str | Path | Config,
    *,
    trials: int = 2_000,
    canaries: int | None = None,
    error: float = 0.05,
    data: Any = None,
    model: nn.Module | None = None,
    loss: Loss | None = None,
    progress: Progress | None = None,
) -> AuditResult:
    """Verdicts on a run's claims: its steps replayed, and the whole run trained once.

    Guarantee: claims that are all true are refuted, any of them, with probability `error` at most.

    Args:
        where: A run folder, or a configuration, as a file or a `Config`. Code that only a folder
            names is refused until `udpfl.plugins.trust` allows it.
        trials: Replays in each world; at least 100.
        canaries: In the run that is trained: 200, or half of a smaller client's records, if left
            out; 0 leaves the training out.
        error: In (0, 1), for all verdicts together.
        data: What was handed to `udpfl.run` in Python as data, if anything was.
        model: The same for the model.
        loss: The same for the loss.
        progress: Called with what is being done, how much of it is done, and how much there is.

    Returns:
        One verdict for each claim, and one sentence about all of them.

    Raises:
        InvalidInput: A number is out of range, or there is no such run or configuration.
        Unsupported: Nothing is claimed that could be refuted.

    Example:
        >>> import numpy as np
        >>> from udpfl.audit import audit_run
        >>> from udpfl.config import load
        >>> config = load({"data": {"clients": 2}, "model": {"name": "logistic"}})
        >>> data = (np.eye(2).repeat(20, 0), np.arange(40) % 2)
        >>> found = audit_run(config, data=data, trials=100, canaries=0, error=1e-6)
        >>> found.refuted
        False
    """
    check_error(error)
    check_trials(trials)
    target = Target.of(where, data, model, loss)
    count = _canary_count(target, canaries)
    verdicts = _verdicts(target, trials, count, error, progress or _silently)
    delta = _delta_of(target.plan)
    return AuditResult(tuple(verdicts), _claimed(target, delta), delta, target.plan.name)


def _silently(stage: str, done: int, total: int) -> None:
    """Nobody wants to know."""


def _verdicts(
    target: Target, trials: int, count: int, error: float, progress: Progress
) -> list[Verdict]:
    delta = _delta_of(target.plan)
    whole, deltas = target.release.unit == "client", (FAR, delta)
    subjects = {} if whole else target.subjects()
    rounds = rounds_to_try(target.plan, target.setup.algorithm.trusts_server) if whole else []
    share = error / ((len(subjects) + len(rounds)) * len(deltas) + (count > 0) + 1)
    trained = _trained(target, count, delta, share, progress) if count else []
    if isinstance(target.release, Randomised):
        progress("comparing messages", 0, 1)
        update = target.whole().present
        sent = [_message(target, target.release, update, trials, d, share) for d in deltas]
        return sent + trained
    verdicts = []
    if whole:
        progress("training with and without the client", 0, 1)
        both = target.whole()  # trained once, for all rounds and every delta
        verdicts += [_client(target, both, own, trials, d, share) for own in rounds for d in deltas]
    for name, subject in subjects.items():
        verdicts += _replayed(target, name, subject, trials, deltas, share, progress)
    if not isinstance(target.release.mechanism, Radial):  # whose words no adversary tells apart
        progress(f"trying the {ROUNDING}", 0, 1)
        verdicts.append(_lattice(target, delta, share))
    return verdicts + trained


def _delta_of(plan: ReleasePlan) -> float:
    """At which the claims of a client are stated."""
    own = plan.budget.delta if plan.budget else plan.delta
    return 1e-5 if own is None else own


def _canary_count(target: Target, canaries: int | None) -> int:
    """How many records of the client are canaries in a run that is trained."""
    size = len(target.records)
    count = min(200, size // 2) if canaries is None else canaries
    if count and not 10 <= count <= size // 2:
        raise InvalidInput(
            "canaries",
            f"must be 0, or from 10 to half of the {size} records of {target.plan.name}, "
            f"got {count}",
        )
    return count


def _replayed(
    target: Target,
    name: str,
    subject: Subject,
    trials: int,
    deltas: Sequence[float],
    error: float,
    progress: Progress,
) -> Iterator[Verdict]:
    """One verdict for each delta, on the steps of one subject."""
    stream = Entropy()

    def told(done: int) -> None:
        progress(f"replaying {name}", done, 2 * trials)

    worlds = replayed(subject, trials, stream, told)  # one set of replays answers for every delta
    alternative = None
    for d in deltas:
        epsilon = target.epsilon(subject.claim, d)
        claim = f"{target.plan.name}, {name}"
        verdict = verdict_of(subject, worlds, stream, epsilon, d, error, claim, alternative)
        alternative = verdict.alternative
        yield verdict


def _lattice(target: Target, delta: float, error: float) -> Verdict:
    """What is said of rounding, tried with the noise of this client and all that it releases."""
    event = target.plan.rest_event()
    assert event is not None
    assert isinstance(target.release, Release)
    dimension, name = target.release.sensitivity.coordinates, target.plan.name
    return audit_lattice(
        target.release.mechanism,
        dimension * release_count(event),
        target.epsilon(event, delta),
        claim=f"{name}, {ROUNDING}",
        noiser=planned_protection([target.plan])[1],
        error=error,
    )


def _message(
    target: Target,
    release: Randomised,
    update: Floats,
    trials: int,
    delta: float,
    error: float,
) -> Verdict:
    """The claim about one message, tried with the client's own update and the opposite one."""
    return audit_message(
        release.randomiser,
        update,
        target.epsilon(target.plan.event(), delta),
        delta,
        claim=f"{target.plan.name}, one message about its update or the opposite one",
        trials=trials,
        error=error,
    )


def _client(
    target: Target,
    worlds: Worlds,
    rounds: Sequence[int],
    trials: int,
    delta: float,
    error: float,
) -> Verdict:
    """The claim about a whole client, tried with what the client itself lets out."""
    plan = target.plan.at(rounds[0])
    assert isinstance(plan.release, Release)
    epsilon = target.epsilon(plan.event(len(rounds)), delta)
    which = f"{len(rounds)} rounds" if len(rounds) > 1 else f"round {rounds[0]}"
    return audit_releases(
        Releases(plan.release.mechanism, worlds.shift, len(rounds), plan.participation),
        epsilon,
        delta,
        claim=f"{target.plan.name} as a whole, {which}",
        trials=trials,
        error=error,
        noiser=AsReleased(target.plan, rounds, worlds, target.setup.algorithm.trusts_server),
    )


def _claimed(target: Target, delta: float) -> float:
    """Epsilon of the whole run for its unit: a record, a person or a client."""
    if target.setup.config.privacy.pace == "plateau":  # rounds differ, and keep the budget together
        assert target.plan.budget is not None, "every client of a private run has a budget"
        return target.plan.budget.epsilon
    return target.epsilon(target.plan.rest_event(), delta)


def _claimed_of_a_record(target: Target, delta: float) -> tuple[float, float]:
    """Epsilon and delta of the whole run for one record."""
    epsilon = _claimed(target, delta)
    if target.release.unit != "client":
        return epsilon, delta
    # A record may change all that its client sends: as if it left and another came.
    return 2 * epsilon, min(1.0, delta * (1 + math.exp(min(epsilon, 700.0))))


def _trained(
    target: Target, canaries: int, delta: float, error: float, progress: Progress
) -> list[Verdict]:
    """A verdict on the whole run, trained once; none where nothing is claimed of a record."""
    epsilon, delta_of_record = _claimed_of_a_record(target, delta)
    if delta_of_record == 1:
        log.warning(
            "no run is trained, because it would look for single records, and a claim for whole "
            "clients at delta = %g implies nothing for one record; a smaller privacy.delta would",
            delta,
        )
        return []
    rounds = target.setup.config.training.rounds

    def told(round_: int) -> None:
        progress("training once with canaries", round_, rounds)

    found = one_run(target.setup, target.number, canaries, told)
    name = f"{target.plan.name}, the whole run, trained once"
    tests = found.tests(delta_of_record, error)
    guesses = SurerGuesses(tests)
    return [Verdict(name, epsilon, delta_of_record, tests, error, alternative=guesses)]
