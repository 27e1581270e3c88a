"""What holds for every method: it resumes, charges what it trains, and refuses the rest."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import udpfl
from tests.algorithms.samples import ADAPTIVE
from udpfl.accounting import PoissonSampled, Repeated, account
from udpfl.algorithms import BUILT_IN, Algorithm, ServerStep
from udpfl.algorithms.fedmed import FedMed
from udpfl.cli.app import app
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread", "no_report")

every_method = pytest.mark.parametrize("method", BUILT_IN)
of_records = pytest.mark.parametrize(
    "method", [name for name, method in BUILT_IN.items() if method.unit == "record"]
)
PUBLIC = {"mode-connectivity": 0.2}
WHOLE = ("dp-fedavg", "nbafl", "ldp-fed", "cldp-sgd", "ldp-fl")


# What holds for all of them


def blobs():
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 3
    return (rng.normal(size=(80, 4)) + 3 * np.eye(4)[labels]).astype(np.float32), labels


def private(method, folder, privacy, **training):
    """Four rounds of three among four clients, or of all where the method needs them; several local
    steps where it takes them."""
    options = {
        "trimmed-mean": {"trim": 0.34}, "fedprox": {"mu": 0.5}, "mode-connectivity": {"steps": 3},
        "client-bezier": {"smoothness": "estimated"},
    }.get(method, {})  # fmt: skip
    return udpfl.run(
        {
            "data": {"clients": 4, "public": PUBLIC.get(method, 0)},
            "model": {"name": "logistic"},
            "privacy": privacy,
        },
        data=blobs(),
        training={
            "algorithm": method,
            "options": options,
            "rounds": 4,
            "clients_per_round": None if BUILT_IN[method].shares_steps else 3,
            "local_steps": 1 if method == "fedsgd" else 2,
            "learning_rate": 0.5,
            "server_learning_rate": 0.05 if method in ADAPTIVE else 1.0,
            "evaluate_every": 4,
            **training,
        },
        out=str(folder),
        observers=[PowerCut()] if "crash" in folder.name else [],
    )


class PowerCut:
    """A crash after the second round, whose checkpoint is the first round's."""

    def on_message(self, message):
        if message.round == 3:
            raise RuntimeError("a power cut")

    def on_model(self, round_, model):
        pass

    def on_round(self, row):
        pass


