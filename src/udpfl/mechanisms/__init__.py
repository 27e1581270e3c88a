"""Noise mechanisms, and randomised response. All are immutable and need only numpy and scipy."""

from udpfl.mechanisms.base import Family, Mechanism, PlotStyle, Rank, ShapeSearch
from udpfl.mechanisms.gaussian import Gaussian
from udpfl.mechanisms.laplace import Laplace
from udpfl.mechanisms.r2dp import R2dp
from udpfl.mechanisms.radial import Radial
from udpfl.mechanisms.randomiser import CoordinateResponse, DirectionResponse, Randomiser
from udpfl.mechanisms.staircase import Staircase
from udpfl.mechanisms.staircase_l1 import StaircaseL1
from udpfl.mechanisms.tabulated import Tabulated

BUILT_IN: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        Gaussian,
        Laplace,
        Staircase,
        StaircaseL1,
        R2dp,
    )
}

__all__ = [
    "BUILT_IN",
    "CoordinateResponse",
    "DirectionResponse",
    "Family",
    "Gaussian",
    "Laplace",
    "Mechanism",
    "PlotStyle",
    "R2dp",
    "Radial",
    "Randomiser",
    "Rank",
    "ShapeSearch",
    "Staircase",
    "StaircaseL1",
    "Tabulated",
]
