"""The live page: who may see it, what it says, and how it looks in a real browser."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import udpfl
from tests.chromium import Chromium, executable
from tests.commands import command
from udpfl.errors import InvalidInput
from udpfl.live import LivePage


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr("udpfl.live.page._FAREWELL", 0.0)
    with LivePage() as page:
        yield page


def ask(page, path="", method="GET", **headers):
    """The status and the body of an answer, with the headers as given."""
    place = urlsplit(page.address)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
    connection.request(method, place.path + path if not path.startswith("/") else path,
                       headers=headers)  # fmt: skip
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer, body


def test_it_listens_on_this_machine_only(page):
    assert page._server._http.server_address[0] == "127.0.0.1"
    assert urlsplit(page.address).hostname == "127.0.0.1"


def test_the_token_is_asked_for(page):
    place = urlsplit(page.address)
    assert len(place.path.strip("/")) >= 32
    assert ask(page)[0] == 200
    assert ask(page, "data?after=0")[0] == 200
    for wrong in ("/", "/data", "/x/", "/x/data", place.path[:-2] + "/", place.path + "other",
                  "/%C3%A9/"):  # fmt: skip
        assert ask(page, wrong)[0] == 404, wrong
    with LivePage() as other:
        assert urlsplit(other.address).path != place.path


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1", ""]
)
def test_a_page_of_somebody_else_cannot_ask_under_its_own_name(page, host):
    status, _, body = ask(page, Host=host)
    assert status == 403
    assert page._server.token.encode() not in body


def test_the_name_of_this_machine_is_served(page):
    assert ask(page, Host=f"localhost:{urlsplit(page.address).port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_read_only(page, method):
    assert ask(page, method=method)[0] == 501


def test_nothing_is_loaded_from_elsewhere_or_kept(page):
    _, answer, body = ask(page)
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


def test_a_port_that_is_taken_is_refused(page):
    with pytest.raises(InvalidInput, match="cannot listen on port"):
        LivePage(urlsplit(page.address).port)


def test_it_ends_at_once_where_nobody_watches():
    page = LivePage()
    began = time.monotonic()
    with page:
        pass
    assert time.monotonic() - began < 1.5
    with (
        pytest.raises(OSError, match="refused"),
        socket.create_connection(("127.0.0.1", urlsplit(page.address).port), timeout=2),
    ):
        pass


def test_whoever_watches_is_told_the_end():
    page = LivePage()
    page.__enter__()
    ask(page, "data?after=0")
    ending = threading.Thread(target=page.__exit__, args=(KeyboardInterrupt,))
    ending.start()
    told = json.loads(ask(page, "data?after=0")[2])
    ending.join(5)
    assert told["state"] == "interrupted"
    assert not ending.is_alive()


class Asking(udpfl.Observer):
    """Asks the page after every round, as a browser does."""

    def __init__(self, page):
        self.page, self.answers = page, []

    def on_round(self, row):
        known = sum(len(answer["rows"]) for answer in self.answers)
        self.answers.append(json.loads(ask(self.page, f"data?after={known}")[2]))


def trained(page, tmp_path, **privacy):
    x = np.eye(4).repeat(20, 0)
    settings = {"data": {"clients": 2}, "training": {"rounds": 3}, "threads": 1,
                "privacy": {"epsilon": [2.0, 8.0], **privacy}}  # fmt: skip
    asking = Asking(page)
    run = udpfl.run(settings, data=(x, x.argmax(1)), model="logistic",
                    out=str(tmp_path / "run"), observers=[page, asking])  # fmt: skip
    return run, asking.answers


def test_a_run_arrives_round_by_round_with_the_budgets_of_its_clients(page, tmp_path):
    run, answers = trained(page, tmp_path)
    assert [[row["round"] for row in answer["rows"]] for answer in answers] == [[1], [2], [3]]
    assert {answer["state"] for answer in answers} == {"running"}
    assert [client["budget"] for client in answers[0]["clients"]] == [2.0, 8.0]
    for client in range(2):
        spent = [answer["clients"][client]["epsilon"] for answer in answers]
        assert 0 < spent[0] < spent[1] < spent[2]
        name = answers[-1]["clients"][client]["name"]
        assert spent[2] == pytest.approx(run.clients[name].epsilon)
    last = json.loads(ask(page, "data?after=3")[2])
    assert last["state"] == "finished"
    assert last["rows"] == []
    assert last["statement"] == str(run.privacy)
    assert last["report"] == str(run.report)


def test_a_run_on_a_shared_ledger_shows_its_accounts(page, tmp_path):
    run, answers = trained(page, tmp_path, ledger=str(tmp_path / "shared.sqlite"))
    for client in answers[-1]["clients"]:
        assert client["epsilon"] == pytest.approx(run.clients[client["name"]].epsilon)


def test_a_nominal_run_shows_nominal_numbers(page, tmp_path):
    run, answers = trained(page, tmp_path, accounting="scalar", mechanism="laplace")
    assert answers[-1]["rows"][0]["privacy"] == "nominal"
    for client in answers[-1]["clients"]:
        assert client["epsilon"] == pytest.approx(run.clients[client["name"]].epsilon)


def test_a_run_without_privacy_has_no_budgets(page, tmp_path):
    x = np.eye(4).repeat(20, 0)
    settings = {"data": {"clients": 2}, "training": {"rounds": 1}, "privacy": "none", "threads": 1}
    asking = Asking(page)
    udpfl.run(settings, data=(x, x.argmax(1)), model="logistic", out=str(tmp_path / "run"),
              observers=[page, asking])  # fmt: skip
    assert asking.answers[-1]["clients"] == []


def test_the_command_says_where_the_page_is(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    small = ("--set", "training.rounds=1", "--set", "model.name=logistic", "--set", "threads=1")
    code, _, err = command(capsys, "run", *small, "--live", "--json")
    assert code == 0
    assert "live page: http://127.0.0.1:" in err
    code, _, err = command(capsys, "run", *small, "--live-port", 8080)
    assert code == 2
    assert "--live-port: is the port of a page that only --live shows" in err


class Address:
    """What the browser opens as if it were a file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def resolve(self):
        return self

    def as_uri(self) -> str:
        return self.text


