"""A second, independent look at a budget ledger: every line, every total, every epsilon.

Nothing here trusts `udpfl.ledger` or `udpfl.accounting`. The file is read with plain SQL, the
events with a reader of its own, and what releases cost is enclosed from both sides; only then is
`Ledger` asked, and what it says is compared.
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

from udpfl.accounting.described import counted
from udpfl.accounting.statement import PrivacyStatement, shown
from udpfl.audit._costs import bounds, least_by_filter, tractable
from udpfl.audit._events import NO_CLAIM, Seen, flattened, read, same_text
from udpfl.audit._ledger_rows import Rows, rows_of
from udpfl.errors import InvalidInput, LedgerError, LedgerUnavailable, UdpflError
from udpfl.ledger.file import is_out_of_reach, reading_uri
from udpfl.ledger.ledger import Ledger
from udpfl.runs.ledgers import ledger_at

_TRIES = 3
_FORMER = (
    "an earlier version wrote it; any command that writes to it upgrades it, for example `udpfl "
    "budget set`"
)


@dataclass(frozen=True)
class AccountAudit:
    """One client, or a block of its records, and what it costs by two ways of computing it."""

    client: str
    block: str
    releases: int
    stated: float
    """Epsilon as the ledger states it; inf where it claims nothing."""
    least: float
    most: float
    """inf where no second upper bound is known: by a filter, for one."""
    delta: float

    @property
    def is_enough(self) -> bool:
        """Whether what is stated is not below the lower bound, last digits aside."""
        return self.stated >= self.least * (1 - 1e-6)

    def __str__(self) -> str:
        who = f"{self.client} (block {self.block})" if self.block else self.client
        made = f"{who}: {counted(self.releases, 'release')}"
        if math.isinf(self.least) and math.isinf(self.stated):
            return f"{made}, no privacy claimed"
        return f"{made}, ε = {shown(self.stated)} stated at δ = {self.delta:g}; {self._second()}"

    def _second(self) -> str:
        """What the second computation makes of the stated number."""
        if math.isinf(self.stated):
            return "a second computation could not be compared with it"
        if not self.is_enough:
            return f"too small: a second computation needs ε = {self.least:.4g} at least"
        if math.isinf(self.most):
            low = _down(min(self.least, self.stated))
            return f"not too small: a second computation needs {low} (no second upper bound known)"
        if self.stated > self.most:
            return f"not too small: a second computation needs at most {shown(self.most)}"
        low = _down(min(self.least, self.stated))
        return f"agrees with a second computation, between {low} and {shown(self.most)}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers are the string "inf"."""
        return {key: "inf" if value == math.inf else value for key, value in asdict(self).items()}


@dataclass(frozen=True)
class LedgerAudit:
    """What was found in a ledger. Problems refute it; remarks are worth a look."""

    accounts: tuple[AccountAudit, ...]
    charges: int
    problems: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing contradicts the ledger."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sound": self.sound,
            "verdict": str(self),
            "charges": self.charges,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "accounts": [account.to_dict() for account in self.accounts],
        }

    def __str__(self) -> str:
        if self.problems:
            word = "problem" if len(self.problems) == 1 else "problems"
            return f"ledger: {len(self.problems)} {word}: {'; '.join(self.problems)}"
        clients = len({account.client for account in self.accounts})
        return (
            f"ledger: {counted(self.charges, 'charge')} of {counted(clients, 'client')} "
            f"{'agrees' if self.charges == 1 else 'agree'} with a second computation"
        )


def _down(epsilon: float) -> str:
    """Four digits, rounded down: a lower bound never looks larger than what it bounds."""
    if not math.isfinite(epsilon) or epsilon == 0:
        return f"{epsilon:g}"
    unit = Decimal(1).scaleb(math.floor(math.log10(epsilon)) - 3)
    return f"{float(Decimal(epsilon).quantize(unit, ROUND_FLOOR)):.4g}"


def audit_ledger(
    path: Path, delta: float = 1e-5, *, progress: Callable[[str, int, int], None] | None = None
) -> LedgerAudit:
    """Check the ledger of that name, or of that run's folder, against a second computation.

    Args:
        path: The file of a ledger, or a run folder.
        delta: Where epsilon of accounts without a budget is compared; with one, its own delta
            counts.
        progress: Called with what is being done, how much of it is done, and how much there is.

    Returns:
        What both computations say of every account, and the problems that were found.

    Raises:
        InvalidInput: `delta` is out of range, or there is no ledger.
        LedgerError: The file cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from udpfl import Ledger
        >>> from udpfl.audit import audit_ledger
        >>> Ledger("ledger.sqlite").close()
        >>> audit_ledger(Path("ledger.sqlite")).sound
        True
    """
    if not 0 <= delta < 1:
        raise InvalidInput("delta", f"must lie in [0, 1), got {delta!r}")
    file = ledger_at(Path(path))
    uri = reading_uri(file)
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None)) as db:
            if _is_former(db):
                return LedgerAudit((), 0, (_FORMER,))
            for _ in range(_TRIES):  # once more where another process wrote in between
                version = db.execute("PRAGMA data_version").fetchone()
                db.execute("BEGIN")
                if progress is not None:
                    progress("adding up the charges", 0, 1)
                rows = rows_of(db)
                db.execute("ROLLBACK")
                found = _compared(file, rows, delta, progress)
                if db.execute("PRAGMA data_version").fetchone() == version:
                    break
    except sqlite3.Error as error:
        if is_out_of_reach(error):
            raise LedgerUnavailable(f"cannot read ledger {file}: {error}") from error
        return LedgerAudit((), 0, (f"the file cannot be read: {error}",))
    return found


