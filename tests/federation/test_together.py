"""Several runs trained together: each is what it would be by itself, and none disturbs another."""

from __future__ import annotations

import copy
import signal
from itertools import combinations

import numpy as np
import pytest
import torch

import udpfl
from tests.federation.samples import Watch, blobs, flat, network, parts_of, read
from tests.small import PowerCut, Stops
from udpfl.accounting.events import leaves
from udpfl.algorithms import FedAvg, local_update
from udpfl.engine import merging
from udpfl.errors import BudgetExceeded, InvalidInput
from udpfl.federation import Interrupted, Resumed
from udpfl.ledger.ledger import Ledger
from udpfl.runs.files import has_ended

pytestmark = pytest.mark.usefixtures("one_thread")
DATA = blobs()


def settings(
    algorithm="fedavg", mechanism="gaussian", epsilon=4.0, seed=0, rate=0.3, *, training=None,
    privacy=None, data=None, **more,
):  # fmt: skip
    """A small seeded run."""
    return {
        "threads": 1,
        "seed": seed,
        "model": {"name": "mlp", "options": {"hidden": [5]}},
        "data": {"clients": 3, **(data or {})},
        "privacy": {
            "mechanism": mechanism,
            "epsilon": epsilon,
            "randomness": "seeded",
            **(privacy or {}),
        },
        "training": {
            "algorithm": algorithm,
            "rounds": 3,
            "local_steps": 2,
            "learning_rate": rate,
            **(training or {}),
        },
        **more,
    }


@pytest.fixture
def place(tmp_path):
    """The same settings in folders of their own."""

    def placed(grid, name):
        grid = copy.deepcopy(grid)
        return [{**own, "out": str(tmp_path / f"{name}-{i}")} for i, own in enumerate(grid)]

    return placed


@pytest.fixture
def calls(monkeypatch):
    """How many lanes every call of the engine has that may be merged, and its model and records."""
    seen, train_round = [], merging.train_round

    def noted(model, inputs, targets, parameters, lanes, *rest):
        seen.append((len(lanes), model, inputs, lanes))
        return train_round(model, inputs, targets, parameters, lanes, *rest)

    monkeypatch.setattr(merging, "train_round", noted)
    return seen


def charges(run):
    """All that its ledger was charged with."""
    with Ledger(run.ledger_path, read_only=True) as ledger:
        assert ledger.verify() == []
        return [(own.client, own.round, own.count, own.event) for own in ledger.history()]


def noise_std(event):
    """That of the first release of an event."""
    leaf = next(iter(leaves(event)))
    while hasattr(leaf, "event"):
        leaf = leaf.event
    return leaf.mechanism.noise_std


def figures(run):
    """The lines of metrics, without what a clock decides."""
    lines = copy.deepcopy(list(run.metrics))
    for line in lines:
        line.pop("seconds")
    return lines


def rounded(value):
    """Numbers to five digits, wherever they are."""
    if isinstance(value, dict):
        return {name: rounded(own) for name, own in value.items()}
    if isinstance(value, list):
        return [rounded(own) for own in value]
    return pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value


def assert_same(run, alone):
    """All that a run comes to."""
    assert isinstance(run, udpfl.Run), run
    torch.testing.assert_close(flat(run.model), flat(alone.model), rtol=1e-5, atol=1e-5)
    assert run.privacy == alone.privacy
    assert run.clients == alone.clients
    assert charges(run) == charges(alone)
    assert figures(run) == rounded(figures(alone))
    assert (run.stopped, has_ended(run.folder)) == (alone.stopped, True)
    assert (run.folder / "report.html").is_file()
    for name in ("config.json", "clients.json"):
        if (run.folder / name).is_file():
            mine, other = (read(one, name) for one in (run, alone))
            for own in (mine, other):
                if isinstance(own, dict):
                    own.pop("out", None)
            assert mine == other


GRID = [
    settings("fedavg", "gaussian", 2.0, 0, 0.3),
    settings("fedprox", "gaussian", 8.0, 1, 0.3),
    settings("scaffold", "laplace", 4.0, 0, 0.1),
    settings("fedadam", "gaussian", 4.0, 2, 0.2, training={"server_learning_rate": 0.01}),
    settings("fedavg", "gaussian", 1.0, 0, 0.5),
    settings("fedavg", "gaussian", 4.0, 1, 0.2, privacy={"clip": 0.4}),
    settings("scaffold", "laplace", 8.0, 3, 0.1),
    settings("rdp-pfl", "staircase", 4.0, 0, 0.1),
    settings("fedprox", "gaussian", 4.0, 0, 0.3, training={"options": {"mu": 0.8}}),
    settings(privacy={"mechanism": "none"}, training={"sampling_rate": 1.0}),
]


