"""Configurations as people write them: defaults, documentation, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.config.refusals import refused
from tests.repository import ROOT
from udpfl.config import (
    Config,
    DataConfig,
    ModelConfig,
    PrivacyConfig,
    TrainingConfig,
    dump,
    example,
    load,
    schema,
)
from udpfl.config.explaining import SYNONYMS

SECTIONS = {
    "data": DataConfig, "model": ModelConfig, "privacy": PrivacyConfig, "training": TrainingConfig,
}  # fmt: skip
KEYS = [name for name in Config.model_fields if name not in SECTIONS] + [
    f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields
]


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
    config = load(
        tomllib.loads(text), overrides=["data.partition=column", "privacy.harmonize=match"]
    )
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


def test_steps_are_local_steps_or_batches_of_epochs():
    def found(**training):
        own = load({"training": training}).training
        return own.steps, own.passes

    assert found(local_steps=5) == (5, 1)
    assert found(local_epochs=2, batches=7) == (14, 2)
    assert found(local_epochs=2, batches=7, sample_per="epoch") == (14, 1)


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
        ("training.local_epochs", "0"), ("training.batches", "0"),
        ("training.sample_per", "step"),
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
            "is not available with privacy.unit",
        ),
        ({"privacy": {"mechanism": ["none", "laplace"]}}, "privacy.mechanism", "not for some"),
        (
            {"privacy": {"ledger": "l", "randomness": "seeded"}},
            "privacy.ledger",
            "seeded randomness is not private, so it cannot be charged",
        ),
        (
            {"privacy": {"ledger": "l", "mechanism": "none"}},
            "privacy.ledger",
            "without privacy is not private, so it cannot be charged",
        ),
        (
            {"privacy": {"harmonize": "match", "delta": [1e-5, 0.0]}},
            "privacy.delta",
            "the Gaussian that noise is matched to has no pure-DP guarantee",
        ),
        (
            {"privacy": {"harmonize": "match", "pace": "decaying"}},
            "privacy.pace",
            'leave it at "uniform"',
        ),
        (
            {"privacy": {"harmonize": "match", "reference": 1.5, "exhausted": "fit"}},
            "privacy.exhausted",
            "privacy.reference decides it",
        ),
        (
            {"data": {"clients": 1}, "privacy": {"harmonize": "match", "reference": [1.0, 2.0]}},
            "privacy.reference",
            "2 values",
        ),
        (
            {"training": {"local_epochs": 2, "local_steps": 3}},
            "training.local_steps",
            "3 has no effect with training.local_epochs",
        ),
        (
            {"training": {"local_epochs": 1, "sample_per": "epoch"}},
            "training.sample_per",
            "no effect with a single epoch",
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
    ("privacy.pace_patience", 9, "privacy.pace", "plateau"),
    ("privacy.pace_follows", "update", "privacy.pace", "plateau"),
    ("privacy.reference", 1.5, "privacy.harmonize", "match"),
    ("training.final_learning_rate", 0.1, "training.schedule", "cosine"),
    ("training.final_learning_rate", 1.0, "training.schedule", "linear"),
    ("training.batches", 4, "training.local_epochs", 1),
    ("training.sample_per", "epoch", "training.local_epochs", 2),
]


BESIDE = {"plateau": ['privacy.ledger="site.sqlite"', "data.public=9"]}
"""What a value needs by itself."""


@pytest.mark.parametrize(("key", "value", "needs", "user"), IDLE)
def test_a_key_that_would_be_ignored_is_refused_with_what_it_needs(key, value, needs, user):
    error = refused({}, f"{key}={json.dumps(value)}")
    assert error.parameter == key
    assert f"{value!r} has no effect unless {needs} is " in error.message
    section, _, name = key.partition(".")
    default = getattr(getattr(Config(), section), name)
    assert error.message.endswith("remove it" if default is None else f"leave it at {default!r}")
    beside = BESIDE.get(user, [])
    used = load(overrides=[f"{key}={json.dumps(value)}", f"{needs}={json.dumps(user)}", *beside])
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
        ({"training": {"epochs": 0.1}}, "training.epochs", "training.local_epochs"),
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
