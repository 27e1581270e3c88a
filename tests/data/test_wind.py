"""GEFCom2012 wind power: records against the CSV files read another way, model, configurations."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import DATA, refused
from tests.repository import ROOT
from udpfl.data import load, partition
from udpfl.data.wind import CHANNELS, FARMS, RECORDS_PER_HOUR

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from udpfl.cli import main  # noqa: E402
from udpfl.engine import LaneModel  # noqa: E402
from udpfl.models import build  # noqa: E402

HOUR = timedelta(hours=1)
START = datetime(2009, 7, 1)
LENGTH, FIRST_PERIOD = 24 * 16, 24 * 10
"""Sixteen days; from the tenth on, 48 hours to forecast and 36 known ones take turns."""


# --- a small set with the layout of the real one --------------------------------------------------


def evaluated(number: int) -> bool:
    """Whether hour `number` since the start lies in an evaluation period: two of them."""
    return 0 < number - FIRST_PERIOD <= 48 or 84 < number - FIRST_PERIOD <= 132


def power(number: int, farm: int) -> float:
    """The hour and the farm can be read off the value."""
    return round((number * 7 + farm) / 10_000, 4)


def wind(issue: int, ahead: int, farm: int) -> list[str]:
    """u, v, ws and wd that say who they belong to."""
    return [f"{issue / 100:.2f}", f"{ahead / 10:.1f}", f"{farm}", f"{(issue + ahead) % 360}"]


def written(number: int) -> str:
    return f"{START + number * HOUR:%Y%m%d%H}"


@pytest.fixture
def files(tmp_path):
    """The CSV files of the small set, as lists of rows that a test may change before `save`."""
    farms = range(1, 8)
    tables = {"train": [["date", *FARMS]], "test": [["id", "date", *FARMS]]}
    tables["benchmark"] = [["id", "date", *FARMS]]
    for number in range(LENGTH):
        values = [f"{power(number, farm)}" for farm in farms]
        if evaluated(number):
            row = [str(len(tables["test"])), written(number)]
            tables["test"].append([*row, *values])
            tables["benchmark"].append([*row, *["0.1"] * 7])
        else:
            tables["train"].append([written(number), *values])
    for farm in farms:
        rows = [["date", "hors", "u", "v", "ws", "wd"]]
        for issue in range(0, LENGTH, 12):
            for ahead in range(1, 49):
                # As in the competition: a forecast issued within a period shows nothing of it.
                hidden = evaluated(issue) and evaluated(issue + ahead) and ahead < 48
                values = ["NA"] * 4 if hidden else wind(issue, ahead, farm)
                rows.append([written(issue), str(ahead), *values])
        tables[f"windforecasts_wf{farm}"] = rows
    return tables


def save(tables, folder: Path, *, compressed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in tables.items():
        text = "".join(",".join(row) + "\n" for row in rows)
        if compressed:
            (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
        else:
            (folder / f"{name}.csv").write_text(text)
    return folder


def wind_data(directory, **options):
    return load("gefcom2012-wind", directory=directory, options=options)


def hours_of(records) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The hours of past power and target, and the farm, told from the values of the small set."""
    past = np.rint(records.inputs[:, 6, :24].astype(float) * 10_000).astype(int)
    target = np.rint(records.targets.astype(float) * 10_000).astype(int)
    farm = np.rint(records.inputs[:, 2, 24] * 10).astype(int)
    assert ((past - farm[:, None]) % 7 == 0).all(), "power of another farm"
    assert ((target - farm[:, None]) % 7 == 0).all(), "power of another farm"
    return (past - farm[:, None]) // 7, (target - farm[:, None]) // 7, farm


