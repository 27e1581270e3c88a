"""Trackers: what was measured is found again in TensorBoard and MLflow, and nothing stops a run."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import warnings

import numpy as np
import pytest
import torch

import udpfl
from udpfl import Budget, PureDP
from udpfl.cli import main
from udpfl.errors import InvalidInput, MissingExtra
from udpfl.ledger.charges import Charge
from udpfl.runs.files import read_identity
from udpfl.trackers import MLflow, TensorBoard, tracker
from udpfl.trackers.base import figures
from udpfl.trackers.mlflow import is_local

# The trackers' own dependencies warn about each other.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "UDPFL_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def points():
    labels = np.arange(60) % 2
    noise = np.random.default_rng(0).normal(size=(60, 3))
    return (noise + 2 * labels[:, None]).astype(np.float32), labels


def train(*observers, out, rounds=3, **sections):
    settings = {
        "out": str(out),
        "data": {"clients": 3},
        "model": {"name": "logistic"},
        "training": {"rounds": rounds, **sections.pop("training", {})},
    }
    return udpfl.run(settings, data=points(), observers=observers, **sections)


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def text(accumulator, tag):
    return accumulator.Tensors(tag)[-1].tensor_proto.string_val[0].decode()


def scalars(folder):
    found = events(folder)
    return {
        tag: [(point.step, point.value) for point in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


# Names


ROW = {
    "round": 4, "accuracy": 0.5, "loss": "inf", "privacy": "guarantee",
    "epsilon": {"max": 3.0, "median": 2.0, "min": "inf"}, "participants": 2,
    "simulation_only": {"clip_fraction": 0.25, "signal_to_noise": None},
}  # fmt: skip


def test_the_name_of_an_epsilon_says_what_it_is_worth():
    found = figures(ROW)
    assert found["privacy/epsilon_guarantee"] == 3.0
    assert found["privacy/epsilon_guarantee_median"] == 2.0
    assert found["privacy/epsilon_guarantee_min"] == math.inf
    assert found["simulation_only/clip_fraction"] == 0.25
    assert found["test/loss"] == math.inf
    assert "simulation_only/signal_to_noise" not in found
    assert not [name for name in found if "nominal" in name]

    spread = {"max": 9.0, "median": 9.0, "min": 9.0}
    found = figures({**ROW, "privacy": "nominal", "guaranteed_epsilon": spread})
    assert found["privacy/epsilon_nominal"] == 3.0
    assert found["privacy/epsilon_guarantee"] == 9.0

    found = figures({**ROW, "privacy": "none", "epsilon": None})
    assert not [name for name in found if "epsilon" in name]


def test_what_is_private_is_named_so_and_nothing_else_is_private():
    """Clip fraction and signal to noise come from the records; everything else is released."""
    private = {name for name in figures(ROW) if "clip" in name or "signal" in name}
    assert private == {name for name in figures(ROW) if name.startswith("simulation_only/")}


# TensorBoard


def test_tensorboard_holds_every_figure_of_the_run(tmp_path):
    run = train(TensorBoard(), out=tmp_path / "r", training={"evaluate_every": 2})
    found = scalars(tmp_path / "r" / "tensorboard")
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        for name, value in figures(row).items():
            assert (row["round"], pytest.approx(value, rel=1e-6)) in found[name], name
    assert [step for step, _ in found["test/accuracy"]] == [2, 3]
    assert [step for step, _ in found["round/participants"]] == [1, 2, 3]
    assert found["privacy/epsilon_guarantee"][-1][1] == pytest.approx(run.privacy.epsilon)
    opened = events(tmp_path / "r" / "tensorboard")
    assert text(opened, "privacy/statement/text_summary") == str(run.privacy)
    assert "clients = 3" in text(opened, "config/text_summary")


def test_tensorboard_says_nominal_where_it_is(tmp_path):
    run = train(
        TensorBoard(tmp_path / "board"),
        out=tmp_path / "r",
        privacy={"accounting": "scalar", "mechanism": "laplace"},
    )
    found = scalars(tmp_path / "board")
    assert not (tmp_path / "r" / "tensorboard").exists()
    assert found["privacy/epsilon_nominal"][-1][1] == pytest.approx(run.privacy.epsilon)
    assert found["privacy/epsilon_guarantee"][-1][1] == pytest.approx(run.privacy.vector_epsilon)
    assert "not a privacy guarantee" in text(
        events(tmp_path / "board"), "privacy/statement/text_summary"
    )


class Stops(udpfl.Observer):
    """Stands for a crash: the round is on disk, and the process gone."""

    def on_round(self, row):
        if row["round"] == 2:
            raise RuntimeError("power cut")


def crashed_and_resumed(make, out):
    """A run that dies in round 2, a whole round after its latest checkpoint."""
    with pytest.raises(RuntimeError, match="power cut"):
        train(make(), Stops(), out=out, rounds=4, training={"checkpoint_every": 4})
    return udpfl.run(resume=out, data=points(), observers=[make()])


def test_a_resumed_run_goes_on_in_the_same_board(tmp_path):
    crashed_and_resumed(TensorBoard, tmp_path / "r")
    found = scalars(tmp_path / "r" / "tensorboard")
    assert [step for step, _ in found["round/participants"]] == [1, 2, 3, 4]


# MLflow


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A database with its tables made, which takes seconds: made once, copied for each test."""
    pytest.importorskip("mlflow")
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MLflow()._mlflow.MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def client(empty_store, tmp_path):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    mlflow = MLflow()._mlflow
    return mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")


