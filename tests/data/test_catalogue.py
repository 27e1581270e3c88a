"""`udpfl data list` and `check`: the catalogue against known sums."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.data.samples import real
from tests.data.serving import command, md5
from udpfl.data import BUILT_IN, source_of, sources
from udpfl.data.formats import File, Format, Pictures

pytestmark = pytest.mark.usefixtures("plain_surroundings")


# --- the catalogue -------------------------------------------------------------------------------


def test_every_built_in_data_set_is_in_the_catalogue():
    for name, source in sources().items():
        assert source.name == name
        assert source.title
        assert source.samples
        assert name == "table" or (source.licence and source.homepage and source.citation)
        assert source.fetched or source.by_hand
        assert "://" not in source.homepage


def test_what_is_downloaded_comes_over_https_and_has_a_published_sum():
    seen = 0
    for source in sources().values():
        for form in source.formats:
            for part in form.parts:
                for file in part:
                    if isinstance(file, File) and file.checksum:
                        digits = {"md5": 32, "sha256": 64}[file.checksum.algorithm]
                        assert re.fullmatch(rf"[0-9a-f]{{{digits}}}", file.checksum.digest)
            for download in form.downloads:
                seen += 1
                assert download.file.checksum is not None
                assert all(address.startswith("https://") for address in download.addresses)
    assert seen == 4 + 1 + 1  # MNIST, CIFAR-10, MedNIST


def test_the_published_sums_of_mnist_are_those_of_its_readme():
    """Sums of the four .gz files as published with the data, written down here once more."""
    published = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }
    found = {d.file.name: d.file.checksum.digest for d in source_of("mnist").fetched.downloads}
    assert found == published


def test_the_sums_of_the_contents_of_mnist_are_right(tmp_path, capsys):
    folder = real("mnist") / "mnist"
    for packed in folder.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    code, out, _ = command(capsys, "check", "mnist", "--data-dir", tmp_path, "--json")
    assert code == 0
    assert [row["status"] for row in json.loads(out)] == ["ok"] * 4


def test_the_sum_of_a_batch_of_the_binary_version_is_right():
    path = real("cifar10/test_batch.npz") / "cifar10" / "test_batch.npz"
    with np.load(path) as batch:
        planes = batch["coded"].cumsum(axis=2, dtype=np.uint8).cumsum(axis=3, dtype=np.uint8)
        planes[0] += planes[1]
        planes[2] += planes[1]
        rows = [batch["labels"][:, None], planes.transpose(1, 0, 2, 3).reshape(10_000, -1)]
    content = np.concatenate(rows, axis=1).tobytes()
    binary = next(f for f in source_of("cifar10").formats if f.name == "binary version")
    (file,) = next(part for part in binary.parts if "test" in part[0].name)
    assert (md5(content), len(content)) == (file.checksum, file.size)


def test_the_real_files_are_right(capsys):
    folder = real("mnist", "cifar10", "medical_mnist", "utkface", "gefcom2012_wind")
    code, out, _ = command(capsys, "check", "--data-dir", folder, "--json")
    rows = json.loads(out)
    assert code == 0
    assert sum(row["status"] == "ok" for row in rows) == 4 + 6 + 1 + 1 + 10
    assert {row["data"] for row in rows if row["status"] != "ok"} <= {"mnist5k"}


# --- list ----------------------------------------------------------------------------------------


def test_list_fits_80_columns_and_says_how_to_get_what_is_not_here(capsys, tmp_path):
    code, out, _ = command(capsys, "list", "--data-dir", tmp_path / "x")
    assert code == 0
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert "…" not in out
    for name in BUILT_IN:
        assert re.search(rf"^{name} ", out, re.MULTILINE)
    flat = " ".join(out.split())
    assert "`udpfl data fetch mnist --data-dir DIR` gets it" in flat
    assert "`udpfl data fetch utkface --data-dir DIR` says how to get it" in flat
    assert "CC BY-SA 4.0" in out
    assert "non-commercial" in out


def test_list_finds_formats_and_what_is_missing(capsys, tmp_path, monkeypatch):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / name).touch()
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").touch()
    (tmp_path / "train.csv").write_text("some,other\n1,2\n")  # not the wind's
    monkeypatch.setenv("UDPFL_DATA_DIR", str(tmp_path))
    code, out, _ = command(capsys, "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["mnist"]["here"] == [
        {
            "format": "IDX",
            "place": str(tmp_path / "mnist"),
            "missing": ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
        }
    ]
    assert not rows["mnist"]["present"]
    assert rows["cifar10"]["present"]
    assert rows["cifar10"]["here"][0]["format"] == "Python version, packed"
    assert rows["gefcom2012-wind"]["here"] == rows["utkface"]["here"] == []
    assert rows["mnist5k"]["present"]
    assert "2 missing" in command(capsys, "list")[1]


@pytest.mark.parametrize("folder", ["medical_mnist", "MedNIST", "medical_mnist/MedNIST", "."])
def test_pictures_are_counted_wherever_the_loader_would_find_them(
    capsys, tmp_path, monkeypatch, folder
):
    few = Format("a folder per class", ((Pictures("Hand", 2),), (Pictures("CXR", 1),)))
    medical = replace(source_of("medical-mnist"), formats=(few,))
    monkeypatch.setattr(BUILT_IN["medical-mnist"], "source", medical)
    for name in ("Hand/a.jpeg", "Hand/b.png", "Hand/notes.txt", "CXR/a.JPG"):
        (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).touch()
    check = ["check", "medical-mnist", "--data-dir", tmp_path]
    code, out, _ = command(capsys, *check)
    assert code == 0
    assert out.count("no published checksum") >= 2
    (tmp_path / folder / "Hand" / "c.png").touch()
    code, out, _ = command(capsys, *check)
    assert code == 1
    assert "3 files instead of 2" in out
    for name in ("c.png", "b.png"):
        (tmp_path / folder / "Hand" / name).unlink()
    code, out, _ = command(capsys, *check)
    assert code == 1
    assert folder == "." or "1 of 2 files are there" in out


# --- check ---------------------------------------------------------------------------------------


def test_check_tells_ok_changed_missing_and_unknown_apart(capsys, tmp_path, monkeypatch):
    parts = (*((File(name, md5(b"right")),) for name in ("a", "b", "c")), (File("d"),))
    monkeypatch.setattr(
        BUILT_IN["mnist"], "source", replace(source_of("mnist"), formats=(Format("IDX", parts),))
    )
    (tmp_path / "mnist").mkdir()
    for name, content in (("a", b"right"), ("b", b"wrong"), ("d", b"")):
        (tmp_path / "mnist" / name).write_bytes(content)
    code, out, _ = command(capsys, "check", "mnist", "--data-dir", tmp_path, "--json")
    found = [(row["name"], row["status"]) for row in json.loads(out)]
    assert code == 1
    assert found == [
        ("a", "ok"), ("b", "changed"), ("c", "missing"), ("d", "no published checksum")
    ]  # fmt: skip
    code, out, _ = command(capsys, "check", "--data-dir", tmp_path)
    assert code == 1  # changed, though not named
    assert md5(b"wrong").digest in out
    assert md5(b"right").digest in out
    (tmp_path / "mnist" / "b").write_bytes(b"right")
    assert command(capsys, "check", "--data-dir", tmp_path)[0] == 0  # missing, not named
    code, out, _ = command(capsys, "check", "mnist", "--data-dir", tmp_path)
    assert code == 1  # missing, named
    assert "missing or incomplete: mnist" in out


def test_check_of_an_absent_or_unknown_data_set(capsys, tmp_path):
    assert command(capsys, "check", "utkface", "--data-dir", tmp_path)[0] == 1
    assert command(capsys, "check", "utkface")[0] == 1
    assert command(capsys, "check", "--data-dir", tmp_path)[0] == 0
    code, _, err = command(capsys, "check", "cifar11")
    assert code == 2
    assert "did you mean cifar10?" in err
