"""Persons with several rows: sampled, clipped, charged and audited as one."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from torch import nn

import udpfl
from udpfl import InvalidInput
from udpfl.config import load
from udpfl.data import DataSet, Records
from udpfl.data.splits import hold_out_groups
from udpfl.engine import NormClipper
from udpfl.federation import Setup

pytestmark = pytest.mark.usefixtures("one_thread")

VISITS = 260


def visits(path, seed=0):
    """Visits of patients to three sites, one to four each; some patients go to two sites."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "site", "a", "b", "ill"])
        for _ in range(VISITS):
            a, b = rng.uniform(-1, 1, 2).round(4)
            patient = f"p{rng.integers(90)}"
            writer.writerow([patient, "xyz"[rng.integers(3)], a, b, "yes" if a + b > 0 else "no"])
    return str(path)


def config(path, **changes):
    settings = {
        "threads": 1,
        "data": {
            "name": "table", "person": "patient", "clients": 3, "declared_sizes": 25,
            "rows_per_person": 4,
            "options": {"path": path, "target": "ill", "scale": "none", "labels": ["no", "yes"],
                        "ignore": ["site"]},
        },
        "model": {"name": "logistic"},
        "privacy": {"mechanism": "gaussian", "epsilon": 8.0, "clip": 0.5},
        "training": {"rounds": 3, "sampling_rate": 0.5},
    }  # fmt: skip
    for section, own in changes.items():
        settings[section] = {**settings[section], **own} if isinstance(own, dict) else own
    return settings


@pytest.fixture
def table(tmp_path):
    return visits(tmp_path / "visits.csv")


def cells(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def rows_of(setup, persons):
    """Features of the rows of these records, as text to look them up in the file."""
    rows = setup.data.train.subset(persons).rows
    return {tuple(f"{value:.4f}" for value in row) for row in rows.inputs.tolist()}


def patients_at(path, found):
    named = {(f"{float(r['a']):.4f}", f"{float(r['b']):.4f}"): r["patient"] for r in cells(path)}
    return {named[row] for row in found}


def test_a_person_is_on_one_side_of_every_division(table):
    setup = Setup.of(load(config(table, data={**config(table)["data"], "public": 10})))
    parts = [*setup.parts, setup.public]
    names = [patients_at(table, rows_of(setup, part)) for part in parts]
    test = {tuple(f"{value:.4f}" for value in row) for row in setup.data.test.inputs.tolist()}
    names.append(patients_at(table, test))
    assert all(names)
    assert (
        sum(map(len, names)) == len(set.union(*names)) == len({r["patient"] for r in cells(table)})
    )
    assert [len(part) for part in setup.parts] == [len(own) for own in names[:3]]


def test_a_share_of_the_persons_is_held_out_not_of_their_rows():
    persons = np.repeat(np.arange(10), 4)
    kept, held_out = hold_out_groups([np.arange(40)], 0.2, seed=0, persons=persons)
    assert [len(set(persons[rows])) for rows in (*kept, *held_out)] == [8, 2]


def test_the_same_name_at_two_sites_is_hidden_at_each(table):
    data = {"partition": "column", "by": "site"}
    data["options"] = {k: v for k, v in config(table)["data"]["options"].items() if k != "ignore"}
    setup = Setup.of(load(config(table, data=data)))
    assert setup.names == ["x", "y", "z"]
    kept = {(f"{float(r['a']):.4f}", f"{float(r['b']):.4f}"): r for r in cells(table)}
    for name, part in zip(setup.names, setup.parts, strict=True):
        found = [kept[row] for row in rows_of(setup, part)]
        assert {row["site"] for row in found} == {name}
        assert len({row["patient"] for row in found}) == len(part)
    assert len(
        patients_at(table, rows_of(setup, setup.parts[0]))
        & patients_at(table, rows_of(setup, setup.parts[1]))
    )


def by_hand(network, person, loss, clip):
    """The sum of the gradients of a person's rows, each by automatic differentiation, clipped."""
    total = 0.0
    for x, y in zip(person.inputs, person.targets, strict=True):
        network.zero_grad()
        loss(network(torch.from_numpy(x)[None]), torch.as_tensor(y)[None]).sum().backward()
        total = total + torch.cat([p.grad.flatten() for p in network.parameters()]).double()
    return total * min(1.0, clip / float(total.norm()))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_gradients_of_rows_are_added_before_clipping(task):
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(24, 3)).astype(np.float32)
    labels = rng.integers(0, 2, 24)
    values = rng.normal(size=(24, 2)).astype(np.float32)
    person = np.array([f"p{i}" for i in rng.integers(0, 7, 24)])
    targets = labels if task == "classification" else values
    given = DataSet(
        "rows", task, Records(inputs, targets), Records(inputs[:5], targets[:5]),
        2 if task == "classification" else None, columns={"who": person},
    )  # fmt: skip
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    settings = load({"data": {"clients": 1, "person": "who", "name": "own"}})
    setup = Setup.of(settings, data=given, model=network)
    setup.check_model()
    x, y = setup.train
    clip = 0.7
    parameters = setup.start[None]
    assert setup.trained_model.layout.names == setup.model.layout.names

    def clipped(persons):
        pass_ = setup.trained_model.pass_gradients(
            parameters, x[None, persons], y[None, persons], torch.ones(1, len(persons), dtype=bool)
        )
        return NormClipper("l2", [clip]).clipped_sum(pass_).sum[0].double()

    everyone = list(range(len(x)))
    assert len(x) == len(set(person))
    wanted = [
        by_hand(network, setup.data.train.subset([i]).rows, setup.loss, clip) for i in everyone
    ]
    whole = clipped(everyone)
    assert torch.allclose(whole, torch.stack(wanted).sum(0), atol=2e-3)
    for i in everyone:
        rest = [j for j in everyone if j != i]
        assert float((whole - clipped(rest)).norm()) <= clip + 1e-9
        assert torch.allclose(whole - clipped(rest), wanted[i], atol=2e-3)


