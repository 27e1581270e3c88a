"""May a site take part in a run? Settings, method, model, noise and budget, in this order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from udpfl.accounting.serial import event_to_json
from udpfl.algorithms import Algorithm
from udpfl.config import Config, load
from udpfl.data import DataSet
from udpfl.data.records import Indices
from udpfl.errors import Infeasible, InvalidInput, Refused, Unsupported
from udpfl.federation.builders import build_algorithm
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.single_client import ClientRun, ClientSetup
from udpfl.ledger.ledger import Ledger
from udpfl.runs.files import has_begun
from udpfl.runs.folder import RunFolder
from udpfl.runs.names import PROPOSAL
from udpfl.site._checks import check_method, check_proposal, check_state
from udpfl.site._limits import check_release, require_room
from udpfl.site._planning import Allowance, plan_run
from udpfl.site._rounds import Rounds
from udpfl.site.policy import Policy
from udpfl.site.settings import Proposal
from udpfl.site.wire import SiteRequest
from udpfl.writing import write_whole

_TEST = 0.2
"""A share of the records has to be called test records while they are read."""


@dataclass(frozen=True)
class AdmittedRun:
    """A run that the site takes part in."""

    proposed: dict[str, Any]
    """The settings that the server sent, and the number that it gave the site."""
    rounds: Rounds
    client: ClientRun

    def check_request(self, request: SiteRequest) -> None:
        """Refuse a round that does not belong to the run as it was admitted."""
        _require_same(self.proposed, request)
        self.rounds.check(request)
        if self.client.has_forgotten(request.round):
            raise Refused(
                f"round {request.round} was answered, and the server said that it has the answer: "
                "it is not kept here any more"
            )

    def note_work(self, request: SiteRequest) -> str:
        """Note what a message is about to be computed from, and return the digest of that.

        A stored message is sent again whatever is asked, and keeps its own: nothing is known of one
        that was stored before such notes were made.
        """
        path = self.client.folder / "work" / str(request.round)
        if not self.client.has_stored(request.round):
            path.parent.mkdir(exist_ok=True)
            write_whole(path, self._work(request).encode())
        return path.read_text() if path.is_file() else ""

    def _work(self, request: SiteRequest) -> str:
        """The digest of all by which messages could be told apart: what is asked, and what of it is
        this site's own, its clip, noise and pull."""
        plan = self.client.plan
        event = plan.round_event(request.round)
        own = [request.digest, None if event is None else event_to_json(event), plan.penalty]
        return sha256(json.dumps(own).encode()).hexdigest()


def _proposed(request: SiteRequest) -> dict[str, Any]:
    plain = {"settings": dict(request.settings), "client": request.client}
    found: dict[str, Any] = json.loads(json.dumps(plain))
    return found


def _require_same(known: Any, request: SiteRequest) -> None:
    if _proposed(request) != known:
        raise Refused("the settings of a run do not change once it has begun")


def admit_run(
    policy: Policy, ledger: Ledger, data: tuple[DataSet, Indices], request: SiteRequest
) -> AdmittedRun:
    """Begin the run of a request, or go on with it.

    Raises:
        Refused: The policy does not allow it; nothing was written then.
        BudgetExceeded: The ledger does not hold it; nothing was written then.
    """
    with _settings_refused():
        proposal = Proposal.read(request.settings)
        check_proposal(policy, proposal, request)
        method = build_algorithm(proposal.config)
        check_method(policy, method)
        setup = _setup(policy, proposal, method, data, request)
        check_state(policy, method, setup.start)
    if setup.dimension > policy.server.parameters:
        raise Refused(
            f"model.name: {setup.dimension:,} parameters are more than the "
            f"{policy.server.parameters:,} of the policy"
        )
    setup.show_public_records()
    rounds = Rounds(policy, setup, bool(proposal.config.training.penalty))
    rounds.check(request)
    setup.check_model()
    path, proposed = Path(str(setup.config.out)), _proposed(request)
    if has_begun(path) and ledger.knows(request.run):
        _require_same(json.loads((path / PROPOSAL).read_text()), request)
        folder = RunFolder.open(path)
        plan = ReleasePlan.from_row(folder.clients[0])
        check_release(policy, setup, plan)
        require_room(policy, setup, ledger, request.run, plan)
        return AdmittedRun(proposed, rounds, ClientRun.resume(setup, folder, ledger))
    allowance = Allowance.of(policy, setup, ledger)
    with _settings_refused():
        plan = plan_run(policy, setup, allowance, "epsilon" in proposal.said)
    plan = replace(plan, penalty=proposal.penalty(request.client))
    shutil.rmtree(path, ignore_errors=True)  # of a run that never got to begin
    budget = allowance.budget if setup.config.privacy.accounting == "vector" else None
    run = ClientRun.begin(setup, plan, ledger, request.run, budget, json.dumps(proposed))
    return AdmittedRun(proposed, rounds, run)


@contextmanager
def _settings_refused() -> Iterator[None]:
    """Errors inside are about the server's own settings: it is told what they say."""
    try:
        yield
    except (InvalidInput, Infeasible, Unsupported) as error:
        raise Refused(str(error)) from error


def _setup(
    policy: Policy,
    proposal: Proposal,
    method: Algorithm,
    data: tuple[DataSet, Indices],
    request: SiteRequest,
) -> ClientSetup:
    config = _client_config(policy, proposal, request)
    asked = proposal.schedule_of(request.client)
    others = proposal.others(request.client)
    return ClientSetup.for_client(config, method, data, policy.name, asked, others)


def data_config(policy: Policy) -> Config:
    """The configuration by which the site reads its records."""
    own = policy.data
    return load(
        {
            "seed": own.seed,
            "data": {
                **_records(policy),
                "clients": own.parts or 1,
                "test": own.test or _TEST,
            },
        }
    )


def _records(policy: Policy) -> dict[str, Any]:
    named = policy.data.model_dump(
        include={"name", "dir", "options", "person", "rows_per_person", "task"}, exclude_none=True
    )
    return {**named, "declared_sizes": policy.data.declared_size}


def _client_config(policy: Policy, proposal: Proposal, request: SiteRequest) -> Config:
    """The settings of the run for this client alone."""
    client, said, budget = request.client, proposal.said, policy.budget
    folder = Path(policy.state) / "runs" / request.run
    shared = {"ledger": str(policy.ledger)} if budget.runs == "many" else {"ledger": None}
    mechanism = proposal.own("mechanism", client) if "mechanism" in said else "auto"
    block = {} if policy.data.block is None else {"block": policy.data.block}
    return load(
        proposal.config,
        {
            "out": str(folder),
            "device": policy.machine.device,
            "threads": policy.machine.threads,
            "data": {**_records(policy), **block, "clients": 1},
            "privacy": {
                "epsilon": proposal.own("epsilon", client) if "epsilon" in said else budget.epsilon,
                "delta": budget.delta,
                "mechanism": mechanism,
                "clip": proposal.own("clip", client),
                "reference": proposal.own("reference", client),
                **shared,
            },
            "training": {
                "clients_per_round": None,
                "penalty": 0.0,
                "shuffle": False,
                "memory": policy.machine.memory,
            },
        },
    )
