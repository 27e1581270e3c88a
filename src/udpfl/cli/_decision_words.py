"""Decisions about budgets, described in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from udpfl.ledger.charges import releases_of
from udpfl.ledger.decisions import Decision


def describe_decision(change: Decision, folders: Mapping[str, str]) -> str | None:
    """A decision in a few words; None for what only the ledger itself needs."""
    content = change.content
    run = folders.get(content.get("run", ""), content.get("run", ""))
    match change.kind:
        case "budget":
            return f"budget ε = {content['epsilon']:g} at δ = {content['delta']:g}"
        case "data":
            return f"data {content['fingerprint'][:8]}"
        case "block":
            return (
                f"block {content['block']} of {content['client']}: its people are in no other block"
            )
        case "client":
            return f"{content['client']} joins: its people are at no other client"
        case "reserve" if content.get("exchanged"):
            return f"reservation of {run} changed with its noise"
        case "reserve":
            return f"{_releases(content)} reserved for {run}"
        case "give back":
            return f"reservation of {run} freed"
        case "take over":
            return f"takes over {_releases(content)}, because records may have moved"
        case "begin":
            sealed = "" if content["files"] is None else ", its files sealed"
            by = f", planned by the {own} accountant" if (own := content.get("accountant")) else ""
            return f"{run} begun{sealed}{by}"
        case "end":
            return f"{run} ended, its files sealed"
        case "division":
            return f"one data set divided among {counted(len(content['clients']), 'client')}"
        case "upgrade":
            return f"upgraded from format {content['format']}"
        case "open":
            return "account opened" if change.reason else None
    return None


def counted(number: int, noun: str) -> str:
    """A number of things: 1 release, 2 releases."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _releases(content: Mapping[str, Any]) -> str:
    number = sum(count * releases_of(event) for event, count in content["totals"].items())
    return counted(number, "release")
