"""`udpfl.run` and `udpfl.run_together`: train, show how far it is, and write the page about a run
when it has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, cast

from udpfl.federation import Observer, Run
from udpfl.federation import run as train
from udpfl.federation import run_together as train_together
from udpfl.federation.together import ObserversOf, nobody
from udpfl.live import NotebookBar, RoundLog, is_notebook
from udpfl.report import write_report

log = logging.getLogger(__name__)
P = ParamSpec("P")


class ReportPage(Observer):
    """Writes report.html into the folder of a run that has ended."""

    def on_end(self, run: Run) -> None:
        try:
            write_report([run.folder], run.report)
        except Exception as error:  # whatever is wrong with the page, the run is safe on disk
            log.warning("report.html was not written (%s); `udpfl report` writes it again", error)


def _with_page(train: Callable[P, Run]) -> Callable[P, Run]:
    @wraps(train)
    def run(*args: P.args, **kwargs: P.kwargs) -> Run:
        observers = cast(Any, kwargs.get("observers", ()))
        has_bar = any(getattr(own, "shows_progress", False) for own in observers)
        bar = () if has_bar or not is_notebook() else (NotebookBar(),)
        # The page comes before others hear of the end.
        kwargs["observers"] = (ReportPage(), RoundLog(), *bar, *observers)
        return train(*args, **kwargs)

    return run


def _with_pages(train: Callable[P, list[Run | Exception]]) -> Callable[P, list[Run | Exception]]:
    @wraps(train)
    def run_together(*args: P.args, **kwargs: P.kwargs) -> list[Run | Exception]:
        given = cast(ObserversOf, kwargs.get("observers", nobody))
        kwargs["observers"] = lambda number: (ReportPage(), *given(number))
        return train(*args, **kwargs)

    return run_together


run = _with_page(train)
run_together = _with_pages(train_together)
