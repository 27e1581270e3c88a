"""Where the repository is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
IMPORTS = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""PYTHONPATH of a process that is to run this very code, and not one that is installed."""
