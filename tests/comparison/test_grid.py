"""The grid of a comparison: names, values, seeds and every combination."""

from __future__ import annotations

import re
from itertools import product

import pytest

from udpfl.comparison._grid import grid_of
from udpfl.comparison.axes import key_of, read_pairs, read_seeds, read_vary
from udpfl.config import load
from udpfl.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("mechanism", "privacy.mechanism"),
        ("epsilon", "privacy.epsilon"),
        ("algorithm", "training.algorithm"),
        ("clip", "privacy.clip"),
        ("rounds", "training.rounds"),
        ("learning_rate", "training.learning_rate"),
        ("training.rounds", "training.rounds"),
        ("model", "model.name"),
        ("data", "data.name"),
        ("model.options.activation", "model.options.activation"),
    ],
)
def test_short_names(name, key):
    assert key_of(name) == key


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("epsilonn", "did you mean privacy.epsilon?"),
        ("privacy.epsilonn", "did you mean privacy.epsilon?"),
        ("training.epsilon", "did you mean privacy.epsilon?"),
        ("lr", "did you mean training.learning_rate?"),
        ("name", "data.name or model.name"),
        ("options", "is ambiguous: write "),
        ("seed", "--seeds"),
        ("out", "cannot be varied"),
        ("ledger", "its own ledger"),
        ("privacy", "privacy.mechanism"),
        ("xyzzy", "udpfl config example"),
        ("model.options.", "there is no key"),
        ("options.mu", "did you mean training.options.mu, model.options.mu, data.options.mu?"),
    ],
)
def test_names_that_cannot_be_varied(name, words):
    with pytest.raises(InvalidInput, match=re.escape(words)) as refused:
        key_of(name)
    assert refused.value.parameter == "vary"


def test_values_are_read_as_in_set():
    assert read_vary(["epsilon=2,[2, 8], 4.5", "mechanism=gaussian,'my,own'"]) == {
        "privacy.epsilon": [2, [2, 8], 4.5],
        "privacy.mechanism": ["gaussian", "my,own"],
    }
    assert read_vary(["model.options={a = 1, b = 2},{}"]) == {
        "model.options": [{"a": 1, "b": 2}, {}]
    }
    for wrong in ("epsilon", "epsilon=", "=2", "epsilon=2,,4", "epsilon=2,"):
        with pytest.raises(InvalidInput, match="must look like"):
            read_vary([wrong])
    with pytest.raises(InvalidInput, match="twice"):
        read_vary(["epsilon=2", "privacy.epsilon=4"])


def test_seeds_are_a_number_or_a_list():
    assert read_seeds("3") == 3
    assert read_seeds("3,5,8") == [3, 5, 8]
    assert read_seeds("5,") == [5]
    for wrong in ("", "a", "1,,2", "-1", "1.5", "²"):
        with pytest.raises(InvalidInput, match="must look like 3 or 3,5,8"):
            read_seeds(wrong)
    assert grid_of(load(), {}, 3).seeds == (0, 1, 2)
    assert grid_of(load(), {}, [4, 1, 4]).seeds == (4, 1)
    for wrong in (0, [], [-1], [True], ["0"]):
        with pytest.raises(InvalidInput, match=r"^seeds"):
            grid_of(load(), {}, wrong)


def test_the_grid_is_every_combination_over_the_base():
    base = load({"training": {"rounds": 7}, "model": {"options": {"width": 5}}})
    vary = {
        "mechanism": ["gaussian", "laplace"],
        "epsilon": [2, 4, 8],
        "model.options.bias": [True],
    }
    grid = grid_of(base, vary, 2)
    assert grid.keys == ("privacy.mechanism", "privacy.epsilon", "model.options.bias")
    expected = list(product(["gaussian", "laplace"], [2, 4, 8]))
    found = [(c.config.privacy.mechanism, c.config.privacy.epsilon) for c in grid.cells]
    assert found == expected
    for cell, (mechanism, epsilon) in zip(grid.cells, expected, strict=True):
        # The same through the other door: what `udpfl run --set` would make of it.
        sets = [f"privacy.mechanism={mechanism}", f"privacy.epsilon={epsilon}"]
        sets += ["model.options.bias=true", "seed=9"]
        assert cell.seeded(9) == load(base, overrides=sets)
        assert cell.config.model.options == {"width": 5, "bias": True}
    assert base.model.options == {"width": 5}


def test_a_value_that_fits_nowhere_is_bad_input_and_a_bad_combination_is_a_cell():
    with pytest.raises(InvalidInput, match=r"privacy\.epsilon: must be .* got 'much'"):
        grid_of(load(), {"epsilon": [2, "much"]}, 1)
    grid = grid_of(load(), {"data.clients": [2, 8], "clients_per_round": [2, 4]}, 1)
    refused = {tuple(c.settings.values()): c.refused for c in grid.cells if c.refused}
    assert refused.keys() == {(2, 4)}
    assert refused[2, 4].parameter == "training.clients_per_round"
    with pytest.raises(InvalidInput, match=r"set privacy\.mechanism to turn privacy on"):
        grid_of(load({"privacy": "none"}), {"epsilon": [2]}, 1)
    on = grid_of(load({"privacy": "none"}), {"epsilon": [2], "mechanism": ["laplace"]}, 1)
    assert on.cells[0].config.privacy.epsilon == 2
    for wrong in ({"epsilon": []}, {"epsilon": "2,4"}, {"epsilon": 2}, {"nothing": [1]}):
        with pytest.raises(InvalidInput, match=r"^vary"):
            grid_of(load(), wrong, 1)
    with pytest.raises(InvalidInput, match="twice"):
        grid_of(load(), {"epsilon": [2], "privacy.epsilon": [4]}, 1)


