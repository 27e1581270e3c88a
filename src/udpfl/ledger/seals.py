"""Seals: what a run began and ended with, its files as digests, in the chain of decisions.

Charges say what was released. What else a run folder says, such as who took part with which noise
and which model came of it, is in files that anyone can edit. Their digests are in the ledger, so
an edit is found wherever the chain of the ledger holds. Beside them stands which accountant planned
a nominal run, because that one states it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from udpfl.accounting.accountant import Accountant
from udpfl.errors import LedgerError, UdpflError
from udpfl.ledger.chain import Head
from udpfl.ledger.decisions import Decisions

Digests = Mapping[str, str]
"""The SHA-256 of files, by their names."""


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of those of these files that are there."""
    found = {}
    for name in names:
        try:
            with (folder / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UdpflError(f"cannot read {folder / name}: {error.strerror}") from None
    return found


@dataclass(frozen=True)
class Ending:
    """What a run ended with."""

    decision: int
    """The number of the decision that has it on record."""
    head: Head
    """The last charge in the ledger then."""
    files: Digests
    outcome: Mapping[str, Any]
    """What its summary says that is neither in these files nor computed from charges."""


@dataclass(frozen=True)
class Sealed:
    """What the ledger knows of the files of one run."""

    begun_with: Digests | None
    """None where an earlier version began it, which sealed nothing."""
    ending: Ending | None
    """The last one: a finished run that is resumed ends again."""
    accountant: Accountant | None = None
    """Which one planned a nominal run; None for other runs, and where an earlier version began it.
    """


class Seals:
    """Of the runs of a ledger."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def begin(self, run: str, files: Digests | None, accountant: Accountant | None) -> None:
        """Put on record what a run begins with, inside a transaction."""
        content = {"run": run, "files": None if files is None else dict(files)}
        planned = {} if accountant is None else {"accountant": accountant}
        self._decisions.append("begin", None, {**content, **planned})

    def end(self, run: str, head: Head, files: Digests, outcome: Mapping[str, Any]) -> None:
        """Put on record what a run ends with, inside a transaction."""
        content = {"run": run, "head": list(head), "files": dict(files), "outcome": dict(outcome)}
        self._decisions.append("end", None, content)

    def of(self, run: str) -> Sealed:
        """What is on record of a run."""
        begun = [own for own in self._decisions.of("begin", None) if own.content["run"] == run]
        first = begun[0].content if begun else {"files": None}
        ended = [own for own in self._decisions.of("end", None) if own.content["run"] == run]
        ending = None
        if ended:
            last = ended[-1].content
            head = Head(*last["head"])
            ending = Ending(ended[-1].id, head, last["files"], last["outcome"])
        return Sealed(first["files"], ending, _known(run, first.get("accountant")))


def _known(run: str, accountant: Any) -> Accountant | None:
    if accountant is not None and accountant not in get_args(Accountant):
        raise LedgerError(
            f"run {run} was planned by the accountant {accountant!r}, which this version of udpfl "
            "does not know"
        )
    return accountant  # type: ignore[no-any-return]
