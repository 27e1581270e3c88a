"""`udpfl.plan`: from a budget to a ranked table of noises, in one call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from udpfl.accounting import Accountant, Accounting, Norm, PrivacyStatement, Sensitivity
from udpfl.errors import InvalidInput, Unsupported
from udpfl.harmonizer import Choice, Rank, Setting, choose
from udpfl.mechanisms import BUILT_IN, Mechanism


@dataclass(frozen=True)
class PlanRow:
    """One mechanism: its noise and what that guarantees, or the error that rules it out."""

    mechanism: str
    rank: int | None
    noise: Mechanism | None
    statement: PrivacyStatement | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf", missing ones null."""
        row: dict[str, Any] = dict.fromkeys(
            ("parameters", "noise_std", "mean_abs", "epsilon", "delta", "kind", "vector_epsilon",
             "accountant", "unit", "neighbours")
        )  # fmt: skip
        if self.noise is not None and self.statement is not None:
            row |= {k: v for k, v in self.statement.to_dict().items() if k in row}
            row["parameters"] = {k: float(v) for k, v in self.noise.parameters.items()}
            row["noise_std"], row["mean_abs"] = self.noise.noise_std, self.noise.mean_abs
            extra = {"why": self.why}
        else:
            extra = {"error": self.why}
        finite = {k: "inf" if v == math.inf else v for k, v in row.items()}
        return {"mechanism": self.mechanism, "rank": self.rank, **finite, **extra}


@dataclass(frozen=True)
class Plan(Sequence[PlanRow]):
    """Rows in rank order, impossible mechanisms last."""

    rows: tuple[PlanRow, ...]
    setting: Setting

    @property
    def best(self) -> PlanRow:
        """The first row."""
        return self.rows[0]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[PlanRow]:
        return iter(self.rows)

    def to_list(self) -> list[dict[str, Any]]:
        """The rows as plain data, ready for JSON."""
        return [row.to_dict() for row in self.rows]


def plan(
    mechanism: str | Mechanism = "auto",
    *,
    epsilon: float,
    steps: int,
    delta: float = 1e-5,
    sampling_rate: float = 1.0,
    clip: float = 1.0,
    norm: Norm = "l2",
    dimension: int | None = None,
    accounting: Accounting = "vector",
    accountant: Accountant = "best",
    rank: Rank = "l2",
) -> Plan:
    """The smallest noise per mechanism that keeps (epsilon, delta) over `steps` releases.

    `mechanism` is gaussian, laplace, staircase, "all" (the whole ranking), "auto" (its first row),
    or a mechanism of your own. Raises `InvalidInput` for values that make no sense, and
    `Unsupported` where a mechanism asked for by name cannot do it.
    """
    names: tuple[str | Mechanism, ...]
    if isinstance(mechanism, Mechanism):
        names = (mechanism,)
    elif mechanism in ("auto", "all"):
        names = tuple(BUILT_IN)
    elif mechanism in BUILT_IN:
        names = (mechanism,)
    else:
        options = ", ".join([*BUILT_IN, "auto", "all"])
        raise InvalidInput("mechanism", f"must be one of {options}, got {mechanism!r}")
    sensitivity = Sensitivity(clip, norm, dimension)
    setting = Setting(
        epsilon, delta, steps, sensitivity, sampling_rate, "record", accountant, accounting
    )
    if names != ("gaussian",) or norm == "linf":
        _ = sensitivity.coordinates  # raises where the dimension is needed and missing
    choices = choose(setting, names, rank)
    if choices[0].calibrated is None and mechanism != "all":
        raise Unsupported(choices[0].why)
    if mechanism == "auto":
        choices = choices[:1]
    return Plan(tuple(_row(i, choice) for i, choice in enumerate(choices, 1)), setting)


def _row(place: int, choice: Choice) -> PlanRow:
    found = choice.calibrated
    if found is None:
        return PlanRow(choice.name, None, None, None, choice.why)
    return PlanRow(choice.name, place, found.mechanism, found.statement, choice.why)
