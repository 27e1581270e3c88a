"""Another noise that leaks no more than a given Gaussian."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from udpfl.accounting.accountant import account
from udpfl.accounting.statement import PrivacyStatement
from udpfl.errors import InvalidInput
from udpfl.harmonizer._reference import Reference
from udpfl.harmonizer.calibrate import calibrate
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Gaussian, Mechanism, Rank
from udpfl.mechanisms.base import positive
from udpfl.sensitivity import Sensitivity


def match(
    mechanism: str | Mechanism,
    reference: Gaussian,
    sensitivity: Sensitivity,
    rank: Rank = "l2",
) -> Mechanism:
    """The least noise whose Rényi divergence exceeds the reference's at no order from 1 to 16384.

    Both sides are worst cases over all gradients that `sensitivity` allows. What holds for one
    release holds for any number of them, sampled or not, by Rényi accounting: it only ever adds and
    mixes these divergences. It need not hold for loss distributions: docs/mathematics.md, 5.1.

    Args:
        mechanism: The kind of noise: a name, which also chooses the shape where there are several,
            or an instance whose shape is kept and whose scale is adjusted.
        reference: The Gaussian noise that may not be exceeded.
        sensitivity: Bounds the gradients; needs a dimension unless `mechanism` is Gaussian.
        rank: The error that the shape is to make small: "l2" or "l1".

    Returns:
        The matched noise.

    Raises:
        InvalidInput: `reference` is no Gaussian, the name is not known, or the dimension is
            missing.
        Infeasible: No amount of this noise leaks as little.

    Example:
        >>> from udpfl import Gaussian, Sensitivity, match
        >>> noise = match("laplace", Gaussian(5.0), Sensitivity(1.0, dimension=10))
        >>> noise.noise_std > 5.0
        True
    """
    if not isinstance(reference, Gaussian):
        raise InvalidInput("reference", f"must be a Gaussian, got {reference!r}")
    multiplier = reference.std / sensitivity.largest("l2")
    setting = Setting(math.inf, 1e-5, 1, sensitivity, accountant="rdp", reference=multiplier)
    return calibrate(mechanism, setting, rank).mechanism


@dataclass(frozen=True)
class Matched:
    """The Gaussian that a noise was matched to, and what both cost by Rényi accounting.

    Guarantee: the noise does not cost more, because Gaussians are accounted like any other noise.

    Example:
        >>> from udpfl import Laplace, Sensitivity, Setting
        >>> from udpfl.harmonizer import Matched
        >>> setting = Setting(9.0, 1e-5, 1, Sensitivity(1.0, "l2", 1), reference=2.0)
        >>> found = Matched.of(Laplace(9.0), setting)
        >>> found.own.epsilon < found.other.epsilon
        True
    """

    reference: float
    """Noise multiplier of the Gaussian: its standard deviation over the l2 sensitivity."""
    own: PrivacyStatement
    """What all releases cost."""
    other: PrivacyStatement
    """What they would cost with the Gaussian in place of the noise."""

    @classmethod
    def of(cls, mechanism: Mechanism, setting: Setting) -> Matched:
        """For the releases of a setting that has a reference."""
        reference = setting.reference
        assert reference is not None
        if setting.sensitivity.dimension is None:  # under l1 or l2 a Gaussian is alike in all
            setting = replace(setting, sensitivity=setting.sensitivity.scalar())
        alike = Reference(mechanism.noise_std) if mechanism.is_isotropic else mechanism
        own, other = (
            account(setting.event(noise), setting.delta, "rdp", setting.accounting)
            for noise in (alike, setting.reference_noise(reference))
        )
        return cls(reference, own, other)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "reference": self.reference,
            "own": self.own.to_dict(),
            "other": self.other.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Any) -> Matched:
        """The inverse of `to_dict`."""
        names = {"reference", "own", "other"}
        if not isinstance(plain, Mapping) or plain.keys() != names:
            raise InvalidInput("matched", f"must have the fields {sorted(names)}, got {plain!r}")
        reference = plain["reference"]
        positive("matched.reference", reference)
        own, other = (PrivacyStatement.from_dict(plain[name]) for name in ("own", "other"))
        return cls(reference, own, other)
