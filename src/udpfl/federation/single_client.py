"""One client by itself: its own records, its own ledger, and the client half of a run.

In a simulation one process answers for all clients. In a deployment each client is a process of its
own that knows the settings of the run and nothing of the others. Its part of the run is a run
folder of one client, so what holds for a run that is resumed holds here: the plan is sealed when
the run begins, and a ledger that lacks a charge, other records or edited files are refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from udpfl.accounting import PrivacyStatement
from udpfl.accounting.budget import Budget
from udpfl.algorithms import Algorithm
from udpfl.config import Config
from udpfl.data import DataSet
from udpfl.data.persons import group_by_person
from udpfl.data.records import Indices, Records
from udpfl.errors import BudgetExceeded
from udpfl.federation._assembly import Assembly
from udpfl.federation._calibration import NO_PASTS, plan_releases
from udpfl.federation._client_data import assumptions, divide_records
from udpfl.federation._combinations import check_combination
from udpfl.federation._opening import begin_folder
from udpfl.federation._stored_run import StoredRun
from udpfl.federation.admission import Holding, admit, past_of_client, require_charges
from udpfl.federation.builders import build_network, choose_device, choose_loss, load_dataset
from udpfl.federation.client import InProcessClients
from udpfl.federation.plan import ONE_RUN, CountNoise, Past, ReleasePlan
from udpfl.federation.request import Request
from udpfl.federation.selection import Schedule
from udpfl.federation.setup import Setup
from udpfl.ledger.accounts import Runs
from udpfl.ledger.ledger import Ledger
from udpfl.runs.folder import RunFolder


def load_client_data(
    config: Config, part: int | None = None, *, keeps_test: bool = False
) -> tuple[DataSet, Indices]:
    """The records of one client, and which of them it trains on.

    Args:
        config: Names the data.
        part: Which part of a data set that is divided among `data.clients`; None for all of it.
        keeps_test: Whether the share `data.test` is held out; else all records are trained on.

    Returns:
        A data set whose test records are the client's own, to try a model on, and positions in it.
    """
    data = load_dataset(config, None, None)
    if part is None and not keeps_test and data.test.positions is not None:
        data = _joined(data)
    data = replace(data, owners=None, owner_names=None, test_owners=None, test_columns={})
    if config.data.person is not None:
        data = group_by_person(data, config.data.person, None, config.data.rows_per_person)
    if part is None:
        return data, np.arange(len(data.train))
    return data, divide_records(config, data)[0][part]


def _joined(data: DataSet) -> DataSet:
    """The data with what was held out of it put back, in the order of its source."""
    parts = (data.train, data.test)
    places = [own.positions for own in parts if own.positions is not None]
    order = np.argsort(np.concatenate(places))
    every = Records(
        np.concatenate([own.inputs for own in parts])[order],
        np.concatenate([own.targets for own in parts])[order],
    )
    columns = {
        name: np.concatenate([column, data.test_columns[name]])[order]
        for name, column in data.columns.items()
        if name in data.test_columns
    }
    return replace(
        data, train=every, test=every, columns=columns, test_columns={}, owners=None,
        test_owners=None, owner_names=None,
    )  # fmt: skip


@dataclass(frozen=True)
class ClientSetup(Setup):
    """A run as one client sees it. `config` is about this client alone."""

    name: str
    """Of the client, the same in every run."""
    asked: Schedule
    """The rounds of the run, with or without this client, whose number is 0."""
    others: tuple[int, ...] = ()
    """Declared sizes of the other clients, where they are known."""

    @classmethod
    def for_client(
        cls,
        config: Config,
        algorithm: Algorithm,
        data: tuple[DataSet, Indices],
        name: str,
        asked: Schedule,
        others: tuple[int, ...] = (),
    ) -> ClientSetup:
        """The setup of a client that holds these records of a data set."""
        dataset, own = data
        check_combination(config, algorithm)
        network = build_network(config, None, dataset.input_shape, dataset.outputs)
        return cls(
            config=config,
            device=choose_device(config.device),
            data=dataset,
            given=None,
            parts=[own],
            public=np.arange(0),
            algorithm=algorithm,
            network=network,
            loss=choose_loss(dataset.task),
            name=name,
            asked=asked,
            others=others,
        )

    @property
    def schedule(self) -> Schedule:
        """When the client is asked."""
        return self.asked

    @property
    def names(self) -> list[str]:
        """The client's own."""
        return [self.name]

    @cached_property
    def holding(self) -> Holding:
        """What the client holds: its records are its own, whatever the seed."""
        sizes, data = [len(self.parts[0])], self.config.data
        return Holding(
            self.names, self.fingerprints, sizes, "", data.block or "", data.person or ""
        )

    def plans(
        self,
        schedule: Schedule | None = None,
        pasts: Mapping[str, Past] = NO_PASTS,
        counts: CountNoise = ONE_RUN,
    ) -> list[ReleasePlan]:
        """What the client will release; nothing of a shared ledger is looked at."""
        declared = self.config.data.declared_sizes
        assert isinstance(declared, int), "a client by itself declares its size"
        return plan_releases(
            self.config,
            [declared],
            self.schedule if schedule is None else schedule,
            self.dimension,
            self.algorithm,
            self.names,
            pasts,
            others=self.others,
            counts=counts,
        )

    @property
    def dimension(self) -> int:
        """Trainable parameters of the network."""
        return sum(p.numel() for p in self.network.parameters() if p.requires_grad)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was read off the records; a client by itself publishes no scores."""
        return assumptions(
            self.config, self.data, None, self.algorithm, self.public, is_evaluated=False
        )

    @property
    def brings_noise(self) -> bool:
        """Whether the method prescribes its noise, so that none is calibrated to a budget."""
        return type(self.algorithm).own_noise is not Algorithm.own_noise

    def past(self) -> Past | None:
        """What a ledger that runs share knows of the client; None where a run has its own.

        Raises:
            InvalidInput: Its releases cannot be added to those that were charged before.
        """
        return past_of_client(self.config, self.holding)


@dataclass(frozen=True)
class ClientRun:
    """A run that one client takes part in, from its folder and its ledger."""

    assembly: Assembly

    @classmethod
    def begin(
        cls,
        setup: ClientSetup,
        plan: ReleasePlan,
        ledger: Ledger,
        run: str,
        budget: Budget | None,
        proposal: str,
    ) -> ClientRun:
        """Write the folder of a new run, open the account, and reserve what the run will cost.

        The account gets this budget if it has none; None leaves it without any. `proposal` is what
        the server proposed, to be compared with what it asks for later.

        Raises:
            BudgetExceeded: The account does not hold the plan; nothing was written then.
        """
        folder = begin_folder(setup, [plan], None, run, proposal)
        try:
            return cls._admitted(setup, folder, ledger, budget)
        except BaseException:
            if not ledger.knows(run):
                shutil.rmtree(folder.path, ignore_errors=True)
            raise

    @classmethod
    def resume(cls, setup: ClientSetup, folder: RunFolder, ledger: Ledger) -> ClientRun:
        """Go on with a run that has begun.

        Raises:
            LedgerError: The ledger lacks a charge of this run, or is not sound.
            InvalidInput: The records, the model or the files are not those of the run.
        """
        return cls._admitted(setup, folder, ledger, None)

    @classmethod
    def _admitted(
        cls, setup: ClientSetup, folder: RunFolder, ledger: Ledger, budget: Budget | None
    ) -> ClientRun:
        read = StoredRun.read(folder, setup.dimension, setup.fingerprints)
        stored = replace(read, ledger=ledger.path, has_shared_ledger=False)
        require_charges(stored, setup.holding)
        with ledger.transaction():
            if budget is not None:
                _open(setup, ledger, budget)
            accounts = admit(setup.config, ledger, stored, setup.holding, True)
        return cls(Assembly(setup, stored, ledger, accounts, None, None))

    @property
    def plan(self) -> ReleasePlan:
        """What the client releases in this run, as it was planned when the run began."""
        return self.assembly.stored.plans[0]

    @cached_property
    def _account(self) -> int:
        return self.assembly.accounts[0]

    @cached_property
    def _clients(self) -> InProcessClients:
        return self.assembly.clients()

    @property
    def folder(self) -> Path:
        """Where the files of the run are."""
        return self.assembly.stored.folder.path

    def has_stored(self, round_: int) -> bool:
        """Whether the client's message of a round is stored."""
        parts = self.assembly
        return parts.ledger.message(parts.stored.run, self._account, round_) is not None

    def has_forgotten(self, round_: int) -> bool:
        """Whether a round was charged, and its message dropped since nobody will ask for it."""
        parts = self.assembly
        charged = parts.ledger.rounds_charged(parts.stored.run, self._account, round_)
        return charged > 0 and not self.has_stored(round_)

    def answer(self, request: Request) -> bytes:
        """The client's message, charged and stored before it is returned.

        Raises:
            BudgetExceeded: The budget, or what was reserved, does not hold this round.
        """
        parts = self.assembly
        answers = self._clients.answer(request, [0])
        if answers.refused:
            raise BudgetExceeded(answers.refused[parts.setup.names[0]])
        stored = parts.ledger.message(parts.stored.run, self._account, request.round)
        assert stored is not None, "what was answered is stored"
        return stored

    def statement(self) -> PrivacyStatement:
        """What the client has spent, in this run and in all others of its ledger."""
        return self.assembly.statements.of_all()[self.assembly.setup.names[0]]

    def finish(self) -> None:
        """Give back what the run has reserved and not spent, where runs share the ledger."""
        self.assembly.ledger.give_back(self.assembly.stored.run)


def _open(setup: ClientSetup, ledger: Ledger, budget: Budget) -> None:
    """Open the client's account with its budget, whatever a run may spend of it."""
    runs: Runs = "one" if setup.config.privacy.ledger is None else "many"
    (number,) = ledger.open_accounts(setup.holding.parts, block=setup.holding.block, runs=runs)
    if ledger.budget(number) is None:
        ledger.set_budget(number, budget)