def only_run(client, experiment="udpfl"):
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len(found) == 1
    return found[0]


def history(client, run, name):
    found = client.get_metric_history(run.info.run_id, name)
    return [(point.step, point.value) for point in sorted(found, key=lambda p: p.step)]


def test_mlflow_holds_every_figure_of_the_run(tmp_path, client):
    run = train(MLflow(), out=tmp_path / "r", training={"evaluate_every": 2})
    kept = only_run(client)
    for row in run.metrics:
        for name, value in figures(row).items():
            assert (row["round"], value) in history(client, kept, name), name
    assert [step for step, _ in history(client, kept, "test/accuracy")] == [2, 3]
    assert kept.data.tags["privacy"] == str(run.privacy)
    assert kept.data.tags["privacy.kind"] == "guarantee"
    assert kept.data.params["data.clients"] == "3"
    assert kept.data.params["privacy.epsilon"] == "8.0"
    assert kept.info.run_name == "r"
    assert kept.info.status == "FINISHED"


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(tmp_path, client):
    run = crashed_and_resumed(MLflow, tmp_path / "r")
    kept = only_run(client)
    assert [step for step, _ in history(client, kept, "round/participants")] == [1, 2, 3, 4]
    accuracies = [(row["round"], row["accuracy"]) for row in run.metrics]
    assert history(client, kept, "test/accuracy") == accuracies
    assert kept.info.status == "FINISHED"


def test_mlflow_logs_where_the_environment_says(tmp_path, client, monkeypatch):
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "other.db")
    place = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    train(MLflow(experiment="mine"), out=tmp_path / "r", rounds=1)
    assert client.get_experiment_by_name("mine") is None
    assert only_run(MLflow()._mlflow.MlflowClient(place), "mine").info.status == "FINISHED"


