"""When a run reached the figure that its configuration names, and what that took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from udpfl.config import Config
from udpfl.config.section import Metric


@dataclass(frozen=True)
class Reached:
    """What all rounds took, up to the first evaluated one whose model had reached the target."""

    round: int
    """The first is 1."""
    bytes_up: int
    """What clients had sent by then."""
    bytes_down: int
    """What the server had sent to all of them."""
    seconds: float
    """How long those rounds took."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        sent = f"{size_of(self.bytes_up)} up, {size_of(self.bytes_down)} down"
        return f"round {self.round} ({sent}, {self.seconds:,.1f} s)"


@dataclass(frozen=True)
class Target:
    """A metric, and the value that it has to reach: at least for accuracy, at most for errors.

    Example:
        >>> from udpfl.config import load
        >>> from udpfl.runs.targets import Target
        >>> target = Target.of(load({"training": {"target": {"accuracy": 0.9}}}))
        >>> rows = [{"round": 5, "accuracy": 0.8}, {"round": 10, "accuracy": 0.9}]
        >>> target.first_reached(rows).round
        10
    """

    metric: Metric
    value: float

    @classmethod
    def of(cls, config: Config) -> Target | None:
        """What `training.target` says; None where it is not set."""
        goal = config.training.target
        return None if goal is None else cls(*next(iter(goal.items())))

    def is_reached(self, row: Mapping[str, Any]) -> bool:
        """Whether the model of a round was evaluated and good enough."""
        value = row.get(self.metric)
        if not isinstance(value, int | float):  # not evaluated, or a model that diverged
            return False
        return value >= self.value if self.metric == "accuracy" else value <= self.value

    def first_reached(self, rows: Iterable[Mapping[str, Any]]) -> Reached | None:
        """The first round that had reached it, with all that came before; None without one."""
        up = down = 0
        seconds = 0.0
        for row in rows:
            up, down = up + (row.get("bytes_up") or 0), down + (row.get("bytes_down") or 0)
            seconds += row.get("seconds") or 0.0
            if self.is_reached(row):
                return Reached(int(row["round"]), up, down, round(seconds, 4))
        return None

    def to_dict(self) -> dict[str, float]:
        """As the configuration has it."""
        return {self.metric: self.value}

    def __str__(self) -> str:
        name = self.metric if self.metric in ("accuracy", "loss") else self.metric.upper()
        return f"{name} {self.value:g}"


def size_of(count: float) -> str:
    """A number of bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:g} bytes"
