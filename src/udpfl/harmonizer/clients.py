"""Clients with budgets and mechanisms of their own, harmonised at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udpfl.errors import InvalidInput, Unsupported
from udpfl.harmonizer.calibrate import Calibrated, calibrate
from udpfl.harmonizer.choose import choose
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Mechanism, Rank


@dataclass(frozen=True)
class Client:
    """What one client asks for: its own budget and release schedule, and a mechanism or "auto"."""

    name: str
    setting: Setting
    mechanism: str | Mechanism = "auto"


@dataclass(frozen=True)
class ClientPlan:
    """The noise that keeps one client's budget, and its pull towards the weakest-privacy model."""

    client: Client
    calibrated: Calibrated
    penalty: float
    """lambda_k = (eps_max - eps_k) / eps_max of the paper: 0 for the largest budget."""


def harmonize(clients: Sequence[Client], rank: Rank = "l2") -> list[ClientPlan]:
    """Calibrate every client's noise to its own budget.

    Guarantee: each plan's statement is within that client's own (epsilon, delta). The penalties
    depend on the declared budgets alone, never on data, so using them costs nothing.
    """
    if not clients:
        raise InvalidInput("clients", "at least one client is needed")
    names = [client.name for client in clients]
    if len(set(names)) != len(names):
        raise InvalidInput("clients", "every client needs a different name")
    largest = max(client.setting.epsilon for client in clients)
    done: dict[tuple[Setting, str | Mechanism], Calibrated] = {}
    plans = []
    for client in clients:
        key = (client.setting, client.mechanism)
        if key not in done:
            done[key] = _calibrated(client, rank)
        penalty = (largest - client.setting.epsilon) / largest
        plans.append(ClientPlan(client, done[key], penalty))
    return plans


def _calibrated(client: Client, rank: Rank) -> Calibrated:
    if client.mechanism != "auto":
        return calibrate(client.mechanism, client.setting, rank)
    best = choose(client.setting, rank=rank)[0]
    if best.calibrated is None:
        raise Unsupported(f"client {client.name}: no mechanism fits ({best.why})")
    return best.calibrated
