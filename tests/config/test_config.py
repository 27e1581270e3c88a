"""Configurations as people write them, plugins as people install them, and what is refused."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
import textwrap
import tomllib
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.repository import ROOT
from udpfl.cli.config import config as command
from udpfl.config import (
    Config,
    DataConfig,
    ModelConfig,
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
from udpfl.config.explaining import SYNONYMS
from udpfl.errors import InvalidInput, MissingExtra
from udpfl.plugins import resolve

SECTIONS = {
    "data": DataConfig, "model": ModelConfig, "privacy": PrivacyConfig, "training": TrainingConfig,
}  # fmt: skip
KEYS = [name for name in Config.model_fields if name not in SECTIONS] + [
    f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields
]


def refused(values: dict, *overrides: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        load(values, overrides=overrides)
    return caught.value


# Defaults and documentation


def test_defaults_pass_their_own_checks():
    assert Config.model_validate(Config().model_dump()) == Config() == load()


def test_two_configurations_share_nothing():
    first, second = Config(), Config()
    first.model.options["activation"] = "relu"
    first.record_updates.append(1)
    assert second == Config()
    assert second.model.options == {}


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Config().training.rounds = 5  # type: ignore[misc]


def test_the_example_is_the_default_and_names_every_key():
    text = example()
    assert load(tomllib.loads(text)) == Config()
    section = ""
    written = set()
    for line in text.splitlines():
        assert len(line) <= 100
        if found := re.match(r"\[(\w+)\]$", line):
            section = found[1] + "."
        elif found := re.match(r"(?:# )?(\w+) = ", line):
            written.add(section + found[1])
    assert written == set(KEYS)
    assert text.count("# Allowed: ") == len(KEYS)


def test_the_samples_of_keys_that_are_not_set_are_right():
    text = re.sub(r"^# (?=\w+ = )", "", example(), flags=re.MULTILINE)
    config = load(tomllib.loads(text), overrides=["data.partition=column"])
    assert (config.threads, config.data.by, config.privacy.ledger) == (
        4, "hospital", "budget.sqlite",
    )  # fmt: skip


def test_the_shipped_default_is_the_example():
    assert (ROOT / "configs/default.toml").read_text(encoding="utf-8") == example()
    assert load(ROOT / "configs/default.toml") == Config()


def test_the_mnist_configuration_says_what_it_should():
    config = load(ROOT / "configs/mnist.toml")
    assert (config.data.name, config.data.clients, config.data.partition) == ("mnist", 10, "iid")
    assert (config.model.name, config.model.options) == ("cnn-small", {"activation": "tanh"})
    assert config.privacy.enabled
    assert (config.privacy.mechanism, config.privacy.epsilon, config.privacy.clip) == (
        "gaussian", 8, 1,
    )  # fmt: skip
    training = config.training
    assert (training.rounds, training.local_steps) == (150, 2)
    assert (training.sampling_rate, training.learning_rate) == (0.05, 2)


def test_the_schema_describes_every_key():
    found = json.loads(json.dumps(schema()))
    described = dict(found["properties"])
    for section, model in SECTIONS.items():
        for name, field in found["$defs"][model.__name__]["properties"].items():
            described[f"{section}.{name}"] = field
    assert set(described) == {*KEYS, *SECTIONS}
    assert all(len(field["description"]) > 10 for field in described.values())
    rate = described["training.sampling_rate"]
    assert (rate["exclusiveMinimum"], rate["maximum"], rate["default"]) == (0, 1, 0.5)
    assert found["additionalProperties"] is False


# What is refused


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "-1"), ("seed", "1.5"), ("seed", str(2**63)), ("threads", "0"),
        ("device", "tpu"), ("device", "cuda:x"), ("out", '""'), ("schema_version", "2"),
        ("schema_version", "true"), ("record_updates", "[0]"), ("record_updates", "1"),
        ("data.clients", "0"), ("data.clients", "2.0"), ("data.clients", "true"),
        ("data.partition", "random"), ("data.alpha", "0"), ("data.public", "1.0"),
        ("data.public", "-1"), ("data.public", "true"), ("data.test", "0"), ("data.test", "1"),
        ("data.declared_sizes", "0"), ("data.declared_sizes", "[]"), ("data.task", "ranking"),
        ("data.declared_sizes", "other"), ("data.options", "5"), ("model.name", "5"),
        ("privacy.epsilon", "0"), ("privacy.epsilon", "inf"), ("privacy.epsilon", "nan"),
        ("privacy.epsilon", "[]"), ("privacy.epsilon", "[1, -1]"), ("privacy.epsilon", '"8"'),
        ("privacy.epsilon", "true"), ("privacy.delta", "1"), ("privacy.delta", "-1e-9"),
        ("privacy.clip", "0"), ("privacy.norm", "l3"), ("privacy.accountant", "zcdp"),
        ("privacy.mechanism", "[]"), ("privacy.randomness", "urandom"), ("privacy", "off"),
        ("training.rounds", "0"), ("training.rounds", '"8"'), ("training.sampling_rate", "0"),
        ("training.sampling_rate", "1.01"), ("training.learning_rate", "0"),
        ("training.learning_rate", "true"), ("training.final_learning_rate", "1.1"),
        ("training.server_momentum", "1"), ("training.averaging", "1"), ("training.warmup", "-1"),
        ("training.chunk", "0"), ("training.checkpoint_every", "0"), ("training.lanes", "many"),
        ("training", "5"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named_with_its_key_and_what_would_be_right(key, value):
    error = refused({}, f"{key}={value}")
    assert error.parameter == key
    try:
        shown = repr(tomllib.loads(f"v = {value}")["v"])
    except tomllib.TOMLDecodeError:
        shown = repr(value)
    assert re.fullmatch(rf"must be .+, got {re.escape(shown)}", error.message), error.message


@pytest.mark.parametrize(
    "override",
    [
        "data.public=1", "data.public=0.0", "privacy.delta=0", "privacy.epsilon=8",
        "training.sampling_rate=1", "training={schedule = 'linear', final_learning_rate = 1}",
        "device=cuda:3",
        "data.test=0.999", "training.clients_per_round=10", "record_updates=[1, 40]",
    ],
)  # fmt: skip
def test_the_edges_of_what_is_allowed(override):
    load(overrides=[override])


def test_numbers_keep_their_kind():
    config = load(overrides=["privacy.epsilon=[1, 2]", "training.learning_rate=2"])
    assert isinstance(config.training.learning_rate, float)
    assert all(isinstance(value, float) for value in config.privacy.epsilon)
    assert type(load(overrides=["data.public=1"]).data.public) is int
    assert type(load(overrides=["data.public=0.5"]).data.public) is float


@pytest.mark.parametrize(
    ("values", "parameter", "words"),
    [
        (
            {"training": {"clients_per_round": 11}},
            "training.clients_per_round",
            "data.clients = 10",
        ),
        ({"record_updates": [3, 81]}, "record_updates", "got 81"),
        ({"data": {"partition": "column"}}, "data.by", "must name a column"),
        ({"data": {"by": "site"}}, "data.by", "it is 'iid'"),
        ({"data": {"declared_sizes": [5, 5]}}, "data.declared_sizes", "10 clients, got 2"),
        ({"data": {"clients": 1}, "privacy": {"clip": [1.0, 2.0]}}, "privacy.clip", "2 values"),
        (
            {"privacy": {"unit": "client", "clip_quantile": 0.5}},
            "privacy.clip_quantile",
            "whole clients",
        ),
        ({"privacy": {"mechanism": ["none", "laplace"]}}, "privacy.mechanism", "not for some"),
        (
            {"privacy": {"ledger": "l", "randomness": "seeded"}},
            "privacy.ledger",
            "seeded randomness is not private and cannot be charged",
        ),
        (
            {"privacy": {"ledger": "l", "mechanism": "none"}},
            "privacy.ledger",
            "without privacy is not private and cannot be charged",
        ),
        ({"data": {"options": {"x": {"y": [None]}}}}, "data.options", "got None"),
        ({"model": {"options": {"x": Path("y")}}}, "model.options", "Path"),
    ],
)
def test_keys_that_do_not_go_together(values, parameter, words):
    error = refused(values)
    assert error.parameter == parameter
    assert words in error.message


IDLE = [  # a key, a value that somebody set, what it needs and what makes use of it
    ("data.alpha", 0.3, "data.partition", "dirichlet"),
    ("data.shards", 3, "data.partition", "shards"),
    ("data.exponent", 0.0, "data.partition", "power-law"),
    ("data.by", "site", "data.partition", "column"),
    ("privacy.clip_rate", 0.1, "privacy.clip_quantile", 0.5),
    ("privacy.clip_share", 0.3, "privacy.clip_quantile", 0.5),
    ("privacy.pace_ratio", 4.0, "privacy.pace", "increasing"),
    ("privacy.pace_ratio", 1.0, "privacy.pace", "decaying"),
    ("training.final_learning_rate", 0.1, "training.schedule", "cosine"),
    ("training.final_learning_rate", 1.0, "training.schedule", "linear"),
]


@pytest.mark.parametrize(("key", "value", "needs", "user"), IDLE)
def test_a_key_that_would_be_ignored_is_refused_with_what_it_needs(key, value, needs, user):
    error = refused({}, f"{key}={json.dumps(value)}")
    assert error.parameter == key
    assert f"{value!r} has no use unless {needs} is " in error.message
    section, _, name = key.partition(".")
    default = getattr(getattr(Config(), section), name)
    assert error.message.endswith("leave it out" if default is None else f"leave it at {default}")
    used = load(overrides=[f"{key}={json.dumps(value)}", f"{needs}={json.dumps(user)}"])
    assert getattr(getattr(used, section), name) == value
    assert load(tomllib.loads(dump(used))) == used  # as a run folder keeps it
    if default is not None:  # a default asks for nothing, and every full configuration holds it
        assert load(overrides=[f"{key}={json.dumps(default)}"]) == Config()


@pytest.mark.parametrize(
    ("values", "key", "meant"),
    [
        ({"training": {"lr": 0.1}}, "training.lr", "training.learning_rate"),
        ({"lr": 0.1}, "lr", "training.learning_rate"),
        ({"learning_rate": 0.1}, "learning_rate", "training.learning_rate"),
        ({"privacy": {"learning-rate": 0.1}}, "privacy.learning-rate", "training.learning_rate"),
        ({"training": {"learning_rat": 0.1}}, "training.learning_rat", "training.learning_rate"),
        ({"trainning": {"rounds": 0.1}}, "trainning.rounds", "training.rounds"),
        ({"optimizer": {"sgd": {"lr": 0.1}}}, "optimizer.sgd.lr", "training.learning_rate"),
        ({"eps": 0.1}, "eps", "privacy.epsilon"),
        ({"training": {"batch_size": 0.1}}, "training.batch_size", "training.sampling_rate"),
        ({"modell": {"nam": 0.1}}, "modell.nam", "model.name"),
        ({"privcy": 0.1}, "privcy", "privacy"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(values, key, meant):
    error = refused(values)
    assert error.parameter == key
    assert error.message == f"unknown key (value 0.1); did you mean {meant}?"


def test_a_key_like_no_other_gets_no_guess():
    assert "did you mean" not in refused({"training": {"xyzzy": 1}}).message


def test_every_synonym_leads_to_a_key_and_is_not_one():
    assert set(SYNONYMS.values()) <= set(KEYS)
    assert not {key.rpartition(".")[2] for key in KEYS} & set(SYNONYMS)


def test_several_errors_make_one_message():
    error = refused({"seed": -1, "training": {"lr": 2, "rounds": 0}, "privacy": {"delta": 1}})
    assert error.parameter == "seed"
    for key in ("privacy.delta: must be", "training.rounds: must be", "training.lr: unknown key"):
        assert error.message.count(key) == 1
    assert "privacy: " not in error.message
    both = refused({"record_updates": [99], "training": {"clients_per_round": 99}})
    assert both.parameter == "training.clients_per_round"
    assert "; record_updates: must be at most training.rounds = 80, got 99" in both.message


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
        with pytest.raises(InvalidInput, match="turn it on again"):
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
    checked = run(command, ["check", str(path), "--set", "data.clients=3", "--set", "out=x"])
    assert checked.exit_code == 0
    expected = Config(seed=5, out="x", data=DataConfig(clients=3))
    assert load(tomllib.loads(checked.output)) == expected
    wrong = run(command, ["check", str(path), "--set", "training.lr=3"])
    assert isinstance(wrong.exception, InvalidInput)
    assert wrong.output == ""


# Plugins

BUILT_IN = {"mlp": "the built-in mlp", "logistic": "the built-in logistic"}


@pytest.fixture
def path_and_modules(monkeypatch):
    """A search path and loaded modules that go back to what they were."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder: Path, distribution: str, entries: str) -> None:
    """What an installer leaves behind for a package with entry points."""
    folder.mkdir(exist_ok=True)
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entries))
    package = folder / distribution
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "networks.py").write_text(f"def resnet():\n    return {distribution!r}\n")
    sys.path.insert(0, str(folder))


