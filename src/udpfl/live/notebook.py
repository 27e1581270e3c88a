"""A progress bar below the cell of a notebook."""

from __future__ import annotations

import html
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udpfl.config import Config
from udpfl.federation.observers import Follower
from udpfl.live.figures import Pace, in_words, privacy_of, quality_of

if TYPE_CHECKING:
    from udpfl.federation import Run


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; a terminal with IPython is not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"


class NotebookBar(Follower):
    """Shows how far a run is, with accuracy, epsilon and the time left.

    `udpfl.run` adds it where it runs in a notebook. It needs IPython and nothing else.

    Example:
        >>> from udpfl.live import NotebookBar
        >>> NotebookBar().on_round({"round": 1, "loss": None})  # before a run: nothing to show
    """

    def __init__(self) -> None:
        self._display: Any = None
        self._html: Any = None
        self._pace: Pace | None = None
        self._figures: list[str] = []

    def on_start(self, config: Config, folder: Path) -> None:
        page: Any = import_module("IPython.display")
        self._html = page.HTML
        self._pace = Pace(config.training.rounds)
        self._display = page.display(self._html(self._bar(0, "preparing")), display_id=True)

    def on_round(self, row: dict[str, Any]) -> None:
        if self._pace is None:
            return
        left = in_words(self._pace.seconds_left(row["round"]))
        if quality := quality_of(row):  # not every round is evaluated
            self._figures = [quality, privacy_of(row)]
        self._update(row["round"], f"{left} left")

    def on_end(self, run: Run) -> None:
        self._update(len(run.metrics), run.stopped or f"done in {in_words(run.seconds)}")

    def _update(self, round_: int, state: str) -> None:
        if self._display is not None:
            self._display.update(self._html(self._bar(round_, state)))

    def _bar(self, round_: int, state: str) -> str:
        assert self._pace is not None
        said = " · ".join([f"round {round_} of {self._pace.rounds}", *self._figures, state])
        return (
            f'<div style="font-family:sans-serif"><progress max="{self._pace.rounds}" '
            f'value="{round_}" style="width:16em;vertical-align:middle" '
            f'aria-label="rounds"></progress> <span>{html.escape(said)}</span></div>'
        )
