"""Runs and charges of a ledger that one run writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tests.accounting.samples import STEP
from udpfl import Repeated
from udpfl.ledger.charges import Charge

ROUND = Repeated(STEP, 5)
TABLES = ("charges", "outbox")


def begin(ledger, run="run", randomness="entropy"):
    ledger.begin_run(run, randomness=randomness, accounting="vector", description={"rounds": 9})


def charge(account, round_, *events, run="run", message=None, state=b""):
    return Charge(account, run, round_, events, message or f"answer {round_}".encode(), state)


def raw(path):
    return closing(sqlite3.connect(path, isolation_level=None))


def counted(path):
    with raw(path) as db:
        return tuple(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES)
