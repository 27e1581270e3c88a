from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from udpfl import Tabulated

# Helpers that assert: what is compared is said where they fail, as in a test file.
pytest.register_assert_rewrite(
    "tests.data.serving",
    "tests.engine.oracle",
    "tests.federation.crash.processes",
    "tests.federation.refused",
    "tests.report.verifying",
)

settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# Whoever only asks whether a test fails (`tests/mutants`) need not know its smallest example.
settings.register_profile(
    "first failure", settings.get_profile("house"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("first failure" if "FIRST_FAILURE" in os.environ else "house")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For models so small that threads only wait for one another."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Logistic(Tabulated):
    """The README's example of a mechanism of one's own."""

    name = "logistic"

    def shape(self, x: Any) -> Any:
        return -x - 2 * np.log1p(np.exp(-x))


@dataclass(frozen=True)
class Student(Tabulated):
    """Heavy tails: three degrees of freedom."""

    name = "student"

    def shape(self, x: Any) -> Any:
        return -2 * np.log1p(x * x / 3)


@dataclass(frozen=True)
class Box(Tabulated):
    """Bounded support: no privacy at all under a shift."""

    name = "box"

    def shape(self, x: Any) -> Any:
        return np.where(x <= 1, 0.0, -np.inf)


@dataclass(frozen=True)
class TwoHumps(Tabulated):
    """Not unimodal: the density rises away from zero before it falls."""

    name = "two-humps"

    def shape(self, x: Any) -> Any:
        return np.logaddexp(-np.abs(x - 2) * 1.5, -np.abs(x + 2) * 1.5)