def test_an_mlflow_server_that_is_away_costs_one_warning(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with caplog.at_level(logging.WARNING, "udpfl.trackers"):
        run = train(MLflow("http://127.0.0.1:9"), out=tmp_path / "r")
    assert len(run.metrics) == 3
    said = [record.getMessage() for record in caplog.records if "MLflow" in record.getMessage()]
    assert len(said) == 1
    assert "the training continues without it" in said[0]


def test_mlflow_is_told_not_to_report_its_usage(monkeypatch):
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    MLflow()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    MLflow()
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"


# What a record says of itself


def crashed(out, **sections):
    with pytest.raises(RuntimeError, match="power cut"):
        train(MLflow(), TensorBoard(), Stops(), out=out, **sections)


def board_says(folder):
    return text(events(folder / "tensorboard"), "privacy/statement/text_summary")


STAMPS = [
    ({}, "guarantee", "private: vector accounting, a guarantee"),
    ({"privacy": "none"}, "none", "not private: privacy is turned off"),
    (
        {"privacy": {"accounting": "scalar", "mechanism": "gaussian"}},
        "nominal",
        "nominal: scalar accounting, not a privacy guarantee",
    ),
    (
        {"privacy": {"randomness": "seeded"}},
        "none",
        "not private: noise and sampling are seeded, for tests only",
    ),
]


@pytest.mark.parametrize(("sections", "kind", "stamp"), STAMPS)
def test_a_run_that_never_ends_says_what_its_figures_are_worth(
    tmp_path, client, sections, kind, stamp
):
    crashed(tmp_path / "r", **sections)
    kept = only_run(client)
    assert kept.info.status == "RUNNING"
    assert "test/accuracy" in kept.data.metrics
    assert (kept.data.tags["privacy.kind"], kept.data.tags["privacy"]) == (kind, stamp)
    assert scalars(tmp_path / "r" / "tensorboard")["test/accuracy"]
    assert board_says(tmp_path / "r") == stamp


def test_the_stamp_is_there_before_any_figure(tmp_path, client):
    class Looks(udpfl.Observer):
        def on_start(self, config, folder):
            self.seen = only_run(client).data

    looks = Looks()
    train(MLflow(), looks, out=tmp_path / "r", rounds=1, privacy="none")
    assert looks.seen.metrics == {}
    assert looks.seen.tags["privacy.kind"] == "none"
    assert only_run(client).data.tags["privacy"] == "not private: privacy is turned off"


def test_a_resumed_record_ends_with_the_statement(tmp_path, client):
    crashed(tmp_path / "r")
    again = [MLflow(), TensorBoard()]
    run = udpfl.run(resume=tmp_path / "r", data=points(), observers=again)
    tags = only_run(client).data.tags
    assert tags["privacy.kind"] == "guarantee"
    assert tags["privacy"] == str(run.privacy) == board_says(tmp_path / "r")


def test_a_ledger_that_spoils_the_plan_is_believed_at_once(tmp_path, client):
    """Seeded noise of an earlier run on the same data: nothing can be claimed any more."""
    shared = {"ledger": str(tmp_path / "shared.sqlite")}
    train(out=tmp_path / "before", rounds=1, privacy=shared)
    with udpfl.Ledger(tmp_path / "shared.sqlite") as ledger:
        accounts = [own.id for own in ledger.accounts()]
        ledger.set_budgets(accounts, Budget(100.0, 1e-5), reason="another run")
        ledger.begin_run("s", randomness="seeded", accounting="vector", description={})
        ledger.commit([Charge(1, "s", 1, (PureDP(0.01),), b"")])
    crashed(tmp_path / "r", privacy=shared)
    assert read_identity(tmp_path / "r").privacy.kind == "guarantee"
    tags = only_run(client).data.tags
    assert tags["privacy.kind"] == "none"
    for said in (tags["privacy"], board_says(tmp_path / "r")):
        assert said.startswith("not private: by the ledger")


# Where private figures may go


@pytest.fixture
def far_away(client, monkeypatch):
    """A server that is in truth a file here: no test needs a network."""
    mlflow = MLflow()._mlflow
    asked = []

    def resolved(tracking_uri):
        asked.append(tracking_uri)
        return client

    monkeypatch.setattr(mlflow, "MlflowClient", resolved)
    return asked


def private_figures(client):
    return {name for name in only_run(client).data.metrics if name.startswith("simulation_only/")}


PRIVATE = {"simulation_only/clip_fraction", "simulation_only/signal_to_noise"}
SERVERS = ("https://tracking.example:5000", "http://127.0.0.1:5000", "databricks")


@pytest.mark.parametrize("uri", SERVERS)
def test_a_server_gets_no_private_figure(tmp_path, client, far_away, monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    train(MLflow(), out=tmp_path / "r", rounds=2, training={"evaluate_every": 2})
    assert far_away == [uri]
    assert private_figures(client) == set()
    assert [step for step, _ in history(client, only_run(client), "test/accuracy")] == [2]


def test_a_server_gets_private_figures_where_asked(tmp_path, client, far_away):
    train(MLflow(SERVERS[0], simulation_only=True), out=tmp_path / "r", rounds=1)
    assert far_away == [SERVERS[0]]
    assert private_figures(client) == PRIVATE


def test_private_figures_stay_in_local_stores(tmp_path, client):
    tracks = [MLflow(), TensorBoard()]
    train(*tracks, out=tmp_path / "r", rounds=1)
    assert private_figures(client) == PRIVATE
    assert scalars(tmp_path / "r" / "tensorboard").keys() >= PRIVATE


@pytest.mark.parametrize(
    ("uri", "local"),
    [
        ("sqlite:///mlflow.db", True),
        ("sqlite:////var/lib/mlflow.db", True),
        ("file:/var/lib/mlruns", True),
        ("file:///var/lib/mlruns", True),
        ("./mlruns", True),
        ("/var/lib/mlruns", True),
        ("http://localhost:5000", False),
        ("HTTPS://tracking.example", False),
        ("databricks", False),
        ("databricks://team", False),
        ("databricks-uc", False),
        ("uc", False),
        ("uc:http://localhost:8080", False),
        ("postgresql://user@host/mlflow", False),
        ("mysql+pymysql://host/mlflow", False),
        ("file://host/share", False),
        ("//host/share", False),
        (r"\\host\share", False),
        ("plugin://anywhere", False),
    ],
)
def test_what_a_local_store_is(uri, local):
    assert is_local(uri) is local


# Never in the way


class Breaks(TensorBoard):
    """A disk that fills up in the second round."""

    def _write(self, round_, values):
        if round_ == 2:
            raise OSError(28, "No space left on device")
        super()._write(round_, values)


def test_a_tracker_that_fails_says_so_once_and_training_goes_on(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "udpfl.trackers"):
        run = train(Breaks(), out=tmp_path / "r", rounds=4)
    assert len(run.metrics) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "TensorBoard failed ([Errno 28] No space left on device); the training continues without it"
    ]
    found = scalars(tmp_path / "r" / "tensorboard")
    assert [step for step, _ in found["round/participants"]] == [1]


def test_a_board_that_cannot_be_written_costs_one_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "udpfl.trackers"):
        assert len(train(TensorBoard(tmp_path / "file"), out=tmp_path / "r").metrics) == 3
    assert len(caplog.records) == 1


