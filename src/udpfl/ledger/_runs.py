"""The runs of a ledger: registered before their first charge, sealed when they begin and end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from udpfl.accounting.accountant import Accountant, check_choices
from udpfl.errors import InvalidInput
from udpfl.ledger.chain import Head
from udpfl.ledger.charges import IMPORTED, Charge, import_id
from udpfl.ledger.file import LedgerFile, now
from udpfl.ledger.seals import Digests, Seals
from udpfl.ledger.spending import totals_of


class RunRegister:
    """The table of runs in a ledger's file, and what each of them charged."""

    def __init__(self, file: LedgerFile, seals: Seals) -> None:
        self._file, self._seals = file, seals

    def begin(
        self,
        run: str,
        randomness: str,
        accounting: str,
        accountant: Accountant,
        description: Mapping[str, Any],
        files: Digests | None,
    ) -> None:
        """See `Ledger.begin_run`."""
        if not run or not isinstance(run, str):
            raise InvalidInput("run", f"must be a name, got {run!r}")
        if run.startswith(IMPORTED):
            raise InvalidInput(
                "run", f"{run!r}: ids that begin with {IMPORTED!r} are for what is imported"
            )
        if randomness not in ("entropy", "seeded"):
            raise InvalidInput("randomness", f"must be entropy or seeded, got {randomness!r}")
        check_choices(0.0, accountant, accounting)
        planned_by = accountant if accounting == "scalar" else None
        try:
            text = json.dumps(dict(description), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidInput("description", f"must be plain data: {error}") from None
        with self._file.writing():
            if not self.knows(run):
                self._file.insert("runs", run, now(), randomness, accounting, text)
                if files is not None or planned_by is not None:
                    self._seals.begin(run, files, planned_by)
            kept = self._file.rows("SELECT randomness, accounting FROM runs WHERE id = ?", run)
        if kept != [(randomness, accounting)]:
            raise InvalidInput(
                "run",
                f"{run!r} began with {' randomness and '.join(kept[0])} accounting and cannot "
                f"continue with {randomness} and {accounting}; start a new run",
            )

    def begin_import(self, charge: Charge, client: str) -> Charge:
        """Register what is imported, inside a transaction; the charge, with the id that it got.

        Guarantee: only what was imported before is refused. An earlier version let a server give
        its run the id that an import was going to have; then the import gets another one.

        Raises:
            InvalidInput: Exactly this was imported already.
        """
        wanted = [(charge.account, charge.round, charge.note, *own)
                  for own in sorted(totals_of(charge.events).items())]  # fmt: skip
        text = json.dumps({"note": charge.note}, sort_keys=True)
        row = ("entropy", "vector", text)
        query = (
            "SELECT account, round, note, event, count FROM charges WHERE run = ? ORDER BY event"
        )
        kept = "SELECT randomness, accounting, description FROM runs WHERE id = ?"
        while self.knows(charge.run):
            charged = self._file.rows(query, charge.run)
            if charged == wanted:
                raise InvalidInput(
                    "note",
                    f"{client} was already charged for exactly this ({charge.note}); if it "
                    "happened twice, give another note",
                )
            if not charged and self._file.rows(kept, charge.run) == [row]:
                return charge  # an earlier version died before it was charged
            charge = replace(charge, run=import_id(charge.run))
        self._file.insert("runs", charge.run, now(), *row)
        return charge

    def end(self, run: str, head: Head, files: Digests, outcome: Mapping[str, Any]) -> None:
        """Seal what a run ends with, inside a transaction."""
        if not self.knows(run):
            raise _not_begun(run)
        self._seals.end(run, head, files, outcome)

    def knows(self, run: str) -> bool:
        """Whether a run of this id has begun."""
        return bool(self._file.rows("SELECT 1 FROM runs WHERE id = ?", run))

    def randomness(self, run: str) -> str:
        """Where the noise of a run comes from; the run has to have begun."""
        rows = self._file.rows("SELECT randomness FROM runs WHERE id = ?", run)
        if not rows:
            raise _not_begun(run)
        return str(rows[0][0])

    def folders(self) -> dict[str, str]:
        """The name of the folder of every run that was begun in one."""
        rows = self._file.rows("SELECT id, description FROM runs")
        named = {run: json.loads(text).get("folder") for run, text in rows}
        return {run: str(folder) for run, folder in named.items() if folder}

    def persons(self) -> set[str]:
        """The columns from which runs took whose a row is."""
        rows = self._file.rows("SELECT description FROM runs")
        return {str(json.loads(text)["person"]) for (text,) in rows if "person" in json.loads(text)}

    # What a run charged

    def rounds_charged(self, run: str, account: int, only: int | None = None) -> int:
        """In how many rounds of a run the account was charged, of all or of this one alone."""
        query = (
            "SELECT count(DISTINCT round) FROM charges WHERE run = ? AND account = ? "
            "AND round = ifnull(?, round)"
        )
        return int(self._file.rows(query, run, account, only)[0][0])

    def last_charge(self, run: str) -> int:
        """The number of a run's last charge; 0 before its first."""
        query = "SELECT ifnull(max(id), 0) FROM charges WHERE run = ?"
        return int(self._file.rows(query, run)[0][0])

    def data_of(self, run: str) -> dict[int, str]:
        """The fingerprint of the records that a run charged, for each of its accounts."""
        query = (
            "SELECT DISTINCT account, fingerprint FROM charges WHERE run = ? AND fingerprint != ''"
        )
        return dict(self._file.rows(query, run))


def _not_begun(run: str) -> InvalidInput:
    return InvalidInput("run", f"{run!r} has not begun: call begin_run first")