def test_runs_together_come_out_as_each_would_alone(place, calls):
    alone = [udpfl.run(own, data=DATA) for own in place(GRID, "alone")]
    assert not calls
    runs = udpfl.run_together(place(GRID, "together"), data=DATA)
    for run, other in zip(runs, alone, strict=True):
        assert_same(run, other)
    for one, other in combinations(alone, 2):  # else one in the place of another would not show
        assert (flat(one.model) - flat(other.model)).abs().max() > 1e-3
    # Those of gaussian noise and without a correction are the largest group.
    assert max(lanes for lanes, *_ in calls) == 5 * 3
    assert len(calls) < 3 * (len(GRID) + 1)
    assert len({id(model) for _, model, *_ in calls}) == 1


def test_records_and_the_network_are_in_memory_once(place, calls):
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0)]
    udpfl.run_together(place(grid, "together"), data=DATA)
    assert [lanes for lanes, *_ in calls] == [9, 9, 9]
    assert len({(id(model), id(inputs)) for _, model, inputs, _ in calls}) == 1
    assert len(calls[0][2]) == 72  # the training records, not three times as many


def test_runs_that_divide_the_data_otherwise_join_it_once(place, calls):
    """And what one tests on, which another trains on, decides on no pass."""
    grid = [settings(seed=seed) for seed in (0, 1)]
    udpfl.run_together(place(grid, "together"), data=DATA)
    assert [lanes for lanes, *_ in calls] == [6, 6, 6]
    assert len({id(inputs) for _, _, inputs, _ in calls}) == 1
    assert len(calls[0][2]) == 144
    public, _ = calls[0][1]._public
    records = torch.from_numpy(DATA[0])
    assert not (public.unsqueeze(1) == records).all(2).any()


@pytest.mark.parametrize(
    "change",
    [
        {"privacy": {"unit": "client", "delta": 1e-3}},
        {"privacy": {"unit": "client", "delta": 1e-3}, "algorithm": "scaffold"},
        {"privacy": {"unit": "client", "delta": 1e-3}, "algorithm": "dp-fedavg"},
        {"privacy": {"clip_quantile": 0.5}},
        {"training": {"shuffle": True, "local_steps": 1}},
        {"data": {"clients": 4}, "training": {"clients_per_round": 2}},
        {"training": {"batches": 2, "local_epochs": 2, "local_steps": 1}},
        {"privacy": {"epsilon": [1.0, 4.0, 8.0]}},
    ],
    ids=["clients", "corrected", "trusted", "counts", "shuffled", "some", "epochs", "own budgets"],
)
def test_whatever_a_run_is_it_goes_on_beside_others(place, change):
    """Merged where that is exact, and by itself in the same rounds where it is not."""
    grid = [settings(), settings(**change), settings(**change, seed=1), settings("fedprox")]
    alone = [udpfl.run(own, data=DATA) for own in place(grid, "alone")]
    runs = udpfl.run_together(place(grid, "together"), data=DATA)
    for run, other in zip(runs, alone, strict=True):
        assert_same(run, other)


def test_noise_of_the_operating_system_is_drawn_for_each_run(place, calls):
    """The same settings and the same records, twice: nothing but noise and sampling differs."""
    free = settings(privacy={"randomness": "entropy"}, training={"rounds": 1})
    one, other = udpfl.run_together(place([free, free], "free"), data=DATA)
    assert [lanes for lanes, *_ in calls] == [6]
    assert one.privacy.kind == other.privacy.kind == "guarantee"
    assert (flat(one.model) - flat(other.model)).abs().min() > 0


# Methods of somebody's own


class Moody(FedAvg):
    """Whose client half is no function of its arguments."""

    name = "moody"
    without_records = "stays"

    def __init__(self, server):
        super().__init__(server)
        self.times = 0

    def client_step(self, received, state, train):
        self.times += 1
        return {"update": self.times * local_update(received, train)}, state


class Breaks(FedAvg):
    """Whose server fails in its second round."""

    def aggregate(self, server, messages):
        if messages[0].round == 2:
            raise RuntimeError("of my own making")
        return super().aggregate(server, messages)


