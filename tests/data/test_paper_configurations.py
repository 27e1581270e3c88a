"""The settings that the paper prints, as configurations: they say them, plan and start."""

from __future__ import annotations

import json

import pytest

from tests.data.samples import real
from tests.repository import ROOT
from udpfl.accounting.accountant import as_scalar
from udpfl.accounting.events import PoissonSampled, Repeated, leaves
from udpfl.accounting.serial import event_to_json
from udpfl.cli import main
from udpfl.config import load

torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from udpfl.audit._costs import bounds  # noqa: E402
from udpfl.audit._events import read  # noqa: E402
from udpfl.federation._calibration import plan_releases  # noqa: E402
from udpfl.federation.builders import build_algorithm  # noqa: E402
from udpfl.federation.selection import draw_schedule  # noqa: E402
from udpfl.models import build  # noqa: E402

PRINTED = {
    # clip; records of a client; shape of a record; outputs; folder of the data
    "mnist": (1.0, 6_000, (1, 28, 28), 10, "mnist"),
    "medical-mnist": (0.1, 4_700, (1, 28, 28), 6, "medical_mnist"),
    "cifar10": (0.01, 5_000, (3, 32, 32), 10, "cifar10"),
    "utkface": (0.01, 1_900, (3, 32, 32), 5, "utkface"),
    "wind": (10.0, 760, (7, 72), 48, "gefcom2012_wind"),
}


def printed(name):
    return ROOT / "configs" / f"paper-{name}.toml"


def test_there_is_one_for_every_data_set():
    found = {path.stem.removeprefix("paper-") for path in (ROOT / "configs").glob("paper-*.toml")}
    assert found == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_it_says_what_is_printed(name):
    config = load(printed(name))
    training, privacy = config.training, config.privacy
    assert config.data.clients == 10
    assert (training.learning_rate, training.sampling_rate) == (0.01, 0.05)
    assert (training.rounds, training.local_epochs) == (150, 2)
    assert (privacy.clip, privacy.mechanism) == (PRINTED[name][0], "staircase")
    assert privacy.accounting == "scalar"  # its own, which is no guarantee
    assert training.algorithm == ("scaffold" if name == "wind" else "fedavg")
    assert "# Not printed: " in printed(name).read_text()


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("sample_per", ["epoch", "round"])
def test_it_can_be_planned(name, sample_per):
    """By Algorithm 1, with a sample for every epoch, and by the text, with one for a round."""
    config = load(printed(name), overrides=[f"training.sample_per={sample_per}"])
    clip, size, shape, outputs, _ = PRINTED[name]
    network = build(config.model.name, shape, outputs, seed=0, **config.model.options)
    dimension = sum(p.numel() for p in network.parameters())
    plans = plan_releases(
        config, [size] * 10, draw_schedule(config), dimension, build_algorithm(config)
    )
    own = plans[0]
    twice = Repeated(own.release, 2)
    expected = (own.release, 300) if sample_per == "epoch" else (twice, 150)
    assert leaves(own.rest_event()) == {PoissonSampled(0.05, expected[0]): expected[1]}
    if sample_per == "epoch":  # the published noise of 300 samples
        assert own.release.mechanism.noise_std / clip == pytest.approx(0.830, abs=0.001)
    # By a second computation: Rényi bounds promise 8, of which at least so much is there.
    ((leaf, count),) = leaves(as_scalar(own.rest_event())).items()
    seen = {one: count * times for one, times in read(event_to_json(leaf)).items()}
    assert 6.5 < bounds(seen, 1e-5)[0] <= 8


def started(name, out, capsys, *changes):
    folder = real(PRINTED[name][4])
    settings = ["training.rounds=1", "training.evaluate_every=1", "threads=1", *changes]
    arguments = [part for setting in settings for part in ("--set", setting)]
    with pytest.raises(SystemExit) as stop:
        main(["run", str(printed(name)), "--json", "--data-dir", str(folder), "--out", str(out),
              *arguments])  # fmt: skip
    shown, noted = capsys.readouterr()
    assert not stop.value.code, noted
    return json.loads(shown)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_it_starts_on_the_real_files(name, tmp_path, capsys):
    few = ["training.sampling_rate=0.001"] if name in ("cifar10", "utkface") else []
    found = started(name, tmp_path / "run", capsys, "training.sample_per=round", *few)
    assert found["privacy"]["kind"] == "nominal"
    assert found["privacy"]["epsilon"] <= 8
