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

import pytest
import torch

import udpfl
from tests.golden_cases import CASES, Sent, blobs, by_method, network, settings
from udpfl.algorithms import BUILT_IN

GOLDEN = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-5


def rounded(plain):
    """Noise is found by a search, whose last digits may differ from machine to machine."""
    if isinstance(plain, dict):
        return {key: rounded(value) for key, value in plain.items() if key != "digest"}
    if isinstance(plain, list):
        return [rounded(value) for value in plain]
    return float(f"{plain:.5g}") if isinstance(plain, float) else plain


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