def test_the_unit_is_a_person_everywhere(table, tmp_path):
    ledger = str(tmp_path / "site.sqlite")
    settings = config(table, out=str(tmp_path / "run"), privacy={"ledger": ledger})
    done = udpfl.run(settings)
    assert done.config.privacy.unit == "person"
    assert done.privacy.unit == "person"
    assert "for one person with all rows at a client, added or removed" in str(done.privacy)
    assert "one person with all rows at one client" in done.report.read_text()
    held = done.ledger.spent(done.ledger.accounts()[0].id)
    assert "person" in str(held)
    plain = config(table, out=str(tmp_path / "rows"), privacy={"ledger": ledger})
    del plain["data"]["person"], plain["data"]["rows_per_person"]
    plain["data"]["options"]["ignore"] = ["site", "patient"]
    with pytest.raises(InvalidInput, match="for persons, but this run hides single records"):
        udpfl.run(plain)


def test_resume_and_another_split_find_the_same_people(table):
    by_site = {"partition": "column", "by": "site"}
    by_site["options"] = {
        k: v for k, v in config(table)["data"]["options"].items() if k != "ignore"
    }
    del (one := config(table, data=by_site))["data"]["rows_per_person"]
    first = Setup.of(load(one)).fingerprints
    other = Setup.of(load({**one, "seed": 5})).fingerprints
    assert first == other


def test_rows_beyond_the_bound_are_left_out_and_told_of(table, caplog):
    setup = Setup.of(load(config(table, data={"rows_per_person": 2})))
    assert setup.data.train.inputs.shape[1] == 2
    assert "rows are left out" in caplog.text
    assert not any("most rows" in own for own in setup.assumptions)
    del (free := config(table))["data"]["rows_per_person"]
    setup = Setup.of(load(free))
    assert any("most rows of a person are public" in own for own in setup.assumptions)


def test_rows_are_told_of_where_persons_are_not_named(table):
    plain = config(table)
    del plain["data"]["person"], plain["data"]["rows_per_person"]
    plain["data"]["options"]["ignore"] = ["site", "patient"]
    setup = Setup.of(load(plain))
    assert any("one row is all that there is about a person" in own for own in setup.assumptions)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"privacy": {"unit": "client"}}, "data.person: has no effect"),
        ({"data": {"person": "patients"}}, "no column 'patients'; did you mean patient"),
    ],
)
def test_what_does_not_go_together(table, changes, match):
    with pytest.raises(InvalidInput, match=match):
        Setup.of(load(config(table, **changes)))


def test_a_unit_without_persons():
    with pytest.raises(InvalidInput, match=r'privacy\.unit: "person" needs data\.person'):
        load({"privacy": {"unit": "person"}})
    assert load({"data": {"person": "who"}, "privacy": "none"}).privacy.enabled is False


def test_a_row_without_a_person(tmp_path):
    path = tmp_path / "visits.csv"
    visits(path)
    path.write_text(path.read_text() + "NA,x,0.1,0.2,yes\n")
    with pytest.raises(InvalidInput, match="column patient: the value is missing"):
        Setup.of(load(config(str(path))))