def test_a_method_that_is_not_known_is_trained_by_itself(place, calls):
    own = "tests.federation.test_together:Moody"
    grid = [settings(own), settings(own, seed=1), settings(), settings(epsilon=1.0)]
    alone = [udpfl.run(each, data=DATA) for each in place(grid, "alone")]
    runs = udpfl.run_together(place(grid, "together"), data=DATA)
    for run, other in zip(runs, alone, strict=True):
        assert_same(run, other)
    assert [lanes for lanes, *_ in calls] == [6, 6, 6]


def test_networks_of_somebodys_own_are_merged_if_they_are_one(place, calls):
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 4.0)]
    for own in grid:
        own.pop("model")
    own = network()
    alone = [udpfl.run(each, data=DATA, model=own) for each in place(grid, "alone")]
    runs = udpfl.run_together(place(grid, "together"), data=DATA, model=own)
    for run, other in zip(runs, alone, strict=True):
        assert_same(run, other)
    assert [lanes for lanes, *_ in calls] == [6, 6, 6]


# Runs that fail, stop early, or share something


def test_a_run_that_fails_changes_no_other(place, tmp_path, calls):
    with Ledger(tmp_path / "small.sqlite"):
        pass
    shared = {"ledger": str(tmp_path / "small.sqlite"), "randomness": "entropy"}
    first = settings(privacy=shared, data={"declared_sizes": 24})
    assert udpfl.run(place([first], "before")[0], data=DATA).stopped is None
    grid = [
        settings(),
        settings(mechanism="gausian"),
        settings("tests.federation.test_together:Breaks"),
        first,
        settings(model={"name": "cnn-small"}),
        settings(epsilon=1.0),
    ]
    alone = [udpfl.run(grid[i], data=DATA, out=str(tmp_path / f"alone-{i}")) for i in (0, 5)]
    placed = place(grid, "together")
    runs = udpfl.run_together(placed, data=DATA)
    assert_same(runs[0], alone[0])
    assert_same(runs[5], alone[1])
    assert isinstance(runs[1], InvalidInput)
    assert isinstance(runs[2], RuntimeError)
    assert isinstance(runs[3], BudgetExceeded)
    assert isinstance(runs[4], InvalidInput)
    # Only what a run has released is charged: of the one that broke in its second round, two.
    with Ledger(tmp_path / "together-2" / "ledger.sqlite", read_only=True) as ledger:
        assert {own.round for own in ledger.history()} <= {1, 2}
    # It let go of its folder: it can be gone on with at once, and fails again.
    with pytest.raises(RuntimeError, match="of my own making"):
        udpfl.run(resume=placed[2]["out"], data=DATA)


def test_an_error_in_the_engine_is_that_of_its_own_run(place, monkeypatch):
    """Merged calls fail as one: each is tried by itself then."""
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0)]
    alone = [udpfl.run(own, data=DATA) for own in place(grid, "alone")]
    train_round = merging.train_round

    def fails(model, inputs, targets, parameters, lanes, round_, *rest):
        noise = {own.noise_std for own in lanes.noiser.mechanisms}
        if round_ == 2 and hurt & noise:
            raise RuntimeError("too much")
        return train_round(model, inputs, targets, parameters, lanes, round_, *rest)

    with Ledger(alone[1].ledger_path, read_only=True) as ledger:
        hurt = {noise_std(own.event) for own in ledger.history()}
    monkeypatch.setattr(merging, "train_round", fails)
    runs = udpfl.run_together(place(grid, "together"), data=DATA)
    assert_same(runs[0], alone[0])
    assert_same(runs[2], alone[2])
    assert isinstance(runs[1], RuntimeError)


def test_runs_that_share_a_ledger_are_refused(place, tmp_path):
    shared = {"ledger": str(tmp_path / "shared.sqlite"), "randomness": "entropy"}
    grid = place([settings(privacy=shared), settings(), settings(privacy=shared)], "together")
    with pytest.raises(InvalidInput, match="two runs share the ledger"):
        udpfl.run_together(grid, data=DATA)
    assert not any((tmp_path / f"together-{i}").exists() for i in range(3))


@pytest.mark.parametrize(("key", "values"), [("threads", (1, 2)), ("device", ("cpu", "auto"))])
def test_runs_use_the_same_machine(place, key, values):
    grid = place([{**settings(), key: value} for value in values], "together")
    with pytest.raises(InvalidInput, match=f"{key}: runs that are trained together need the same"):
        udpfl.run_together(grid, data=DATA)


# Stopped, and gone on with


