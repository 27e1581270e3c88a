"""From a configuration to the release plan of every client: public facts and budgets decide.

All of it happens before any training. Noise is calibrated to each client's own budget, for the
events of its own plan: those that it will be charged for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from udpfl.accounting import Release, Sensitivity
from udpfl.accounting.accountant import Accountant
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Composed, Event, Leaf, Unit, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.pacing import noise_factors, noise_levels
from udpfl.accounting.randomised import Randomised
from udpfl.algorithms import Algorithm, OwnNoise
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.engine import BallClipper, Clipper, NormClipper
from udpfl.engine.counting import SENSITIVITY as COUNTED
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation._matching import matched_in, references_of, with_reference
from udpfl.federation._own_noise import own_noise
from udpfl.federation.plan import ONE_RUN, CountNoise, Past, ReleasePlan
from udpfl.federation.selection import Schedule
from udpfl.harmonizer import Choice, Client, ClientPlan, Setting, choose, harmonize
from udpfl.mechanisms import BUILT_IN, Gaussian, Mechanism, Randomiser
from udpfl.plugins import own_mechanism

log = logging.getLogger(__name__)


MakePlans = Callable[[Schedule, Mapping[str, Past]], list[ReleasePlan]]
"""Makes the plans of a schedule. A client with a past is planned by the rule of its ledger, for
what its budget has left."""

NO_PASTS: Mapping[str, Past] = {}
"""Of clients that no shared ledger knows."""


def plan_releases(
    config: Config,
    sizes: Sequence[int],
    schedule: Schedule,
    dimension: int,
    algorithm: Algorithm,
    names: Sequence[str] | None = None,
    pasts: Mapping[str, Past] = NO_PASTS,
    *,
    others: Sequence[int] = (),
    counts: CountNoise = ONE_RUN,
) -> list[ReleasePlan]:
    """Calibrate every client's noise to its own budget and its own number of releases.

    `sizes` are the declared ones, and `others` those of clients that are planned elsewhere. A
    client with a past on a ledger is planned by that ledger's rule, and the budget there has to pay
    for all that the past holds as well. `counts` is for whoever plans more than one run.
    """
    names = names or [f"client-{i}" for i in range(len(sizes))]
    drafts = _drafts(config, sizes, names, schedule, algorithm)
    if not config.privacy.enabled:
        return drafts
    try:
        if noise := own_noise(config, algorithm, [*sizes, *others], dimension):
            return _prescribed(config.privacy, noise, drafts, dimension)
        return _Calibration(config, schedule, dimension, algorithm, pasts, counts).plans(drafts)
    except InvalidInput as error:  # under the configuration key that the value came from
        if "." in error.parameter:
            raise
        section = "privacy" if error.parameter in PrivacyConfig.model_fields else "training"
        raise InvalidInput(f"{section}.{error.parameter}", error.message) from None


def _drafts(
    config: Config,
    sizes: Sequence[int],
    names: Sequence[str],
    schedule: Schedule,
    algorithm: Algorithm,
) -> list[ReleasePlan]:
    """Plans without noise."""
    training, rounds = config.training, Counter(i for chosen in schedule for i in chosen)
    is_paced = config.privacy.pace != "uniform"
    return [
        ReleasePlan(
            name=name,
            declared_size=size,
            rate=training.sampling_rate,
            rounds=rounds[i],
            steps=training.steps,
            batches=training.batches,
            epochs=training.passes,
            trainings=algorithm.trainings,
            asked=_rounds_of(i, schedule) if is_paced else (),
            participation=algorithm.participation,
            shares_steps=algorithm.shares_steps,
        )
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]


def _rounds_of(client: int, schedule: Schedule) -> tuple[int, ...]:
    return tuple(round_ for round_, chosen in enumerate(schedule, 1) if client in chosen)


def _prescribed(
    privacy: PrivacyConfig, noise: OwnNoise, drafts: Sequence[ReleasePlan], dimension: int
) -> list[ReleasePlan]:
    """Noise that the method brings along, charged as what it is; a budget could not be kept."""
    clips, deltas = (per_client(v, len(drafts)) for v in (privacy.clip, privacy.delta))
    if isinstance(noise.up, Randomiser):
        NormClipper(privacy.norm, clips)  # raises where a clip is out of range
        message = Randomised(noise.up, privacy.unit)
        return [
            replace(draft, release=message, delta=delta)
            for draft, delta in zip(drafts, deltas, strict=True)
        ]
    clipper = BallClipper(privacy.norm, clips)
    return [
        replace(
            draft,
            release=Release(noise.up, clipper.sensitivity(i, dimension), privacy.unit),
            parameters=True,
            diameter=True,
            delta=deltas[i],
        )
        for i, draft in enumerate(drafts)
    ]


@dataclass(frozen=True)
class _Calibration:
    """Noise for the clients of one run."""

    config: Config
    schedule: Schedule
    dimension: int
    algorithm: Algorithm
    pasts: Mapping[str, Past]
    counts: CountNoise

    @property
    def privacy(self) -> PrivacyConfig:
        return self.config.privacy

    def plans(self, drafts: Sequence[ReleasePlan]) -> list[ReleasePlan]:
        """The drafts with noise that keeps the clients' budgets."""
        privacy = self.privacy
        mechanisms = [_mechanism(name) for name in per_client(privacy.mechanism, len(drafts))]
        budgets = [
            Budget(*own)
            for own in zip(
                per_client(privacy.epsilon, len(drafts)),
                per_client(privacy.delta, len(drafts)),
                strict=True,
            )
        ]
        _require_pure(mechanisms, budgets)
        drafts = self._mixed(self._with_counts(drafts, budgets))
        _warn_of_delta(drafts, privacy)
        clipper = self._clipper(len(drafts))
        references = references_of(privacy, len(drafts))
        wanted = [
            Client(
                draft.name,
                with_reference(
                    privacy,
                    self._setting(draft, clipper.sensitivity(i, self.dimension)),
                    references[i],
                ),
                mechanisms[i],
            )
            for i, draft in enumerate(drafts)
            if draft.rounds  # whoever is never asked releases nothing
        ]
        log.info("planning the noise of %d clients", len(wanted))
        found = {own.client.name: own for own in harmonize(wanted)}
        return [
            self._planned(draft, found[draft.name]) if draft.name in found else draft
            for draft in drafts
        ]

    @property
    def _uses_diameter(self) -> bool:
        # A trusted server adds nothing for a client that is not there: its sum moves by the clip.
        return (
            self.privacy.unit == "client"
            and self.algorithm.without_records is None
            and not self.algorithm.trusts_server
        )

    def _clipper(self, clients: int) -> Clipper:
        if self._uses_diameter:
            log.warning(
                "%s does not say what a client without records sends (`without_records`), so twice "
                "the clip is charged",
                self.config.training.algorithm,
            )
        kind = BallClipper if self._uses_diameter else NormClipper
        return kind(self.privacy.norm, per_client(self.privacy.clip, clients))

    def _with_counts(
        self, drafts: Sequence[ReleasePlan], budgets: Sequence[Budget]
    ) -> list[ReleasePlan]:
        """The drafts with budgets, the noise of an adaptive clip's counts, and paces."""
        privacy = self.privacy
        if privacy.clip_quantile is not None:
            log.info("planning the noise of the counts for privacy.clip_quantile")
        factors = noise_factors(privacy.pace, privacy.pace_ratio, self.config.training.rounds)
        return [
            replace(
                draft,
                budget=budget,
                factors=factors,
                levels=noise_levels(privacy.pace, privacy.pace_ratio),
                count=_count(privacy, draft, budget, self.counts),
                diameter=self._uses_diameter,
            )
            for draft, budget in zip(drafts, budgets, strict=True)
        ]

    def _mixed(self, drafts: Sequence[ReleasePlan]) -> list[ReleasePlan]:
        """The drafts with the number of messages that the paper's lemma counts in a round.

        As many as are asked in the smallest of a client's rounds: some may be left out of the run.
        """
        privacy = self.privacy
        if not self.config.training.shuffle or privacy.accounting == "vector":
            return list(drafts)
        fewest: dict[int, int] = {}
        for chosen in self.schedule:
            for i in chosen:
                fewest[i] = min(len(chosen), fewest.get(i, len(chosen)))
        return [replace(draft, shuffled=fewest.get(i, 0)) for i, draft in enumerate(drafts)]

    def _setting(self, draft: ReleasePlan, sensitivity: Sensitivity) -> Setting:
        """What the harmonizer is asked for."""
        privacy, past = self.privacy, self.pasts.get(draft.name)
        budget = _spendable(draft.budget, past)
        rate, releases = draft.with_noise(Gaussian(1.0), sensitivity, privacy.unit).sampled
        return Setting(
            budget.epsilon,
            budget.delta,
            draft.rounds * draft.trainings * releases,
            sensitivity,
            rate,
            privacy.unit,
            _accountant(privacy, past),
            privacy.accounting,
            AllReleases.of(draft, sensitivity, privacy.unit, past.history if past else ()),
        )

    def _planned(self, draft: ReleasePlan, found: ClientPlan) -> ReleasePlan:
        """The draft with calibrated noise."""
        setting, mechanism = found.client.setting, found.calibrated.mechanism
        plan = draft.with_noise(mechanism, setting.sensitivity, setting.unit)
        alone = AllReleases.of(draft, setting.sensitivity, setting.unit, ())
        return replace(
            plan,
            penalty=self.config.training.penalty * found.penalty,
            matched=matched_in(
                replace(setting, pays_for=alone), mechanism, why_nothing_is_claimed(self.config)
            ),
        )


