"""Which methods, units, stages and mechanisms are crossed, and which of these are refused."""

from __future__ import annotations

import itertools

from examples.plugin.udpfl_example.fedcm import FedCM
from tests.crossing_methods import Silent, TwoTrainings
from tests.federation.samples import Counting
from udpfl import mechanisms
from udpfl.algorithms import BUILT_IN
from udpfl.config import load

RECORDS, FEATURES, CLIENTS = 9, 3, 3
RATE, LOCAL_STEPS = 6.0, 2
"""So large a learning rate that updates have to be clipped."""
SIZES = {"l1": 1, "l2": 2, "linf": float("inf")}


OWN = {
    f"{kind.__module__}:{kind.__qualname__}": kind
    for kind in (FedCM, Counting, Silent, TwoTrainings)
}
METHODS = [*BUILT_IN, *OWN]
TWO_TRAININGS = f"{TwoTrainings.__module__}:TwoTrainings"
STAGES = {
    "adaptive clip": {"privacy": {"clip_quantile": 0.5, "clip_share": 0.5}},
    "pace": {"privacy": {"pace": "increasing"}},
    "plateau": {
        "privacy": {"pace": "plateau", "ledger": "x.sqlite", "accountant": "best"},
        "data": {"public": 1},
    },
    "penalty": {"training": {"penalty": 0.7}, "privacy": {"epsilon": [20.0, 30.0, 40.0]}},
    "shuffler": {"training": {"shuffle": True}},
}
NOMINAL = {
    "nominal shuffler": {
        "training": {"shuffle": True},
        "privacy": {"accounting": "scalar", "accountant": "paper"},
    }
}
PACES = {"pace", "plateau"}
"""Values of one key."""
TOGETHER = [
    together
    for size in range(3)
    for together in itertools.combinations(STAGES, size)
    if not set(together) >= PACES
]
STAGES["matching"] = {"privacy": {"harmonize": "match", "reference": 1.3}}
TOGETHER += [("matching",), ("matching", "pace"), ("matching", "adaptive clip")]
EPOCHS = {"local_steps": 1, "local_epochs": 2, "batches": 3}
"""In place of the local steps: two passes over one sample, a third of it at a time."""
EPOCHS_STAGE = {"epochs": {"training": EPOCHS}}
MECHANISMS = [*mechanisms.BUILT_IN, "tests.conftest:Logistic"]
UNITS = ["record", "client"]
OPTIONS = {
    "client-bezier": {"smoothness": "estimated"}, "dp-fedavg": {"participation": 0.5},
    "fedmed": {"top_k": 2}, "trimmed-mean": {"trim": 0.34},
}  # fmt: skip
STEPS = {"fedsgd": 1, "cldp-sgd": 1, "ldp-fl": 1}
ANSWERS = {"ldp-fed": "linf", "cldp-sgd": "l2", "ldp-fl": "linf"}
"""Methods that answer by randomised response in place of any noise, and the norm of their clip."""


def settings(method, unit, stages, mechanism, norm="l2"):
    own = {
        "data": {"clients": CLIENTS},
        "privacy": {"unit": unit, "epsilon": 30.0, "delta": 0.01, "mechanism": mechanism,
                    "clip": 0.5, "norm": ANSWERS.get(method, norm), "accountant": "rdp"},
        "training": {"algorithm": method, "rounds": 2, "sampling_rate": 0.75,
                     "local_steps": STEPS.get(method, LOCAL_STEPS),
                     "options": OPTIONS.get(method, {})},
    }  # fmt: skip
    for stage in stages:
        for section, keys in (STAGES | NOMINAL | EPOCHS_STAGE)[stage].items():
            own[section] |= keys
    return load(own)


def refusal(method, unit, stages, mechanism):
    """Why a combination is refused, if it is: nothing is refused beyond this list."""
    trusted, prescribed = method == "dp-fedavg", method == "nbafl"
    if unit == "client" and "adaptive clip" in stages:
        return "counts records"
    if ANSWERS.get(method) == "linf" and "adaptive clip" in stages:
        return "which clips coordinates"
    if {"penalty", "shuffler"} <= set(stages):
        return "hides who sent a message"
    if {"matching", "pace"} <= set(stages):
        return "spreads a budget over the rounds"
    if method in ("fedsgd", "cldp-sgd", "ldp-fl") and "epochs" in stages:
        return "takes one step per round"
    if trusted and unit == "record":
        return "hides whole clients"
    if trusted and "plateau" in stages:
        return "every client chooses how much"
    if trusted and "penalty" in stages:
        return "one noise to the sum of all updates"
    if "penalty" in stages and method in ("fedsgd", "nbafl"):
        return "sends no updates, so there is nothing to pull to"
    if trusted and "shuffler" in stages:
        return "clients send updates without noise to a trusted server"
    if method == "als-dpfl" and PACES & set(stages):
        return "all of them need the same noise"
    if method == "als-dpfl" and "adaptive clip" in stages:
        return "planned for rounds that are alike"
    if method == "als-dpfl" and "epochs" in stages:
        return "needs all its steps in one round"
    if method in ANSWERS and "penalty" in stages:
        return "needs one value for all clients"
    prescribed = prescribed or method in ANSWERS
    if method in ANSWERS and mechanism != "auto":
        return "answers by randomised response"
    if method == "nbafl" and mechanism != "gaussian":
        return "adds Gaussian noise"
    if prescribed and unit == "record":
        return 'needs "client"'
    if prescribed and PACES & set(stages):
        return 'needs "uniform"'
    if prescribed and "matching" in stages:
        return 'needs "budget"'
    return None
