"""What a privacy officer has to be able to repeat: one sentence, the digest, the audits."""

from __future__ import annotations

from pathlib import Path

from udpfl.accounting.statement import shown
from udpfl.config import Config
from udpfl.report.read import RunRecord
from udpfl.report.words import WHOSE, counted, small, trusts_server
from udpfl.runs.audits import AuditRecord, model_digest


def executive_line(run: RunRecord) -> str:
    """What was trained, who is protected, by which number, and whether that was verified."""
    return f"{_trained(run)}; {_protected(run)}."


def _trained(run: RunRecord) -> str:
    config = run.config
    model = "A model given in Python" if config.model.name == "own" else config.model.name
    where = f"on {_data(config)} at {counted(config.data.clients, 'client')}"
    if not run.finished:
        done = f"{run.rounds} of {counted(config.training.rounds, 'round')}"
        return f"{model} is being trained {where}, so far in {done}"
    if not run.metrics:
        return f"{model} was to be trained {where}, but no client has trained"
    return f"{model} was trained {where} over {counted(run.rounds, 'round')}"


def _data(config: Config) -> str:
    """What the data is called: by its file, where it is one's own."""
    if config.data.name == "own":
        return "data given in Python"
    path = config.data.options.get("path")
    if isinstance(path, list | tuple):
        return Path(str(path[0])).name if len(path) == 1 else f"{len(path)} files"
    return Path(path).name if isinstance(path, str) and path else config.data.name


def _protected(run: RunRecord) -> str:
    statement = run.statement
    if run.unread:
        return "what it has spent cannot be read from its ledger, so no privacy can be stated"
    if run.contradicted:
        return "what it states about privacy contradicts its ledger, so no number holds"
    if run.kind == "none":
        return f"it protects no one: {'; '.join(statement.notes) or 'nothing is claimed'}"
    whose = WHOSE[statement.unit]
    against = " against everyone but the server" if trusts_server(statement) else ""
    verified = run.verification.state == "verified"
    if run.kind == "nominal":
        checked = "verified" if verified else "not verified"
        return (
            f"for {whose} it has a nominal ε = {shown(statement.epsilon)}, which is not a "
            f"guarantee; guaranteed is ε = {shown(statement.vector_epsilon)} at "
            f"δ = {small(statement.delta)}{against} ({checked} against the ledger)"
        )
    so_far = "" if run.finished else " so far"
    checked = (
        "a guarantee that was verified against the ledger"
        if verified
        else "stated as a guarantee, but not verified against the ledger"
    )
    return (
        f"{whose} are protected{so_far} with ε = {shown(statement.epsilon)} at "
        f"δ = {small(statement.delta)}{against}, {checked}"
    )


def ledger_digest(run: RunRecord) -> str:
    """The head of the chain: by it an older or a rewritten copy of the ledger can be told."""
    head = run.verification.head
    if head is None:
        return "–"
    return f"charge {head[0]}: {head[1]}" if head[0] else "no charge"


def audits(run: RunRecord) -> list[str]:
    """What audits of this run found: the latest one, and every one that refuted the claim."""
    if run.kind == "none":
        return []
    if not run.audits:
        return ["None is kept with this run; `udpfl audit run RUN` tries to refute its claim."]
    latest = run.audits[-1]
    refuting = [own for own in run.audits[:-1] if own.refuted]
    lines = [_said(run, own) for own in (*refuting, latest)]
    more = len(run.audits) - len(lines)
    if more:
        lines.append(f"{counted(more, 'earlier audit')} did not refute the claim.")
    return lines


def refuted(run: RunRecord) -> bool:
    """Whether any audit refuted the claim."""
    return any(own.refuted for own in run.audits)


def _said(run: RunRecord, record: AuditRecord) -> str:
    trials = counted(record.trials, "replay")
    said = f"{record.conclusion} ({record.made[:10]}, {trials} in each world)"
    claimed = record.result.get("epsilon")
    if isinstance(claimed, float) and claimed < 0.999 * run.statement.epsilon:
        said += (
            " An audit looks at this run alone, by the tightest accountant; the ledger adds up by "
            "a rule that holds over all its runs, and states more."
        )
    if record.run != run.identity.id or record.model != model_digest(run.path):
        said += " This audit is of another run or model than the one in this folder."
    return said
