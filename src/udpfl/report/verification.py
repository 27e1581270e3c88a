"""Whether a run folder says what its ledger says: every epsilon is computed again, none repeated.

A page claims only what is checked here. The ledger has to be sound and to be that of the run; the
files have to be those that the run sealed in it (`report.mismatches`); the charges up to the end
of the run have to cost what summary.json and the header of the model say. Later charges of other
runs are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from udpfl._version import __version__
from udpfl.accounting.statement import PrivacyStatement, largest
from udpfl.errors import UdpflError
from udpfl.ledger.accounts import Account
from udpfl.ledger.chain import Head
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Ending
from udpfl.report._differences import Difference, differences
from udpfl.report.mismatches import mismatches
from udpfl.runs.files import RunFiles
from udpfl.runs.ledgers import ledger_of
from udpfl.runs.schema import ClientRow, Pair, Summary

State = Literal["verified", "not verified", "contradicted"]
_MOST_REASONS = 4
_NO_HEAD = (
    "an older version wrote this folder, which does not name the last charge of the run in the "
    "shared ledger"
)


@dataclass(frozen=True)
class Verification:
    """What came of the check, and why it is not better."""

    state: State
    """"verified", "not verified" or "contradicted"."""
    reasons: tuple[str, ...] = ()
    """Why it is not verified; empty where it is."""
    head: Head | None = None
    """The number and the hash of the ledger's last charge when the run ended, as the folder says.
    """
    budgets: Mapping[str, Pair | None] | None = None
    """What the ledger held for each client when the run ended; None where that is not known."""


def check_run(files: RunFiles, nominal: bool) -> Verification:
    """Compare what a run folder says with its ledger.

    Guarantee: "verified" means that the ledger's charges up to the end of the run cost every client
    what is stated, and that settings, clients, noise, metrics and model are the files that the run
    sealed. It says nothing of a ledger that was written anew from its first charge: that has
    another last charge than the one noted elsewhere, which `udpfl budget verify --against`
    compares. Nor does it say that what the run measured is right.
    """
    found: list[Difference] = []
    if files.summary is None:
        found.append(Difference("the run is not finished", contradicts=False))
    elif not files.metrics:
        said = "no client has trained in this run, so there is no model"
        found.append(Difference(said, contradicts=False))
    head = None if files.summary is None else files.summary.head
    budgets: dict[str, Pair | None] | None = None
    if files.identity.sites is not None:
        said = "its numbers are those that the sites reported: the ledgers are theirs, not here"
        found.append(Difference(said, contradicts=False))
        return Verification("not verified", _few([own.said for own in found]), head, budgets)
    try:
        with Ledger(ledger_of(files.path, files.identity), read_only=True) as ledger:
            for problem in ledger.verify(events=False):
                found.append(Difference(f"the ledger is not sound: {problem}"))
            # One at a time: whatever was found stays found if the rest cannot be read.
            for each in mismatches(ledger, files):
                found.append(each)
            if files.summary is not None and not any(own.contradicts for own in found):
                check = _Recomputed(ledger, files, files.summary, nominal)
                budgets = check.budgets
                for each in check.differences():
                    found.append(each)
    except UdpflError as error:
        found.append(Difference(f"it cannot be recomputed ({error})", contradicts=False))
    wrong = [own.said for own in found if own.contradicts]
    state: State = "contradicted" if wrong else "not verified" if found else "verified"
    return Verification(state, _few(wrong or [own.said for own in found]), head, budgets)


def _few(reasons: Sequence[str]) -> tuple[str, ...]:
    distinct = list(dict.fromkeys(reasons))
    more = len(distinct) - _MOST_REASONS
    return (*distinct[:_MOST_REASONS], *((f"and {more} more",) if more > 0 else ()))


@dataclass(frozen=True)
class _Recomputed:
    """What a ledger makes of the statements of a finished run."""

    ledger: Ledger
    files: RunFiles
    summary: Summary
    nominal: bool

    @cached_property
    def _ending(self) -> Ending | None:
        return self.ledger.sealed(self.files.run).ending

    @property
    def _block(self) -> str:
        return self.files.identity.block or ""

    @cached_property
    def _charged(self) -> list[Account]:
        run = self.files.run
        return [a for a in self.ledger.accounts() if self.ledger.rounds_charged(run, a.id)]

    @cached_property
    def _accounts(self) -> dict[str, Account]:
        """Those that the run charged, whatever run.json says; of others, those it would have."""
        named = {own.client: own for own in self.ledger.accounts() if own.block == self._block}
        return named | {own.client: own for own in self._charged}

    @property
    def budgets(self) -> dict[str, Pair | None] | None:
        """What each client held when the run ended; None where the summary does not say when."""
        if (decided := self.summary.decided) is None:
            return None
        found: dict[str, Pair | None] = {}
        for person in self.files.clients:
            account = self._accounts.get(person.name)
            held = self.ledger.budgets(account.id, decided.number) if account else []
            found[person.name] = (held[-1].epsilon, held[-1].delta) if held else None
        return found

    def differences(self) -> Iterator[Difference]:
        """Where what is stated is not what the charges cost."""
        version = self.files.identity.udpfl
        for each in self._differences():
            yield each.by(version, __version__)

    def _differences(self) -> Iterator[Difference]:
        said, stated = self.summary.clients, self.summary.privacy
        if said.keys() != {person.name for person in self.files.clients}:
            yield Difference("summary.json and participants.json name different clients")
            return
        yield from self._strangers(said)
        for person in self.files.clients:
            yield from self._of_client(person, said[person.name])
        # Each client's own was compared with the ledger above.
        yield from differences("summary.json for the run", stated, largest(said.values()))
        if self.summary.statement != str(stated):
            yield Difference(
                "the sentence in summary.json is not that of its statement", is_wording=True
            )
        yield from self._of_model(stated)
        held = self.budgets
        if held is not None and self.summary.budgets != held:
            yield Difference("the budgets in summary.json are not those in the ledger")

    def _strangers(self, said: Mapping[str, PrivacyStatement]) -> Iterator[Difference]:
        for own in self._charged:
            if own.client not in said:
                yield Difference(
                    f"{own.client} was charged in this run, but is not one of its clients"
                )
            if own.block != self._block:
                named = f"the block {self._block}" if self._block else "no block"
                yield Difference(f"the run charged {own.name}, but run.json names {named}")

    def _of_client(self, person: ClientRow, stated: PrivacyStatement) -> Iterator[Difference]:
        name, account = person.name, self._accounts.get(person.name)
        if stated.kind == "none":  # claims nothing
            return
        if account is None:
            yield Difference(f"the ledger has no account of {name}")
            return
        if stated.delta not in self._deltas(account, person):
            yield Difference(
                f"δ = {stated.delta:g} of {name} in summary.json is not that of its budget"
            )
            return
        # Without a head, others may have charged a shared ledger between this run's last and end.
        head, run = self.summary.head, self.files.run
        unsure = head is None and bool(self.files.identity.ledger)
        up_to = self.ledger.last_charge(run) if unsure else head and head.number
        nominal_run = run if self.nominal else None
        found = self.ledger.statement(account.id, stated.delta, nominal_run, up_to)
        if self._ending is not None:
            sealed = self._ending.outcome  # earlier versions had notes among the assumptions
            found = found.adding(assumptions=sealed["assumptions"], notes=sealed.get("notes", ()))
        is_sealed = self._ending is not None
        for each in differences(f"summary.json for {name}", stated, found, all_notes=is_sealed):
            yield each.doubted(_NO_HEAD) if unsure else each

    def _deltas(self, account: Account, person: ClientRow) -> set[float | None]:
        """At which deltas the client may be stated: of budgets it has had, else its own."""
        decided = self.summary.decided
        held = self.ledger.budgets(account.id, decided.number if decided else None)
        if held:
            return {budget.delta for budget in held}
        return {person.stated_delta}

    def _of_model(self, stated: PrivacyStatement) -> Iterator[Difference]:
        """Where the header of the model says something else than the summary."""
        stamp = self.files.stamp
        if stamp is None or (self.summary.head is None and stamp.privacy is None):
            return
        if (header := stamp.stated) is None:
            yield Difference("the header of the model has no statement")
            return
        yield from differences("the header of the model", header, stated)
        if stamp.statement != self.summary.statement:
            yield Difference("the header of the model has another statement than summary.json")
