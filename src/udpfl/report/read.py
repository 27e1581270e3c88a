"""A run folder as the report sees it: plain data, read without torch, finished or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from udpfl.accounting.events import Unit
from udpfl.accounting.statement import Kind, PrivacyStatement, largest, shown
from udpfl.config import Config, load
from udpfl.errors import InvalidInput, UdpflError
from udpfl.harmonizer import Matched
from udpfl.report._unfinished import spent_by_unfinished
from udpfl.report.protection import Clipped, clip_of, in_sentences, noise_of, what_is_clipped
from udpfl.report.verification import Verification, check_run
from udpfl.runs.attacks import AttackRecord, read_attacks
from udpfl.runs.audits import AuditRecord, read_audits
from udpfl.runs.files import RunFiles, has_begun
from udpfl.runs.ledgers import ledger_of
from udpfl.runs.names import CONFIG
from udpfl.runs.schema import ClientRow, FinalEvaluation, Identity, Pair, RoundRow, Summary
from udpfl.runs.targets import Reached, Target

Tone = Literal["guarantee", "nominal", "none", "unverified"]
_USED_UP = 0.99
"""Part of a budget from which on it counts as used up."""


@dataclass(frozen=True)
class Client:
    """What is known of one client. `statement` is None where no number can be stated."""

    name: str
    declared_size: int
    rounds: int
    noise: str
    clip: str
    configured: Pair | None
    """The budget that the noise was planned for."""
    held: Pair | None
    """The budget that the ledger held when the run ended; None where that is not known."""
    statement: PrivacyStatement | None
    later: str | None = None
    """What the ledger was charged with after the run had ended, in words."""
    matched: Matched | None = None
    """To what its noise was matched, if it was."""

    @property
    def budget(self) -> Pair | None:
        """What its spending is set against: the ledger's word before the configuration's."""
        return self.held or self.configured

    @property
    def has_used_up(self) -> bool:
        """Whether hardly anything of its budget is left."""
        if self.budget is None or self.statement is None or self.statement.kind == "none":
            return False
        return self.statement.epsilon >= _USED_UP * self.budget[0]


@dataclass(frozen=True)
class RunRecord:
    """Everything that one run folder says."""

    path: Path
    """The run folder."""
    config: Config
    """Its settings, with every default."""
    identity: Identity
    """What the run is, and what it claims."""
    metrics: Sequence[RoundRow]
    """One line for every round so far."""
    clients: Sequence[Client]
    """What each declared, and has spent."""
    summary: Summary | None
    """What it came to; None where it has not ended."""
    evaluation: FinalEvaluation | None
    """The final model on the test records; None where it has not ended."""
    verification: Verification
    """Whether the ledger says the same."""
    unread: str | None = None
    """Why no number can be stated of a run under way that should have one."""
    uncounted: str | None = None
    """Why its ledger does not say what it released, whatever was written down when it ended."""
    clipped: Clipped = "gradients"
    """What was clipped and noised."""
    server_adds: bool = False
    """Whether a trusted server adds the noise, and not the clients."""
    protection: tuple[str, ...] = ()
    """What is to be known of noise and clip beside each client's own, in sentences."""
    audits: tuple[AuditRecord, ...] = ()
    """What audits of this run found, oldest first."""
    attacks: tuple[AttackRecord, ...] = ()
    """What attacks on this run found, oldest first."""

    @property
    def name(self) -> str:
        """What the run is called: its folder."""
        return self.path.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, be it an early one."""
        return self.summary is not None

    @property
    def stopped(self) -> str | None:
        """Why it ended before its last round."""
        return self.summary.stopped if self.summary else None

    @cached_property
    def measured(self) -> list[RoundRow]:
        """The rounds that were evaluated."""
        return [row for row in self.metrics if row.is_evaluated]

    @property
    def rounds(self) -> int:
        """Rounds in which somebody trained, up to the last one."""
        return self.metrics[-1].round if self.metrics else 0

    @property
    def last(self) -> Mapping[str, Any]:
        """The latest evaluated round; empty where there is none."""
        return self.measured[-1] if self.measured else {}

    @property
    def task(self) -> str:
        """Classification or regression."""
        return self.identity.task

    @property
    def confusion(self) -> Sequence[Sequence[int]]:
        """Of test records of class i, how many were taken for class j; empty where not known."""
        return (self.evaluation and self.evaluation.confusion) or ()

    @property
    def references(self) -> Mapping[str, Mapping[str, float]]:
        """Published figures on the same test records."""
        return self.evaluation.references if self.evaluation else {}

    @property
    def quality(self) -> tuple[str, ...]:
        """Names of the figures that say how good the model is, the first one foremost."""
        return ("rmse", "mae", "mse") if self.task == "regression" else ("accuracy",)

    @property
    def target(self) -> Target | None:
        """The figure that the configuration names; None where it names none."""
        return Target.of(self.config)

    @cached_property
    def reached(self) -> Reached | None:
        """What it took to reach the target; None where it was not reached."""
        return None if self.target is None else self.target.first_reached(self.metrics)

    @property
    def kind(self) -> Kind:
        """What may be said of the whole run."""
        return self.statement.kind

    @property
    def contradicted(self) -> bool:
        """Whether the folder says something else than its ledger: then it states no number."""
        return self.verification.state == "contradicted"

    @property
    def tone(self) -> Tone:
        """How it looks: as a guarantee only where that was verified."""
        verified = self.verification.state == "verified"
        return self.kind if verified or self.kind != "guarantee" else "unverified"

    @property
    def unit(self) -> Unit:
        """Whose presence is hidden."""
        return self.config.privacy.unit

    @cached_property
    def statement(self) -> PrivacyStatement:
        """The largest spending of any client; of a run under way, all that its ledger holds."""
        if self.unread:
            return PrivacyStatement.none(self.unread)
        if self.contradicted:
            return PrivacyStatement.none("; ".join(self.verification.reasons))
        if self.summary:
            said = self.summary.privacy
            later = dict.fromkeys(c.later for c in self.clients if c.later is not None)
            return said.adding(notes=later)
        kind = self.identity.privacy.kind
        if kind == "none":
            return PrivacyStatement.none(self.identity.privacy.why or "privacy is turned off")
        spent = largest(c.statement for c in self.clients if c.statement is not None)
        # Before its first release a nominal run has cost nothing; it is no guarantee all the same.
        weaker = "nominal" if (kind, spent.kind) == ("nominal", "guarantee") else spent.kind
        # An account without a charge knows of no unit.
        unit = spent.unit if spent.vector_epsilon else self.unit
        return replace(spent, kind=weaker, unit=unit)

    @property
    def ledger(self) -> Path:
        """Where its releases were charged."""
        return ledger_of(self.path, self.identity)

    @property
    def shared_ledger(self) -> bool:
        """Whether the spending includes other runs."""
        return bool(self.identity.ledger)

    @property
    def budget_name(self) -> str:
        """Which budgets those of the clients are."""
        known = all(client.held or not client.configured for client in self.clients)
        return "budget" if known else "configured budget"

    def column(self, *keys: str, evaluated: bool = True) -> tuple[list[int], list[float | None]]:
        """One figure by round: the rounds and the values, None where it is not a number."""
        rounds, values = [], []
        for row in self.measured if evaluated else self.metrics:
            value: Any = row
            for key in keys:
                value = value.get(key) if isinstance(value, Mapping) else None
            rounds.append(row.round)
            finite = isinstance(value, int | float) and math.isfinite(value)
            values.append(float(value) if finite else None)
        return rounds, values


def distinct(folders: Sequence[Path]) -> list[Path]:
    """The folders in their order; one that is named twice counts once."""
    return list({path.resolve(): path for path in folders}.values())


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Read run folders in their order, each once."""
    return [read_run(folder) for folder in distinct(folders)]


