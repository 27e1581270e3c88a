"""Where the time of a run goes: the stages of a round, timed from outside.

The functions that make up a stage are wrapped while a measurement lasts. Time is counted once: what
a stage spends in another stage belongs to the other one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

REST = "everything else"
STAGES: Mapping[str, Sequence[str]] = {
    "forward and backward": ("udpfl.engine.lanes:LaneModel.gradients",),
    "norms": (
        "udpfl.engine._gradients:BookKept.norms",
        "udpfl.engine._gradients:WrittenOut.norms",
    ),
    "weighted sums": (
        "udpfl.engine._gradients:BookKept.weighted_sum",
        "udpfl.engine._gradients:WrittenOut.weighted_sum",
    ),
    "noise": ("udpfl.engine.noise:MechanismNoiser.add",),
    "sampling": ("udpfl.engine.training:_draw",),
    "rest of the steps": ("udpfl.federation.local_training:train_round",),
    "messages": (
        "udpfl.algorithms.message:ClientMessage.to_bytes",
        "udpfl.algorithms.message:ClientMessage.from_bytes",
        "udpfl.federation._progress:tensors_to_bytes",
    ),
    "averaging": ("udpfl.algorithms.fedavg:FedAvg.aggregate",),
    "charging": (
        "udpfl.ledger._reader:LedgerReader.message",
        "udpfl.ledger._reader:LedgerReader.refusals",
        "udpfl.ledger.ledger:Ledger.commit",
    ),
    "checkpoint": (
        "udpfl.runs.folder:RunFolder.write_checkpoint",
        "udpfl.runs.folder:RunFolder.append_metrics",
    ),
    "evaluation": ("udpfl.federation.setup:evaluate",),
    "statements": ("udpfl.federation._statements:Statements.of_all",),
}
OPTIONAL = ("evaluation", "statements")
"""What `training.evaluate_every` decides: how good the model is, and what it has cost so far."""
DURABLE = ("messages", "charging", "checkpoint")
"""What a run pays so that no crash loses a charge or a round."""


class Clock:
    """Seconds by stage; the time of an inner stage is not counted in the outer one."""

    def __init__(self, stages: Sequence[str]) -> None:
        self._stages = stages
        self.seconds = dict.fromkeys(stages, 0.0)
        self._inner = [0.0]

    def wrapped(self, stage: str, function: Any) -> Any:
        """The same function, on the clock."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - began
                self.seconds[stage] += took - self._inner.pop()
                self._inner[-1] += took

        return timed

    def lap(self) -> dict[str, float]:
        """Seconds of every stage since the last call."""
        found, self.seconds = self.seconds, dict.fromkeys(self._stages, 0.0)
        return found


@contextmanager
def on_the_clock(stages: Sequence[str] = tuple(STAGES)) -> Iterator[Clock]:
    """Time the stages. A function that is gone is an error: its time would hide elsewhere."""
    clock = Clock(stages)
    with ExitStack() as stack:
        for stage in stages:
            for target in STAGES[stage]:
                module, path = target.split(":")
                holder = importlib.import_module(module)
                *outer, name = path.split(".")
                for part in outer:
                    holder = getattr(holder, part)
                stored = vars(holder)[name]  # as stored: a class method stays one
                kind = type(stored) if isinstance(stored, (classmethod, staticmethod)) else None
                timed = clock.wrapped(stage, stored.__func__ if kind else stored)
                stack.enter_context(patch.object(holder, name, kind(timed) if kind else timed))
        yield clock
