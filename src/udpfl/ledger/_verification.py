"""Whether a ledger is sound: its file, both hash chains, the stored answers and the releases."""

from __future__ import annotations

from udpfl.errors import LedgerError, LedgerUnavailable
from udpfl.ledger._outbox import Outbox
from udpfl.ledger.charges import chain_problems, event_problems
from udpfl.ledger.decisions import decision_problems
from udpfl.ledger.file import LedgerFile
from udpfl.ledger.progress import ProgressTable


def problems_of(
    file: LedgerFile, outbox: Outbox, progress: ProgressTable, *, events: bool
) -> list[str]:
    """Every problem found, one sentence each. Without `events` no release is read."""
    checks = [
        file.problems(),
        chain_problems(file),
        decision_problems(file),
        outbox.problems(),
        progress.problems(),
    ]
    if events:
        checks.append(event_problems(file))
    problems: list[str] = []
    for found in checks:
        try:
            with file.snapshot():
                problems += found
        except LedgerUnavailable:  # tells nothing about its content
            raise
        except LedgerError as error:
            problems.append(str(error))
    return problems
