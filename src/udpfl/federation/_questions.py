"""What the rounds of a run ask of clients, and who brings the answers."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from udpfl.federation.request import Answers, Request

T = TypeVar("T")


class Clients(Protocol):
    """Whoever answers for the clients: in this process, or on other machines."""

    def answer(self, request: Request, chosen: Sequence[int]) -> Answers:
        """The answers of the clients with these numbers, charged before they leave."""


class Question(NamedTuple):
    """What a round asks; whoever drives the rounds brings the answers."""

    clients: Clients
    request: Request
    chosen: Sequence[int]


def answered(rounds: Generator[Question, Answers, T]) -> T:
    """Let clients answer every question, to the end."""
    try:
        question = next(rounds)
        while True:
            try:
                answers = question.clients.answer(question.request, question.chosen)
            except BaseException as error:
                question = rounds.throw(error)
            else:
                question = rounds.send(answers)
                del answers  # its messages need not be there while the next ones are computed
    except StopIteration as end:
        result: T = end.value
        return result
