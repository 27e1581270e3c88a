"""The policy of a site: what a file may say, and what is wrong with it."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.site.samples import gate, message_of, policy, request
from udpfl import InvalidInput
from udpfl.config.documents import example
from udpfl.data import as_dataset
from udpfl.site import Policy

pytestmark = pytest.mark.usefixtures("one_thread")


def refused(tmp_path, **changes):
    with pytest.raises(InvalidInput) as error:
        policy(tmp_path, **changes)
    return dict(error.value.problems)


def test_the_commented_example_is_a_policy():
    found = Policy.of(tomllib.loads(example(Policy)))
    assert found.budget.runs == "many"
    assert not found.server.seeded_noise
    assert found.releases.accounting == ["vector"]


def test_all_problems_are_told_at_once(tmp_path):
    with pytest.raises(InvalidInput) as error:
        Policy.of({"name": "a b", "data": {"nam": "table"}, "releases": {"in_all": 0}})
    assert set(dict(error.value.problems)) == {
        "name",
        "data.name",
        "data.nam",
        "data.declared_size",
        "budget",
        "releases.in_all",
        "releases.sampling_rate",
        "server",
    }


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"server": {"seeded_noise": True}}, "server.seeded_noise"),
        ({"releases": {"per_round": 99}}, "releases.per_round"),
        ({"releases": {"accounting": ["scalar"]}}, "releases.accounting"),
        ({"releases": {"mechanisms": ["gausian"]}}, "releases.mechanisms"),
        ({"releases": {"units": ["record"]}, "data": {"person": "p"}}, "releases.units"),
        ({"data": {"part": 1}}, "data.part"),
        ({"data": {"part": 3, "parts": 3}}, "data.part"),
        ({"data": {"rows_per_person": 3}}, "data.rows_per_person"),
        ({"budget": {"epsilon": -1.0}}, "budget.epsilon"),
        ({"budget": {"delta": 1.0}}, "budget.delta"),
        ({"name": "../up"}, "name"),
        ({"name": "x" * 65}, "name"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, changes, key):
    assert key in refused(tmp_path, **changes)


def test_paths_are_seen_from_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "clinic"
    folder.mkdir()
    text = example(Policy).replace('state = "state"', 'state = "kept"')
    (folder / "policy.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = Policy.read("clinic/policy.toml")
    assert found.ledger == folder / "kept" / "ledger.sqlite"
    assert found.data.dir == str(folder)
    assert found.code == str(folder)
    with pytest.raises(InvalidInput, match="there is no file"):
        Policy.read("policy.toml")


def table(path, rows=200):
    rng = np.random.default_rng(0)
    lines = ["patient,age,pressure,ill"]
    for number in range(rows):
        age, pressure = rng.uniform(0, 1, 2).round(3)
        ill = "yes" if age + pressure > 1 else "no"
        lines.append(f"p{number // 2},{age},{pressure},{ill}")
    path.write_text("\n".join(lines) + "\n")


def with_table(folder, **changes):
    table(folder / "patients.csv")
    options = {
        "path": "patients.csv",
        "target": "ill",
        "labels": ["no", "yes"],
        "scale": {"age": [0, 1], "pressure": [0, 1]},
    }
    own = {"name": "table", "options": options, "declared_size": 100, "dir": str(folder)}
    return gate(folder, data={**own, **changes})


def test_all_rows_of_a_table_are_trained_on(tmp_path):
    own = (
        with_table(tmp_path, options_ignored=None)
        if False
        else with_table(tmp_path, person="patient")
    )
    records, chosen = own._data
    assert len(chosen) == len(records.train) == 100, "a record is all rows of a person"
    facts = own.describe()
    assert (facts.input_shape, facts.outputs) == ((2,), 2)


def test_a_person_is_the_unit_where_the_policy_names_a_column(tmp_path):
    own = with_table(tmp_path, person="patient", rows_per_person=2)
    sent = replace(request(), tensors={"model": torch.zeros(6)})
    answer = own.answer(sent)
    assert '"unit": "person"' in message_of(answer).events[0]
    assert answer.privacy.unit == "person"


def test_records_are_not_split_by_what_other_records_there_are(tmp_path):
    values = policy(tmp_path).model_dump(exclude_none=True)
    values["data"] = {**values["data"], "test": 0.2}
    with pytest.raises(InvalidInput, match="a file of their own"):
        Policy.of(values)


def _arrays(*, seed, directory, test, options):
    """Arrays, without a word on how many classes there are."""
    labels = np.arange(60) % 2
    labels[17] = options["rare"]
    return np.zeros((60, 4), np.float32), labels


def _stated(*, seed, directory, test, options):
    return as_dataset(_arrays(seed=0, directory=None, test=0, options=options), classes=5)


def test_what_a_site_says_of_itself_does_not_depend_on_one_label(tmp_path):
    counted = {"name": f"{__name__}:_arrays", "options": {"rare": 4}}
    with pytest.raises(InvalidInput, match="must state the labels"):
        gate(tmp_path, data=counted).describe()
    for rare in (1, 4):
        stated = {"name": f"{__name__}:_stated", "options": {"rare": rare}}
        assert gate(tmp_path, data=stated).describe().outputs == 5
    unstated = {"path": "patients.csv", "target": "ill", "scale": "none", "ignore": ["patient"]}
    found = with_table(tmp_path, options=unstated)
    with pytest.raises(InvalidInput, match="must state the labels"):
        found.describe()
