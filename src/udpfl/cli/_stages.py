"""How far a long command has got: a bar on a terminal, lines where they were asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from udpfl.cli._progress import TimeLeft, running

_SECONDS_BETWEEN_LINES = 5.0

ShowProgress = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress",
        help="Show how far it has got and the time left, on stderr. By default only on a terminal.",
        show_default=False,
    ),
]


class Stages(Protocol):
    """Told what is being done, how much of it is done, and how much there is."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@contextmanager
def stages(wanted: bool | None) -> Iterator[Stages]:
    """What to call with every step: it draws a bar, writes lines, or does nothing."""
    console = Console(stderr=True)
    if wanted is False or (wanted is None and not console.is_terminal):
        yield lambda stage, done, total: None
    elif not console.is_terminal:
        yield _Lines()
    else:
        text = TextColumn("{task.description}", markup=False)
        bar = Progress(text, BarColumn(), TimeLeft(), console=console, transient=True)
        with running(bar):
            yield _Bar(bar)


class _Bar:
    """One bar, which begins anew with every stage: only within one can the time left be told."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._stage = bar, ""
        self._task = bar.add_task("preparing", total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._bar.remove_task(self._task)
            self._stage = stage
            # Of a stage in one piece nothing is known until it is over.
            self._task = self._bar.add_task(stage, total=total if total > 1 else None)
        self._bar.update(self._task, completed=done)


class _Lines:
    """A line when a stage begins, and some while it goes on."""

    def __init__(self) -> None:
        self._stage, self._began, self._said = "", 0.0, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._began, self._said = stage, now, now
            typer.echo(stage, err=True)
        elif 0 < done < total and now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            left = int((now - self._began) / done * (total - done))
            minutes, seconds = divmod(left, 60)
            typer.echo(f"{stage}: {done:,} of {total:,}, {minutes}:{seconds:02d} left", err=True)
