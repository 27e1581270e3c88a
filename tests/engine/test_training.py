"""Rounds of the engine: samples, lanes, threads, noise and corrections."""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from tests.engine.oracle import MIXED, Noted, RawParameter, labels, lanes_of, problem, small_net
from tests.small import cross_entropy
from udpfl.engine import (
    Entropy,
    Key,
    Keyed,
    LaneModel,
    Limits,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    Unclipped,
    train_round,
)
from udpfl.engine._batches import Batches
from udpfl.engine.limits import choose_limits
from udpfl.errors import InvalidInput
from udpfl.mechanisms import Gaussian, Laplace, Staircase


def test_a_sample_that_is_not_finite_counts_as_zero_and_harms_no_other():
    net = small_net()
    model = LaneModel(net, cross_entropy)
    x, y, _ = problem()
    x = x[:6].view(2, 3, 1, 8, 8).clone()
    y = y[:6].view(2, 3)
    parameters = model.initial().expand(2, -1)
    real = torch.ones(2, 3, dtype=torch.bool)
    for norm in ("l1", "l2", "linf"):
        clipper = NormClipper(norm, [1.0, 1.0])
        broken = x.clone()
        broken[1, 2, 0, 0, 0] = math.nan
        broken[0, 0, 0, 3, 3] = math.inf
        got = clipper.clipped_sum(model.gradients(parameters, broken, y, real)).sum
        absent = real.clone()
        absent[1, 2] = absent[0, 0] = False
        expected = clipper.clipped_sum(model.gradients(parameters, x, y, absent)).sum
        assert torch.isfinite(got).all()
        assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("clipper", [Unclipped, lambda: NormClipper("l2", [1.0] * 3)])
def test_what_fills_up_a_short_batch_changes_nothing(clipper, value):
    """It is some record of the data, whose gradient may not be finite."""
    x, y, _ = problem()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    net[1].weight.data.fill_(0.1)  # so that the largest of these overflows
    model = LaneModel(net, cross_entropy)
    records = [torch.arange(20), torch.arange(20, 25), torch.arange(0)]

    def trained(x):
        lanes = lanes_of(records, clipper=clipper(), noiser=Noiseless(), rate=1.0, steps=(2,) * 3)
        start = model.initial().expand(3, -1)
        return train_round(model, x, y, start, lanes, 1, Entropy(), Limits(3, 64)).parameters

    broken = x.clone()
    broken[0] = value
    before, after = trained(x), trained(broken)
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


