"""The selection that the epsilon of one run leaves out, and what all runs together cost.

Whoever picks one of K runs by its result has looked at all of them. The epsilon of the run that was
picked knows nothing of the others; what holds for the choice is the composition of all runs on the
same records.

Guarantee: a total is an upper bound on what the counted runs together tell about one unit, if their
settings do not depend on what the others released (adaptive composition is of mechanisms that are
fixed beforehand). Where the noise of a run followed its results, a filter adds all of them up, and
the total holds whatever settings depended on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from udpfl.accounting.alternatives import account_alternatives
from udpfl.accounting.events import Composed, Event, Unit
from udpfl.accounting.filter import Filter
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.errors import UdpflError
from udpfl.ledger import Ledger
from udpfl.report.read import RunRecord
from udpfl.report.words import RELATION, UNITS, WHOSE, counted, trusts_server

Sameness = Literal["same", "dealt anew", "not known"]
"""Whether the clients of all runs hold the same records, the records of one data set in different
shares, or records of which it cannot be told."""
_OWN = "own"  # the name of data that was handed over in Python
_TESTED = "assumes that test records are public, also where another run trains on them"
_CHOSEN = "The ε of one run does not cover the choice of this run by its result"


@dataclass(frozen=True)
class Total:
    """What the runs on one data set, and for one unit, cost together."""

    data: str
    runs: int
    records: Sameness
    privacy: PrivacyStatement
    only: Unit | None = None
    """The unit of its runs, where others on the same records hide another one."""
    below: str = ""
    """Why it is less than what one of the runs states alone; empty where it is not."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "data": self.data,
            "runs": self.runs,
            "records": self.records,
            "privacy": self.privacy.to_dict(),
            "below": self.below,
        }


