"""`udpfl report`: pages, comparisons and figures, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import command
from tests.report.pages import copied, visible
from udpfl.errors import InvalidInput
from udpfl.report import read_run, write_report
from udpfl.report.charts import run_charts


def test_the_command_writes_one_page_or_a_comparison(capsys, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [run.folder for run in runs.values()]
    (folders[0] / "report.html").unlink()
    assert command(capsys, "report", folders[0]) == (0, f"{folders[0]}/report.html\n", "")
    assert (folders[0] / "report.html").is_file()
    assert command(capsys, "report", *folders) == (0, "comparison.html\n", "")
    page = Path("comparison.html").read_text()
    said = visible(page)
    assert "4 runs compared" in said
    assert "privacy.accounting vector scalar – vector" in said
    assert "privacy on on none on" in said
    assert "data.clients" not in said  # the same in all
    assert "&lt;i&gt;plain" in page
    assert "<i>plain" not in page


def test_the_same_folder_twice_counts_once(capsys, runs, tmp_path):
    one, other = runs["private"].folder, runs["plain"].folder
    again = one.parent / "nominal" / ".." / one.name
    write_report([one, again], tmp_path / "c.html")
    assert "UDP-FL run report" in visible((tmp_path / "c.html").read_text())
    write_report([one, other, again], tmp_path / "c.html")
    assert "2 runs compared" in visible((tmp_path / "c.html").read_text())
    code, out, _ = command(
        capsys, "report", one, again, "--out", tmp_path / "r.html", "--figures", tmp_path / "f"
    )
    assert (code, "confusion.png" in out) == (0, True)


def test_two_runs_of_the_same_name_are_told_apart(runs, tmp_path):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        copied(runs["private"], tmp_path / place / "same")
    write_report([tmp_path / "a" / "same", tmp_path / "b" / "same"], tmp_path / "c.html")
    said = visible((tmp_path / "c.html").read_text())
    assert "same (2)" in said
    assert "All runs have the same settings." in said


@pytest.mark.parametrize(("name", "format_"), [("nominal", "svg"), ("plain", "png")])
def test_figures_are_drawn_for_every_chart(capsys, runs, tmp_path, name, format_):
    code, out, _ = command(
        capsys, "report", runs[name].folder, "--out", tmp_path / "r.html",
        "--figures", tmp_path / "f", "--format", format_,
    )  # fmt: skip
    assert code == 0
    charts = [chart.id for chart in run_charts(read_run(runs[name].folder))]
    wanted = {f"{chart}.{format_}" for chart in (*charts, "confusion")}
    assert {path.name for path in (tmp_path / "f").iterdir()} == wanted
    assert len(out.splitlines()) == 1 + len(wanted)
    for path in (tmp_path / "f").iterdir():
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if format_ == "png" else b"<?xml" in start


def test_what_is_no_run_is_refused(capsys, runs, tmp_path):
    code, _, err = command(capsys, "report", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "RUN: " in err
    assert "is not a run folder" in err
    code, _, err = command(capsys, "report", runs["plain"].folder, "--out", tmp_path / "r.pdf")
    assert code == 2
    assert "out: the file must end in .html, got 'r.pdf'" in err
    code, _, err = command(
        capsys, "report", runs["plain"].folder, "--out", tmp_path / "no" / "r.html"
    )
    assert code == 2
    assert "cannot write" in err
    (tmp_path / "file").touch()
    code, _, err = command(
        capsys, "report", runs["plain"].folder, "--out", tmp_path / "r.html",
        "--figures", tmp_path / "file",
    )  # fmt: skip
    assert (code, "is a file, not a folder" in err) == (2, True)
    broken = copied(runs["plain"], tmp_path / "broken")
    (broken / "summary.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot read"):
        read_run(broken)


def test_a_report_needs_no_torch(runs, tmp_path):
    unfinished = copied(runs["nominal"], tmp_path / "r", "summary.json")
    code = f"""
import sys
from pathlib import Path
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
from udpfl.cli import main
from udpfl.report import read_run
assert read_run(Path({str(unfinished)!r})).statement.epsilon > 0
main(["report", {str(runs["private"].folder)!r}, "--out", {str(tmp_path / "r.html")!r}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "r.html").stat().st_size > 30_000
