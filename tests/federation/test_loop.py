"""The loop: who is asked, who has left, who watches; read from top to bottom in a minute."""

from __future__ import annotations

import inspect
import threading
import weakref

import pytest
import torch

from udpfl.algorithms import ClientMessage, ServerStep, fedavg
from udpfl.federation import Answers, Interrupted, Server, Watcher, loop, train
from udpfl.federation import run as run_function
from udpfl.federation._course import course
from udpfl.federation.selection import ClientSelection, list_names
from udpfl.federation.watchers import InterruptWatcher


class Scripted:
    """Clients that answer, or refuse, as they are told: {round: refused names}."""

    def __init__(self, refused, names):
        self.refused, self.names, self.asked = refused, names, []

    def answer(self, request, chosen):
        self.asked.append((request.round, tuple(chosen)))
        names = [self.names[number] for number in chosen]
        out = {
            n: "its budget is used up" for n in names if n in self.refused.get(request.round, ())
        }
        messages = [
            ClientMessage(n, request.round, {"update": torch.ones(1)}, (), {"declared_size": 1})
            for n in names
            if n not in out
        ]
        return Answers(messages, out)


class Notes(Watcher):
    def __init__(self):
        self.seen = []

    def after_round(self, done):
        self.seen.append(done.round)

    def before_next(self):
        self.seen.append("next")

    def after_last(self):
        self.seen.append("end")


def go(schedule, refused=(), watchers=(), names=("a", "b")):
    server = Server(fedavg.FedAvg(ServerStep()), torch.zeros(1))
    clients, notes = Scripted(dict(refused), names), Notes()
    stopped = train(server, clients, ClientSelection(schedule, names), [notes, *watchers])
    return server, clients, notes, stopped


def test_every_round_is_asked_aggregated_and_watched():
    server, clients, notes, stopped = go([(0, 1), (1,)])
    assert clients.asked == [(1, (0, 1)), (2, (1,))]
    assert notes.seen == [1, "next", 2, "next", "end"]
    assert (server.model.tolist(), stopped) == ([2.0], None)


def test_the_messages_of_a_round_are_gone_before_the_next_one_is_computed():
    alive = []

    class Weighs(Scripted):
        def answer(self, request, chosen):
            assert not [own for own in alive if own() is not None]
            answers = super().answer(request, chosen)
            alive.extend(weakref.ref(m.tensors["update"]) for m in answers.messages)
            return answers

    server = Server(fedavg.FedAvg(ServerStep()), torch.zeros(1))
    train(server, Weighs({}, "ab"), ClientSelection([(0, 1)] * 3, ["a", "b"]), [])
    assert server.round == 3
    assert len(alive) == 6


def test_a_round_in_which_nobody_answers_is_skipped():
    server, _, notes, stopped = go([(0,), (1,)], {1: ["a"]})
    assert notes.seen == ["next", 2, "next", "end"]
    assert (server.model.tolist(), stopped) == ([1.0], None)


def test_a_run_ends_when_all_who_are_to_come_have_left(caplog):
    server, clients, notes, stopped = go([(0, 1)] * 5, {2: ["a"], 3: ["a", "b"]})
    assert len(clients.asked) == 3
    assert notes.seen == [1, "next", 2, "next", "end"]
    assert stopped == "no client is left to train: a, b: its budget is used up"
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "a refused to answer from round 2 on: its budget is used up",
        "b refused to answer from round 3 on: its budget is used up",
    ]
    assert server.round == 2


def test_rounds_without_anybody_end_nothing():
    _, clients, _, stopped = go([(), (0,), ()])
    assert (len(clients.asked), stopped) == (3, None)


def test_a_run_goes_on_after_the_last_round():
    server = Server(fedavg.FedAvg(ServerStep()), torch.zeros(1))
    server.restore(2, server.state())
    clients = Scripted({}, "ab")
    train(server, clients, ClientSelection([(0,)] * 3, "ab"), [])
    assert clients.asked == [(3, (0,))]


class Kept:
    def __init__(self):
        self.saved = 0

    def save(self):
        self.saved += 1


@pytest.mark.parametrize("refused", [{}, {1: ["a"]}])
def test_an_interrupt_ends_the_run_after_its_round_even_if_nobody_answered(tmp_path, refused):
    asked, kept, notes = threading.Event(), Kept(), Notes()
    asked.set()
    with pytest.raises(Interrupted) as found:
        go([(0,), (1,)], refused, [notes, InterruptWatcher(asked, kept, tmp_path)])
    assert (found.value.folder, kept.saved) == (tmp_path, 1)
    assert notes.seen == (["next"] if refused else [1, "next"])  # the second round was not asked


def test_a_few_names_are_listed_and_many_are_counted():
    assert list_names(["a", "b", "c"]) == "a, b, c"
    assert list_names(["a", "b", "c", "d"]) == "4 clients (a, b, …)"


def test_the_loop_and_the_run_are_short_enough_to_be_read():
    assert len(inspect.getsource(loop).splitlines()) < 80
    for function in (run_function, course):
        module = inspect.getmodule(function)
        assert len(inspect.getsource(module).splitlines()) < 120
