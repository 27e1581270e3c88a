"""Small encoders, trained in a second."""

from __future__ import annotations

from udpfl.features import Recipe, Stage

STAGES = (Stage(8, 5, 2, 4, 6), Stage(8, 3, 1, 0, 5))
TOY = Recipe("spectra", 40, stages=STAGES, patches=800)
