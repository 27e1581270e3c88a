"""Runs that train together: as each would alone, and nobody in anybody's way."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import udpfl
from tests.test_compare import (
    EVERY,
    LONG,
    PATIENCE,
    _elsewhere,
    charges,
    command,
    goes_on,
    rounds,
    start,
    until,
)
from udpfl.comparison import ComparisonInterrupted
from udpfl.comparison.jobs import Job
from udpfl.comparison.lanes import automatic, batches
from udpfl.config import load
from udpfl.engine import (
    Entropy,
    Keyed,
    LaneModel,
    Lanes,
    Limits,
    MechanismNoiser,
    NormClipper,
    Unclipped,
    together,
)
from udpfl.engine.together import Together
from udpfl.errors import InvalidInput
from udpfl.harmonizer.ledger import Ledger
from udpfl.mechanisms import Gaussian, Laplace

__all__ = ["_elsewhere"]

BASE = {
    "threads": 1,
    "data": {"name": "tests.test_compare:records", "clients": 3},
    "model": {"name": "logistic"},
    "privacy": {"mechanism": "gaussian", "accountant": "rdp", "randomness": "seeded"},
    "training": {"rounds": 3, "learning_rate": 0.5, "sampling_rate": 0.5, "local_steps": 2},
}


def by_seed(*, seed, **_):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2


@pytest.fixture
def calls(monkeypatch):
    """How many lanes each call of the engine had, and of how many runs."""
    seen = []
    plain = together.train_round

    def noted(model, inputs, targets, parameters, lanes, *rest):
        seen.append(len(lanes))
        return plain(model, inputs, targets, parameters, lanes, *rest)

    monkeypatch.setattr(together, "train_round", noted)
    return seen


def models(folder: str) -> dict[str, dict[str, torch.Tensor]]:
    return {path.parent.name: load_file(path) for path in Path(folder).glob("*/model.safetensors")}


def history(run: Path) -> list[tuple[object, ...]]:
    with Ledger(run / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.verify() == []
        return sorted((e.client, e.round, e.count, e.event_json, e.note) for e in ledger.history())


VARIED = {
    "mechanism and budget": ({}, {"mechanism": ["gaussian", "laplace"], "epsilon": [2, 8]}),
    "clip": ({}, {"clip": [0.1, 1.0, [0.2, 0.4]]}),
    "rounds": ({}, {"rounds": [1, 3, 5]}),
    "scaffold": ({"training": {"algorithm": "scaffold"}}, {"epsilon": [2, 8]}),
    "fedprox": (
        {"training": {"algorithm": "fedprox"}},
        {"training.options.mu": [0.1, 3.0], "epsilon": [4, 8]},
    ),
    "penalty": ({"privacy": {"epsilon": [1, 2, 8]}}, {"penalty": [0.2, 0.6]}),
    "adaptive clip": ({"privacy": {"clip_quantile": 0.5}}, {"epsilon": [4, 8]}),
    "whole clients": (
        {"privacy": {"unit": "client", "delta": 0.01}, "training": {"algorithm": "dp-fedavg"}},
        {"epsilon": [20, 80]},
    ),
    "without privacy": ({"privacy": {"mechanism": "none"}}, {"learning_rate": [0.1, 0.5]}),
}


@pytest.mark.parametrize("name", VARIED)
def test_a_run_comes_out_as_it_would_alone(name, calls):
    sections, vary = VARIED[name]
    base = {key: {**value, **sections.get(key, {})} if isinstance(value, dict) else value
            for key, value in BASE.items()}  # fmt: skip
    if base["privacy"]["mechanism"] == "none":
        base["privacy"] = {"mechanism": "none"}
        base["training"]["sampling_rate"] = 1.0  # and nothing is random
    one = udpfl.compare(base, vary=vary, seeds=1, out="one", lanes=1)
    assert calls == []
    many = udpfl.compare(base, vary=vary, seeds=1, out="many", lanes=8)
    assert one.complete
    assert many.complete
    cells = len(one.rows)
    assert max(calls) == 3 * cells  # everybody's clients in one call
    apart, joined = models("one"), models("many")
    assert len(apart) == cells
    assert apart.keys() == joined.keys()
    for run, parameters in apart.items():
        for key, tensor in parameters.items():
            torch.testing.assert_close(joined[run][key], tensor, rtol=1e-4, atol=1e-5)
        assert history(Path("one") / run) == history(Path("many") / run)
    assert len({str(parameters) for parameters in apart.values()}) == cells  # and they do differ


def test_different_records_are_not_mixed_up(calls):
    """Every run splits off test records of its own, or draws all of them anew."""
    for name in ("test_compare:records", "test_together:by_seed"):
        base = {**BASE, "data": {"name": f"tests.{name}", "clients": 3}}
        base["privacy"] = {"mechanism": "none"}
        base["training"] = {**BASE["training"], "sampling_rate": 1.0}
        udpfl.compare(base, seeds=3, out=f"{name}/one", lanes=1)
        udpfl.compare(base, seeds=3, out=f"{name}/many", lanes=3)
        apart, joined = models(f"{name}/one"), models(f"{name}/many")
        for run in apart:
            torch.testing.assert_close(joined[run], apart[run], rtol=1e-4, atol=1e-5)
    assert set(calls) == {9}


def test_real_noise_is_shared_by_seeds_and_by_nobody_else(calls):
    """From the operating system: three seeds of one setting train in one call."""
    base = {**BASE, "privacy": {"mechanism": "gaussian", "accountant": "rdp"}}
    result = udpfl.compare(base, seeds=3, out="many", lanes=3)
    assert set(calls) == {9}
    assert result.complete
    for run in result.rows[0].runs:
        assert charges(run.folder) == sorted(
            (f"client-{c}", r) for c in range(3) for r in (1, 2, 3)
        )
    assert len({str(parameters) for parameters in models("many").values()}) == 3


# The table itself


def lane_model(width=4, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(width, 2)
    loss = nn.CrossEntropyLoss(reduction="none")
    return LaneModel(model, loss)


X = torch.arange(40.0).reshape(10, 4) / 40
Y = torch.arange(10) % 2


def lanes_of(clipper, noiser, run="run", steps=1, rate=1.0) -> Lanes:
    return Lanes(
        runs=(run, run),
        clients=("a", "b"),
        records=(torch.arange(5), torch.arange(5, 10)),
        rates=(rate, rate),
        denominators=torch.full((2,), 5.0),
        learning_rates=torch.full((2,), 0.5),
        steps=(steps, steps),
        clipper=clipper,
        noiser=noiser,
    )


def private(scale=1.0, clip=1.0, kind=Gaussian, norm="l2", **more) -> Lanes:
    return lanes_of(NormClipper(norm, [clip] * 2), MechanismNoiser([kind(scale)] * 2), **more)


def seated(*asked, seats=None):
    """Each of these calls from a thread of its own: what they got, in order."""
    table = Together(seats or len(asked))
    results = [None] * len(asked)

    def sit(number, call):
        with table.seat() as engine:
            try:
                results[number] = call(engine)
            except Exception as error:
                results[number] = error

    threads = [threading.Thread(target=sit, args=pair) for pair in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "somebody waits for ever"
    return results


def asks(lanes, model=None, round_=1, stream=None, x=X, y=Y, correct=None):
    model, stream = model or lane_model(), stream or Keyed(0)
    start = model.initial().expand(2, -1)

    def call(engine):
        return engine(model, x, y, start, lanes, round_, stream, Limits(2, 8), correct)

    call.stream = stream
    return call


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (asks(private()), asks(private(3.0, clip=0.1, kind=Laplace)), True),
        (asks(private(), stream=Entropy()), asks(private(), stream=Entropy()), True),
        (asks(private(), model=lane_model(seed=1)), asks(private()), True),
        (asks(private()), asks(private(), stream=Keyed(1)), False),
        (asks(private()), asks(private(), stream=Entropy()), False),
        (asks(private()), asks(private(norm="l1")), False),
        (asks(private()), asks(lanes_of(Unclipped(), MechanismNoiser([Gaussian(1)] * 2))), False),
        (asks(private()), asks(private(steps=2)), False),
        (asks(private()), asks(private(), round_=2), False),
        (asks(private()), asks(private(), x=X + 1), True),
        (asks(private()), asks(private(), y=1 - Y), True),
        (asks(private()), asks(private(), x=X[:, :3], model=lane_model(3)), False),
        (asks(private()), asks(private(), correct=lambda g, p, s: g), False),
    ],
)
def test_only_calls_that_fit_are_joined_and_every_call_gets_its_own(one, other, joined, calls):
    apart = [one(together.train_round), other(together.train_round)]
    calls.clear()
    found = seated(one, other)
    assert sorted(calls) == ([4] if joined else [2, 2])
    for mine, alone in zip(found, apart, strict=True):
        assert mine.parameters.shape == alone.parameters.shape
        torch.testing.assert_close(mine.clipped_fraction, alone.clipped_fraction)
    for mine, alone, call in zip(found, apart, (one, other), strict=True):
        if not call.stream.private:  # else it is drawn anew each time
            torch.testing.assert_close(mine.parameters, alone.parameters)


class Grows(NormClipper):
    """A clipper of somebody's own, which may look at other lanes."""


