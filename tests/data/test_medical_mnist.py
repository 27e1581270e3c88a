"""Medical MNIST in both formats: reduced, made grey, without repeats; broken files are named."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import SCANS, bytes_of, everything, npz
from tests.data.samples import real, refused, rng
from udpfl.data import _pictures, load
from udpfl.errors import InvalidInput


@cache
def scans(side: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Five pictures a class, the last of each a repeat of its second."""
    images = rng(3).integers(0, 256, (30, side, side), dtype=np.uint8)
    images[4::5] = images[1::5]
    return images, np.repeat(np.arange(6, dtype=np.uint8), 5)


def write_scans(folder: Path, suffix: str = ".png", side: int = 28) -> None:
    for i, (image, label) in enumerate(zip(*scans(side), strict=True)):
        (folder / SCANS[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / SCANS[label] / f"{i:06}{suffix}")


@pytest.mark.parametrize("folder", ["", "medical_mnist", "medical_mnist/MedNIST", "MedNIST"])
def test_medical_mnist_is_the_same_in_both_formats(tmp_path, folder):
    images, labels = scans()
    npz(tmp_path / "a" / "medical_mnist" / "medical_mnist_28x28.npz", images=images, labels=labels)
    write_scans(tmp_path / "b" / folder)
    (tmp_path / "b" / folder / "Hand" / ".hidden.png").write_bytes(b"no picture")
    (tmp_path / "b" / folder / "Hand" / "notes.txt").write_text("no picture")
    compact = load("medical-mnist", directory=tmp_path / "a", seed=4)
    public = load("medical-mnist", directory=tmp_path / "b", seed=4)
    for data in (compact, public):
        positions, inputs, targets = everything(data)
        assert positions.tolist() == [*range(30)]
        assert np.array_equal(bytes_of(inputs)[:, 0], images)
        assert np.array_equal(targets, labels)
        assert (data.name, data.class_names, data.input_shape) == (
            "medical-mnist",
            SCANS,
            (1, 28, 28),
        )
        assert np.bincount(data.test.targets).tolist() == [1] * 6
    assert np.array_equal(compact.test.positions, public.test.positions)
    other = load("medical-mnist", directory=tmp_path / "a", seed=5)
    assert other.test.positions.tolist() != compact.test.positions.tolist()


def lanczos(signal, side):
    """The filter by its definition: sinc(x) sinc(x / 3), stretched by the reduction."""
    scale = len(signal) / side
    out = np.empty((side, *signal.shape[1:]))
    for i in range(side):
        x = (np.arange(len(signal)) + 0.5 - (i + 0.5) * scale) / scale
        weights = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
        out[i] = np.tensordot(weights / weights.sum(), signal, axes=(0, 0))
    return out


def test_pictures_are_reduced_by_lanczos(tmp_path):
    ramp = np.add.outer(np.arange(64), 2 * np.arange(64)) + 40.0
    picture = (ramp + 12 * np.sin(ramp / 5)).astype(np.uint8)
    for name in SCANS:
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.fromarray(picture).save(tmp_path / name / f"{i}.png")
    for side in (28, 14):
        data = load("medical-mnist", directory=tmp_path, test=0.5, options={"size": side})
        assert data.input_shape == (1, side, side)
        expected = lanczos(lanczos(picture.astype(float), side).T, side).T
        got = bytes_of(data.train.inputs[0, 0]).astype(float)
        assert np.abs(got - expected).max() < 1.5  # two roundings to bytes
    assert load("medical-mnist", directory=tmp_path, options={"size": 64}).input_shape[1] == 64


def test_jpeg_and_colour_files_become_grey(tmp_path):
    grey = np.tile(np.linspace(0, 255, 28).astype(np.uint8), (28, 1))
    for name in SCANS:
        (tmp_path / name).mkdir()
        Image.fromarray(grey).save(tmp_path / name / "a.jpeg", quality=95)
        Image.fromarray(np.stack([grey] * 3, axis=2)).save(tmp_path / name / "b.JPG", quality=95)
        Image.fromarray(grey).convert("P").save(tmp_path / name / "c.png")
    data = load("medical-mnist", directory=tmp_path)
    _, inputs, _ = everything(data)
    assert inputs.shape == (18, 1, 28, 28)
    assert np.abs(bytes_of(inputs)[:, 0].astype(int) - grey).max() <= 4


def test_repeats_are_removed_before_splitting(tmp_path, caplog):
    write_scans(tmp_path)
    with caplog.at_level(logging.WARNING):
        kept = load("medical-mnist", directory=tmp_path)
        assert not caplog.records
        data = load("medical-mnist", directory=tmp_path, options={"duplicates": "remove"})
    assert "6 of 30 pictures are exact copies of an earlier one" in caplog.text
    assert "0 of them have another target" in caplog.text
    positions, inputs, _ = everything(data)
    assert positions.tolist() == [i for i in range(30) if i % 5 != 4]  # the first of each stays
    assert len(np.unique(inputs.reshape(24, -1), axis=0)) == 24
    assert (len(kept.train) + len(kept.test), len(data.train), len(data.test)) == (30, 19, 5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"size": 7}, "size: .*from 8 to 256, got 7"),
        ({"size": 257}, "size: .*got 257"),
        ({"size": "28"}, "size: .*got '28'"),
        ({"size": True}, "size: .*got True"),
        ({"size": 28.0}, "size: .*got 28.0"),
        ({"duplicates": "drop"}, "duplicates: must be keep or remove, got 'drop'"),
        ({"duplicates": True}, "duplicates: .*got True"),
        ({"duplicates": ["keep"]}, "duplicates: .*got"),
        ({"sise": 28}, "sise: is not an option of medical-mnist; did you mean size"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, match):
    write_scans(tmp_path)
    with pytest.raises(InvalidInput, match=rf"^data.options.{match}"):
        load("medical-mnist", directory=tmp_path, options=options)


