"""The records on which a membership attack is tried: as many members as others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from udpfl.attacks.membership.statistics import Bools
from udpfl.attacks.target import Target
from udpfl.data.records import Indices
from udpfl.errors import InvalidInput

_FEWEST = 10


@dataclass(frozen=True, eq=False)
class Pool:
    """Members of a run, and held-out records, one after the other. `Pool.of` draws them."""

    inputs: Tensor
    """[n, ...], as the network takes them."""
    targets: Tensor
    """[n]."""
    is_member: Bools
    """[n]."""
    train_rows: Indices
    """The members, as positions in the training set."""
    test_rows: Indices
    """The others, as positions in the test set."""

    @classmethod
    def of(cls, target: Target, records: int, seed: int) -> Pool:
        """So many records at most, half of them members, drawn by the seed."""
        target.require_single_records("membership inference")
        target.require_classes("membership inference")
        members, others = len(target.members), len(target.nonmembers)
        half = min(records // 2, members, others)
        if half < _FEWEST:
            raise InvalidInput(
                "set records",
                f"a membership attack needs {_FEWEST} members and as many held-out records: "
                f"records is {records}, and the run has {members} members and {others} others",
            )
        rng = np.random.default_rng([*b"membership", seed])
        train_rows = np.sort(rng.permutation(target.members)[:half])
        test_rows = np.sort(rng.permutation(target.nonmembers)[:half])
        x, y = target.train_records(train_rows)
        other_x, other_y = target.test_records(test_rows)
        is_member = np.arange(2 * half) < half
        return cls(
            torch.cat([x, other_x]), torch.cat([y, other_y]), is_member, train_rows, test_rows
        )

    def __len__(self) -> int:
        return len(self.is_member)

    @property
    def described(self) -> str:
        """For people."""
        half = len(self) // 2
        return f"{half:,} records of its training and {half:,} held-out ones"
