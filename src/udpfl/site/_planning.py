"""The noise of a run at a site: planned by the site from its policy.

The policy says how many releases there may be in all, and the budget has to hold that many. So a
run that has fewer of them gets the noise of all of them, and leaves the rest of the budget to later
runs. A server can ask for more noise than that, not for less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Event, Release, release_count
from udpfl.accounting.filter import Filter
from udpfl.accounting.randomised import Randomised
from udpfl.config import load
from udpfl.errors import Infeasible, Refused, Unsupported
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.federation.single_client import ClientSetup
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.spending import accounted, totals_of
from udpfl.mechanisms import Gaussian
from udpfl.mechanisms.randomiser import BUILT_IN as RANDOMISERS
from udpfl.sensitivity import Sensitivity
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
            raise Refused("the budget of this site is for one run, which has begun already")
        set_ = None if account is None else ledger.budget(account)
        own, past = policy.budget.budget, setup.past()
        if set_ is not None and set_.epsilon < own.epsilon:
            own = set_  # raised in the ledger, with a reason, or not at all
        left = policy.releases.in_all - (0 if held is None else release_count(held))
        return cls(left, own, past and replace(past, budget=own), held)


def plan_run(policy: Policy, setup: ClientSetup, allowance: Allowance, asks: bool) -> ReleasePlan:
    """The plan of a run that the policy allows; `asks` is whether the server named an epsilon.

    Raises:
        Refused: The run has too many releases, too little noise, or noise of another kind.
        UdpflError: No noise can be planned for these settings.
    """
    rounds, each = sum(map(len, setup.asked)), releases_per_round(setup)
    limits = policy.releases
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
    within = allowance.releases // each
    plan = _least_noise(limits, setup, lambda own: _planned(own, allowance, within, asks))
    check_release(limits, setup, plan)
    if setup.config.privacy.accounting == "vector" and not _is_enough(plan, allowance, within):
        raise Refused(
            f"privacy.epsilon: with the noise that the run asks for, the {within * each} releases "
            "that the policy leaves would cost more than the budget has left: leave it out, and "
            "the site plans its own noise"
        )
    least = _least_plan(policy, setup, allowance, plan, each)
    if _noise_std(least) <= (1 + 1e-9) * _noise_std(plan):
        return plan
    if asks or setup.config.privacy.harmonize != "budget":
        raise Refused("the run asks for less noise than the site gives a first run")
    return replace(least, rounds=plan.rounds)


def require_room(
    policy: Policy, setup: ClientSetup, ledger: Ledger, run: str, plan: ReleasePlan
) -> None:
    """Refuse to go on with a run whose reservation was freed, where others took its releases."""
    account = ledger.account_of(setup.name, setup.holding.block)
    if account is None or run in ledger.unfinished(account):
        return
    answered, held = ledger.rounds_charged(run, account), ledger.held(account)
    rest = plan.rest_event(answered)
    wanted = 0 if rest is None else release_count(rest)
    taken = 0 if held is None else release_count(held)
    if wanted + taken > policy.releases.in_all:
        raise Refused(
            f"the rest of the run has {wanted} releases, and the policy leaves "
            f"{policy.releases.in_all - taken} of {policy.releases.in_all}: what it had reserved "
            "was freed"
        )


def releases_per_round(setup: ClientSetup) -> int:
    """Releases of one round, however much noise they have."""
    training, privacy, method = setup.config.training, setup.config.privacy, setup.algorithm
    if setup.brings_noise:  # a message of a randomiser has many answers
        event = setup.plans()[0].round_event(1)
        return 0 if event is None else release_count(event)
    draft = ReleasePlan(
        name=setup.name,
        declared_size=1,
        rate=training.sampling_rate,
        rounds=1,
        steps=training.steps,
        release=Release(Gaussian(1.0), Sensitivity(1.0, dimension=1), privacy.unit),
        trainings=method.trainings,
        batches=training.batches,
        epochs=training.passes,
    )
    event = draft.round_event(1)
    assert event is not None
    return release_count(event) + (privacy.clip_quantile is not None)


def _planned(setup: ClientSetup, allowance: Allowance, within: int, asks: bool) -> ReleasePlan:
    """The plan with the noise that the server asks for, or with the site's own."""
    privacy, past = setup.config.privacy, allowance.past
    is_alike = privacy.pace == "uniform" and privacy.harmonize == "budget"
    if asks or not is_alike or privacy.accounting != "vector":
        unspent = {} if past is None else {setup.name: replace(past, held=None)}
        return setup.plans(pasts=unspent)[0]
    # All releases that are left keep all of the budget that is left.
    pasts = {} if past is None else {setup.name: past}
    (plan,) = setup.plans([(0,)] * within, pasts)
    return replace(plan, rounds=sum(map(len, setup.asked)))


