"""Four claims and what an adversary makes of them: the figure and the table of docs/audit.md.

    python benchmarks/audit_arms.py [--trials 200000] [--out results/audit.json]

Writes the verdicts as JSON, a table beside it, and docs/images/audit.png; the table also into
docs/audit.md, unless --out names another file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from machine import RESULTS, ROOT, described
from tables import filled, rows

from udpfl import Sensitivity, plan
from udpfl.audit import Releases, Verdict, audit_releases, canary
from udpfl.audit.figure import audit_figure
from udpfl.audit.power import LessNoise

DIMENSION = 1000
ARMS = [  # mechanism, epsilon, delta, accounting, canary, share of the trials
    ("gaussian", 1.0, 1e-5, "vector", "dense", 1.0),
    ("gaussian", 4.0, 1e-5, "vector", "dense", 1.0),
    ("gaussian", 8.0, 1e-5, "vector", "dense", 1.0),
    ("laplace", 1.0, 0.0, "scalar", "dirac", 1.0),
    ("laplace", 1.0, 0.0, "scalar", "dense", 1.0),
    ("laplace", 4.73, 1e-5, "vector", "dense", 1.0),
    ("staircase", 1.0, 0.0, "scalar", "dirac", 1.0),
    ("staircase", 1.0, 0.0, "scalar", "dense", 0.1),
]


def arm(
    mechanism: str, epsilon: float, delta: float, accounting: str, bird: str, trials: int
) -> Verdict:
    """Noise as `udpfl plan` calibrates it, and the verdict on the claim that comes with it."""
    row = plan(
        mechanism,
        epsilon=epsilon,
        delta=delta,
        steps=1,
        dimension=DIMENSION,
        accounting=accounting,  # type: ignore[arg-type]
    ).best
    assert row.noise is not None
    assert row.statement is not None
    shift = canary(bird, Sensitivity(1.0, "l2", DIMENSION))
    return audit_releases(
        Releases(row.noise, shift),
        row.statement.epsilon,
        delta,
        claim=f"{mechanism}, {accounting}, {bird} canary",
        trials=trials,
    )


def table(verdicts: list[Verdict]) -> str:
    """One line for each claim."""
    head = [
        "noise, accounting, canary",
        "claimed ε",
        "δ",
        "proved ε ≥",
        "would have caught noise x",
        "",
    ]
    body = [
        [
            verdict.claim,
            f"{verdict.epsilon:.3g}",
            f"{verdict.delta:g}",
            f"{verdict.proved:.2f}"
            + ("" if verdict.estimate is None else f" ({verdict.estimate:.2f} if Gaussian)"),
            _caught(verdict),
            "**refuted**" if verdict.refuted else "not refuted",
        ]
        for verdict in verdicts
    ]
    return rows(head, body)


def _caught(verdict: Verdict) -> str:
    caught = verdict.caught
    assert isinstance(caught, LessNoise)
    if caught.scale is None:
        return "none"
    return "1 (as it is)" if caught.scale == 1 else f"{caught.scale:g} (ε = {caught.epsilon:.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200_000, help="in each world")
    parser.add_argument("--out", type=Path, default=RESULTS / "audit.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "images" / "audit.png")
    options = parser.parse_args()
    verdicts = []
    for *what, share in ARMS:
        verdicts.append(arm(*what, trials=int(share * options.trials)))
        print(f"{verdicts[-1].claim}: {verdicts[-1]}", flush=True)
    report = {
        "machine": described(torch.get_num_threads()),
        "dimension": DIMENSION,
        "trials": options.trials,
        "verdicts": [verdict.to_dict() for verdict in verdicts],
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(table(verdicts))
    audit_figure(verdicts, options.figure, f"One release of {DIMENSION:,} coordinates")
    if options.out == RESULTS / "audit.json":
        page = ROOT / "docs" / "audit.md"
        page.write_text(filled(page.read_text(), "audit", table(verdicts)))
    print(table(verdicts))


if __name__ == "__main__":
    main()
