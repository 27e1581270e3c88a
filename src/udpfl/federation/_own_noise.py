"""Methods that bring noise of their own, and what they may be asked for.

Their noise is not calibrated here, so no budget is promised for it. It is charged like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from udpfl.algorithms import Algorithm, OwnNoise, Target
from udpfl.config import Config, PrivacyConfig
from udpfl.errors import InvalidInput
from udpfl.mechanisms import BUILT_IN, Randomiser


def own_noise(
    config: Config, algorithm: Algorithm, sizes: Sequence[int], dimension: int
) -> OwnNoise | None:
    """The method's own noise for clients of these declared sizes and a model of this dimension;
    None where it brings none."""
    privacy = config.privacy
    if not privacy.enabled:
        return None
    target = Target(
        _one(privacy.epsilon), _one(privacy.delta), _one(privacy.clip), min(sizes), dimension
    )
    noise = algorithm.own_noise(target)
    if noise is not None:
        _check(privacy, config.training.algorithm, noise)
    return noise


def _one(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value


def _check(privacy: PrivacyConfig, name: str, noise: OwnNoise) -> None:
    """Refuse settings that the method's noise would not follow."""
    for key in ("epsilon", "delta", "clip"):
        value = getattr(privacy, key)
        if isinstance(value, list) and len(set(value)) > 1:
            raise InvalidInput(
                f"privacy.{key}", f"{name} needs one value for all clients, got {value!r}"
            )
    mechanisms = privacy.mechanism if isinstance(privacy.mechanism, list) else [privacy.mechanism]
    named, norm = [own for own in mechanisms if own != "auto"], "l2"
    if isinstance(noise.up, Randomiser):
        norm = noise.up.norm
        if named:
            raise InvalidInput(
                "privacy.mechanism",
                f'{name} adds no noise, it answers by randomised response: set "auto"',
            )
    kinds = [BUILT_IN.get(own) for own in named]
    if not all(kind is not None and kind.is_isotropic for kind in kinds):
        raise InvalidInput("privacy.mechanism", f'{name} adds Gaussian noise: set "gaussian"')
    wants = {
        "norm": norm, "unit": "client", "accounting": "vector", "pace": "uniform",
        "harmonize": "budget",
    }  # fmt: skip
    for key, wanted in wants.items():
        if (given := getattr(privacy, key)) != wanted:
            raise InvalidInput(f"privacy.{key}", f'{name} needs "{wanted}", got {given!r}')
