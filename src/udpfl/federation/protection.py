"""The clipper and the noiser of clients: what stands between their records and their releases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from udpfl.accounting import Release
from udpfl.accounting.randomised import Randomised
from udpfl.engine import (
    BallClipper,
    Clipper,
    MechanismNoiser,
    Noiseless,
    Noiser,
    NormClipper,
    RandomisingNoiser,
    Unclipped,
)
from udpfl.federation.plan import ReleasePlan

Protection = Callable[[Sequence[ReleasePlan]], tuple[Clipper, Noiser]]
"""What stands between records and releases. An auditor hands in one of its own."""


def scale_release(plan: ReleasePlan, factor: float) -> ReleasePlan:
    """The plan with its clip and its noise multiplied by this factor."""
    if factor == 1 or not isinstance(plan.release, Release):
        return plan
    return replace(plan, release=plan.release.scaled(clip=factor))


def planned_protection(plans: Sequence[ReleasePlan]) -> tuple[Clipper, Noiser]:
    """The clipper and the noiser whose release was planned and will be charged."""
    releases = [plan.release for plan in plans]
    if all(release is None for release in releases):
        return Unclipped(), Noiseless()
    planned = [release for release in releases if release is not None]
    assert len(planned) == len(releases), "either everyone is private or no one is"
    norm = planned[0].sensitivity.norm
    bounds = [release.sensitivity.bound for release in planned]
    clipper = NormClipper(norm, bounds)
    if any(plan.diameter for plan in plans):
        clipper = BallClipper(norm, [bound / 2 for bound in bounds])
    for lane, release in enumerate(planned):
        dimension = release.sensitivity.dimension
        assert dimension is not None
        assert clipper.sensitivity(lane, dimension) == release.sensitivity
    noised = [release.mechanism for release in planned if isinstance(release, Release)]
    if noised:
        assert len(noised) == len(planned), "either everyone adds noise or no one does"
        return clipper, MechanismNoiser(noised)
    randomised = [release for release in planned if isinstance(release, Randomised)]
    return clipper, RandomisingNoiser([release.randomiser for release in randomised])
