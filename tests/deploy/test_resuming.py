"""`udpfl deploy resume`: what is refused before Flower is called, and what its ending means."""

from __future__ import annotations

import pytest

from tests.deploy.memory import federation, memory
from tests.deploy.one_process import in_one_process
from udpfl import InvalidInput, UdpflError
from udpfl.cli import app as cli
from udpfl.deploy import resuming, run_federation
from udpfl.deploy.starting import write_app

pytestmark = pytest.mark.usefixtures("one_thread")
LINKS = """
[superlink]
default = "local"

[superlink.local]
address = ":local:"

[superlink.mine]
address = "127.0.0.1:8000"
insecure = true
"""
PRINTED = 'echo "Successfully started run 42"\necho "INFO : round 3 of 4"\n'


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """A configuration of Flower, and a `flwr` that notes what it is asked for."""
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(LINKS)
    monkeypatch.setenv("FLWR_HOME", str(home))
    script, asked = tmp_path / "flwr", tmp_path / "asked"

    def make(state="finished:completed", code=0):
        runs = '{"success": true, "runs": [{"status": "' + state + '"}]}'
        script.write_text(
            f'#!/bin/sh\necho "$*" >> {asked}\n'
            f"if [ $1 = list ]; then echo '{runs}'; exit 0; fi\n{PRINTED}exit {code}\n"
        )
        script.chmod(0o755)
        monkeypatch.setattr(resuming, "command", lambda name: str(script))
        return asked

    return make


@pytest.fixture
def app(tmp_path):
    return write_app(tmp_path / "app", sizes=[60] * 3)


def resumed(run, app, *words):
    return cli.call(["deploy", "resume", str(run), "--app", str(app), *words])


def test_a_run_goes_on_at_the_superlink_that_is_named(tmp_path, flower, app, capfd):
    asked = flower()
    run_federation(federation(training={"rounds": 1}), memory(tmp_path), out=tmp_path / "run")
    assert resumed(tmp_path / "run", app.folder, "--superlink", "mine") == 0
    first, second = asked.read_text().splitlines()
    assert first == f"run {app.folder} mine --stream -c resume='{tmp_path / 'run'}'"
    assert second == "list mine --run-id 42 --format json"
    assert "round 3 of 4" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("finished:failed", 0, "not been completed (finished:failed): `flwr log 42 mine`"),
        ("finished:completed", 3, "exit code 3"),
    ],
)
def test_a_run_of_flower_that_fails_is_an_error(tmp_path, flower, app, state, code, said):
    flower(state, code)
    with pytest.raises(UdpflError) as error:
        resuming.resume_run(tmp_path / "elsewhere", app.folder, "mine", print)
    assert said in str(error.value)


def test_a_run_that_is_no_deployment_is_refused_before_flower_is_called(
    tmp_path, flower, app, capfd
):
    asked = flower()
    in_one_process(tmp_path / "own", training={"rounds": 1})
    (tmp_path / "empty").mkdir()
    capfd.readouterr()
    for name in ("own", "empty"):
        assert resumed(tmp_path / name, app.folder, "--superlink", "mine") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("udpfl: error: RUN: ")
    assert not asked.exists()


def test_a_folder_that_is_no_app_is_refused(tmp_path, flower, capfd):
    asked = flower()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    for folder in (tmp_path, tmp_path / "other"):
        assert resumed("runs/elsewhere", folder, "--superlink", "mine") == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert "is not the folder of a Flower app" in line
        assert "--app" in line
    assert not asked.exists()


def test_a_simulation_is_no_place_to_go_on_with_a_deployed_run(
    tmp_path, flower, app, capfd, monkeypatch
):
    asked = flower()
    assert resumed("runs/elsewhere", app.folder) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "'local' is Flower's simulation" in line
    assert "--superlink, one of mine" in line
    assert resumed("runs/elsewhere", app.folder, "--superlink", "nobody") == 2
    assert "no connection 'nobody'" in capfd.readouterr().err
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "nothing"))
    with pytest.raises(InvalidInput, match="simulation"):
        resuming.require_link(None, has_policies=False)
    resuming.require_link(None, has_policies=True)
    assert not asked.exists()
