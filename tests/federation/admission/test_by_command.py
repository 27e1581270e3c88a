"""Whether a run may begin: walked through as a user would."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import udpfl
from udpfl import Composed, PureDP, Repeated
from udpfl.accounting.filter import Filter
from udpfl.accounting.serial import event_from_dict
from udpfl.ledger.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = """
threads = 1
[data]
name = "table"
partition = "column"
by = "site"
clients = 2
declared_sizes = [40, 40]
[data.options]
path = "patients.csv"
target = "ill"
labels = ["0", "1"]
scale = { age = [0, 100], dose = [0, 10] }
[model]
name = "logistic"
[privacy]
mechanism = "gaussian"
epsilon = 4.0
ledger = "site.sqlite"
[training]
rounds = 3
"""


def table(path, *, edit=None, seed=0):
    """Two hospitals with 40 patients each."""
    rng = np.random.default_rng(seed)
    rows = [
        [site, int(rng.integers(0, 100)), round(float(rng.uniform(0, 10)), 2), number % 2]
        for number in range(40)
        for site in ("north", "south")
    ]
    if edit is not None:
        rows[edit][1] += 1
    lines = ["site,age,dose,ill", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    table(tmp_path / "patients.csv")
    return tmp_path


def train(udpfl_, *settings, config="run.toml"):
    return udpfl_("run", config, *(word for own in settings for word in ("--set", own)))


def releases(udpfl_):
    _, out, _ = udpfl_("budget", "show", "site.sqlite", "--json")
    return {(row["client"], row["block"]): row["releases"] for row in json.loads(out)}


REFUSED = (
    r"udpfl: error: north, south: the budget in site\.sqlite is too small for this run; nothing "
    r"was trained\. north has ε = 4 at δ = 1e-05, of which ε = [34][.0-9]* is spent; "
    r".*udpfl budget set"
)


def test_a_walk_through_the_command_line(place, udpfl_):
    """After the limit nothing that leaves the people the same trains again; other people do."""
    code, out, err = train(udpfl_)
    assert (code, err) == (0, "")
    assert "by the filter" in " ".join(out.split())
    spent = releases(udpfl_)
    assert spent == {("north", ""): 3, ("south", ""): 3}
    folders = sorted(p.name for p in (place / "runs").iterdir())

    def refused(*settings, **more):
        code, out, err = train(udpfl_, *settings, **more)
        assert (code, out) == (1, "")
        assert re.match(REFUSED, err), err
        assert err.count("\n") == 1
        assert releases(udpfl_) == spent
        assert sorted(p.name for p in (place / "runs").iterdir()) == folders

    refused()
    refused("seed=1")
    refused("data.test=0.3")
    refused("data.options.scale={age = [0, 120], dose = [0, 10]}")
    refused("data.options.scale={age = [0, 100], dose = [0, 20]}")
    table(place / "patients.csv", edit=7)
    refused()
    table(place / "patients.csv")
    (place / "patients.csv").rename(place / "people.csv")
    refused("data.options.path=people.csv")
    (place / "other.toml").write_text(CONFIG.replace('"patients.csv"', '"people.csv"'))
    refused(config="other.toml")

    # Other people, by a statement on record only.
    table(place / "patients.csv", seed=9)
    code, _, err = train(udpfl_, "data.block=2026-Q3")
    assert code == 2
    assert "the ledger has no block '2026-Q3' of north" in err
    add = ("budget", "block", "add", "site.sqlite", "all", "2026-Q3", "--reason", "new patients")
    code, _, err = udpfl_(*add)
    assert code == 2
    assert "--disjoint" in err
    assert udpfl_(*add, "--disjoint", "--by", "Ada")[0] == 0
    code, out, err = train(udpfl_, "data.block=2026-Q3", "out=block")
    assert (code, err) == (0, "")
    said = json.loads((place / "block" / "summary.json").read_text())
    for name in ("north", "south"):
        (note,) = [n for n in said["clients"][name]["assumptions"] if "2026-Q3" in n]
        assert note.startswith(
            f"assumes that nobody whose record is in the block 2026-Q3 of {name}"
        )
        assert note.endswith(": new patients")
        assert "Ada said on" in note
    assert releases(udpfl_)[("north", "2026-Q3")] == 3
    code, out, _ = udpfl_("report", "block", "--json")
    assert code == 0
    assert '"verified"' in out
    # The same records cannot be a block: that nobody is in two is plainly not so.
    code, _, err = train(udpfl_, "data.block=2026-Q4")
    assert code == 2
    assert "is known there as" in err


def test_a_higher_budget_trains_again_and_history_tells_why(place, udpfl_):
    assert train(udpfl_, "out=first")[0] == 0
    higher = ("budget", "set", "site.sqlite", "all", "--epsilon", "6", "--delta", "1e-5")
    code, _, err = udpfl_(*higher)
    assert code == 2
    assert "is needed to raise a budget: north has ε = 4" in err
    assert udpfl_(*higher, "--reason", "ethics vote", "--by", "Ada")[0] == 0
    assert train(udpfl_, "out=second", "privacy.epsilon=2")[0] == 0
    with Ledger(place / "site.sqlite") as ledger:
        assert 4 < ledger.statement(1).epsilon <= 6
    code, out, _ = udpfl_("budget", "history", "site.sqlite")
    assert code == 0
    for word in ("first", "second", "ethics vote", "Ada", "reserved"):
        assert word in " ".join(out.split())
    assert "north" not in udpfl_("budget", "history", "site.sqlite", "--client", "south")[1]


def test_what_would_fit_fits(place, udpfl_):
    """The refusal's offers are true: so many rounds train, and so does so much noise."""
    assert train(udpfl_)[0] == 0
    raised = ("--epsilon", "5.2", "--delta", "1e-5", "--reason", "more rounds")
    assert udpfl_("budget", "set", "site.sqlite", "all", *raised)[0] == 0
    code, _, err = train(udpfl_, "training.rounds=60")
    assert code == 1
    offered = (
        r"(\d+) of 60 rounds \(with privacy.epsilon = ([\d.]+)\) or 60 rounds with noise ([\d.]+) "
    )
    rounds, epsilon, noise = re.search(offered, err).groups()
    assert 0 < int(rounds) < 60
    backup = (place / "site.sqlite").read_bytes()
    fewer = (f"training.rounds={rounds}", f"privacy.epsilon={epsilon}")
    assert train(udpfl_, *fewer)[0] == 0
    assert udpfl_("budget", "verify", "site.sqlite")[0] == 0
    for end in ("-wal", "-shm"):
        (place / f"site.sqlite{end}").unlink(missing_ok=True)
    (place / "site.sqlite").write_bytes(backup)
    with Ledger(place / "site.sqlite") as ledger:
        held = ledger.held(1)
    assert train(udpfl_, "training.rounds=60", "privacy.exhausted=fit", "out=fit")[0] == 0
    people = json.loads((place / "fit" / "participants.json").read_text())
    stds = {event_from_dict(own["release"]).mechanism.noise_std for own in people}
    assert [f"{std:.3g}" for std in stds] == [noise]
    planned = event_from_dict(people[0]["release"])
    per_round = udpfl.PoissonSampled(people[0]["rate"], planned)
    rule = Filter.planned(4.0, 1e-5)  # fixed when the account was opened, for its first budget
    total = rule.epsilon(Composed([held, Repeated(per_round, 60)]), 1e-5)
    assert 0.99 * 5.2 < total <= 5.2


