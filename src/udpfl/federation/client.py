"""The client half: answer a request, or say why not.

A stored answer is sent again. Where noise follows results, a client chooses what its budget holds
(`_pacing.py`). A client whose budget would not hold does not train. Everyone else
trains, and the charge and the answer are committed to the ledger together before the answer leaves.
A simulation may commit the server's state in place of all answers (`_progress.py`).
The same code answers for all clients of a simulation at once, or for a single one whose whole state
is in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from udpfl.accounting.serial import event_texts, event_to_json
from udpfl.accounting.shuffling import unshuffled
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.errors import BudgetExceeded
from udpfl.federation._pacing import Pacing
from udpfl.federation.local_training import Step, Trainer, Work
from udpfl.federation.plan import ReleasePlan
from udpfl.federation.request import Answers, Request
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.progress import Progress


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
        return self if steps is None else self.planning(replace(self.plan, steps=steps))

    def planning(self, plan: ReleasePlan) -> LocalClient:
        """The client with this plan."""
        return self if plan is self.plan else replace(self, plan=plan)


@dataclass(frozen=True)
class Pending:
    """A round that some clients are about to compute; nothing is charged yet."""

    request: Request
    asked: Sequence[LocalClient]
    """All of them, in the order in which they are to answer."""
    willing: Sequence[LocalClient]
    """Those that train, with the plans by which they are charged."""
    stored: Mapping[str, bytes]
    """What others have sent in this round before, by their names."""
    refused: Mapping[str, str]
    """Why others do not answer."""
    work: Work | None
    """What is to be computed; None where nobody trains."""


class Receiver(Protocol):
    """Whoever receives a round in the memory of this process, before it is charged."""

    def received(
        self, round_: int, answers: Answers
    ) -> AbstractContextManager[tuple[Answers, Progress]]:
        """The answers as received, and what to store of them.

        What was received counts only if nothing is raised inside.
        """


class InProcessClients:
    """The client half for all clients of a simulation, or for a single one by itself.

    Args:
        clients: Their plans, accounts and records; a request names them by their place in here.
        run: The id of the run, under which answers are charged and stored.
        trainer: Computes updates.
        ledger: Where answers are charged before they leave.
        note: Stands beside every charge in the ledger.
        note_charge: Called with the number and the hash of the last charge, after every round.
        receiver: Receives a round before it is charged, so that what comes of it is stored in place
            of all messages; without one messages are stored.
    """

    def __init__(
        self,
        clients: Sequence[LocalClient],
        run: str,
        trainer: Trainer,
        ledger: Ledger,
        note: str = "",
        note_charge: Callable[[int, str], None] | None = None,
        receiver: Receiver | None = None,
    ) -> None:
        self._clients, self._run, self._trainer, self._ledger = clients, run, trainer, ledger
        self._note = note  # beside every charge in the ledger
        self._note_charge, self._receiver = note_charge, receiver

    def answer(self, request: Request, chosen: Sequence[int]) -> Answers:
        """Answer for the clients with these numbers.

        Guarantee: every message returned, or the state of the server that received it, is stored in
        the ledger together with its charge, and no client's charges exceed its budget.
        """
        pending = self.begin(request, chosen)
        return self.finish(pending, None if pending.work is None else pending.work.train())

    def begin(self, request: Request, chosen: Sequence[int]) -> Pending:
        """Who of these clients answers with what is stored, who refuses, and who is to train."""
        clients = [self._clients[number].asked_for(request.steps) for number in chosen]
        stored = self._stored_messages(request.round, clients)
        others = self._paced(request, [own for own in clients if own.name not in stored])
        refused = self._refusals(request.round, others)
        willing = [client for client in others if client.name not in refused]
        together = len(stored) + len(willing)
        mixed = [own.planning(own.plan.mixed_with(together)) for own in willing]
        work = self._work(request, mixed) if mixed else None
        return Pending(request, clients, mixed, stored, refused, work)

    def finish(self, pending: Pending, step: Step | None) -> Answers:
        """Charge what was computed, and send it with what is stored.

        Guarantee: as for `answer`. `step` is what came of this round's own work, and of it alone.
        """
        request, clients, mixed = pending.request, pending.asked, pending.willing
        stored, refused = pending.stored, pending.refused
        answers = Answers(refused=refused, bytes_down=request.bytes * len(clients))
        messages = {name: ClientMessage.from_bytes(data) for name, data in stored.items()}
        if step is not None:
            answers = answers.measured(step.clipped_fraction, step.signal_to_noise)
            if self._receiver is not None and not stored:
                try:
                    return self._charge_received(self._receiver, request, mixed, step, answers)
                except BudgetExceeded:
                    pass  # of some client: the others still answer
            sent, late = self._charge_messages(request, mixed, step)
            messages, answers = messages | sent, replace(answers, refused={**refused, **late})
        return answers.sending([messages[own.name] for own in clients if own.name in messages])

    def _stored_messages(self, round_: int, clients: Sequence[LocalClient]) -> dict[str, bytes]:
        """What clients have sent in this round already, by their names."""
        found = self._ledger.messages(self._run, round_)
        return {own.name: found[own.account] for own in clients if own.account in found}

    def _paced(self, request: Request, clients: Sequence[LocalClient]) -> list[LocalClient]:
        """The clients with plans that have the noise of this round, where it follows results."""
        planned = {own.account: own.plan for own in clients}
        plans = Pacing(self._ledger, self._run).at(request, planned)
        return [own.planning(plans[own.account]) for own in clients]

    def _refusals(self, round_: int, clients: Sequence[LocalClient]) -> dict[str, str]:
        """Why the budgets of some clients do not hold this round, by their names."""
        rounds = {own.account: own.plan.round_event(round_) for own in clients}
        events = {account: event for account, event in rounds.items() if event is not None}
        refusals = self._ledger.refusals(self._run, events)
        return {own.name: refusals[own.account] for own in clients if own.account in refusals}

    def _work(self, request: Request, clients: Sequence[LocalClient]) -> Work:
        """What these clients are to compute. Nobody but them sees it."""
        return Work(
            self._trainer,
            request,
            [client.plan for client in clients],
            [client.records for client in clients],
            self._states(request, clients),
        )

    def _charge_received(
        self,
        receiver: Receiver,
        request: Request,
        clients: Sequence[LocalClient],
        step: Step,
        answers: Answers,
    ) -> Answers:
        """Charge all of them and store what has come of their messages; all or none.

        Raises:
            BudgetExceeded: Of one of them; nothing is stored, and the server is what it was.
        """
        lanes = list(enumerate(clients))
        texts = event_texts(step.events)
        messages = [_message(request, own, step, lane, texts[lane]) for lane, own in lanes]
        kept = step.state_on_cpu()
        charges = [self._make_charge(request, own, kept, lane, None) for lane, own in lanes]
        with receiver.received(request.round, answers.sending(messages)) as (received, progress):
            self._ledger.commit(charges, request.settled, progress)
            self._note_last_charge()
        return received

    def _charge_messages(
        self, request: Request, clients: Sequence[LocalClient], step: Step
    ) -> tuple[dict[str, ClientMessage], dict[str, str]]:
        """Charge them and store their messages; returns those, and why others are refused."""
        on_cpu, texts = step.on_cpu(), event_texts(step.events)
        charges = [
            self._make_charge(
                request, own, on_cpu, lane,
                _message(request, own, on_cpu, lane, texts[lane]).to_bytes(),
            )
            for lane, own in enumerate(clients)
        ]  # fmt: skip
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
        self._note_last_charge()
        charged = event_texts(charge.events for charge in charges)
        sent = {
            client.name: _message(request, client, step, lane, texts).copy()
            for lane, (client, texts) in enumerate(zip(clients, charged, strict=True))
            if client.name not in refused
        }
        return sent, refused

    def _note_last_charge(self) -> None:
        """A ledger that is put back later will lack this charge."""
        if self._note_charge is not None:
            self._note_charge(*self._ledger.head())

    def _make_charge(
        self, request: Request, client: LocalClient, step: Step, lane: int, message: bytes | None
    ) -> Charge:
        """What a client sends and keeps, and the events that it is charged for."""
        kept = {name: tensor[lane] for name, tensor in step.state.items()}
        return Charge(
            account=client.account,
            run=self._run,
            round=request.round,
            events=step.events[lane],
            message=message,
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
    request: Request, client: LocalClient, step: Step, lane: int, events: tuple[str, ...]
) -> ClientMessage:
    """What a client sends, for what it is charged."""
    return ClientMessage(
        client.name,
        request.round,
        {name: tensor[lane] for name, tensor in step.tensors.items()},
        events,
        {"declared_size": client.plan.declared_size},
    )


def _without_shuffling(charge: Charge) -> Charge:
    """The same answer, charged as if no other message were mixed with it."""
    events = tuple(unshuffled(event) for event in charge.events)
    if events == charge.events:
        return charge
    assert charge.message is not None, "it is stored"
    own = ClientMessage.from_bytes(charge.message)
    message = replace(own, events=tuple(map(event_to_json, events)))
    return replace(charge, events=events, message=message.to_bytes())
