"""Seeded runs of every method and stage end where they ended before, and cost what they cost.

`golden.json` has what they came to: the parameters of the final model and what every client was
charged. `python -m tests.test_golden` prints digests of the exact bits, of messages as well, to
compare two versions on one machine; with `--write` it writes the file anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import udpfl
from udpfl.algorithms import BUILT_IN

GOLDEN = Path(__file__).with_name("golden.json")
ROUNDS = 3
TOLERANCE = 1e-5

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


def rounded(plain):
    """Noise is found by a search, whose last digits may differ from machine to machine."""
    if isinstance(plain, dict):
        return {key: rounded(value) for key, value in plain.items() if key != "digest"}
    if isinstance(plain, list):
        return [rounded(value) for value in plain]
    return float(f"{plain:.5g}") if isinstance(plain, float) else plain


class Sent(udpfl.Observer):
    """The bits of all messages."""

    def __init__(self):
        self.digest = sha256()

    def on_message(self, message):
        for name, tensor in sorted(message.tensors.items()):
            self.digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())

    def on_model(self, round_, model): ...

    def on_round(self, row): ...


def outcome(case, folder):
    """What a run comes to, and the bits of its model and messages."""
    sent = Sent()
    result = udpfl.run(settings(case, folder), data=blobs(), model=network(), observers=[sent])
    vector = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    charges = Counter()
    for entry in result.ledger.history():
        event = json.dumps(rounded(json.loads(entry.event_json)))
        charges[f"{entry.client} round {entry.round}: {event} {entry.note}"] += entry.count
    plain = {
        "parameters": [float(f"{value:.9g}") for value in vector.tolist()],
        "charges": sha256(json.dumps(sorted(charges.items())).encode()).hexdigest(),
        "releases": sum(charges.values()),
    }
    bits = sha256(vector.numpy().tobytes()).hexdigest() + sent.digest.hexdigest()
    return plain, bits


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("one_thread")
def test_a_seeded_run_ends_where_it_ended_before(case, tmp_path):
    expected = json.loads(GOLDEN.read_text()).get(case)
    if expected is None and case in dict(by_method()):
        pytest.skip("a new method: nothing was recorded before")
    found, _ = outcome(case, tmp_path / "run")
    assert found["parameters"] == pytest.approx(expected["parameters"], abs=TOLERANCE)
    assert (found["releases"], found["charges"]) == (expected["releases"], expected["charges"])


def test_every_method_is_among_them():
    assert BUILT_IN.keys() <= {case.partition(",")[0] for case in CASES}


def main():
    """Print digests of all cases, or write the file."""
    torch.set_num_threads(1)
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            found[case], bits = outcome(case, Path(folder) / "run")
        if "--write" not in sys.argv:
            print(found[case]["charges"][:16], bits[:16], bits[64:80], case, flush=True)  # noqa: T201
    if "--write" in sys.argv:
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