@pytest.mark.parametrize("rules", [True, False])
def test_what_fills_up_a_batch_has_no_gradient(rules):
    """Whatever a clipper makes of it."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3) if rules else RawParameter()
    model, x = LaneModel(net, cross_entropy), torch.randn(2, 5, 4)
    assert model.book_keeping == rules
    real = torch.ones(2, 5, dtype=torch.bool)
    real[0, 2:] = real[1, 4] = False
    start = model.initial().expand(2, -1)
    found = model.gradients(start, x, labels(2, 5), real)
    whole = model.gradients(start, x, labels(2, 5), torch.ones_like(real))
    assert torch.equal(found.norms(2)[~real], torch.zeros(4, dtype=torch.float64))
    assert not found.written_out()[~real].any()
    assert torch.equal(found.written_out()[real], whole.written_out()[real])
    assert whole.norms(2).min() > 0.1


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_one_record_never_moves_the_sum_by_more_than_the_bound(norm):
    model = LaneModel(small_net(), cross_entropy)
    generator = torch.Generator().manual_seed(5)
    for trial in range(40):
        x = torch.randn(1, 1, 1, 8, 8, generator=generator) * 10.0 ** (trial % 9 - 4)
        bound = 10.0 ** (trial % 5 - 3)
        start = model.initial().unsqueeze(0) * 10.0 ** (trial % 3)
        real = torch.ones(1, 1, dtype=torch.bool)
        gradients = model.gradients(start, x, labels(1, 1), real)
        total = NormClipper(norm, [bound]).clipped_sum(gradients).sum.double()
        size = total.abs().sum() if norm == "l1" else total.square().sum().sqrt()
        assert float(size) <= bound


def test_without_noise_and_clipping_it_is_plain_sgd():
    """The federated average of lanes equals hand-written SGD on the same records."""
    x, y, records = problem()
    net = small_net()
    model = LaneModel(net, cross_entropy)
    start = model.initial()
    lanes = lanes_of(records, clipper=Unclipped(), noiser=Noiseless(), rate=1.0, steps=(5,) * 4)
    out = train_round(
        model, x, y, start.expand(4, -1), lanes, 1, Entropy(), Limits(lanes=2, samples=7)
    )
    for lane, own in enumerate(records):
        copy = small_net()
        optimizer = torch.optim.SGD(copy.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(copy(x[own]), y[own]).backward()
            optimizer.step()
        plain = torch.cat([p.detach().flatten() for p in copy.parameters()])
        assert torch.allclose(out.parameters[lane], plain, atol=1e-5)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_chunks_lanes_and_client_order_do_not_matter(norm):
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()

    def trained(limits, order):
        lanes = lanes_of(
            [records[i] for i in order],
            clipper=NormClipper(norm, [(0.3, 0.5, 0.7, 1.0)[i] for i in order]),
            noiser=MechanismNoiser([MIXED[i] for i in order]),
            clients=[f"client-{i}" for i in order],
            steps=[(2, 3, 1, 4)[i] for i in order],
        )
        parameters = start.expand(4, -1)
        for round_ in range(5):
            parameters = train_round(
                model, x, y, parameters, lanes, round_, Keyed(7), limits
            ).parameters
        return parameters[[order.index(i) for i in range(4)]]

    base = trained(Limits(lanes=4, samples=64), [0, 1, 2, 3])
    assert torch.equal(base, trained(Limits(lanes=4, samples=64), [0, 1, 2, 3]))
    for limits, order in (
        (Limits(lanes=1, samples=64), [0, 1, 2, 3]),
        (Limits(lanes=4, samples=2), [0, 1, 2, 3]),
        (Limits(lanes=3, samples=5), [3, 1, 0, 2]),
        (Limits(lanes=1, samples=7, workers=3), [2, 0, 1, 3]),
    ):
        # Where rounding differs, a number may end on the next point of the noise's grid.
        assert torch.allclose(base, trained(limits, order), atol=2e-3)
    # Threads change nothing at all where the stacks are the same.
    alone, beside = (Limits(lanes=1, samples=64, workers=n) for n in (1, 4))
    assert torch.equal(trained(alone, [0, 1, 2, 3]), trained(beside, [0, 1, 2, 3]))


def run_threads(net, workers=2, clipper=None):
    """One round over four lanes, and the threads that computed gradients."""
    x, y, records = problem()
    model = LaneModel(net, cross_entropy)
    used = set()
    gradients = model.gradients

    def noticed(*arguments):
        used.add((threading.get_ident(), torch.get_num_threads()))
        return gradients(*arguments)

    model.gradients = noticed
    lanes = lanes_of(
        records,
        clipper=clipper or NormClipper("l2", [1.0] * 4),
        noiser=MechanismNoiser([Gaussian(1.0)] * 4),
    )
    start = model.initial().expand(4, -1)
    train_round(model, x, y, start, lanes, 0, Entropy(), Limits(1, 64, workers))
    return used


def test_threads_share_the_lanes_only_where_nothing_is_random():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        used = run_threads(small_net())
        assert 1 <= len({thread for thread, _ in used} - {threading.get_ident()}) <= 2
        assert {count for _, count in used} == {1}  # a core for each, not two
        assert torch.get_num_threads() == 2
        random = nn.Sequential(small_net(), nn.Dropout(0.5))
        for case in (run_threads(random), run_threads(small_net(), workers=1)):
            assert case == {(threading.get_ident(), 2)}
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_thread_is_not_lost():
    class Broken(NormClipper):
        def lanes(self, which):
            return Broken(self.norm, self.bounds[which])

        def clipped_sum(self, gradients):
            raise RuntimeError("broken on purpose")

    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="on purpose"):
        run_threads(small_net(), clipper=Broken("l2", [1.0] * 4))
    assert torch.get_num_threads() == before


def test_memory_is_shared_by_the_threads_and_does_not_grow_with_the_lanes():
    def limits(lanes, threads, dimension=26_010, **more):
        return choose_limits(
            "auto", lanes=lanes, dimension=dimension, bytes_per_sample=200_000,
            memory=2 << 30, chunk=None, device=torch.device("cpu"), threads=threads, **more,
        )  # fmt: skip

    assert limits(10, 2) == Limits(5, limits(10, 2).samples, 2)
    assert limits(1, 8).workers == 1
    assert limits(10, 2, dimension=500_000).lanes == 1
    assert limits(1000, 2).lanes == limits(100, 2).lanes == 16
    for lanes, threads in ((10, 1), (10, 8), (1000, 4)):
        found = limits(lanes, threads)
        assert found.lanes * found.samples * 200_000 <= 256 << 20
        assert found.workers * found.lanes * found.samples * 200_000 <= 2 << 30


class Kept(Noiseless):
    """Keeps the sums that would get noise, step by step."""

    def __init__(self):
        self.sums = []

    def lanes(self, which):
        return self

    def add(self, sums, stream, keys):
        self.sums.append(sums.clone())
        return sums


@pytest.mark.parametrize("stream", [Entropy(), Keyed(3)], ids=["entropy", "keyed"])
def test_every_step_of_every_lane_draws_a_sample_of_its_own(stream):
    """Record i has the i-th unit vector for its gradient, so a sum says which were drawn."""
    n, steps, noiser = 400, 10, Kept()
    model = LaneModel(nn.Linear(n, 1, bias=False), lambda outputs, _: outputs.squeeze(1))
    lanes = lanes_of(
        [torch.arange(n)] * 2, clipper=NormClipper("l2", [9.0] * 2), noiser=noiser,
        steps=(steps,) * 2,
    )  # fmt: skip
    start = model.initial().expand(2, -1)
    train_round(model, torch.eye(n), torch.zeros(n), start, lanes, 1, stream, Limits(2, 512))
    drawn = torch.stack(noiser.sums).flatten(0, 1)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert abs(float(drawn.mean()) - 0.5) < 6 / math.sqrt(4 * drawn.numel())
    signs = 2 * drawn - 1
    together = signs @ signs.T / n - torch.eye(2 * steps)
    assert float(together.abs().max()) < 6.5 / math.sqrt(n)


def test_no_two_draws_of_a_round_share_a_key():
    """Two trainings of three and of two steps, random layers included."""
    x, y, records = problem()
    model = LaneModel(nn.Sequential(small_net(), nn.Dropout(0.5)), cross_entropy)
    stream, start = Noted(), model.initial().expand(4, -1)
    lanes = lanes_of(
        records, clipper=NormClipper("l2", [1.0] * 4), noiser=MechanismNoiser([Gaussian(1.0)] * 4)
    )
    for first, steps in ((0, 3), (3, 2)):
        own = dataclasses.replace(lanes, steps=(steps,) * 4, first_step=first)
        train_round(model, x, y, start, own, 1, stream, Limits(4, 64))
    asked = [(key.purpose, key.client, key.step) for key in stream.keys]
    assert len(set(stream.keys)) == len(asked) == 5 * (4 + 4 + 1)
    for purpose in ("noise", "sampling"):
        steps = {(client, step) for own, client, step in asked if own == purpose}
        assert steps == {(f"client-{i}", step) for i in range(4) for step in range(5)}


def test_index_sets_become_one_matrix_and_a_mask():
    rows = [torch.tensor(own, dtype=torch.int64) for own in ([7, 9, 4], [], [5], [1, 2, 3, 8])]
    index, real = Batches([rows], torch.device("cpu")).rows(0, 0, 5)
    assert index.tolist() == [[7, 9, 4, 0, 0], [0] * 5, [5, 0, 0, 0, 0], [1, 2, 3, 8, 0]]
    assert real.sum(1).tolist() == [3, 0, 1, 4]
    assert torch.equal(real, torch.arange(5) < real.sum(1, keepdim=True))
    later, left = Batches([[rows[1]] * 4, rows], torch.device("cpu")).rows(1, 2, 3)
    assert later.tolist() == [[4, 0, 0], [0] * 3, [0] * 3, [3, 8, 0]]
    assert left.sum(1).tolist() == [1, 0, 0, 2]


def test_a_lane_that_is_done_draws_no_more_samples():
    """It comes out as if no other lane had gone on, what is said of its clipping included."""
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)

    def trained(count, steps):
        lanes = lanes_of(
            records[:count], clipper=NormClipper("l2", [3.0] * count), steps=steps, lr=4.0,
            noiser=MechanismNoiser([Gaussian(0.1)] * count),
        )  # fmt: skip
        stream, start = Noted(), model.initial().expand(count, -1)
        return train_round(model, x, y, start, lanes, 1, stream, Limits(count, 64)), stream.keys

    alone, _ = trained(1, (1,))
    beside, keys = trained(2, (1, 4))
    assert torch.allclose(beside.parameters[:1], alone.parameters, atol=1e-2)
    assert torch.equal(beside.clipped_fraction[:1], alone.clipped_fraction)
    assert 0 < float(alone.clipped_fraction) < 1
    sampled = [(key.client, key.step) for key in keys if key.purpose == "sampling"]
    assert sampled == [("client-0", 0), *(("client-1", step) for step in range(4))]


def test_an_empty_batch_releases_pure_noise():
    x, y, _ = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()
    lanes = lanes_of(
        [torch.arange(0)],
        clipper=NormClipper("l2", [1.0]),
        noiser=MechanismNoiser([Gaussian(2.0)]),
        steps=(1,),
        lr=1.0,
    )
    moved = train_round(model, x, y, start.unsqueeze(0), lanes, 0, Entropy(), Limits(1, 8))
    noise = (start - moved.parameters[0]).numpy()
    assert noise.std() == pytest.approx(2.0, rel=0.25)
    assert (noise != 0).mean() > 0.9  # some lie on the zero of the grid


@pytest.mark.parametrize(
    "mechanism", [Gaussian(1.5), Laplace(1.1), Staircase(1.0, 0.8, 0.4)], ids=lambda m: m.name
)
def test_noise_scale_is_right_and_the_wrong_ones_are_rejected(mechanism):
    """Released minus clipped sum has the mechanism's variance; x 2/3 and x 3/2 would be caught."""
    sums = torch.zeros(8, 20_000)
    lanes = MechanismNoiser([mechanism] * 8)
    keys = [Key("run", f"client-{i}", 1, 0) for i in range(8)]
    noise = lanes.add(sums, Entropy(), keys).double()
    fourth = float((noise**4).mean()) / float((noise**2).mean()) ** 2
    error = math.sqrt((fourth - 1) / noise.numel())
    ratio = float((noise**2).mean()) / mechanism.variance
    assert abs(ratio - 1) < 6 * error
    assert abs((2 / 3) ** 2 - 1) > 6 * error
    assert abs((3 / 2) ** 2 - 1) > 6 * error
    assert abs(float(noise.mean())) < 6 * mechanism.noise_std / math.sqrt(noise.numel())