def _require_run(path: Path) -> None:
    if not (path / CONFIG).is_file() or not has_begun(path):
        why = (
            "is a comparison: its page is compare.html, and its runs are the folders in it"
            if (path / "comparison.json").is_file()
            else "is not a run folder: it has no run.json"
        )
        raise InvalidInput("run", f"{str(path)!r} {why}")


def _spent(path: Path, files: RunFiles) -> tuple[Mapping[str, PrivacyStatement], str | None]:
    """What each client has spent by the ledger, or why that cannot be read."""
    kind = files.identity.privacy.kind
    if kind == "none":
        return {}, None
    ledger = ledger_of(path, files.identity)
    try:
        spent = spent_by_unfinished(
            ledger, files.run, files.clients, files.metrics, kind == "nominal"
        )
    except UdpflError as error:
        return {}, f"the spending of this run cannot be read from its ledger ({error})"
    return spent, None


def read_run(path: Path) -> RunRecord:
    """Read a run folder; a file that a crash left out is simply not there yet.

    Args:
        path: The run folder.

    Returns:
        Everything that it says, and whether its ledger says the same.

    Raises:
        InvalidInput: It is no run folder.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from udpfl.report import read_run
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> read_run(done.folder).finished
        True
    """
    _require_run(path)
    files = RunFiles.read(path)
    summary, identity, metrics = files.summary, files.identity, files.metrics
    kind = identity.privacy.kind
    spent, unread = _spent(path, files)
    statements, uncounted = spent, unread
    if summary is not None:
        statements, unread = dict(summary.clients), None
    verification = check_run(files, kind == "nominal")
    if verification.state == "contradicted":
        statements = {}
    config = load(path / CONFIG)
    clipped = what_is_clipped(config.privacy.unit, files.clients)
    is_noised = any(row.release is not None for row in files.clients)
    trusted = is_noised and identity.server_adds_noise
    held = _held(files, verification) if kind != "nominal" else {}
    return RunRecord(
        path=path,
        config=config,
        identity=identity,
        metrics=metrics,
        clients=[
            _client(row, metrics, kind != "none", held.get(n), statements.get(n), spent.get(n))
            for row, n in ((row, row.name) for row in files.clients)
        ],
        summary=summary,
        evaluation=_of_training(files.evaluation, metrics),
        verification=verification,
        unread=unread,
        uncounted=uncounted,
        clipped=clipped,
        server_adds=trusted,
        protection=in_sentences(clipped, trusted, files.clients, metrics),
        audits=read_audits(path),
        attacks=read_attacks(path),
    )