@dataclass(frozen=True)
class AllReleases:
    """What a client's budget has to pay for, by the noise: its plan, and what it has released.

    Guarantee: what noise is calibrated for are the events of the plan itself, which is what will be
    charged.
    """

    plan: ReleasePlan = field(compare=False)
    sensitivity: Sensitivity
    unit: Unit
    history: tuple[Event, ...]
    kinds: frozenset[tuple[Leaf, int]]
    """With noise 1. Where these are the same, one calibration serves several clients."""

    @classmethod
    def of(
        cls, plan: ReleasePlan, sensitivity: Sensitivity, unit: Unit, history: Sequence[Event]
    ) -> AllReleases:
        """For a plan without noise."""
        event = plan.with_noise(Gaussian(1.0), sensitivity, unit).rest_event()
        assert event is not None, "whoever is never asked has no setting"
        kinds = frozenset(leaves(event).items())
        return cls(plan, sensitivity, unit, tuple(history), kinds)

    def __call__(self, mechanism: Mechanism) -> Event:
        event = self.plan.with_noise(mechanism, self.sensitivity, self.unit).rest_event()
        assert event is not None
        return Composed((event, *self.history)) if self.history else event


def _require_pure(mechanisms: Sequence[str | Mechanism], budgets: Sequence[Budget]) -> None:
    """Refuse a delta of zero for noise that has no pure-DP guarantee."""
    for wanted, budget in zip(mechanisms, budgets, strict=True):
        kind = BUILT_IN.get(wanted) if isinstance(wanted, str) else wanted  # None: "auto"
        if budget.delta == 0 and kind is not None and not kind.has_pure_guarantee:
            raise InvalidInput(
                "privacy.delta",
                f"0 means pure DP, but {kind.name} noise has no pure-DP guarantee: set it above 0, "
                "for example 1e-5, or set privacy.mechanism to laplace",
            )


