"""A trained model is what the run trained: on tables, arrays, in every kind of table."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import udpfl
from tests.trained.conftest import people, write
from udpfl import InvalidInput


def by_hand(folder, frame):
    """Outputs of the stored weights on rows that are scaled here, by formulas of the test."""
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    (matrix,), (bias,) = (
        [own for own in weights.values() if own.ndim == 2],
        [own for own in weights.values() if own.ndim == 1],
    )
    inputs = np.stack(
        [
            frame["sex"] == "f",
            frame["sex"] == "m",
            frame["age"] / 50 - 1,
            frame["dose"] / 2 - 1,
        ],
        axis=1,
    ).astype(np.float32)
    return inputs @ matrix.T + bias


def digests(folder):
    """Of all files but the two that SQLite leaves beside a ledger that was read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert all(path.stat().st_size == 0 for path in files if path.name.endswith("-wal"))
    files = [path for path in files if not path.name.endswith(("-wal", "-shm"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_predictions_are_those_of_the_weights(table_run, tmp_path):
    before = digests(table_run)
    trained = udpfl.load(table_run)
    new = people(40, seed=5)
    scores = by_hand(table_run, new)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    shuffled = new[["dose", "ill", "age", "sex"]]  # columns in another order, the label with them
    path = write(new.drop(columns="ill"), tmp_path / "new.csv")
    for data in (new, shuffled, new.to_dict("list"), new.to_dict("records"), path):
        found = trained.predict(data)
        assert np.abs(found.outputs - scores).max() < 1e-6
        assert np.abs(found.probabilities - shares).max() < 1e-6
        assert found.labels.tolist() == [("yes", "no")[own.argmax()] for own in scores]
    inputs = torch.from_numpy(trained.preprocessing.table.encode(trained.read(new)).inputs).float()
    with torch.no_grad():
        assert np.abs(trained.model(inputs).numpy() - scores).max() < 1e-6
    assert np.abs(trained.predict(inputs).outputs - scores).max() < 1e-6
    assert trained.privacy.kind == "guarantee"
    assert digests(table_run) == before


def test_evaluation_is_that_of_the_run(table_run, tmp_path):
    import json

    trained = udpfl.load(table_run)
    said = json.loads((table_run / "evaluation.json").read_text())
    assert trained.evaluate().to_dict() == said | {"loss": pytest.approx(said["loss"])}
    new = people(50, seed=7)
    truth = new["ill"].to_numpy()
    found = trained.evaluate(new)
    labels = np.array(["yes", "no"])[by_hand(table_run, new).argmax(1)]
    assert found.accuracy == pytest.approx((labels == truth).mean())
    assert found.confusion[0][1] == ((truth == "yes") & (labels == "no")).sum()


def test_rows_with_missing_cells_have_no_prediction(table_run):
    new = people(4, seed=1)
    new.loc[1, "age"] = None
    found = udpfl.load(table_run).predict(new, keep=["dose"])
    assert found.used.tolist() == [True, False, True, True]
    columns = found.columns()
    assert list(columns) == ["dose", "prediction", "yes", "no"]
    assert columns["prediction"][1] is None
    assert columns["yes"][1] is None
    lines = found.as_csv(";", ",").splitlines()
    assert lines[0] == "dose;prediction;yes;no"
    assert lines[2].endswith(";;;")
    assert "," in lines[1].split(";")[2]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (np.zeros((3, 7)), "the model takes 4 inputs, got 7: give a table with the columns sex"),
        ({"age": [1.0], "sex": ["f"]}, "data: there is no column 'dose'"),
        ({"age": ["x"], "sex": ["f"], "dose": [1]}, "column age: 'x' is not a number$"),
        ({"age": [1], "sex": ["q"], "dose": [1]}, "column sex: 'q' is not one of 'f', 'm'$"),
    ],
)
def test_records_that_do_not_fit(table_run, data, match):
    with pytest.raises(InvalidInput, match=match):
        udpfl.load(table_run).predict(data)


def test_regression_in_the_units_of_its_columns(tmp_path):
    rng = np.random.default_rng(0)
    size = rng.uniform(0, 10, 200)
    frame = {"size": size, "price": 1000 + 300 * size, "tax": 5 * size}
    udpfl.run(
        {
            "out": str(tmp_path / "run"), "privacy": "none", "threads": 1,
            "data": {"clients": 1, "task": "regression", "options": {
                "target": ["price", "tax"],
                "scale": {"size": [0, 10], "price": [1000, 4000], "tax": "none"}}},
            "training": {"rounds": 200, "sampling_rate": 1.0, "learning_rate": 0.05},
        },
        data=frame, model="logistic",
    )  # fmt: skip
    trained = udpfl.load(tmp_path / "run")
    found = trained.predict({"size": [2.0, 8.0]})
    assert found.values[:, 0] == pytest.approx([1600, 3400], abs=60)
    assert list(found.columns()) == ["price", "tax"]
    with pytest.raises(InvalidInput, match="values, not probabilities"):
        _ = found.probabilities
    evaluated = trained.evaluate(frame)
    predicted = trained.predict(frame).values
    mae, rmse = trained.errors(evaluated)["price"]
    gap = predicted[:, 0] - frame["price"]
    assert mae == pytest.approx(np.abs(gap).mean(), rel=1e-3)
    assert rmse == pytest.approx(np.sqrt(np.square(gap).mean()), rel=1e-3)


def test_a_model_given_in_python(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    inputs = np.eye(4, dtype=np.float32).reshape(4, 2, 2).repeat(5, 0)
    done = udpfl.run(
        {"out": str(tmp_path / "run"), "privacy": "none", "training": {"rounds": 2}},
        data=[(inputs, np.arange(20) % 2)], model=net,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="was given in Python: pass it"):
        udpfl.load(done.folder)
    trained = udpfl.load(done.folder, model=nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    wanted = done.model(torch.from_numpy(inputs)).detach().numpy()
    assert np.abs(trained.predict(inputs).outputs - wanted).max() < 1e-6
    assert trained.predict(inputs).labels.tolist() == [str(own) for own in wanted.argmax(1)]
    with pytest.raises(InvalidInput, match="do not fit the network"):
        udpfl.load(done.folder, model=nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(InvalidInput, match="was not trained on a table"):
        trained.predict({"a": [1.0]})


def test_the_model_is_in_evaluation_mode(table_run):
    assert not udpfl.load(table_run).model.training


def test_folders_without_a_model(tmp_path, table_run):
    import shutil

    with pytest.raises(InvalidInput, match="is not a run folder"):
        udpfl.load(tmp_path)
    for missing, why in (
        ("summary.json", "did not finish"),
        ("model.safetensors", "did not finish"),
        ("preprocessing.json", "older version"),
    ):
        copy = tmp_path / missing
        shutil.copytree(table_run, copy)
        (copy / missing).unlink()
        with pytest.raises(InvalidInput, match=why):
            udpfl.load(copy)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("preprocessing.json", b"100.0", b"120.0"),
        ("config.toml", b"seed = 0", b"seed = 1"),
        ("model.safetensors", b"guarantee", b"guaranty!"),
    ],
)
def test_an_edited_file_is_found(tmp_path, table_run, name, old, new):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(table_run, copy)
    path = copy / name
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises(InvalidInput, match=f"{name} in .* is not the file that the run wrote"):
        udpfl.load(copy)


def test_an_edited_preprocessing_is_found(tmp_path, table_run):
    import shutil

    from udpfl.report import read_run

    copy = tmp_path / "run"
    shutil.copytree(table_run, copy)
    path = copy / "preprocessing.json"
    path.write_text(path.read_text().replace("100.0", "120.0"))
    assert "preprocessing.json" in str(read_run(copy).verification)


def test_data_that_has_changed_is_not_evaluated(tmp_path):
    path = write(people(120), tmp_path / "people.csv")
    from tests.trained.conftest import OPTIONS

    settings = {"out": str(tmp_path / "run"), "threads": 1, "privacy": "none",
                "data": {"name": "table", "clients": 2, "options": {**OPTIONS, "path": path}},
                "model": {"name": "logistic"}, "training": {"rounds": 1}}  # fmt: skip
    udpfl.run(settings)
    trained = udpfl.load(tmp_path / "run")
    trained.evaluate()
    write(people(121), tmp_path / "people.csv")
    with pytest.raises(InvalidInput, match="the data has changed since this run"):
        trained.evaluate()


def test_a_file_that_is_written_otherwise(table_run, tmp_path):
    from udpfl.data.csv_files import Dialect

    new = people(5, seed=3)
    new.to_csv(tmp_path / "plain.csv", index=False)
    found = udpfl.load(table_run).predict(tmp_path / "plain.csv", dialect=Dialect(",", "."))
    assert np.abs(found.outputs - by_hand(table_run, new)).max() < 1e-6
    renamed = new.assign(dtype=1.0)  # a column that arrays have as well
    assert np.abs(udpfl.load(table_run).predict(renamed).outputs - found.outputs).max() < 1e-6


def test_code_that_only_the_folder_names_is_not_imported(tmp_path, table_run):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(table_run, copy)
    config = copy / "config.toml"
    config.write_text(config.read_text().replace('name = "logistic"', 'name = "antigravity:net"'))
    with pytest.raises(udpfl.Unsupported, match="antigravity"):
        udpfl.load(copy)