def test_what_is_not_known_trains_alone(calls):
    own = lanes_of(Grows("l2", [1.0, 1.0]), MechanismNoiser([Gaussian(1.0)] * 2))
    seated(asks(own), asks(own))
    assert calls == [2, 2]


def test_dropout_is_joined_only_where_nobody_can_tell(calls):
    def dropping():
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
        return LaneModel(model, nn.CrossEntropyLoss(reduction="none"))

    seated(*(asks(private(), model=dropping()) for _ in range(2)))
    assert calls == [2, 2]
    calls.clear()
    seated(*(asks(private(), model=dropping(), stream=Entropy()) for _ in range(2)))
    assert calls == [4]


def test_frozen_parts_must_be_the_same(calls):
    def frozen(value):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        model[0].requires_grad_(False).weight.fill_(value)
        model[0].bias.fill_(0.0)
        return LaneModel(model, nn.CrossEntropyLoss(reduction="none"))

    seated(asks(private(), model=frozen(1.0)), asks(private(), model=frozen(1.0)))
    seated(asks(private(), model=frozen(1.0)), asks(private(), model=frozen(2.0)))
    assert calls == [4, 2, 2]


class Hidden(nn.Module):
    """Keeps what is drawn from its seed where neither buffers nor its name show it."""

    def __init__(self, seed):
        super().__init__()
        self.features = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x @ self.features)


