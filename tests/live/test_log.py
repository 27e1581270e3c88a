"""The log line of a round, the bar of a notebook, and the time that is left."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import udpfl
from tests.commands import command
from udpfl.cli._log import logged_rounds
from udpfl.live import NotebookBar, RoundLog, is_notebook
from udpfl.live.figures import Pace, in_words, privacy_of, quality_of

ROW = {
    "round": 3, "accuracy": 0.91234, "loss": 0.3, "privacy": "guarantee",
    "epsilon": {"max": 2.00001, "median": 1.0, "min": 1.0}, "seconds": 1.234,
}  # fmt: skip
SETTINGS = SimpleNamespace(training=SimpleNamespace(rounds=10))


@pytest.mark.parametrize(
    ("row", "quality", "privacy"),
    [
        (ROW, "accuracy 0.9123", "ε 2.001"),
        ({**ROW, "privacy": "nominal"}, "accuracy 0.9123", "nominal ε 2.001"),
        ({**ROW, "privacy": "none", "epsilon": None}, "accuracy 0.9123", "not private"),
        ({**ROW, "accuracy": None, "mae": 0.25}, "mae 0.2500", "ε 2.001"),
        ({**ROW, "accuracy": None}, "loss 0.3000", "ε 2.001"),
        ({**ROW, "accuracy": None, "loss": "nan"}, "loss nan", "ε 2.001"),
        ({**ROW, "epsilon": {"max": "inf"}}, "accuracy 0.9123", "ε inf"),
        ({"round": 2, "loss": None}, "", ""),
    ],
)
def test_figures_in_words(row, quality, privacy):
    assert quality_of(row) == quality
    assert privacy_of(row) == privacy


def test_the_time_left_is_that_of_the_rounds_of_this_process():
    now = [100.0]
    pace = Pace(10, lambda: now[0])
    now[0] = 104.0
    assert pace.seconds_left(5) == pytest.approx(20.0)  # resumed after round 4
    now[0] = 106.0
    assert pace.seconds_left(6) == pytest.approx(12.0)
    assert pace.seconds_left(10) == 0.0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")],
)
def test_times_in_words(seconds, said):
    assert in_words(seconds) == said


def test_a_round_is_one_line_at_the_level_info(caplog):
    line = RoundLog()
    with caplog.at_level(logging.INFO, "udpfl.live"):
        line.on_start(SETTINGS, None)
        line.on_round(ROW)
        line.on_round({"round": 4, "loss": None, "seconds": 0.5})
        line.on_round({**ROW, "round": 10})
    first, second, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("round 3 of 10: accuracy 0.9123, ε 2.001, 1.2 s, ")
    assert first.endswith("left")
    assert second.startswith("round 4 of 10: 0.5 s, ")
    assert last == "round 10 of 10: accuracy 0.9123, ε 2.001, 1.2 s"
    assert {record.levelno for record in caplog.records} == {logging.INFO}


SMALL = (
    "run", "--set", "training.rounds=2", "--set", "model.name=logistic", "--set", "data.clients=2",
    "--set", "training.local_steps=1", "--set", "threads=1",
)  # fmt: skip


def test_the_command_logs_rounds_where_there_is_no_terminal(tmp_path):
    """In a process of its own: who collects the log in this one is pytest."""
    done = subprocess.run(
        [sys.executable, "-m", "udpfl", *SMALL, "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rounds = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert [line for line in rounds if "round" in line] == ["round 1 of 2", "round 2 of 2"]
    assert done.stdout.startswith("{")


@pytest.mark.parametrize(("level", "count"), [(logging.ERROR, 0), (logging.WARNING, 1)])
def test_quiet_leaves_the_lines_out(level, count, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger(), "level", level)  # as set_up_log sets it
    with logged_rounds():
        RoundLog().on_round(ROW)
    RoundLog().on_round(ROW)  # turned off again
    assert len(caplog.records) == count


def test_quiet_and_verbose_exclude_each_other(capsys):
    code, _, err = command(capsys, "--quiet", "--verbose", "methods")
    assert code == 2
    assert "--verbose and --quiet cannot both hold" in err


# Notebooks


class ZMQInteractiveShell:
    """What IPython calls the shell of a kernel."""


def test_a_notebook_is_a_kernel_and_not_a_terminal(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not is_notebook()
    terminal = type("TerminalInteractiveShell", (), {})
    for shell, expected in ((ZMQInteractiveShell(), True), (terminal(), False), (None, False)):
        monkeypatch.setitem(
            sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell)
        )
        assert is_notebook() is expected


@pytest.fixture
def shown(monkeypatch):
    """Everything that a notebook would show, in the place of IPython."""
    pages: list[str] = []
    handle = SimpleNamespace(update=pages.append)

    def display(page, display_id):
        assert display_id is True
        pages.append(page)
        return handle

    kernel = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    return pages


def test_the_bar_of_a_notebook_moves_with_the_rounds(shown, tmp_path):
    x = np.eye(4).repeat(20, 0)
    settings = {"data": {"clients": 2}, "training": {"rounds": 2}, "threads": 1}
    udpfl.run(settings, data=(x, x.argmax(1)), model="logistic", out=str(tmp_path / "run"))
    assert len(shown) == 4
    assert "preparing" in shown[0]
    assert 'value="1"' in shown[1]
    assert "accuracy" in shown[1]
    assert "round 2 of 2" in shown[-1]
    assert "done in" in shown[-1]


def test_a_reason_is_shown_as_text(shown):
    bar = NotebookBar()
    bar.on_start(SETTINGS, None)
    bar.on_end(SimpleNamespace(metrics=[], stopped="<b>no</b> budget", seconds=1.0))
    assert "&lt;b&gt;no" in shown[-1]


def test_whoever_shows_progress_already_gets_no_second_bar(shown, tmp_path):
    class Own(udpfl.Observer):
        shows_progress = True

    x = np.eye(4).repeat(20, 0)
    settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "threads": 1}
    own = {"data": (x, x.argmax(1)), "model": "logistic", "out": str(tmp_path / "run")}
    udpfl.run(settings, **own, observers=[Own()])
    assert shown == []
