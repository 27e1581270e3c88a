"""Methods that would send more than a noisy update of whole clients: nothing else leaves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import udpfl
from tests.small import blobs, linear
from udpfl.accounting import Release, Sensitivity
from udpfl.algorithms import ServerStep
from udpfl.algorithms.base import local_update
from udpfl.algorithms.fedavg import FedAvg
from udpfl.engine import Keyed, LaneModel, Limits
from udpfl.errors import Unsupported
from udpfl.federation import Request, Trainer, local_training
from udpfl.federation.plan import ReleasePlan


class SendsGradients(FedAvg):
    """A control variate made of the gradients that the local steps went along."""

    name = "sends-gradients"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []

        def note(gradient, parameters, lane):
            seen.append(gradient.sum())
            return gradient

        moved = local_update(received, train, note)
        return {"update": moved, "control": torch.ones_like(moved) * sum(seen)}, state


class Mixed(type("Mixin", (), {"client_step": SendsGradients.client_step}), FedAvg):
    """Inherits its client half from a class that says nothing of clients without records."""

    name = "mixed"


class KeepsGradients(FedAvg):
    """Nothing but the update is sent; what is kept corrects the next round."""

    name = "keeps-gradients"
    without_records = "moves"

    def client_init(self, parameters):
        return {"sum": torch.zeros(1)}

    def client_step(self, received, state, train):
        seen = []

        def note(gradient, parameters, lane):
            seen.append(gradient.sum())
            return gradient + lane["before"]

        moved = local_update(received, train, note, before=state["sum"])
        return {"update": moved}, {"sum": torch.ones_like(state["sum"]) * sum(seen)}


class SendsTheFirst(FedAvg):
    """Remembers the first gradient of records that it ever saw."""

    name = "sends-the-first"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            if gradient.any():
                self.first = getattr(self, "first", gradient.clone())
            return gradient

        moved = local_update(received, train, note)
        first = getattr(self, "first", torch.zeros(()))
        return {"update": moved, "first": first.expand_as(moved)}, state


class KeepsTheLargest(FedAvg):
    """Writes to its own state while it trains, as optimisers do."""

    name = "keeps-the-largest"
    without_records = "stays"

    def client_init(self, parameters):
        return {"largest": torch.zeros_like(parameters)}

    def client_step(self, received, state, train):
        largest = state["largest"]

        def note(gradient, parameters, lane):
            largest.copy_(torch.maximum(largest, gradient.square()))
            return gradient

        return {"update": local_update(received, train, note)}, {"largest": largest}


class KeepsTheFirst(KeepsTheLargest):
    """Writes the first gradient to its state, and never again."""

    name = "keeps-the-first"
    without_records = "stays"

    def client_step(self, received, state, train):
        largest = state["largest"]

        def note(gradient, parameters, lane):
            if not largest.any():
                largest.copy_(gradient)
            return gradient

        return {"update": local_update(received, train, note)}, {"largest": largest}


class SendsNothingInstead(FedAvg):
    """Catches what goes wrong in a training."""

    name = "sends-nothing-instead"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            if float(gradient.norm()) > 1e6:
                raise ValueError("diverged")
            return gradient

        try:
            moved = local_update(received, train, note)
        except ValueError:
            moved = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": moved}, state


def noting(seen):
    def note(gradient, parameters, lane):
        seen.append(gradient.clone())
        return gradient

    return note


class CarriesGradientsOn(FedAvg):
    """A second training with the gradients of the first one as its momentum."""

    name = "carries-gradients-on"
    without_records = "moves"
    trainings = 2

    def client_step(self, received, state, train):
        seen = []
        local_update(received, train, noting(seen))
        along = {"momentum": 100 * sum(seen)}
        return {"update": local_update(received, train, self._along, **along)}, state

    @staticmethod
    def _along(gradient, parameters, lane):
        return gradient + lane["momentum"]


class RemembersGradients(CarriesGradientsOn):
    """The same, in a variable that only its correction knows."""

    name = "remembers-gradients"
    without_records = "moves"

    def client_step(self, received, state, train):
        seen = []
        local_update(received, train, noting(seen))
        momentum = 100 * sum(seen)
        moved = local_update(received, train, lambda g, parameters, lane: g + momentum)
        return {"update": moved}, state


class StartsElsewhere(CarriesGradientsOn):
    """A second training from where the gradients of the first one lead."""

    name = "starts-elsewhere"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen, start = [], received["model"].expand(len(train.clients), -1)
        train(start, noting(seen))
        return {"update": train(start - 100 * sum(seen)) - start}, state


class WritesToItsStart(FedAvg):
    """Its correction writes gradients to what the training was called with."""

    name = "writes-to-its-start"

    def client_step(self, received, state, train):
        start = received["model"].expand(len(train.clients), -1).clone()
        before = start.clone()

        def correct(gradient, parameters, lane):
            start.add_(gradient, alpha=1e3)
            return gradient

        return {"update": train(start, correct) - before, "start": start}, state


class SendsNotANumber(FedAvg):
    """Tells of a gradient by where something is not a number."""

    name = "sends-not-a-number"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        signs = torch.where(sum(seen) > 0, float("nan"), 0.0)
        return {"update": moved, "signs": signs}, state


class SendsMinusZero(SendsNotANumber):
    """Tells of a gradient by the signs of zeros."""

    name = "sends-minus-zero"
    without_records = "stays"

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        return {"update": moved, "signs": torch.copysign(torch.zeros(()), sum(seen))}, state


class TrainsWhenItLikes(FedAvg):
    """Trains a second time if the first gradient is of a certain kind."""

    name = "trains-when-it-likes"
    without_records = "stays"
    trainings = 2

    def client_step(self, received, state, train):
        seen = []
        moved = local_update(received, train, noting(seen))
        if float(sum(seen).abs().max()) < 1e20:
            local_update(received, train)
        return {"update": moved}, state


HEEDLESS = [
    SendsGradients, Mixed, KeepsGradients, SendsTheFirst, KeepsTheLargest, SendsNothingInstead,
    KeepsTheFirst, CarriesGradientsOn, RemembersGradients, StartsElsewhere, WritesToItsStart,
    SendsNotANumber, SendsMinusZero, TrainsWhenItLikes,
]  # fmt: skip


@pytest.mark.parametrize("method", HEEDLESS)
@pytest.mark.usefixtures("one_thread")  # `KeepsTheLargest` expects all clients in one stack
def test_nothing_but_the_noisy_update_leaves_a_training_of_whole_clients(tmp_path, method):
    """Gradients have no noise there, and a correction sees them."""
    settings = {
        "out": str(tmp_path / "run"), "data": {"clients": 3},
        "training": {"rounds": 2, "algorithm": f"{__name__}:{method.__name__}"},
        "privacy": {"unit": "client", "delta": 1e-3, "mechanism": "gaussian", "epsilon": 1.0},
    }  # fmt: skip
    with pytest.raises(Unsupported, match="depends on gradients without noise"):
        udpfl.run(settings, data=blobs(), model=linear())
    settings["privacy"]["unit"] = "record"  # where every gradient has its noise
    settings["out"] = str(tmp_path / "records")
    if method.trainings == 1:
        assert udpfl.run(settings, data=blobs(), model=linear()).privacy.kind == "guarantee"


def test_what_a_correction_writes_to_the_start_changes_nothing(tmp_path):
    """Neither what whole clients are measured from nor what is added back to the noise."""

    class Silent(WritesToItsStart):
        def client_step(self, received, state, train):
            answer, state = super().client_step(received, state, train)
            return {"update": answer["update"]}, state

    assert float(trained_together(Silent(ServerStep(1.0, 0.0)), [20])["update"].norm()) < 1.01


def test_a_client_half_that_comes_from_elsewhere_says_nothing():
    assert Mixed.without_records is None
    assert SendsGradients.without_records == "stays"
    assert type("Plain", (SendsGradients,), {}).without_records == "stays"
    own = {"client_step": Mixed.client_step}
    assert type("Own", (SendsGradients,), own).without_records is None
    assert type("Says", (Mixed,), {"without_records": "moves"}).without_records == "moves"


def trained_together(algorithm, sizes, steps=3):
    """What some clients would release, with next to no noise."""
    x = 50 * torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 3
    torch.manual_seed(0)
    model = LaneModel(nn.Linear(6, 3), lambda o, t: F.cross_entropy(o, t, reduction="none"))
    bound = 2.0 if algorithm.without_records is None else 1.0
    sensitivity = Sensitivity(bound, "l2", model.layout.dimension)
    release = Release(udpfl.Gaussian(1e-9), sensitivity, "client")
    people = [
        ReleasePlan(str(i), 20, 1.0, 1, steps, release, diameter=bound == 2.0)
        for i in range(len(sizes))
    ]
    trainer = Trainer("key", model, x, y, algorithm, Keyed(0), Limits(8, 512))
    request = Request(1, {"model": model.initial()}, 0.5)
    rows = [torch.arange(20 * i, 20 * i + size) for i, size in enumerate(sizes)]
    return trainer.train(request, people, rows, trainer.initial_state(request, len(sizes))).tensors


class ScaledByAll(FedAvg):
    """Divides by the norm of all clients' gradients where it means each one's."""

    name = "scaled-by-all"
    without_records = "stays"

    def client_step(self, received, state, train):
        moved = local_update(received, train, lambda g, p, lane: g / (g.norm() + 1e-6))
        return {"update": moved}, state


class WritesInPlace(FedAvg):
    """An optimiser of its own, which moves the parameters that it is shown."""

    name = "writes-in-place"

    def client_step(self, received, state, train):
        def step(gradient, parameters, lane):
            parameters.sub_(0.5 * gradient)
            return torch.zeros_like(gradient)

        return {"update": local_update(received, train, step)}, state


class Notes(FedAvg):
    """Leaves norms where the server half could read them."""

    name = "notes"
    without_records = "stays"
    norms = None

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            self.norms = float(gradient.norm())
            return gradient

        return {"update": local_update(received, train, note)}, state


class ScaledByLargest(FedAvg):
    """Divides by the largest norm so far, of whichever client."""

    name = "scaled-by-largest"
    without_records = "stays"

    def client_step(self, received, state, train):
        largest = 1e-6

        def scaled(gradient, parameters, lane):
            nonlocal largest
            largest = max(largest, float(gradient.norm()))
            return gradient / largest

        return {"update": local_update(received, train, scaled)}, state


def test_one_client_does_not_change_what_another_sends():
    for method in (FedAvg, ScaledByAll, ScaledByLargest):
        both = trained_together(method(ServerStep()), [20, 20])["update"]
        for sizes, same in (([20, 0], 0), ([0, 20], 1)):
            alone = trained_together(method(ServerStep()), sizes)["update"]
            assert torch.equal(both[same], alone[same])
            assert not torch.equal(both[1 - same], alone[1 - same])


def test_whole_clients_are_computed_apart(monkeypatch):
    seen = []
    kept = local_training.train_round
    monkeypatch.setattr(
        local_training,
        "train_round",
        lambda *given: seen.append(given[4].apart) or kept(*given),
    )
    trained_together(FedAvg(ServerStep()), [20, 5])
    assert seen
    assert all(seen)


def test_a_method_cannot_move_the_parameters_that_it_is_shown():
    moved = trained_together(WritesInPlace(ServerStep()), [20])["update"]
    assert float(moved.norm()) < 1e-6  # what it returns is a step of nothing


def test_what_a_method_notes_of_gradients_is_gone_after_the_round():
    method = Notes(ServerStep())
    trained_together(method, [20, 20])
    assert method.norms is None


def test_a_training_that_fails_ends_the_round_whatever_the_method_does():
    with pytest.raises(ValueError, match="diverged"):
        trained_together(Impatient(ServerStep()), [20])


class SlowsDown(FedAvg):
    """Lowers learning rates and steps by the gradients that it sees, and sends them."""

    name = "slows-down"
    without_records = "stays"

    def client_step(self, received, state, train):
        rates, steps = train.learning_rates, train.steps

        def slow(gradient, parameters, lane):
            for shown in (rates, train.learning_rates, steps, train.steps):
                shown.add_(gradient.norm().to(shown.dtype))
            return gradient

        update = local_update(received, train, slow)
        return {"update": update, "rates": train.learning_rates, "steps": train.steps}, state


def test_what_a_method_writes_to_rates_and_steps_reaches_nobody():
    for size in (20, 0):
        sent = trained_together(SlowsDown(ServerStep()), [size, 20])
        assert torch.equal(sent["rates"], torch.full((2,), 0.5))
        assert torch.equal(sent["steps"], torch.full((2,), 3))


class Rewinds(FedAvg):
    """Sets the round, which is in the keys of all its noise."""

    name = "rewinds"
    without_records = "stays"

    def client_step(self, received, state, train):
        train.round = 1
        return super().client_step(received, state, train)


def test_a_method_cannot_set_the_round():
    with pytest.raises(AttributeError, match="round"):
        trained_together(Rewinds(ServerStep()), [20])


SHARED = torch.zeros(1)


class SendsTheShared(FedAvg):
    """Sends a tensor that all its copies write to."""

    name = "sends-the-shared"
    without_records = "stays"

    def client_step(self, received, state, train):
        def note(gradient, parameters, lane):
            SHARED.copy_(gradient.norm())
            return gradient

        update = local_update(received, train, note)
        return {"update": update, "norms": SHARED}, state


def test_what_was_sent_is_what_is_compared():
    with pytest.raises(Unsupported, match="depends on gradients without noise"):
        trained_together(SendsTheShared(ServerStep()), [20])


class CatchesAll(FedAvg):
    """Goes on whatever happens in a training."""

    name = "catches-all"
    without_records = "stays"

    def client_step(self, received, state, train):
        try:
            update = local_update(received, train, lambda g, p, lane: g)
        except:  # noqa: E722
            update = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": update}, state


def test_clients_take_turns_even_if_a_method_catches_everything():
    caught = trained_together(CatchesAll(ServerStep()), [20, 20])["update"]
    plain = trained_together(FedAvg(ServerStep()), [20, 20])["update"]
    assert torch.allclose(caught, plain, atol=1e-3)
    assert float(caught.norm(dim=1).min()) > 0.5


class Impatient(SendsNothingInstead):
    """Fails at once."""

    def client_step(self, received, state, train):
        def fail(gradient, parameters, lane):
            raise ValueError("diverged")

        try:
            moved = local_update(received, train, fail)
        except ValueError:
            moved = torch.zeros(len(train.clients), len(received["model"]))
        return {"update": moved}, state
