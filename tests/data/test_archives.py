"""Archives of data sets: they land where their loader looks; hostile ones leave nothing."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import real
from tests.data.serving import command, everything_in, md5
from udpfl.data import BUILT_IN, load, source_of
from udpfl.data._unpacking import UnsafeArchive, unpack
from udpfl.data.fetching import FetchFailed, fetch
from udpfl.data.formats import File, Format, Pictures

pytestmark = pytest.mark.usefixtures("plain_surroundings")


def archive(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def packed(source, form: Format, content: bytes, **changes):
    """The source with `form` fetched from an archive of this content."""
    (download,) = source.fetched.downloads
    file = replace(download.file, checksum=md5(content), size=len(content))
    form = replace(form, downloads=(replace(download, file=file, **changes),))
    return replace(source, formats=(form,))


def test_cifar10_lands_where_its_loader_looks(tmp_path, server):
    rng = np.random.default_rng(0)
    batches = {
        f"cifar-10-batches-bin/{name}.bin": b"".join(
            bytes([label]) + rng.bytes(3072) for label in range(10)
        )
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    content = archive({**batches, "cifar-10-batches-bin/readme.html": b"<p>"})
    parts = tuple((File(name, md5(batch)),) for name, batch in batches.items())
    source = packed(source_of("cifar10"), Format("binary version", parts), content)
    server.files["/cifar-10-binary.tar.gz"] = content
    got = fetch(source, tmp_path, base=server.address)
    assert got.downloaded == ("cifar-10-binary.tar.gz",)
    assert everything_in(tmp_path / "cifar10") == sorted(
        [*batches, "cifar-10-batches-bin/readme.html"]
    )
    data = load("cifar10", directory=tmp_path)
    assert (len(data.train), len(data.test)) == (50, 10)
    # One batch lost: it comes back, and the others are not touched.
    lost, kept = (tmp_path / "cifar10" / name for name in list(batches)[:2])
    lost.unlink()
    before = kept.stat().st_mtime_ns
    fetch(source, tmp_path, base=server.address)
    assert lost.is_file()
    assert kept.stat().st_mtime_ns == before


def test_medical_mnist_lands_where_its_loader_looks_even_by_hand(tmp_path, server):
    stream = io.BytesIO()
    Image.new("L", (64, 64), 7).save(stream, "jpeg")
    classes = ("AbdomenCT", "BreastMRI", "CXR", "ChestCT", "Hand", "HeadCT")
    names = [f"MedNIST/{name}/{i:06}.jpeg" for name in classes for i in range(5)]
    content = archive(dict.fromkeys(names, stream.getvalue()) | {"MedNIST/README.md": b"#"})
    form = Format("folders", tuple((Pictures(name, 5),) for name in classes))
    source = packed(source_of("medical-mnist"), form, content)
    folder = tmp_path / "medical_mnist"
    folder.mkdir()
    (folder / "MedNIST.tar.gz").write_bytes(content)  # somebody put it there: no server is asked
    assert fetch(source, tmp_path, base=server.address).downloaded == ()
    assert server.requests == []
    assert len(list(folder.glob("*/*.jpeg"))) == 30
    assert (folder / "MedNIST.tar.gz").is_file()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    data = load("medical-mnist", directory=tmp_path)
    assert len(data.train) + len(data.test) == 30
    (folder / "MedNIST.tar.gz").write_bytes(content[:-1])
    (folder / "Hand" / "000000.jpeg").unlink()
    with pytest.raises(FetchFailed, match="it is not used"):
        fetch(source, tmp_path, base=server.address)


def test_an_archive_without_what_it_should_hold_is_told(tmp_path, server):
    content = archive({"elsewhere/file": b"1"})
    form = Format("folders", ((Pictures("Hand", 1),),))
    source = packed(source_of("medical-mnist"), form, content)
    server.files["/MedNIST.tar.gz"] = content
    with pytest.raises(FetchFailed, match="still incomplete: it lacks Hand"):
        fetch(source, tmp_path, base=server.address)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        good = tarfile.TarInfo("good")
        good.size = 1
        tar.addfile(good, io.BytesIO(b"1"))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        info.size = 4 if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(b"evil"))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (member("../evil"), "outside its folder"),
        (member("a/../../evil"), "outside its folder"),
        (member("/tmp/udpfl-evil"), "outside its folder"),
        (member("..\\evil"), "outside its folder"),
        (member("evil", tarfile.SYMTYPE, "/etc/passwd"), "not a regular file"),
        (member("evil", tarfile.LNKTYPE, "good"), "not a regular file"),
        (member("evil", tarfile.CHRTYPE), "not a regular file"),
        (member("evil", tarfile.FIFOTYPE), "not a regular file"),
        (archive({"big": b"0" * 101}), "more than 100 bytes"),
        (archive({"one": b"0" * 60, "two": b"0" * 60}), "more than 100 bytes"),
        (archive({"big": b"0" * 50})[:-20], "cannot be unpacked"),
        (b"no archive at all", "cannot be unpacked"),
    ],
    ids=range(12),
)
def test_a_hostile_archive_leaves_nothing_behind(tmp_path, content, match):
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(content)
    with pytest.raises(UnsafeArchive, match=match):
        unpack(path, folder, limit=100)
    assert everything_in(tmp_path) == ["archive.tar.gz"]
    assert list(folder.iterdir()) == []
    assert not Path("/tmp/udpfl-evil").exists()


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("udpfl.data._unpacking._MEMBERS", 3)
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(archive({str(i): b"" for i in range(4)}))
    with pytest.raises(UnsafeArchive, match="or 3 files"):
        unpack(path, tmp_path, limit=100)


def test_a_hostile_archive_over_the_web_is_one_line_for_the_user(
    capsys, tmp_path, server, monkeypatch
):
    content = member("MedNIST/../../evil")
    form = Format("folders", ((Pictures("Hand", 1),),))
    monkeypatch.setattr(
        BUILT_IN["medical-mnist"], "source", packed(source_of("medical-mnist"), form, content)
    )
    server.files["/MedNIST.tar.gz"] = content
    code, _, err = command(
        capsys, "fetch", "medical-mnist", "--data-dir", tmp_path, "--source", server.address
    )
    assert code == 2
    assert "outside its folder" in err
    assert not list(tmp_path.rglob("evil"))


def test_the_real_mnist_can_be_fetched_and_loaded(capsys, tmp_path, server):
    folder = real("mnist") / "mnist"
    server.files = {f"/{path.name}": path.read_bytes() for path in folder.glob("*.gz")}
    code, out, _ = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", server.address
    )
    assert code == 0
    assert "downloaded 4 files" in out
    assert len(load("mnist", directory=tmp_path).train) == 60_000