def test_models_that_only_look_alike_are_told_apart(calls):
    def model(seed, factor=1.0):
        def loss(outputs, targets):
            return factor * nn.functional.cross_entropy(outputs, targets, reduction="none")

        return LaneModel(Hidden(seed), loss)

    seated(asks(private(), model=model(0)), asks(private(), model=model(0)))
    seated(asks(private(), model=model(0)), asks(private(), model=model(1)))
    seated(asks(private(), model=model(0)), asks(private(), model=model(0, factor=2.0)))
    assert calls == [4, 2, 2, 2, 2]


def test_records_that_do_not_fit_into_memory_stay_their_own(calls, monkeypatch):
    """And nobody reads another run's in their place."""
    plain, tries = torch.cat, []

    def full(tensors, *rest, **more):
        if len(tensors[0]) == len(X) and tensors[0].shape[1:] == X.shape[1:]:
            tries.append(1)
            raise RuntimeError("out of memory")
        return plain(tensors, *rest, **more)

    other = X + 1
    apart = [asks(private(), x=x)(together.train_round) for x in (X, other, other)]
    calls.clear()
    monkeypatch.setattr(torch, "cat", full)

    def twice(x):
        model = lane_model()
        first, second = (asks(private(), x=x, model=model, round_=r) for r in (1, 2))

        def train(engine):
            trained = first(engine)
            second(engine)
            return trained

        return train

    found = seated(twice(X), twice(other), twice(other))
    assert 1 <= len(tries) <= 2  # once for each newcomer, not in every round
    assert sorted(calls) == [2, 2, 4, 4]  # the two that share their records, and one alone
    for mine, alone in zip(found, apart, strict=True):
        torch.testing.assert_close(mine.parameters, alone.parameters)