RESNET = "[udpfl.models]\nresnet = {0}.networks:resnet\nmlp = {0}.networks:resnet\n"


@pytest.mark.usefixtures("path_and_modules")
def test_an_installed_package_offers_a_model(tmp_path):
    install(tmp_path / "site", "firstpackage", RESNET.format("firstpackage"))
    assert resolve("models", "resnet", BUILT_IN)() == "firstpackage"
    assert resolve("models", "mlp", BUILT_IN) == "the built-in mlp"
    with pytest.raises(InvalidInput, match=r"model\.name: .*did you mean resnet\? known are log"):
        resolve("models", "resnett", BUILT_IN)
    with pytest.raises(InvalidInput, match=r"data\.name: there is no 'resnet'; known are mlp"):
        resolve("data", "resnet", {"mlp": 1})


@pytest.mark.usefixtures("path_and_modules")
def test_two_packages_that_offer_the_same_name_are_not_chosen_between(tmp_path):
    install(tmp_path / "site", "firstpackage", RESNET.format("firstpackage"))
    sys.path.append(str(tmp_path / "site" / ".." / "site"))  # the same package, seen again
    assert resolve("models", "resnet", BUILT_IN)() == "firstpackage"
    install(tmp_path / "site", "otherpackage", RESNET.format("otherpackage"))
    with pytest.raises(InvalidInput, match="offered by") as caught:
        resolve("models", "resnet", BUILT_IN)
    assert "firstpackage.networks:resnet" in caught.value.message
    assert "otherpackage.networks:resnet" in caught.value.message