def test_every_lane_needs_its_mechanism():
    keys = [Key("run", "client", 1, i) for i in range(3)]
    for mechanisms in ([Gaussian(1.0)] * 2, [Gaussian(1.0)] * 4):
        with pytest.raises(InvalidInput, match="for 3 lanes"):
            MechanismNoiser(mechanisms).add(torch.zeros(3, 5), Entropy(), keys)


def test_the_correction_hook_sees_released_gradients_and_lane_state():
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    start = model.initial()
    lanes = lanes_of(records, clipper=Unclipped(), noiser=Noiseless(), rate=1.0, steps=(1,) * 4)
    anchor = torch.zeros(4, start.numel())
    object.__setattr__(lanes, "state", {"anchor": anchor})

    def pull(gradient, parameters, state):
        return gradient + 0.5 * (parameters - state["anchor"])

    plain = train_round(model, x, y, start.expand(4, -1), lanes, 0, Entropy(), Limits(2, 8))
    pulled = train_round(model, x, y, start.expand(4, -1), lanes, 0, Entropy(), Limits(2, 8), pull)
    expected = plain.parameters - 0.5 * 0.5 * start
    assert torch.allclose(pulled.parameters, expected, atol=1e-6)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
@pytest.mark.parametrize(("chosen", "kept"), [({}, True), ({"GLIBC_TUNABLES": ""}, False)])
def test_freed_memory_is_kept_unless_the_environment_has_chosen(chosen, kept):
    """Then tensors like those before need no pages from the operating system."""
    script = """if True:
        import resource, torch
        from udpfl.engine._allocation import keep_freed_memory
        print(keep_freed_memory())
        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            several = [torch.ones(3 << 20) for _ in range(6)]
            del several
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        print(min(faults() for _ in range(9)))
    """
    clean = {k: v for k, v in os.environ.items() if "MALLOC" not in k and k != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=clean | chosen, capture_output=True, check=True
    )
    said, faults = done.stdout.split()
    assert said == str(kept).encode()
    assert not kept or int(faults) < 100
