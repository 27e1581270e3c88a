"""The steps of several runs computed together: their calls of the engine are answered by one."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence

from udpfl.engine import Trained
from udpfl.engine.merging import Call, train_merged
from udpfl.engine.pooling import RecordPool
from udpfl.federation.local_training import Step, Work

log = logging.getLogger(__name__)

Training = Generator[Call, Trained, Step]


def train_works(works: Sequence[Work], pool: RecordPool) -> list[Step | Exception]:
    """What each of these comes to, in their order; its own error where one fails.

    Guarantee: each step is what its own `train` comes to: up to rounding where draws are seeded, in
    distribution else. What fails in one run changes nothing in another.
    """
    found: dict[int, Step | Exception] = {}
    trainings: dict[int, Training] = {}
    for number, work in enumerate(works):
        calls = work.calls if len(works) > 1 else None
        if calls is None:
            found[number] = _alone(work)
        else:
            trainings[number] = calls
    answers: dict[int, Trained | Exception | None] = dict.fromkeys(trainings)
    while answers:
        asked: dict[int, Call] = {}
        for number, answer in answers.items():
            call = _next_call(trainings[number], answer)
            if isinstance(call, Call):
                asked[number] = call
            else:
                found[number] = call
        answers = dict(zip(asked, _answers(list(asked.values()), pool), strict=True))
    return [found[number] for number in range(len(works))]


def _alone(work: Work) -> Step | Exception:
    try:
        return work.train()
    except Exception as error:
        return error


def _next_call(training: Training, answer: Trained | Exception | None) -> Call | Step | Exception:
    """What a training asks next; its step or its error where it asks nothing more."""
    try:
        if isinstance(answer, Exception):
            return training.throw(answer)
        return next(training) if answer is None else training.send(answer)
    except StopIteration as end:
        step: Step = end.value
        return step
    except Exception as error:
        return error


def _answers(calls: Sequence[Call], pool: RecordPool) -> list[Trained | Exception]:
    """What the engine makes of all calls. If that fails each is trained by itself: nobody has seen
    anything of the attempt, and only those that fail are failures."""
    try:
        return list(train_merged(calls, pool))
    except Exception as error:
        log.debug("a merged call failed: %s", error, exc_info=True)
    answers: list[Trained | Exception] = []
    for call in calls:
        try:
            answers.append(call.train())
        except Exception as error:
            answers.append(error)
    return answers