def test_what_only_some_cells_make_use_of_changes_those_alone():
    uneven = {"partition": "dirichlet", "alpha": 0.3}
    grid = grid_of(load({"data": uneven}), {"partition": ["iid", "dirichlet"]}, 1)
    assert [cell.config for cell in grid.cells] == [load(), load({"data": uneven})]
    # The rows where it makes no difference come to the same configuration, and so to one run.
    vary = {"partition": ["iid", "dirichlet"], "alpha": [0.3, 0.5, 2.0]}
    found = [cell.config for cell in grid_of(load(), vary, 1).cells]
    assert found[:3] == [load()] * 3
    assert [each.data.alpha for each in found[3:]] == [0.3, 0.5, 2.0]
    matched = {"harmonize": ["budget", "match"], "reference": [2.0]}
    found = [cell.config.privacy.reference for cell in grid_of(load(), matched, 1).cells]
    assert found == [None, 2.0]
    off = grid_of(load(), {"mechanism": ["none", "laplace"], "pace_ratio": [2.0]}, 1)
    assert not off.cells[0].config.privacy.enabled
    for vary in ({"pace_ratio": [2.0, 4.0]}, {"pace_ratio": [4.0], "pace": ["uniform"]}):
        with pytest.raises(InvalidInput, match=r"no effect unless privacy\.pace is") as refused:
            grid_of(load(), vary, 1)
        assert refused.value.parameter == "privacy.pace_ratio"


# Keys that go together


def test_values_that_go_together_are_one_axis():
    base = load({"model": {"name": "logistic"}})
    pair = {"epsilon": [2, 8], "learning_rate": [1, 3]}
    grid = grid_of(base, {"clip": [1, 2]}, 1, pair)
    assert grid.axes == (("privacy.clip",), ("privacy.epsilon", "training.learning_rate"))
    assert grid.keys == ("privacy.clip", "privacy.epsilon", "training.learning_rate")
    assert [tuple(cell.settings.values()) for cell in grid.cells] == [
        (1, 2, 1), (1, 8, 3), (2, 2, 1), (2, 8, 3),
    ]  # fmt: skip
    assert [cell.config.training.learning_rate for cell in grid.cells] == [1, 3, 1, 3]
    two = grid_of(base, {}, 1, [pair, {"clip": [1, 2], "rounds": [3, 4]}])
    assert len(two.cells) == 4
    lists = grid_of(base, {}, 1, {"epsilon": [[2, 8], [1, 4], [2, 8]], "clip": [1, 2, 1]})
    assert [cell.settings["privacy.epsilon"] for cell in lists.cells] == [[2, 8], [1, 4]]


def test_pairs_are_read_from_texts():
    assert read_pairs(["epsilon=2,[2, 8] with learning_rate=1,2 with clip=0.5,1"]) == [
        {
            "privacy.epsilon": [2, [2, 8]],
            "training.learning_rate": [1, 2],
            "privacy.clip": [0.5, 1],
        }
    ]
    assert read_pairs(['model.options.a="x with y",z  with  clip=1,2']) == [
        {"model.options.a": ["x with y", "z"], "privacy.clip": [1, 2]}
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon=2,8", "must look like 'epsilon=2,8 with learning_rate=1,2'"),
        ("epsilon=2,8 and clip=1,2", "must look like"),
        ("epsilon=2,8 with clip=1,", "must look like"),
        ("epsilon=2,8 with clipp=1,2", "did you mean privacy.clip?"),
        ("epsilon=2,8 with privacy.epsilon=1,2", "a key is named twice"),
        ("epsilon=2,8 with seed=1,2", "seed cannot be varied"),
        ("epsilon=2,8 with clip=1", "privacy.epsilon has 2, privacy.clip has 1"),
    ],
)
def test_pairs_that_are_refused(text, words):
    with pytest.raises(InvalidInput, match=re.escape(words)) as refused:
        grid_of(load({}), {}, 1, read_pairs([text]))
    assert refused.value.parameter == "pair"


def test_a_pair_needs_two_keys_that_vary_nowhere_else():
    with pytest.raises(InvalidInput, match="needs two keys or more"):
        grid_of(load({}), {}, 1, {"epsilon": [1, 2]})
    with pytest.raises(InvalidInput, match=r"privacy\.epsilon is varied twice"):
        grid_of(load({}), {"epsilon": [1]}, 1, {"privacy.epsilon": [2], "clip": [1]})
    with pytest.raises(InvalidInput, match="clip needs a list of values, got 1"):
        grid_of(load({}), {}, 1, {"epsilon": [2], "clip": 1})


def test_a_step_that_fits_no_cell_is_refused():
    with pytest.raises(InvalidInput, match="epsilon"):
        grid_of(load({}), {}, 1, {"epsilon": [2, "much"], "clip": [1, 2]})
