"""Files, layers and overrides of a configuration, and the command that prints it."""

from __future__ import annotations

import copy
import json
import tomllib
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.config.refusals import refused
from udpfl.cli.config import config as command
from udpfl.config import (
    Config,
    DataConfig,
    PrivacyConfig,
    TrainingConfig,
    apply,
    dump,
    example,
    load,
    per_client,
    read,
    schema,
)
from udpfl.errors import InvalidInput

# Files, layers and overrides


@pytest.mark.parametrize(
    ("content", "line"),
    [("seed = 1\nrounds 5\n", 2), ("seed = 1\n\nseed = 2\n", 3), ("seed = 1\n[data\n", 2),
     ('seed = 1\nout = """a\nb', 3)],
)  # fmt: skip
def test_bad_toml_names_file_and_line(tmp_path, content, line):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        read(path)
    assert caught.value.parameter == "config"
    assert caught.value.message.startswith(f"{path} line {line}: ")
    assert "(at " not in caught.value.message


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no file .*missing\.toml"):
        load(tmp_path / "missing.toml")
    with pytest.raises(InvalidInput, match="cannot read"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'out = "\xe9t\xe9"')
    with pytest.raises(InvalidInput, match=r"latin\.toml is not UTF-8"):
        load(tmp_path / "latin.toml")
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbfseed = 4")
    assert load(tmp_path / "bom.toml").seed == 4


def test_overrides_are_toml_or_else_text():
    texts = ["training.rounds=5", "privacy.epsilon=[1,2]", "data.name=my.module:load",
             "out = 2024-01-31", "data.options.scale={age = [0, 100]}", "data.options.path=a=b",
             "model.options.bias=true", "data.options.path=c=d", "data.dir=x\ny=1"]  # fmt: skip
    assert apply({}, texts) == {
        "training": {"rounds": 5},
        "privacy": {"epsilon": [1, 2]},
        "data": {
            "name": "my.module:load",
            "options": {"scale": {"age": [0, 100]}, "path": "c=d"},
            "dir": "x\ny=1",
        },
        "out": "2024-01-31",
        "model": {"options": {"bias": True}},
    }
    for wrong in ("training.rounds", "=5", "training..rounds=5", ".=5"):
        with pytest.raises(InvalidInput, match=r"set: must look like training\.rounds=5"):
            apply({}, [wrong])


def test_overrides_leave_the_tables_they_were_given_alone():
    values = {"model": {"options": {"a": 1}}}
    assert apply(values, ["model.options.a=2"]) == {"model": {"options": {"a": 2}}}
    assert values == {"model": {"options": {"a": 1}}}


def test_later_layers_win_and_overrides_over_all(tmp_path):
    path = tmp_path / "run.toml"
    privacy = '[privacy]\nmechanism = "auto"\nclip = 2.0\n'
    path.write_text(f"seed = 2\n[training]\nrounds = 2\nlocal_steps = 2\n{privacy}")
    base = {"training": {"rounds": 1, "local_steps": 1, "warmup": 1}, "privacy": "none"}
    expected = {"rounds": 3, "local_steps": 2, "warmup": 1}
    settings = ["training.rounds=3"]
    for start in (base, {**base, "training": TrainingConfig(**base["training"])}, load(base)):
        config = load(start, path, overrides=settings)
        assert config.training == TrainingConfig(**expected)
        assert config.privacy == PrivacyConfig(clip=2.0)
        assert config.seed == 2


