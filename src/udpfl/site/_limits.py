"""What the plan of a run is held against, when the run begins and whenever it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.accounting.events import Release, Repeated, release_count
from udpfl.accounting.randomised import Randomised
from udpfl.errors import Refused
from udpfl.federation.admission import released_in
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.single_client import ClientSetup
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.spending import accounted, totals_of
from udpfl.mechanisms import BUILT_IN, Gaussian, Mechanism, Randomiser
from udpfl.mechanisms.randomiser import BUILT_IN as RANDOMISERS
from udpfl.plugins import own_mechanism
from udpfl.sensitivity import Sensitivity
from udpfl.site.policy import AllowedReleases, Policy


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


def rounds_of(releases: int, each: int) -> int:
    """How many rounds noise is planned for, so that it is enough for all of these releases."""
    return -(-releases // each)


def noise_names(limits: AllowedReleases) -> tuple[str, ...]:
    """The noise of the policy, without randomised response, which methods bring along."""
    return tuple(name for name in limits.mechanisms if name not in RANDOMISERS)


def load_noise(limits: AllowedReleases) -> None:
    """Import the policy's own noise, so that ledgers and plans that have it can be read.

    Raises:
        InvalidInput: It cannot be imported, or is no noise.
    """
    for name in noise_names(limits):
        if name not in BUILT_IN:
            own_mechanism(name)


def is_allowed(noise: Mechanism | Randomiser, names: Sequence[str]) -> bool:
    """Whether these names of a policy lead to noise of this kind."""
    if noise.name in names:
        return True
    own = [name for name in names if name not in BUILT_IN and name not in RANDOMISERS]
    return any(type(noise) is type(own_mechanism(name)) for name in own)


def check_release(policy: Policy, setup: ClientSetup, plan: ReleasePlan) -> None:
    """Hold what was planned against the limits: settings may mean more than they say."""
    limits, release, event = policy.releases, plan.release, plan.round_event(1)
    if release is None or event is None:
        raise Refused("the run has no privacy")
    noise = release.randomiser if isinstance(release, Randomised) else release.mechanism
    if setup.brings_noise and noise.name not in limits.mechanisms:
        raise Refused(
            f"training.algorithm: {setup.algorithm.name} hides records by {noise.name!r}, which is "
            "not noise of the policy"
        )
    if not setup.brings_noise and not is_allowed(noise, limits.mechanisms):
        raise Refused(f"the run was begun with {noise.name} noise, which is not of the policy")
    if release.sensitivity.bound > limits.clip:
        raise Refused(
            f"the sensitivity of a release is {release.sensitivity.bound:g}, above "
            f"{limits.clip:g}, the largest of the policy"
        )
    if release_count(event) > limits.per_round:
        raise Refused(
            f"a round of the plan has {release_count(event)} releases, more than the "
            f"{limits.per_round} of the policy"
        )
    _check_count(policy, setup, plan)


def _check_count(policy: Policy, setup: ClientSetup, plan: ReleasePlan) -> None:
    """The same for what is asked once a round where the clip adapts: it is a release as well.

    Guarantee: the counts of as many rounds as the policy allows keep their share of the budget, so
    none has less noise than in a first run.
    """
    privacy, event = setup.config.privacy, plan.count_event
    if plan.count is None or event is None:
        return
    if not is_allowed(plan.count.mechanism, policy.releases.mechanisms):
        raise Refused(
            f"privacy.clip_quantile: the run was begun with {plan.count.mechanism.name} noise on "
            "its counts, which is not of the policy"
        )
    if privacy.accounting != "vector":
        return
    rounds = rounds_of(policy.releases.in_all, releases_per_round(setup))
    own, share = policy.budget.budget, privacy.clip_share
    cost = accounted(totals_of([Repeated(event, rounds)]), share * own.delta)
    if not cost.epsilon <= share * own.epsilon * (1 + 1e-9):
        raise Refused(
            "privacy.clip_quantile: the counts of the run have less noise than the site gives a "
            "first run; leave out privacy.epsilon, or begin a new run"
        )


def require_room(
    policy: Policy, setup: ClientSetup, ledger: Ledger, run: str, plan: ReleasePlan
) -> None:
    """Refuse to go on with a run where the policy does not leave what it has still to release.

    Others may have taken that where its reservation was freed, or the policy allows less by now.
    """
    account = ledger.account_of(setup.name, setup.holding.block)
    if account is None:
        return
    rest = plan.rest_event(ledger.rounds_charged(run, account), released_in(ledger, account, run))
    reserved = ledger.reserved(account)
    others = [event for name, event in reserved.items() if name != run]
    charged = ledger.spent(account)
    taken = sum(map(release_count, [*others, *([] if charged is None else [charged])]))
    wanted, in_all = 0 if rest is None else release_count(rest), policy.releases.in_all
    if wanted and wanted + taken > in_all:
        freed = "" if run in reserved else ": what it had reserved was freed"
        raise Refused(
            f"the rest of the run has {wanted} releases, and the policy leaves "
            f"{max(0, in_all - taken)} of {in_all}{freed}"
        )
