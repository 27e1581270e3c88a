"""`udpfl.run`: train, and write the page about the run when it has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, cast

from udpfl.federation import Observer, Run
from udpfl.federation import run as train
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
        kwargs["observers"] = (ReportPage(), *observers)  # before others hear of the end
        return train(*args, **kwargs)

    return run


run = _with_page(train)