def test_who_is_behind_catches_up(calls):
    def from_round(first):
        def train(engine):
            return [asks(private(), round_=r)(engine) for r in range(first, 6)]

        return train

    seated(from_round(1), from_round(4))
    assert calls == [2, 2, 2, 4, 4]


def test_a_run_that_fails_keeps_nobody_waiting(calls):
    def fails(engine):
        raise RuntimeError("before its first round")

    def twice(engine):
        asks(private())(engine)
        return asks(private(), round_=2)(engine)

    one, two, three = seated(fails, twice, asks(private()))
    assert str(one) == "before its first round"
    assert two.parameters.shape == three.parameters.shape == (2, 10)
    assert calls == [4, 2]


def test_where_one_call_fails_the_others_do_not():
    def bad(gradient, parameters, state):
        raise RuntimeError("of my own making")

    def fine(gradient, parameters, state):
        return gradient

    one, two = seated(asks(private(), correct=bad), asks(private(), correct=fine))
    assert str(one) == "of my own making"
    alone = asks(private())(together.train_round)
    torch.testing.assert_close(two.parameters, alone.parameters)


def test_what_failed_together_is_not_tried_again(monkeypatch, caplog):
    """As where all runs together take too much memory."""
    seen, plain = [], together.train_round

    def small(model, inputs, targets, parameters, lanes, *rest):
        seen.append(len(lanes))
        if len(lanes) > 2:
            raise RuntimeError("out of memory")
        return plain(model, inputs, targets, parameters, lanes, *rest)

    monkeypatch.setattr(together, "train_round", small)

    def three_rounds(engine):
        return [asks(private(), round_=round_)(engine) for round_ in (1, 2, 3)]

    one, two = seated(three_rounds, three_rounds)
    assert len(one) == len(two) == 3
    assert seen == [4, 2, 2, 2, 2, 2, 2]
    assert len(caplog.records) == 1


def test_corrections_see_their_own_lanes_only():
    seen = []

    def corrected(number):
        def correct(gradient, parameters, state):
            assert state.keys() == {"own"}
            seen.append((number, state["own"].flatten().tolist()))
            return gradient * 0 + state["own"]

        lanes = private().with_state({"own": torch.full((2, 1), float(number))}, 0)
        return asks(lanes, correct=correct)

    found = seated(*(corrected(number) for number in range(3)))
    assert sorted(seen) == [(n, [float(n)] * 2) for n in range(3)]
    start = lane_model().initial()
    for number, trained in enumerate(found):
        torch.testing.assert_close(trained.parameters, (start - 0.5 * number).expand(2, -1))


# In a comparison


def test_batches_are_of_one_model_and_one_data_set():
    def job(name, **sections):
        return Job(Path(name), load(BASE, sections))

    a, b = job("a"), job("b", privacy={"epsilon": 2})
    c, d = job("c", model={"name": "mlp"}), job("d", data={"clients": 2})
    e = job("e", seed=1)
    assert batches([a, c, b, d, e], 8) == [[a, b, e], [c], [d]]
    assert batches([a, c, b, d, e], 2) == [[a, b], [c], [d], [e]]
    assert batches([a, b], 1) == [[a], [b]]
    assert automatic("cpu") == 1


