"""Runs with a trusted server."""

from __future__ import annotations

from tests.small import Wide


def trusted(federate, participation=1.0, training=None, seen=None, **privacy):
    return federate(
        privacy,
        {"algorithm": "dp-fedavg", "options": {"participation": participation}, **(training or {})},
        net=Wide(),
        clients=6,
        seen=seen,
    )
