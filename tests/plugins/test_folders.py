"""A run folder from elsewhere names code: nothing is imported, until a person says so."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

import udpfl
from tests.plugins.strangers import Stranger, invoke, settings
from tests.small import blobs, linear
from udpfl import plugins
from udpfl.accounting.serial import event_from_dict
from udpfl.algorithms import FedAvg
from udpfl.analysis.between_runs import connect
from udpfl.audit.run import audit_run
from udpfl.comparison._jobs import Job
from udpfl.config import load


@pytest.fixture
def finished(tmp_path) -> Path:
    """A whole run folder that has nothing handed over in Python."""
    config = {**settings(tmp_path / "run"), "model": {"name": "logistic"}}
    config["data"] |= {"name": "tests.plugins.test_folders:load_blobs"}
    return udpfl.run(config).folder


def load_blobs(*, seed, directory, test, options):
    return blobs()


def rename(folder: Path, stranger: Stranger) -> None:
    """Have participants.json name the stranger's class."""
    people = json.loads((folder / "participants.json").read_text())
    for person in people:
        person["release"] = stranger.event(event_from_dict(person["release"]))
    (folder / "participants.json").write_text(json.dumps(people))


def test_participants_import_nothing_on_resume(stranger, begun):
    rename(begun, stranger)
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    with pytest.raises(udpfl.Unsupported) as refused:
        udpfl.run(resume=begun, model=linear(), data=blobs())
    assert stranger.named_in(refused.value)
    assert not stranger.was_imported
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before
    plugins.trust(stranger.noise)
    with pytest.raises(udpfl.InvalidInput, match=r"participants\.json is not the file"):
        udpfl.run(resume=begun, model=linear(), data=blobs())
    assert stranger.was_imported


def test_participants_import_nothing_in_a_report_or_an_audit(stranger, finished):
    rename(finished, stranger)
    assert invoke("report", finished).exit_code == 1  # it was edited, and has a page all the same
    assert f"{stranger.noise} (std " in (finished / "report.html").read_text()
    refused = invoke("audit", "run", finished, "--canaries", 0, "--trials", 1000)
    assert isinstance(refused.exception, udpfl.Unsupported)
    assert stranger.named_in(refused.exception)
    assert not stranger.was_imported
    assert invoke("report", finished, "--trust", stranger.noise).exit_code == 1
    audited = invoke("audit", "run", finished, "--canaries", 0, "--trials", 1000, "--json",
                     "--trust", stranger.noise)  # fmt: skip
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)


NAMES = {
    "model.name": ('name = "logistic"', 'name = "{}"', "build"),
    "data.name": ('name = "tests.plugins.test_folders:load_blobs"', 'name = "{}"', "load"),
    "training.algorithm": ('algorithm = "fedavg"', 'algorithm = "{}"', "Method"),
    "training.stages": ("stages = []", 'stages = ["{}"]', "Cap"),
    "privacy.mechanism": ('mechanism = "gaussian"', 'mechanism = "{}"', "Noise"),
}


@pytest.mark.parametrize("key", NAMES)
def test_the_configuration_in_a_run_folder_imports_nothing(elsewhere, finished, key):
    stranger, (old, new, name) = elsewhere, NAMES[key]
    place = f"{stranger.module}:{name}"
    text = (finished / "config.toml").read_text()
    assert text.count(old) == 1
    (finished / "config.toml").write_text(text.replace(old, new.format(place)))
    uses = (
        lambda: udpfl.run(resume=finished),
        lambda: audit_run(finished, canaries=0, trials=1000),
        lambda: connect(finished, finished),
    )
    before = list(sys.path)
    for use in uses:
        with pytest.raises(udpfl.Unsupported) as refused:
            use()
        assert f"{key} = '{place}'" in str(refused.value)
        assert f"--trust {place}" in str(refused.value)
    assert sys.path == before
    assert not stranger.was_imported
    plugins.trust(place)
    with pytest.raises(udpfl.InvalidInput, match=r"config\.toml is not the file"):
        udpfl.run(resume=finished)


def test_a_mechanism_that_is_imported_already_may_be_in_a_stored_configuration(stranger):
    plugins.require_trusted("mechanisms", "gaussian")
    with pytest.raises(udpfl.Unsupported):
        plugins.require_trusted("mechanisms", stranger.noise)
    __import__(stranger.module)
    plugins.require_trusted("mechanisms", stranger.noise)
    with pytest.raises(udpfl.Unsupported):  # the file would choose its arguments
        plugins.require_trusted("models", f"{stranger.module}:build")
    del sys.modules[stranger.module]
    with pytest.raises(udpfl.Unsupported):  # the class is there, and its module would be run again
        plugins.require_trusted("mechanisms", stranger.noise)


def test_a_comparison_goes_on_with_what_its_own_configuration_names(stranger, tmp_path):
    """In a process of its own, a job has nothing but its configuration."""
    config = settings(tmp_path / "run")
    config["data"] |= {"name": f"{__name__}:load_blobs"}
    config |= {"model": {"name": "logistic"}}
    folder = udpfl.run(config).folder
    (folder / "summary.json").unlink()
    text = (folder / "config.toml").read_text()
    own = text.replace('"fedavg"', f'"{stranger.module}:Method"')
    (folder / "config.toml").write_text(own)
    assert stranger.module in (failed := Job(folder, load(config)).train(lambda share: None))
    assert "--trust" in failed
    assert not stranger.was_imported
    failed = Job(folder, load(folder / "config.toml")).train(lambda share: None)
    assert "config.toml is not the file that the run began with" in failed
    assert stranger.was_imported


class Interrupted(FedAvg):
    """Someone presses Ctrl-C in the first round."""

    def aggregate(self, *arguments):
        signal.raise_signal(signal.SIGINT)
        return super().aggregate(*arguments)


def test_an_interrupted_run_says_what_has_to_be_trusted_to_go_on(tmp_path):
    (tmp_path / "mine.toml").write_text(
        f'model.name = "logistic"\ndata.name = "{__name__}:load_blobs"\ndata.clients = 2\n'
        f'training = {{ algorithm = "{__name__}:Interrupted", rounds = 2 }}\n'
        'privacy = "none"\n'
    )
    stopped = invoke("run", tmp_path / "mine.toml", "--out", tmp_path / "run")
    again = f"--resume {tmp_path / 'run'} --trust {__name__}:load_blobs --trust {__name__}:Interr"
    assert again in " ".join(stopped.output.split())
