"""CIFAR-10 in every format, against facts from outside the code; hostile and broken files."""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import bytes_of, coded, npz
from tests.data.samples import real, refused, rng
from udpfl.data import cifar10, load
from udpfl.data._coded import decoded
from udpfl.data._pickled import unpickled


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
        "udpfl.data._pickled._KNOWN",
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
    with refused("is not an option of cifar10", "data.options.size"):
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
