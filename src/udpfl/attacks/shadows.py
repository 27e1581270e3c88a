"""Shadow models: what the target's own training makes of other halves of the records.

Pairs of shadows are complements of each other: each record is in exactly one of the two. The same
clients hold as many records as in the target's run, declare the same sizes, begin with the same
weights, and train by the same method with the same clip, noise and budget. Records of the target
that are not attacked are in every shadow, as in the target: the attacker of differential privacy
knows all records but one.

A shadow is a run in a folder of its own with a ledger of its own, whose accounts are called "shadow
0 of …": nothing of it is charged to a client. Folders are named by what goes into them, so that a
shadow is trained once, and after a crash those that were being trained go on. On a GPU many shadows
are trained at once, as lanes of the same calls of the engine (`run_together`).

Reference: Carlini et al., "Membership Inference Attacks From First Principles", 2022, Section IV.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udpfl.attacks.base import Progress, silent
from udpfl.attacks.membership.statistics import Bools
from udpfl.attacks.pool import Pool
from udpfl.attacks.target import Target
from udpfl.config import Config, load
from udpfl.data import DataSet
from udpfl.data.records import Indices, KnownDigests, Records, fingerprint_of
from udpfl.engine import Loss
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation import Resumed, run, run_together
from udpfl.federation.builders import choose_device
from udpfl.runs.files import has_begun, has_ended
from udpfl.trained import load as load_trained

ACCOUNT = "shadow {:0{}d} of {}"
"""How accounts in the ledger of a shadow are called: an attacker pays for its own trainings.

The number keeps clients in the order of the run, because columns are read in order of their values.
"""
CLIENT = "client"
"""The column that says whose a record is."""
AT_ONCE = {"cpu": 1, "cuda": 16}
"""Shadows that are trained together: on a CPU nothing is gained."""
_TESTED = 100
"""Held-out records on which a shadow is evaluated; nobody looks at that."""
_FORMAT = 2
"""Of what the name of a folder is made from."""


def keep_matrix(pairs: int, slots: Sequence[int], seed: int) -> Bools:
    """Which record is in which shadow [2 pairs, records].

    Args:
        pairs: Of shadows; of each pair a record is in exactly one.
        slots: The client of each record. Every shadow has half of the records of every client.
        seed: Of the halves. The first pairs do not depend on how many there are.

    Raises:
        InvalidInput: A client has an odd number of records, or there is no pair.

    Example:
        >>> from udpfl.attacks.shadows import keep_matrix
        >>> keep = keep_matrix(3, [0, 0, 1, 1], seed=0)
        >>> keep.sum(axis=0).tolist(), keep.sum(axis=1).tolist()
        ([3, 3, 3, 3], [2, 2, 2, 2, 2, 2])
    """
    clients = np.asarray(slots)
    if pairs < 1:
        raise InvalidInput("shadows", "must be an even number of at least 2: they come in pairs")
    keep = np.zeros((2 * pairs, len(clients)), dtype=bool)
    for pair in range(pairs):
        rng = np.random.default_rng([*b"shadows", seed, pair])
        for client in np.unique(clients):
            rows = rng.permutation(np.flatnonzero(clients == client))
            if len(rows) % 2:
                raise InvalidInput("slots", "every client needs an even number of records")
            keep[2 * pair, rows[: len(rows) // 2]] = True
        keep[2 * pair + 1] = ~keep[2 * pair]
    return keep


def pairs_of(shadows: int) -> int:
    """How many pairs a number of shadows is; odd numbers are refused."""
    if shadows < 2 or shadows % 2:
        raise InvalidInput(
            "shadows",
            f"must be an even number of at least 2, got {shadows}: they come in pairs, of which "
            "each record is in one",
        )
    return shadows // 2


@dataclass(frozen=True, eq=False)
class Shadow:
    """One shadow to train: settings, and which records it has."""

    config: Config
    """With the folder of its own."""
    data: DataSet
    """All records that any shadow has, with the client of each; shadows share it."""
    rows: Indices
    """Those of this shadow, as positions in the training set of `data`."""

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        assert self.config.out is not None
        return Path(self.config.out)

    @property
    def own_data(self) -> DataSet:
        """Its records alone."""
        train = self.data.train.subset(self.rows)
        columns = {name: column[self.rows] for name, column in self.data.columns.items()}
        return replace(self.data, train=replace(train, positions=None), columns=columns)


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Trained shadows, and which record of the pool was in which."""

    keep: Bools
    """[shadows, records]."""
    parameters: Tensor
    """[shadows, d]."""

    def __len__(self) -> int:
        return len(self.keep)


