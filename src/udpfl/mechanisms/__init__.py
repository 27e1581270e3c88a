"""Noise mechanisms. Each is one file; all are immutable and import nothing but numpy and scipy."""

from udpfl.mechanisms.base import Family, Mechanism, PlotStyle, Rank, ShapeSearch
from udpfl.mechanisms.gaussian import Gaussian
from udpfl.mechanisms.laplace import Laplace
from udpfl.mechanisms.staircase import Staircase
from udpfl.mechanisms.tabulated import Tabulated

BUILT_IN: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        Gaussian,
        Laplace,
        Staircase,
    )
}

__all__ = [
    "BUILT_IN",
    "Family",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "PlotStyle",
    "Rank",
    "ShapeSearch",
    "Staircase",
    "Tabulated",
]
