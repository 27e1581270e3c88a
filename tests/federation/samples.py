"""Three blobs, a small network, and what a run folder says."""

from __future__ import annotations

import json

import numpy as np
import torch
from torch import nn

from udpfl.accounting.serial import event_from_dict
from udpfl.algorithms import FedAvg
from udpfl.ledger.ledger import Ledger

DIMENSION = 43  # of `network()`


def blobs(n=90, seed=0):
    """Three classes around three corners, every record unlike any other."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 4)) + 3 * np.eye(4)[y]
    return x.astype(np.float32), y


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def without_gradient(outputs, targets):
    """A loss that no parameter changes: whatever a client sends is noise."""
    return 0.0 * outputs.flatten(1).sum(1)


class Watch:
    """Keeps everything an observer is shown."""

    def __init__(self):
        self.messages, self.models, self.rows = [], {}, []

    def on_message(self, message):
        self.messages.append(message)

    def on_model(self, round_, model):
        self.models[round_] = model

    def on_round(self, row):
        self.rows.append(row)

    def of(self, round_):
        return [message for message in self.messages if message.round == round_]


def flat(model):
    tensors = model.values() if isinstance(model, dict) else model.parameters()
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def read(result, name):
    return json.loads((result.folder / name).read_text())


def records_of(result):
    with np.load(result.folder / "records.npz") as arrays:
        return dict(arrays)


def parts_of(result):
    arrays = records_of(result)
    return [arrays[f"client-{i}"] for i in range(sum("client" in name for name in arrays))]


def charged(result, client):
    with Ledger(result.ledger_path, read_only=True) as ledger:
        return [entry for entry in ledger.history() if entry.client == client]


def account_of(path, client):
    with Ledger(path, read_only=True) as ledger:
        (found,) = ledger.find(client)
    return found.id


SEEDED = {"randomness": "seeded"}


def noise_of(row):
    return event_from_dict(row["release"]).mechanism


class Meanwhile(Watch):
    """Does something to the ledger after a round, as another process would."""

    def __init__(self, ledger, after, change):
        super().__init__()
        self.ledger, self.after, self.change = ledger, after, change

    def on_round(self, row):
        super().on_round(row)
        if row["round"] == self.after:
            with Ledger(self.ledger) as ledger:
                for found in ledger.accounts():
                    self.change(ledger, found)


class Counting(FedAvg):
    """Every client counts its rounds and sends the count."""

    name = "counting"

    def client_init(self, parameters):
        return {"rounds": torch.zeros(2)}

    def client_step(self, received, state, train):
        tensors, _ = super().client_step(received, state, train)
        state = {"rounds": state["rounds"] + torch.tensor([1.0, 10.0])}
        return {**tensors, "rounds": state["rounds"]}, state
