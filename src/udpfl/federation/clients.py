"""The client half: answer a request, or say why not.

A stored answer is sent again. A client whose budget would not hold does not train. Everyone else
trains, and the charge and the answer are committed to the ledger together before the answer leaves.
The same code answers for all clients of a simulation at once, or for a single one whose whole state
is in its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from udpfl.accounting.serial import event_to_json
from udpfl.accounting.shuffling import unshuffled
from udpfl.algorithms import ClientMessage, Tensors
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.errors import BudgetExceeded
from udpfl.federation.local_training import Request, Trainer
from udpfl.federation.participants import Participant
from udpfl.ledger.charges import Charge
from udpfl.ledger.ledger import Ledger


@dataclass(frozen=True)
class Site:
    """What a client knows and the server does not: its records and its account."""

    participant: Participant
    account: int
    records: Tensor
    fingerprint: str = ""
    """The version of its records."""


@dataclass
class Answers:
    """Released messages, refusals by client, and diagnostics of a simulation."""

    messages: list[ClientMessage] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    count: int = 0
    """Clients that answered."""
    bytes_up: int = 0
    bytes_down: int = 0
    clipped_fraction: float | None = None
    signal_to_noise: float | None = None


class Clients:
    """The client half for any number of clients at once."""

    def __init__(
        self,
        run: str,
        trainer: Trainer,
        ledger: Ledger,
        note: str = "",
        note_charge: Callable[[int, str], None] | None = None,
    ) -> None:
        self._run, self._trainer, self._ledger = run, trainer, ledger
        self._note = note  # beside every charge in the ledger
        self._note_charge = note_charge

    def answer(self, request: Request, sites: Sequence[Site]) -> Answers:
        """Answer for these clients.

        Guarantee: every message returned is stored in the ledger together with its charge, and no
        client's charges exceed its budget.
        """
        answers = Answers()
        stored: dict[str, bytes] = {}
        willing = []
        for site in sites:
            again = self._ledger.message(self._run, site.account, request.round)
            if again is not None:
                stored[site.participant.name] = again
            else:
                willing.append(site)
        rounds = {site.account: site.participant.at(request.round).round_event for site in willing}
        events = {account: event for account, event in rounds.items() if event is not None}
        refusals = self._ledger.refusals(self._run, events)
        for site in willing:
            if site.account in refusals:
                answers.refused[site.participant.name] = refusals[site.account]
        willing = [site for site in willing if site.account not in refusals]
        if willing:
            together = len(stored) + len(willing)
            willing = [
                replace(site, participant=site.participant.among(together)) for site in willing
            ]
            stored |= self._train_and_charge(request, willing, answers)
        for site in sites:  # in the order asked, however they came about
            if data := stored.get(site.participant.name):
                answers.messages.append(ClientMessage.from_bytes(data))
                answers.count += 1
                answers.bytes_up += len(data)
        return answers

    def _train_and_charge(
        self, request: Request, sites: Sequence[Site], answers: Answers
    ) -> dict[str, bytes]:
        step = self._trainer.train(
            request,
            [site.participant for site in sites],
            [site.records for site in sites],
            self._states(request, sites),
        )
        answers.clipped_fraction = step.clipped_fraction
        answers.signal_to_noise = step.signal_to_noise
        charges = []
        for lane, site in enumerate(sites):
            message = ClientMessage(
                site.participant.name,
                request.round,
                {name: tensor[lane] for name, tensor in step.tensors.items()},
                tuple(map(event_to_json, step.events[lane])),
                {"declared_size": site.participant.declared_size},
            )
            own = {name: tensor[lane] for name, tensor in step.state.items()}
            kept = tensors_to_bytes(own) if own else b""
            charges.append(
                Charge(
                    site.account,
                    self._run,
                    request.round,
                    step.events[lane],
                    message.to_bytes(),
                    kept,
                    self._note,
                    site.fingerprint,
                )
            )
        try:
            self._ledger.commit(charges, request.settled)
        except BudgetExceeded:
            # Another process spent from the same budget meanwhile: charge one by one, and let only
            # those go whose budget is used up. What they computed is dropped, not released. Nobody
            # knows yet how many are left to be shuffled, so nothing is counted for that.
            charges = [
                charge
                for charge in map(_alone, charges)
                if self._committed(charge, request.settled, sites, answers)
            ]
        if self._note_charge is not None:  # a ledger that is put back later will lack this charge
            self._note_charge(*self._ledger.head())
        names = {site.account: site.participant.name for site in sites}
        return {names[charge.account]: charge.message for charge in charges}

    def _committed(
        self, charge: Charge, settled: int, sites: Sequence[Site], answers: Answers
    ) -> bool:
        try:
            self._ledger.commit([charge], settled)
        except BudgetExceeded as reason:
            name = next(s.participant.name for s in sites if s.account == charge.account)
            answers.refused[name] = str(reason)
            return False
        return True

    def _states(self, request: Request, sites: Sequence[Site]) -> Tensors:
        """What the clients have kept, stacked along the lane axis."""
        fresh = self._trainer.initial_state(request, len(sites))
        for lane, site in enumerate(sites):
            if fresh and (kept := self._ledger.state(self._run, site.account)):
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
