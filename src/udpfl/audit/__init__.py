"""The product tests its own claims as an adversary would.

The ledger is audited without torch; noise and training need the extra `train`, so their parts are
imported when they are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udpfl.audit.canaries import canary
    from udpfl.audit.lattice import audit_lattice
    from udpfl.audit.ledger import audit_ledger
    from udpfl.audit.mechanism import audit_releases
    from udpfl.audit.replay import Subject, audit_engine
    from udpfl.audit.result import AuditResult
    from udpfl.audit.run import audit_run
    from udpfl.audit.verdict import Test, Verdict
    from udpfl.audit.worlds import Releases

_HOMES = {
    "AuditResult": "result",
    "Releases": "worlds",
    "Subject": "replay",
    "Test": "verdict",
    "Verdict": "verdict",
    "audit_engine": "replay",
    "audit_lattice": "lattice",
    "audit_ledger": "ledger",
    "audit_releases": "mechanism",
    "audit_run": "run",
    "canary": "canaries",
}

__all__ = [
    "AuditResult",
    "Releases",
    "Subject",
    "Test",
    "Verdict",
    "audit_engine",
    "audit_lattice",
    "audit_ledger",
    "audit_releases",
    "audit_run",
    "canary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