def _held(files: RunFiles, verification: Verification) -> Mapping[str, Pair | None]:
    """The budgets when the run ended: by the ledger, or by the summary where it cannot say.

    They bound what is guaranteed; a nominal figure is not set against them.
    """
    by_summary = files.summary.budgets if files.summary else {}
    return by_summary if verification.budgets is None else verification.budgets


def _of_training(
    evaluation: FinalEvaluation | None, metrics: Sequence[RoundRow]
) -> FinalEvaluation | None:
    """The evaluation of the final model; without a training, only what needs none."""
    if evaluation is None or metrics:
        return evaluation
    return FinalEvaluation(task=evaluation.task, references=evaluation.references)


def _later(ended: PrivacyStatement | None, now: PrivacyStatement | None) -> str | None:
    """That the account holds more than when the run ended, if it does."""
    if ended is None or now is None:
        return None
    if not now.vector_epsilon > ended.vector_epsilon * (1 + 1e-9):
        return None
    return (
        "the ledger was charged with more since this run ended, and holds "
        f"ε = {shown(now.vector_epsilon)} now: `udpfl budget show`"
    )


def _client(
    row: ClientRow,
    metrics: Sequence[RoundRow],
    is_claimed: bool,
    held: Pair | None,
    statement: PrivacyStatement | None,
    now: PrivacyStatement | None,
) -> Client:
    later = _later(statement, now)
    if statement is not None and later is not None:
        statement = statement.adding(notes=[later])
    return Client(
        name=row.name,
        declared_size=row.declared_size,
        rounds=row.rounds,
        noise=noise_of(row, is_claimed),
        clip=clip_of(row, metrics),
        configured=row.budget,
        held=held,
        statement=statement,
        later=later,
        matched=row.matched,
    )