def test_interrupts_are_not_swallowed(tmp_path):
    class Impatient(TensorBoard):
        def _write(self, round_, values):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Impatient(), out=tmp_path / "r")


def test_observers_without_a_beginning_or_an_end_still_work(tmp_path):
    class Plain:
        rounds = 0

        def on_message(self, message):
            pass

        def on_model(self, round_, model):
            pass

        def on_round(self, row):
            self.rounds += 1

    plain = Plain()
    train(plain, out=tmp_path / "r")
    assert plain.rounds == 3


@pytest.mark.parametrize(("name", "kind"), [("tensorboard", TensorBoard), ("mlflow", MLflow)])
def test_a_missing_package_is_named_before_any_training(name, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"{name} is not installed: .*'\.\[track\]'"):
        kind()


def test_there_are_two_trackers():
    assert isinstance(tracker("tensorboard"), TensorBoard)
    assert isinstance(tracker("mlflow"), MLflow)
    with pytest.raises(InvalidInput, match="tensorboard, mlflow, got 'wandb'"):
        tracker("wandb")


def test_the_command_tracks(tmp_path, capsys, client):
    arguments = ["run", "--out", "r", "--json", "--track", "tensorboard", "--track", "mlflow"]
    settings = {"training.rounds": 1, "training.sampling_rate": 0.01, "model.name": "logistic"}
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value}"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert not stop.value.code, err
    assert err == ""
    accuracy = json.loads(out)["accuracy"]
    assert scalars(tmp_path / "r" / "tensorboard")["test/accuracy"] == [
        (1, pytest.approx(accuracy, rel=1e-6))
    ]
    assert history(client, only_run(client), "test/accuracy") == [(1, accuracy)]


def test_the_command_knows_its_trackers(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["run", "--track", "wandb"])
    assert stop.value.code == 2
    assert "--track: must be one of tensorboard, mlflow" in capsys.readouterr().err