class Interrupts(Watch):
    def on_round(self, row):
        super().on_round(row)
        if row["round"] == 2:
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_stops_all_of_them_and_each_can_be_resumed(place):
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 2.0)] + [settings("scaffold")]
    alone = [udpfl.run(own, data=DATA) for own in place(grid, "alone")]
    placed, seen = place(grid, "together"), [Interrupts(), Watch(), Watch()]
    with pytest.raises(Interrupted):
        udpfl.run_together(placed, data=DATA, observers=lambda number: [seen[number]])
    assert [[row["round"] for row in own.rows] for own in seen] == [[1, 2]] * 3
    wanted = [Resumed(own["out"]) for own in placed[1:]]
    runs = udpfl.run_together(wanted, data=DATA)
    first = udpfl.run(resume=placed[0]["out"], data=DATA)
    for run, other in zip([first, *runs], alone, strict=True):
        assert_same(run, other)


def test_runs_in_other_rounds_catch_up_and_go_on_together(place, calls):
    """One is resumed after its first round, one after its second, one is new and one has ended."""
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0)]
    alone = [udpfl.run(own, data=DATA) for own in place(grid, "alone")]
    placed = place(grid, "together")
    for own, after in zip(placed, (1, 2), strict=False):
        with pytest.raises(PowerCut):
            udpfl.run(own, data=DATA, observers=[Stops(after)])
    udpfl.run(placed[3], data=DATA)
    wanted = [Resumed(placed[0]["out"]), Resumed(placed[1]["out"]), placed[2]]
    runs = udpfl.run_together([*wanted, Resumed(placed[3]["out"])], data=DATA)
    for run, other in zip(runs, alone, strict=True):
        assert_same(run, other)
    assert [lanes for lanes, *_ in calls][-2:] == [6, 9]


def test_a_run_that_dies_in_the_middle_of_others_is_gone_on_with(place):
    grid = [settings(epsilon=epsilon) for epsilon in (1.0, 2.0)]
    alone = [udpfl.run(own, data=DATA) for own in place(grid, "alone")]
    placed = place(grid, "together")
    watch = [[Stops(2)], []]
    runs = udpfl.run_together(placed, data=DATA, observers=lambda number: watch[number])
    assert isinstance(runs[0], PowerCut)
    assert_same(runs[1], alone[1])
    (again,) = udpfl.run_together([Resumed(placed[0]["out"])], data=DATA)
    assert_same(again, alone[0])


# Some of the records each


def test_each_run_may_have_some_of_the_records(place, calls):
    rows = np.random.default_rng(0).permutation(72)
    chosen = [rows[:36], rows[36:], None]
    grid = place([settings(data={"partition": "iid"})] * 3, "together")
    runs = udpfl.run_together(grid, data=DATA, records=chosen)
    for run, own in zip(runs, (*chosen[:2], range(72)), strict=True):
        assert sorted(np.concatenate(parts_of(run))) == sorted(own)
    assert len({id(inputs) for _, _, inputs, _ in calls}) == 1
    for _, _, inputs, lanes in calls:
        assert len(inputs) == 72
        used = [set(torch.cat(lanes.records[3 * i : 3 * i + 3]).tolist()) for i in range(2)]
        assert used == [set(chosen[0].tolist()), set(chosen[1].tolist())]
    # The folder is of these records: it is not gone on with on others.
    (again,) = udpfl.run_together([Resumed(grid[0]["out"])], data=DATA)
    assert isinstance(again, InvalidInput)
    assert "are not those that the run began with" in str(again)
    (again,) = udpfl.run_together([Resumed(grid[0]["out"])], data=DATA, records=[chosen[0]])
    assert_same(again, runs[0])


@pytest.mark.parametrize("wrong", [[], [1, 1], [72], [-1], [0.5], [[1]]])
def test_records_that_are_not_there_are_refused(place, wrong):
    (run,) = udpfl.run_together(place([settings()], "together"), data=DATA, records=[wrong])
    assert isinstance(run, InvalidInput)
    assert run.parameter == "records"


def test_some_of_the_records_are_not_charged_to_a_shared_ledger(place, tmp_path):
    shared = {"ledger": str(tmp_path / "shared.sqlite"), "randomness": "entropy"}
    grid = place([settings(privacy=shared)], "together")
    (run,) = udpfl.run_together(grid, data=DATA, records=[range(36)])
    assert isinstance(run, InvalidInput)
    assert "shared ledger" in str(run)


def test_records_are_named_for_every_run(place):
    with pytest.raises(InvalidInput, match="records: 1 for 2 runs"):
        udpfl.run_together(place([settings()] * 2, "together"), data=DATA, records=[range(36)])


def test_nothing_is_no_run():
    assert udpfl.run_together([]) == []
