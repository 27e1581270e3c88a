"""What a run comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.notebook import card
from udpfl.config import Config
from udpfl.ledger.ledger import Ledger
from udpfl.runs.targets import Reached, Target


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    """Where everything is kept."""
    config: Config
    """The settings, with every default."""
    model: nn.Module
    """The user's own architecture with the trained weights."""
    privacy: PrivacyStatement
    """The largest spending of any client."""
    clients: Mapping[str, PrivacyStatement]
    """What each client has spent, by its name."""
    metrics: Sequence[Mapping[str, Any]]
    """One line for every round."""
    ledger_path: Path
    """The file with every charge."""
    seconds: float
    """How long it took, earlier parts of a resumed run included."""
    stopped: str | None = None
    """Why it ended before its last round; None where it did not."""
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published figures on the same test records, to compare with."""
    ledger_is_new: bool = False
    """Whether there was no ledger of that name before."""

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self._quality()}, {self.privacy.short}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows: list[tuple[str, object]] = [
            ("model", f"{self.config.model.name}, {self.config.training.algorithm}"),
            ("result", self._quality()),
            ("privacy", self.privacy.short),
            ("rounds", f"{len(self.metrics)} of {self.config.training.rounds}"),
            ("clients", len(self.clients)),
            ("time", f"{self.seconds:,.1f} s"),
            *([("ended early", self.stopped)] if self.stopped else []),
            ("report", self.report),
        ]
        return card(f"Run {self.folder.name}", self.privacy.kind, rows)

    def _quality(self) -> str:
        """The figure that says how good the model is."""
        if self.accuracy is not None:
            return f"accuracy {100 * self.accuracy:.1f} %"
        rmse = self._last("rmse")
        return "nothing measured" if rmse is None else f"RMSE {rmse:.4g}"

    @cached_property
    def ledger(self) -> Ledger:
        """Every client's account, to look at."""
        return Ledger(self.ledger_path, read_only=True)

    @property
    def report(self) -> Path:
        """The page about this run, for people."""
        return self.folder / "report.html"

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the final model; None for regression."""
        return self._last("accuracy")

    @property
    def loss(self) -> float | None:
        """Test loss of the final model."""
        return self._last("loss")

    @property
    def target(self) -> Target | None:
        """The figure that the configuration names; None where it names none."""
        return Target.of(self.config)

    @property
    def reached(self) -> Reached | None:
        """What it took to reach the target; None where it was not reached."""
        return None if self.target is None else self.target.first_reached(self.metrics)

    def _last(self, name: str) -> float | None:
        found = (row[name] for row in reversed(self.metrics) if row.get(name) is not None)
        return next(found, None)

    def outcome(self) -> dict[str, Any]:
        """What came of it, apart from privacy."""
        errors = {name: self._last(name) for name in ("mae", "mse", "rmse")}
        return {
            "accuracy": self.accuracy,
            "loss": self.loss,
            **{name: value for name, value in errors.items() if value is not None},
            **self._about_target(),
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
        }

    def _about_target(self) -> dict[str, Any]:
        if self.target is None:
            return {}
        return {
            "target": self.target.to_dict(),
            "reached": None if self.reached is None else self.reached.to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """What `udpfl run --json` prints."""
        return {
            **self.outcome(),
            "privacy": self.privacy.to_dict(),
            "statement": str(self.privacy),
            "run": str(self.folder),
        }
