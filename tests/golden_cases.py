"""Small seeded runs of every method and stage."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch
from torch import nn

import udpfl
from udpfl.algorithms import BUILT_IN

ROUNDS = 3

CLIENT = {"unit": "client", "delta": 1e-3}
OPTIONS = {
    "dp-fedavg": {"participation": 0.5}, "fedmed": {"top_k": 2}, "trimmed-mean": {"trim": 0.34},
    "mode-connectivity": {"steps": 20},
}  # fmt: skip
BUDGETS = [2.0, 4.0, 8.0]
ANSWERS = {"ldp-fed": "linf", "cldp-sgd": "l2", "ldp-fl": "linf"}
"""Methods that answer by randomised response, and the norm of their clip."""
ONE_STEP = ("fedsgd", "cldp-sgd", "ldp-fl")


def by_method():
    """Every method as it is used by default, in the units that it has."""
    for name in BUILT_IN:
        units = ["client"] if BUILT_IN[name].unit == "client" else ["record", "client"]
        own = {"mechanism": "auto", "norm": ANSWERS[name]} if name in ANSWERS else {}
        for unit in units:
            yield (
                f"{name}, {unit}",
                {
                    "training": {"algorithm": name, "options": OPTIONS.get(name, {})},
                    "privacy": {**CLIENT, **own} if unit == "client" else {},
                },
            )


CASES = {
    **dict(by_method()),
    "no privacy": {"privacy": "none", "training": {"sampling_rate": 1.0}},
    "laplace": {"privacy": {"mechanism": "laplace"}},
    "staircase": {"privacy": {"mechanism": "staircase"}},
    "mechanisms, budgets and clips by client": {
        "privacy": {"mechanism": ["gaussian", "laplace", "staircase"], "epsilon": BUDGETS,
                    "clip": [0.5, 1.0, 1.5]},
    },
    "pure": {"privacy": {"mechanism": "laplace", "norm": "l1", "delta": 0}},
    "coordinates": {"privacy": {"norm": "linf", "clip": 0.1}},
    "scalar accounting": {"privacy": {"accounting": "scalar", "mechanism": "staircase"}},
    "adaptive clip": {"privacy": {"clip_quantile": 0.5}},
    "increasing": {"privacy": {"pace": "increasing"}},
    "decaying, whole clients": {"privacy": {"pace": "decaying", **CLIENT}},
    "penalty": {"privacy": {"epsilon": BUDGETS}, "training": {"penalty": 0.5}},
    "penalty, whole clients": {
        "privacy": {"epsilon": BUDGETS, **CLIENT}, "training": {"penalty": 0.5},
    },
    "shuffler": {"training": {"shuffle": True}},
    "shuffler, scalar": {
        "training": {"shuffle": True, "local_steps": 1}, "privacy": {"accounting": "scalar"},
    },
    "some clients": {"training": {"clients_per_round": 2}},
    "no averaging, cosine": {
        "training": {"averaging": 0.0, "schedule": "cosine", "warmup": 1, "server_momentum": 0.0},
    },
    "dirichlet": {"data": {"partition": "dirichlet"}},
    "lanes one by one": {"training": {"lanes": "single", "chunk": 4}},
}  # fmt: skip


def blobs():
    rng = np.random.default_rng(3)
    labels = np.arange(90) % 3
    return (rng.normal(size=(90, 4)) + labels[:, None]).astype(np.float32), labels


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))


def settings(case, folder):
    own = CASES[case]
    privacy = own.get("privacy", {})
    if privacy != "none":
        privacy = {"mechanism": "gaussian", "randomness": "seeded", **privacy}
    training = {"rounds": ROUNDS, "local_steps": 2, "learning_rate": 0.5, **own.get("training", {})}
    if training.get("algorithm") in ONE_STEP:
        training["local_steps"] = 1
    public = BUILT_IN[training.get("algorithm", "fedavg")].needs_public
    data = {"clients": 3, **({"public": 0.2} if public else {}), **own.get("data", {})}
    return {
        "out": str(folder), "threads": 1, "device": "cpu", "seed": 5, "data": data,
        "training": training, "privacy": privacy,
    }  # fmt: skip


class Sent(udpfl.Observer):
    """The bits of all messages."""

    def __init__(self):
        self.digest = sha256()

    def on_message(self, message):
        for name, tensor in sorted(message.tensors.items()):
            self.digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())

    def on_model(self, round_, model): ...

    def on_round(self, row): ...
