"""Releases that are charged and computed a second time."""

from __future__ import annotations

from udpfl import Gaussian, Laplace, PoissonSampled, Release, Sensitivity, Staircase

ONE = Sensitivity(1.0, "l2", 1)
GAUSSIAN = PoissonSampled(0.02, Release(Gaussian(1.1), Sensitivity(1.0)))
LAPLACE = PoissonSampled(0.05, Release(Laplace(2.0), Sensitivity(1.0, "l2", 50)))
STAIRCASE = PoissonSampled(0.05, Release(Staircase(0.9, 1.0), ONE))
