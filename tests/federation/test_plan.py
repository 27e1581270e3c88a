"""One object says what is calibrated, charged and audited: `ReleasePlan`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import udpfl
from tests import small
from udpfl import Gaussian, Sensitivity
from udpfl.accounting.events import PoissonSampled, Release, Repeated, Shuffled, leaves, message_of
from udpfl.accounting.serial import event_from_dict
from udpfl.config import load
from udpfl.federation import ReleasePlan, calibration
from udpfl.federation.builders import algorithm_of
from udpfl.federation.calibration import plan_releases
from udpfl.federation.selection import draw_schedule

RELEASE = Release(Gaussian(2.0), Sensitivity(1.0, "l2", 5))
WHOLE = replace(RELEASE, unit="client")


def test_a_message_is_a_sampled_release_perhaps_shuffled():
    assert message_of(RELEASE, 0.5) == PoissonSampled(0.5, RELEASE)
    assert message_of(RELEASE, 0.5, 7) == Shuffled(PoissonSampled(0.5, RELEASE), 7)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (ReleasePlan("a", 10, 0.5, 4, 3, RELEASE), {PoissonSampled(0.5, RELEASE): 12}),
        (ReleasePlan("a", 10, 0.5, 4, 3, RELEASE, trainings=2), {PoissonSampled(0.5, RELEASE): 24}),
        (
            ReleasePlan("a", 10, 0.5, 4, 3, WHOLE, participation=0.2),
            {PoissonSampled(0.2, WHOLE): 4},
        ),
        (
            ReleasePlan("a", 10, 0.5, 3, 1, RELEASE, factors=(1.0, 2.0, 1.0), asked=(1, 2, 3)),
            {PoissonSampled(0.5, RELEASE): 2, PoissonSampled(0.5, RELEASE.scaled(noise=2.0)): 1},
        ),
    ],
)
def test_a_run_costs_its_releases(plan, expected):
    assert leaves(plan.rest_event()) == expected
    first = leaves(plan.at(1).round_event)
    rest = leaves(plan.rest_event(1))
    together = {leaf: first.get(leaf, 0) + rest.get(leaf, 0) for leaf in expected}
    assert together == expected


def test_nothing_is_left_after_the_last_round():
    assert ReleasePlan("a", 10, 0.5, 4, 3, RELEASE).rest_event(4) is None
    assert ReleasePlan("a", 10, 0.5, 4, 3).rest_event() is None


def test_what_is_charged_is_what_was_planned(tmp_path):
    """Read back from the ledger of a real run, leaf by leaf."""
    result = udpfl.run(
        {
            "data": {"clients": 2},
            "out": str(tmp_path / "run"),
            "training": {"rounds": 3, "local_steps": 2},
            "privacy": {"pace": "increasing", "pace_ratio": 2.0, "clip_quantile": 0.5},
        },
        data=small.blobs(),
        model=small.linear(),
    )
    for row in udpfl.federation.RunFolder(result.folder).clients:
        plan = ReleasePlan.from_row(row)
        charged: dict = {}
        for entry in result.ledger.history():
            if entry.client == plan.name:
                event = Repeated(event_from_dict(json.loads(entry.event_json)), entry.count)
                for leaf, count in leaves(event).items():
                    charged[leaf] = charged.get(leaf, 0) + count
        assert charged == leaves(plan.rest_event())


def test_a_plan_that_is_not_what_was_calibrated_is_refused(monkeypatch):
    """If the plan released once more than the harmonizer was told, nobody would train by it."""
    config = load({"data": {"clients": 2}, "training": {"rounds": 3}})
    algorithm, schedule = algorithm_of(config), draw_schedule(config)
    monkeypatch.setattr(
        calibration.ReleasePlan,
        "rest_event",
        lambda self, answered=0: Repeated(self.round_event, self.rounds + 1),
    )
    with pytest.raises(AssertionError, match="not what was calibrated"):
        plan_releases(config, [30, 30], schedule, 10, algorithm)


def test_a_plan_with_other_noise_than_was_calibrated_is_refused(monkeypatch):
    """As many releases, but with half the noise."""
    config = load({"data": {"clients": 2}, "training": {"rounds": 3}})
    algorithm, schedule = algorithm_of(config), draw_schedule(config)

    def quieter(mechanism, *rest):
        return Release(mechanism.scaled(0.5), *rest)

    monkeypatch.setattr(calibration, "Release", quieter)
    with pytest.raises(AssertionError, match="not what was calibrated"):
        plan_releases(config, [30, 30], schedule, 10, algorithm)
