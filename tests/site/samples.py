"""Small sites: records that take no time to train on, policies, and requests to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from udpfl.algorithms import ClientMessage
from udpfl.config import load as load_config
from udpfl.data import DataSet, Records
from udpfl.federation.builders import build_algorithm
from udpfl.site import Gate, Policy, SiteRequest, settings_to_propose

RECORDS, WIDTH = 60, 4
DIMENSION = WIDTH * 2 + 2
"""Parameters of a logistic model for two classes."""
LOADER = f"{__name__}:load"


def load(*, seed, directory, test, options):
    """The records of a site."""
    rng = np.random.default_rng([options.get("site", 0), 7])
    labels = np.arange(RECORDS) % 2
    inputs = rng.normal(size=(RECORDS, WIDTH)) + 2 * labels[:, None]
    records = Records(inputs.astype(np.float32), labels)
    return DataSet("small", "classification", train=records, test=records, classes=2)


def policy(folder, site=0, **changes):
    """A policy that allows `request()`; changes are tables, merged key by key."""
    values = {
        "name": f"client-{site}",
        "state": str(folder / f"state-{site}"),
        "data": {"name": LOADER, "options": {"site": site}, "declared_size": 60},
        "budget": {"epsilon": 4.0, "delta": 1e-5},
        "releases": {"in_all": 20, "per_round": 2, "sampling_rate": 0.5},
        "server": {"models": [{"name": "logistic"}], "minimum_cohort": 2, "parameters": 100},
        "machine": {"threads": 1},
    }
    for name, table in changes.items():
        known = values.get(name, {})
        values[name] = {**known, **table} if isinstance(table, dict) else table
    return Policy.of(values)


def gate(folder, site=0, **changes):
    return Gate(policy(folder, site, **changes))


def settings(**changes):
    """What a server proposes: sections of a configuration."""
    values = {
        "data": {"clients": 3},
        "model": {"name": "logistic"},
        "training": {"rounds": 4, "sampling_rate": 0.5, "learning_rate": 0.5},
    }
    for name, table in changes.items():
        values[name] = {**values.get(name, {}), **table} if isinstance(table, dict) else table
    return values


def proposed(**changes):
    return settings_to_propose(load_config(settings(**changes)))


def request(round_=1, client=0, run="run-1", **changes):
    """A request that the policy allows, with the tensors of its method."""
    sent = proposed(**changes)
    method = build_algorithm(load_config(settings(**changes)))
    tensors = method.broadcast(method.init(torch.zeros(DIMENSION)))
    return SiteRequest(run, sent, round_, tensors, 0.5, cohort=3, client=client)


def with_privacy(sent: SiteRequest, **keys) -> SiteRequest:
    """The request with other keys of the section privacy."""
    return with_section(sent, "privacy", **keys)


def with_section(sent: SiteRequest, name, /, **keys) -> SiteRequest:
    return replace(sent, settings={**sent.settings, name: {**sent.settings[name], **keys}})


def message_of(answer) -> ClientMessage:
    assert not answer.refused, answer.refused
    return ClientMessage.from_bytes(answer.message)


def everything_in(ledger):
    """All that a ledger holds, to compare."""
    tables = ("runs", "accounts", "decisions", "charges", "outbox")
    return {name: ledger._file.rows(f"SELECT * FROM {name}") for name in tables}
