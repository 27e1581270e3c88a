"""The pull towards clients with the largest budget."""

from __future__ import annotations

import pytest
import torch

import udpfl
from tests.small import blobs, linear, people_of
from udpfl.errors import InvalidInput


def pulled(federate, penalty, **training):
    return federate(
        {"unit": "record", "epsilon": [1.0, 4.0, 2.0], "randomness": "seeded"},
        {"penalty": penalty, "rounds": 2, **training},
    )


def test_the_pull_is_the_papers(federate):
    """Same noise, with and without: round 2 differs by eta lambda_k (w - w_max), per step."""
    free, pull = (pulled(federate, weight) for weight in (0.0, 0.8))
    assert [p.penalty for p in people_of(pull[0])] == pytest.approx([0.8 * 0.75, 0, 0.8 * 0.5])
    starts = [seen.models[0] for _, seen in (free, pull)]
    assert torch.equal(*starts)  # nothing was released before the first round
    largest = pull[1].messages[1]
    initial = starts[0] - udpfl.algorithms.weighted_mean(pull[1].messages[:3], "update")
    target = initial + largest.tensors["update"]
    for client, weight in enumerate([0.6, 0.0, 0.4]):
        difference = (
            pull[1].messages[3 + client].tensors["update"]
            - free[1].messages[3 + client].tensors["update"]
        )
        assert torch.allclose(difference, -0.1 * weight * (starts[0] - target), atol=1e-6)


def test_the_pull_costs_nothing(federate):
    epsilons = []
    for weight in (0.0, 0.5):
        result, _ = federate(
            {"unit": "record", "epsilon": [1.0, 2.0, 4.0]}, {"penalty": weight, "rounds": 3}
        )
        assert all(
            statement.epsilon <= budget
            for statement, budget in zip(result.clients.values(), [1.0, 2.0, 4.0], strict=True)
        )
        epsilons.append([statement.epsilon for statement in result.clients.values()])
    assert epsilons[0] == pytest.approx(epsilons[1])


def test_a_pull_without_different_budgets_is_refused():
    with pytest.raises(InvalidInput, match=r"training\.penalty"):
        udpfl.run(training={"penalty": 1.0}, privacy={"epsilon": 4.0})


def test_a_resumed_run_is_pulled_as_before(federate):
    whole, _ = pulled(federate, 0.8, rounds=4)
    again, _ = pulled(federate, 0.8, rounds=4)
    folder = again.folder
    (folder / "checkpoints" / "round-000004.safetensors").unlink()  # as if killed in round 4
    resumed = udpfl.run(resume=folder, model=linear(), data=blobs())
    for first, second in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


def test_a_pull_is_refused_before_anyone_pays(federate, tmp_path):
    with pytest.raises(InvalidInput, match=r"training\.penalty"):
        federate({"unit": "record", "epsilon": [1.0, 2.0]}, {"algorithm": "fedsgd", "penalty": 0.5})
    assert not (tmp_path / "run-0").exists()