def _least_noise(limits: AllowedReleases, setup: ClientSetup, planned: Planned) -> ReleasePlan:
    """The plan with the mechanism of the run, or with the best one that the policy allows."""
    wanted = setup.config.privacy.mechanism
    if wanted != "auto" or setup.brings_noise:
        return planned(setup)
    found, reasons = [], []
    for name in limits.mechanisms:
        if name in RANDOMISERS:  # for methods that bring them along
            continue
        config = load(setup.config, {"privacy": {"mechanism": name}})
        try:
            found.append(planned(replace(setup, config=config)))
        except (Infeasible, Unsupported) as error:
            reasons.append(str(error))
    if not found:
        raise Refused(f"no noise of the policy keeps the budget: {'; '.join(reasons)}")
    return min(found, key=_noise_std)


def _noise_std(plan: ReleasePlan) -> float:
    """Of a release; nothing for randomised response, which has none."""
    return plan.release.mechanism.noise_std if isinstance(plan.release, Release) else 0.0


def _least_plan(
    policy: Policy, setup: ClientSetup, allowance: Allowance, plan: ReleasePlan, each: int
) -> ReleasePlan:
    """What the site would plan for the first of all its runs: no later one has less noise.

    Runs that cost little leave more of the budget than of the releases. That is not for a server to
    spend on a single one.
    """
    privacy = setup.config.privacy
    if allowance.held is None or not isinstance(plan.release, Release):
        return plan
    if privacy.pace != "uniform" or privacy.accounting != "vector":
        return plan
    config = load(
        setup.config,
        {
            "privacy": {
                "mechanism": plan.release.mechanism.name,
                "harmonize": "budget",
                "reference": None,
                "epsilon": policy.budget.epsilon,
            }
        },
    )
    fresh = replace(
        allowance,
        releases=policy.releases.in_all,
        held=None,
        past=allowance.past and replace(allowance.past, held=None),
    )
    return _planned(replace(setup, config=config), fresh, fresh.releases // each, asks=False)


def check_release(limits: AllowedReleases, setup: ClientSetup, plan: ReleasePlan) -> None:
    """Hold what was planned against the limits: settings may mean more than they say."""
    release, event = plan.release, plan.round_event(1)
    if release is None or event is None:
        raise Refused("the run has no privacy")
    noise = release.randomiser if isinstance(release, Randomised) else release.mechanism
    if setup.brings_noise and noise.name not in limits.mechanisms:
        raise Refused(
            f"training.algorithm: {setup.algorithm.name} hides records by {noise.name!r}, which is "
            "not noise of the policy"
        )
    named = noise.name, f"{type(noise).__module__}:{type(noise).__qualname__}"
    if not setup.brings_noise and not set(named) & set(limits.mechanisms):
        raise Refused(f"the run was begun with {noise.name} noise, which is not of the policy")
    if release.sensitivity.bound > limits.clip:
        raise Refused(
            f"the sensitivity of a release is {release.sensitivity.bound:g}, above "
            f"{limits.clip:g}, the largest of the policy"
        )
    if release_count(event) > limits.per_round:
        raise Refused(
            f"a round has {release_count(event)} releases, more than the {limits.per_round} of "
            "the policy"
        )


def _is_enough(plan: ReleasePlan, allowance: Allowance, within: int) -> bool:
    """Whether the budget holds as many rounds with this noise as the policy leaves.

    Guarantee: where it does, all runs that the policy allows can have noise like this one, so no
    run uses up what was meant for others.
    """
    rest = plan.rest_event()
    assert rest is not None
    held = allowance.held
    totals = Counter() if held is None else totals_of([held])
    for text, count in totals_of([rest]).items():
        totals[text] += -(-count * within // plan.rounds)
    stated = accounted(totals, allowance.budget.delta, allowance.rule)
    return stated.kind == "guarantee" and stated.epsilon <= allowance.budget.epsilon
