"""What a policy says to a proposal, before any record is looked at or anything is built."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from udpfl.algorithms import Algorithm
from udpfl.errors import Refused
from udpfl.ledger.ledger import Ledger
from udpfl.site.policy import Policy
from udpfl.site.settings import Proposal
from udpfl.site.wire import SiteRequest

_MOST_CLIENTS = 10_000
"""More are not a federation of sites, but a way to fill the memory of one."""
_MOST_STEPS = 10_000
"""Of a round. Where whole clients are hidden, or a sample is split into batches, steps cost no
privacy, only time."""


def check_proposal(policy: Policy, proposal: Proposal, request: SiteRequest) -> None:
    """Refuse settings that the policy does not allow, with all reasons at once."""
    if reasons := list(_reasons(policy, proposal, request)):
        raise Refused("; ".join(reasons))


def _reasons(policy: Policy, proposal: Proposal, request: SiteRequest) -> Iterator[str]:
    config = proposal.config
    privacy, training, client = config.privacy, config.training, request.client
    if not privacy.enabled:
        yield "the run has no privacy"
        return
    if config.data.clients > _MOST_CLIENTS or client >= config.data.clients:
        yield f"client {client} is not one of {config.data.clients} clients"
        return
    yield from _scale_reasons(policy, proposal)
    yield from _release_reasons(policy, proposal, client)
    yield from _budget_reasons(policy, proposal, client)
    models = [(own.name, own.options) for own in policy.server.models]
    if (config.model.name, config.model.options) not in models:
        yield f"model.name: {config.model.name!r} with these options is not a model of the policy"
    if training.algorithm not in policy.server.methods:
        yield f"training.algorithm: {training.algorithm!r} is not a method of the policy"
    if privacy.randomness == "seeded" and not policy.server.seeded_noise:
        yield "privacy.randomness: noise from a seed is not private, and the policy refuses it"
    if policy.shuffler.public_key is not None and not training.shuffle:
        yield (
            "training.shuffle: the policy seals every message for a shuffler, and this run has "
            "none, so nobody could open what the site sends"
        )
    if policy.shuffler.public_key is not None and privacy.pace == "plateau":
        yield (
            "privacy.pace: how much noise follows results depends on what each site has reserved, "
            "by which a server could mark a site, so it cannot be used with a shuffler"
        )
    yield from cohort_reasons(policy, request)


def account_problem(policy: Policy, ledger: Ledger) -> str | None:
    """Why the ledger's account cannot serve this policy: it was opened for another kind of budget.

    The kind is fixed when an account is opened, because it decides how releases are added up.
    """
    block = policy.data.block or ""
    known = [own.runs for own in ledger.find(policy.name) if own.block == block]
    wanted = policy.budget.runs
    if not known or known[0] == wanted:
        return None
    return (
        f'budget.runs is "{wanted}" in the policy, and the ledger of this site was begun for '
        f'"{known[0]}", which cannot change any more: set budget.runs = "{known[0]}" again, or '
        "charge what was spent to a new ledger, in another folder that `state` names"
    )


def cohort_reasons(policy: Policy, request: SiteRequest) -> Iterator[str]:
    """Why too few sites are asked in a round, by what the server says."""
    if request.cohort < policy.server.minimum_cohort:
        yield (
            f"the round asks {request.cohort} sites, and the policy wants at least "
            f"{policy.server.minimum_cohort}"
        )


def _scale_reasons(policy: Policy, proposal: Proposal) -> Iterator[str]:
    """What would be too much whatever it costs; looked at before a schedule is drawn."""
    training, most = proposal.config.training, policy.releases
    if training.rounds > most.in_all:
        yield (
            f"training.rounds: {training.rounds} rounds are more than the {most.in_all} releases "
            "that the policy allows in all"
        )
    is_client = proposal.config.privacy.unit == "client"
    allowed = _MOST_STEPS if is_client else most.per_round * training.batches
    if max(training.steps, training.batches) > min(allowed, _MOST_STEPS):
        yield (
            f"training.local_steps: {training.steps} steps are more than a round may have by the "
            "policy"
        )


def _release_reasons(policy: Policy, proposal: Proposal, client: int) -> Iterator[str]:
    allowed, privacy = policy.releases, proposal.config.privacy
    training = proposal.config.training
    unit = "person" if policy.data.person and privacy.unit == "record" else privacy.unit
    if unit not in allowed.units:
        yield f"privacy.unit: {unit!r} is not a unit of the policy"
    if privacy.accounting not in allowed.accounting:
        yield f"privacy.accounting: {privacy.accounting!r} is not accounting of the policy"
    if privacy.norm not in allowed.norms:
        yield f"privacy.norm: {privacy.norm!r} is not a norm of the policy"
    if (clip := proposal.own("clip", client)) > allowed.clip:
        yield f"privacy.clip: {clip:g} is above {allowed.clip:g}, the largest of the policy"
    if training.sampling_rate != allowed.sampling_rate:
        yield (
            f"training.sampling_rate: {training.sampling_rate:g} is not "
            f"{allowed.sampling_rate:g}, for which the policy plans its noise"
        )
    if privacy.pace != "uniform" and not allowed.paces:
        yield (
            f"privacy.pace: with {privacy.pace!r} some releases have less noise than the policy "
            "plans, which it does not allow"
        )
    mechanism = proposal.own("mechanism", client)
    if "mechanism" in proposal.said and mechanism not in ("auto", *allowed.mechanisms):
        yield f"privacy.mechanism: {mechanism!r} is not noise of the policy"


def _budget_reasons(policy: Policy, proposal: Proposal, client: int) -> Iterator[str]:
    """A run may ask for less than the budget, never for more."""
    if "epsilon" in proposal.said:
        asked = proposal.own("epsilon", client)
        if asked > policy.budget.epsilon:
            yield (
                f"privacy.epsilon: {asked:g} asks for less noise than the budget of "
                f"{policy.budget.epsilon:g} allows"
            )
    if "delta" in proposal.said:
        asked = proposal.own("delta", client)
        if asked != policy.budget.delta:
            yield f"privacy.delta: {asked:g} is not the {policy.budget.delta:g} of the policy"


def check_state(policy: Policy, algorithm: Algorithm, model: Tensor) -> None:
    """Refuse a method that keeps something between rounds where a shuffler hides who sends what."""
    if policy.shuffler.public_key is not None and algorithm.client_init(model):
        raise Refused(
            f"training.algorithm: {algorithm.name} keeps something from round to round, by which "
            "a server could mark a site, so it cannot be used with a shuffler"
        )


def check_method(policy: Policy, algorithm: Algorithm) -> None:
    """Refuse a method that lets a server add the noise, unless the policy trusts it with that."""
    if algorithm.trusts_server and not policy.server.adds_noise:
        raise Refused(
            f"training.algorithm: with {algorithm.name} updates leave the site without noise, "
            "which the server adds, and the policy does not trust a server with that"
        )