def test_every_number_of_a_record_is_what_it_should_be(files, tmp_path):
    data = wind_data(save(files, tmp_path / "gefcom2012_wind").parent)
    assert (data.task, data.classes, data.outputs, data.input_shape) == (
        "regression",
        None,
        48,
        (7, 72),
    )
    for records in (data.train, data.test):
        past, target, farm = hours_of(records)
        issue = past[:, -1]
        assert (past == issue[:, None] + np.arange(-23, 1)).all()
        assert (target == issue[:, None] + np.arange(1, 49)).all()
        ahead = np.arange(1, 49)
        degrees = np.radians((issue[:, None] + ahead) % 360)
        expected = {
            "u": np.repeat(issue[:, None] / 1000, 48, 1),
            "v": np.tile(ahead / 100, (len(issue), 1)),
            "ws": np.repeat(farm[:, None] / 10, 48, 1),
            "sin wd": np.sin(degrees),
            "cos wd": np.cos(degrees),
            "ahead": np.tile(ahead / 48, (len(issue), 1)),
        }
        for channel, values in expected.items():
            found = records.inputs[:, CHANNELS.index(channel)]
            assert np.allclose(found[:, 24:], values, atol=1e-6), channel
            assert not found[:, :24].any(), channel
        assert not records.inputs[:, CHANNELS.index("power"), 24:].any(), "future power is an input"


def test_no_hour_of_an_evaluation_period_is_in_a_training_record(files, tmp_path):
    data = wind_data(save(files, tmp_path))
    past, target, farm = hours_of(data.train)
    assert not any(map(evaluated, np.unique(np.concatenate([past, target], 1))))
    found = Counter(zip(farm.tolist(), past[:, -1].tolist(), strict=True))
    expected = {
        (f, t)
        for f in range(1, 8)
        for t in range(0, LENGTH, 12)
        if all(0 <= h < LENGTH and not evaluated(h) for h in range(t - 23, t + 49))
    }
    assert found == Counter(expected)
    past, target, farm = hours_of(data.test)
    assert not any(map(evaluated, np.unique(past)))
    assert all(map(evaluated, np.unique(target)))
    assert past[:, -1].tolist() == [FIRST_PERIOD, FIRST_PERIOD + 84] * 7
    assert farm.tolist() == np.repeat(range(1, 8), 2).tolist()


def test_forecasts_that_lack_an_hour_are_left_out(files, tmp_path):
    before = wind_data(save(files, tmp_path))
    row = next(r for r in files["windforecasts_wf3"] if r[:2] == [written(48), "17"])
    row[5] = "NA"
    after = wind_data(save(files, tmp_path))
    gone = Counter(before.columns["farm"]) - Counter(after.columns["farm"])
    assert gone == Counter({"wp3": 1})
    assert "2009-07-03T00" not in after.columns["issue"][after.columns["farm"] == "wp3"]


def test_plain_gzipped_and_shuffled_files_are_alike(files, tmp_path):
    plain = wind_data(save(files, tmp_path / "plain"))
    rows = files["windforecasts_wf5"]
    rows[1:] = [rows[i] for i in 1 + np.random.default_rng(0).permutation(len(rows) - 1)]
    packed = wind_data(save(files, tmp_path / "packed", compressed=True))
    assert np.array_equal(plain.train.inputs, packed.train.inputs)
    assert np.array_equal(plain.test.targets, packed.test.targets)


def test_the_reference_is_the_error_of_the_benchmark(files, tmp_path):
    (figures,) = wind_data(save(files, tmp_path)).references.values()
    gaps = [power(n, f) - 0.1 for n in range(LENGTH) if evaluated(n) for f in range(1, 8)]
    assert figures["mae"] == pytest.approx(sum(map(abs, gaps)) / len(gaps))
    assert figures["mse"] == pytest.approx(sum(gap * gap for gap in gaps) / len(gaps))
    assert figures["rmse"] == pytest.approx(math.sqrt(figures["mse"]))


@pytest.mark.parametrize("periods", [1, 2])
def test_no_hour_is_in_two_periods(files, tmp_path, periods):
    data = wind_data(save(files, tmp_path), periods=periods)
    past, target, _ = hours_of(data.train)
    held = {}
    for name in np.unique(data.columns["period"]):
        own = data.columns["period"] == name
        held[str(name)] = set(np.concatenate([past[own], target[own]], 1).ravel().tolist())
    assert list(held) == [f"period-{number + 1}" for number in range(periods)]
    assert len(set.union(*held.values())) == sum(map(len, held.values()))
    spans = [(min(own), max(own)) for own in held.values()]
    assert spans == sorted(spans)


