"""From a configuration to the release plan of every client: public facts and budgets decide.

All of it happens before any training. Noise is calibrated to each client's own budget and number of
releases; what the harmonizer was asked for is compared with what the plan will be charged as.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from udpfl.accounting import Release, Repeated, Sensitivity
from udpfl.accounting.accountant import Accountant
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Composed, Event, leaves
from udpfl.accounting.filter import Filter
from udpfl.accounting.pacing import noise_factors
from udpfl.algorithms import Algorithm, OwnNoise
from udpfl.config import Config, PrivacyConfig, per_client
from udpfl.engine import BallClipper, Clipper, NormClipper
from udpfl.engine.counting import SENSITIVITY as COUNTED
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.own_noise import own_noise
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.selection import Schedule
from udpfl.harmonizer import Choice, Client, ClientPlan, Setting, choose, harmonize
from udpfl.mechanisms import BUILT_IN, Mechanism
from udpfl.plugins import own_mechanism

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Past:
    """What a ledger that runs share knows of a client before a run is planned."""

    rule: Filter
    """How its releases are added up."""
    budget: Budget | None
    held: Event | None = None
    """What it has spent and reserved, for which the budget has to pay as well."""

    @property
    def history(self) -> list[Event]:
        """The same as a list."""
        return [] if self.held is None else [self.held]


MakePlans = Callable[[Schedule, Mapping[str, Past]], list[ReleasePlan]]
"""The plans of a schedule; of clients with a past, by the rule and for the rest of it."""

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
) -> list[ReleasePlan]:
    """Calibrate every client's noise to its own budget and its own number of releases.

    `sizes` are the declared ones. A client with a past on a ledger is planned by that ledger's
    rule, and the budget there has to pay for all that the past holds as well.
    """
    names = names or [f"client-{i}" for i in range(len(sizes))]
    drafts = _drafts(config, sizes, names, schedule, algorithm)
    if not config.privacy.enabled:
        return drafts
    try:
        if noise := own_noise(config, algorithm, sizes):
            return _prescribed(config.privacy, noise, drafts, dimension)
        return _Calibration(config, schedule, dimension, algorithm, pasts).plans(drafts)
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
            steps=training.local_steps,
            trainings=algorithm.trainings,
            asked=_rounds_of(i, schedule) if is_paced else (),
            participation=algorithm.participation,
        )
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]


def _rounds_of(client: int, schedule: Schedule) -> tuple[int, ...]:
    return tuple(round_ for round_, chosen in enumerate(schedule, 1) if client in chosen)


def _prescribed(
    privacy: PrivacyConfig, noise: OwnNoise, drafts: Sequence[ReleasePlan], dimension: int
) -> list[ReleasePlan]:
    """Noise that the method brings along, charged as what it is; a budget could not be kept."""
    clipper = BallClipper(privacy.norm, per_client(privacy.clip, len(drafts)))
    deltas = per_client(privacy.delta, len(drafts))
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
        drafts = self._with_counts(drafts, budgets)
        _warn_of_delta(drafts, privacy)
        settings = self._settings(drafts, self._clipper(len(drafts)))
        wanted = [
            Client(draft.name, settings[draft.name], mechanisms[i])
            for i, draft in enumerate(drafts)
            if draft.name in settings
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
                count=_count(privacy, draft, budget),
                diameter=self._uses_diameter,
            )
            for draft, budget in zip(drafts, budgets, strict=True)
        ]

    def _settings(self, drafts: Sequence[ReleasePlan], clipper: Clipper) -> dict[str, Setting]:
        """What the harmonizer is asked for; who is never picked releases nothing."""
        fewest: dict[int, int] = {}
        for chosen in self.schedule:
            for i in chosen:
                fewest[i] = min(len(chosen), fewest.get(i, len(chosen)))
        return {
            draft.name: self._setting(draft, clipper.sensitivity(i, self.dimension), fewest[i])
            for i, draft in enumerate(drafts)
            if draft.rounds
        }

    def _setting(self, draft: ReleasePlan, sensitivity: Sensitivity, fewest: int) -> Setting:
        privacy, past = self.privacy, self.pasts.get(draft.name)
        is_client = privacy.unit == "client"
        # Releases of a round, counts aside: every step of a record, every training of a client.
        releases = draft.trainings * (1 if is_client else draft.steps)
        kinds = Counter(draft.factors[r - 1] for r in draft.asked) if draft.factors else {}
        budget = _spendable(draft.budget, past)
        counts = draft.count_event
        return Setting(
            budget.epsilon,
            budget.delta,
            draft.rounds * releases,
            sensitivity,
            draft.participation if is_client else draft.rate,
            privacy.unit,
            _accountant(privacy, past),
            privacy.accounting,
            tuple((factor, times * releases) for factor, times in kinds.items()),
            (
                *((Repeated(counts, draft.rounds),) if counts else ()),
                *(past.history if past else ()),
            ),
            _mixed_with(self.config, releases, fewest),
        )

    def _planned(self, draft: ReleasePlan, found: ClientPlan) -> ReleasePlan:
        """The draft with calibrated noise.

        Guarantee: what will be charged is what was calibrated, release by release.
        """
        setting, mechanism = found.client.setting, found.calibrated.mechanism
        plan = replace(
            draft,
            release=Release(mechanism, setting.sensitivity, self.privacy.unit),
            penalty=self.config.training.penalty * found.penalty,
            shuffled=setting.shuffled,
        )
        past, event = self.pasts.get(draft.name), plan.rest_event()
        assert event is not None
        charged = Composed((event, *past.history)) if past else event
        if leaves(charged) != leaves(found.calibrated.event):
            raise AssertionError(f"{draft.name}: what is planned is not what was calibrated")
        return plan


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
def _best(setting: Setting) -> Choice:
    return choose(setting)[0]


def _count(privacy: PrivacyConfig, draft: ReleasePlan, budget: Budget) -> Release | None:
    """The noise of a client's counts: what is best for one number and a share of the budget."""
    if privacy.clip_quantile is None or not draft.rounds:
        return None
    share, one = privacy.clip_share, Sensitivity(COUNTED, "l2", 1)
    setting = Setting(
        share * budget.epsilon, share * budget.delta, draft.rounds, one, draft.rate, privacy.unit,
        privacy.accountant,
    )  # fmt: skip
    best = _best(setting)
    if best.calibrated is None:
        raise Unsupported(
            f"{draft.name}: no noise is possible for the counts of an adaptive clip ({best.why})"
        )
    return Release(best.calibrated.mechanism, one, privacy.unit)


def _mixed_with(config: Config, releases: int, fewest: int) -> int:
    """The messages that the paper's lemma counts in a round; 0 where it is not used.

    As many as are asked in the smallest of the client's rounds: some may be left out of the run.

    It is about messages of one release each. For several local steps it would be a lemma on their
    sum, which no event here stands for: nothing is amplified then.
    """
    privacy = config.privacy
    releases += privacy.clip_quantile is not None
    if not config.training.shuffle or privacy.accounting == "vector" or releases > 1:
        return 0
    return fewest


def _mechanism(name: str) -> str | Mechanism:
    """A name the harmonizer knows, or somebody's own mechanism at scale 1."""
    return name if name == "auto" or name in BUILT_IN else own_mechanism(name)


def nothing_claimed(config: Config) -> str | None:
    """Why a run with this configuration claims no privacy; None where it claims some."""
    if not config.privacy.enabled:
        return "privacy is turned off"
    if config.privacy.randomness == "seeded":
        return "noise and sampling are seeded, for tests only"
    return None
