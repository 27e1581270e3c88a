"""Training in pieces: stopped anywhere, it goes on, and ends with the same numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tests.features.toys import STAGES, TOY  # noqa: E402
from udpfl.errors import InvalidInput  # noqa: E402
from udpfl.features import Stage, describe, train, training  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small_pieces(monkeypatch):
    """Forty images are three pieces instead of one."""
    monkeypatch.setattr(training, "_PIECE", 15)


def tensors(path):
    return {name: own.numpy().tobytes() for name, own in safetensors.load_file(path).items()}


def pieces(folder):
    """Names of all pieces that are kept, without those of the recipe."""
    return sorted(path.stem for path in folder.glob("*.pieces/*.safetensors"))


class Stopped(Exception):
    """By hand, between two steps."""


def stopping(after: int):
    """A listener that ends training when it is told something for the time after `after`."""
    told = []

    def progress(*what):
        told.append(what)
        if len(told) > after:
            raise Stopped

    return progress


def test_time_that_is_over_stops_after_a_piece(tmp_path, small_pieces):
    assert train(TOY, tmp_path / "whole.safetensors")
    parts = tmp_path / "parts.safetensors"
    kept = []
    while not train(TOY, parts, minutes=0):
        assert not parts.exists()
        kept.append(pieces(tmp_path))
    images = ["images-0", "images-1", "images-2"]
    assert kept == [
        images[:1],
        images[:2],
        images,
        [*images, "stage-1"],
        [*images, "stage-1", "stage-2"],
    ]
    assert tensors(parts) == tensors(tmp_path / "whole.safetensors")
    assert [own["piece"] for own in describe(parts)["log"]] == [*kept[-1], "features"]


@pytest.mark.parametrize("after", [1, 4, 9, 14, 21])
def test_an_interrupted_training_goes_on(tmp_path, small_pieces, after):
    out, whole = tmp_path / "parts.safetensors", tmp_path / "whole.safetensors"
    with pytest.raises(Stopped):
        train(TOY, out, progress=stopping(after))
    assert not out.exists()
    assert train(TOY, out)
    assert train(TOY, whole)
    assert tensors(out) == tensors(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, whole.name]


def test_pieces_are_not_made_again(tmp_path, monkeypatch, small_pieces):
    out = tmp_path / "encoder.safetensors"
    assert not train(TOY, out, minutes=0)
    drawn = []
    draw = training.random_images

    def counted(family, count, **options):
        drawn.append(count)
        return draw(family, count, **options)

    monkeypatch.setattr(training, "random_images", counted)
    assert train(TOY, out)
    assert sum(drawn) == 1 + 25  # one to check the recipe; the first fifteen were kept


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"family": "leaves"}, {"threshold": 0.4}, {"patches": 900}]
)
def test_pieces_of_another_recipe_are_not_used(tmp_path, other):
    out, alone = tmp_path / "encoder.safetensors", tmp_path / "alone.safetensors"
    wanted = replace(TOY, **other)
    while not pieces(tmp_path)[1:]:  # images and a stage
        train(TOY, out, minutes=0)
    assert train(wanted, out)
    assert train(wanted, alone)
    assert tensors(out) == tensors(alone)
    assert describe(out)["recipe"]["seed"] == wanted.seed
    assert train(TOY, alone)
    assert tensors(out) != tensors(alone)


def test_half_a_piece_is_made_again(tmp_path):
    out, whole = tmp_path / "encoder.safetensors", tmp_path / "whole.safetensors"
    assert not train(TOY, out, minutes=0)
    (note,) = tmp_path.glob("*.pieces/images-0.json")  # which is written after the numbers
    note.unlink()
    note.with_name("images-0.safetensors").write_bytes(b"half")
    assert train(TOY, out)
    assert train(TOY, whole)
    assert tensors(out) == tensors(whole)


def test_a_seed_decides_the_encoder_whatever_was_drawn_before(tmp_path):
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        assert train(TOY, tmp_path / "encoder.safetensors")
        found.append(tensors(tmp_path / "encoder.safetensors"))
    assert found[0] == found[1]


def test_everything_is_learnt(tmp_path):
    """No tensor is left as it was drawn or filled before training."""
    assert train(TOY, tmp_path / "a.safetensors")
    assert train(replace(TOY, seed=1), tmp_path / "b.safetensors")
    one, other = (tensors(tmp_path / f"{name}.safetensors") for name in "ab")
    assert [name for name in one if one[name] == other[name]] == []


@pytest.mark.parametrize(
    ("wrong", "parameter"),
    [
        ({"family": "cats"}, "family"),
        ({"size": 100}, "size"),
        ({"images": 9}, "images"),
        ({"patches": 15}, "patches"),
        ({"parts": 20}, "parts"),
        ({"images": 40.0}, "images"),
        ({"seed": -1}, "seed"),
        ({"whitening": float("nan")}, "whitening"),
        ({"stages": ()}, "stages"),
        ({"stages": (STAGES[0],)}, "stages"),
        ({"stages": (STAGES[1], STAGES[1])}, "stages"),
        ({"stages": (Stage(8, 5, 2, 0, 17),)}, "stages"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(tmp_path, wrong, parameter):
    with pytest.raises(InvalidInput, match=rf"^{parameter}: "):
        train(replace(TOY, **wrong), tmp_path / "encoder.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"^out: cannot write .*file"):
        train(TOY, tmp_path / "file" / "encoder.safetensors")
