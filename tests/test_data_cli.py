"""`udpfl data`: the catalogue against known sums, downloads against a server of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import numpy as np
import pytest
from PIL import Image

from udpfl.cli import main
from udpfl.data import BUILT_IN, load, source_of, sources
from udpfl.data.fetching import FetchFailed, _opener, _Redirects, fetch
from udpfl.data.formats import Checksum, Download, File, Format, Pictures
from udpfl.data.unpacking import UnsafeArchive, unpack
from udpfl.errors import InvalidInput

BODY = bytes(range(256)) * 3000
REAL = os.environ.get("UDPFL_DATA_DIR")


def md5(content: bytes) -> Checksum:
    return Checksum("md5", hashlib.md5(content, usedforsecurity=False).hexdigest())


def command(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["data", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return int(stop.value.code or 0), out, err


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch):
    for name in ("UDPFL_DATA_DIR", "FORCE_COLOR", "http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "80")


@dataclass
class Server:
    """Serves `files` on this machine, and can be told to misbehave."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    cut: int | None = None
    """Break off after so many bytes of a body."""
    wrong_range: bool = False
    address: str = ""


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.requests.append((self.path, wanted))
            if self.path in state.redirects:
                self.send_response(302)
                self.send_header("Location", state.redirects[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = state.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            if wanted and state.ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                said = 1 if state.wrong_range else start
                self.send_header("Content-Range", f"bytes {said}-{len(body) - 1}/{len(body)}")
                body = body[start:]
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body if state.cut is None else body[: state.cut])

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.handle_error = lambda *_: None  # somebody who hangs up early is no news
    state.address = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield state
    listening.shutdown()
    listening.server_close()
    thread.join()


def one_file(content: bytes = BODY, name: str = "digits.gz", **changes):
    """A data set of one file, with a sum that this test computed."""
    file = File(name, md5(content), len(content))
    download = Download(replace(file, **changes), ("https://data.invalid/x",))
    return replace(
        source_of("mnist"), folder="set", formats=(Format("IDX", ((file,),), (download,)),)
    )


def archive(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


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


def real(*names: str) -> Path:
    if REAL is None or not all((Path(REAL) / name).exists() for name in names):
        pytest.skip(f"UDPFL_DATA_DIR has no {' and '.join(names)}")
    return Path(REAL)


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
    assert "not all of it: mnist" in out


def test_check_of_an_absent_or_unknown_data_set(capsys, tmp_path):
    assert command(capsys, "check", "utkface", "--data-dir", tmp_path)[0] == 1
    assert command(capsys, "check", "utkface")[0] == 1
    assert command(capsys, "check", "--data-dir", tmp_path)[0] == 0
    code, _, err = command(capsys, "check", "cifar11")
    assert code == 2
    assert "did you mean cifar10?" in err


# --- fetch ---------------------------------------------------------------------------------------


def test_fetch_downloads_verifies_and_then_leaves_alone(capsys, tmp_path, server, monkeypatch):
    monkeypatch.setattr(BUILT_IN["mnist"], "source", one_file())
    server.files["/a/digits.gz"] = BODY
    fetch_it = [
        "fetch",
        "mnist",
        "--data-dir",
        tmp_path / "new",
        "--source",
        server.address + "/a/",
    ]
    code, out, err = command(capsys, *fetch_it)
    assert (code, err) == (0, "")  # not a terminal: no bar
    assert "downloaded 1 file" in out
    assert "CC BY-SA 3.0" in out
    assert everything_in(tmp_path) == ["new/set/digits.gz"]
    assert (tmp_path / "new/set/digits.gz").read_bytes() == BODY
    code, out, _ = command(capsys, *fetch_it)
    assert code == 0
    assert "already here" in out
    assert len(server.requests) == 1


def test_a_terminal_sees_the_progress(capsys, tmp_path, server, monkeypatch):
    monkeypatch.setattr(BUILT_IN["mnist"], "source", one_file())
    monkeypatch.setenv("FORCE_COLOR", "1")
    server.files["/digits.gz"] = BODY
    code, _, err = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", server.address
    )
    assert code == 0
    assert "digits.gz" in err
    assert "768.0/768.0 kB" in err


def test_progress_is_told_in_bytes(tmp_path, server):
    server.files["/digits.gz"] = BODY
    told: list[tuple[str, int, int | None]] = []
    fetch(one_file(), tmp_path, base=server.address, progress=lambda *all_: told.append(all_))
    assert told[-1] == ("digits.gz", len(BODY), len(BODY))
    counts = [done for _, done, _ in told]
    assert counts == sorted(counts)
    assert len(counts) > 1


def test_a_broken_transfer_is_told_and_goes_on_where_it_stopped(
    capsys, tmp_path, server, monkeypatch
):
    monkeypatch.setattr(BUILT_IN["mnist"], "source", one_file())
    server.files["/digits.gz"] = BODY
    server.cut = 100_000
    fetch_it = ["fetch", "mnist", "--data-dir", tmp_path, "--source", server.address]
    code, _, err = command(capsys, *fetch_it)
    assert code == 2
    assert "127.0.0.1 broke off after 100,000 of 768,000 bytes" in err
    assert everything_in(tmp_path) == ["set/digits.gz.part"]
    server.cut = None
    assert command(capsys, *fetch_it)[0] == 0
    assert server.requests[-1] == ("/digits.gz", "bytes=100000-")
    assert everything_in(tmp_path) == ["set/digits.gz"]
    assert (tmp_path / "set/digits.gz").read_bytes() == BODY


@pytest.mark.parametrize("part", [BODY[:500], BODY, BODY + b"more", b"x" * 400])
@pytest.mark.parametrize("ranges", [True, False])
def test_whatever_an_earlier_attempt_left_the_file_is_right_or_refused(
    tmp_path, server, part, ranges
):
    server.files["/digits.gz"], server.ranges = BODY, ranges
    (tmp_path / "set").mkdir()
    (tmp_path / "set/digits.gz.part").write_bytes(part)
    if part.startswith(b"x") and ranges:
        with pytest.raises(FetchFailed, match="it is not used"):
            fetch(one_file(), tmp_path, base=server.address)
        assert everything_in(tmp_path) == []
    fetch(one_file(), tmp_path, base=server.address)
    assert everything_in(tmp_path) == ["set/digits.gz"]
    assert (tmp_path / "set/digits.gz").read_bytes() == BODY


def test_a_part_from_elsewhere_starts_afresh_when_the_server_has_no_more(tmp_path, server):
    server.files["/digits.gz"] = BODY
    (tmp_path / "set").mkdir()
    (tmp_path / "set/digits.gz.part").write_bytes(BODY * 2)
    fetch(one_file(size=None), tmp_path, base=server.address)  # 416, then from the start
    assert [wanted for _, wanted in server.requests] == [f"bytes={2 * len(BODY)}-", None]
    assert (tmp_path / "set/digits.gz").read_bytes() == BODY


def test_a_server_that_answers_with_another_range_is_not_believed(tmp_path, server):
    server.files["/digits.gz"], server.wrong_range = BODY, True
    (tmp_path / "set").mkdir()
    (tmp_path / "set/digits.gz.part").write_bytes(BODY[:500])
    with pytest.raises(FetchFailed, match="another part"):
        fetch(one_file(), tmp_path, base=server.address)


def test_a_wrong_sum_is_refused_with_both_sums_and_nothing_is_kept(
    capsys, tmp_path, server, monkeypatch
):
    monkeypatch.setattr(BUILT_IN["mnist"], "source", one_file())
    forged = BODY[:-1] + b"!"
    server.files["/digits.gz"] = forged
    code, _, err = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", server.address
    )
    assert code == 2
    assert md5(forged).digest in err
    assert md5(BODY).digest in err
    assert everything_in(tmp_path) == []