@pytest.mark.usefixtures("path_and_modules")
def test_a_package_that_offers_what_it_does_not_have(tmp_path):
    install(tmp_path / "site", "firstpackage", "[udpfl.algorithms]\nfedx = firstpackage.gone:it\n")
    with pytest.raises(InvalidInput, match=r"training\.algorithm: .*'fedx'.*firstpackage\.gone'"):
        resolve("algorithms", "fedx", {})


@pytest.mark.usefixtures("path_and_modules")
def test_a_module_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in sys.path
    (tmp_path / "ownthings.py").write_text("class Nets:\n    big = 'big net'\ndef net(): ...\n")
    assert resolve("models", "ownthings:Nets.big", BUILT_IN) == "big net"
    assert resolve("mechanisms", "math:exp", {}) is math.exp
    assert sys.path.count(str(tmp_path)) == 1
    with pytest.raises(InvalidInput, match=r"no attribute 'nett'; did you mean ownthings:net\?"):
        resolve("models", "ownthings:nett", BUILT_IN)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import not_there_at_all", "No module named 'not_there_at_all'"),
        ("def f(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.usefixtures("path_and_modules")
def test_a_module_that_fails_says_how(tmp_path, monkeypatch, source, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(source)
    with pytest.raises(InvalidInput, match=re.escape(reason)) as caught:
        resolve("data", "failing:load", {})
    assert caught.value.parameter == "data.name"
    assert caught.value.message.startswith("cannot import 'failing': ")


@pytest.mark.usefixtures("path_and_modules")
def test_errors_that_already_explain_themselves_pass(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needy.py").write_text(
        "from udpfl.errors import MissingExtra\nraise MissingExtra('torch', 'train')\n"
    )
    with pytest.raises(MissingExtra, match=r"'\.\[train\]'"):
        resolve("models", "needy:net", {})


@pytest.mark.parametrize("name", [":", "a:", ":b", "a b:c", "a:b:c", "../x:y", "a..b:c"])
def test_names_that_are_no_place_to_import_from(name):
    with pytest.raises(InvalidInput, match=r"must look like package\.module:attribute"):
        resolve("mechanisms", name, {})
