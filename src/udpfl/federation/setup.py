"""One setup for training, audits and analysis: a configuration and all that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from udpfl.algorithms import Algorithm, PublicData
from udpfl.config import Config
from udpfl.data import DataSet
from udpfl.data.persons import (
    PersonRecords,
    group_by_person,
    require_one_record_each,
    test_persons,
)
from udpfl.data.records import Indices, Records, record_digests
from udpfl.engine import LaneModel, Limits, Loss, Precision
from udpfl.engine.limits import choose_limits
from udpfl.federation._calibration import NO_PASTS, plan_releases
from udpfl.federation._client_data import (
    assumptions,
    client_names,
    declared_sizes,
    divide_records,
    fingerprint_clients,
    fit_client_count,
    is_divided,
    pool_fingerprint,
    require_public,
)
from udpfl.federation._combinations import check_combination, check_target
from udpfl.federation._common import Common
from udpfl.federation._input_range import require_range
from udpfl.federation.admission import Holding, plan_within
from udpfl.federation.builders import (
    build_algorithm,
    build_network,
    choose_device,
    choose_loss,
    load_dataset,
    prepare_records,
    require_precision,
)
from udpfl.federation.evaluation import Evaluation, evaluate
from udpfl.federation.persons import apply_to_rows, sum_over_rows
from udpfl.federation.plan import Past, ReleasePlan
from udpfl.federation.selection import Schedule, draw_schedule
from udpfl.federation.stage_builder import own_stages, sum_noise


@dataclass(frozen=True)
class Setup:
    """A configuration with its data, the clients' parts of it, the network and the method.

    `run` trains it, an audit replays it, an analysis looks at what came of it: all from the same
    object, so that none of them works on something else. `Setup.of` makes one.

    Example:
        >>> import numpy as np
        >>> from udpfl.federation import Setup
        >>> from udpfl.config import load
        >>> config = load({"data": {"clients": 2}, "model": {"name": "logistic"}})
        >>> setup = Setup.of(config, data=(np.eye(10), np.arange(10)), test=2)
        >>> [len(part) for part in setup.parts]
        [4, 4]
    """

    config: Config
    """The settings, as they fit the data."""
    device: torch.device
    """Where tensors are."""
    data: DataSet
    """Records to train on and to test on."""
    given: Any
    """The data as it was handed over in Python; None where the configuration names it."""
    parts: list[Indices]
    """The records of each client, as positions in the training set."""
    public: Indices
    """The records that no client holds and everyone may see."""
    algorithm: Algorithm
    """The method."""
    network: nn.Module
    """With the weights that training begins with."""
    loss: Loss
    """Gives one number per sample."""
    common: Common | None = field(default=None, kw_only=True)
    """What this run has in common with others that are trained together with it."""

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        data: Any = None,
        test: Any = None,
        model: nn.Module | None = None,
        loss: Loss | None = None,
        among: Indices | None = None,
        common: Common | None = None,
    ) -> Setup:
        """Load and build what the configuration names; what is handed over takes its place.

        `among` are the training records that clients hold; all of them if left out.
        """
        device = choose_device(config.device)
        require_precision(config.training.precision, device)
        dataset = load_dataset(config, data, test)
        if config.data.person is not None:
            most = config.data.rows_per_person
            dataset = group_by_person(dataset, config.data.person, config.data.by, most)
        if common is not None:
            dataset = common.data(dataset)
        config = fit_client_count(config, dataset)
        parts, public = divide_records(config, dataset, among)
        if config.data.person is not None:
            require_one_record_each(dataset, config.data.person, parts)
        algorithm = build_algorithm(config)
        check_combination(config, algorithm)
        check_target(config, dataset.task)
        own_stages(config)  # refused before anything is planned, written or reserved
        require_public(algorithm, public)
        network = build_network(config, model, dataset.input_shape, dataset.outputs)
        loss = loss or choose_loss(dataset.task)
        return cls(
            config, device, dataset, data, parts, public, algorithm, network, loss, common=common
        )

    @property
    def precision(self) -> Precision:
        """Of products in training."""
        return self.config.training.precision

    @cached_property
    def model(self) -> LaneModel:
        """The network for single rows, to evaluate it."""
        return LaneModel(self.network, self.loss, self.precision).to(self.device)

    @property
    def has_persons(self) -> bool:
        """Whether a record is all rows of a person."""
        return isinstance(self.data.train, PersonRecords)

    @cached_property
    def trained_network(self) -> nn.Module:
        """The network as it takes training records."""
        return apply_to_rows(self.network) if self.has_persons else self.network

    @cached_property
    def trained_loss(self) -> Loss:
        """The loss as it takes the targets of training records."""
        return sum_over_rows(self.loss) if self.has_persons else self.loss

    @cached_property
    def trained_model(self) -> LaneModel:
        """The network as the engine trains it."""
        if not self.has_persons:
            return self.model
        network, loss = self.trained_network, self.trained_loss
        return LaneModel(network, loss, self.precision).to(self.device)

    @cached_property
    def lane_model(self) -> LaneModel:
        """The same after its trial, and where several runs train the same network one for all."""
        _ = self.bytes_per_sample
        return self.trained_model if self.common is None else self.common.lane_model(self)

    @cached_property
    def start(self) -> Tensor:
        """The parameters that training begins with [d]."""
        return self.model.initial().to(self.device)

    @cached_property
    def train(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of all training records, on the device."""
        return self._on_device(self.data.train, "data")

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the test records, on the device."""
        return self._on_device(self.data.test, "data.test")

    def _on_device(self, records: Records, parameter: str) -> tuple[Tensor, Tensor]:
        def prepare() -> Tensor:
            return prepare_records(self.network, records, self.device, parameter)

        inputs = prepare() if self.common is None else self.common.inputs(self, records, prepare)
        own = inputs, torch.from_numpy(records.targets).to(self.device)
        return own if self.common is None else self.common.records(*own)

    @cached_property
    def _train_rows(self) -> tuple[Tensor, Tensor]:
        """Single rows of the training records."""
        inputs, targets = self.train
        if isinstance(self.data.train, PersonRecords):
            there = torch.from_numpy(self.data.train.is_there).to(self.device)
            return inputs[there], targets[there]
        return inputs, targets

    def check_model(self) -> None:
        """Raise where the model or its loss cannot take a record, or mixes records."""
        require_range(self.model, {"data": self._train_rows, "data.test": self.test})
        _ = self.bytes_per_sample

    @cached_property
    def bytes_per_sample(self) -> int:
        """The memory that one record takes in training, as a trial on test records found."""
        tried = self.test
        if self.has_persons:
            persons = test_persons(self.data, str(self.config.data.person))
            tried = self._on_device(persons, "data.test")
        return self.trained_model.check(self.start, *tried)

    def limits(self, lanes: int, threads: int) -> Limits:
        """How much is computed at once, where so many clients train together."""
        training = self.config.training
        return choose_limits(
            training.lanes,
            lanes=lanes,
            dimension=self.model.layout.dimension,
            bytes_per_sample=self.bytes_per_sample,
            memory=None if training.memory is None else training.memory << 20,
            chunk=training.chunk,
            device=self.device,
            threads=threads,
        )

    def show_public_records(self) -> None:
        """Let the method's server half learn from the public records."""
        self.algorithm.prepare(PublicData(self.model, *self._public_rows, self.config.seed))

    @cached_property
    def _public_rows(self) -> tuple[Tensor, Tensor]:
        """Single rows of the public records."""
        if not len(self.public):
            inputs, targets = self._train_rows
            return inputs[:0], targets[:0]
        return self._on_device(self.data.train.subset(self.public).rows, "data.public")

    def public_loss(self, parameters: Tensor) -> float:
        """The loss of a model on the public records, which are nobody's."""
        return evaluate(self.model, parameters, *self._public_rows, self.data.task).loss

    def evaluate(self, parameters: Tensor) -> Evaluation:
        """How good a model is on the test records."""
        return evaluate(self.model, parameters, *self.test, self.data.task)

    @cached_property
    def schedule(self) -> Schedule:
        """Who is asked in which round."""
        return draw_schedule(self.config)

    @cached_property
    def names(self) -> list[str]:
        """What the clients are called."""
        return client_names(self.config, self.data, self.parts)

    @cached_property
    def fingerprints(self) -> list[str]:
        """What names the records of each client."""
        digests = record_digests if self.common is None else self.common.digests(self.data.train)
        return fingerprint_clients(self.config, self.data, self.parts, digests)

    @cached_property
    def holding(self) -> Holding:
        """Which records the clients hold, for a ledger that runs share."""
        is_shared = self.config.privacy.ledger is not None
        is_dealt = is_shared and is_divided(self.config, self.data, self.parts)
        return Holding(
            self.names,
            self.fingerprints,
            [len(part) for part in self.parts],
            pool_fingerprint(self.data) if is_dealt else "",
            self.config.data.block or "",
            self.config.data.person or "",
        )

    def plans(
        self, schedule: Schedule | None = None, pasts: Mapping[str, Past] = NO_PASTS
    ) -> list[ReleasePlan]:
        """What every client will release; nothing of a shared ledger is looked at."""
        return plan_releases(
            self.config,
            declared_sizes(self.config, self.data, self.parts),
            self.schedule if schedule is None else schedule,
            sum(p.numel() for p in self.network.parameters() if p.requires_grad),
            self.algorithm,
            self.names,
            pasts,
        )

    def plans_within_budgets(self) -> list[ReleasePlan]:
        """The same, fitted to what budgets in a shared ledger have left; raises if none fits."""
        plans = plan_within(self.config, self.holding, self.schedule, self.plans)
        if self.algorithm.trusts_server:
            sum_noise(plans)  # raises where clients have planned for different noise
        return plans

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was read off the records and is used as if everyone knew it."""
        return assumptions(self.config, self.data, self.given, self.algorithm, self.public)
