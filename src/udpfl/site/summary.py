"""What a site allows and what it has spent, in words, for whoever looks after it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from udpfl.accounting.events import release_count
from udpfl.accounting.statement import shown

if TYPE_CHECKING:
    from udpfl.site.gate import Gate


class Left(NamedTuple):
    """What a site has spent, and what is left to later runs."""

    spent: str
    epsilon: str
    releases: int


def left_of(gate: Gate) -> Left:
    """By the ledger of the site; what runs have reserved counts as released, not as spent."""
    policy, ledger = gate.policy, gate.ledger
    budget, in_all = policy.budget.epsilon, policy.releases.in_all
    account = ledger.account_of(policy.name, policy.data.block or "")
    if account is None:
        return Left("nothing", f"{budget:g}", in_all)
    known, held = ledger.budget(account), ledger.held(account)
    epsilon = budget if known is None else min(budget, known.epsilon)
    releases = max(0, in_all - (0 if held is None else release_count(held)))
    stated = ledger.statement(account)
    if stated.kind == "none":
        return Left(str(stated), "0", releases)
    left = max(0.0, epsilon - stated.epsilon)
    return Left(f"ε = {shown(stated.epsilon)}", f"{math.floor(left * 1000) / 1000:g}", releases)


def summary_of(gate: Gate) -> dict[str, str]:
    """Everything that `udpfl site check` prints, by its heading."""
    own, facts, left = gate.policy, gate.describe(), left_of(gate)
    shape, runs = "×".join(map(str, facts.input_shape)), own.budget.runs
    sealed = "every message is sealed for it" if own.shuffler.public_key else "none"
    person = f", all rows of one {own.data.person!r} are one unit" if own.data.person else ""
    part = "" if own.data.part is None else f", part {own.data.part + 1} of {own.data.parts}"
    rows = {
        "site": own.name,
        "records": f"{own.data.name}{part}, inputs {shape}, {facts.outputs} outputs, "
        f"declared {own.data.declared_size:,}",
        "unit": f"{', '.join(own.releases.units)}{person}",
        "budget": f"ε = {own.budget.epsilon:g} at δ = {own.budget.delta:g}, "
        f"{runs} run{'s' if runs == 'many' else ''}",
        "spent": f"{left.spent}; ε = {left.epsilon} is left",
        "releases": f"{own.releases.in_all:,} in all, {left.releases:,} of them left, "
        f"{own.releases.per_round:,} in a round, "
        f"clip up to {own.releases.clip:g} ({', '.join(own.releases.norms)}), sampling rate "
        f"{own.releases.sampling_rate:g}",
        "noise": ", ".join(own.releases.mechanisms),
        "models": ", ".join(model.name for model in own.server.models),
        "methods": ", ".join(own.server.methods),
        "cohort": f"a round asks at least {own.server.minimum_cohort} sites",
        "shuffler": sealed,
        "ledger": f"{own.ledger}, {facts.head.number:,} charges",
    }
    warnings = []
    if own.server.seeded_noise:
        warnings.append("noise from a seed is allowed: what is released is not private")
    if own.server.adds_noise:
        warnings.append("a server is trusted to add the noise to what this site sends")
    if runs == "one" and gate.ledger.account_of(own.name, own.data.block or "") is not None:
        warnings.append("the budget is for one run, which has begun: any other is refused")
    return rows | ({"note": "; ".join(warnings)} if warnings else {})
