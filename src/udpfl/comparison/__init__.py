"""Comparisons: a grid of settings, every cell run with several seeds, side by side.

`compare` runs what is missing and reads the rest; every run has a folder and a ledger of its own.
"""

from udpfl.comparison.outcome import Comparison, Row, SeedRun
from udpfl.comparison.running import ComparisonInterrupted, compare

__all__ = ["Comparison", "ComparisonInterrupted", "Row", "SeedRun", "compare"]
