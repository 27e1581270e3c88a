"""The ServerApp: the server half of a run, with the sites as its clients."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.accounting.statement import shown
from udpfl.config import load
from udpfl.deploy._flower import FlowerTransport
from udpfl.deploy._journal import JOURNAL
from udpfl.deploy.serving import run_federation
from udpfl.deploy.settings import Federation
from udpfl.errors import MissingExtra, UdpflError
from udpfl.federation.observers import Observer
from udpfl.federation.single_server import ServedRun
from udpfl.live.figures import quality_of
from udpfl.report import write_report
from udpfl.runs.folder import RunFolder

try:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    raise MissingExtra("flwr", "flower") from None

if TYPE_CHECKING:
    from torch import nn


class NothingTrained(UdpflError):
    """A run has ended in which no site answered a round."""


log = logging.getLogger(__name__)


def server_app(file: str | Path, model: nn.Module | None = None) -> ServerApp:
    """The app of a server, for `server_app.py` of a Flower app.

    The run's configuration (`flwr run -c`) may set `resume`, the folder of a run to go on with,
    `out`, the folder of a new one, and `set`, such as "training.rounds=5 seed=1".

    Args:
        file: The federation's TOML file.
        model: A network of your own; else the one that the file names.

    Returns:
        It runs the server half of the federation in the file.

    Example:
        >>> from udpfl.deploy import server_app
        >>> app = server_app("federation.toml")
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        said = {key: str(context.run_config.get(key) or "") for key in ("resume", "out", "set")}
        federation = Federation.read(file, shlex.split(said["set"]))
        _show_log()
        resume = said["resume"] or None
        served = run_federation(
            federation,
            FlowerTransport(grid, federation.deploy.poll_every),
            out=said["out"] or None,
            resume=resume,
            model=model,
            observers=[RoundLog(rounds_of(federation, resume))],
        )
        report(served)

    return app


def rounds_of(federation: Federation, resume: str | Path | None) -> int:
    """How many rounds a run has; one that goes on has its own settings.

    Raises:
        InvalidInput: There is no run to go on with.
    """
    if resume is None:
        return federation.config.training.rounds
    return load(RunFolder.open(Path(resume)).config).training.rounds


class RoundLog(Observer):
    """A line in the log for every round."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def on_round(self, row: dict[str, Any]) -> None:
        """What the round came to."""
        measured = f", {quality_of(row)}" if row.get("loss") is not None else ""
        epsilon = row.get("epsilon") or {}
        spent = f", ε up to {shown(epsilon['max'])} as reported" if epsilon else ""
        log.info(
            "round %d of %d: %d answers%s%s, %.1f s",
            *(row["round"], self._rounds, row["participants"], measured, spent, row["seconds"]),
        )


def report(served: ServedRun) -> None:
    """Log what a run has come to, and write its page.

    Raises:
        NothingTrained: No round has had an answer: there is no model.
    """
    for site, statement in served.clients.items():
        log.info("%s: %s", site, statement.short)
    if served.stopped:
        log.warning("%s", served.stopped)
    folder = served.folder.path
    if not served.metrics:
        raise NothingTrained(
            f"nothing was trained: no site has answered a round, and {folder} has no model; "
            f"the lines above and {folder / JOURNAL} say why"
        )
    try:
        write_report([folder], folder / "report.html")
    except Exception as error:  # whatever is wrong with the page, the run is safe on disk
        log.warning("report.html was not written: %s", error)
    log.info("model, metrics and report are in %s", folder)


def _show_log() -> None:
    """Flower shows what is logged under its own name."""
    own, flowers = logging.getLogger("udpfl"), logging.getLogger("flwr")
    own.setLevel(logging.INFO)
    for handler in flowers.handlers:
        if handler not in own.handlers:
            own.addHandler(handler)
