"""Claimed epsilon beside what an adversary could prove."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from udpfl.audit.verdict import Verdict

_HELD, _BROKEN = "#1f77b4", "#c0392b"


def audit_figure(verdicts: Sequence[Verdict], path: Path, audited: str) -> None:
    """One row for each verdict: a mark for the claim, a bar up to the bound.

    `audited` is the title: what the claims are about, such as one release.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    size = (8.4, 1.3 + 0.46 * len(verdicts))
    finite = (value for v in verdicts for value in (v.proved, v.epsilon) if math.isfinite(value))
    end_of_axis = 1.45 * max(finite, default=1.0)
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    for row, verdict in enumerate(verdicts):
        colour, hatch = (_BROKEN, "///") if verdict.refuted else (_HELD, None)
        axes.barh(
            row, min(verdict.proved, end_of_axis), 0.55, color=colour, alpha=0.75, hatch=hatch
        )
        axes.plot([verdict.epsilon] * 2, [row - 0.38, row + 0.38], color="black", linewidth=2.5)
        if verdict.estimate is not None:
            axes.plot(verdict.estimate, row, "D", color="black", markersize=4)
        words = "refuted" if verdict.refuted else "not refuted"
        end = (
            verdict.epsilon if math.isinf(verdict.proved) else max(verdict.proved, verdict.epsilon)
        )
        axes.annotate(
            f"{words}: ε ≥ {verdict.proved:.2g}",
            (end, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(verdicts)), [v.claim for v in verdicts], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, end_of_axis)
    axes.set_xlabel("ε: claimed (line), proved by the adversary (bar), Gaussian estimate (diamond)")
    axes.set_title(audited, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
