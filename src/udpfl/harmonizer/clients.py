"""Clients with budgets and mechanisms of their own, harmonised at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from udpfl.errors import BudgetExceeded, InvalidInput, Unsupported
from udpfl.harmonizer.calibrate import Calibrated, calibrate
from udpfl.harmonizer.choose import choose
from udpfl.harmonizer.setting import Setting
from udpfl.mechanisms import Mechanism, Rank


@dataclass(frozen=True)
class Client:
    """What one client asks for: its own budget and release schedule, and a mechanism or "auto".

    Example:
        >>> from udpfl import Client, Sensitivity, Setting
        >>> Client("clinic", Setting(2.0, 1e-5, 100, Sensitivity(1.0, dimension=9))).mechanism
        'auto'
    """

    name: str
    """One that no other client has."""
    setting: Setting
    """Its budget, and what it will release."""
    mechanism: str | Mechanism = "auto"
    """A name, an instance whose scale is adjusted, or "auto" for the one with the least error."""


@dataclass(frozen=True)
class ClientPlan:
    """The noise that keeps one client's budget, and its pull towards the weakest-privacy model."""

    client: Client
    """Whom the plan is for."""
    calibrated: Calibrated
    """Its noise and its statement."""
    penalty: float
    """lambda_k = (eps_max - eps_k) / eps_max of the paper: 0 for the largest budget."""


def harmonize(clients: Sequence[Client], rank: Rank = "l2") -> list[ClientPlan]:
    """Calibrate every client's noise to its own budget, or match it to its own reference.

    Guarantee: each plan's statement is within that client's own (epsilon, delta). The penalties
    depend on the declared budgets alone, never on data, so using them costs nothing.

    Args:
        clients: At least one, with names that differ.
        rank: The error by which "auto" chooses: "l2" or "l1".

    Returns:
        One plan for each client, in the same order.

    Raises:
        InvalidInput: There is no client, or two have the same name.
        Infeasible: No amount of a client's own mechanism keeps its budget.
        BudgetExceeded: Noise that matches a client's reference costs more than its budget.
        Unsupported: No mechanism fits a client that asks for "auto".

    Example:
        >>> from udpfl import Client, Sensitivity, Setting, harmonize
        >>> settings = [Setting(e, 1e-5, 100, Sensitivity(1.0)) for e in (1.0, 4.0)]
        >>> clients = [Client(f"site-{s.epsilon:g}", s, "gaussian") for s in settings]
        >>> [plan.penalty for plan in harmonize(clients)]
        [0.75, 0.0]
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
        try:
            return calibrate(client.mechanism, client.setting, rank)
        except BudgetExceeded as refusal:
            raise BudgetExceeded(f"{client.name}: {refusal}") from None
    best = choose(client.setting, rank=rank)[0]
    if best.calibrated is None:
        kind = Unsupported if client.setting.reference is None else BudgetExceeded
        raise kind(f"client {client.name}: no mechanism fits ({best.why})")
    return best.calibrated
