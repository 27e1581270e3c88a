"""A file from elsewhere names code: nothing is imported, until a person says so."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import udpfl
from tests.plugins.strangers import STEP, invoke
from tests.small import Seen, blobs, linear
from udpfl import plugins
from udpfl.accounting.serial import event_from_dict, event_from_json, event_to_dict, event_to_json
from udpfl.algorithms.message import tensors_to_bytes
from udpfl.federation import ReleasePlan
from udpfl.ledger.charges import Charge
from udpfl.runs.schema import ClientRow


def ledger_of(path: Path) -> Path:
    with udpfl.Ledger(path) as ledger:
        ledger.set_budget(ledger.account("alice", "f" * 32), udpfl.Budget(50.0, 1e-5))
    return path


# Events


def test_events_in_a_file_import_nothing_until_the_command_says_so(stranger, tmp_path):
    ledger = ledger_of(tmp_path / "ledger.sqlite")
    (tmp_path / "events.json").write_text(json.dumps([stranger.event()]))
    arguments = ["budget", "import", ledger, "alice", "--events", tmp_path / "events.json"]
    refused = invoke(*arguments)
    assert isinstance(refused.exception, udpfl.Unsupported)
    assert stranger.named_in(refused.exception)
    assert not stranger.was_imported
    with udpfl.Ledger(ledger) as opened:
        assert list(opened.history()) == []
    assert invoke(*arguments, "--trust", stranger.noise).exit_code == 0
    assert stranger.was_imported
    with udpfl.Ledger(ledger) as opened:
        assert [json.loads(entry.event_json) for entry in opened.history()] == [stranger.event()]


@pytest.mark.parametrize("read", [event_from_dict, lambda data: event_from_json(json.dumps(data))])
def test_an_event_imports_nothing(stranger, read):
    with pytest.raises(udpfl.Unsupported) as refused:
        read(stranger.event())
    assert stranger.named_in(refused.value)
    assert not stranger.was_imported
    assert plugins.trust(stranger.noise)(1.0) == read(stranger.event()).mechanism


def test_a_class_of_a_module_that_is_imported_already_is_known(stranger):
    own = __import__(stranger.module)
    assert event_from_dict(stranger.event()).mechanism == own.Noise(1.0)


def test_a_class_inside_a_class_is_found_by_its_full_name(stranger):
    own = __import__(stranger.module)
    own.Noise.__qualname__, own.Outer = "Outer.Noise", type("Outer", (), {"Noise": own.Noise})
    data = event_to_dict(udpfl.Release(own.Noise(1.0), STEP.sensitivity))
    assert data["mechanism"]["class"] == f"{stranger.module}:Outer.Noise"
    assert event_from_dict(data).mechanism == own.Noise(1.0)


def test_of_two_classes_with_one_name_the_later_one_is_meant(stranger):
    first = __import__(stranger.module).Noise
    del sys.modules[stranger.module]
    second = __import__(stranger.module).Noise
    assert first is not second
    assert type(event_from_dict(stranger.event()).mechanism) is second
    with pytest.raises(udpfl.Unsupported, match="cannot be stored"):
        event_to_dict(udpfl.Release(first(1.0), STEP.sensitivity))


def test_looking_a_class_up_runs_no_code_of_its_module(stranger):
    """A module may compute its attributes, and one that loads lazily does so when touched."""
    spec = importlib.util.find_spec(stranger.module)
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[stranger.module] = module
    loader.exec_module(module)
    with pytest.raises(udpfl.Unsupported):
        event_from_dict(stranger.event())
    with pytest.raises(udpfl.Unsupported):
        plugins.require_trusted("mechanisms", stranger.noise)
    assert not stranger.marker.exists()

    sys.modules[stranger.module] = computed = type(sys)(stranger.module)
    asked = []
    computed.__getattr__ = asked.append
    for use in (
        lambda: event_from_dict(stranger.event()),
        lambda: plugins.require_trusted("mechanisms", stranger.noise),
    ):
        with pytest.raises(udpfl.Unsupported):
            use()
    assert asked == []


@pytest.mark.parametrize("path", ["json:loads", "nowhere", "a b:C", "x:y; rm -rf .", "", ":", 3])
def test_a_path_that_is_no_mechanism_is_refused_as_what_it_is(path):
    data = event_to_dict(STEP)
    data["mechanism"] = {"class": path, "parameters": {"std": 1.0}, "digest": "0"}
    with pytest.raises(udpfl.UdpflError) as refused:
        event_from_dict(data)
    assert repr(path) in str(refused.value)
    # What has to be copied into a command is a name and nothing else.
    assert ("--trust" in str(refused.value)) == (path == "json:loads")


# Ledgers


def test_a_row_of_a_ledger_imports_nothing(stranger, tmp_path):
    ledger = ledger_of(tmp_path / "ledger.sqlite")
    (tmp_path / "events.json").write_text(json.dumps(stranger.event()))
    code = (
        "import sys, udpfl\n"
        "from pathlib import Path\n"
        "from udpfl.accounting.imported import read_events\n"
        f"udpfl.plugins.trust({stranger.noise!r})\n"
        "with udpfl.Ledger(sys.argv[1]) as ledger:\n"
        "    event = read_events(Path('events.json'))\n"
        "    ledger.import_charge(ledger.accounts()[0].id, event, source='events')\n"
    )
    places = [str(Path(udpfl.__file__).parents[1]), str(tmp_path)]
    subprocess.run(
        [sys.executable, "-c", code, ledger],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)}, check=True,
    )  # fmt: skip
    stranger.marker.unlink()

    (row,) = json.loads(invoke("budget", "show", ledger, "--json").stdout)
    assert row["statement"]["kind"] == "none"
    assert stranger.named_in(row["statement"]["notes"])
    assert stranger.named_in(invoke("budget", "history", ledger).stdout)
    checked = invoke("budget", "verify", ledger)
    assert checked.exit_code == 1
    assert stranger.named_in(checked.stdout)
    with udpfl.Ledger(ledger) as opened, pytest.raises(udpfl.Unsupported) as refused:
        opened.would_exceed(opened.accounts()[0].id, STEP)
    assert stranger.named_in(refused.value)
    assert not stranger.was_imported

    trusted = ("--trust", stranger.noise)
    (row,) = json.loads(invoke("budget", "show", ledger, "--json", *trusted).stdout)
    assert row["statement"]["kind"] == "guarantee"
    assert 0 < row["left"] < 1
    assert "strange" in invoke("budget", "history", ledger, *trusted).stdout.lower()
    assert invoke("budget", "verify", ledger, *trusted).exit_code == 0


# Messages


def message_from(client: str, round_: int, event: dict) -> bytes:
    """A message as another machine may have written it."""
    header = {
        "client": client,
        "round": round_,
        "events": [event],
        "metadata": {"declared_size": 20},
    }
    return tensors_to_bytes({"update": torch.ones(10)}, header)


def test_a_message_carries_its_events_as_text(stranger):
    data = message_from("a", 1, stranger.event())
    read = udpfl.ClientMessage.from_bytes(data)
    assert not stranger.was_imported
    assert read.events == (json.dumps(stranger.event(), sort_keys=True),)
    assert read.to_bytes() == data
    assert read.copy().events == read.events


def test_a_stored_message_is_sent_again_whatever_its_events_name(stranger, begun):
    """Round 2 was answered before the crash: the server gets these bytes, and builds nothing."""
    run = json.loads((begun / "run.json").read_text())["id"]
    people = [ReleasePlan.from_row(ClientRow.from_dict(row))
              for row in json.loads((begun / "participants.json").read_text())]  # fmt: skip
    text = json.dumps(stranger.event(), sort_keys=True)
    with udpfl.Ledger(begun / "ledger.sqlite") as ledger:
        for person in people:
            (account,) = ledger.find(person.name)
            message = message_from(person.name, 2, stranger.event())
            ledger.commit([Charge(account.id, run, 2, (person.round_event(1),), message)], 0)
    seen = Seen()
    result = udpfl.run(resume=begun, model=linear(), data=blobs(), observers=[seen])
    assert [message.events for message in seen.messages if message.round == 2] == [(text,)] * 2
    assert not stranger.was_imported
    with result.ledger as ledger:  # nothing was charged again
        assert [(e.client, e.round, e.event) for e in ledger.history()] == [
            (person.name, round_, person.event().event) for round_ in (1, 2) for person in people
        ]


def test_the_client_charges_the_events_that_its_message_states(begun):
    seen = Seen()
    udpfl.run(resume=begun, model=linear(), data=blobs(), observers=[seen])
    people = {row["name"]: ReleasePlan.from_row(ClientRow.from_dict(row))
              for row in json.loads((begun / "participants.json").read_text())}  # fmt: skip
    assert len(seen.messages) == 2
    for message in seen.messages:
        assert message.events == (event_to_json(people[message.client].round_event(1)),)


# The current folder


def test_the_current_folder_is_looked_in_only_for_a_module_that_lies_there(elsewhere, tmp_path):
    before = list(sys.path)
    assert plugins.trust("json:loads") is json.loads
    with pytest.raises(udpfl.InvalidInput, match="no_such_module"):
        plugins.trust("no_such_module:Noise")
    assert sys.path == before
    assert plugins.trust(elsewhere.noise)(1.0).std == 1.0
    assert sys.path == [str(tmp_path), *before]


def test_what_is_trusted_has_to_be_there(elsewhere):
    refused = invoke("budget", "show", "ledger.sqlite", "--trust", f"{elsewhere.module}:Nosie")
    assert isinstance(refused.exception, udpfl.InvalidInput)
    assert refused.exception.parameter == "trust"
    assert f"did you mean {elsewhere.noise}?" in refused.exception.message


# The installed command, in processes of their own


@pytest.mark.slow
def test_noise_beside_the_configuration_with_the_installed_command(elsewhere, tmp_path):
    marker, place = elsewhere.marker, elsewhere.noise
    (tmp_path / "mine.toml").write_text(
        'model.name = "logistic"\n'
        "[data]\nname = 'mnist5k'\nclients = 4\n"
        f"[privacy]\nmechanism = {place!r}\naccountant = 'rdp'\n"
        "[training]\nrounds = 2\nlocal_steps = 1\n"
    )
    source = str(Path(udpfl.__file__).parents[1])

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        marker.unlink(missing_ok=True)
        return subprocess.run(
            [Path(sys.executable).with_name("udpfl"), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": source, "COLUMNS": "200"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = command("run", "mine.toml", "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    privacy = json.loads(done.stdout)["privacy"]
    assert privacy["kind"] == "guarantee"
    (tmp_path / "run/summary.json").unlink()
    (tmp_path / "run/checkpoints/round-000002.safetensors").unlink()
    resume, audit = ("run", "--resume", "run", "--json"), ("audit", "run", "run", "--canaries", 0,
                                                           "--trials", 1000, "--json")  # fmt: skip
    for arguments in (resume, audit):
        refused = command(*arguments)
        assert refused.returncode == 2
        assert f"--trust {place}" in refused.stderr
        assert not marker.exists()
    resumed = command(*resume, "--trust", place)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["privacy"] == privacy
    assert command(*audit, "--trust", place).returncode == 0

    for row in json.loads(command("budget", "show", "run", "--json").stdout):
        assert f"--trust {place}" in row["statement"]["notes"][0]
    assert not marker.exists()
    for row in json.loads(command("budget", "show", "run", "--json", "--trust", place).stdout):
        assert row["statement"]["epsilon"] == pytest.approx(privacy["epsilon"])
    unchecked = command("report", "run")
    assert unchecked.returncode == 0
    assert "run is not verified: " in unchecked.stderr
    assert not marker.exists()
    assert command("report", "run", "--trust", place).returncode == 0
    assert marker.exists()
