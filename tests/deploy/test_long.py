"""Long checks with real processes: run them with `make test-slow`."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import udpfl
from tests.deploy.one_process import weights
from tests.deploy.processes import local, needs_flower, small_app
from tests.deploy.soak import EVERY, KILLS, soak
from tests.repository import IMPORTS
from udpfl.cli.app import app as cli
from udpfl.deploy.local import LocalFederation, command
from udpfl.deploy.starting import part_sizes, write_app

pytestmark = [needs_flower, pytest.mark.slow]
_ = local  # the fixture
ROUNDS = 3
SEED = 'seeded_noise = true\nmethods = ["fedavg", "fedprox", "scaffold"]\n'


@pytest.mark.parametrize(("algorithm", "steps"), [("fedavg", 1), ("scaffold", 2), ("fedprox", 2)])
def test_the_model_of_the_demo_is_that_of_one_process(tmp_path, local, algorithm, steps):
    """The embedded default over three rounds, with noise of a seed: Flower changes nothing."""
    sizes = part_sizes(4000, 3)
    app = write_app(tmp_path / "app", sizes=sizes, rounds=ROUNDS, per_round=steps)
    training = {"algorithm": algorithm, "rounds": ROUNDS, "local_steps": steps}
    if algorithm == "fedprox":
        training["learning_rate"] = 0.5
    lines = [f"{key} = {json.dumps(value)}" for key, value in training.items()]
    text = app.federation.read_text()
    head, _, rest = text.partition("[training]\n")
    rest = rest.partition("[deploy]")[2]
    privacy = '[privacy]\nrandomness = "seeded"\n\n'
    app.federation.write_text(
        head + "[training]\n" + "\n".join(lines) + "\n\n" + privacy + "[deploy]" + rest
    )
    for site in app.sites:
        own = app.policy(site).read_text()
        before, _, _ = own.partition("methods = ")
        after = own.partition("minimum_cohort")[2]
        app.policy(site).write_text(before + SEED + "minimum_cohort" + after)
    federation = local(app)
    federation.start()
    federation.submit(out=str(tmp_path / "run")).wait(400)
    found = weights(udpfl.load(tmp_path / "run").model)
    for lanes, most in (("single", 1e-6), ("stacked", 1e-5)):
        expected = udpfl.run(
            {"data": {"clients": 3}, "privacy": {"randomness": "seeded"}},
            training={**training, "lanes": lanes},
            out=str(tmp_path / lanes),
        )
        assert (found - weights(expected.model)).abs().max() <= most


def test_the_demo_reaches_what_one_process_reaches(tmp_path):
    """Noise from the operating system: the accuracy lies within the spread of such runs."""
    done = CliRunner().invoke(
        cli, ["deploy", "demo", "--rounds", "30", "--dir", str(tmp_path / "demo"), "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rounds"] == 30
    for own in found["sites"].values():
        assert own["problems"] == []
        assert own["charges"] == 30
        assert own["privacy"]["epsilon"] <= 8
    others = [
        udpfl.run(
            {"data": {"clients": 3}, "training": {"rounds": 30}}, out=str(tmp_path / f"run-{n}")
        ).accuracy
        for n in range(5)
    ]
    middle, spread = sum(others) / 5, max(others) - min(others)
    assert abs(found["accuracy"] - middle) <= max(0.03, 2 * spread)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_the_app_runs_in_flowers_simulation(tmp_path, monkeypatch):
    app = small_app(tmp_path / "app")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONPATH": IMPORTS,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    words = [
        command("flwr"), "run", ".", "local", "--stream",
        "--federation-config", "num-supernodes=3",
        "-c", f"site-policies='{app.folder / 'sites'}' out='{tmp_path / 'run'}'",
    ]  # fmt: skip
    try:
        subprocess.run(words, cwd=app.folder, env=environment, timeout=240, check=False)
    finally:  # it leaves a SuperLink behind
        found = subprocess.run(
            ["pgrep", "-f", "flower-superlink --insecure --simulation"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        for number in found.stdout.split():
            os.kill(int(number), signal.SIGTERM)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert torch.isfinite(weights(udpfl.load(tmp_path / "run").model)).all()


def test_a_soak_of_a_hundred_faults(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = soak(tmp_path, 104, 3600)
    assert sum(found.done.values()) >= 100
    assert sum(found.done[name] for name in KILLS) >= 10
    assert set(found.done) == set(EVERY)
    assert isinstance(found.own, LocalFederation)


def test_a_reply_of_two_gigabytes_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = soak(tmp_path, 2, 1200, names=("2 GB",))
    assert found.done["2 GB"] == 2
