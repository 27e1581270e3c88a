"""Runs and charges of accounts that several runs share."""

from __future__ import annotations

from udpfl import Gaussian, PoissonSampled, Release, Sensitivity
from udpfl.ledger.charges import Charge

STEP = PoissonSampled(0.05, Release(Gaussian(1.2), Sensitivity(1.0)))
OTHER = PoissonSampled(0.1, Release(Gaussian(3.0), Sensitivity(1.0)))


def begin(ledger, run, folder="", randomness="entropy"):
    description = {"folder": folder} if folder else {}
    ledger.begin_run(run, randomness=randomness, accounting="vector", description=description)


def charge(account, round_, *events, run="first", fingerprint=""):
    message = f"{run} {round_}".encode()
    return Charge(account, run, round_, events, message, fingerprint=fingerprint)