def test_layers_of_every_kind_in_any_number(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[training]\nrounds = 2\n")
    assert load(None, None) == load({}) == load(Config()) == load() == Config()
    layers = ({"training": {"rounds": 1, "warmup": 1}}, None, str(path), {"seed": 3}, {"seed": 4})
    assert load(*layers) == Config(seed=4, training=TrainingConfig(rounds=2, warmup=1))
    # A model says every key, its defaults as well, and so hides all that lies below.
    assert load(*layers, {"training": TrainingConfig(warmup=5)}).training.rounds == 80
    assert load(*layers, Config(threads=2)) == Config(threads=2)
    assert load(Config(threads=2), {"threads": None}) == Config()
    frozen = MappingProxyType({"training": MappingProxyType({"rounds": 7})})
    assert load(frozen) == Config(training=TrainingConfig(rounds=7))
    for both in ((frozen, {"training": {"warmup": 1}}), ({"training": {"warmup": 1}}, frozen)):
        assert load(*both) == Config(training=TrainingConfig(rounds=7, warmup=1))


def test_layers_stay_as_they_were_and_share_nothing_with_the_result():
    first = {"training": {"rounds": 1}, "model": {"options": {"a": [1]}}, "record_updates": [1]}
    whole = Config(record_updates=[2])
    before = copy.deepcopy((first, whole))
    for layers in ((first,), (whole, first), (first, {"training": {"warmup": 1}}), (whole,)):
        config = load(*layers, overrides=["training.rounds=4", "model.options.b=1"])
        config.model.options["a"] = 5
        config.record_updates.append(3)
        assert (first, whole) == before


@pytest.mark.parametrize("wrong", [5, ["run.toml"], b"run.toml", PrivacyConfig()])
def test_what_is_no_layer_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"^config: must be a file, a mapping or a Config, got"):
        load({}, wrong)


def test_keys_that_are_no_text_are_refused():
    assert str(refused({1: 2})) == "config: keys must be text, got 1"
    assert str(refused({"training": {1: 2}})) == "training: keys must be text, got 1"


def test_a_section_that_is_no_table_replaces_and_gives_way():
    table, off = {"privacy": {"epsilon": 2.0}}, {"privacy": "none"}
    assert load(table, off).privacy == PrivacyConfig(mechanism="none")
    again = load(table, off, {"privacy": {"clip": 3.0, "mechanism": "auto"}}).privacy
    assert again == PrivacyConfig(clip=3.0)  # nothing of what was there before comes back
    assert load(load(off), {"privacy": PrivacyConfig(clip=3.0)}).privacy == again
    with pytest.raises(InvalidInput, match=r"^training: must be a table, got 5"):
        load({"training": {"rounds": 1}}, {"training": 5})


