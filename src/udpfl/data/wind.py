"""GEFCom2012 wind power: the next 48 hours of seven farms, from the weather forecast and the past.

One record is one farm and one issue time t. Its input is a timeline [7, 72] of the 24 hours up to
t and the 48 hours after it; the channels (`CHANNELS`) are zero where they say nothing:

    hours t-23 .. t      power of the farm, in [0, 1]
    hours t+1 .. t+48    forecast u, v and ws in units of 10 m/s, sine and cosine of wd, and the
                         hours ahead / 48

The target is the power in the 48 hours after t. All scales are public constants.

Train: every issue whose 72 hours lie in train.csv and whose forecast is complete. Test: the
evaluation periods of benchmark.csv, each from the forecast issued in the last hour before it.

Forecasts are issued every 12 hours, so the records of a farm overlap: one hour of power is in up to
`RECORDS_PER_HOUR` of them, in four as target and in two as past. A guarantee for one record says
much less about one hour: (ε, δ) for one is (kε, δ (e^kε - 1) / (e^ε - 1)) for k.

Option `periods`: cut the training issues into so many stretches of time, as equal as can be, which
become the column "period". Records that reach over a cut are left out, so that no hour is in two.

References: Hong, Pinson, Fan, "Global Energy Forecasting Competition 2012", International Journal
of Forecasting 30 (2014).
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from udpfl.data.formats import File, Format, Source, described_by, sha256
from udpfl.data.options import known
from udpfl.data.records import Array, DataSet, Indices, Records
from udpfl.errors import InvalidInput

NAME = "gefcom2012-wind"
FARMS = tuple(f"wp{number}" for number in range(1, 8))
CHANNELS = ("u", "v", "ws", "sin wd", "cos wd", "ahead", "power")
RECORDS_PER_HOUR = 6
_PAST, _AHEAD = np.arange(-23, 1), np.arange(1, 49)
_WIND = 10.0  # metres per second

# Sums computed from the compact files. A plain CSV file has none: line ends differ between copies.
_FILES = (
    ("train", "74d11d1c115c0e8e5e716ec69a47f289caa1ee22ba6c0e328bfff4db32fe9262"),
    ("test", "3c74010d0e0a87c82686ddbbbec50b535ea54cf96b995fd5a8ff2bddfc2a117a"),
    ("benchmark", "55231bb4a9a51edc624e7c1df09eadeb37982ca755069bb2a005405677c0faa3"),
    ("windforecasts_wf1", "554959b14189220eded1352f29a5f3318aa49e3c79f3f5675ef07bb8454d5f59"),
    ("windforecasts_wf2", "cb88f90e8dd442f92aee62644d5eeb91adae3899a2458b489741ee174f2c78be"),
    ("windforecasts_wf3", "af6178293489805087ba4226ed5ae3b5964ff36d8f246800902a4b83586cd94b"),
    ("windforecasts_wf4", "3fb51ecc930ceac652f7e6a2ec5a85bd05aebdf1b52d98bbbf2d46ccee22423d"),
    ("windforecasts_wf5", "75b92335695936e12a56ec2c93e3feabf7a5e194cc05128e98c32e35661964a9"),
    ("windforecasts_wf6", "e5cfbbbdea3277199b96b082321170b205dcabae53a341d15704c24b27eda304"),
    ("windforecasts_wf7", "113263d9ba66efb69c617ab0e6570ee655fbc77b99e528d8dfdab42dea5bf0d7"),
)
SOURCE = Source(
    name="gefcom2012-wind",
    title="GEFCom2012, wind power of seven farms",
    samples="hourly 2009-07 to 2012-06, 156 test periods of 48 h",
    licence="none known; published by the organisers for research",
    homepage="www.kaggle.com/c/GEF2012-wind-forecasting",
    citation=(
        "T. Hong, P. Pinson, S. Fan, Global Energy Forecasting Competition 2012, International "
        "Journal of Forecasting 30 (2014)"
    ),
    folder="gefcom2012_wind",
    formats=(
        Format(
            "CSV",
            tuple((sha256(f"{name}.csv.gz", sum_), File(f"{name}.csv")) for name, sum_ in _FILES),
        ),
    ),
    by_hand=(
        "Download GEFCom2012.zip, the appendix of the competition's paper "
        "(doi.org/10.1016/j.ijforecast.2013.07.001), from the publisher or from the link on "
        "blog.drhongtao.com; Kaggle has the same files but no solution, after you sign in and "
        "accept the rules: https://www.kaggle.com/c/GEF2012-wind-forecasting/data.",
        "Put train.csv, benchmark.csv and windforecasts_wf1.csv to windforecasts_wf7.csv from its "
        "folder Wind into {folder}.",
        "test.csv has to hold the measured power of the evaluation periods, in the columns id, "
        "date, wp1 to wp7. The competition's own test.csv has no values; take the rows of "
        "windpowermeasurements.csv whose usage is not Training.",
    ),
    options=("periods",),
)


@described_by(SOURCE)
def load(*, seed: int, directory: Path | None, test: float, options: Mapping[str, Any]) -> DataSet:
    """The files in `directory`, or in a folder gefcom2012_wind inside it, plain or gzipped.

    The split is the competition's: `seed` and `test` are not used.
    """
    known(NAME, options, SOURCE.options)
    if directory is None:
        raise InvalidInput(
            "data.dir",
            f"{NAME} is read from files: give their folder with --data-dir or UDPFL_DATA_DIR",
        )
    folder = Path(directory)
    measured, evaluated, persistence = (
        _power(folder, name) for name in ("train", "test", "benchmark")
    )
    evaluations = _evaluations(measured, evaluated, persistence)
    training, testing = [], []
    for farm, name in enumerate(FARMS):
        forecasts = _forecasts(folder, f"windforecasts_wf{farm + 1}")
        training.append(_windows(forecasts, measured, measured, farm))
        testing.append(_windows(forecasts, measured, evaluated, farm))
        if not np.array_equal(testing[-1].issues, evaluations):
            raise InvalidInput(
                "data.dir",
                f"{name} has {len(testing[-1].issues)} of {len(evaluations)} evaluation periods "
                "with a complete forecast and the 24 hours of power before them",
            )
    farms = np.repeat(FARMS, [len(part.issues) for part in training])
    train, tested = _joined(training), _joined(testing)
    columns = {"farm": farms, "issue": _dates(train.issues)}
    kept = np.arange(len(farms))
    if "periods" in options:
        kept, columns["period"] = _periods(train.issues, options["periods"])
    return DataSet(
        name=NAME,
        task="regression",
        train=Records(train.inputs, train.targets).subset(kept),
        test=Records(tested.inputs, tested.targets),
        classes=None,
        columns={name: column[kept] for name, column in columns.items()},
        references={"persistence (benchmark.csv)": _errors(persistence.power - evaluated.power)},
    )


@dataclass(frozen=True, eq=False)
class _Power:
    """Hours since 1970 in rising order, and the power of every farm in them."""

    hours: Indices
    power: Array  # [hours, farms]

    def at(self, hours: Indices, farm: int) -> Array:
        """The power of one farm, NaN where an hour is not listed."""
        place = np.searchsorted(self.hours, hours).clip(max=len(self.hours) - 1)
        power: Array = np.where(self.hours[place] == hours, self.power[place, farm], np.nan)
        return power


@dataclass(frozen=True, eq=False)
class _Windows:
    """Issue times, with the timeline around each and the power after it."""

    issues: Indices
    inputs: Array
    targets: Array


def _windows(forecasts: tuple[Indices, Array], past: _Power, future: _Power, farm: int) -> _Windows:
    """The issues of one farm that lack nothing: forecast, past power and power to come."""
    issues, wind = forecasts
    u, v, ws, wd = np.moveaxis(wind, 2, 0)
    direction = np.deg2rad(wd)
    channels = (u / _WIND, v / _WIND, ws / _WIND, np.sin(direction), np.cos(direction))
    inputs = np.zeros((len(issues), len(CHANNELS), len(_PAST) + len(_AHEAD)))
    inputs[:, :5, len(_PAST) :] = np.stack(channels, axis=1)
    inputs[:, 5, len(_PAST) :] = _AHEAD / len(_AHEAD)
    inputs[:, 6, : len(_PAST)] = past.at(issues[:, None] + _PAST, farm)
    targets = future.at(issues[:, None] + _AHEAD, farm)
    whole = np.isfinite(inputs).all((1, 2)) & np.isfinite(targets).all(1)
    return _Windows(issues[whole], inputs[whole], targets[whole])


def _joined(parts: Sequence[_Windows]) -> _Windows:
    return _Windows(
        np.concatenate([part.issues for part in parts]),
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.targets for part in parts]),
    )


def _evaluations(measured: _Power, evaluated: _Power, persistence: _Power) -> Indices:
    """The last hour before each evaluation period."""
    hours = evaluated.hours
    if not np.array_equal(hours, persistence.hours):
        raise InvalidInput("data.dir", "test.csv and benchmark.csv must list the same hours")
    if len(shared := np.intersect1d(hours, measured.hours)):
        raise InvalidInput(
            "data.dir",
            f"hour {_dates(shared)[0]} is in train.csv and in test.csv, but may be in only one of "
            f"them",
        )
    first = hours[~np.isin(hours - 1, hours)]
    if not np.array_equal(hours, (first[:, None] + _AHEAD - 1).ravel()):
        raise InvalidInput("data.dir", "test.csv must consist of separate periods of 48 hours")
    issues: Indices = first - 1
    return issues


def _periods(issues: Indices, periods: Any) -> tuple[Indices, Array]:
    """Positions of the records within one period, and every record's period by name."""
    times = np.unique(issues)
    if isinstance(periods, bool) or not isinstance(periods, int) or not 1 <= periods <= len(times):
        raise InvalidInput(
            "data.options.periods",
            f"must be a whole number in 1..{len(times)}, one per time of issue, got {periods!r}",
        )
    begins = np.array([part[0] for part in np.array_split(times, periods)])
    period = np.searchsorted(begins, issues, "right")
    # What is kept of a period starts with the past of its first issue, and ends before the next.
    ends = np.append(begins[1:] + _PAST[0], np.iinfo(np.int64).max)
    kept = np.flatnonzero(issues + _AHEAD[-1] < ends[period - 1])
    if len(np.unique(period[kept])) < periods:
        raise InvalidInput(
            "data.options.periods", f"{periods} periods are so short that some have no record"
        )
    width = len(str(periods))
    return kept, np.array([f"period-{number:0{width}d}" for number in period])


