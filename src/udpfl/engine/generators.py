"""Where random numbers in a model come from.

Training seeds torch's global generators from private entropy at every step (`PrivateStream.layers`)
and knows of no others. A mask from any other generator may be one that the server can compute, and
then a record's gradient depends on its place in the batch, so on every other record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from udpfl.errors import Unsupported

USE_TORCH = (
    "random numbers must come from torch's global generator (nn.Dropout, torch.rand), which "
    "training seeds from private entropy at every step"
)


@dataclass(frozen=True)
class Answer:
    """What a computation gave, and what it did to torch's global generators."""

    value: Tensor
    drew: bool
    """Whether it drew from them."""
    state: bytes
    """Where they were afterwards."""


@contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Put torch's global generators back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def answered(compute: Callable[[], Tensor], seed: int, device: torch.device) -> Answer:
    """Compute with torch's global generators at `seed`; they are put back afterwards."""
    with restored(device):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        before = torch_state(device)
        value = compute()
        after = torch_state(device)
    return Answer(value, before != after, after)


def torch_state(device: torch.device) -> bytes:
    """The state of torch's global generators that a model on this device can draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return b"".join(state.numpy().tobytes() for state in states)


@contextmanager
def only_torch_draws(what: str) -> Iterator[None]:
    """Refuse what draws from Python's or numpy's global generator meanwhile."""
    own, numpy = random.getstate(), _numpy_state()

    def require_same() -> None:
        if random.getstate() != own:
            raise Unsupported(f"{what} draws from Python's `random`: {USE_TORCH}")
        if _numpy_state() != numpy:
            raise Unsupported(f"{what} draws from numpy's global generator: {USE_TORCH}")

    try:
        yield
    except Unsupported:  # perhaps because of that
        require_same()
        raise
    require_same()


def _numpy_state() -> dict[str, object]:
    state = np.random.get_state(legacy=False)
    assert isinstance(state, dict)
    inner = {name: np.asarray(value).tobytes() for name, value in state["state"].items()}
    return {**state, "state": inner}