@pytest.mark.skipif(executable() is None, reason="there is no Chromium on this machine")
def test_it_is_drawn_in_a_browser_as_rounds_arrive(tmp_path: Path):
    browser, page = Chromium(tmp_path), LivePage()
    page.__enter__()
    try:
        page._about |= {"state": "running", "title": "<b>own</b>", "rounds": 9, "folder": "runs/a"}
        row = {"round": 1, "accuracy": 0.5, "loss": 1.0, "privacy": "guarantee", "seconds": 1.0,
               "epsilon": {"max": 2.0, "median": 1.0, "min": 1.0}}  # fmt: skip
        page._rows += [row, {**row, "round": 2, "accuracy": 0.6}]
        long = "a-client-with-a-rather-long-name-" * 3
        page._clients = [{"name": long, "epsilon": 1.0, "budget": 2.0}]
        for width in (1440, 390):
            for dark in (False, True):
                browser.open(Address(page.address), width=width, dark=dark)
                drawn = "document.documentElement.dataset.rounds"
                browser.run(f"new Promise(d => {{ const t = setInterval(() => {drawn} === '2' && "
                            "(clearInterval(t), d()), 20) })")  # fmt: skip
                assert browser.complaints() == []
                assert {urlsplit(each).netloc for each in browser.requests()} == {
                    urlsplit(page.address).netloc
                }
                assert browser.run("document.documentElement.scrollWidth") <= width
                assert browser.run("document.querySelectorAll('path.line').length") == 5
                assert browser.run("document.getElementById('title').textContent") == "<b>own</b>"
        with page._lock:
            page._rows.append({**row, "round": 3})
            page._about["state"] = "stopped"
            page._about["why"] = "no budget is left"
        browser.run("new Promise(d => { const t = setInterval(() => "
                    "document.documentElement.dataset.rounds === '3' && (clearInterval(t), d()), 20) })")  # fmt: skip  # noqa: E501
        assert browser.run("document.getElementById('said').textContent") == "no budget is left"
        asked = len(browser.requests())
        browser.run("new Promise(d => setTimeout(d, 1300))")
        assert len(browser.requests()) == asked  # it no longer asks
    finally:
        browser.close()
        page.__exit__(None)