def shadow_models(
    target: Target, pool: Pool, shadows: int, seed: int, progress: Progress = silent
) -> ShadowModels:
    """Train so many shadows on halves of the pool, or find those that are there already.

    Args:
        target: The run that is attacked.
        pool: The records that are attacked.
        shadows: An even number.
        seed: Of the halves.
        progress: Told of every shadow.

    Returns:
        Their models.

    Raises:
        InvalidInput: The number of shadows is not even.
        Unsupported: The method learns from public records, which shadows would need as well.

    Example:
        >>> import numpy as np, udpfl
        >>> from udpfl.attacks import Pool, Target, shadow_models
        >>> settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "out": "letters"}
        >>> records = np.eye(60, dtype="float32"), np.arange(60) % 2
        >>> done = udpfl.run(settings, data=records, model="logistic", privacy="none")
        >>> target = Target.open("letters", data=records)
        >>> shadow_models(target, Pool.of(target, 20, 0), 2, 0).keep.shape
        (2, 20)
    """
    pairs = pairs_of(shadows)
    if len(target.setup.public):
        raise Unsupported(
            "the run set public records aside (data.public), which shadow models cannot have yet"
        )
    slots = deal_slots(target, pool)
    keep = keep_matrix(pairs, slots.tolist(), seed)
    data = _records_of(target, pool, slots)
    digests = KnownDigests(data.train)
    wanted = [_shadow(target, pool, data, row, digests) for row in keep]
    setup = target.setup

    def told(done: int) -> None:
        progress("training shadow models", done, len(wanted))

    found = train_shadows(wanted, setup.network, setup.loss, told)
    return ShadowModels(keep, torch.stack(found))


def train_shadows(
    shadows: Sequence[Shadow],
    network: nn.Module,
    loss: Loss,
    told: Callable[[int], None] = lambda done: None,
) -> list[Tensor]:
    """The parameters of each shadow [d], in their order; what is there already is not trained.

    Args:
        shadows: What to train.
        network: With the weights that training begins with; it is not changed.
        loss: One number per sample.
        told: How many are done.
    """
    waiting = [own for own in shadows if not has_ended(own.folder)]
    size = AT_ONCE.get(choose_device(shadows[0].config.device).type, 1)
    for first in range(0, len(waiting), size):
        told(len(shadows) - len(waiting) + first)
        with _quiet():
            _train(waiting[first : first + size], network, loss)
    told(len(shadows))
    return [_parameters(shadow, network) for shadow in shadows]


def _train(shadows: Sequence[Shadow], network: nn.Module, loss: Loss) -> None:
    """Some shadows at once; one that was cut short goes on, and the first error is raised."""
    if shadows[0].config.privacy.ledger is not None:  # such a run is charged for all its records
        for own in shadows:
            settings = {"resume": own.folder} if has_begun(own.folder) else {"config": own.config}
            own.folder.parent.mkdir(parents=True, exist_ok=True)  # where its ledger will be
            run(**settings, data=own.own_data, model=network, loss=loss)
        return
    found = run_together(
        [Resumed(own.folder) if has_begun(own.folder) else own.config for own in shadows],
        data=shadows[0].data,
        records=[own.rows for own in shadows],
        model=network,
        loss=loss,
    )
    for each in found:
        if isinstance(each, Exception):
            raise each


