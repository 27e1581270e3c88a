"""Noise of your own, compared with two built-in ones and trained with:

python examples/own_mechanism.py
"""

from dataclasses import dataclass

import numpy as np

import udpfl


@dataclass(frozen=True)
class Secant(udpfl.Tabulated):
    """Density 1/cosh: round like Gaussian noise in the middle, with tails like Laplace noise."""

    name = "secant"

    def shape(self, x):
        """The log-density at scale 1 up to a constant, for x >= 0; written to bear large x."""
        return -x - np.log1p(np.exp(-2 * x))


if __name__ == "__main__":
    setting = {"epsilon": 4, "steps": 30, "sampling_rate": 0.2, "dimension": 22}
    for noise in ("laplace", Secant(1.0), "gaussian"):
        row = udpfl.plan(noise, **setting, accountant="rdp").best
        print(f"{row.mechanism:<10} standard deviation {row.noise.noise_std:.3f}")

    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=2000)
    inputs = rng.normal(size=(2000, 10)) + 0.6 * labels[:, None]
    result = udpfl.run(
        # A size that may be known; without it the statement would say what it assumes.
        {"data": {"clients": 4, "declared_sizes": 400}},
        model="logistic",
        data=(inputs, labels),
        # By place, not as an object: the ledger has to find the class again.
        privacy={"mechanism": "own_mechanism:Secant", "epsilon": 4, "accountant": "rdp"},
        training={"rounds": 15, "sampling_rate": 0.2, "learning_rate": 0.5},
    )
    print(f"accuracy {result.accuracy:.3f}, every client: {result.privacy}")
