"""The client half: answer a request, or say why not.

A stored answer is sent again. Where noise follows results, a client chooses what its budget holds
(`_pacing.py`). A client whose budget would not hold does not train. Everyone else
trains, and the charge and the answer are committed to the ledger together before the answer leaves.
The same code answers for all clients of a simulation at once, or for a single one whose whole state
is in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from udpfl.accounting.events import Event
from udpfl.accounting.serial import event_to_json
from udpfl.accounting.shuffling import unshuffled
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.errors import BudgetExceeded
from udpfl.federation._pacing import Pacing
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

    def asked_for(self, steps: int | None) -> LocalClient:
        """The client in a round of so many local steps; None for those of its plan.

        What they cost is refused, computed and charged by this plan. The ledger sees to it that all
        rounds together keep to what was reserved.
        """
        return self if steps is None else replace(self, plan=replace(self.plan, steps=steps))


class _Sent(NamedTuple):
    """A message that leaves a client, and how many bytes it takes."""

    message: ClientMessage
    size: int

    @classmethod
    def from_bytes(cls, data: bytes) -> _Sent:
        """As it is stored."""
        return cls(ClientMessage.from_bytes(data), len(data))


@dataclass(frozen=True)
class _Charged:
    """What became of the clients that trained in a round."""

    messages: dict[str, _Sent] = field(default_factory=dict)
    """Stored with their charges, by client."""
    refused: dict[str, str] = field(default_factory=dict)
    """Whose budget does not hold the charge after all, and why."""
    clipped_fraction: float | None = None
    signal_to_noise: float | None = None


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
        clients = [self._clients[number].asked_for(request.steps) for number in chosen]
        stored = self._stored_messages(request.round, clients)
        others = self._paced(request, [own for own in clients if own.name not in stored])
        refused = self._refusals(request.round, others)
        willing = [client for client in others if client.name not in refused]
        together = len(stored) + len(willing)
        mixed = [replace(own, plan=own.plan.mixed_with(together)) for own in willing]
        charged = self._train_and_charge(request, mixed) if mixed else _Charged()
        messages = {name: _Sent.from_bytes(data) for name, data in stored.items()}
        messages |= charged.messages
        sent = [messages[client.name] for client in clients if client.name in messages]
        return Answers(
            messages=[own.message for own in sent],
            refused=refused | charged.refused,
            bytes_up=sum(own.size for own in sent),
            bytes_down=request.bytes * len(clients),
            clipped_fraction=charged.clipped_fraction,
            signal_to_noise=charged.signal_to_noise,
        )

    def _stored_messages(self, round_: int, clients: Sequence[LocalClient]) -> dict[str, bytes]:
        """What clients have sent in this round already, by their names."""
        found = {
            client.name: self._ledger.message(self._run, client.account, round_)
            for client in clients
        }
        return {name: message for name, message in found.items() if message is not None}

    def _paced(self, request: Request, clients: Sequence[LocalClient]) -> list[LocalClient]:
        """The clients with plans that have the noise of this round, where it follows results."""
        planned = {own.account: own.plan for own in clients}
        plans = Pacing(self._ledger, self._run).at(request, planned)
        return [replace(own, plan=plans[own.account]) for own in clients]

    def _refusals(self, round_: int, clients: Sequence[LocalClient]) -> dict[str, str]:
        """Why the budgets of some clients do not hold this round, by their names."""
        rounds = {own.account: own.plan.round_event(round_) for own in clients}
        events = {account: event for account, event in rounds.items() if event is not None}
        refusals = self._ledger.refusals(self._run, events)
        return {own.name: refusals[own.account] for own in clients if own.account in refusals}

    def _train_and_charge(self, request: Request, clients: Sequence[LocalClient]) -> _Charged:
        step = self._trainer.train(
            request,
            [client.plan for client in clients],
            [client.records for client in clients],
            self._states(request, clients),
        )
        on_cpu = step.on_cpu()
        charges = [
            self._make_charge(request, client, on_cpu, lane) for lane, client in enumerate(clients)
        ]
        names = {client.account: client.name for client in clients}
        refused: dict[str, str] = {}
        try:
            self._ledger.commit(charges, request.settled)
        except BudgetExceeded:
            # A budget was lowered or a reservation freed meanwhile: charge one by one, and let only
            # those go whose budget does not hold. What they computed is dropped, not released.
            # Nobody knows yet how many are left to be shuffled, so nothing is counted for that.
            charges = [_without_shuffling(charge) for charge in charges]
            for charge in charges:
                try:
                    self._ledger.commit([charge], request.settled)
                except BudgetExceeded as reason:
                    refused[names[charge.account]] = str(reason)
        if self._note_charge is not None:  # a ledger that is put back later will lack this charge
            self._note_charge(*self._ledger.head())
        sent = {
            client.name: _Sent(
                _message(request, client, step, lane, charge.events).copy(), len(charge.message)
            )
            for lane, (client, charge) in enumerate(zip(clients, charges, strict=True))
            if client.name not in refused
        }
        return _Charged(sent, refused, step.clipped_fraction, step.signal_to_noise)

    def _make_charge(self, request: Request, client: LocalClient, step: Step, lane: int) -> Charge:
        """What a client sends and keeps, and the events that it is charged for."""
        message = _message(request, client, step, lane, step.events[lane])
        kept = {name: tensor[lane] for name, tensor in step.state.items()}
        return Charge(
            account=client.account,
            run=self._run,
            round=request.round,
            events=step.events[lane],
            message=message.to_bytes(),
            state=tensors_to_bytes(kept) if kept else b"",
            note=self._note,
            fingerprint=client.fingerprint,
        )

    def _states(self, request: Request, clients: Sequence[LocalClient]) -> Tensors:
        """What the clients have kept, stacked along the lane axis."""
        fresh = self._trainer.initial_state(request, len(clients))
        for lane, client in enumerate(clients):
            if fresh and (kept := self._ledger.state(self._run, client.account)):
                for name, tensor in tensors_from_bytes(kept)[0].items():
                    fresh[name][lane] = tensor
        return fresh


def _message(
    request: Request, client: LocalClient, step: Step, lane: int, events: Sequence[Event]
) -> ClientMessage:
    """What a client sends, for what it is charged."""
    return ClientMessage(
        client.name,
        request.round,
        {name: tensor[lane] for name, tensor in step.tensors.items()},
        tuple(map(event_to_json, events)),
        {"declared_size": client.plan.declared_size},
    )


def _without_shuffling(charge: Charge) -> Charge:
    """The same answer, charged as if no other message were mixed with it."""
    events = tuple(unshuffled(event) for event in charge.events)
    if events == charge.events:
        return charge
    own = ClientMessage.from_bytes(charge.message)
    message = replace(own, events=tuple(map(event_to_json, events)))
    return replace(charge, events=events, message=message.to_bytes())
