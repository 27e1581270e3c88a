"""The comparison table of the UDP-FL paper, and what its methods came to here.

The words are the paper's. What stands below each of them was measured by
`benchmarks/paper_table.py`, which writes `paper_table.json` beside this file: settings, seeds and
every single run are in there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from statistics import mean
from typing import Any, NamedTuple

from udpfl.accounting.statement import shown

TARGETS = {"digits": 0.8, "mnist": 0.9}
"""The accuracy that rounds are counted to: on the embedded digits, and on MNIST."""


class Printed(NamedTuple):
    """A row of the table, as it is printed in the paper."""

    method: str
    noise: str
    accuracy: str
    privacy: str
    convergence: str


PRINTED = (
    Printed("DP-FedAvg", "Gaussian", "High", "DP", "Slow"),
    Printed("NbAFL", "Gaussian", "Low", "DP", "Slow"),
    Printed("RDP-PFL", "Gaussian", "High", "DP", "Slow"),
    Printed("ALS-DPFL", "Gaussian", "Low", "DP", "Slow"),
    Printed("LDP-Fed", "Rand. Response", "Low", "LDP-Shuffle", "N/A"),
    Printed("CLDP-SGD", "Rand. Response", "Low", "LDP-Shuffle", "N/A"),
    Printed("LDP-FL", "Rand. Response", "Low", "LDP-Shuffle", "N/A"),
    Printed("COFEL-AVG", "Laplace", "Low", "DP", "Slow"),
    Printed("UDP-FL (Ours)", "Universal", "High", "DP", "Fast"),
)


@dataclass(frozen=True)
class Measured:
    """What one method came to here, over the seeds that were tried."""

    name: str
    """In training.algorithm; for one method with several noises, with the noise."""
    noise: str
    accuracy: dict[str, float]
    """Mean test accuracy, by data set."""
    seeds: dict[str, int]
    """How many runs that is the mean of, by data set."""
    rounds: dict[str, int]
    """Rounds of a run, by data set."""
    rounds_to_target: dict[str, float | None]
    """Mean number of rounds to the accuracy in `TARGETS`; None where a run did not get there."""
    epsilon: dict[str, float]
    """The largest that was stated, by data set: what is guaranteed for a client's total."""
    delta: float
    unit: str
    claimed: float
    """`privacy.epsilon`: a budget that was kept, or with `is_budget` false what authors claim."""
    is_budget: bool


class Row(NamedTuple):
    """A row of the paper, and what was measured for it."""

    printed: Printed
    here: tuple[Measured, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"printed": self.printed._asdict(), "here": [asdict(own) for own in self.here]}


def stored() -> dict[str, Any]:
    """The result file."""
    text = files("udpfl.cli").joinpath("paper_table.json").read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads(text)
    return report


def table(report: dict[str, Any]) -> Iterator[Row]:
    """The paper's rows in their order, with the lines of a result file that belong to them."""
    for printed in PRINTED:
        own = [cell for cell in report["cells"] if cell["row"] == printed.method]
        names = list(dict.fromkeys(cell["line"] for cell in own))
        lines = ([cell for cell in own if cell["line"] == name] for name in names)
        yield Row(printed, tuple(_measured(line) for line in lines))


def _measured(cells: Sequence[dict[str, Any]]) -> Measured:
    by_data = {
        data: found
        for data in TARGETS
        if (found := [cell for cell in cells if cell["data"] == data])
    }
    first = cells[0]
    return Measured(
        name=first["line"],
        noise=first["noise"],
        accuracy={data: mean(own["accuracy"] for own in runs) for data, runs in by_data.items()},
        seeds={data: len(runs) for data, runs in by_data.items()},
        rounds={data: runs[0]["rounds"] for data, runs in by_data.items()},
        rounds_to_target={data: _until(runs) for data, runs in by_data.items()},
        epsilon={data: max(own["epsilon"] for own in runs) for data, runs in by_data.items()},
        delta=first["delta"],
        unit=first["unit"],
        claimed=first["claimed"],
        is_budget=first["is_budget"],
    )


def _until(runs: Sequence[dict[str, Any]]) -> float | None:
    found = [own["rounds_to_target"] for own in runs]
    return None if None in found else mean(found)


def in_words(own: Measured) -> Printed:
    """A measured line under the heads of the paper's columns."""
    return Printed(
        own.name,
        own.noise,
        _each(own, lambda data: f"{own.accuracy[data]:.3f}"),
        f"{_epsilon(own)}, δ = {own.delta:g}, one {own.unit}",
        _each(own, lambda data: _rounds(own, data)),
    )


def _each(own: Measured, said: Any) -> str:
    return ", ".join(f"{data} {said(data)}" for data in own.accuracy)


def _epsilon(own: Measured) -> str:
    if own.is_budget:
        return f"ε = {own.claimed:g}"
    held = {data: shown(value) for data, value in own.epsilon.items()}
    by_data = ", ".join(f"{data} {value}" for data, value in held.items())
    values = set(held.values())
    return f"ε = {values.pop() if len(values) == 1 else by_data} (authors: {own.claimed:g})"


def _rounds(own: Measured, data: str) -> str:
    until, target = own.rounds_to_target[data], TARGETS[data]
    return f"not {target:g}" if until is None else f"{until:.0f} of {own.rounds[data]}"