def _errors(gaps: Array) -> dict[str, float]:
    mse = float(np.square(gaps).mean())
    return {"mae": float(np.abs(gaps).mean()), "mse": mse, "rmse": mse**0.5}


# --- files ---------------------------------------------------------------------------------------


def _power(folder: Path, name: str) -> _Power:
    path = _find(folder, name)
    table = _read(path, ("date", *FARMS))
    hours, power = _hours(path, table[:, 0]), table[:, 1:]
    if not np.isfinite(power).all():
        raise InvalidInput("data.dir", f"{path} has a missing value of power{_hint(name)}")
    if (np.diff(hours) <= 0).any():
        raise InvalidInput("data.dir", f"{path} must list every hour once, in order of time")
    return _Power(hours, power)


def _forecasts(folder: Path, name: str) -> tuple[Indices, Array]:
    """Times of issue, and [issues, 48, 4] of u, v, ws and wd with NaN where they are missing."""
    path = _find(folder, name)
    table = _read(path, ("date", "hors", "u", "v", "ws", "wd"))
    hours, ahead = _hours(path, table[:, 0]), table[:, 1]
    order = np.lexsort((ahead, hours))
    issues = np.unique(hours)
    if not (
        np.array_equal(hours[order], np.repeat(issues, len(_AHEAD)))
        and np.array_equal(ahead[order], np.tile(_AHEAD, len(issues)))
    ):
        raise InvalidInput("data.dir", f"{path} must have hors 1..48 once for every date")
    return issues, table[order, 2:].reshape(len(issues), len(_AHEAD), 4)