@pytest.mark.parametrize("periods", [0, True, 2.5, "ten", 10_000])
def test_bad_periods_are_refused(files, tmp_path, periods):
    with refused("whole number in 1..", "data.options.periods"):
        wind_data(save(files, tmp_path), periods=periods)


def test_periods_without_records_are_refused(files, tmp_path):
    with refused("12 periods are so short", "data.options.periods"):
        wind_data(save(files, tmp_path), periods=12)


def _without_columns(tables):
    tables["test"] = [row[:2] for row in tables["test"]]


def _empty_values(tables):
    tables["test"] = [tables["test"][0], *([*row[:2], *["NA"] * 7] for row in tables["test"][1:])]


def _leak(tables):
    tables["train"].append([tables["test"][-1][1], *["0.5"] * 7])
    tables["train"][1:] = sorted(tables["train"][1:])


def _no_forecast(tables):
    for row in tables["windforecasts_wf6"]:
        if row[0] == written(FIRST_PERIOD):
            row[2] = "NA"


def _no_past(tables):
    tables["train"] = [row for row in tables["train"] if row[0] != written(FIRST_PERIOD - 3)]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda t: t.pop("test"), "no file test.csv .*without the measured power"),
        (lambda t: t.pop("windforecasts_wf4"), "no file windforecasts_wf4.csv or"),
        (_without_columns, "test.csv has no column wp1; .*without the measured power"),
        (_empty_values, "test.csv has a missing value of power; .*without the measured power"),
        (_leak, "hour 2009-07-16T12 is in train.csv and in test.csv"),
        (lambda t: t["benchmark"].pop(), "must list the same hours"),
        (lambda t: (t["benchmark"].pop(), t["test"].pop()), "periods of 48 hours"),
        (_no_forecast, "wp6 has 1 of 2 evaluation periods"),
        (_no_past, "wp1 has 1 of 2 evaluation periods"),
        (lambda t: t["windforecasts_wf2"].pop(), "hors 1..48 once for every date"),
        (lambda t: t["windforecasts_wf2"].append(t["windforecasts_wf2"][-1]), "hors 1..48 once"),
        (lambda t: t["train"].append(t["train"][-1]), "every hour once, in order"),
        (lambda t: t["train"][5].__setitem__(0, "2009023100"), "train.csv: .*YYYYMMDDHH"),
        (lambda t: t["train"][5].__setitem__(0, "NA"), "train.csv: .*YYYYMMDDHH"),
        (lambda t: t["train"][5].__setitem__(3, "much"), "train.csv: .*much"),
        (lambda t: t["train"][5].pop(), "train.csv: "),
        (lambda t: t.__setitem__("train", t["train"][:1]), "a header, but no rows"),
    ],
)
def test_files_that_cannot_be_right_are_refused(files, tmp_path, spoil, match):
    spoil(files)
    with refused(match):
        wind_data(save(files, tmp_path))


def test_a_damaged_archive_no_folder_and_unknown_options_are_refused(files, tmp_path):
    save(files, tmp_path, compressed=True)
    path = tmp_path / "train.csv.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with refused("cannot read .*train.csv.gz"):
        wind_data(tmp_path)
    with refused("--data-dir or UDPFL_DATA_DIR"):
        wind_data(None)
    with refused("did you mean periods", "data.options.period"):
        wind_data(tmp_path, period=3)


def test_the_budget_that_the_configuration_names_protects_an_hour():
    text = (ROOT / "configs" / "wind.toml").read_text()
    epsilon, delta = re.search(r"set epsilon = (\S+) and delta = (\S+)\.\n", text).groups()
    epsilon, delta, group = float(epsilon), float(delta), range(RECORDS_PER_HOUR)
    # One record after another: each step multiplies by e^ε what the steps before it left.
    assert epsilon * len(group) <= 8
    assert sum(delta * math.exp(step * epsilon) for step in group) <= 1e-5


