"""Accounts in a shared ledger have terms that no later run changes: their unit and delta."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from udpfl.accounting.events import Unit, basis
from udpfl.config import PrivacyConfig, per_client
from udpfl.errors import InvalidInput
from udpfl.federation.plan import Past
from udpfl.federation.selection import list_names

log = logging.getLogger(__name__)

_HIDDEN: dict[Unit, str] = {
    "record": "single records",
    "person": "persons",
    "client": "whole clients",
}


def require_same_unit(privacy: PrivacyConfig, pasts: Mapping[str, Past]) -> None:
    """Refuse a run whose releases cannot be added to those that an account holds already."""
    for name, past in pasts.items():
        if past.held is None:
            continue
        unit, neighbours = basis(past.held)
        if unit != privacy.unit:
            raise InvalidInput(
                "privacy.unit",
                f"the account of {name} in {privacy.ledger} was charged for {_HIDDEN[unit]}, but "
                f"this run hides {_HIDDEN[privacy.unit]}: the two cannot be added up. "
                f"{_same_unit(unit)}, or use another ledger",
            )
        if neighbours != "add-remove":
            raise InvalidInput(
                "privacy.ledger",
                f"the account of {name} in {privacy.ledger} was charged for a {unit} that is "
                f"replaced, but a run is charged for a {unit} that is added or removed: the two "
                "cannot be added up. Use another ledger",
            )


def _same_unit(unit: Unit) -> str:
    return "Set data.person" if unit == "person" else f'Set privacy.unit = "{unit}"'


def tell_of_deltas(privacy: PrivacyConfig, pasts: Mapping[str, Past]) -> None:
    """Say where accounts are stated at another delta than the run is configured with."""
    configured = dict(zip(pasts, per_client(privacy.delta, len(pasts)), strict=True))
    held = {name: past.budget.delta for name, past in pasts.items() if past.budget is not None}
    others = [name for name, delta in held.items() if delta != configured[name]]
    if others:
        log.warning(
            "the budget of %s in %s is at δ = %g: this δ counts, not privacy.delta",
            *(list_names(others), privacy.ledger, held[others[0]]),
        )
