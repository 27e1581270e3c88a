"""What every tracker does alike: names for the figures, and never in the way of the training."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.accounting.statement import Kind
from udpfl.errors import MissingExtra
from udpfl.federation.observers import Follower
from udpfl.runs.files import read_identity

if TYPE_CHECKING:
    from udpfl.config import Config
    from udpfl.federation import Run

log = logging.getLogger(__name__)

_TEST = ("accuracy", "loss", "mae", "mse")
_ROUND = ("participants", "refused", "bytes_up", "bytes_down", "seconds", "learning_rate")
_PRIVATE = "simulation_only/"
_WEAKER: dict[Kind, str] = {
    "nominal": "nominal: not a privacy guarantee for every client",
    "none": "not private: by the ledger, which has the reason",
}


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """A round's line of metrics as named numbers; the name of an epsilon says what it is worth.

    privacy/epsilon_guarantee   the largest of all clients (_median and _min beside it)
    privacy/epsilon_nominal     the same by scalar accounting, which guarantees nothing
    simulation_only/...         computed from private data: not for anyone outside a simulation
    """
    named = {f"test/{name}": row.get(name) for name in _TEST}
    named |= {f"round/{name}": row.get(name) for name in _ROUND}
    spreads = [(row.get("privacy"), row.get("epsilon"))]
    spreads.append(("guarantee", row.get("guaranteed_epsilon")))  # beside a nominal one
    for kind, spread in spreads:
        for which, value in (spread or {}).items():
            ending = "" if which == "max" else f"_{which}"
            named[f"privacy/epsilon_{kind}{ending}"] = value
    for name, value in row.get("simulation_only", {}).items():
        named[f"{_PRIVATE}{name}"] = value
    return {name: float(value) for name, value in named.items() if value is not None}


def imported(module: str, package: str) -> Any:
    """A module that the extra `track` brings."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(package, "track") from None


class Tracker(Follower):
    """An observer that writes figures down elsewhere.

    Its subclasses only write. Whatever goes wrong there (a full disk, a server that is away) is
    said once, and from then on the tracker keeps still: no run is lost to its own record.

    A record says from its first moment what its figures are worth, because many a run never ends.
    Figures from private data without noise are sent only where `_keeps_private` allows it.
    """

    name: str
    _keeps_private = False

    def __init__(self) -> None:
        self._sent: tuple[int, dict[str, float]] = (0, {})
        self._kind: Kind = "none"
        self._failed = False

    @abstractmethod
    def _begin(self, config: Config, folder: Path, stamp: str) -> None:
        """Start a record, or go on with the one of this run folder, stamped either way."""

    @abstractmethod
    def _stamp(self, round_: int, stamp: str) -> None:
        """Replace what the record says about privacy."""

    @abstractmethod
    def _write(self, round_: int, values: dict[str, float]) -> None:
        """Add the figures of a round."""

    @abstractmethod
    def _finish(self, run: Run) -> None:
        """Add the privacy statement, and close the record."""

    def on_start(self, config: Config, folder: Path) -> None:
        """Begin the record."""
        self._sent, self._failed = (0, {}), False  # a tracker may follow several runs
        self._safely(self._start, config, folder)

    def _start(self, config: Config, folder: Path) -> None:
        claim = read_identity(folder).privacy
        self._kind = claim.kind
        self._begin(config, folder, str(claim))

    def on_round(self, row: dict[str, Any]) -> None:
        """Write the round's figures; first of all that they are worth less than was planned."""
        kind: Kind = row.get("privacy", self._kind)
        if kind != self._kind and kind in _WEAKER and self._kind != "none":
            self._kind = kind
            self._safely(self._stamp, row["round"], _WEAKER[kind])
        self._sent = row["round"], self._figures(row)
        self._safely(self._write, *self._sent)

    def _figures(self, row: Mapping[str, Any]) -> dict[str, float]:
        return {
            name: value
            for name, value in figures(row).items()
            if self._keeps_private or not name.startswith(_PRIVATE)
        }

    def on_end(self, run: Run) -> None:
        """Write what a run that ended early was evaluated to, and the privacy statement."""
        if run.metrics:
            last = run.metrics[-1]
            round_, sent = self._sent
            known = sent if round_ == last["round"] else {}
            missing = {k: v for k, v in self._figures(last).items() if round_ and k not in known}
            if missing:
                self._safely(self._write, last["round"], missing)
        self._safely(self._finish, run)

    def _safely(self, step: Callable[..., None], *what: Any) -> None:
        if self._failed:
            return
        try:
            step(*what)
        except Exception as error:
            self._failed = True
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            log.warning("%s failed (%s); the training continues without it", self.name, reason)
