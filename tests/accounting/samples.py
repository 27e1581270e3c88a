"""Noises and sampled releases that several tests account for."""

from __future__ import annotations

import dp_accounting

from tests.conftest import Logistic
from udpfl import (
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Release,
    Repeated,
    Sensitivity,
    Staircase,
)

NOISES = [Gaussian(1.2), Laplace(1.1), Staircase(0.9, 1.0), Staircase(0.4, 0.3, 1.0), Logistic(0.8)]


def sampled(noise, steps, rate, dimension=1, norm="l2"):
    release = Release(noise, Sensitivity(1.0, norm, dimension))
    return Repeated(PoissonSampled(rate, release), steps)


def library_event(std, steps, rate):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(std))
    return dp_accounting.SelfComposedDpEvent(event, steps)


def gaussian(std):
    return Release(Gaussian(std), Sensitivity(1.0, "l2"))


STEP = PoissonSampled(0.02, gaussian(1.1))
PAST = Repeated(STEP, 200)
TENTH = PureDP(0.1)
