"""One object says what is calibrated, charged and audited: `ReleasePlan`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import udpfl
from tests import small
from udpfl import Gaussian, Sensitivity, account
from udpfl.accounting.events import PoissonSampled, Release, Repeated, Shuffled, leaves, message_of
from udpfl.accounting.serial import event_from_dict
from udpfl.config import load
from udpfl.federation import ReleasePlan
from udpfl.federation._calibration import plan_releases
from udpfl.federation.builders import build_algorithm

RELEASE = Release(Gaussian(2.0), Sensitivity(1.0, "l2", 5))
WHOLE = replace(RELEASE, unit="client")


def test_a_message_is_a_sampled_release_perhaps_shuffled():
    assert message_of(RELEASE, 0.5) == PoissonSampled(0.5, RELEASE)
    assert message_of(RELEASE, 0.5, 7) == Shuffled(PoissonSampled(0.5, RELEASE), 7)
    several = Shuffled(PoissonSampled(0.5, RELEASE), 7, releases=3)
    assert message_of(RELEASE, 0.5, 7, 3) == several
    assert message_of(RELEASE, 0.5, 0, 3) == PoissonSampled(0.5, RELEASE)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (ReleasePlan("a", 10, 0.5, 4, 3, RELEASE), {PoissonSampled(0.5, RELEASE): 12}),
        (ReleasePlan("a", 10, 0.5, 4, 3, RELEASE, trainings=2), {PoissonSampled(0.5, RELEASE): 24}),
        (
            ReleasePlan("a", 10, 0.5, 4, 3, RELEASE, trainings=2, shuffled=7),
            {Shuffled(PoissonSampled(0.5, RELEASE), 7, releases=6): 24},
        ),
        (
            ReleasePlan("a", 10, 0.5, 4, 3, WHOLE, trainings=2, shuffled=7),
            {Shuffled(PoissonSampled(1.0, WHOLE), 7, releases=2): 8},
        ),
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
    first = leaves(plan.round_event(1))
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


@pytest.fixture
def wanted():
    """Two clients in three rounds, of which the second is asked once."""
    config = load(
        {"data": {"clients": 2}, "training": {"rounds": 3}, "privacy": {"mechanism": "gaussian"}}
    )
    return config, [30, 30], [(0, 1), (0,), (0,)], 10, build_algorithm(config)


def test_noise_is_calibrated_for_the_events_of_the_plan(wanted, monkeypatch):
    """A plan that would release four times as often gets the noise for that, by a closed form."""
    once = [plan.release.mechanism.std for plan in plan_releases(*wanted)]
    rest = ReleasePlan.rest_event
    monkeypatch.setattr(
        ReleasePlan, "rest_event", lambda self, answered=0: Repeated(rest(self, answered), 4)
    )
    for plan, std in zip(plan_releases(*wanted), once, strict=True):
        noisier = plan.release.mechanism.std
        event = Repeated(plan.round_event(1), 4 * plan.rounds)
        assert 8 * 0.999 < account(event, 1e-5).epsilon <= 8
        assert noisier > 1.2 * std


def test_clients_share_a_calibration_only_where_they_release_the_same(wanted):
    """The client that is asked once in three rounds needs less noise."""
    config, sizes, _, *rest = wanted
    often, seldom = (plan.release.mechanism.std for plan in plan_releases(*wanted))
    assert seldom < 0.9 * often
    alike = plan_releases(config, sizes, [(0, 1)] * 3, *rest)
    assert {plan.release.mechanism.std for plan in alike} == {often}


def test_clients_that_are_asked_as_often_in_other_rounds_do_not_share_it(wanted):
    """With a pace rounds differ: two late ones have less noise each than two early ones."""
    _, sizes, _, *rest = wanted
    config = load(
        {
            "data": {"clients": 2}, "training": {"rounds": 3},
            "privacy": {"mechanism": "gaussian", "pace": "increasing", "pace_ratio": 4.0},
        }
    )  # fmt: skip
    early, late = plan_releases(config, sizes, [(0,), (0, 1), (1,)], *rest)
    assert early.release.mechanism.std < 0.9 * late.release.mechanism.std
    for plan in (early, late):
        assert 8 * 0.999 < account(plan.rest_event(), 1e-5).epsilon <= 8


def test_clients_with_the_same_release_share_an_event_and_others_never_do():
    release, plain = Release(Gaussian(2.0), Sensitivity(1.0)), {"rounds": 5, "steps": 4}
    first = ReleasePlan("a", 10, rate=0.1, release=release, **plain)
    assert first.event() is replace(first, name="b", declared_size=99).event()
    found = [first.event()]
    for change in (
        {"rate": 0.2}, {"steps": 8}, {"steps": 4, "epochs": 2}, {"shuffled": 3},
        {"release": Release(Gaussian(2.5), Sensitivity(1.0))},
        {"release": Release(Gaussian(2.0), Sensitivity(1.5))},
    ):  # fmt: skip
        own = replace(first, **change)
        assert own.event() == Repeated(
            message_of(own.release, own.rate, own.shuffled, own.sampled[1], own.passes),
            own.sampled[1],
        )
        found.append(own.event())
    assert first.event(2) == Repeated(message_of(release, 0.1, releases=4), 8)
    assert len(set(found)) == len(found)


def test_plans_that_are_read_share_equal_releases():
    release = Release(Gaussian(2.0), Sensitivity(1.0))
    rows = [
        ReleasePlan(name, 10, 0.1, 5, 4, own).to_row()
        for name, own in (("a", release), ("b", Release(Gaussian(2.0), Sensitivity(1.0))),
                          ("c", Release(Gaussian(3.0), Sensitivity(1.0))))
    ]  # fmt: skip
    a, b, c = map(ReleasePlan.from_row, rows)
    assert a.release is b.release
    assert a.release == release
    assert a.event() is b.event()
    assert c.release != a.release
    assert c.event() != a.event()
