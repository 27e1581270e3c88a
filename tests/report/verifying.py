"""Runs that are edited, and what their report says of them."""

from __future__ import annotations

import html
import json
import re
from contextlib import contextmanager

import pytest

import udpfl
from tests.small import blobs, linear
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.cli import main
from udpfl.ledger.ledger import Ledger
from udpfl.ledger.seals import Seals


def train(folder, rounds=2, clients=3, observers=(), **privacy):
    settings = {
        "out": str(folder), "threads": 1, "data": {"clients": clients},
        "training": {"rounds": rounds},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "mechanism": "gaussian", **privacy},
    }  # fmt: skip
    return udpfl.run(settings, data=blobs(), model=linear(), observers=observers).folder


@contextmanager
def sealing_nothing():
    """Runs inside are those of a version that did not know of seals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seals, "begin", lambda *_: None)
        patch.setattr(Seals, "end", lambda *_: None)
        yield


def report(capsys, *folders):
    """Exit code, the JSON objects, and the text of the page of a single run."""
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, folders), "--json", "--out", f"{folders[0]}/page.html"])
    out, err = capsys.readouterr()
    page = (folders[0] / "page.html").read_text()
    return stopped.value.code or 0, [json.loads(line) for line in out.splitlines()], page, err


def outcome(capsys, folder):
    code, (found,), page, _ = report(capsys, folder)
    assert found["run"] == str(folder)
    assert set(found) == {"run", "state", "reasons", "statement"}
    assert (code == 1) == (found["state"] == "contradicted")
    said = html.unescape(re.sub(r"<[^>]+>", " ", page.split("<script")[0].split("</style>")[1]))
    return found["state"], "; ".join(found["reasons"]), " ".join(said.split()), page


def is_green(page):
    """Whether anything on the page is in the colour of a guarantee."""
    return bool(re.search(r'class="[^"]*\bguarantee\b', page)) or '"colour":"guarantee"' in page


def contradicted(capsys, folder, reason):
    state, reasons, said, page = outcome(capsys, folder)
    assert state == "contradicted"
    assert reason in reasons
    assert f"Contradicted: {reasons}" in said
    assert "what it states about privacy contradicts its ledger, so no number holds." in said
    assert "There is nothing to sign: the folder and its ledger do not agree." in said
    assert "ε = " not in said.replace(reasons, "")
    assert not is_green(page)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def restamp(folder, change):
    """Write another header into the model."""
    path = folder / "model.safetensors"
    tensors, stamp = tensors_from_bytes(path.read_bytes())
    change(stamp)
    path.write_bytes(tensors_to_bytes(tensors, stamp))


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


def shared_with_backup(tmp_path):
    """A run on a shared ledger with room for more, and a copy of that from right after it."""
    shared, backup = tmp_path / "shared.sqlite", tmp_path / "backup.sqlite"
    first = train(tmp_path / "first", epsilon=4.0, ledger=str(shared), rounds=1)
    with Ledger(shared) as ledger:
        for own in ledger.accounts():
            ledger.set_budget(own.id, udpfl.Budget(20.0, 1e-3), reason="more runs")
        ledger._file._db.execute("VACUUM INTO ?", (str(backup),))
    return shared, backup, first


def older(folder):
    """A folder without seals, as a version before heads wrote it."""
    edit(folder / "summary.json", lambda summary: (summary.pop("head"), summary.pop("decided")))
    restamp(folder, lambda stamp: stamp.pop("head"))
    edit(folder / "run.json", lambda identity: identity.pop("ledger_from_here"))


def verify(capsys, ledger, *runs):
    against = [word for run in runs for word in ("--against", str(run))]
    with pytest.raises(SystemExit) as stopped:
        main(["budget", "verify", str(ledger), *against])
    return stopped.value.code or 0, capsys.readouterr().out
