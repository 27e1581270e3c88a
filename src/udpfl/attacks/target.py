"""What is attacked: a finished run with its model, its records, and what it states."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from udpfl.accounting import PrivacyStatement
from udpfl.algorithms import ClientMessage
from udpfl.attacks.base import Attacked
from udpfl.config import Config
from udpfl.config import load as load_config
from udpfl.config.reading import OWN
from udpfl.data.records import Indices, record_digests
from udpfl.engine import Loss
from udpfl.errors import InvalidInput, Unsupported
from udpfl.federation.builders import prepare_records
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.setup import Setup
from udpfl.runs import names
from udpfl.runs.audits import model_digest
from udpfl.runs.files import read_identity
from udpfl.runs.folder import RunFolder
from udpfl.trained import TrainedModel, load


@dataclass(frozen=True, eq=False)
class Target:
    """A finished run and the records that it did and did not train on. `Target.open` makes one."""

    folder: Path
    """Of the run; attacks write below its `attacks/` only."""
    run: str
    """The id of the run."""
    setup: Setup
    """Config, data, parts, method and the network with its initial weights."""
    trained: TrainedModel
    """The final model."""
    plans: tuple[ReleasePlan, ...]
    """What each client released, in the order of the parts."""

    @classmethod
    def open(
        cls,
        run: str | Path,
        *,
        data: Any = None,
        model: nn.Module | None = None,
        loss: Loss | None = None,
        data_dir: str | Path | None = None,
    ) -> Target:
        """A finished run, with the very records that it was trained on.

        Args:
            run: Its folder.
            data: What was handed to `udpfl.run` in Python as data, if anything was.
            model: The same for the model; its weights are those that training began with.
            loss: The same for the loss.
            data_dir: Where the data of the run lies, if it is elsewhere now.

        Returns:
            The run as attacks see it.

        Raises:
            InvalidInput: There is no finished run, a file of it was edited, or the data is not the
                one that it was trained on.
            Unsupported: The records of a deployment are at its sites.
        """
        trained = load(run, model=copy.deepcopy(model))
        identity = read_identity(trained.folder)
        if identity.sites is not None:
            raise Unsupported(
                "this run was deployed: its records are at its sites, and an attack is tried on "
                "records that are known. Attack a simulation of it"
            )
        config = trained.config
        if data is None and config.data.name == OWN:
            raise InvalidInput(
                "data.name",
                "the records of this run were given in Python. Attack it there, with the same: "
                "udpfl.attacks.build(NAME).run(udpfl.attacks.Target.open(RUN, data=...))",
            )
        if data_dir is not None:
            config = load_config(config, {"data": {"dir": str(data_dir)}})
        setup = Setup.of(config, data=data, model=copy.deepcopy(model), loss=loss)
        if tuple(setup.fingerprints) != identity.fingerprints:
            raise InvalidInput(
                "data",
                "the data has changed since this run: who was in it is known only of the records "
                "that it was trained on",
            )
        rows = RunFolder.open(trained.folder, "run").clients
        plans = tuple(ReleasePlan.from_row(row) for row in rows)
        return cls(trained.folder, identity.id, setup, trained, plans)

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.setup.config

    @property
    def privacy(self) -> PrivacyStatement:
        """What the run states: a guarantee, a nominal number, or none."""
        return self.trained.privacy

    @property
    def network(self) -> nn.Module:
        """With the final weights."""
        return self.trained.model

    @property
    def place(self) -> Path:
        """Where results lie, and what attacks keep to go on with."""
        return self.folder / names.ATTACKS

    @cached_property
    def parameters(self) -> Tensor:
        """The final model as one vector [d]."""
        model = self.setup.model
        named = dict(self.network.named_parameters())
        return model.layout.flat({n: named[n].detach() for n in model.layout.names}).clone()

    @cached_property
    def members(self) -> Indices:
        """Records that clients trained on, as positions in the training set."""
        return np.sort(np.concatenate(self.setup.parts))

    @cached_property
    def nonmembers(self) -> Indices:
        """Held-out records that equal none of the training set, as positions in the test set."""
        data = self.setup.data
        seen = set(record_digests(data.train, np.arange(len(data.train))))
        own = record_digests(data.test, np.arange(len(data.test)))
        return np.array([i for i, digest in enumerate(own) if digest not in seen], dtype=np.int64)

    @cached_property
    def owner(self) -> Indices:
        """The client of each training record [n]; -1 for records that no client holds."""
        found = np.full(len(self.setup.data.train), -1, dtype=np.int64)
        for number, part in enumerate(self.setup.parts):
            found[part] = number
        return found

    def train_records(self, rows: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets of training records, on the CPU."""
        records = self.setup.data.train.subset(rows)
        inputs = prepare_records(self.setup.network, records, torch.device("cpu"))
        return inputs, torch.from_numpy(records.targets)

    def test_records(self, rows: Indices) -> tuple[Tensor, Tensor]:
        """The same of test records."""
        records = self.setup.data.test.subset(rows)
        inputs = prepare_records(self.setup.network, records, torch.device("cpu"))
        return inputs, torch.from_numpy(records.targets)

    def messages(self) -> list[ClientMessage]:
        """The released messages that the run recorded (`record_updates`), in their order."""
        paths = sorted((self.folder / names.UPDATES).glob("round-*.safetensors"))
        return [ClientMessage.from_bytes(path.read_bytes()) for path in paths]

    def require_single_records(self, attack: str) -> None:
        """Refuse a run whose unit is a person: an attack looks at single records."""
        if self.setup.has_persons:
            raise Unsupported(f"{attack} looks at single records, and here a record is a person")

    def require_classes(self, attack: str) -> None:
        """Refuse a regression: the score needs the probability of a class."""
        if self.setup.data.task != "classification":
            raise Unsupported(f"{attack} needs probabilities of classes, and this is a regression")

    def described(self, view: str, records: str) -> Attacked:
        """What was attacked, for the result."""
        return Attacked(self.run, model_digest(self.folder), view, records)
