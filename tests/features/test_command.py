"""`udpfl features`: an encoder is trained and shown, and errors name what was typed."""

from __future__ import annotations

import inspect
import json

import pytest

torch = pytest.importorskip("torch")

from tests.commands import command  # noqa: E402
from udpfl.cli import features as verbs  # noqa: E402
from udpfl.features import Recipe, describe, load_encoder, shipped_path  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("--filters", "8,8", "--images", "20", "--family", "spectra", "--device", "cpu")


@pytest.fixture
def small_patches(monkeypatch):
    """Few patches are enough for few filters, and take less than a second."""
    made = verbs._recipe

    def few(*options):
        from dataclasses import replace

        return replace(made(*options), patches=400, iterations=2)

    monkeypatch.setattr(verbs, "_recipe", few)


def test_a_small_encoder_is_trained_and_shown(capsys, tmp_path, small_patches):
    out = tmp_path / "small.safetensors"
    code, _, _ = command(capsys, "features", "train", *SMALL, "--out", out)
    assert code == 0
    encoder = load_encoder(out)
    assert [stage.filters for stage in encoder.shape] == [8, 8]
    assert encoder.features == 2 * 16 * 9
    code, said, _ = command(capsys, "features", "show", out)
    assert code == 0
    assert describe(out)["sha256"] in said
    assert "20 random images (spectra, seed 0), no real one" in said
    assert "288 of an image" in said


def test_a_training_that_was_stopped_says_how_it_goes_on(capsys, tmp_path, small_patches):
    out = tmp_path / "small.safetensors"
    asked = ("features", "train", *SMALL, "--out", out)
    code, said, _ = command(capsys, *asked, "--minutes", "0")
    assert code == 0
    assert "the same command goes on" in said
    assert not out.exists()
    code, said, _ = command(capsys, *asked)
    assert code == 0
    assert describe(out)["sha256"] in said
    assert list(tmp_path.iterdir()) == [out]


def test_the_encoder_of_the_package_is_shown(capsys):
    code, said, _ = command(capsys, "features", "show")
    assert code == 0
    assert "the encoder of the package: 3.7 MB, Apache-2.0" in said
    code, said, _ = command(capsys, "features", "show", "--json")
    assert code == 0
    assert json.loads(said) == describe(shipped_path())


def test_sheets_are_pictures(capsys, tmp_path):
    image = pytest.importorskip("PIL.Image")
    images, filters = tmp_path / "images.png", tmp_path / "filters.png"
    asked = ("--images", images, "--filters", filters, "--family", "spectra")
    code, _, _ = command(capsys, "features", "show", *asked)
    assert code == 0
    columns, rows = verbs._COLUMNS, verbs._ROWS
    with image.open(images) as sheet:
        assert sheet.format == "PNG"
        assert sheet.size == (2 * 33 * columns, 2 * 33 * rows)
    with image.open(filters) as sheet:  # patches of 6 × 6, with a line between them
        assert sheet.size == (8 * 7 * columns, 8 * 7 * rows)
        assert len(sheet.getcolors(1 << 20)) > 100


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("train", "--filters", "8,x"), "--filters: must be numbers"),
        (("train", "--filters", "8,8,8"), "--filters: takes 1 to 2"),
        (("train", "--filters", "0"), "--filters: takes 1 to 2"),
        (("train", "--family", "cats"), "--family: must be one of leaves"),
        (("train", "--images", "5"), "--images: must be a whole number from 10"),
        (("train", "--device", "toaster"), "device: must be cpu, cuda or auto"),
        (("train", "--out", "file/a"), "out: cannot write beside file/a"),
        (("show", "nothing"), "ENCODER: cannot read nothing"),
        (("show", "file"), "ENCODER: file is not an encoder's file"),
        (("show", "--family", "cats", "--images", "a.png"), "--family: must be one of"),
        (("show", "--family", "spectra", "--images", "file/a.png"), "--images: cannot write"),
        (("show", "--filters", "file/a.png"), "--filters: cannot write"),
    ],
)
def test_errors_name_what_was_typed(capsys, tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no encoder")
    code, _, err = command(capsys, "features", *arguments)
    assert code == 2
    assert f"udpfl: error: {match}" in err
    assert [own.name for own in tmp_path.iterdir()] == ["file"]


def test_the_defaults_are_the_recipe_of_the_package():
    defaults = {
        name: own.default
        for name, own in inspect.signature(verbs.train).parameters.items()
        if name in ("family", "images", "filters", "seed")
    }
    assert verbs._recipe(**defaults) == Recipe()
    assert verbs._recipe(**defaults | {"filters": "512,768"}) == Recipe()