@pytest.mark.parametrize("lanes", [0, True, "many", 1.5])
def test_a_wrong_number_is_refused(lanes):
    with pytest.raises(InvalidInput, match=r"^lanes"):
        udpfl.compare(BASE, seeds=1, out="x", lanes=lanes)
    assert not Path("x").exists()


def test_a_cell_that_fails_does_not_hold_up_the_others(capsys):
    """One cannot be planned; the other two go on without it."""
    arguments = ["compare", "base.toml", "--vary", "delta=1e-5,0,1e-4", "--seeds", "1"]
    code, out, _ = command(capsys, *arguments, "--lanes", "3", "--out", "grid", "--json")
    assert code == 1
    rows = json.loads(out)["rows"]
    assert [bool(row["failed"]) for row in rows] == [False, True, False]
    code, _, err = command(capsys, *arguments, "--lanes", "some", "--out", "other")
    assert code == 2
    assert "lanes: must be auto or a whole number, got 'some'" in err


def test_after_a_second_interrupt_nobody_goes_on(monkeypatch):
    """In a notebook the process does not end with it: no run may charge anybody any more."""

    def twice(job, heard, engine=None):
        for _ in range(2):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)  # the main thread has to hear of each
        return plain(job, heard, engine)

    plain = Job.train
    monkeypatch.setattr(Job, "train", twice)
    before = threading.active_count()
    with pytest.raises(ComparisonInterrupted):
        udpfl.compare({**BASE, "training": {"rounds": 400}}, seeds=3, out="grid", lanes=3)
    give_up = time.monotonic() + PATIENCE
    while threading.active_count() > before:
        assert time.monotonic() < give_up, "somebody goes on"
        time.sleep(0.05)
    assert not any(rounds(run) for run in Path("grid").glob("seed=*"))


def test_an_interrupt_that_no_round_hears_of_counts(monkeypatch):
    ended = []

    def late(job, heard, engine=None):
        ended.append(plain(job, heard, engine))
        if len(ended) == 2:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)
        return ended[-1]

    plain = Job.train
    monkeypatch.setattr(Job, "train", late)
    with pytest.raises(ComparisonInterrupted, match="2 of 4 runs are done"):
        udpfl.compare(BASE, vary={"epsilon": [2, 4, 6, 8]}, seeds=1, out="grid", lanes=2)


def test_a_fault_of_whoever_listens_is_not_lost():
    def tell(done, total, now):
        if done:
            raise RuntimeError("I do not want to know")

    with pytest.raises(RuntimeError, match="I do not want to know"):
        udpfl.compare(BASE, seeds=2, out="grid", lanes=2, tell=tell)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupt_of_runs_that_train_together(jobs, capsys):
    vary = ["--vary", "epsilon=2,4,8,16", "--lanes", "2", "--jobs", jobs]
    under_way = [Path("grid") / f"epsilon={e},seed=0" for e in ((2, 4) if jobs == 1 else (2, 8))]
    process = start(*LONG, *vary)
    until(lambda: all(rounds(run) >= 2 for run in under_way), process)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    said = Path("err.txt").read_text()
    assert "interrupted: 0 of 4 runs are done in grid; the same command goes on" in said
    assert "Traceback" not in said
    goes_on(capsys, under_way, *vary)


def test_killed_runs_that_trained_together_go_on(capsys):
    vary = ["--vary", "epsilon=2,4", "--lanes", "2"]
    under_way = [Path("grid") / f"epsilon={e},seed=0" for e in (2, 4)]
    process = start(*LONG, *vary)
    until(lambda: all(rounds(run) >= 5 for run in under_way), process)
    process.kill()
    process.wait()
    code, _, err = command(capsys, "compare", *LONG, *vary)
    assert (code, err) == (0, "")
    for run in under_way:
        assert charges(run) == EVERY
