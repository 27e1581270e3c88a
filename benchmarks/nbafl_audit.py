"""NbAFL's own claim for one record, put to the test with one record.

    python benchmarks/nbafl_audit.py [--trials 1000000] [--out results/nbafl.json]

A client trains logistic regression on all of its digits in every step, so its training has no
randomness and its first upload is Gaussian noise around one of two vectors: the clipped parameters
with a record, or with another one in its place (which is how the authors define neighbours). Both
vectors come out of a real run of ours whose noise is taken away. NbAFL claims (epsilon, delta) for
all uploads together; here only the first one is seen. Where even that refutes the claim, it is
false. The clip is the norm that parameters have without it.

Writes the verdicts as JSON, and a table into docs/methods.md.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from machine import RESULTS, ROOT, described, write
from numpy.typing import NDArray
from tables import filled, rows

from udpfl.accounting import Release, Sensitivity, account
from udpfl.algorithms import ClientMessage
from udpfl.audit import Releases, audit_releases
from udpfl.data import load
from udpfl.engine import BallClipper, MechanismNoiser, Noiseless, Unclipped
from udpfl.federation import Observer, Protection, ReleasePlan, run
from udpfl.federation.protection import planned_protection
from udpfl.mechanisms import Gaussian

DOCUMENT = ROOT / "docs" / "methods.md"
RECORDS, EPSILON, DELTA = 400, 1.0, 1e-5
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Worlds:
    """A client's records, with one in the first place or another."""

    name: str
    one: Arrays
    other: Arrays


def worlds(records: int = RECORDS) -> list[Worlds]:
    """From a client as it comes to one that was made up; all but "100 times" are pictures."""
    data = load("mnist5k", seed=0, directory=None, test=0.2, options={})
    chosen = np.random.default_rng(0).choice(len(data.train), records, replace=False)
    x, y = data.train.inputs[chosen], data.train.targets[chosen]
    relabelled, bright, blank = y.copy(), x.copy(), np.zeros_like(x)
    relabelled[0] = (y[0] + 1) % 10
    bright[0] *= 100
    blank[0], balanced = x[0], np.arange(records) % 10
    balanced[0], swapped = 3, balanced.copy()
    swapped[0] = 8
    return [
        Worlds("another label", (x, y), (x, relabelled)),
        Worlds("100 times as bright", (x, y), (bright, y)),
        Worlds("another label, all others blank", (blank, balanced), (blank, swapped)),
    ]


class _First(Observer):
    """Keeps the first upload."""

    sent: NDArray[np.float64] | None = None

    def on_message(self, message: ClientMessage) -> None:
        if self.sent is None:
            self.sent = message.tensors["parameters"].double().numpy()


def upload(records: Arrays, rounds: int, clip: float | None) -> tuple[NDArray[np.float64], float]:
    """A client's first upload before its noise, and the standard deviation that NbAFL adds.

    Without a clip the parameters are not clipped either.
    """
    noise: list[float] = []

    def bare(plans: Sequence[ReleasePlan]) -> Any:
        clipper, noiser = planned_protection(plans)
        assert isinstance(clipper, BallClipper)
        assert isinstance(noiser, MechanismNoiser)
        noise.append(noiser.mechanisms[0].noise_std)
        return (clipper if clip else Unclipped()), Noiseless()

    protection: Protection = bare
    first = _First()
    with tempfile.TemporaryDirectory() as folder:
        run(
            {"data": {"declared_sizes": len(records[1])}, "threads": 1},
            out=f"{folder}/run",
            data=[records],
            test=records,
            model="logistic",
            protection=protection,
            observers=[first],
            privacy={"unit": "client", "epsilon": EPSILON, "delta": DELTA, "clip": clip or 1.0},
            training={
                "algorithm": "nbafl",
                "rounds": rounds,
                "local_steps": 20,
                "sampling_rate": 1.0,
                "learning_rate": 0.1,
                "evaluate_every": rounds,
            },
        )
    assert first.sent is not None
    return first.sent, noise[0]


def verdict(case: Worlds, rounds: int, trials: int) -> dict[str, Any]:
    """What the first upload says about the claim, and about what we state of that upload."""
    clip = float(np.linalg.norm(upload(case.one, 1, None)[0]))
    (one, std), (other, _) = (upload(arrays, rounds, clip) for arrays in (case.one, case.other))
    moved, granted = float(np.linalg.norm(other - one)), 2 * clip / len(case.one[1])
    # Gaussian noise is alike in all directions, so the one in which the two differ tells it all.
    releases = Releases(Gaussian(std), np.array([moved]))
    ours = account(Release(Gaussian(std), Sensitivity(2 * clip), "client"), DELTA).epsilon
    found, control = (audit_releases(releases, e, DELTA, trials=trials) for e in (EPSILON, ours))
    return {
        "record": case.name,
        "records": len(case.one[1]),
        "rounds": rounds,
        "clip": clip,
        "noise_std": std,
        "moved": moved,
        "granted": granted,
        "times": moved / granted,
        "claimed": EPSILON,
        "delta": DELTA,
        "trials": trials,
        "proved": found.proved,
        "refuted": found.refuted,
        "if_gaussian": "inf" if found.estimate == math.inf else found.estimate,
        "stated": ours,
        "stated_refuted": control.refuted,
    }


def table(report: dict[str, Any]) -> str:
    """One line for each record."""
    head = ["one record becomes", "rounds", "moves by", "NbAFL grants", "claimed ε", "proved ε ≥",
            "", "our ε of that upload"]  # fmt: skip
    body = [
        [
            one["record"],
            str(one["rounds"]),
            f"{one['moved']:.3g}",
            f"{one['granted']:.3g}",
            f"{one['claimed']:g}",
            f"{one['proved']:.2f}",
            "**refuted**" if one["refuted"] else "not refuted",
            f"{one['stated']:.4g}",
        ]
        for one in report["verdicts"]
    ]
    return (
        rows(head, body) + f"\n{report['verdicts'][0]['records']} records, δ = {DELTA:g}, "
        f"{report['verdicts'][0]['trials']:,} trials in either world, 95 % certain. "
        "(`python benchmarks/nbafl_audit.py`; every number is in "
        "[results/nbafl.json](../results/nbafl.json).)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "nbafl.json")
    options = parser.parse_args()
    found = [verdict(case, rounds, options.trials) for rounds in (1, 10) for case in worlds()]
    report = {"machine": described(1), "verdicts": found}
    write(options.out, report)
    print(table(report))
    if options.out == RESULTS / "nbafl.json":
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), "nbafl", table(report)))


if __name__ == "__main__":
    main()
