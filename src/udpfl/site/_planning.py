"""The noise of a run at a site: planned by the site from its policy.

The policy says how many releases there may be in all, and the budget has to hold that many. So a
run that has fewer of them gets the noise of all of them, and leaves the rest of the budget to later
runs. A server can ask for more noise than that, not for less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, Release, release_count
from udpfl.accounting.filter import Filter
from udpfl.accounting.pacing import noise_factors
from udpfl.config import PrivacyConfig, load
from udpfl.errors import Infeasible, Refused, Unsupported
from udpfl.federation.plan import CountNoise, Past, ReleasePlan
from udpfl.federation.single_client import ClientSetup
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.spending import accounted, totals_of
from udpfl.site._limits import check_release, noise_names, releases_per_round, rounds_of
from udpfl.site.policy import AllowedReleases, Policy

Planned = Callable[[ClientSetup], ReleasePlan]
"""Plans the noise of a setup."""


@dataclass(frozen=True)
class Allowance:
    """What is left to a site: of its releases, and of its budget."""

    releases: int
    budget: Budget
    past: Past | None
    """What the ledger that runs share knows of the site; None where it is for one run."""
    held: Event | None
    """What was charged and is reserved."""

    @property
    def rule(self) -> Filter | None:
        """How releases are added up."""
        return None if self.past is None else self.past.rule

    @classmethod
    def of(cls, policy: Policy, setup: ClientSetup, ledger: Ledger) -> Allowance:
        """What the ledger leaves of a policy."""
        account = ledger.account_of(setup.name, setup.holding.block)
        held = None if account is None else ledger.held(account)
        if held is not None and policy.budget.runs == "one":
            raise Refused(
                "the budget of this site is for one run, which has begun already (budget.runs of "
                "its policy)"
            )
        set_ = None if account is None else ledger.budget(account)
        own, past = policy.budget.budget, setup.past()
        if set_ is not None and set_.epsilon < own.epsilon:
            own = set_  # raised in the ledger, with a reason, or not at all
        left = policy.releases.in_all - (0 if held is None else release_count(held))
        if past is not None:
            is_new = set_ is None and held is None  # its account will have orders for this budget
            rule = Filter.planned(own.epsilon, own.delta) if is_new else past.rule
            past = replace(past, budget=own, rule=rule)
        return cls(left, own, past, held)

    def of_a_first_run(self, policy: Policy) -> Allowance:
        """What there was before anything was released."""
        past = self.past and replace(self.past, held=None)
        return replace(self, releases=policy.releases.in_all, past=past, held=None)


def plan_run(policy: Policy, setup: ClientSetup, allowance: Allowance, asks: bool) -> ReleasePlan:
    """The plan of a run that the policy allows; `asks` is whether the server named an epsilon.

    Guarantee: the budget that is left holds all releases that are left with noise like this, and
    the whole budget all that the policy allows: no run uses up what was meant for others, and what
    cheap runs have left is not for a few releases with little noise.

    Raises:
        Refused: The run has too many releases, too little noise, or noise of another kind.
        UdpflError: No noise can be planned for these settings.
    """
    each = _require_releases(policy.releases, setup, allowance)
    setup = _as_planned(setup, allowance, asks)
    counts = CountNoise(rounds_of(policy.releases.in_all, each), noise_names(policy.releases))
    is_own = not asks and _has_one_noise(setup.config.privacy)

    def planned(own: ClientSetup, left: Allowance) -> ReleasePlan:
        return _planned(own, left, rounds_of(left.releases, each), counts, is_own)

    setup, plan = _least_noise(policy.releases, setup, lambda own: planned(own, allowance))
    check_release(policy, setup, plan)
    if setup.config.privacy.accounting != "vector":
        return plan
    first = allowance.of_a_first_run(policy)
    if is_own and not setup.brings_noise and not _is_enough(plan, first, each):
        plan = replace(planned(setup, first), rounds=plan.rounds)
        check_release(policy, setup, plan)
    if not _is_enough(plan, allowance, each):
        raise Refused(
            "privacy.epsilon: with the noise that the run asks for, all releases that the policy "
            "leaves would cost more than the budget has left: leave it out, and the site plans its "
            "own noise"
        )
    if not _is_enough(plan, first, each):
        raise Refused(
            "the run asks for less noise than the site gives a first run: all releases of the "
            "policy with noise like this would cost more than the budget"
        )
    return plan


def _require_releases(limits: AllowedReleases, setup: ClientSetup, allowance: Allowance) -> int:
    """Refuse more releases than the policy allows; returns those of one round."""
    rounds, each = sum(map(len, setup.asked)), releases_per_round(setup)
    if not each:
        raise Refused("the run has no privacy")
    if each > limits.per_round:
        raise Refused(
            f"a round has {each} releases, more than the {limits.per_round} of the policy"
        )
    if not rounds or rounds * each > allowance.releases:
        raise Refused(
            f"the run has {rounds * each} releases, and the policy leaves "
            f"{max(0, allowance.releases)} of {limits.in_all}"
        )
    return each


def _as_planned(setup: ClientSetup, allowance: Allowance, asks: bool) -> ClientSetup:
    """The setup that noise is planned for.

    A budget that the ledger has lowered counts. A pace that gives all rounds that ask this site the
    same noise is none.
    """
    privacy = setup.config.privacy
    changes: dict[str, Any] = {}
    factors = noise_factors(privacy.pace, privacy.pace_ratio, setup.config.training.rounds)
    own = {factors[number] for number, asked in enumerate(setup.asked) if asked and factors}
    if privacy.pace != "plateau" and len(own) < 2:
        ratio = PrivacyConfig.model_fields["pace_ratio"].default
        changes |= {"pace": "uniform", "pace_ratio": ratio}
    if not asks:
        changes |= {"epsilon": allowance.budget.epsilon}
    return replace(setup, config=load(setup.config, {"privacy": changes}))


def _has_one_noise(privacy: PrivacyConfig) -> bool:
    """Whether the site decides how much noise there is, and all releases have the same."""
    is_plain = privacy.pace == "uniform" and privacy.harmonize == "budget"
    return is_plain and privacy.accounting == "vector"


def _planned(
    setup: ClientSetup, allowance: Allowance, within: int, counts: CountNoise, is_own: bool
) -> ReleasePlan:
    """The plan with the site's own noise, or with what the server asks for."""
    past = allowance.past
    if not is_own:
        unspent = {} if past is None else {setup.name: replace(past, held=None)}
        return setup.plans(pasts=unspent, counts=counts)[0]
    # All releases that are left keep all of the budget that is left.
    pasts = {} if past is None else {setup.name: past}
    (plan,) = setup.plans([(0,)] * within, pasts, counts)
    return replace(plan, rounds=sum(map(len, setup.asked)))


