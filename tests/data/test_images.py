"""CIFAR-10, Medical MNIST and UTKFace in every format, against facts from outside the code."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import struct
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from udpfl.cli import main
from udpfl.data import BUILT_IN, cifar10, load, pictures
from udpfl.data.coded import decoded
from udpfl.data.images import scaled
from udpfl.data.pickled import unpickled
from udpfl.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
DATA = os.environ.get("UDPFL_DATA_DIR")
FACES = {"age": [26, 1, 116, 40, 8], "gender": [1, 0, 1, 0, 0], "ethnicity": [2, 4, 0, 1, 3]}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def refused(match: str, parameter: str = "data.dir"):
    return pytest.raises(InvalidInput, match=rf"(?s)^{parameter}: .*{match}")


def bytes_of(inputs):
    """Undo the scaling: back to the pixels that were stored."""
    return np.rint((inputs.astype(np.float64) / 4 + 0.5) * 255).astype(np.uint8)


def coded(pixels):
    """The published description of the compact form, forwards, with plain loops."""
    planes = pixels.astype(int).transpose(1, 0, 2, 3).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=0)
    return (planes % 256).astype(np.uint8)


def real(name: str) -> Path:
    if not DATA or not (Path(DATA) / name).is_dir():
        pytest.skip(f"UDPFL_DATA_DIR does not say where a folder {name} is")
    return Path(DATA)


# --- CIFAR-10 ------------------------------------------------------------------------------------


@cache
def batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Six small batches of noise, with a colour gradient that a wrong layout would disturb."""
    made = {}
    for i, name in enumerate(cifar10.BATCHES):
        pixels = rng(i).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
        pixels[0, 0], pixels[0, 1], pixels[0, 2] = 10 + i, np.arange(32)[:, None], np.arange(32)
        made[name] = pixels, np.array([i, 9, 0, 1, 2, 3, 4], dtype=np.uint8)
    return made


def python2(pixels, labels) -> bytes:
    """The opcodes that Python 2 and numpy 1 wrote into the published files, by hand."""
    raw = pixels.reshape(len(pixels), -1)

    def text(word: bytes) -> bytes:
        return b"U" + struct.pack("<B", len(word)) + word

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        b"(K\x01(" + struct.pack("<cHcH", b"M", *_pair(raw.shape)) + b"t"
        b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", raw.size) + raw.tobytes() + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}(" + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + numbers + text(b"data") + array
        + text(b"filenames") + b"](" + text(b"a_\xe9.png") + b"eu."
    )  # fmt: skip


def _pair(shape):
    return shape[0], b"M", shape[1]


def content(form: str, name: str) -> bytes:
    pixels, labels = batches()[name]
    if form == "npz":
        file = io.BytesIO()
        np.savez(file, coded=coded(pixels), labels=labels, class_names=np.array(cifar10.CLASSES))
        return file.getvalue()
    rows = pixels.reshape(len(pixels), -1)
    if form == "bin":
        return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, rows))  # noqa: B905
    if form == "python2":
        return python2(pixels, labels)
    order = "F" if form.endswith("f") else "C"
    stored = {"data": np.array(rows, order=order), "labels": labels.tolist()}
    return pickle.dumps(stored, protocol=int(form[6]))


