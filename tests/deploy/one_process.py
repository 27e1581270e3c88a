"""The same federation in one process, to compare with."""

from __future__ import annotations

import torch

import udpfl
from tests.site.samples import load as load_records
from tests.site.samples import settings

ROUNDS, CLIENTS = 3, 3


def in_one_process(folder, lanes="single", **changes):
    """The same federation as `udpfl.run` has it."""
    parts = [
        load_records(seed=0, directory=None, test=0.2, options={"site": number}).train
        for number in range(CLIENTS)
    ]
    records = [(own.inputs, own.targets) for own in parts]
    changes["data"] = {**changes.get("data", {}), "declared_sizes": 60}
    changes["training"] = {**changes.get("training", {}), "lanes": lanes}
    config = {**settings(**changes), "out": str(folder), "threads": 1}
    return udpfl.run(config, data=records, test=records[0])


def weights(model):
    return torch.cat([own.detach().flatten() for own in model.parameters()])


def seeded(**changes):
    changes["privacy"] = {**changes.get("privacy", {}), "randomness": "seeded"}
    # The site plans for as many releases as its policy allows, the simulation for those of the run.
    changes["training"] = {"rounds": ROUNDS, **changes.get("training", {})}
    return changes
