"""A deployed run equals the same run in one process, for every method and every stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import udpfl
from tests.deploy.memory import federation, ledgers, memory
from tests.deploy.one_process import CLIENTS, ROUNDS, in_one_process, seeded, weights
from tests.site.samples import policy as policy_of
from udpfl import InvalidInput, Unsupported
from udpfl.algorithms import BUILT_IN
from udpfl.deploy import run_federation
from udpfl.federation import Stage
from udpfl.mechanisms.randomiser import BUILT_IN as RANDOMISERS
from udpfl.runs.files import read_metrics, read_summary

pytestmark = pytest.mark.usefixtures("one_thread")

BUDGET = {"runs": "one", "epsilon": 8.0, "delta": 1e-5}
"""As `udpfl.run` has it if nothing is set."""


def deployed(folder, policy=None, deploy=None, **changes):
    folder.mkdir()
    extra = policy or {}
    server = {"seeded_noise": True, "methods": sorted(BUILT_IN), **extra.get("server", {})}
    allowed = {"budget": BUDGET, **extra, "server": server}
    sites = memory(folder, CLIENTS, **allowed)
    return run_federation(federation(deploy, **changes), sites, out=folder / "run"), sites


@pytest.mark.parametrize("lanes", ["single", "stacked"])
@pytest.mark.parametrize(
    ("algorithm", "more"),
    [("fedavg", {}), ("scaffold", {"local_steps": 2}), ("fedprox", {"local_steps": 2})],
)
def test_a_deployed_run_is_the_same_run(tmp_path, lanes, algorithm, more):
    changes = seeded(training={"algorithm": algorithm, **more})
    steps = more.get("local_steps", 1)
    policy = {"releases": {"in_all": ROUNDS * steps, "per_round": steps, "sampling_rate": 0.5}}
    found, sites = deployed(tmp_path / "sites", policy, **changes)
    expected = in_one_process(tmp_path / "one", lanes, **changes)
    gap = (weights(found.model) - weights(expected.model)).abs().max()
    assert gap <= (1e-6 if lanes == "single" else 1e-5)
    assert [row["round"] for row in found.metrics] == [1, 2, 3]
    with ledgers(sites) as found:
        for own in found:
            assert own.head()[0] == ROUNDS
            assert own.verify() == []


CLIENT = {"privacy": {"unit": "client"}}
OPTIONS: dict[str, dict] = {
    "als-dpfl": {"training": {"local_steps": 2}},
    "cldp-sgd": CLIENT,
    "dp-fedavg": CLIENT,
    "ldp-fed": {**CLIENT, "privacy": {"unit": "client", "norm": "linf"}},
    "ldp-fl": {**CLIENT, "privacy": {"unit": "client", "norm": "linf"}},
    "nbafl": CLIENT,
    "trimmed-mean": {"training": {"options": {"trim": 0.34}}},
}
NEEDS_PUBLIC = sorted(name for name, kind in BUILT_IN.items() if kind.needs_public)


@pytest.mark.parametrize("algorithm", sorted(set(BUILT_IN) - set(NEEDS_PUBLIC)))
def test_every_method_runs_through_sites(tmp_path, algorithm):
    own = OPTIONS.get(algorithm, {})
    changes = seeded(**{**own, "training": {"algorithm": algorithm, **own.get("training", {})}})
    brings_noise = BUILT_IN[algorithm].own_noise is not udpfl.Algorithm.own_noise
    if brings_noise:
        changes["privacy"] = {**changes["privacy"], "epsilon": 8.0}
    expected = in_one_process(tmp_path / "one", **changes)
    plan = json.loads((expected.folder / "participants.json").read_text())[0]
    steps = plan["trainings"] * plan["steps"] if plan["release"]["unit"] == "record" else 1
    answers = plan["release"].get("randomiser", {}).get("answers", 1)
    policy = {
        "releases": {
            "in_all": ROUNDS * steps * answers,
            "per_round": ROUNDS * steps * answers,
            "units": ["record", "client"],
            "norms": ["l2", "linf"],
            "clip": 2.0,
            "mechanisms": ["gaussian", *RANDOMISERS],
        },
        "server": {"adds_noise": True},
    }
    if brings_noise:
        # Noise that a method prescribes costs what it costs: the budget has to hold it.
        policy["budget"] = {**BUDGET, "epsilon": 1e6}
    found, _ = deployed(tmp_path / "sites", policy, **changes)
    assert found.stopped is None
    gap = (weights(found.model) - weights(expected.model)).abs().max()
    assert gap <= 1e-6


STAGES = {
    "adaptive clip": {"privacy": {"clip_quantile": 0.5}},
    "pull": {"privacy": {"epsilon": [8.0, 2.0, 4.0]}, "training": {"penalty": 0.5}},
    "shuffle": {"training": {"shuffle": True}},
    "stage of one's own": {"training": {"stages": ["tests.deploy.test_serving:Halved"]}},
    "epochs": {"training": {"local_epochs": 2, "batches": 2}},
    "pace": {"privacy": {"pace": "decaying"}},
    "some clients a round": {"training": {"clients_per_round": 2}},
    "match": {"privacy": {"harmonize": "match", "reference": 2.0}},
}


class Halved(Stage):
    """Halves every update."""

    def receive(self, round_, server, messages):
        return [replace(own, tensors={"update": own.tensors["update"] / 2}) for own in messages]


@pytest.mark.parametrize("name", sorted(STAGES))
def test_every_stage_runs_through_sites(tmp_path, name):
    changes = seeded(**STAGES[name])
    expected = in_one_process(tmp_path / "one", **changes)
    plan = json.loads((expected.folder / "participants.json").read_text())[0]
    each = 2 if plan["count"] or plan["epochs"] > 1 else 1
    policy = {"releases": {"in_all": plan["rounds"] * each, "per_round": each, "paces": True}}
    if name == "adaptive clip":
        policy["releases"]["clip"] = 1e4
    if name == "some clients a round":  # each site is asked as often as the schedule says
        policy = {"releases": {"in_all": ROUNDS}}
        changes["privacy"] = {**changes["privacy"], "harmonize": "match", "reference": 2.0}
        expected = in_one_process(tmp_path / "two", **changes)
    if name == "pull":  # a budget that holds what the run asks of each
        policy["budget"] = BUDGET
    found, _ = deployed(tmp_path / "sites", policy, **changes)
    assert found.stopped is None
    assert (weights(found.model) - weights(expected.model)).abs().max() <= 1e-6


def test_noise_that_follows_results_is_planned_by_the_ledgers_of_the_sites(tmp_path):
    changes = {
        "privacy": {
            "pace": "plateau",
            "pace_patience": 1,
            "pace_follows": "update",
            "epsilon": 2.0,
        },
        "training": {"rounds": 6},
    }
    policy = {"budget": {"epsilon": 4.0, "delta": 1e-5}, "releases": {"in_all": 6, "paces": True}}
    policy["server"] = {"seeded_noise": False}
    found, sites = deployed(tmp_path / "sites", policy, **changes)
    assert found.stopped is None
    assert len(found.metrics) == 6
    with ledgers(sites) as all_:
        for ledger in all_:
            (account,) = ledger.accounts()
            assert 0 < ledger.statement(account.id).epsilon <= 4.0


@pytest.mark.parametrize("algorithm", NEEDS_PUBLIC)
def test_methods_that_learn_from_public_records_take_the_servers(tmp_path, algorithm):
    data = {"name": "tests.site.samples:load", "public": 20, "options": {"site": 9}}
    changes = seeded(training={"algorithm": algorithm}, data=data)
    policy = {"releases": {"in_all": ROUNDS}}
    found, _ = deployed(tmp_path / "sites", policy, {"evaluate": "test"}, **changes)
    assert found.stopped is None
    assert found.accuracy > 0.5
    with pytest.raises(InvalidInput, match="public"):
        deployed(tmp_path / "none", policy, **seeded(training={"algorithm": algorithm}))


def test_the_server_keeps_what_sites_report(tmp_path):
    policy = {"server": {"seeded_noise": False}, "releases": {"in_all": ROUNDS}}
    data = {"name": "tests.site.samples:load", "options": {"site": 9}}
    found, sites = deployed(
        tmp_path / "sites", policy, {"evaluate": "test"}, data=data, training={"rounds": ROUNDS}
    )
    folder = found.folder.path
    summary = read_summary(folder)
    assert summary.outcome["accuracy"] == found.accuracy > 0.5
    assert set(summary.clients) == {"client-0", "client-1", "client-2"}
    for statement in summary.clients.values():
        assert statement.epsilon <= 8
        assert "reported by the clients" in statement.notes[-1]
    checkpoint = found.folder.read_checkpoint()
    with ledgers(sites) as all_:
        numbers = {f"client-{n}": ledger.head()[0] for n, ledger in enumerate(all_)}
    assert {site: number for site, (number, _) in checkpoint.sites.items()} == numbers
    loaded = udpfl.load(folder)
    assert weights(loaded.model).tolist() == weights(found.model).tolist()
    assert loaded.evaluate().accuracy == found.accuracy
    assert [row.round for row in read_metrics(folder)] == [1, 2, 3]


def test_sites_with_other_records_are_told_apart(tmp_path):
    sites = memory(tmp_path)
    sites.sites[12] = policy_of(tmp_path, 2, data={"name": "mnist5k", "options": {}})
    with pytest.raises(InvalidInput, match="not alike"):
        run_federation(federation(), sites, out=tmp_path / "run")


def test_a_server_with_other_records_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="the server's records"):
        run_federation(
            federation({"evaluate": "test"}, data={"name": "mnist5k"}),
            memory(tmp_path),
            out=tmp_path / "run",
        )


def test_a_trusted_server_adds_the_noise_that_sites_were_charged_for(tmp_path):
    policy = {
        "releases": {"in_all": ROUNDS, "units": ["client"]},
        "server": {"adds_noise": True, "seeded_noise": False},
    }
    changes = {**CLIENT, "training": {"algorithm": "dp-fedavg", "rounds": ROUNDS}}
    found, sites = deployed(tmp_path / "sites", policy, **changes)
    assert found.stopped is None
    with ledgers(sites) as all_:
        assert all(ledger.statement(1).trusts_server for ledger in all_)
    own = {**policy, "budget": BUDGET, "server": {"adds_noise": True, "methods": ["dp-fedavg"]}}
    other = memory(tmp_path, **own)
    other.sites[12] = policy_of(tmp_path, 2, **{**own, "budget": {**BUDGET, "epsilon": 1.0}})
    with pytest.raises(Unsupported, match="different noise"):
        run_federation(federation(**changes), other, out=tmp_path / "other")
