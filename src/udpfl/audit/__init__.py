"""The product tests its own claims as an adversary would. Needs the extra `train`."""

from udpfl.audit.canaries import canary
from udpfl.audit.mechanism import audit_releases
from udpfl.audit.replay import Subject, audit_engine
from udpfl.audit.verdict import Test, Verdict
from udpfl.audit.worlds import Releases

__all__ = ["Releases", "Subject", "Test", "Verdict", "audit_engine", "audit_releases", "canary"]