def flat(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


@of_records
def test_a_method_resumes_to_the_same_result_whatever_the_lanes(tmp_path, method):
    seeded = {"mechanism": "gaussian", "accountant": "rdp", "randomness": "seeded"}
    whole = private(method, tmp_path / "whole", seeded, lanes="stacked")
    with pytest.raises(RuntimeError, match="power cut"):
        private(method, tmp_path / "crash", seeded, lanes="stacked", checkpoint_every=2)
    resumed = udpfl.run(resume=tmp_path / "crash", data=blobs())
    assert torch.equal(flat(resumed), flat(whole))
    single = private(method, tmp_path / "single", seeded, lanes="single")
    torch.testing.assert_close(flat(single), flat(whole), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(flat(whole)).all()
    other = udpfl.run(
        {**whole.config.model_dump(exclude_unset=True), "seed": 1, "out": str(tmp_path / "other")},
        data=blobs(),
    )
    assert not torch.allclose(flat(other), flat(whole), rtol=1e-2, atol=1e-3)


@of_records
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_method_charges_what_it_trains_and_stays_within_budget(tmp_path, method, mechanism):
    budget = {"mechanism": mechanism, "epsilon": 3.0, "delta": 1e-4}
    result = private(method, tmp_path / "run", budget)
    training = result.config.training
    people = json.loads((result.folder / "participants.json").read_text())
    with Ledger(result.ledger_path, read_only=True) as ledger:
        entries = list(ledger.history())
    per_round = training.local_steps * BUILT_IN[method].trainings
    for person in people:
        own = [entry for entry in entries if entry.client == person["name"]]
        assert len({entry.round for entry in own}) == person["rounds"]
        assert sum(entry.count for entry in own) == person["rounds"] * per_round
        (event,) = {entry.event for entry in own}
        assert isinstance(event, PoissonSampled)
        spent = account(Repeated(event, person["rounds"] * per_round), 1e-4).epsilon
        assert result.clients[person["name"]].epsilon == pytest.approx(spent, rel=1e-6)
        assert 2.8 < spent <= 3.0
    asked = training.clients_per_round or 4
    assert sum(person["rounds"] for person in people) == asked * training.rounds
    assert result.privacy.kind == "guarantee"


def test_every_method_states_its_facts():
    for name, method in BUILT_IN.items():
        assert method.name == name
        assert issubclass(method, Algorithm)
        assert method.unit == ("client" if name in WHOLE else "record")
        for fact in ("paper", "releases", "guarantee"):
            assert fact in {key for kind in method.__mro__[:-3] for key in vars(kind)}, (name, fact)
            assert getattr(method, fact).strip()
        assert "20" in method.paper or "the UDP-FL paper" in method.paper
        assert method.guarantee.endswith(".")
        if method.unit == "record" and "gradient" in method.guarantee:
            # Under the other unit of the same method no gradient is clipped or noised.
            assert 'privacy.unit = "client"' in method.guarantee
        assert method.__doc__.strip()


@every_method
def test_a_method_sends_what_it_says_it_releases(tmp_path, method):
    sent = set()

    class Listener(udpfl.Observer):
        def on_message(self, message):
            sent.update(message.tensors)

    options = {"trim": 0.34} if method == "trimmed-mean" else {}
    udpfl.run(
        {
            "data": {"clients": 3, "public": PUBLIC.get(method, 0)},
            "model": {"name": "logistic"},
            "privacy": "none",
        },
        data=blobs(),
        training={"algorithm": method, "rounds": 1, "options": options, "learning_rate": 0.1},
        observers=[Listener()],
        out=str(tmp_path / "run"),
    )
    said = {part.partition(":")[0].strip() for part in BUILT_IN[method].releases.split(";")}
    assert sent == said


# What is refused


REFUSED = {
    "several steps": ("fedsgd", {"local_steps": 2}, {}, "training.local_steps", "one step"),
    "a negative pull": ("fedprox", {}, {"mu": -0.1}, "training.options.mu", "from 0"),
    "a pull without end": ("fedprox", {}, {"mu": float("inf")}, "training.options.mu", "from 0"),
    "a pull that overshoots": (
        "fedprox", {"local_steps": 3, "learning_rate": 0.5}, {"mu": 4.0}, "training.options.mu",
        "2 or more"),
    "a pull in words": ("fedprox", {}, {"mu": "much"}, "training.options", "fedprox"),
    "no trim": ("trimmed-mean", {}, {"trim": 0.0}, "training.options.trim", "between"),
    "half trimmed": ("trimmed-mean", {}, {"trim": 0.5}, "training.options.trim", "between"),
    "a trim of nobody": (
        "trimmed-mean", {}, {"trim": 0.2}, "training.options.trim", "of 4 clients"),
    "a trim of nobody who is asked": (
        "trimmed-mean", {"clients_per_round": 2}, {"trim": 0.3}, "training.options.trim",
        "of 2 clients"),
    "no tau": ("fedadam", {}, {"tau": 0.0}, "training.options.tau", "positive"),
    "an endless beta2": ("fedyogi", {}, {"beta2": 1.0}, "training.options.beta2", "below 1"),
    "beta2 where v does not forget": (
        "fedadagrad", {}, {"beta2": 0.9}, "training.options.beta2", "its options are: tau"),
    "a threshold": ("fedmed", {}, {"threshold": 2.0}, "training.options.threshold", "-1 to 1"),
    "a sharpness": ("fedmed", {}, {"sharpness": -1.0}, "training.options.sharpness", "from 0"),
    "a count": ("fedmed", {}, {"top_k": 0}, "training.options.top_k", "from 1"),
    "a part of a client": ("fedmed", {}, {"top_k": 1.5}, "training.options.top_k", "from 1"),
    "an option of another": ("scaffold", {}, {"mu": 0.1}, "training.options.mu", "are: none"),
    "several steps of one message": (
        "cldp-sgd", {"local_steps": 2}, {}, "training.local_steps", "one step"),
    "no answers": ("ldp-fl", {}, {"answers": 0}, "training.options.answers", "from 1"),
    "half an answer": ("cldp-sgd", {}, {"answers": 0.5}, "training.options.answers", "from 1"),
    "a step back": ("rdp-pfl", {}, {"inner": -1.0}, "training.options.inner", "from 0"),
    "no layers": ("cofel-avg", {}, {"keep": 0.0}, "training.options.keep", "above 0"),
    "more than all layers": ("cofel-avg", {}, {"keep": 1.5}, "training.options.keep", "up to 1"),
    "no steps": ("als-dpfl", {}, {"most": 0}, "training.options.most", "from 1"),
    "fewer steps than planned": (
        "als-dpfl", {"local_steps": 4}, {"most": 3}, "training.options.most", "at least"),
    "steps shared among some": (
        "als-dpfl", {"clients_per_round": 2}, {}, "training.clients_per_round", "all clients"),
    "a name nearly right": ("scafold", {}, {}, "training.algorithm", "did you mean scaffold"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_method_cannot_do_is_refused_before_anything_is_spent(tmp_path, case):
    method, training, options, parameter, message = REFUSED[case]
    with pytest.raises(udpfl.InvalidInput, match=message) as refused:
        udpfl.run(
            {"data": {"clients": 4}, "model": {"name": "logistic"}},
            data=blobs(),
            training={"algorithm": method, "options": options, "rounds": 2, **training},
            out=str(tmp_path / "run"),
        )
    assert refused.value.parameter == parameter
    assert not (tmp_path / "run").exists()


def test_fedmed_of_clients_that_did_not_move_stays_where_it_is():
    method = FedMed(ServerStep(), threshold=1.0)
    assert method._adaptive(torch.zeros(3, 5)).tolist() == [0.0] * 5


# The command


def test_the_command_lists_every_method_with_its_facts():
    answer = CliRunner().invoke(app, ["methods", "--json"])
    assert answer.exit_code == 0, answer.output
    rows = {row["name"]: row for row in json.loads(answer.output)}
    assert set(BUILT_IN) <= rows.keys()
    for name, method in BUILT_IN.items():
        found = rows[name]
        facts = (found["paper"], found["releases"], found["unit"], found["guarantee"])
        assert facts == (method.paper, method.releases, method.unit, method.guarantee)
    assert rows["fedprox"]["options"] == {"mu": 0.1}
    assert rows["scaffold"]["options"] == {}
    table = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "300"})
    assert table.exit_code == 0
    assert all(method.paper in table.output for method in BUILT_IN.values())
    assert "tau = 0.001, beta2 = 0.99" in table.output
    both = sum(method.unit == "record" for method in BUILT_IN.values())
    assert table.output.count('one record; with privacy.unit = "client", a whole client') == both
