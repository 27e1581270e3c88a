"""CUDA and reduced precision: the clipped sum is that of the CPU in full precision."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from tests.engine.oracle import MIXED, RawParameter, Residual, labels, lanes_of, problem, small_net
from tests.small import cross_entropy
from udpfl.engine import (
    Entropy,
    Keyed,
    LaneModel,
    Limits,
    MechanismNoiser,
    Noiseless,
    NormClipper,
    train_round,
)
from udpfl.engine.precision import computing_in
from udpfl.errors import Unsupported


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("kind", [small_net, Residual, RawParameter])
def test_cuda_agrees_with_the_cpu(kind, norm):
    x = torch.randn(3, 5, 1, 8, 8) if kind is small_net else torch.randn(3, 5, 1, 4, 4)
    x = torch.randn(3, 5, 4) if kind is RawParameter else x
    net, real = kind(), torch.ones(3, 5, dtype=torch.bool)
    sums = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        model = LaneModel(net, cross_entropy).to(device)
        start = model.initial().to(device).expand(3, -1)
        model.check(start[0], x[0].to(device), labels(3, 5)[0].to(device))
        with computing_in("float32", device):
            gradients = model.gradients(
                start, x.to(device), labels(3, 5).to(device), real.to(device)
            )
            sums.append(NormClipper(norm, [0.1, 0.5, 2.0]).clipped_sum(gradients).sum.cpu())
    assert torch.allclose(*sums, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_training_does_not_depend_on_chunks():
    x, y, records = (t.cuda() if isinstance(t, torch.Tensor) else t for t in problem())
    records = [own.cuda() for own in records]
    model = LaneModel(small_net(), cross_entropy).to(torch.device("cuda"))
    start = model.initial().cuda().expand(4, -1)
    results = []
    for limits in (Limits(4, 64), Limits(1, 64), Limits(3, 5)):
        lanes = lanes_of(
            records, clipper=NormClipper("l2", [0.5] * 4), noiser=MechanismNoiser(MIXED)
        )
        lanes = dataclasses.replace(
            lanes,
            denominators=lanes.denominators.cuda(),
            learning_rates=lanes.learning_rates.cuda(),
        )
        parameters = start
        for round_ in range(5):
            parameters = train_round(
                model, x, y, parameters, lanes, round_, Keyed(7), limits
            ).parameters
        results.append(parameters)
    assert torch.allclose(results[0], results[1], atol=1e-4)
    assert torch.allclose(results[0], results[2], atol=1e-4)


def test_reduced_precision_outside_does_not_reach_the_clipped_sum():
    """Norm and sum must agree to the rounding that the clipper allows for."""
    x, y, records = problem()
    model = LaneModel(small_net(), cross_entropy)
    seen = []

    class Watching(NormClipper):
        def lanes(self, which):
            return self

        def clipped_sum(self, gradients):
            seen.append((torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")))
            seen.append(torch.backends.cudnn.allow_tf32)
            return super().clipped_sum(gradients)

    lanes = lanes_of(records[:1], clipper=Watching("l2", [1.0]), noiser=Noiseless(), steps=(1,))
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = train_round(
                model, x, y, model.initial()[None], lanes, 0, Entropy(), Limits(1, 64)
            )
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [("highest", False), False]
    assert out.parameters.dtype == torch.float32


@pytest.mark.parametrize(
    "switch", ["fp32", "mkldnn.fp32", "mkldnn.conv.fp32", "mkldnn.matmul.fp32"]
)
def test_precision_that_torch_s_newer_switches_lower_is_refused(switch):
    *path, _ = switch.split(".")
    holder = functools.reduce(getattr, path, torch.backends)
    if not hasattr(holder, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before, device = holder.fp32_precision, torch.device("cpu")
    with computing_in("float32", device):
        pass
    holder.fp32_precision = "bf16" if path else "tf32"
    try:
        with pytest.raises(Unsupported, match="precision"), computing_in("float32", device):
            pass
    finally:
        holder.fp32_precision = before
    with computing_in("float32", device):
        pass
