"""Methods that are left at a training and run again: the same questions, each charged once."""

from __future__ import annotations

import pytest
import torch

from udpfl.algorithms import BUILT_IN, Algorithm, FedAvg, ServerStep, local_update
from udpfl.errors import Unsupported
from udpfl.federation._replaying import is_replayable, replayed

RECEIVED = {"model": torch.zeros(3)}
KEPT = {"own": torch.ones(2, 3)}


class Training:
    """Notes what it is asked for, and hands every question on."""

    clients, round = ("a", "b"), 1

    def __init__(self):
        self.begun = []

    @property
    def learning_rates(self):
        return torch.full((2,), 0.1)

    @property
    def steps(self):
        return torch.ones(2)

    def in_calls(self, start, correct, state):
        self.begun.append((start, correct, state))
        return (yield len(self.begun)).clone()


def method(client_step):
    """A method with this client half."""

    class Own(FedAvg):
        name = "own"

    Own.client_step = client_step
    return Own(ServerStep())


def drive(client_step, answers, training=None):
    """What a method sends and keeps, where these are the answers."""
    training = training or Training()
    received, kept = (
        {name: tensor.clone() for name, tensor in own.items()} for own in (RECEIVED, KEPT)
    )
    course = replayed(method(client_step), received, kept, training)
    asked = next(course)
    for answer in answers:
        try:
            asked = course.send(answer)
        except StopIteration as end:
            return end.value, training
    raise AssertionError(f"asks for answer {asked}")


def twice(self, received, state, train):
    first = train(received["model"].expand(2, -1))
    second = train(first + 1, state={"own": state["own"]})
    return {"update": first + 10 * second}, {"own": second}


ONE, TWO = torch.full((2, 3), 1.0), torch.full((2, 3), 2.0)


def test_answers_come_in_their_order_and_each_question_is_begun_once():
    (tensors, state), training = drive(twice, [ONE, TWO])
    assert torch.equal(tensors["update"], ONE + 10 * TWO)
    assert torch.equal(state["own"], TWO)
    starts = [start for start, _, _ in training.begun]
    assert torch.equal(starts[0], torch.zeros(2, 3))
    assert torch.equal(starts[1], ONE + 1)
    assert [list(state) for _, _, state in training.begun] == [[], ["own"]]


def test_what_a_method_writes_to_its_arguments_is_forgotten():
    def writes(self, received, state, train):
        received["model"] += 1
        state["own"] *= 2
        first = train(received["model"].expand(2, -1), state=state)
        kept = first.clone()
        first += 5
        second = train(first)
        return {"update": kept + second, "seen": received["model"]}, state

    (tensors, state), training = drive(writes, [ONE, TWO])
    assert torch.equal(tensors["update"], ONE + TWO)
    assert torch.equal(tensors["seen"], torch.ones(3))
    assert torch.equal(state["own"], 2 * torch.ones(2, 3))
    assert torch.equal(training.begun[1][0], ONE + 5)


def test_a_method_that_stops_nothing_cannot_go_on_without_an_answer():
    """It may catch what ends it: what it makes of that is not taken."""

    def stubborn(self, received, state, train):
        start = received["model"].expand(2, -1)
        try:
            return {"update": train(start)}, state
        except BaseException:
            try:
                train(start + 7)
            except BaseException:
                return {"update": start + 99}, state

    (tensors, _), training = drive(stubborn, [ONE])
    assert torch.equal(tensors["update"], ONE)
    assert len(training.begun) == 1
    assert torch.equal(training.begun[0][0], torch.zeros(2, 3))


def changing(what):
    """A client half that asks for something else each time."""
    times = []

    def step(self, received, state, train):
        times.append(None)
        start, own = received["model"].expand(2, -1).clone(), state["own"]
        start += len(times) * (what == "start")
        own = own * (len(times) if what == "state" else 1)
        named = {"own" + "+" * len(times) * (what == "names"): own}
        correct = (lambda g, p, s: g) if what == "correct" and len(times) > 1 else None
        if what == "number" and len(times) > 1:
            return {"update": start}, state
        if what == "sign":
            start = start * (-1.0) ** len(times)
        return {"update": train(start, correct, named)}, state

    return step


@pytest.mark.parametrize("what", ["start", "state", "names", "correct", "number", "sign"])
def test_a_method_that_asks_otherwise_when_it_is_run_again_is_refused(what):
    with pytest.raises(Unsupported, match="own asks for another training when it is run again"):
        drive(changing(what), [ONE, ONE])


def test_a_method_that_asks_the_same_is_not():
    (tensors, _), _ = drive(changing("nothing"), [ONE])
    assert torch.equal(tensors["update"], ONE)


def test_what_a_method_raises_is_raised():
    def fails(self, received, state, train):
        train(received["model"].expand(2, -1))
        raise ValueError("of my own making")

    with pytest.raises(ValueError, match="of my own making"):
        drive(fails, [ONE])


def test_who_is_known_to_be_a_function_of_its_arguments():
    assert all(is_replayable(object.__new__(kind)) for kind in BUILT_IN.values())

    class Server(Algorithm):
        def aggregate(self, server, messages):
            return server

    class Client(FedAvg):
        def client_step(self, received, state, train):
            return {"update": local_update(received, train)}, state

    class Pull(BUILT_IN["fedprox"]):
        """Its client half is built in, what that calls may not be."""

    assert is_replayable(Server(ServerStep()))
    assert not is_replayable(Client(ServerStep()))
    assert not is_replayable(Pull(ServerStep()))


def test_an_object_with_a_client_step_of_its_own_is_no_built_in_method():
    """It may keep what it sees, and look at what lies beside it in memory."""
    method = FedAvg(ServerStep())
    assert is_replayable(method)
    method.client_step = lambda received, state, train: ({}, state)
    assert not is_replayable(method)
