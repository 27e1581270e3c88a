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
        ({"privacy": {"unit": "record"}}, "makes a person the unit"),
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
