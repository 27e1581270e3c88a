"""The client half: answer a request, or say why not.

A stored answer is sent again. A client whose budget would not hold does not train. Everyone else
trains, and the charge and the answer are committed to the ledger together before the answer leaves.
The same code answers for all clients of a simulation at once, or for a single one whose whole state
is in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from udpfl.accounting.serial import event_to_json
from udpfl.accounting.shuffling import unshuffled
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.errors import BudgetExceeded
from udpfl.federation.local_training import Step, Trainer
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.request import Answers, Request
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger


@dataclass(frozen=True)
class LocalClient:
    """What a client knows and the server does not: its records and its account."""

    plan: ReleasePlan
    """What it will release, with which noise."""
    account: int
    """Its number in the ledger."""
    records: Tensor
    """Positions of its records in the training set."""
    fingerprint: str = ""
    """The version of its records."""

    @property
    def name(self) -> str:
        """Its name, the same in every run."""
        return self.plan.name


class InProcessClients:
    """The client half for all clients of a simulation, or for a single one by itself.

    Args:
        clients: Their plans, accounts and records; a request names them by their place in here.
        run: The id of the run, under which answers are charged and stored.
        trainer: Computes updates.
        ledger: Where answers are charged before they leave.
        note: Stands beside every charge in the ledger.
        note_charge: Called with the number and the hash of the last charge, after every round.
    """

    def __init__(
        self,
        clients: Sequence[LocalClient],
        run: str,
        trainer: Trainer,
        ledger: Ledger,
        note: str = "",
        note_charge: Callable[[int, str], None] | None = None,
    ) -> None:
        self._clients, self._run, self._trainer, self._ledger = clients, run, trainer, ledger
        self._note = note  # beside every charge in the ledger
        self._note_charge = note_charge

    def answer(self, request: Request, chosen: Sequence[int]) -> Answers:
        """Answer for the clients with these numbers.

        Guarantee: every message returned is stored in the ledger together with its charge, and no
        client's charges exceed its budget.
        """
        clients = [self._clients[number] for number in chosen]
        answers = Answers(bytes_down=request.bytes * len(clients))
        stored: dict[str, bytes] = {}
        willing = []
        for client in clients:
            again = self._ledger.message(self._run, client.account, request.round)
            if again is not None:
                stored[client.name] = again
            else:
                willing.append(client)
        willing = self._within_budget(request.round, willing, answers)
        if willing:
            together = len(stored) + len(willing)
            mixed = [replace(own, plan=own.plan.mixed_with(together)) for own in willing]
            stored |= self._train_and_charge(request, mixed, answers)
        for client in clients:  # in the order asked, however they came about
            if data := stored.get(client.name):
                answers.messages.append(ClientMessage.from_bytes(data))
                answers.bytes_up += len(data)
        return answers

    def _within_budget(
        self, round_: int, clients: Sequence[LocalClient], answers: Answers
    ) -> list[LocalClient]:
        """Those whose budget holds this round; the others' refusals are noted."""
        rounds = {own.account: own.plan.at(round_).round_event for own in clients}
        events = {account: event for account, event in rounds.items() if event is not None}
        refusals = self._ledger.refusals(self._run, events)
        for client in clients:
            if client.account in refusals:
                answers.refused[client.name] = refusals[client.account]
        return [client for client in clients if client.account not in refusals]

    def _train_and_charge(
        self, request: Request, clients: Sequence[LocalClient], answers: Answers
    ) -> dict[str, bytes]:
        step = self._trainer.train(
            request,
            [client.plan for client in clients],
            [client.records for client in clients],
            self._states(request, clients),
        )
        answers.clipped_fraction = step.clipped_fraction
        answers.signal_to_noise = step.signal_to_noise
        charges = [self._charge(request, client, step, lane) for lane, client in enumerate(clients)]
        try:
            self._ledger.commit(charges, request.settled)
        except BudgetExceeded:
            # Another process spent from the same budget meanwhile: charge one by one, and let only
            # those go whose budget is used up. What they computed is dropped, not released. Nobody
            # knows yet how many are left to be shuffled, so nothing is counted for that.
            charges = [
                charge
                for charge in map(_alone, charges)
                if self._committed(charge, request.settled, clients, answers)
            ]
        if self._note_charge is not None:  # a ledger that is put back later will lack this charge
            self._note_charge(*self._ledger.head())
        names = {client.account: client.name for client in clients}
        return {names[charge.account]: charge.message for charge in charges}

    def _charge(self, request: Request, client: LocalClient, step: Step, lane: int) -> Charge:
        """What a client sends and keeps, and the events that it is charged for."""
        message = ClientMessage(
            client.name,
            request.round,
            {name: tensor[lane] for name, tensor in step.tensors.items()},
            tuple(map(event_to_json, step.events[lane])),
            {"declared_size": client.plan.declared_size},
        )
        kept = {name: tensor[lane] for name, tensor in step.state.items()}
        return Charge(
            client.account,
            self._run,
            request.round,
            step.events[lane],
            message.to_bytes(),
            tensors_to_bytes(kept) if kept else b"",
            self._note,
            client.fingerprint,
        )

    def _committed(
        self, charge: Charge, settled: int, clients: Sequence[LocalClient], answers: Answers
    ) -> bool:
        try:
            self._ledger.commit([charge], settled)
        except BudgetExceeded as reason:
            name = next(own.name for own in clients if own.account == charge.account)
            answers.refused[name] = str(reason)
            return False
        return True

    def _states(self, request: Request, clients: Sequence[LocalClient]) -> Tensors:
        """What the clients have kept, stacked along the lane axis."""
        fresh = self._trainer.initial_state(request, len(clients))
        for lane, client in enumerate(clients):
            if fresh and (kept := self._ledger.state(self._run, client.account)):
                for name, tensor in tensors_from_bytes(kept)[0].items():
                    fresh[name][lane] = tensor
        return fresh


def _alone(charge: Charge) -> Charge:
    """The same answer, charged as if no other message were mixed with it."""
    events = tuple(unshuffled(event) for event in charge.events)
    if events == charge.events:
        return charge
    own = ClientMessage.from_bytes(charge.message)
    message = replace(own, events=tuple(map(event_to_json, events)))
    return replace(charge, events=events, message=message.to_bytes())
