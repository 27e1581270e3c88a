"""Attacks on finished runs: what somebody learns of the records from what was let out.

Names are imported when they are first used: `list` and completion need no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from udpfl.attacks.base import AttackKind
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.attacks.base import (
        Attack,
        Attacked,
        AttackResult,
        Curve,
        Figure,
        Findings,
        Picture,
    )
    from udpfl.attacks.pool import Pool
    from udpfl.attacks.shadows import ShadowModels, shadow_models
    from udpfl.attacks.target import Target


class Entry(NamedTuple):
    """Where an attack is found, and what it finds out.

    Example:
        >>> from udpfl.attacks import BUILT_IN
        >>> BUILT_IN["lira"].kind
        'membership'
    """

    place: str
    """Module and class below `udpfl.attacks`, as "membership.lira:Lira"."""
    kind: AttackKind
    """What it finds out about records."""


BUILT_IN: dict[str, Entry] = {
    "attribute": Entry("attribute:AttributeInference", "attribute"),
    "canary": Entry("membership.canary:Canary", "membership"),
    "decoder": Entry("reconstruction.decoder:DecoderAttack", "reconstruction"),
    "dlg": Entry("reconstruction.dlg:Dlg", "reconstruction"),
    "inverting-gradients": Entry(
        "reconstruction.inverting_gradients:InvertingGradients", "reconstruction"
    ),
    "lira": Entry("membership.lira:Lira", "membership"),
    "loss": Entry("membership.loss:LossThreshold", "membership"),
    "mi-face": Entry("reconstruction.mi_face:MiFace", "reconstruction"),
    "rmia": Entry("membership.rmia:Rmia", "membership"),
    "server-view": Entry("membership.server_view:ServerView", "membership"),
    "shokri": Entry("membership.shokri:Shokri", "membership"),
}
"""Every attack by its name; names are written out, so that completion can read them."""

_HOMES = {
    "Attack": "base",
    "AttackResult": "base",
    "Attacked": "base",
    "Curve": "base",
    "Figure": "base",
    "Findings": "base",
    "Picture": "base",
    "Pool": "pool",
    "ShadowModels": "shadows",
    "Target": "target",
    "shadow_models": "shadows",
}

__all__ = [
    "BUILT_IN",
    "Attack",
    "AttackKind",
    "AttackResult",
    "Attacked",
    "Curve",
    "Entry",
    "Figure",
    "Findings",
    "Picture",
    "Pool",
    "ShadowModels",
    "Target",
    "attack_class",
    "build",
    "shadow_models",
]


def attack_class(name: str) -> type[Attack[Any]]:
    """The class of an attack.

    Args:
        name: One of `BUILT_IN`.

    Returns:
        The subclass of `Attack`.

    Raises:
        InvalidInput: There is no attack of this name.

    Example:
        >>> from udpfl.attacks import attack_class
        >>> attack_class("lira").kind
        'membership'
    """
    if name not in BUILT_IN:
        raise InvalidInput("NAME", f"there is no {name!r}; the attacks are: {', '.join(BUILT_IN)}")
    module, _, attribute = BUILT_IN[name].place.partition(":")
    found: type[Attack[Any]] = getattr(import_module(f"udpfl.attacks.{module}"), attribute)
    return found


def build(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Attack[Any]:
    """An attack with its options.

    Args:
        name: One of `BUILT_IN`.
        options: What is to differ from the defaults.
        seed: Of the choices that the attack makes at random.

    Returns:
        The attack, to be run against a `Target`.

    Raises:
        InvalidInput: There is no attack of this name, or an option is not known or out of range.

    Example:
        >>> from udpfl.attacks import build
        >>> build("lira", {"shadows": 8}).options.shadows
        8
    """
    return attack_class(name)(options, seed)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
