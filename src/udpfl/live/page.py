"""A page in the browser that draws a run as its rounds arrive."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.config import Config
from udpfl.errors import UdpflError
from udpfl.federation.observers import Follower
from udpfl.ledger.ledger import Ledger
from udpfl.live._server import PageServer
from udpfl.runs.files import read_clients, read_identity
from udpfl.runs.ledgers import ledger_of
from udpfl.runs.schema import ClientRow

if TYPE_CHECKING:
    from udpfl.federation import Run

log = logging.getLogger(__name__)

_FAREWELL = 3.0
"""Seconds that a page which is being watched gets to fetch the end of the run."""


class LivePage(Follower):
    """Serves a page on this machine that shows accuracy, loss, privacy and budgets of a run.

    Only programs on this machine can reach it, and only with the token in its address. It is there
    while it is open as a context. When the run has ended, a page that is being watched fetches the
    last figures and stays readable in the browser.

    Args:
        port: Where to listen; 0 takes a free port.

    Example:
        >>> from udpfl.live import LivePage
        >>> with LivePage() as page:
        ...     page.address.startswith("http://127.0.0.1:")
        True
    """

    def __init__(self, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._about: dict[str, Any] = {"state": "preparing", "rounds": None, "folder": ""}
        self._clients: list[dict[str, Any]] = []
        self._folder: Path | None = None
        self._run_id: str | None = None
        self._server = PageServer(self.since, port)

    @property
    def address(self) -> str:
        """Of the page, with its token."""
        return self._server.address

    def __enter__(self) -> LivePage:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            if self._about["state"] in ("preparing", "running"):
                interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
                self._about["state"] = "interrupted" if interrupted else "failed"
        self._server.stop(_FAREWELL)

    def on_start(self, config: Config, folder: Path) -> None:
        self._folder = folder
        privacy = config.privacy
        self._run_id = read_identity(folder).id if privacy.accounting == "scalar" else None
        title = f"{config.data.name}, {config.training.algorithm}"
        with self._lock:
            self._about |= {
                "state": "running",
                "title": title,
                "mechanism": str(privacy.mechanism),
                "rounds": config.training.rounds,
                "folder": str(folder),
            }

    def on_round(self, row: dict[str, Any]) -> None:
        clients = self._spending(row) if row.get("epsilon") else None
        kept = ("round", "accuracy", "loss", "mae", "rmse", "privacy", "epsilon", "seconds",
                "guaranteed_epsilon")  # fmt: skip
        with self._lock:
            self._rows.append({name: row[name] for name in kept if row.get(name) is not None})
            if clients is not None:
                self._clients = clients

    def on_end(self, run: Run) -> None:
        with self._lock:
            if self._rows and run.metrics:  # a run that ends early is evaluated once more
                self._rows[-1] |= {
                    name: run.metrics[-1][name]
                    for name in ("accuracy", "loss", "privacy", "epsilon")
                    if run.metrics[-1].get(name) is not None
                }
            self._about |= {
                "state": "stopped" if run.stopped else "finished",
                "why": run.stopped,
                "statement": str(run.privacy),
                "report": str(run.report) if run.report.is_file() else None,
            }

    def since(self, row: int) -> Mapping[str, Any]:
        """What the page does not know yet: the rows after the first `row`, and all the rest."""
        with self._lock:
            return {**self._about, "rows": self._rows[row:], "clients": self._clients}

    def _spending(self, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """What each client has spent of which budget, by the ledger; None where it cannot say."""
        assert self._folder is not None
        if row["privacy"] == "none":
            return []
        try:
            clients = read_clients(self._folder)
            identity = read_identity(self._folder)
            with Ledger(ledger_of(self._folder, identity), read_only=True) as ledger:
                block = identity.block or ""
                return [_account(ledger, client, block, self._run_id) for client in clients]
        except (UdpflError, OSError) as error:  # the page is not worth the run
            log.debug("the budgets on the live page are not up to date: %s", error)
            return None


def _account(ledger: Ledger, client: ClientRow, block: str, run: str | None) -> dict[str, Any]:
    """One client's line: what it has spent, and of how much."""
    account = ledger.account_of(client.name, block)
    held = None if account is None else ledger.budget(account)
    budget = (held.epsilon, held.delta) if held else client.budget
    line = {"name": client.name, "epsilon": None, "budget": budget[0] if budget else None}
    if account is None or budget is None:
        return line
    is_planned = ledger.filter(account) is None
    spent = ledger.statement(account, budget[1], run, fixed_beforehand=is_planned)
    if spent.kind != "none":
        line["epsilon"] = "inf" if math.isinf(spent.epsilon) else spent.epsilon
    return line