def test_several_sites_that_make_one_client_are_refused(table):
    data = {"partition": "column", "by": "site", "clients": 2}
    data["options"] = {k: v for k, v in config(table)["data"]["options"].items() if k != "ignore"}
    with pytest.raises(InvalidInput, match=r"data\.clients: several values of data\.by"):
        Setup.of(load(config(table, data=data)))


def test_a_ledger_has_one_meaning_of_a_person(table, tmp_path):
    text = (tmp_path / "visits.csv").read_text().splitlines()
    rows = [text[0] + ",visit", *(f"{row},v{i}" for i, row in enumerate(text[1:]))]
    (tmp_path / "visits.csv").write_text("\n".join(rows) + "\n")

    def run(name, person, ignore):
        privacy = {"ledger": str(tmp_path / "l.sqlite"), "exhausted": "fit"}
        own = config(table, out=str(tmp_path / name), training={"rounds": 1}, privacy=privacy)
        own["data"] = {**own["data"], "person": person}
        own["data"]["options"] = {**own["data"]["options"], "ignore": ["site", ignore]}
        return udpfl.run(own)

    done = run("first", "visit", "patient")
    assert "visit names the same persons in every run of this ledger" in str(done.privacy)
    with pytest.raises(InvalidInput, match="earlier runs on this ledger took persons from 'visit'"):
        run("second", "patient", "visit")


def owned(owners, test_who=("z", "z"), who="aabbccdd"):
    x = np.eye(8, dtype=np.float32)
    return DataSet(
        "rows", "classification", Records(x, np.arange(8) % 2), Records(x[:2], [0, 1]), 2,
        columns={"who": np.array(list(who))}, test_columns={"who": np.array(list(test_who))},
        owners=owners,
    )  # fmt: skip


def grouped(data, **settings):
    own = {"name": "own", "person": "who", **settings}
    return Setup.of(load({"data": own}), data=data, model=nn.Linear(8, 2))


def test_rows_that_nobody_owns_stay_nobodys():
    setup = grouped(owned((np.array([0, 1, 2]), np.array([4, 5]))))
    sizes = [len(setup.data.train.subset(part).rows) for part in setup.parts]
    assert sizes == [3, 2]


def test_persons_on_both_sides_are_refused():
    with pytest.raises(InvalidInput, match="1 persons have rows to train on and rows to test on"):
        grouped(owned((np.arange(4), np.arange(4, 8)), test_who="za"))


def test_the_same_person_at_two_clients(table, caplog, tmp_path):
    """Public or held out at one client is so at every client, and the owner is told."""
    data = {"partition": "column", "by": "site", "public": 12}
    data["options"] = {k: v for k, v in config(table)["data"]["options"].items() if k != "ignore"}
    setup = Setup.of(load(config(table, data=data)))
    assert "persons have rows at several clients" in caplog.text
    held = [set(setup.data.columns["patient"][part]) for part in (*setup.parts, setup.public)]
    assert not set.union(*held[:-1]) & held[-1]
    rows = cells(table)
    for number, site in enumerate("xyz"):
        with open(tmp_path / f"{site}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(row for row in rows if row["site"] == "xyz"[number])
    files = {"options": {**config(table)["data"]["options"], "path": str(tmp_path / "[xyz].csv")}}
    split = Setup.of(load(config(table, data=files))).data
    assert not set(split.columns["patient"]) & set(split.test_columns["patient"])


def test_rows_that_are_not_there_do_not_break_a_loss():
    def distance(outputs, targets):  # has no derivative where both are equal
        return (outputs - targets).square().sum(1).sqrt()

    x, y = np.ones((3, 2), dtype=np.float32), np.ones((3, 1), dtype=np.float32)
    data = DataSet("rows", "regression", Records(x, y), Records(x[:1], y[:1]), None,
                   columns={"who": np.array(["a", "a", "b"])})  # fmt: skip
    network = nn.Linear(2, 1)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    own = load({"data": {"name": "own", "clients": 1, "person": "who"}})
    setup = Setup.of(own, data=data, model=network, loss=distance)
    real = torch.ones(1, 2, dtype=bool)
    inputs, targets = (tensor[None] for tensor in setup.train)
    gradients = setup.trained_model.pass_gradients(setup.start[None], inputs, targets, real)
    assert torch.isfinite(gradients.norms(2)).all()
    assert (gradients.norms(2) > 0).all()


def test_the_option_alone_is_refused(table):
    plain = config(table)
    plain["data"]["options"]["person"] = plain["data"].pop("person")
    del plain["data"]["rows_per_person"]
    with pytest.raises(InvalidInput, match=r"data\.options\.person: is set as data\.person"):
        Setup.of(load(plain))