def test_options_are_replaced_as_a_whole(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[model]\nname = "mlp"\noptions = { hidden = [8] }\n')
    config = load({"model": {"options": {"activation": "relu"}}}, path)
    assert config.model.options == {"hidden": [8]}


def test_privacy_is_turned_off_and_on_again():
    for off in ({"privacy": "none"}, {"privacy": {"mechanism": "none", "epsilon": 3.0}}):
        config = load(off)
        assert config.privacy == PrivacyConfig(mechanism="none")
        assert tomllib.loads(dump(config))["privacy"] == "none"
        assert load(tomllib.loads(dump(config))) == config
    again = load({"privacy": "none"}, overrides=["privacy.mechanism=laplace", "privacy.epsilon=1"])
    assert (again.privacy.mechanism, again.privacy.epsilon) == ("laplace", 1.0)
    for layers, overrides in (
        ([{"privacy": {"ledger": "l"}}], ["privacy=none"]),
        ([], ["privacy.ledger=l", "privacy=none"]),
        ([{"privacy": {"ledger": "l"}}, {"privacy": "none"}], []),
    ):
        with pytest.raises(InvalidInput, match="without privacy cannot be charged"):
            load(*layers, overrides=overrides)
    for layers, overrides in (
        ([{"privacy": "none"}], ["privacy.epsilon=1"]),
        ([], ["privacy=none", "privacy.ledger=l"]),
        ([{"privacy": "none"}, {"privacy": {"epsilon": 2.0}}], []),
    ):
        with pytest.raises(InvalidInput, match="to turn privacy on"):
            load(*layers, overrides=overrides)
    assert refused({"privacy": {"mechanism": "none", "epsilon": -3.0}}).parameter == (
        "privacy.epsilon"
    )


def test_lists_are_dealt_out_in_turn():
    assert per_client(8.0, 3) == [8.0, 8.0, 8.0]
    assert per_client([1.0, 2.0], 5) == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert per_client("gaussian", 2) == ["gaussian", "gaussian"]


# Round trip


text = st.text(min_size=1, max_size=12)
number = st.floats(min_value=1e-300, allow_infinity=False) | st.integers(1, 10**6)
fraction = st.floats(0, 1, exclude_max=True)
count = st.integers(1, 10**9)
plain = st.recursive(
    text | st.integers() | st.booleans() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
options = st.dictionaries(st.text(), plain, max_size=3)


def one_or_some(values):
    return values | st.lists(values, min_size=1, max_size=3)


def table(**fields):
    return st.fixed_dictionaries({}, optional=fields)


def either(*settings):
    """One of the settings: keys that are only of use together."""
    return st.one_of(map(st.fixed_dictionaries, settings))


def joined(*tables):
    return st.tuples(*tables).map(lambda parts: {k: v for part in parts for k, v in part.items()})


configurations = table(
    seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:12"]),
    threads=count,
    out=text,
    record_updates=st.lists(st.integers(1, 40), max_size=3),
    data=joined(either(
        {}, {"partition": st.just("dirichlet"), "alpha": number},
        {"partition": st.just("power-law"), "exponent": number},
    ), table(
        name=text, dir=text, clients=st.integers(3, 9),
        public=fraction | st.integers(0, 10**6), test=st.floats(0.01, 0.99), options=options,
        declared_sizes=st.sampled_from(["auto", "partition"]) | count,
        task=st.sampled_from(["classification", "regression"]),
    )),
    model=table(name=text, options=options),
    privacy=st.just("none") | table(
        mechanism=st.just("none") | one_or_some(text.filter(lambda name: name != "none")),
        epsilon=one_or_some(number), delta=one_or_some(fraction), clip=one_or_some(number),
        accounting=st.sampled_from(["vector", "scalar"]), norm=st.sampled_from(["l1", "linf"]),
        exhausted=st.sampled_from(["refuse", "skip", "fit"]),
        randomness=st.sampled_from(["entropy", "seeded"]),
    ),
    training=joined(either(
        {}, {"schedule": st.sampled_from(["linear", "cosine"]),
             "final_learning_rate": st.floats(0, 1)},
    ), table(
        algorithm=text, rounds=st.integers(40, 10**6), clients_per_round=st.integers(1, 3),
        sampling_rate=st.floats(0, 1, exclude_min=True), learning_rate=number,
        server_momentum=fraction, averaging=fraction, chunk=count, options=options,
    )),
)  # fmt: skip


@given(configurations)
def test_what_is_written_reads_back_exactly(values):
    config = load(values)
    written = dump(config)
    again = load(tomllib.loads(written))
    assert again == config
    assert dump(again) == written
    for key, value in values.items():  # and nothing that was asked for got lost on the way
        if not isinstance(value, dict):
            assert config.model_dump()[key] == value
        elif value.get("mechanism") != "none":
            section = getattr(config, key)
            assert all(getattr(section, name) == wanted for name, wanted in value.items())


def test_a_tuple_among_the_options_becomes_a_list():
    config = load({"model": {"options": {"hidden": (8, (4,))}}})
    assert config.model.options == {"hidden": [8, [4]]}


# The command


def test_the_command_prints_schema_example_and_the_full_configuration(tmp_path):
    run = CliRunner().invoke
    assert json.loads(run(command, ["schema"]).output) == schema()
    assert run(command, ["example"]).output == example()
    assert "check" in run(command, []).output
    path = tmp_path / "run.toml"
    path.write_text("seed = 5\n")
    sets = ["--set", "data.clients=3", "--set", "out=x"]
    checked = run(command, ["check", str(path), *sets, "--full"])
    assert checked.exit_code == 0
    expected = Config(seed=5, out="x", data=DataConfig(clients=3))
    assert load(tomllib.loads(checked.output)) == expected
    wrong = run(command, ["check", str(path), "--set", "training.lr=3"])
    assert wrong.exit_code == 2
    assert wrong.stdout == ""
    assert "training.lr: unknown key" in wrong.stderr
