"""Methods that bring noise of their own, and what they may be asked for.

Their noise is not calibrated here, so no budget is promised for it. It is charged like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from udpfl.algorithms import Algorithm, OwnNoise, Target
from udpfl.config import Config, PrivacyConfig
from udpfl.config.section import refusal
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
    if noise is not None and (
        problems := list(_problems(privacy, config.training.algorithm, noise))
    ):
        raise refusal(problems)
    return noise


def _one(value: float | list[float]) -> float:
    return value[0] if isinstance(value, list) else value


def _problems(privacy: PrivacyConfig, name: str, noise: OwnNoise) -> Iterator[tuple[str, str]]:
    """Settings that the method's noise would not follow."""
    for key in ("epsilon", "delta", "clip"):
        value = getattr(privacy, key)
        if isinstance(value, list) and len(set(value)) > 1:
            yield f"privacy.{key}", f"{name} needs one value for all clients, got {value!r}"
    mechanisms = privacy.mechanism if isinstance(privacy.mechanism, list) else [privacy.mechanism]
    named, norm = [own for own in mechanisms if own != "auto"], "l2"
    kinds = [BUILT_IN.get(own) for own in named]
    if isinstance(noise.up, Randomiser):
        norm = noise.up.norm
        if named:
            yield (
                "privacy.mechanism",
                f'{name} adds no noise, it answers by randomised response: set "auto"',
            )
    elif not all(kind is not None and kind.is_isotropic for kind in kinds):
        yield "privacy.mechanism", f'{name} adds Gaussian noise: set "gaussian"'
    wants = {
        "norm": norm, "unit": "client", "accounting": "vector", "pace": "uniform",
        "harmonize": "budget",
    }  # fmt: skip
    for key, wanted in wants.items():
        if (given := getattr(privacy, key)) != wanted:
            yield f"privacy.{key}", f'{name} needs "{wanted}", got {given!r}'
