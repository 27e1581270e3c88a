"""Which stages a run has, and in which order.

Whoever adds noise to what others may not see comes first. The shuffler takes names off, so whoever
needs them comes before it. Stages of one's own see what the server may see: released messages, in
the order and under the names that the shuffler left. Noise on the way down comes last.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from udpfl.accounting.pacing import noise_levels
from udpfl.accounting.randomised import Randomised
from udpfl.config import Config
from udpfl.engine import Keyed, MechanismNoiser, PrivateStream
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.stages import BUILT_IN, Stage
from udpfl.federation.stages.adaptive_clip import AdaptiveClip
from udpfl.federation.stages.budget_pull import BudgetPull
from udpfl.federation.stages.downlink_noise import DownlinkNoise
from udpfl.federation.stages.plateau import Plateau, loss_by, step_length
from udpfl.federation.stages.shuffler import Shuffler
from udpfl.federation.stages.trusted_server import SumNoise
from udpfl.mechanisms import Mechanism
from udpfl.plugins import resolve


@dataclass(frozen=True)
class StageParts:
    """What stages need beside the configuration."""

    key: str
    """What stands for the run in the keys of random numbers."""
    stream: PrivateStream
    """Where random numbers come from."""
    public_loss: Callable[[Tensor], float]
    """That of a model on the public records."""
    trusted: Stage | None = None
    """The trusted server, where the method has one."""
    towards: Sequence[str] = ()
    """The clients with the largest budget, towards whose model others are pulled."""
    down: Mechanism | None = None
    """Noise on the way down, where the method brings some."""


def build_stages(config: Config, parts: StageParts) -> list[Stage]:
    """The stages of a run, in their order."""
    privacy, training = config.privacy, config.training
    stages: list[Stage] = []
    if parts.trusted is not None:
        stages.append(parts.trusted)
    if training.penalty:
        stages.append(BudgetPull(list(parts.towards)))
    if privacy.clip_quantile is not None:
        stages.append(AdaptiveClip(privacy.clip_quantile, privacy.clip_rate))
    if levels := noise_levels(privacy.pace, privacy.pace_ratio):
        follow = step_length if privacy.pace_follows == "update" else loss_by(parts.public_loss)
        stages.append(Plateau(levels, privacy.pace_patience, follow))
    if training.shuffle:
        stages.append(
            Shuffler(parts.key, parts.stream if isinstance(parts.stream, Keyed) else None)
        )
    stages += own_stages(config)
    if parts.down is not None:
        stages.append(DownlinkNoise(parts.key, parts.stream, MechanismNoiser([parts.down])))
    return stages


def sum_noise(plans: Sequence[ReleasePlan]) -> SumNoise:
    """The noise of a trusted server, for which all clients must have planned alike."""
    alike = {(plan.release, plan.factors, plan.participation) for plan in plans}
    if len(alike) > 1:
        raise Unsupported(
            "a trusted server adds one noise to the sum of all updates: budgets, mechanisms and "
            "clips must be the same for all clients"
        )
    ((release, factors, participation),) = alike
    assert not isinstance(release, Randomised), "a trusted server adds noise to a sum"
    return SumNoise(release, len(plans), participation, factors)


def own_stages(config: Config) -> list[Stage]:
    """The stages that `training.stages` names, as they are before a first round.

    Guarantee: a named instance is copied, so that nothing it keeps of one run reaches another one,
    whose clients were not charged for it.
    """
    return [_own_stage(name) for name in config.training.stages]


def _own_stage(name: str) -> Stage:
    found = resolve("stages", name, BUILT_IN)
    if isinstance(found, type) and issubclass(found, Stage):
        try:
            found = found()
        except TypeError as error:
            raise InvalidInput(
                "training.stages",
                f"{name!r} cannot be built without arguments: {error}; name an instance instead",
            ) from None
    if not isinstance(found, Stage):
        raise InvalidInput("training.stages", f"{name!r} is not a Stage: {found!r}")
    return copy.deepcopy(found)
