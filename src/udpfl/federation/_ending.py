"""How a run ends: the model, its evaluation, what was spent, and the seals on all of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.rounding import rounding_of_event
from udpfl.accounting.statement import largest
from udpfl.federation._statements import Statements
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.builders import copy_with_parameters
from udpfl.federation.client import LocalClient
from udpfl.federation.evaluation import final_evaluation
from udpfl.federation.result import Run
from udpfl.federation.setup import Setup
from udpfl.ledger.chain import Head
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import digests
from udpfl.runs.names import ENDED_WITH
from udpfl.runs.schema import FinalEvaluation, Stamp, Summary

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """What is needed to end a run: where it was stored, and what it has come to."""

    setup: Setup
    stored: StoredRun
    ledger: Ledger
    statements: Statements
    rows: Sequence[Mapping[str, Any]]
    """Of all rounds."""
    final: Tensor
    """The model of the run [d]."""
    stopped: str | None
    seconds_before: float
    """What an earlier summary said."""

    def write(self, began: float) -> Run:
        """Write what came of a call that began then, seal it in the ledger, and return it."""
        setup, folder, ledger, run = self.setup, self.stored.folder, self.ledger, self.stored.run
        if setup.algorithm.trusts_server:
            # Only the trusted server may see updates without noise: drop them.
            ledger.forget(run, setup.config.training.rounds)
        ledger.give_back(run)
        head = ledger.head()  # others may charge a shared ledger meanwhile
        result = self._result(self.statements.of_all(head[0]), time.perf_counter() - began)
        if self.rows:  # else nobody has trained, and there is no model to hand on
            folder.write_model(dict(result.model.state_dict()), Stamp.of(result.privacy, head))
        found = final_evaluation(setup.model, self.final, *setup.test, setup.data)
        folder.write_evaluation(FinalEvaluation.from_dict(found))
        outcome = self._outcome(result)
        sealed = digests(folder.path, ENDED_WITH)
        decided = ledger.end_run(run, head=head, files=sealed, outcome=outcome)
        summary = Summary(
            outcome=outcome,
            privacy=result.privacy,
            statement=str(result.privacy),
            run=str(folder.path),
            clients=result.clients,
            head=Head(*head),
            decided=Head(*decided),
            budgets={own.name: _held(ledger, own, decided[0]) for own in self.statements.clients},
        )
        folder.write_summary(summary)
        return result

    def _result(self, statements: Mapping[str, PrivacyStatement], seconds: float) -> Run:
        of_rounds = sum(row["seconds"] for row in self.rows)
        return Run(
            folder=self.stored.folder.path,
            config=self.setup.config,
            model=copy_with_parameters(self.setup.network, self.setup.model, self.final),
            privacy=largest(statements.values()),
            clients=statements,
            metrics=self.rows,
            ledger_path=self.stored.ledger,
            ledger_is_new=self.ledger.is_new,
            # A resumed run took as long as all its rounds, not as long as this call.
            seconds=max(seconds, of_rounds, self.seconds_before),
            stopped=self._why_stopped,
            references=self.setup.data.references,
        )

    @property
    def _why_stopped(self) -> str | None:
        spent = f"`udpfl budget show {self.stored.folder.path}` says what was spent"
        return f"{self.stopped}; {spent}" if self.stopped else None

    def _outcome(self, result: Run) -> dict[str, Any]:
        return {
            **result.outcome(),
            "device": str(self.setup.device),
            "parameters": self.setup.model.layout.dimension,
            "rounding": self._rounding(result),
            "server_adds_noise": self.setup.algorithm.trusts_server,
            "assumptions": list(self.statements.assumptions),
            "notes": list(self.statements.notes),
        }

    def _rounding(self, result: Run) -> float:
        """What rounding of noise adds to delta at most, for the client that has most of it."""
        privacy, most = result.privacy, 0.0
        for client in self.statements.clients:
            # A statement is about all that a shared ledger was charged with.
            is_shared = self.stored.has_shared_ledger
            event = self.ledger.spent(client.account) if is_shared else client.plan.rest_event()
            if event is not None:  # what holds counts, also where a nominal number is in front
                epsilon = result.clients[client.name].vector_epsilon
                most = max(most, rounding_of_event(event, epsilon).total)
        if privacy.kind != "none" and most > privacy.delta / 100:
            log.warning("rounding of the noise may add %.1g to delta = %g", most, privacy.delta)
        return most


def _held(ledger: Ledger, client: LocalClient, decided: int) -> tuple[float, float] | None:
    """The budget in the ledger at that decision, which need not be the configured one."""
    budgets = ledger.budgets(client.account, decided)
    return (budgets[-1].epsilon, budgets[-1].delta) if budgets else None