def _is_former(db: sqlite3.Connection) -> bool:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    return "budgets" in tables and db.execute("SELECT schema FROM meta").fetchall() == [(1,)]


def _compared(
    file: Path, rows: Rows, delta: float, progress: Callable[[str, int, int], None] | None
) -> LedgerAudit:
    problems, remarks = list(rows.problems), list(rows.remarks)
    accounts: list[AccountAudit] = []
    try:
        with Ledger(file, read_only=True) as ledger:
            for number in sorted(rows.accounts):
                if progress is not None:
                    progress("computing each ε again", len(accounts), len(rows.accounts))
                accounts.append(_account(ledger, rows, number, delta, problems, remarks))
            if [found.id for found in ledger.accounts()] != sorted(rows.accounts):
                problems.append("the accounts that the ledger lists are not those in its file")
    except LedgerUnavailable:  # tells nothing about its content
        raise
    except LedgerError as error:
        problems.append(f"the ledger cannot be opened: {error}")
    return LedgerAudit(tuple(accounts), len(rows.charges), tuple(problems), tuple(remarks))


def _account(
    ledger: Ledger,
    rows: Rows,
    number: int,
    delta: float,
    problems: list[str],
    remarks: list[str],
) -> AccountAudit:
    client, block, _ = rows.accounts[number]
    budget, totals = rows.budgets.get(number), rows.totals(number)
    at = budget[1] if budget else delta
    releases, least, most = _releases(totals), 0.0, math.inf
    reason = rows.unclaimed(number)
    try:
        seen = Counter[Seen]()
        for text, count in (totals | rows.planned(number) if totals else totals).items():
            if text != NO_CLAIM:
                for release, times in read(text).items():
                    seen[release] += times * count
        least, most = (math.inf, math.inf) if reason else bounds(seen, at)
        if (
            seen and rows.rule(number) and not reason
        ):  # a filter states more than what is fixed costs
            least, most = max(least, least_by_filter(seen, at, rows.rule(number))), math.inf
        remarks += (f"client {client}: {remark}" for remark in _not_bounded(seen))
        stated = _stated(ledger, rows, number, at, totals)
    except (UdpflError, ValueError) as error:
        if isinstance(error, LedgerError):
            raise
        problems.append(f"client {client}: cannot be accounted: {error}")
        return AccountAudit(client, block, releases, math.inf, least, most, at)
    claimed = stated.kind == "guarantee"
    said = f"client {client}: ε = {shown(stated.epsilon)} is stated at δ = {stated.delta:g}"
    if claimed == bool(reason):
        unsaid = f"client {client}: no privacy is claimed, though it could be"
        problems.append(f"{said}, but {reason}" if reason else unsaid)
    elif claimed:
        if stated.delta != at:
            problems.append(f"{said}, but its budget is at δ = {at:g}")
        elif not stated.epsilon >= least * (1 - 1e-6):
            problems.append(f"{said}, which understates it: it is {least:.6g} at least")
        elif stated.epsilon > most * (1 + 1e-3):
            remarks.append(f"{said}, larger than the {most:.6g} that a second accountant needs")
        if budget and stated.epsilon > budget[0]:
            remarks.append(f"{said}, more than its budget ε = {budget[0]:g}")
    return AccountAudit(client, block, releases, stated.epsilon, least, most, at)


def _releases(totals: Mapping[str, int]) -> int:
    """How many releases a record may have taken part in; an event that cannot be read is one."""
    total = 0
    for text, count in totals.items():
        try:
            inner = {Seen(None, 0.0): 1} if text == NO_CLAIM else read(text)
        except (UdpflError, ValueError):
            inner = {Seen(None, 0.0): 1}
        total += count * sum(times * release.passes for release, times in inner.items())
    return total


def _stated(
    ledger: Ledger, rows: Rows, number: int, delta: float, totals: Counter[str]
) -> PrivacyStatement:
    """What the ledger says of an account, once its totals and its budget are seen to be right."""
    own = ledger.budget(number)
    if (own and (own.epsilon, own.delta)) != rows.budgets.get(number):
        raise ValueError(f"the ledger uses another budget, {own}")
    counted = Counter[str]()
    for text, count in totals.items():
        if text != NO_CLAIM:
            counted[same_text(text)] += count
    if flattened(ledger.spent(number)) != counted:
        raise ValueError("the ledger's totals are not the sum of its charges")
    return ledger.statement(number, delta)


def _not_bounded(seen: Counter[Seen]) -> Iterator[str]:
    for release in seen:
        if not tractable(release):
            what = release.hidden or (release.noise.name if release.noise else "")
            yield f"no second lower bound is known for releases with {what}"
