"""Noise that is matched to a reference Gaussian: to which one, and what is said of it.

The budget of a client stays what its account is held to. Matched noise that would cost more is
refused where it is calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.config import PrivacyConfig, per_client
from udpfl.federation.plan import ReleasePlan
from udpfl.harmonizer import Matched, Setting, least_reference
from udpfl.mechanisms import Mechanism


def references_of(privacy: PrivacyConfig, clients: int) -> list[float | None]:
    """The configured reference of each client; None where its budget decides it."""
    given = privacy.reference
    return [None] * clients if given is None else [*per_client(given, clients)]


def with_reference(privacy: PrivacyConfig, setting: Setting, given: float | None) -> Setting:
    """The setting with its reference: the given one, or the smallest that keeps the budget."""
    if privacy.harmonize == "budget":
        return setting
    return replace(setting, reference=least_reference(setting) if given is None else given)


@lru_cache(maxsize=64)
def matched_in(setting: Setting, mechanism: Mechanism, unclaimed: str | None) -> Matched | None:
    """What the noise was matched to, if it was, and what the releases of the setting cost.

    `unclaimed` is why a run claims nothing: then it states no costs.
    """
    if setting.reference is None:
        return None
    if unclaimed:
        none = PrivacyStatement.none(unclaimed)
        return Matched(setting.reference, none, none)
    return Matched.of(mechanism, setting)


def match_notes(plans: Sequence[ReleasePlan]) -> tuple[str, ...]:
    """What a statement says of matched noise."""
    matched = [plan.matched for plan in plans if plan.matched is not None]
    if not matched:
        return ()
    multiplier = _between([f"{own.reference:.4g}" for own in matched])
    costs = [_between([shown(own.own.epsilon) for own in matched]),
             _between([shown(own.other.epsilon) for own in matched])]  # fmt: skip
    if any(own.own.kind == "nominal" for own in matched):
        proved = [_between([shown(own.own.vector_epsilon) for own in matched]),
                  _between([shown(own.other.vector_epsilon) for own in matched])]  # fmt: skip
        return (
            f"matched in one coordinate to a Gaussian of noise multiplier {multiplier}, which says "
            "nothing of the whole gradient; by Rényi divergences the planned releases of a client "
            f"nominally cost ε = {costs[0]}, and ε = {costs[1]} with that Gaussian, where ε = "
            f"{proved[0]} and ε = {proved[1]} are guaranteed",
        )
    return (
        "matched: at no Rényi order does a release leak more than with a Gaussian of noise "
        f"multiplier {multiplier}; both accounted at whole Rényi orders, as any noise can be, the "
        f"planned releases of a client cost ε = {costs[0]}, and ε = {costs[1]} with that Gaussian "
        "(of which other accountants show a smaller ε)",
    )


def _between(values: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys([min(values, key=float), max(values, key=float)]))
