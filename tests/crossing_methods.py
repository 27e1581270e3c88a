"""Methods of one's own for the crossings: one that says nothing, and one that trains twice."""

from __future__ import annotations

from udpfl.algorithms import Algorithm, local_update, weighted_mean


class Silent(Algorithm):
    """A correction, and not a word on what a client without records sends."""

    name = "silent"

    def client_step(self, received, state, train):
        common = received["direction"].expand(len(train.clients), -1)
        return {"update": local_update(received, train, _along, direction=common)}, state

    def aggregate(self, server, messages):
        return self.server.apply(server, weighted_mean(messages, "update"))


def _along(gradient, parameters, lane):
    return gradient + lane["direction"]


class TwoTrainings(Algorithm):
    """Trains twice in a round, the second time from where the first has led."""

    name = "two-trainings"
    trainings = 2
    without_records = "stays"

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1)
        return {"update": train(train(start)) - start}, state

    def aggregate(self, server, messages):
        return self.server.apply(server, weighted_mean(messages, "update"))