def write_cifar(folder: Path, form: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    suffix = {"npz": ".npz", "bin": ".bin"}.get(form, "")
    for name in cifar10.BATCHES:
        (folder / f"{name}{suffix}").write_bytes(content(form, name))


def same_as_the_batches(data) -> None:
    pixels = np.concatenate([batches()[f"data_batch_{i}"][0] for i in range(1, 6)])
    labels = np.concatenate([batches()[f"data_batch_{i}"][1] for i in range(1, 6)])
    assert np.array_equal(bytes_of(data.train.inputs), pixels)
    assert np.array_equal(data.train.targets, labels)
    assert np.array_equal(bytes_of(data.test.inputs), batches()["test_batch"][0])
    assert np.array_equal(data.test.targets, batches()["test_batch"][1])
    assert (data.name, data.classes, data.input_shape) == ("cifar10", 10, (3, 32, 32))
    assert data.class_names[3] == "cat"


PICKLES = ["python2", *(f"pickle{protocol}" for protocol in range(6)), "pickle2f", "pickle5f"]


@pytest.mark.parametrize(
    ("form", "folder"),
    [
        ("npz", ""),
        ("npz", "cifar10"),
        ("bin", "cifar10/cifar-10-batches-bin"),
        ("bin", "cifar-10-batches-bin"),
        ("bin", ""),
        *((form, "cifar10/cifar-10-batches-py") for form in PICKLES),
    ],
)
def test_cifar10_is_the_same_in_every_format(tmp_path, form, folder):
    write_cifar(tmp_path / folder, form)
    same_as_the_batches(load("cifar10", directory=tmp_path))


def archive(path: Path, form: str, *, leave_out: str = "", prefix: str = "") -> None:
    folder = "cifar-10-batches-bin" if form == "bin" else "cifar-10-batches-py"
    with tarfile.open(path, "w:gz") as file:
        for name in ("../../outside.txt", *reversed(cifar10.BATCHES), "readme.html"):
            inner = name in cifar10.BATCHES
            if name == leave_out:
                continue
            held = content(form, name) if inner else b"hello"
            suffix = ".bin" if inner and form == "bin" else ""
            entry = tarfile.TarInfo(f"{prefix}{folder}/{name}{suffix}")
            entry.size = len(held)
            file.addfile(entry, io.BytesIO(held))


@pytest.mark.parametrize(
    ("name", "form", "prefix"),
    [
        ("cifar-10-binary.tar.gz", "bin", ""),
        ("cifar-10-python.tar.gz", "python2", "./"),
    ],
)
def test_cifar10_archives_are_read_in_memory(tmp_path, name, form, prefix):
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    archive(folder / name, form, prefix=prefix)
    same_as_the_batches(load("cifar10", directory=tmp_path / "data"))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]
    archive(folder / name, form, leave_out="data_batch_3")
    with refused("holds no file .*data_batch_3"):
        load("cifar10", directory=tmp_path / "data")
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with refused(f"cannot read .*{name}"):
        load("cifar10", directory=tmp_path / "data")


