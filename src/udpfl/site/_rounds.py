"""What a request of one round may hold, by the run that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from udpfl.algorithms import Tensors
from udpfl.engine.clipping import LARGEST, SMALLEST
from udpfl.errors import Refused
from udpfl.federation.request import CLIP, PACE, PULL_TARGET
from udpfl.federation.single_client import ClientSetup
from udpfl.site._checks import cohort_reasons
from udpfl.site.policy import Policy
from udpfl.site.wire import SiteRequest

_LEARNING_RATES = (1e-10, 1e10)
"""Others are nothing, or not finite, in float32."""
_LEAST_CLIP = 1e-4
"""How far a clip that adapts may go below the planned one; the noise goes with it."""


@dataclass(frozen=True)
class Rounds:
    """The rounds of a run at one site."""

    policy: Policy
    setup: ClientSetup
    pulls: bool
    """Whether clients are pulled towards the model of the largest budget."""

    def check(self, request: SiteRequest) -> None:
        """Refuse a request whose round, steps or tensors are not those of the run."""
        if reasons := list(self._reasons(request)):
            raise Refused("; ".join(reasons))

    def _reasons(self, request: SiteRequest) -> Iterator[str]:
        yield from cohort_reasons(self.policy, request)
        rounds = self.setup.asked
        if request.round > len(rounds) or not rounds[request.round - 1]:
            yield f"round {request.round} does not ask this site, by the schedule of the run"
        least, most = _LEARNING_RATES
        if not least <= request.learning_rate <= most:
            yield (
                f"a learning rate must lie between {least:g} and {most:g}, got "
                f"{request.learning_rate:g}"
            )
        yield from self._step_reasons(request)
        yield from self._tensor_reasons(request)

    def _step_reasons(self, request: SiteRequest) -> Iterator[str]:
        method, most = self.setup.algorithm, self.policy.releases.per_round
        if method.shares_steps != (request.steps is not None):
            yield "the number of local steps is not for this method, or is missing"
        elif request.steps is not None and request.steps * method.trainings > most:
            yield (
                f"{request.steps} local steps are more than the {most} releases that the policy "
                "allows in a round"
            )

    def _tensor_reasons(self, request: SiteRequest) -> Iterator[str]:
        """Tensors that are missing, too many, of another shape or type, or not finite."""
        allowed = self._needed | self._optional
        for name in sorted(self._needed.keys() - request.tensors.keys()):
            yield f"the tensor {name!r} is missing"
        for name, tensor in request.tensors.items():
            if (sample := allowed.get(name)) is None:
                yield f"the tensor {name[:40]!r} is not one of this run"
            elif tensor.shape != sample.shape or tensor.dtype != sample.dtype:
                yield (
                    f"the tensor {name!r} is {_described(tensor)}, not {_described(sample)}: this "
                    "is another model"
                )
            elif not torch.isfinite(tensor).all():
                yield f"the tensor {name!r} is not finite"
            elif name == CLIP and not self._least_clip <= float(tensor) <= self._most_clip:
                yield (
                    f"the clip is {float(tensor):g} times the planned one, and the policy allows "
                    f"{self._least_clip:g} to {self._most_clip:g} times that"
                )

    @property
    def _clip(self) -> float:
        clip = self.setup.config.privacy.clip
        assert isinstance(clip, float)
        return clip

    @property
    def _least_clip(self) -> float:
        """How far a clip that adapts may go below the planned one, so that it can be computed."""
        return max(_LEAST_CLIP, SMALLEST * (1 + 1e-9) / self._clip)

    @property
    def _most_clip(self) -> float:
        """How far a clip that adapts may go above the planned one."""
        return min(self.policy.releases.clip, LARGEST * (1 - 1e-9)) / self._clip

    @cached_property
    def _needed(self) -> Tensors:
        """What the method sends in every round."""
        method = self.setup.algorithm
        return method.broadcast(method.init(self.setup.start))

    @cached_property
    def _optional(self) -> Tensors:
        """What the stages of the run send, from their second round on."""
        privacy, found = self.setup.config.privacy, {}
        if privacy.clip_quantile is not None:
            found[CLIP] = torch.ones(())
        if privacy.pace == "plateau":
            found[PACE] = torch.ones((), dtype=torch.float64)
        if self.pulls:
            found[PULL_TARGET] = self.setup.start
        return found


def _described(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
