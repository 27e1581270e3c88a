"""A federation of real processes: Flower's SuperLink and SuperNodes, with certificates and keys."""

from __future__ import annotations

import json
import subprocess

import pytest

import udpfl
from tests.deploy.one_process import in_one_process, seeded, weights
from tests.deploy.processes import FEDERATION, local, needs_flower, small_app
from tests.deploy.soak import soak
from tests.repository import IMPORTS
from tests.site.samples import everything_in, settings
from udpfl import Ledger
from udpfl.deploy.keys import make_keys
from udpfl.deploy.local import HOST, Process, command, free_port
from udpfl.site import Policy

pytestmark = needs_flower
_ = local  # the fixture

HOSTILE = "from tests.deploy import hostile_app\n\napp = hostile_app.app\n"
SEEDED = {"budget": {"runs": "one", "epsilon": 8.0}, "server": {"seeded_noise": True}}


def ledger_of(app, site):
    return Ledger(Policy.read(app.policy(site)).ledger, read_only=True)


def test_sites_refuse_a_hostile_server_and_answer_a_good_one(tmp_path, local):
    changes = seeded()
    federation = {**FEDERATION, **settings(**changes)}
    limits = {"releases": {"in_all": 3, "per_round": 1}}
    app = small_app(tmp_path / "app", federation=federation, **SEEDED, **limits)
    good = (app.folder / app.package / "server_app.py").read_text()
    own = local(app)
    own.start()
    # A hostile server: whatever it asks for, nothing is charged.
    (app.folder / app.package / "server_app.py").write_text(HOSTILE)
    said = tmp_path / "said.json"
    assert own.submit(out=str(said)).wait(240) == 0
    found = json.loads(said.read_text())
    assert len(found) == 20
    for reply in found:
        assert reply["refused"], reply
        assert reply["bytes"] == 0
    for site in app.sites:
        with ledger_of(app, site) as ledger:
            assert not any(everything_in(ledger).values())
    # The same processes take part in a good run, whose model is that of one process.
    (app.folder / app.package / "server_app.py").write_text(good)
    out = tmp_path / "run"
    own.submit(out=str(out)).wait(180)
    expected = in_one_process(tmp_path / "one", **changes)
    model = udpfl.load(out).model
    assert (weights(model) - weights(expected.model)).abs().max() <= 1e-6
    for site in app.sites:
        with ledger_of(app, site) as ledger:
            assert ledger.head()[0] == 3
            assert ledger.verify() == []


def printed_by_node(own, *options):
    """What a SuperNode prints that is not let in; one that goes on trying is ended."""
    arguments = [
        command("flower-supernode"), "--superlink", f"{HOST}:{own.port}", "--max-retries", "1",
        "--host", HOST, "--port", str(free_port()), "--node-config", "partition-id=0", *options,
    ]  # fmt: skip
    process = Process(arguments, own.logs / "stranger.log", own._environment, own.folder)
    process.log.unlink(missing_ok=True)
    process.start()
    try:
        assert process.wait(12) != 0
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.stop()
    assert "Activated node" not in own.processes["superlink"].text()
    assert "SuperNode ID" not in process.text()
    return process.text()


def test_who_is_not_who_it_says_is_refused(tmp_path, local):
    app = small_app(tmp_path / "app", sites=2)
    own = local(app)
    own.start_link()
    own.register(["client-0"])
    trusted = ["--root-certificates", str(own.keys.ca)]
    for key in ("client-1",):  # a key that nobody registered
        mine = ["--auth-supernode-private-key", str(own.keys.site(key))]
        assert "2004" in printed_by_node(own, *trusted, *mine)
    assert "2001" in printed_by_node(own, *trusted)  # no key at all
    assert printed_by_node(own, "--insecure")  # plain text
    other = make_keys(tmp_path / "other", ["127.0.0.1"], ["client-0"])
    mine = ["--auth-supernode-private-key", str(own.keys.site("client-0"))]
    text = printed_by_node(own, "--root-certificates", str(other.ca), *mine)
    assert "certificate" in text.lower()


@pytest.mark.parametrize(
    ("hosts", "days", "why"),
    [(["127.0.0.1"], -1.0, "expired"), (["fl.example.org"], 9.0, "not valid for")],
)
def test_a_server_that_is_not_the_right_one_is_refused(tmp_path, local, hosts, days, why):
    app = small_app(tmp_path / "app", sites=2)
    own = local(app)
    make_keys(own.keys.folder, hosts, app.sites, days)
    own.start_link()
    mine = ["--auth-supernode-private-key", str(own.keys.site("client-0"))]
    text = printed_by_node(own, "--root-certificates", str(own.keys.ca), *mine)
    assert why in text


def test_a_few_faults_in_a_row(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names = ("kill node", "kill service", "cut network", "nan", "garbage")
    found = soak(tmp_path, 5, 600, names, at_once=3)
    assert set(found.done) == set(names)