def _warn_of_delta(drafts: Sequence[ReleasePlan], privacy: PrivacyConfig) -> None:
    """Say where a delta is so large that it permits publishing somebody."""
    is_client = privacy.unit == "client"
    for draft in drafts:
        crowd = len(drafts) if is_client else draft.declared_size
        if draft.budget and draft.budget.delta * crowd >= 1:
            log.warning(
                "privacy.delta = %g is not below 1 / %d, one over the number of %s: such a delta "
                "permits publishing one of them",
                draft.budget.delta,
                crowd,
                "clients" if is_client else "records of a client",
            )
            return


def _spendable(budget: Budget | None, past: Past | None) -> Budget:
    """The budget that has to pay: the run's own, or all of the account's, past included."""
    assert budget is not None, "every client of a private run has a budget"
    return past.budget if past and past.budget and past.held else budget


def _accountant(privacy: PrivacyConfig, past: Past | None) -> Accountant | Filter:
    return past.rule if past and privacy.accounting == "vector" else privacy.accountant


@lru_cache(maxsize=64)
def _best(setting: Setting, mechanisms: tuple[str, ...]) -> Choice:
    return choose(setting, list(map(_mechanism, mechanisms)) or None)[0]


def _count(
    privacy: PrivacyConfig, draft: ReleasePlan, budget: Budget, counts: CountNoise
) -> Release | None:
    """The noise of a client's counts: what is best for one number and a share of the budget."""
    if privacy.clip_quantile is None or not draft.rounds:
        return None
    share, one = privacy.clip_share, Sensitivity(COUNTED, "l2", 1)
    setting = Setting(
        share * budget.epsilon, share * budget.delta, counts.rounds or draft.rounds, one,
        draft.rate, privacy.unit, privacy.accountant, privacy.accounting,
    )  # fmt: skip
    best = _best(setting, counts.mechanisms)
    if best.calibrated is None:
        raise Unsupported(
            f"{draft.name}: no noise is possible for the counts of an adaptive clip ({best.why})"
        )
    return Release(best.calibrated.mechanism, one, privacy.unit)


def _mechanism(name: str) -> str | Mechanism:
    """A name the harmonizer knows, or somebody's own mechanism at scale 1."""
    return name if name == "auto" or name in BUILT_IN else own_mechanism(name)


def why_nothing_is_claimed(config: Config, unclaimed: str | None = None) -> str | None:
    """Why a run with this configuration claims no privacy; None where it claims some.

    `unclaimed` is a reason that the configuration does not know.
    """
    if unclaimed:
        return unclaimed
    if not config.privacy.enabled:
        return "privacy is turned off"
    if config.privacy.randomness == "seeded":
        return "noise and sampling are seeded, for tests only"
    return None