def _find(folder: Path, name: str) -> Path:
    folders = (folder, folder / "gefcom2012_wind")
    for place in folders:
        for path in (place / f"{name}.csv", place / f"{name}.csv.gz"):
            if path.is_file():
                return path
    looked = " and ".join(map(str, folders))
    raise InvalidInput(
        "data.dir", f"no file {name}.csv or {name}.csv.gz: looked in {looked}{_hint(name)}"
    )


def _hint(name: str) -> str:
    """What is likely wrong with this file."""
    if name != "test":
        return ""
    return "; the competition published it without the measured power, which is needed here"


def _read(path: Path, columns: Sequence[str]) -> Array:
    """The named columns as numbers [rows, columns], NaN for NA."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InvalidInput("data.dir", f"cannot read {path}: {error}") from None
    header, _, rows = text.partition("\n")
    names = [name.strip().strip('"') for name in header.split(",")]
    missing = [name for name in columns if name not in names]
    if missing:
        hint = _hint(path.name.split(".")[0])
        raise InvalidInput("data.dir", f"{path} has no column {missing[0]}{hint}")
    if not rows.strip():
        raise InvalidInput("data.dir", f"{path} has a header, but no rows")
    try:
        return np.loadtxt(
            io.StringIO(rows.replace("NA", "nan").replace('"', "")),
            delimiter=",",
            usecols=[names.index(name) for name in columns],
            ndmin=2,
        )
    except ValueError as error:
        raise InvalidInput("data.dir", f"{path}: {error}") from None


def _hours(path: Path, dates: Array) -> Indices:
    """Hours since 1970 from numbers YYYYMMDDHH."""
    distinct, place = np.unique(dates, return_inverse=True)
    try:
        times = [datetime.strptime(f"{date:010.0f}", "%Y%m%d%H") for date in distinct]
    except ValueError as error:
        raise InvalidInput("data.dir", f"{path}: a date is not YYYYMMDDHH: {error}") from None
    hours: Indices = np.array(times, dtype="datetime64[h]").astype(np.int64)[place]
    return hours


def _dates(hours: Indices) -> Array:
    """Hours as people write them, 2009-07-02T00."""
    return np.datetime_as_string(hours.astype("datetime64[h]"))