def test_an_endless_file_is_cut_off(tmp_path, server):
    server.files["/digits.gz"] = BODY * 20
    with pytest.raises(FetchFailed, match="sends more than 768,000 bytes"):
        fetch(one_file(), tmp_path, base=server.address)
    assert everything_in(tmp_path) == []


def test_a_file_that_is_there_and_wrong_is_never_overwritten(tmp_path, server):
    server.files["/digits.gz"] = BODY
    (tmp_path / "set").mkdir()
    (tmp_path / "set/digits.gz").write_bytes(b"precious")
    with pytest.raises(FetchFailed, match=r"digits\.gz is there, but is not the published one"):
        fetch(one_file(), tmp_path, base=server.address)
    assert (tmp_path / "set/digits.gz").read_bytes() == b"precious"
    assert server.requests == []


def test_only_what_is_missing_is_downloaded(tmp_path, server):
    files = [File(name, md5(name.encode()), len(name)) for name in ("first", "second")]
    form = Format(
        "IDX",
        tuple((file, File(f"{file.name}.plain")) for file in files),
        tuple(Download(file, ("https://data.invalid",)) for file in files),
    )
    source = replace(source_of("mnist"), formats=(form,))
    server.files = {"/first": b"first", "/second": b"second"}
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/first.plain").touch()  # another version of the first will do
    got = fetch(source, tmp_path, base=server.address)
    assert got.downloaded == ("second",)
    assert everything_in(tmp_path) == ["mnist/first.plain", "mnist/second"]