# --- the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "outputs", "options", "count"),
    [
        ((7, 72), 48, {}, (7 * 5 + 1) * 16 + 2 * (16 * 5 + 1) * 16 + 17),
        ((7, 72), 48, {"width": 8}, (7 * 5 + 1) * 8 + 2 * (8 * 5 + 1) * 8 + 9),
        ((1, 5), 5, {"activation": "relu"}, 6 * 16 + 2 * 81 * 16 + 17),
    ],
)
def test_the_network_has_the_size_it_says(shape, outputs, options, count):
    model = build("wind-cnn", shape, outputs, seed=0, **options)
    assert sum(p.numel() for p in model.parameters()) == count
    batch = torch.randn(3, *shape)
    assert model(batch).shape == (3, outputs)
    alone = torch.cat([model(record[None]) for record in batch])
    assert torch.allclose(model(batch), alone, atol=1e-6)


def test_the_module_states_the_size_on_wind():
    assert sum(p.numel() for p in build("wind-cnn", (7, 72), 48, seed=0).parameters()) == 3185


def test_an_answer_sees_fourteen_steps_to_either_side():
    model = build("wind-cnn", (2, 72), 48, seed=0)
    timeline = torch.randn(1, 2, 72, requires_grad=True)
    for answer in (0, 20, 47):
        (gradient,) = torch.autograd.grad(model(timeline)[0, answer], timeline)
        seen = gradient[0].abs().sum(0).nonzero().flatten().tolist()
        assert seen == list(range(24 + answer - 14, min(72, 24 + answer + 15)))


@pytest.mark.parametrize(
    ("shape", "options", "parameter", "match"),
    [
        ((1, 28, 28), {}, "model.name", r"channels × steps, got .*\(1, 28, 28\)"),
        ((7, 47), {}, "model.name", "last 48 steps of a timeline, got 47"),
        ((7, 72), {"width": 0}, "model.options.width", "from 1, got 0"),
        ((7, 72), {"width": True}, "model.options.width", "from 1, got True"),
        ((7, 72), {"activation": "sine"}, "model.options.activation", "'sine'"),
    ],
)
def test_what_the_network_cannot_do_is_refused(shape, options, parameter, match):
    with refused(match, parameter):
        build("wind-cnn", shape, 48, seed=0, **options)


def test_the_engine_clips_it_without_writing_gradients_out(caplog):
    lanes = LaneModel(
        build("wind-cnn", (7, 72), 48, seed=0), lambda out, y: (out - y).square().mean(1)
    )
    lanes.check(lanes.initial(), torch.randn(3, 7, 72), torch.rand(3, 48))
    assert not caplog.records


# --- the real files ------------------------------------------------------------------------------

FOLDER = Path(DATA or "/nowhere") / "gefcom2012_wind"
needs_data = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="UDPFL_DATA_DIR has no folder gefcom2012_wind"
)


def rows_of(name: str) -> list[dict[str, str]]:
    plain, packed = FOLDER / f"{name}.csv", FOLDER / f"{name}.csv.gz"
    with plain.open() if plain.is_file() else gzip.open(packed, "rt") as file:
        return list(csv.DictReader(file))


def time_of(text: str) -> datetime:
    return datetime.strptime(text, "%Y%m%d%H")


@pytest.fixture(scope="module")
def real():
    return wind_data(FOLDER)


