"""What the server sees: is a record in the updates that clients release?

"worst": the attacker of differential privacy knows the model, all other records, and the record in
question: the one whose gradient is longest, with the label that pulls hardest. The engine that
trains releases the same steps again and again, with the record and without it, and the score is the
logarithm of how much more probable the released sum is with the record, under the noise that is
claimed. No score tells the two apart better (Neyman and Pearson 1933), so a claim that is false by
much does not survive it.

"recorded": the messages that the run itself recorded, and the records that it did and did not train
on. Everything that the server does not know, such as the other records of a client, hides a record
as well.

References: Nasr et al., "Tight Auditing of Differentially Private Machine Learning", 2023, Section
4 (white-box adversary); Nasr, Shokri, Houmansadr, "Comprehensive Privacy Analysis of Deep
Learning", IEEE S&P 2019 (the server's view).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from udpfl.accounting import Release, account
from udpfl.accounting.events import Event
from udpfl.attacks.base import Attack, Findings, Progress
from udpfl.attacks.membership._recorded import recorded_scores, rounds_seen
from udpfl.attacks.membership._verdict import ONE_TRAINING, findings
from udpfl.attacks.membership.statistics import Cap, Scores
from udpfl.attacks.pool import Pool
from udpfl.attacks.target import Target
from udpfl.audit.replay import Subject, replayed
from udpfl.audit.run import Target as Audited
from udpfl.audit.worlds import by_chance
from udpfl.config.section import Count, Section
from udpfl.engine import Clipper, Entropy, Noiser
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.protection import Protection
from udpfl.mechanisms.arrays import Floats

_FEWEST = 100


class ServerViewOptions(Section):
    """Settings of the attack."""

    record: Literal["worst", "recorded"] = Field(
        default="worst",
        description="'worst': the record with the longest gradient, whose releases are repeated by "
        "the engine; 'recorded': the run's own records and the messages that it recorded "
        "(record_updates).",
    )
    trials: Count = Field(
        default=1000,
        description="worst: repetitions with the record, and as many without it; at least 100.",
    )
    rounds: Count = Field(
        default=5, description="worst: how many rounds of the client the attacker sees."
    )
    records: Count = Field(
        default=2000,
        description="recorded: records that are attacked at most, half of them members.",
    )


class ServerView(Attack[ServerViewOptions]):
    """The likelihood ratio of released updates."""

    name = "server-view"
    kind = "membership"
    what = "looks for a record in the updates that clients release, as the server could"
    needs = "the updates of clients, the model of the round, the record; worst: all other records"
    paper = "Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023"
    options_type = ServerViewOptions

    protection: Protection | None = None
    """Clipping and noise in the engine other than what is claimed, to see that it is noticed."""

    def find(self, target: Target, progress: Progress) -> Findings:
        own = self.options
        if own.record == "recorded":
            return self._recorded(target, own, progress)
        if own.trials < _FEWEST:
            raise InvalidInput("trials", f"must be at least {_FEWEST}, got {own.trials}")
        return self._worst(target, own, progress)

    def _worst(self, target: Target, own: ServerViewOptions, progress: Progress) -> Findings:
        """One client with the worst record alone, as sampled in the run."""
        subject, plan = worst_subject(target, own.rounds, self.protection)

        def told(done: int) -> None:
            progress("releasing with and without the record", done, 2 * own.trials)

        scores = worlds_of(subject, own.trials, told)
        return findings(
            self.name,
            f"the updates of {plan.name} in {_rounds(own.rounds)} as the server sees them",
            f"the worst record, {own.trials:,} times with and without it",
            target.privacy,
            scores,
            seed=self.seed,
            said=(
                "tells that the worst record was there in {} of the releases with it, where it "
                "wrongly says so of 1 % of those without"
            ),
            notes=(
                "Every repetition is independent, so the intervals are those of the mechanism, "
                "whatever the model.",
                "The cap is what is claimed for these rounds alone, not for the whole run; all are "
                "released at the model that training began with.",
            ),
            cap=claimed(target, plan, subject.claim),
        )

    def _recorded(self, target: Target, own: ServerViewOptions, progress: Progress) -> Findings:
        pool = Pool.of(target, own.records, self.seed)
        rounds = rounds_seen(target)
        values, exact = recorded_scores(target, pool, rounds, progress)
        plan = target.plans[0]
        event = plan.event(len(rounds)) if plan.release is not None else None
        said = ", ".join(map(str, rounds))
        how = (
            "The score is the likelihood ratio for one record alone; other records of the client "
            "hide it as well."
            if exact
            else "Several steps make one update, so the score is that of normal noise with the "
            "same variance, at the model that the round began with."
        )
        return findings(
            self.name,
            f"the updates of round {said} as the server sees them",
            pool.described,
            target.privacy,
            Scores(values, pool.is_member, 0.0 if exact and event is not None else None),
            seed=self.seed,
            notes=(ONE_TRAINING, how),
            cap=None if event is None else claimed(target, plan, event),
        )


def worst_subject(
    target: Target, rounds: int = 1, protection: Protection | None = None
) -> tuple[Subject, ReleasePlan]:
    """What is released of the worst record in so many rounds, as it is sampled in the run.

    Raises:
        Unsupported: Updates have no noise, or hide whole clients.
    """
    if all(plan.release is None for plan in target.plans):
        raise Unsupported(
            "the run sends updates without noise: whoever sees one sees the gradients, so there is "
            "nothing to be guessed. --set record=recorded attacks them as they are"
        )
    if any(not isinstance(plan.release, Release) for plan in target.plans) or any(
        plan.release is not None and plan.release.unit == "client" for plan in target.plans
    ):
        raise Unsupported(
            "server-view looks for single records, and this run hides whole clients: `udpfl audit "
            "run` looks for those"
        )
    number = max(range(len(target.plans)), key=lambda i: len(target.setup.parts[i]))
    plan = target.plans[number]
    if plan.levels:  # the least noise that a round may have
        plan = plan.at_level(plan.levels[-1])
    if plan.parameters:
        raise Unsupported(
            f"{target.config.training.algorithm} releases parameters, and server-view looks at "
            "updates"
        )
    assert isinstance(plan.release, Release)
    audited = Audited(target.setup, number, plan, plan.release)
    alone = next(iter(audited.subjects().values()))  # the record alone, as sampled
    subject = replace(alone, steps=plan.steps * min(rounds, plan.rounds))
    if protection is not None:
        subject = _with(subject, plan, protection)
    return subject, plan


def _with(subject: Subject, plan: ReleasePlan, protection: Protection) -> Subject:
    def put_in(lanes: int) -> tuple[Clipper, Noiser]:
        return protection([plan] * lanes)

    return replace(subject, protection=put_in)


def worlds_of(subject: Subject, trials: int, told: Callable[[int], None] | None = None) -> Scores:
    """The likelihood ratio of every repetition; those with the record are the members."""
    worlds = replayed(subject, trials, Entropy(), told)
    both: dict[bool, Floats] = {
        there: np.sum([by_chance(own, subject.rate) for own in samples], axis=0)
        for there, samples in worlds.items()
    }
    values = np.concatenate([both[True], both[False]])
    return Scores(values, np.arange(len(values)) < len(both[True]), 0.0)


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"{count} rounds"


def claimed(target: Target, plan: ReleasePlan, event: Event | None) -> Cap:
    """What is claimed of these releases, at the delta of the client's budget."""
    assert event is not None
    own = plan.budget.delta if plan.budget else plan.delta
    delta = 1e-5 if own is None else own
    privacy = target.config.privacy
    return Cap(account(event, delta, privacy.accountant, privacy.accounting).epsilon, delta)