def test_a_file_that_is_not_found_and_a_server_that_is_not_there(capsys, tmp_path, server):
    code, _, err = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", server.address + "/no"
    )
    assert code == 2
    assert "127.0.0.1 answers 404 (Not Found)" in err
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
        code, _, err = command(capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", closed)
    assert code == 2
    assert err.count("\n") == 1
    assert "127.0.0.1 cannot be reached (Connection refused)" in err
    assert f"put it into {tmp_path / 'mnist'}" in err
    assert everything_in(tmp_path) == []


def test_the_next_mirror_is_tried_and_all_failures_are_named(tmp_path, server):
    server.files["/good/digits.gz"] = BODY
    source = one_file()
    (form,) = source.formats
    bad, good = (server.address + path for path in ("/bad", "/good"))

    def mirrored(*addresses: str):
        download = replace(form.downloads[0], addresses=addresses)
        return replace(source, formats=(replace(form, downloads=(download,)),))

    with pytest.raises(FetchFailed, match=r"127.*404.*; 127.*404.*download http.*/bad/digits"):
        fetch(mirrored(bad, bad), tmp_path)
    assert fetch(mirrored(bad, good), tmp_path).downloaded == ("digits.gz",)


def test_a_redirect_is_followed_but_not_out_of_https(tmp_path, server):
    server.files["/there/digits.gz"] = BODY
    server.redirects["/digits.gz"] = server.address + "/there/digits.gz"
    fetch(one_file(), tmp_path, base=server.address)
    assert (tmp_path / "set/digits.gz").read_bytes() == BODY
    answer = (io.BytesIO(), 302, "Found", {})
    request = Request("https://data.invalid/x")
    for base in ("https://data.invalid", None):
        protected = next(h for h in _opener(base).handlers if isinstance(h, _Redirects))
        with pytest.raises(HTTPError, match="not https") as refusal:
            protected.redirect_request(request, *answer, "http://data.invalid/x")
        refusal.value.close()
        assert protected.redirect_request(request, *answer, "https://other.invalid/x") is not None
    # A public source, which must stay protected, that sends us to an open address:
    source = one_file()
    (form,) = source.formats
    download = replace(form.downloads[0], addresses=(server.address,))
    with pytest.raises(FetchFailed, match="not https"):
        fetch(replace(source, formats=(replace(form, downloads=(download,)),)), tmp_path / "other")


@pytest.mark.parametrize("address", ["ftp://a/b", "file:///etc", "data", "http://", "http://[::1"])
def test_a_source_has_to_be_a_web_address(capsys, tmp_path, address):
    code, _, err = command(capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", address)
    assert code == 2
    assert "--source: must be an address such as https://HOST/FOLDER" in err


def test_trouble_with_the_disk_is_told_in_one_line(capsys, tmp_path, server, monkeypatch):
    monkeypatch.setattr(BUILT_IN["mnist"], "source", one_file())
    server.files["/digits.gz"] = BODY
    (tmp_path / "file").touch()
    code, _, err = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path / "file", "--source", server.address
    )
    assert code == 2
    assert f"cannot write {tmp_path / 'file' / 'set'}: " in err
    assert err.count("\n") == 1
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/digits.gz.part").symlink_to("/dev/full")
    code, _, err = command(
        capsys, "fetch", "mnist", "--data-dir", tmp_path, "--source", server.address
    )
    assert code == 2
    assert "digits.gz.part: No space left on device" in err


def test_fetch_needs_a_folder_and_a_known_name(capsys, monkeypatch, tmp_path):
    code, _, err = command(capsys, "fetch", "mnist")
    assert code == 2
    assert "--data-dir" in err
    assert "UDPFL_DATA_DIR" in err
    assert command(capsys, "fetch", "mnits")[0] == 2
    with pytest.raises(InvalidInput, match="no direct download"):
        fetch(source_of("utkface"), tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("utkface", ("susanqq.github.io/UTKFace", "UTKFace.tar.gz", "utkface", "non-commercial")),
        ("gefcom2012-wind", ("GEFCom2012.zip", "kaggle.com", "gefcom2012_wind", "test.csv")),
        ("table", ("data.options.path",)),
    ],
)
def test_where_there_is_no_download_the_way_by_hand_is_told(capsys, tmp_path, name, words):
    code, out, err = command(capsys, "fetch", name, "--data-dir", tmp_path)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    assert name == "table" or str(tmp_path) in err
    assert "{folder}" not in err


def test_what_comes_with_a_package_is_already_here(capsys):
    code, out, _ = command(capsys, "fetch", "mnist5k")
    assert code == 0
    assert "already here" in out


@pytest.mark.parametrize("verb", ["list", "check", "fetch"])
def test_every_verb_has_an_example(capsys, verb):
    code, out, _ = command(capsys, verb, "--help")
    assert code == 0
    assert f"udpfl data {verb} " in out


# --- archives ------------------------------------------------------------------------------------


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
    with pytest.raises(FetchFailed, match="still incomplete: there is no Hand"):
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
        (member("../evil"), "leads out"),
        (member("a/../../evil"), "leads out"),
        (member("/tmp/udpfl-evil"), "leads out"),
        (member("..\\evil"), "leads out"),
        (member("evil", tarfile.SYMTYPE, "/etc/passwd"), "no plain file"),
        (member("evil", tarfile.LNKTYPE, "good"), "no plain file"),
        (member("evil", tarfile.CHRTYPE), "no plain file"),
        (member("evil", tarfile.FIFOTYPE), "no plain file"),
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
    monkeypatch.setattr("udpfl.data.unpacking._MEMBERS", 3)
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
    assert "leads out of it" in err
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
