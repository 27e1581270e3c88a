"""Membership inference: was this record in the training data? One file for each attack."""

from udpfl.attacks.membership.statistics import Cap, Scores

__all__ = ["Cap", "Scores"]
