"""A curve between the models of two finished runs, beside the straight line between them.

The curve is trained on records that no client of either run held: public records of the first run
where it set some aside, else one half of its test records, and the other half measures. What a
client of either run trained on is left out, record by record, however the two runs were dealt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udpfl.algorithms.curves import (
    Curve,
    Found,
    Kind,
    RecordLoss,
    Search,
    along,
    barrier,
    find_curve,
)
from udpfl.algorithms.message import tensors_from_bytes
from udpfl.data.records import Indices, Records
from udpfl.engine import LaneModel
from udpfl.errors import InvalidInput
from udpfl.federation.builders import choose_device, copy_with_parameters, prepare_inputs
from udpfl.federation.configured_names import trusted_settings
from udpfl.federation.evaluation import Evaluation, evaluate
from udpfl.federation.setup import Setup
from udpfl.runs.folder import RunFolder

_FEWEST = 20
"""Records on either side, below which nothing can be said."""
_KEPT = 3
"""One of so many records of the search tells when to stop it."""


@dataclass(frozen=True)
class Trained:
    """A finished run: its data as it was dealt out, its network with the trained weights."""

    path: Path
    setup: Setup
    stamp: dict[str, Any]
    """What the model file says of itself."""

    @property
    def held(self) -> Indices:
        """Training records of its clients."""
        return np.concatenate(self.setup.parts)

    @classmethod
    def of(cls, path: Path) -> Trained:
        """Read a run folder."""
        try:
            folder = RunFolder.open(path)
        except InvalidInput as error:
            raise InvalidInput("run", error.message) from None
        if not folder.model.is_file():
            raise InvalidInput(
                "run",
                f"{str(path)!r} has no model: it is not finished, or no client trained in it",
            )
        setup = Setup.of(trusted_settings(folder))
        tensors, stamp = tensors_from_bytes(folder.model.read_bytes())
        try:
            setup.network.load_state_dict(tensors)
        except RuntimeError as error:
            raise InvalidInput("run", f"{folder.model} does not fit its model: {error}") from None
        return cls(path, setup, stamp)


@dataclass(frozen=True)
class Walk:
    """Loss and accuracy at evenly spaced p, and the barrier."""

    places: tuple[float, ...]
    values: tuple[Evaluation, ...]

    @property
    def barrier(self) -> float:
        """See `curves.barrier`."""
        return barrier([value.loss for value in self.values])

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = zip(self.places, self.values, strict=True)
        return {
            "barrier": self.barrier,
            "points": [{"p": p, **value.to_dict()} for p, value in rows],
        }


@dataclass(frozen=True)
class Connection:
    """What lies between two models: the straight line, and a trained curve."""

    runs: tuple[str, str]
    found: Found
    line: Walk
    curve: Walk
    records: str
    """Which records trained the curve, and which measured it."""
    network: nn.Module
    model: LaneModel
    stamps: tuple[dict[str, Any], dict[str, Any]]

    def at(self, p: float) -> dict[str, Tensor]:
        """The model at p under its own parameter names, for saving."""
        flat = self.found.curve.point(p)
        return dict(copy_with_parameters(self.network, self.model, flat).state_dict())

    def stamp(self, p: float) -> dict[str, Any]:
        """What a saved model says of itself."""
        return {
            "statement": f"p = {p:g} on a curve between two models: costs what the two runs cost "
            f"together. {self.records}",
            "from": list(self.stamps),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        found = self.found
        return {
            "runs": list(self.runs),
            "kind": found.curve.kind,
            "records": self.records,
            "steps": found.steps,
            "converged": found.converged,
            "ended": found.ended,
            "mean_loss": list(found.checks),
            "line": self.line.to_dict(),
            "curve": self.curve.to_dict(),
        }


def connect(
    first: Path,
    second: Path,
    kind: Kind = "bezier",
    *,
    search: Search | None = None,
    points: int = 21,
    seed: int = 0,
) -> Connection:
    """Train a curve between the models of two runs and measure the way along it.

    Args:
        first: The folder of a finished run.
        second: That of another run of the same architecture.
        kind: "bezier" or "chain".
        search: How the curve is trained.
        points: Places along the way that are measured, from 3.
        seed: Of the records that train the curve, and of their order.

    Returns:
        Loss and accuracy along the straight line and along the curve.

    Raises:
        InvalidInput: A folder has no finished run, the architectures differ, or `points` is below
            3.

    Example:
        >>> import udpfl
        >>> from pathlib import Path
        >>> from udpfl.analysis.between_runs import connect
        >>> rows = "".join(f"{age / 99},{age % 2}\\n" for age in range(100))
        >>> own = {"path": "ages.csv", "target": "ill", "scale": "none"}
        >>> _ = Path("ages.csv").write_text("age,ill\\n" + rows)
        >>> base = {"data": {"name": "table", "test": 0.5, "options": own}, "seed": 1}
        >>> first, second = (udpfl.run(base, model="logistic", out=own).folder for own in "ab")
        >>> connect(first, second, points=3).line.places
        (0.0, 0.5, 1.0)
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 3:
        raise InvalidInput("points", f"must be a whole number from 3, got {points!r}")
    search = search or Search()
    a, b = Trained.of(first), Trained.of(second)
    _require_alike(a.setup.network, b.setup.network)
    device = choose_device("auto")
    model = LaneModel(a.setup.network, a.setup.loss).to(device)
    start, end = (_vector(model, run.setup.network).to(device) for run in (a, b))
    training, measuring, words = _records(a, b)
    x, y = _on(a.setup.network, training, device)
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(x))).to(device)
    landscape = RecordLoss(model, x[order], y[order], search.batch, len(x) // _KEPT)
    found = find_curve(kind, start, end, landscape, rng, search)
    x, y = _on(a.setup.network, measuring, device)
    line, curve = (
        _walk(own, lambda w: evaluate(model, w, x, y, a.setup.data.task), points)
        for own in (Curve.straight(kind, start, end), found.curve)
    )
    names, stamps = (str(a.path), str(b.path)), (a.stamp, b.stamp)
    return Connection(names, found, line, curve, words, a.setup.network, model, stamps)


def _walk(curve: Curve, evaluated: Callable[[Tensor], Evaluation], points: int) -> Walk:
    """What is measured at so many places along a curve."""
    places, values = zip(*along(curve, evaluated, points), strict=True)
    return Walk(places, values)


def _require_alike(a: nn.Module, b: nn.Module) -> None:
    shapes = [{n: tuple(t.shape) for n, t in net.state_dict().items()} for net in (a, b)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(
            "run", "the two runs trained different architectures, so there is no curve between them"
        )
    trained = {n for net in (a, b) for n, p in net.named_parameters() if p.requires_grad}
    other = {n: t for n, t in a.state_dict().items() if n not in trained}
    if any(not torch.equal(t, b.state_dict()[n]) for n, t in other.items()):
        raise InvalidInput(
            "run",
            "the two models differ in what is not trained, so there is no curve between them",
        )


def _vector(model: LaneModel, network: nn.Module) -> Tensor:
    named = dict(network.named_parameters())
    return model.layout.flat({n: named[n].detach() for n in model.layout.names}).clone()


def _on(network: nn.Module, records: Records, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs = prepare_inputs(network, records.inputs, device)
    return inputs, torch.from_numpy(records.targets).to(device)


def _records(a: Trained, b: Trained) -> tuple[Records, Records, str]:
    """Records to train the curve on, others to measure it on, and words for both."""
    taken = _digests(*a.setup.data.train.single_rows(a.held))
    taken |= _digests(*b.setup.data.train.single_rows(b.held))
    rows, aside = a.setup.data.train.single_rows(a.setup.public)
    public = _free(rows, aside, taken)
    test = _free(a.setup.data.test, np.arange(len(a.setup.data.test)), taken)
    name = a.setup.config.data.name
    if len(public) >= _FEWEST and len(test) >= _FEWEST:
        words = (
            f"The curve was trained on {len(public)} public records of {name} and measured on "
            f"{len(test)} test records."
        )
        return rows.subset(public), a.setup.data.test.subset(test), words
    if len(test) < 2 * _FEWEST:
        raise InvalidInput(
            "run",
            f"only {len(test)} test records of {str(a.path)!r} belong to no client of either run: "
            f"set data.public, or use the same test records in both runs (the same seed)",
        )
    words = (
        f"The curve was trained on {len(test[::2])} test records of {name} and measured on the "
        f"{len(test[1::2])} others, so the test set was used for training. "
        f"{_why_not_public(a, b, len(public))}"
    )
    return a.setup.data.test.subset(test[::2]), a.setup.data.test.subset(test[1::2]), words


def _why_not_public(a: Trained, b: Trained, free: int) -> str:
    """Why public records of the first run did not train the curve."""
    if len(a.setup.public):
        return (
            f"Of the {len(a.setup.public)} public records of {a.path} {free} belong to no client "
            f"of either run, but {_FEWEST} are needed: runs with the same seed and data.public "
            f"have the same public records."
        )
    other = f"; those of {b.path} are used only if it is named first" if len(b.setup.public) else ""
    return f"{a.path} set no public records aside (data.public is 0){other}."


def _digest(records: Records, row: int) -> bytes:
    content = records.inputs[row].tobytes() + records.targets[row].tobytes()
    return blake2b(content, digest_size=16).digest()


def _digests(records: Records, rows: Indices) -> set[bytes]:
    return {_digest(records, int(row)) for row in rows}


def _free(records: Records, rows: Indices, taken: set[bytes]) -> Indices:
    return np.array([row for row in rows if _digest(records, int(row)) not in taken], dtype=int)