def test_broken_scans_are_named(tmp_path):
    with refused("--data-dir or UDPFL_DATA_DIR"):
        load("medical-mnist")
    with refused("medical_mnist_28x28.npz or folders AbdomenCT, .*udpfl data list"):
        load("medical-mnist", directory=tmp_path)
    images, labels = scans()
    npz(tmp_path / "medical_mnist_28x28.npz", images=images, labels=labels)
    with refused("medical_mnist_64x64.npz or folders"):  # no other size is made of the compact form
        load("medical-mnist", directory=tmp_path, options={"size": 64})
    npz(tmp_path / "medical_mnist_64x64.npz", images=images, labels=labels)
    with refused("n × 64 × 64, got uint8 of 30 × 28 × 28"):
        load("medical-mnist", directory=tmp_path, options={"size": 64})
    npz(tmp_path / "medical_mnist_28x28.npz", images=images, labels=labels + 1)
    with refused("0..5, got 6", "data.targets"):
        load("medical-mnist", directory=tmp_path)

    folder = tmp_path / "folders"
    write_scans(folder)
    path = folder / "CXR" / "000011.png"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused("cannot read the picture .*000011.png"):
        load("medical-mnist", directory=folder)
    path.write_bytes(b"GIF89a")
    with refused("cannot read the picture .*000011.png"):
        load("medical-mnist", directory=folder)
    Image.fromarray(np.zeros((28, 28), np.uint16)).save(path)
    with refused("000011.png must have 8 bits per channel"):
        load("medical-mnist", directory=folder)
    for file in (folder / "CXR").iterdir():
        file.unlink()
    with refused("CXR holds no JPEG or PNG"):
        load("medical-mnist", directory=folder)
    (folder / "CXR").rmdir()
    with refused("has no folder CXR"):
        load("medical-mnist", directory=folder)


def test_a_picture_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "big.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with refused("cannot read the picture .*big.png: .*decompression bomb"):
        _pictures.read([tmp_path / "big.png"], side=8, colour="grey", filter_="lanczos")


def test_the_real_medical_mnist(caplog):
    folder = real("medical_mnist")
    data = load("medical-mnist", directory=folder, options={"duplicates": "remove"})
    assert "440 of 58954 pictures" in caplog.text
    assert "0 of them have another target" in caplog.text
    assert len(data.train) + len(data.test) == 58_514  # published: as many distinct at 64×64
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts[[1, 3, 4]].tolist() == [8954, 10_000, 10_000]  # no repeats in these