@needs_data
def test_counts_and_leakage_against_a_plain_reading_of_the_files(real):
    known = {time_of(row["date"]) for row in rows_of("train")}
    periods = [time_of(row["date"]) for row in rows_of("benchmark")[::48]]
    missing, issued = set(), set()
    for row in rows_of("windforecasts_wf1"):
        issued.add(row["date"])
        if "NA" in row.values():
            missing.add(row["date"])
    span = [hours * HOUR for hours in range(-23, 49)]
    usable = [
        issue
        for issue in map(time_of, issued - missing)
        if all(issue + hours in known for hours in span)
    ]
    assert len(usable) == 1093
    assert len(periods) == 156
    assert len(real.train) == 7 * 1093
    assert len(real.test) == 7 * 156
    for farm in FARMS:
        own = real.columns["issue"][real.columns["farm"] == farm]
        assert sorted(map(datetime.fromisoformat, own)) == sorted(usable)
    # One hour is in up to so many records of a farm: that is what group privacy multiplies by.
    uses = Counter(issue + hours for issue in usable for hours in span)
    assert max(uses.values()) == RECORDS_PER_HOUR == 6
    # No hour of an evaluation period is used in training.
    tested = {start + hours * HOUR for start in periods for hours in range(48)}
    assert not tested & uses.keys()


@needs_data
def test_test_records_and_references_are_the_published_ones(real):
    benchmark, measured = rows_of("benchmark"), rows_of("test")
    before = {time_of(row["date"]): row for row in rows_of("train")}
    expected = (0.302, 0.338, 0.373, 0.365, 0.388, 0.342, 0.362)
    targets = real.test.targets.reshape(7, 156 * 48)
    pasts = real.test.inputs[:, 6, :24].reshape(7, 156, 24)
    for farm, name in enumerate(FARMS):
        persistence = np.array([float(row[name]) for row in benchmark])
        gaps = persistence - targets[farm]
        assert math.sqrt(np.square(gaps).mean()) == pytest.approx(expected[farm], abs=5e-4)
        assert targets[farm] == pytest.approx([float(row[name]) for row in measured])
        for period in (0, 77, 155):
            first = time_of(measured[48 * period]["date"])
            past = [float(before[first - hours * HOUR][name]) for hours in range(24, 0, -1)]
            assert pasts[farm, period] == pytest.approx(past)
    assert real.references.keys() == {"persistence (benchmark.csv)"}
    figures = real.references["persistence (benchmark.csv)"]
    assert figures["rmse"] == pytest.approx(0.354, abs=5e-4)
    assert figures["mse"] == pytest.approx(figures["rmse"] ** 2)


@needs_data
def test_ten_clients_in_time_share_no_hour():
    data = wind_data(FOLDER, periods=10)
    rng = np.random.default_rng(0)
    parts = partition(
        "column", 10, rng, targets=data.train.targets, columns=data.columns, by="period"
    )
    assert sum(map(len, parts)) == len(data.train) == 7336
    spans = []
    for part in parts:
        issues = [datetime.fromisoformat(text) for text in data.columns["issue"][part]]
        spans.append((min(issues) - 23 * HOUR, max(issues) + 48 * HOUR))
    assert all(spans[i][1] < spans[i + 1][0] for i in range(9))


@needs_data
@pytest.mark.parametrize("name", ["wind", "wind-not-private"])
def test_the_configurations_run(tmp_path, capsys, name):
    settings = ["training.rounds=2", "training.evaluate_every=1", "device=cpu"]
    changes = [part for setting in settings for part in ("--set", setting)]
    config, out = ROOT / "configs" / f"{name}.toml", tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        main(["run", str(config), "--json", "--data-dir", DATA, "--out", str(out), *changes])
    printed, warned = capsys.readouterr()
    assert stop.value.code in (0, None), warned
    assert "sizes" not in warned  # the declared ones are public: nothing to warn of
    found = json.loads(printed)
    assert found["accuracy"] is None
    assert found["mse"] == pytest.approx(found["loss"], rel=1e-5)
    assert 0 < found["mae"] < 1
    people = json.loads((tmp_path / "run" / "participants.json").read_text())
    assert [person["name"] for person in people] == list(FARMS)
    if name == "wind":
        assert found["privacy"]["kind"] == "guarantee"
        assert found["privacy"]["epsilon"] <= 8
    else:
        assert found["privacy"]["kind"] == "none"