class Hostile:
    """Leaves a file behind when it is unpickled by the standard reader."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_hostile_pickle_runs_nothing(tmp_path):
    mark = tmp_path / "was here"
    hostile = pickle.dumps({"data": Hostile(mark), "labels": []})
    pickle.loads(hostile)
    assert mark.exists()  # the weapon works
    mark.unlink()
    write_cifar(tmp_path / "cifar-10-batches-py", "python2")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").write_bytes(hostile)
    with refused("data_batch_4 asks to run .*refused and nothing was run"):
        load("cifar10", directory=tmp_path)
    assert not mark.exists()


def instance(name: str, *arguments: str) -> bytes:
    """A pickle that calls a global with some words, in opcodes."""
    module, _, attribute = name.rpartition(".")
    words = b"".join(b"V" + word.encode() + b"\n" for word in arguments)
    return b"c" + f"{module}\n{attribute}\n".encode() + b"(" + words + b"tR."


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "builtins.eval",
        "__builtin__.getattr",
        "subprocess.Popen",
        "numpy.load",
        "numpy.memmap",
        "numpy.core.multiarray.scalar",
        "numpy.core.multiarray.fromfile",
        "_codecs.decode",
        "copyreg._reconstructor",
        "udpfl.data.pickled._KNOWN",
        "functools.partial",
    ],
)
def test_only_what_byte_arrays_need_is_admitted(name):
    with refused(f"here.pkl asks to run {name}"):
        unpickled(instance(name, "x"), "here.pkl")
    stacked = b"\x80\x04" + b"".join(
        b"\x8c" + bytes([len(part)]) + part.encode() for part in name.rsplit(".", 1)
    )
    with refused(f"here.pkl asks to run {name}"):
        unpickled(stacked + b"\x93.", "here.pkl")


@pytest.mark.parametrize(
    ("stored", "match"),
    [
        (b"", "Ran out of input"),
        (b"\x80\x02}(U", "cannot read x"),
        (pickle.dumps([1]), "a list, not a dictionary"),
        (pickle.dumps({"data": np.zeros(3)}, 2), "f8.*not of unsigned bytes"),
        (pickle.dumps({"data": np.zeros(3)}, 5), "f8.*not of unsigned bytes"),
        (pickle.dumps({"data": np.array([{}], dtype=object)}), "not of unsigned bytes"),
        (pickle.dumps({"data": np.zeros(1, dtype=[("a", "u1")])}), "not of unsigned bytes"),
        (instance("_codecs.encode", "x", "rot13"), "rot13"),
        (instance("numpy.dtype", "O"), "'O', not of unsigned"),
        (b"Pmine\n.", "cannot read x: .*persistent"),
    ],
)
def test_other_pickles_are_refused(stored, match):
    with refused(match):
        unpickled(stored, "x")


def test_a_pickle_cannot_change_the_reader():
    # BUILD with a pair sets attributes of what it is given: here the defaults of a function.
    change = b"c_codecs\nencode\n(N}V__defaults__\n(Vlatin1\nts"
    assert unpickled(b"\x80\x02}Va\n" + change + b"tbs.", "x").keys() == {"a"}
    with refused("missing 1 required"):
        unpickled(instance("_codecs.encode", "x"), "x")
    with refused("cannot read x"):  # and no method of a class can be put in its place
        unpickled(b"\x80\x02}Va\ncnumpy\nndarray\n(V1\nV2\nV3\ntbs.", "x")


@pytest.mark.parametrize(
    ("form", "stored", "match"),
    [
        ("bin", b"", "3073 bytes, got 0 bytes"),
        ("bin", bytes(3073 * 2 - 1), "3073 bytes, got 6145"),
        ("npz", b"PK no archive", "cannot read .*test_batch.npz"),
        ("npz", content("npz", "test_batch")[:-100], "cannot read .*test_batch.npz"),
        ("pickle4", content("pickle4", "test_batch")[:-100], "cannot read .*test_batch"),
        ("pickle4", pickle.dumps({"data": np.zeros((2, 5), np.uint8)}), "rows of 3072"),
        ("pickle4", pickle.dumps({"data": [1], "labels": [1]}), "rows of 3072"),
        (
            "pickle4",
            pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}),
            "one for each",
        ),
        (
            "pickle4",
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}),
            "from 0 to 9",
        ),
        (
            "pickle4",
            pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1.5]}),
            "from 0 to 9",
        ),
    ],
)
def test_broken_cifar_files_are_named(tmp_path, form, stored, match):
    write_cifar(tmp_path, form)
    suffix = {"npz": ".npz", "bin": ".bin"}.get(form, "")
    (tmp_path / f"test_batch{suffix}").write_bytes(stored)
    with refused(match) as raised:
        load("cifar10", directory=tmp_path)
    assert "test_batch" in str(raised.value)


def npz(path: Path, **members) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **members)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ({"coded": np.zeros((3, 2, 32, 32), np.uint8)}, "cannot read .*labels"),
        (
            {"coded": np.zeros((3, 2, 32, 31), np.uint8), "labels": np.zeros(2, np.uint8)},
            "coded must be uint8 of shape 3 × n × 32 × 32, got uint8 of 3 × 2 × 32 × 31",
        ),
        (
            {"coded": np.zeros((3, 2, 32, 32), np.int8), "labels": np.zeros(2, np.uint8)},
            "got int8",
        ),
        (
            {"coded": np.zeros((3, 2, 32, 32), np.uint8), "labels": np.zeros((2, 1), np.uint8)},
            "labels must be uint8 of shape n, got uint8 of 2 × 1",
        ),
        (
            {"coded": np.zeros((3, 2, 32, 32), np.uint8), "labels": np.zeros(3, np.uint8)},
            "2 entries in coded, but 3 in labels",
        ),
        (
            {"coded": np.array([{}], dtype=object), "labels": np.zeros(1, np.uint8)},
            "cannot read .*data_batch_1.npz",
        ),
    ],
)
def test_wrong_compact_files_are_named(tmp_path, members, match):
    write_cifar(tmp_path, "npz")
    npz(tmp_path / "data_batch_1.npz", **members)
    with refused(match) as raised:
        load("cifar10", directory=tmp_path)
    assert "data_batch_1.npz" in str(raised.value)


def test_missing_cifar_files_are_named(tmp_path):
    with refused("--data-dir or UDPFL_DATA_DIR.*udpfl data list"):
        load("cifar10")
    with refused("no folder .*nowhere"):
        load("cifar10", directory=tmp_path / "nowhere")
    with refused("data_batch_1.npz, cifar-10-batches-bin/data_batch_1.bin.*udpfl data list") as r:
        load("cifar10", directory=tmp_path)
    assert str(tmp_path / "cifar10") in str(r.value)
    write_cifar(tmp_path / "cifar-10-batches-bin", "bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").unlink()
    with refused("has some batches, but not data_batch_2.bin"):
        load("cifar10", directory=tmp_path)
    write_cifar(tmp_path / "cifar10", "npz")  # a whole set elsewhere will do
    same_as_the_batches(load("cifar10", directory=tmp_path))
    with refused("is no option of cifar10", "data.options.size"):
        load("cifar10", directory=tmp_path, options={"size": 32})


MD5 = {  # of the batches in the binary layout
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}


def digest(pixels, labels) -> str:
    rows = np.column_stack([labels.astype(np.uint8), pixels.reshape(len(pixels), -1)])
    return hashlib.md5(rows.tobytes(), usedforsecurity=False).hexdigest()


def test_a_real_batch_has_its_checksum():
    with np.load(real("cifar10") / "cifar10" / "test_batch.npz") as file:
        pixels, labels = decoded(file["coded"]), file["labels"]
    assert digest(pixels, labels) == MD5["test_batch"]
    assert np.bincount(labels).tolist() == [1000] * 10


@pytest.mark.slow
def test_the_whole_real_cifar10():
    data = load("cifar10", directory=real("cifar10"))
    assert np.bincount(data.train.targets).tolist() == [5000] * 10
    parts = zip(np.split(data.train.inputs, 5), np.split(data.train.targets, 5), strict=True)
    whole = [*parts, (data.test.inputs, data.test.targets)]
    found = [digest(bytes_of(inputs), labels) for inputs, labels in whole]
    assert found == [MD5[name] for name in cifar10.BATCHES]
    # Published mean and deviation of the pixels: 0.4734 and 0.2516 of the full range.
    assert np.mean(data.train.inputs, dtype=float) == pytest.approx((0.4734 - 0.5) * 4, abs=1e-3)
    assert np.std(data.train.inputs, dtype=float) == pytest.approx(0.2516 * 4, abs=1e-3)


# --- Medical MNIST -------------------------------------------------------------------------------

SCANS = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")


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


def everything(data):
    """Inputs and targets in the order of their source."""
    both = [(r.positions, r.inputs, r.targets) for r in (data.train, data.test)]
    positions, inputs, targets = (np.concatenate(part) for part in zip(*both, strict=True))
    order = np.argsort(positions)
    return positions[order], inputs[order], targets[order]


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
    assert "6 of 30 pictures repeat an earlier one" in caplog.text
    assert "0 of them with another target" in caplog.text
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
        ({"sise": 28}, "sise: is no option of medical-mnist; did you mean size"),
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
    with refused("000011.png must have 8 bits a channel"):
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
        pictures.read([tmp_path / "big.png"], side=8, colour="grey", filter_="lanczos")


# --- UTKFace -------------------------------------------------------------------------------------


@cache
def faces() -> np.ndarray:
    pixels = rng(5).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)
    pixels[1] = pixels[2]
    return pixels


def face_names() -> list[str]:
    facts = zip(FACES["age"], FACES["gender"], FACES["ethnicity"], strict=True)
    dates = ("2017011619453{}.jpg.chip.png", "2017{} .jpg.chip.png", "2017{}jpg.chip.png")
    return [
        f"{age}_{gender}_{ethnicity}_{dates[i % 3].format(i)}"
        for i, (age, gender, ethnicity) in enumerate(facts)
    ]


def write_faces(folder: Path) -> list[int]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in zip(face_names(), faces(), strict=True):
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / name)
    return sorted(range(5), key=lambda i: face_names()[i])


@pytest.mark.parametrize("folder", ["", "utkface", "utkface/UTKFace", "UTKFace"])
@pytest.mark.parametrize("target", ["gender", "ethnicity", "age"])
def test_utkface_is_the_same_in_both_formats(tmp_path, folder, target):
    order = write_faces(tmp_path / "b" / folder)
    facts = {name: np.array(values, np.uint8)[order] for name, values in FACES.items()}
    npz(tmp_path / "a" / "utkface" / "utkface_32x32_rgb.npz", coded=coded(faces()[order]), **facts)
    asked = {"seed": 1, "options": {"target": target}}
    both = [load("utkface", directory=tmp_path / place, **asked) for place in "ab"]
    for data in both:
        positions, inputs, targets = everything(data)
        assert positions.tolist() == [*range(5)]
        assert np.array_equal(bytes_of(inputs), faces()[order])
        assert data.input_shape == (3, 32, 32)
        for name, values in facts.items():
            assert np.array_equal(data.columns[name], values[data.train.positions])
        if target == "age":
            assert (data.task, data.classes, data.class_names) == ("regression", None, None)
            assert targets.shape == (5, 1)
            assert np.allclose(targets[:, 0] * 116, facts["age"], atol=1e-4)
        else:
            assert np.array_equal(targets, facts[target])
            assert data.classes == len(data.class_names) == {"gender": 2, "ethnicity": 5}[target]
    assert both[0].train.fingerprint() == both[1].train.fingerprint()


def test_faces_with_other_names_are_left_out_and_counted(tmp_path, caplog):
    write_faces(tmp_path)
    wrong = [
        "61_1_20170109142408075.jpg.chip.jpg",  # as published: no ethnicity
        "0_0_0_20170109142408075.jpg",
        "117_0_0_20170109142408075.jpg",
        "30_2_0_20170109142408075.jpg",
        "30_0_5_20170109142408075.jpg",
        "-3_0_1_20170109142408075.jpg",
        "holiday.png",
    ]
    for name in wrong:
        (tmp_path / name).write_bytes(b"is not even opened")
    data = load("utkface", directory=tmp_path)
    assert len(data.train) + len(data.test) == 5
    assert "7 of 12 files are not named age_gender_ethnicity_date" in caplog.text


def test_repeated_faces_may_have_other_labels(tmp_path, caplog):
    order = write_faces(tmp_path)
    data = load("utkface", directory=tmp_path, options={"duplicates": "remove"})
    assert "1 of 5 pictures repeat an earlier one" in caplog.text
    assert "1 of them with another target" in caplog.text
    positions, inputs, _ = everything(data)
    repeat = max(order.index(1), order.index(2))
    assert repeat == 1  # not the last, so that what follows it moves up
    assert positions.tolist() == [i for i in range(5) if i != repeat]
    for name, values in FACES.items():
        expected = np.array(values)[order][data.train.positions]
        assert np.array_equal(data.columns[name], expected)
    assert len(inputs) == 4


def test_faces_are_reduced_and_refused(tmp_path):
    with refused("utkface_32x32_rgb.npz or pictures named like .*udpfl data list"):
        load("utkface", directory=tmp_path)
    write_faces(tmp_path)
    assert load("utkface", directory=tmp_path, options={"size": 16}).input_shape == (3, 16, 16)
    with refused("must be gender, ethnicity or age, got 'race'", "data.options.target"):
        load("utkface", directory=tmp_path, options={"target": "race"})
    with refused("is no option of utkface", "data.options.scale"):
        load("utkface", directory=tmp_path, options={"scale": 2})
    with refused("none to test on", "data.test"):
        load("utkface", directory=tmp_path, test=0.01)


# --- the real files ------------------------------------------------------------------------------


def test_scaling_uses_plain_constants():
    pixels = np.array([[0, 51, 255]], dtype=np.uint8)
    assert scaled(pixels).tolist() == [[-2.0, pytest.approx(-1.2), 2.0]]
    assert scaled(pixels).dtype == np.float32


def test_the_real_medical_mnist(caplog):
    folder = real("medical_mnist")
    data = load("medical-mnist", directory=folder, options={"duplicates": "remove"})
    assert "440 of 58954 pictures" in caplog.text
    assert "0 of them with another target" in caplog.text
    assert len(data.train) + len(data.test) == 58_514  # published: as many distinct at 64×64
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts[[1, 3, 4]].tolist() == [8954, 10_000, 10_000]  # no repeats in these


@pytest.mark.slow
def test_the_real_utkface(caplog):
    folder = real("utkface")
    data = load("utkface", directory=folder)
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts.tolist() == [12_391, 11_314]
    data = load("utkface", directory=folder, options={"target": "ethnicity"})
    counts = np.bincount(data.train.targets) + np.bincount(data.test.targets)
    assert counts.tolist() == [10_078, 4_526, 3_434, 3_975, 1_692]
    asked = {"target": "age", "duplicates": "remove"}
    data = load("utkface", directory=folder, options=asked)
    assert "390 of 23705 pictures" in caplog.text
    _, _, ages = everything(data)
    assert len(ages) == 23_315
    assert (ages.min() * 116, ages.max()) == (pytest.approx(1), 1)


# --- training from the configurations ------------------------------------------------------------


def small(tmp_path: Path, name: str) -> Path:
    """Enough of each data set for ten clients, in a public format."""
    noise = rng(7)
    if name == "cifar10":
        for batch in cifar10.BATCHES:
            rows = noise.integers(0, 256, (20, 3073), dtype=np.uint8)
            rows[:, 0] = np.arange(20) % 10
            (tmp_path / f"{batch}.bin").write_bytes(rows.tobytes())
        return tmp_path
    for i in range(60):
        if name == "utkface":
            path = tmp_path / "utkface" / f"{20 + i}_{i % 2}_{i % 5}_2017{i}.jpg.chip.jpg"
        else:
            path = tmp_path / SCANS[i % 6] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path


def trained(capsys, name: str, folder: Path, out: Path, *changes: str) -> dict:
    options = [
        "training.rounds=2",
        "training.local_steps=1",
        "training.evaluate_every=2",
        "privacy.accountant=rdp",
        "threads=1",
        *changes,
    ]
    arguments = [part for option in options for part in ("--set", option)]
    with pytest.raises(SystemExit) as stop:
        main(["run", str(ROOT / "configs" / f"{name}.toml"), *arguments,
              "--data-dir", str(folder), "--out", str(out), "--json"])  # fmt: skip
    printed, noted = capsys.readouterr()
    assert not stop.value.code, noted
    assert "torch.func" not in noted
    outcome = json.loads(printed)
    assert outcome["privacy"]["kind"] == "guarantee"
    assert 0 < outcome["privacy"]["epsilon"] <= 8
    assert np.isfinite(outcome["loss"])
    assert len(json.loads((out / "participants.json").read_text())) == 10
    return outcome


SETS = ["cifar10", "medical-mnist", "utkface"]


@pytest.mark.parametrize("name", SETS)
def test_each_configuration_trains(capsys, tmp_path, name):
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    assert name in BUILT_IN
    trained(capsys, name, small(tmp_path, name), tmp_path / "run", "training.sampling_rate=0.3")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_each_configuration_trains_on_the_real_files(capsys, tmp_path, name):
    pytest.importorskip("torch", reason="the extra 'train' is not installed")
    folder = real(name.replace("-", "_"))
    outcome = trained(capsys, name, folder, tmp_path / "run", "training.sampling_rate=0.003")
    assert 0 <= outcome["accuracy"] <= 1