@dataclass(frozen=True)
class RunSelection:
    """Several runs to choose from, and the total of those on the same records."""

    runs: int
    """How many there are to choose from."""
    totals: tuple[Total, ...]
    """What those on the same records cost together."""
    fixed: bool
    """Whether the settings are known to have been fixed before the first run was trained."""
    elsewhere: int = 0
    """Runs that are the only ones on their data: they are in no total."""
    earlier: int = 0
    """Runs in the totals that are of earlier grids in the same folder."""

    @property
    def sentence(self) -> str:
        """What a reader has to know before choosing a run."""
        units = any(total.only for total in self.totals)
        parts = [_CHOSEN + ": " + "; ".join(map(self._said, self.totals))]
        parts += [total.below for total in self.totals if total.below]
        if units:
            parts.append("There is no total for both units together")
        if self.earlier:
            parts.append(
                f"This includes {counted(self.earlier, 'run')} of earlier grids in this folder"
            )
        if self.elsewhere:
            parts.append(f"This does not include {counted(self.elsewhere, 'run')} on other data")
        return ". ".join(parts) + "."

    def _said(self, total: Total) -> str:
        where = "the same records" if len({t.data for t in self.totals}) == 1 else total.data
        which = f"all {total.runs} runs on {where}"
        if total.only:
            which = f"{counted(total.runs, 'run')} on {where} that hide {WHOSE[total.only]}"
        said = total.privacy
        if said.kind == "none":
            return f"{which} together are not private ({'; '.join(said.notes)})"
        fixed = (
            "with settings fixed before the first of them was trained"
            if self.fixed
            else "if their settings were fixed beforehand"
        )
        if said.composition == "filter":
            fixed = "whatever their settings depended on"
        trusted = ", against everyone but the trusted server" if trusts_server(said) else ""
        remark = _REMARKS[total.records]
        if said.unit == "client" and remark:
            remark = f"{remark}; this holds for someone who is one client in each run"
        return (
            f"{which}, {fixed}, together cost ε = {shown(said.epsilon)} at δ = {said.delta:g} for "
            f"{UNITS[said.unit]} {RELATION[said.neighbours]}{trusted}"
            + (f" ({remark})" if remark else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sentence": self.sentence,
            "runs": self.runs,
            "fixed_beforehand": self.fixed,
            "earlier_runs": self.earlier,
            "runs_on_other_data": self.elsewhere,
            "totals": [total.to_dict() for total in self.totals],
        }


_REMARKS: dict[Sameness, str] = {
    "same": "",
    "dealt anew": "the runs divide the records in different ways, so the costliest client of each "
    "run counts, and test records count as public",
    "not known": "it is not known whether these are the same records: they count as the same",
}


@dataclass(frozen=True)
class _Member:
    """A run, and what it charged to every account."""

    run: RunRecord
    spent: Mapping[tuple[str, str], Event]
    """By the client's name and the fingerprint of its records."""
    unclaimed: str
    """Why no number holds for it; empty where one does."""

    @property
    def data(self) -> tuple[str, str]:
        """Which data set: its name, and the name of the file where that is what makes it."""
        data = self.run.config.data
        return data.name, Path(str(data.options.get("path", ""))).name

    @property
    def settings(self) -> str:
        """All that decides which records are read."""
        data = self.run.config.data
        return json.dumps([data.name, data.dir, data.options], sort_keys=True, default=str)


def selection_of(
    runs: Sequence[RunRecord], *, fixed: bool = False, earlier: int = 0
) -> RunSelection | None:
    """What a choice among these runs leaves out; None where no two of them share records.

    Args:
        runs: What `read_run` returned for each run.
        fixed: Whether all settings are known to have been fixed before the first run was trained.
        earlier: How many of the runs are of earlier grids in the same folder.

    Returns:
        The total of runs on the same records, or None.

    Example:
        >>> import numpy as np
        >>> import udpfl
        >>> from udpfl.report import read_run, selection_of
        >>> own = {"data": (np.eye(20), np.arange(20) % 2), "model": "logistic", "threads": 1}
        >>> done = udpfl.run({"data": {"clients": 2}, "training": {"rounds": 1}}, **own)
        >>> selection_of([read_run(done.folder)]) is None
        True
    """
    # A ledger that several runs share is asked for each of them alone, and for none twice.
    distinct = {(run.ledger.resolve(), run.identity.id): run for run in runs}
    groups = _grouped([_member(run) for run in distinct.values()])
    totals = [total for group in groups if len(group) > 1 for total in _totals(group)]
    if not totals:
        return None
    alone = sum(len(group) == 1 for group in groups)
    return RunSelection(len(distinct), tuple(totals), fixed, alone, earlier)


def _member(run: RunRecord) -> _Member:
    unclaimed = run.uncounted or ("; ".join(run.statement.notes) if run.kind == "none" else "")
    if not unclaimed:
        try:
            return _Member(run, _charged(run), "")
        except UdpflError as error:
            unclaimed = str(error)
    return _Member(run, {}, f"{run.name}: {unclaimed}")


def _charged(run: RunRecord) -> dict[tuple[str, str], Event]:
    name = run.identity.id
    with Ledger(run.ledger, read_only=True) as ledger, ledger.snapshot():
        held, known = ledger.data_of(name), ledger.accounts()
        spent = {(a.client, held[a.id]): ledger.spent(a.id, name) for a in known if a.id in held}
    return {account: event for account, event in spent.items() if event is not None}


def _grouped(members: Sequence[_Member]) -> list[list[_Member]]:
    """Runs on the same data: of one name, or with a client that holds the same records."""
    groups: list[list[_Member]] = []
    for member in members:
        joined = [g for g in groups if any(_share_records(member, other) for other in g)]
        groups = [g for g in groups if g not in joined]
        groups.append([*(other for group in joined for other in group), member])
    return groups


def _share_records(one: _Member, other: _Member) -> bool:
    return one.data == other.data or not one.spent.keys().isdisjoint(other.spent)


def _totals(group: Sequence[_Member]) -> Iterator[Total]:
    name = group[0].run.config.data.name
    if unclaimed := [member.unclaimed for member in group if member.unclaimed]:
        none = PrivacyStatement.none(unclaimed[0])
        yield Total(name, len(group), _sameness(group), none)
        return
    units = [unit for unit in UNITS if any(member.run.unit == unit for member in group)]
    for unit in units:
        own = [member for member in group if member.run.unit == unit]
        if (privacy := _together(own)) is not None:
            only = unit if len(units) > 1 else None
            yield Total(name, len(own), _sameness(own), privacy, only, _below(own, privacy))


def _below(members: Sequence[_Member], total: PrivacyStatement) -> str:
    """Why a total is less than what one of its runs states alone; empty where it is not."""
    if total.kind == "none":
        return ""
    costliest = max((member.run for member in members), key=lambda r: r.statement.vector_epsilon)
    stated = costliest.statement
    if not total.epsilon < stated.vector_epsilon * (1 - 1e-9):
        return ""
    reasons = []
    if stated.delta < total.delta:
        reasons.append(
            f"it is at δ = {total.delta:g}, the largest of all runs, and that run at the smaller "
            f"δ = {stated.delta:g}"
        )
    if stated.accountant != total.accountant:
        reasons.append(
            f"that run states the number of the {stated.accountant} accountant, and the total is "
            f"by the tightest one that applies ({total.accountant})"
        )
    if costliest.shared_ledger:
        reasons.append("the number of that run includes other runs that were charged before it")
    why = "; ".join(reasons) or "all releases are accounted at once"
    return (
        f"This total is less than the ε = {shown(stated.vector_epsilon)} that "
        f"{costliest.name} states alone: {why}. Both are upper bounds"
    )


def _sameness(members: Sequence[_Member]) -> Sameness:
    settings = {member.settings for member in members}
    if len(_deals(members)) <= 1 and not any(member.unclaimed for member in members):
        return "same"
    named = len(settings) == 1 and members[0].run.config.data.name != _OWN
    return "dealt anew" if named else "not known"


def _deals(members: Sequence[_Member]) -> list[list[_Member]]:
    """Runs in which every client held the same records as in the others of its list.

    The accounts of the first one contain those of the rest, so nobody is at one client in one of
    them and at another client in another.
    """
    deals: list[list[_Member]] = []
    for member in sorted(members, key=lambda m: -len(m.spent)):
        if not member.spent:
            continue
        for deal in deals:
            if member.spent.keys() <= deal[0].spent.keys():
                deal.append(member)
                break
        else:
            deals.append([member])
    return deals


def _together(members: Sequence[_Member]) -> PrivacyStatement | None:
    """The largest spending of any client over all these runs; None if nothing was released."""
    sets = [
        [Composed(m.spent[who] for m in deal if who in m.spent) for who in deal[0].spent]
        for deal in _deals(members)
    ]
    if not sets:
        return None
    statements = [member.run.statement for member in members]
    # A filter that no result has chosen, where noise followed results.
    follows = any(member.run.config.privacy.pace == "plateau" for member in members)
    try:
        total = account_alternatives(
            sets,
            max(statement.delta for statement in statements),
            Filter.planned() if follows else None,
        )
    except UdpflError as error:
        return PrivacyStatement.none(f"their releases cannot be added up: {error}")
    assumed = [own for statement in statements for own in statement.assumptions]
    if len(sets) > 1:
        assumed.append(_TESTED)
    return total.adding(assumptions=assumed)
