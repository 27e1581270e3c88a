"""The learning rate of every round, a public function of the configuration."""

from __future__ import annotations

import math

from udpfl.config import TrainingConfig


def learning_rate(training: TrainingConfig, round_: int) -> float:
    """The clients' learning rate in round 1, 2, ..., rounds."""
    if round_ <= training.warmup:
        return training.learning_rate * round_ / (training.warmup + 1)
    left = training.rounds - training.warmup
    progress = (round_ - 1 - training.warmup) / max(1, left - 1)
    low = training.final_learning_rate
    share = {
        "constant": 1.0,
        "linear": 1 - (1 - low) * progress,
        "cosine": low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2,
    }[training.schedule]
    # A step of exactly zero would spend budget on a release that is thrown away.
    return training.learning_rate * max(share, 1e-3)