def _least_noise(
    limits: AllowedReleases, setup: ClientSetup, planned: Planned
) -> tuple[ClientSetup, ReleasePlan]:
    """The plan with the mechanism of the run, or with the best one that the policy allows.

    With the setup that names the mechanism.
    """
    wanted = setup.config.privacy.mechanism
    if wanted != "auto" or setup.brings_noise:
        return setup, planned(setup)
    found, reasons = [], []
    for name in noise_names(limits):
        named = replace(setup, config=load(setup.config, {"privacy": {"mechanism": name}}))
        try:
            found.append((named, planned(named)))
        except (Infeasible, Unsupported) as error:
            reasons.append(str(error))
    if not found:
        raise Refused(f"no noise of the policy keeps the budget: {'; '.join(reasons)}")
    return min(found, key=lambda own: _noise_std(own[1]))


def _noise_std(plan: ReleasePlan) -> float:
    """Of a release; nothing for randomised response, which has none."""
    return plan.release.mechanism.noise_std if isinstance(plan.release, Release) else 0.0


def _is_enough(plan: ReleasePlan, allowance: Allowance, each: int) -> bool:
    """Whether the budget holds all releases of an allowance with noise like this.

    Whatever the noise is, a run of any rounds, with a pace, with counts, or with noise of its own:
    as a whole it is repeated until there are as many releases as there may be.
    """
    rest = plan.rest_event()
    assert rest is not None
    held, within = allowance.held, rounds_of(allowance.releases, each)
    totals = Counter() if held is None else totals_of([held])
    for text, count in totals_of([rest]).items():
        totals[text] += -(-count * within // plan.rounds)
    stated = accounted(totals, allowance.budget.delta, allowance.rule)
    return stated.kind == "guarantee" and stated.epsilon <= allowance.budget.epsilon
