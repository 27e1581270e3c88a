"""Ledgers that an earlier version wrote: there, every data set of a client had its own account.

Accounts merge by client, so all that was ever charged to one counts together. Charges keep their
numbers and hashes, which run folders know. The table `former_accounts` stays: those hashes were
made with its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from udpfl.accounting.filter import Filter
from udpfl.errors import LedgerError
from udpfl.ledger.accounts import Runs
from udpfl.ledger.chain import chained, end_problems
from udpfl.ledger.decisions import Decisions
from udpfl.ledger.file import LedgerFile

_CHARGES = (
    "SELECT c.id, c.account, a.client, a.fingerprint, c.run, r.randomness, c.round, c.count, "
    "c.event, c.note, c.charged_at, c.chain FROM charges c "
    "LEFT JOIN accounts a ON a.id = c.account LEFT JOIN runs r ON r.id = c.run ORDER BY c.id"
)

_CHARGED = "SELECT DISTINCT a.client FROM charges c JOIN accounts a ON a.id = c.account"


def upgrade(file: LedgerFile) -> None:
    """Bring a file of the former format into the present one, all of it or nothing."""
    with file.writing():
        if not file.is_former:  # another process was faster
            return
        if problem := next(_problems(file), None):
            raise LedgerError(f"{file.path} is not sound, so it was not changed: {problem}")
        budgets = file.rows(  # the last one of every account
            "SELECT a.client, b.epsilon, b.delta "
            "FROM budgets b JOIN accounts a ON a.id = b.account "
            "WHERE b.id = (SELECT max(id) FROM budgets WHERE account = a.id)"
        )
        charged = {client for (client,) in file.each(_CHARGED)}
        several = len(file.rows("SELECT DISTINCT run FROM charges")) > 1
        accounts = file.rows("SELECT id, client, fingerprint FROM accounts ORDER BY id")
        file.put_former_tables_aside()
        # A run's own ledger lies in its folder, and nothing else is ever charged to it.
        own = (file.path.parent / "run.json").is_file() and not several
        runs: Runs = "one" if own else "many"
        clients = list(dict.fromkeys(client for _, client, _ in accounts))
        for number, client in enumerate(clients, 1):
            file.write("INSERT INTO accounts VALUES (?, ?, '', ?)", number, client, runs)
        _copy(file)
        decisions = Decisions(file)
        charges = file.rows("SELECT count(*) FROM charges")[0][0]
        decisions.append("upgrade", None, {"format": 1, "charges": charges})
        for number, client in enumerate(clients, 1):
            content = {"client": client, "block": "", "runs": runs}
            data = [fingerprint for _, name, fingerprint in accounts if name == client]
            merged = f"{len(data)} accounts of {client}, one for each data set, are one now"
            decisions.append("open", number, content, merged if len(data) > 1 else "")
            held = min(((e, d) for name, e, d in budgets if name == client), default=None)
            if runs == "many":  # what was charged already may have decided on the budget
                fixed = client in charged
                planned = Filter.planned() if fixed or held is None else Filter.planned(*held)
                said = "the same for every account that was charged before" if fixed else ""
                decisions.append("orders", number, planned.to_dict(), said)
            for fingerprint in data:
                decisions.append("data", number, {"fingerprint": fingerprint})
            if held:
                said = "the smallest budget of its accounts" if len(data) > 1 else ""
                decisions.append("budget", number, {"epsilon": held[0], "delta": held[1]}, said)
        file.finish_upgrade()


def _copy(file: LedgerFile) -> None:
    owner = "JOIN former_accounts f ON f.id = o.account JOIN accounts a ON a.client = f.client"
    file.write(
        "INSERT INTO charges SELECT o.id, a.id, o.run, o.round, o.count, o.event, o.note, "
        f"f.fingerprint, o.charged_at, 0, o.chain FROM former_charges o {owner} ORDER BY o.id"
    )
    # Two data sets of one client in one run and round: one answer is kept, both charges are.
    file.write(
        "INSERT OR IGNORE INTO outbox SELECT o.run, a.id, o.round, o.message, o.state, o.digest "
        f"FROM former_outbox o {owner} ORDER BY o.account"
    )


def _problems(file: LedgerFile) -> Iterator[str]:
    expected, previous = 1, ""
    for number, *content, chain in file.each(_CHARGES):
        if number != expected:
            yield f"charge {expected} is missing"
        if chained(previous, number, *content) != chain:
            yield f"charge {number} was edited, or is not the one that followed the charge before"
        expected, previous = number + 1, chain
    yield from end_problems(file, "charges", expected - 1)