def _parameters(shadow: Shadow, network: nn.Module) -> Tensor:
    """The final model of a shadow [d]; a folder that was edited is refused."""
    trained = load_trained(shadow.folder, model=copy.deepcopy(network))
    named = dict(trained.model.named_parameters())
    trainable = [name for name, own in network.named_parameters() if own.requires_grad]
    return torch.cat([named[name].detach().flatten() for name in trainable])


def deal_slots(target: Target, pool: Pool) -> Indices:
    """The client of each record of the pool [n].

    Every held-out record takes the client of a member, one with its own label where there is one.
    """
    rng = np.random.default_rng([*b"slots", len(pool)])
    labels, slots = pool.targets.numpy(), np.empty(len(pool), dtype=np.int64)
    members, others = np.flatnonzero(pool.is_member), np.flatnonzero(~pool.is_member)
    slots[members] = target.owner[pool.train_rows]

    def by_label(rows: Indices) -> Indices:
        return rows[np.lexsort((rng.random(len(rows)), labels[rows]))]

    slots[by_label(others)] = slots[by_label(members)]
    return slots


def _shadow(target: Target, pool: Pool, data: DataSet, row: Bools, digests: KnownDigests) -> Shadow:
    """Settings and records of one shadow."""
    attacked = np.flatnonzero(row)
    rows = np.append(attacked, np.arange(len(pool), len(data.train)))  # others are in every shadow
    clients = data.columns[CLIENT][rows]
    about = {
        "format": _FORMAT,
        "records": [
            fingerprint_of([(data.train, rows[clients == own])], digests)
            for own in np.unique(clients)
        ],
        "start": hashlib.sha256(target.setup.start.cpu().numpy().tobytes()).hexdigest(),
        "settings": _settings(target, "").model_dump(mode="json"),
    }
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
    folder = target.place / "shadows" / key
    return Shadow(_settings(target, str(folder)), data, rows)


def _records_of(target: Target, pool: Pool, slots: Indices) -> DataSet:
    """The records of the pool in its order, then those of the run that are not attacked."""
    data, owner = target.setup.data, target.owner
    known = np.setdiff1d(target.members, pool.train_rows)
    train = Records(
        np.concatenate(
            [
                data.train.inputs[pool.train_rows],
                data.test.inputs[pool.test_rows],
                data.train.inputs[known],
            ]
        ),
        np.concatenate(
            [
                data.train.targets[pool.train_rows],
                data.test.targets[pool.test_rows],
                data.train.targets[known],
            ]
        ),
    )
    width = len(str(len(target.plans) - 1))
    names = np.array([ACCOUNT.format(i, width, n) for i, n in enumerate(target.setup.names)])
    clients = names[np.concatenate([slots, owner[known]])]
    test = Records(data.test.inputs[:_TESTED], data.test.targets[:_TESTED])
    return replace(
        data, train=train, test=test, columns={CLIENT: clients}, owners=None, owner_names=None,
        test_columns={}, test_owners=None, references={}, schema=None,
    )  # fmt: skip


def _settings(target: Target, folder: str) -> Config:
    """Those of the run, without what is only about its folder, its clients' budgets or its data."""
    config = target.config
    own: dict[str, Any] = {
        "out": folder or None,
        "record_updates": [],
        "data": {
            "name": "own", "dir": None, "options": {}, "partition": "column", "by": CLIENT,
            "block": None, "clients": len(target.plans), "public": 0,
            "declared_sizes": [plan.declared_size for plan in target.plans],
        },
        "model": {"name": "own", "options": {}},
        "training": {
            "evaluate_every": config.training.rounds,
            "checkpoint_every": config.training.rounds,
        },
    }  # fmt: skip
    if config.privacy.enabled and config.privacy.ledger is not None:
        # The filter of a shared ledger plans other noise than a run on its own ledger.
        own["privacy"] = {"ledger": f"{folder}.sqlite" if folder else "shared"}
    return load(config, own)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that the target's own run has given already."""
    log = logging.getLogger("udpfl")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
