"""`udpfl data fetch`: downloads against a server of our own."""

from __future__ import annotations

import io
import socket
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from tests.data.serving import command, everything_in, md5
from udpfl.data import BUILT_IN, source_of
from udpfl.data.fetching import FetchFailed, _opener, _Redirects, fetch
from udpfl.data.formats import Download, File, Format
from udpfl.errors import InvalidInput

BODY = bytes(range(256)) * 3000

pytestmark = pytest.mark.usefixtures("plain_surroundings")


def one_file(content: bytes = BODY, name: str = "digits.gz", **changes):
    """A data set of one file, with a sum that this test computed."""
    file = File(name, md5(content), len(content))
    download = Download(replace(file, **changes), ("https://data.invalid/x",))
    return replace(
        source_of("mnist"), folder="set", formats=(Format("IDX", ((file,),), (download,)),)
    )


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
    assert "127.0.0.1 closed the connection after 100,000 of 768,000 bytes" in err
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
    with pytest.raises(FetchFailed, match=r"digits\.gz is not the published one"):
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
