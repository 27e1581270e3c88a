"""Every key of a configuration, what it means and what it may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)

from udpfl.accounting import Accountant, Accounting, Norm
from udpfl.accounting.accountant import PAPER_IS_NOMINAL
from udpfl.accounting.events import Unit
from udpfl.accounting.pacing import Pace
from udpfl.config.section import (
    Count,
    Fraction,
    Goal,
    Options,
    Positive,
    Section,
    Several,
    Text,
)

T = TypeVar("T")


class DataConfig(Section):
    """The data, and how its records are divided among the clients."""

    name: Text = Field(
        default="mnist5k",
        description="A built-in data set, or your own as package.module:function.",
    )
    dir: Text | None = Field(
        default=None, description="Folder that holds the data files.", examples=["data"]
    )
    clients: Count = Field(default=10, description="Number of clients.")
    partition: Literal["iid", "dirichlet", "shards", "column", "power-law"] = Field(
        default="iid", description="How the training records are divided among the clients."
    )
    alpha: Positive = Field(
        default=0.5,
        description="dirichlet: concentration; the smaller it is, the more the labels of clients "
        "differ.",
    )
    shards: Count = Field(
        default=2, description="shards: number of blocks of label-sorted records per client."
    )
    by: Text | None = Field(
        default=None,
        description="column: name of the column; each of its values is one client.",
        examples=["hospital"],
    )
    person: Text | None = Field(
        default=None,
        description="Column that says whose a row is: all rows of a person at a client are sampled "
        "together, and their gradients are added before clipping, so that the unit of privacy is a "
        "person. If not set, it is one row.",
        examples=["patient"],
    )
    rows_per_person: Count | None = Field(
        default=None,
        description="person: most rows of a person that are used, a public number; the first ones "
        "are taken. If not set, the most that anybody has.",
        examples=[10],
    )
    exponent: float = Field(
        default=1.5,
        ge=0,
        description="power-law: the share of the client of rank r is proportional to r^-exponent.",
    )
    public: Fraction | Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Training records that are set aside as public: a fraction or a number.",
    )
    test: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Fraction of the records kept for testing, if the data set has no test set.",
    )
    declared_sizes: Literal["auto", "partition"] | Count | Annotated[list[Count], Several] = Field(
        default="auto",
        description="Public sizes by which averages are divided: one number, or one per client. "
        "'partition' publishes the true sizes; 'auto' does so only if they do not depend on the "
        "records.",
    )
    task: Literal["classification", "regression"] | None = Field(
        default=None,
        description="What the targets are; if not set, their type decides.",
        examples=["classification"],
    )
    block: Text | None = Field(
        default=None,
        description="Name of the block that these records of the clients belong to. A block has "
        "its own budget in a shared ledger; add it first with `udpfl budget block add`.",
        examples=["2026-Q3"],
    )
    options: Options = Field(
        default={}, description="Settings of the data set (CSV: path, target, ...)."
    )

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.partition == "column" and self.by is None:
            yield "data.by", 'must name a column when data.partition is "column"'
        yield from self._unused("data")
        if isinstance(self.declared_sizes, list) and len(self.declared_sizes) != self.clients:
            yield (
                "data.declared_sizes",
                f"must hold one size for each of the {self.clients} clients, "
                f"got {len(self.declared_sizes)}",
            )


class ModelConfig(Section):
    """The network that is trained."""

    name: Text = Field(
        default="cnn-small",
        description="A built-in model, or your own as package.module:function.",
    )
    options: Options = Field(
        default={}, description="Settings of the model, for example its activation."
    )


class PrivacyConfig(Section):
    """Budgets and noise; write privacy = "none" instead of this section to turn privacy off.

    A list of mechanisms, budgets, references or clips is assigned to the clients in turn.
    """

    mechanism: Text | Annotated[list[Text], Several] = Field(
        default="auto",
        description="A built-in mechanism such as laplace, your own as package.module:Class, "
        "'auto' for the built-in one that needs the least noise, or 'none' for no privacy.",
    )
    epsilon: Positive | Annotated[list[Positive], Several] = Field(
        default=8.0, description="Budget of each client over all rounds: epsilon."
    )
    delta: Fraction | Annotated[list[Fraction], Several] = Field(
        default=1e-5, description="Budget of each client over all rounds: delta; 0 for pure DP."
    )
    harmonize: Literal["budget", "match"] = Field(
        default="budget",
        description="What decides the noise of a client: its budget, or with 'match' a reference "
        "Gaussian. In no release does matched noise leak more than the reference, at any Rényi "
        "order (with scalar accounting: in one coordinate).",
    )
    reference: Positive | Annotated[list[Positive], Several] | None = Field(
        default=None,
        description="match: noise multiplier of the reference Gaussian, which is its standard "
        "deviation divided by the clip. If not set, the smallest that keeps the budget of the "
        "client by Rényi divergences.",
        examples=[1.5],
    )
    accounting: Accounting = Field(
        default="vector",
        description="'vector' gives a guarantee; 'scalar', as in the paper, is nominal only.",
    )
    accountant: Accountant = Field(
        default="best",
        description="Rényi divergences, privacy-loss distributions, or 'best', the tighter of the "
        "two. With accounting = 'scalar' also 'paper', the paper's own; the number of such a run "
        "is stated by the accountant that planned it.",
    )
    clip: Positive | Annotated[list[Positive], Several] = Field(
        default=1.0,
        description="Bound on the gradient of one record; with unit = 'client', on the whole "
        "update of a client.",
    )
    norm: Norm = Field(default="l2", description="Norm of the clip.")
    clip_quantile: Fraction | None = Field(
        default=None,
        description="Adapt the clip in every round, by a private count, so that this share of the "
        "records lies within it. If not set, the clip is constant.",
        examples=[0.5],
    )
    clip_rate: Positive = Field(
        default=0.2, description="clip_quantile: how fast the clip follows the counts."
    )
    clip_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="clip_quantile: share of the budget that is planned for the counts.",
    )
    pace: Pace = Field(
        default="uniform",
        description="How the budget is spread over the rounds: evenly, increasing from round to "
        "round, decaying, or with 'plateau' following results: the noise falls when they stop "
        "improving. That needs a shared ledger, whose filter adds up such releases.",
    )
    pace_ratio: float = Field(
        default=2.0,
        ge=1,
        description="increasing, decaying, plateau: the largest noise of a round divided by the "
        "smallest.",
    )
    pace_patience: Count = Field(
        default=3,
        description="plateau: number of rounds without improvement after which the noise falls.",
    )
    pace_follows: Literal["loss", "update"] = Field(
        default="loss",
        description="plateau: what has to improve: the loss on the public records (data.public), "
        "or the length of the step that a round takes the model.",
    )
    unit: Unit = Field(
        default="record",
        description="What is hidden: the presence of one record, or with 'client' of a client with "
        "all its records. With data.person it is 'person': all rows of a person at a client.",
    )
    ledger: Text | None = Field(
        default=None,
        description="Ledger file that several runs share; if not set, each run has its own ledger.",
        examples=["budget.sqlite"],
    )
    randomness: Literal["entropy", "seeded"] = Field(
        default="entropy",
        description="Source of the noise and of record sampling. 'seeded' repeats exactly: it is "
        "for tests and not private.",
    )
    exhausted: Literal["refuse", "skip", "fit"] = Field(
        default="refuse",
        description="What to do if budgets in a shared ledger are too small for the whole run: "
        "refuse the run before it trains, skip the clients with these budgets, or fit the run to "
        "them with more noise.",
    )

    @property
    def enabled(self) -> bool:
        """Whether anything is clipped, noised and charged."""
        return self.mechanism != "none"

    @field_validator("exhausted", mode="before")
    @classmethod
    def _successor(cls, value: Any) -> Any:
        if value == "stop":
            raise ValueError(
                "'stop' no longer exists: use 'refuse', which refuses a run that does not fit "
                "before it trains"
            )
        return value

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.clip_quantile is not None and self.unit == "client":
            yield (
                "privacy.clip_quantile",
                'counts records, so it is not available with privacy.unit = "client"',
            )
        elif self.clip_quantile is not None and self.norm == "linf":
            yield (
                "privacy.clip_quantile",
                'is not available with privacy.norm = "linf", which clips coordinates',
            )
        if self.clip_quantile == 0:
            yield (
                "privacy.clip_quantile",
                "must be above 0: no clip can be adapted to contain no records",
            )
        if isinstance(self.mechanism, list) and "none" in self.mechanism:
            yield "privacy.mechanism", '"none" turns privacy off for all clients, not for some'
        if self.ledger is not None and (self.mechanism == "none" or self.randomness == "seeded"):
            why = "without privacy" if self.mechanism == "none" else "with seeded randomness"
            yield (
                "privacy.ledger",
                f"a run {why} is not private, so it cannot be charged to the shared ledger "
                f"{self.ledger!r}",
            )
        if self.accountant == "paper" and self.accounting != "scalar":
            yield "privacy.accountant", PAPER_IS_NOMINAL
        elif self.ledger is not None and self.accounting == "vector" and self.accountant != "best":
            yield (
                "privacy.accountant",
                "a shared ledger adds up runs with its own filter, not with another accountant: "
                'leave it at "best"',
            )
        if self.enabled and self.pace == "plateau" and self.accounting == "scalar":
            yield (
                "privacy.pace",
                '"plateau" is planned by the filter of the ledger, which states a guarantee: set '
                'privacy.accounting = "vector"',
            )
        elif self.enabled and self.pace == "plateau" and self.ledger is None:
            yield (
                "privacy.pace",
                'with "plateau" noise depends on results, and only the filter of a shared ledger '
                "adds up such releases: set privacy.ledger as well",
            )
        if self.harmonize == "match":
            yield from self._unmatched()
        yield from self._unused("privacy")

    def _unmatched(self) -> Iterator[tuple[str, str]]:
        """What does not go with noise that is matched."""
        deltas = self.delta if isinstance(self.delta, list) else [self.delta]
        if 0 in deltas:
            yield (
                "privacy.delta",
                "0 means pure DP, but the Gaussian that noise is matched to has no pure-DP "
                'guarantee: set it above 0, or set privacy.harmonize = "budget"',
            )
        if self.pace != "uniform":
            yield (
                "privacy.pace",
                "spreads a budget over the rounds, but with privacy.harmonize = "
                '"match" every round has the noise that matches its reference: leave it at '
                '"uniform"',
            )
        if self.reference is not None and self.exhausted == "fit":
            yield (
                "privacy.exhausted",
                '"fit" changes the noise, but privacy.reference decides it: use "refuse" or '
                '"skip", or leave privacy.reference out',
            )


class TrainingConfig(Section):
    """The federated training: the method, its rounds and steps, and how it uses the machine."""

    algorithm: Text = Field(
        default="fedavg",
        description="A built-in method, or your own as package.module:attribute.",
    )
    rounds: Count = Field(default=80, description="Number of rounds.")
    clients_per_round: Count | None = Field(
        default=None,
        description="Number of clients chosen for each round; if not set, all.",
        examples=[5],
    )
    local_steps: Count = Field(
        default=1,
        description="Steps of a client in a round, each on a sample of its own. Each step is one "
        "noisy release; with privacy.unit = 'client' all steps together are one release.",
    )
    local_epochs: Count | None = Field(
        default=None,
        description="Epochs of a client in a round, in place of local_steps: passes over all "
        "batches of a sample, with one step for each batch. A record takes part in one noisy "
        "release of every epoch.",
        examples=[2],
    )
    batches: Count = Field(
        default=1,
        description="local_epochs: number of batches that a sample is split into at random.",
    )
    sample_per: Literal["round", "epoch"] = Field(
        default="round",
        description="local_epochs: draw one sample for all epochs of a round, or a new one for "
        "each epoch, which needs less noise as a rule.",
    )
    sampling_rate: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Probability that a record takes part in a sample. A smaller one needs less "
        "noise with privacy.unit = 'record', but not with 'client'.",
    )
    learning_rate: Positive = Field(default=2.0, description="Learning rate of the clients.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate decreases over the rounds."
    )
    final_learning_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="linear, cosine: learning rate at the end, as a fraction of learning_rate.",
    )
    warmup: int = Field(
        default=0, ge=0, description="Number of first rounds in which the learning rate rises."
    )
    server_learning_rate: Positive = Field(default=1.0, description="Learning rate of the server.")
    server_momentum: Fraction = Field(
        default=0.3, description="Momentum of the server; 0 turns it off."
    )
    penalty: float = Field(
        default=0.0,
        ge=0,
        description="Strength with which clients with smaller budgets are pulled towards the last "
        "model of the clients with the largest budget: 1 as in the paper; 0 turns it off.",
    )
    shuffle: bool = Field(
        default=False,
        description="Whether a shuffler removes the names and the order of the messages of a round "
        "before the server sees them.",
    )
    stages: list[Text] = Field(
        default=[],
        description="Your own stages between clients and server, in this order, each as "
        "package.module:attribute.",
        examples=[["my_package.stages:Cap"]],
    )
    averaging: Fraction = Field(
        default=0.9, description="Decay of the moving average of the global model; 0 turns it off."
    )
    evaluate_every: Count = Field(default=1, description="Evaluate the model every so many rounds.")
    target: Goal | None = Field(
        default=None,
        description="A figure on the test records, and the value that it has to reach: the results "
        "say after how many rounds, bytes and seconds it was there. The training goes on.",
        examples=[{"accuracy": 0.9}],
    )
    checkpoint_every: Count = Field(
        default=1, description="Write a checkpoint every so many rounds."
    )
    lanes: Literal["auto", "stacked", "single"] = Field(
        default="auto",
        description="Train clients stacked together, one by one, or whichever is faster.",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        default="float32",
        description="Of products in training: tf32 is faster on a GPU and rounds factors to ten "
        "bits, bfloat16 rounds those of layers to seven, on any device; what is clipped is what "
        "was measured either way.",
    )
    chunk: Count | None = Field(
        default=None,
        description="Largest number of records of a client that are processed at once.",
        examples=[256],
    )
    memory: Count | None = Field(
        default=None,
        description="Memory for per-record gradients, in MiB; unless it is set 2048 on a CPU, and "
        "two fifths of what a GPU has free.",
        examples=[8192],
    )
    options: Options = Field(default={}, description="Settings of the method.")

    @property
    def steps(self) -> int:
        """Steps of one training: the local steps, or all batches of all epochs."""
        return (self.local_epochs or self.local_steps) * self.batches

    @property
    def passes(self) -> int:
        """Epochs that look at the same sample."""
        return self.local_epochs or 1 if self.sample_per == "round" else 1

    def _problems(self) -> Iterator[tuple[str, str]]:
        accuracy = (self.target or {}).get("accuracy", 1.0)
        if not 0 < accuracy <= 1:
            yield "training.target", f"an accuracy lies above 0, up to 1, got {accuracy!r}"
        yield from self._unused("training")
        if self.local_epochs is not None and self.local_steps != 1:
            yield (
                "training.local_steps",
                f"{self.local_steps} has no effect with training.local_epochs, whose steps are its "
                "epochs times training.batches; remove one of the two",
            )
        if self.local_epochs == 1 and self.sample_per == "epoch":
            yield (
                "training.sample_per",
                "'epoch' has no effect with a single epoch; leave it at 'round'",
            )


def _from_word(privacy: Any) -> Any:
    """The word "none" in place of the section."""
    return {"mechanism": "none"} if privacy == "none" else privacy


def _only_off(privacy: PrivacyConfig) -> PrivacyConfig:
    """Where privacy is turned off its other keys say nothing: they are at their defaults."""
    return privacy if privacy.enabled else PrivacyConfig(mechanism="none")


class Config(Section):
    """Everything that decides a run."""

    schema_version: int = Field(default=1, ge=1, le=1, description="Version of this format.")
    seed: int = Field(
        default=0,
        ge=0,
        le=2**63 - 1,
        description="Seed of the partition, the initial model and the choice of clients, never of "
        "the noise.",
    )
    device: str = Field(
        default="auto", pattern="^(auto|cpu|cuda|cuda:[0-9]+)$", description="Device to compute on."
    )
    threads: Count | None = Field(
        default=None, description="Number of CPU threads; if not set, torch decides.", examples=[4]
    )
    out: Text | None = Field(
        default=None,
        description="Folder of the run; if not set, a new one.",
        examples=["out/first"],
    )
    record_updates: list[Count] = Field(
        default=[],
        description="Rounds whose released updates are kept for analysis; the first round is 1.",
    )
    data: DataConfig = Field(default=DataConfig(), description="The data and its clients.")
    model: ModelConfig = Field(default=ModelConfig(), description="The network.")
    privacy: Annotated[
        PrivacyConfig,
        BeforeValidator(_from_word, json_schema_input_type=PrivacyConfig | Literal["none"]),
        AfterValidator(_only_off),
    ] = Field(default=PrivacyConfig(), description='Budgets and noise, or "none" for no privacy.')
    training: TrainingConfig = Field(
        default=TrainingConfig(), description="The federated training."
    )

    @model_validator(mode="before")
    @classmethod
    def _unit_of_persons(cls, values: Any) -> Any:
        """Where a column says whose a row is, a person is the unit in place of a record."""
        data, privacy = (dict(values).get(name) for name in ("data", "privacy"))
        person = data.get("person") if isinstance(data, dict) else getattr(data, "person", None)
        if isinstance(privacy, PrivacyConfig):
            privacy = privacy.model_dump()
        if person is None or not isinstance(privacy, dict | None):
            return values
        if (privacy or {}).get("unit", "record") != "record":
            return values
        return {**values, "privacy": {**(privacy or {}), "unit": "person"}}

    @field_serializer("privacy", mode="wrap")
    def _written(self, privacy: PrivacyConfig, write: SerializerFunctionWrapHandler) -> Any:
        """One way to write "off", which no other key goes with."""
        return write(privacy) if privacy.enabled else "none"

    def _problems(self) -> Iterator[tuple[str, str]]:
        clients, rounds = self.data.clients, self.training.rounds
        picked = self.training.clients_per_round
        if picked is not None and picked > clients:
            yield (
                "training.clients_per_round",
                f"must be at most data.clients = {clients}, got {picked}",
            )
        privacy = self.privacy
        if privacy.pace == "plateau" and privacy.pace_follows == "loss" and not self.data.public:
            yield (
                "privacy.pace_follows",
                "the loss is that of public records: set data.public to set some aside, or set "
                'privacy.pace_follows = "update"',
            )
        yield from self._unit_problems()
        if self.data.block is not None and self.privacy.ledger is None:
            yield "data.block", "needs a shared ledger: set privacy.ledger as well"
        epsilon = self.privacy.epsilon
        if self.training.penalty and not (isinstance(epsilon, list) and len(set(epsilon)) > 1):
            yield (
                "training.penalty",
                "pulls clients with smaller budgets: privacy.epsilon must be a list of different "
                "values",
            )
        if self.training.shuffle and self.training.penalty:
            yield (
                "training.shuffle",
                "hides who sent a message, but training.penalty has to know which messages come "
                "from the largest budget: set only one of the two",
            )
        if self.training.shuffle and (picked or clients) == 1:
            yield "training.shuffle", "needs more than one message in a round"
        if max(self.record_updates, default=0) > rounds:
            yield (
                "record_updates",
                f"must be at most training.rounds = {rounds}, got {max(self.record_updates)}",
            )
        for name in ("mechanism", "epsilon", "delta", "clip", "reference"):
            dealt = getattr(self.privacy, name)
            if isinstance(dealt, list) and len(dealt) > clients:
                yield (
                    f"privacy.{name}",
                    f"has {len(dealt)} values, more than data.clients = {clients}: some would be "
                    f"unused",
                )

    def _unit_problems(self) -> Iterator[tuple[str, str]]:
        """What does not go with persons."""
        person, unit = self.data.person, self.privacy.unit
        if not self.privacy.enabled:
            return
        if person is None and unit == "person":
            yield "privacy.unit", '"person" needs data.person, the column that says whose a row is'
        elif person is not None and unit == "client":
            yield (
                "data.person",
                'has no effect with privacy.unit = "client", which hides a client with all its '
                "persons: remove one of the two",
            )


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "privacy": PrivacyConfig,
    "training": TrainingConfig,
}


def per_client(value: T | list[T], clients: int) -> list[T]:
    """One value for each client: a single value for all, a list dealt out in turn."""
    values = value if isinstance(value, list) else [value]
    return [values[client % len(values)] for client in range(clients)]