def test_free_frees_the_run_that_is_meant(place, udpfl_):
    with Ledger(place / "site.sqlite") as ledger:
        alice = ledger.account("alice", "aa")
        for run in ("one", "two"):
            (place / run / "same").mkdir(parents=True)
            (place / run / "same" / "run.json").write_text(json.dumps({"id": run}))
            ledger.begin_run(
                run, randomness="entropy", accounting="vector", description={"folder": "same"}
            )
            ledger.reserve(run, {alice: PureDP(0.1)})
    free = ("budget", "free", "site.sqlite")
    code, _, err = udpfl_(*free, "elsewhere/same", "--reason", "dead")
    assert code == 2
    assert "is the folder of 2 runs: give the run's id" in err
    assert udpfl_(*free, "two/same", "--reason", "dead")[0] == 0
    with Ledger(place / "site.sqlite") as ledger:
        assert list(ledger.reserved(alice)) == ["one"]
    assert udpfl_(*free, "one", "--reason", "dead")[0] == 0


DIVIDED = CONFIG.replace('partition = "column"\nby = "site"', 'partition = "iid"').replace(
    "[data.options]", '[data.options]\nby = "site"'
)


@pytest.mark.parametrize("order", [(DIVIDED, CONFIG), (CONFIG, DIVIDED)])
def test_records_get_no_new_budget_by_another_kind_of_partition(place, udpfl_, order):
    for number, config in enumerate(order):
        (place / f"{number}.toml").write_text(config)
    assert train(udpfl_, config="0.toml")[0] == 0
    code, _, err = train(udpfl_, config="1.toml")
    assert code == 2
    assert "records of this data set may be at other clients than in earlier runs" in err
    assert len(releases(udpfl_)) == 2
    assert len(list((place / "runs").iterdir())) == 1  # it never began


def wards(path):
    """The same patients, each in a ward beside the hospital, and hospitals by number."""
    rows = path.read_text().splitlines()
    lines = [f"{rows[0]},ward"] + [
        f"{row},{'xyz'[number % 3]}" for number, row in enumerate(rows[1:])
    ]
    path.write_text("\n".join(lines) + "\n")


def test_the_same_people_get_no_second_budget_by_another_column(place, udpfl_):
    wards(place / "patients.csv")
    (place / "run.toml").write_text(
        CONFIG.replace("[data.options]", '[data.options]\nby = ["site", "ward"]')
    )
    assert train(udpfl_)[0] == 0
    ward = ("data.by=ward", "data.clients=3", "data.declared_sizes=auto")
    code, _, err = train(udpfl_, *ward)
    assert code == 2
    assert re.search(
        r"privacy\.ledger: x is new in this ledger, and its records may have been charged to north",
        err,
    ), err
    assert len(releases(udpfl_)) == 2


def test_a_new_client_joins_by_a_statement_on_record(place, udpfl_):
    assert train(udpfl_)[0] == 0
    renamed = (place / "patients.csv").read_text().replace("south", "St. Anna")
    (place / "patients.csv").write_text(renamed)
    for seed in (0, 1):  # exactly the same records, and another test split of them
        code, _, err = train(udpfl_, f"seed={seed}", "privacy.exhausted=skip")
        assert code == 2
        assert "St. Anna is known there as south" in err.replace("the data of ", "")
    table(place / "patients.csv", seed=3)
    (place / "patients.csv").write_text(
        (place / "patients.csv").read_text().replace("south", "east")
    )
    code, _, err = train(udpfl_, "privacy.exhausted=skip")
    assert code == 2
    assert "east is new in this ledger" in err
    add = ("budget", "client", "add", "site.sqlite", "east", "--reason", "joined in May")
    assert udpfl_(*add)[0] == 2  # without --disjoint
    assert udpfl_(*add, "--disjoint", "--by", "Ada")[0] == 0
    assert udpfl_(*add, "--disjoint")[0] == 2  # twice
    code, _, err = train(udpfl_, "privacy.exhausted=skip", "out=joined")
    assert code == 0, err
    said = json.loads((place / "joined" / "summary.json").read_text())["clients"]["east"]
    (note,) = [n for n in said["assumptions"] if "east" in n]
    assert note.startswith("assumes that nobody whose record is at east is at another client")
    assert "Ada said on" in note
    assert note.endswith(": joined in May")
    assert "east joins" in " ".join(udpfl_("budget", "history", "site.sqlite")[1].split())


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["01", "02"], ["01", "02"]),
        (["9", "10"], ["9", "10"]),
        (["K\u00f6ln", "Ko\u0308ln"], ["K\u00f6ln"]),
    ],
)
def test_clients_are_named_as_their_column_is_written(place, udpfl_, values, names):
    """Else one more row with another kind of name would rename all of them."""
    text = (place / "patients.csv").read_text()
    text = text.replace("north", values[0]).replace("south", values[1])
    (place / "patients.csv").write_text(text)
    sizes = ("declared_sizes=auto", f"clients={len(names)}")
    code, _, err = train(udpfl_, *(f"data.{own}" for own in sizes))
    assert code == 0, err
    assert [client for client, _ in releases(udpfl_)] == names
