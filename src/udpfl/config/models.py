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
)

from udpfl.accounting import Accountant, Accounting, Norm
from udpfl.accounting.events import Unit
from udpfl.accounting.pacing import Pace
from udpfl.config.section import Count, Fraction, Options, Positive, Section, Several, Text

T = TypeVar("T")


class DataConfig(Section):
    """The data, and how it is dealt out to the clients."""

    name: Text = Field(
        default="mnist5k",
        description="A built-in data set, or package.module:function for one's own.",
    )
    dir: Text | None = Field(
        default=None, description="Folder that holds the data files.", examples=["data"]
    )
    clients: Count = Field(default=10, description="Number of clients.")
    partition: Literal["iid", "dirichlet", "shards", "column", "power-law"] = Field(
        default="iid", description="How the training records are dealt out to the clients."
    )
    alpha: Positive = Field(
        default=0.5,
        description="dirichlet: concentration; the smaller, the more the labels differ.",
    )
    shards: Count = Field(
        default=2, description="shards: blocks of label-sorted records per client."
    )
    by: Text | None = Field(
        default=None,
        description="column: name of the column whose values make the clients; needed there only.",
        examples=["hospital"],
    )
    exponent: float = Field(
        default=1.5,
        ge=0,
        description="power-law: the client of rank r gets a share like r^-exponent.",
    )
    public: Fraction | Annotated[int, Field(ge=0)] = Field(
        default=0, description="Training records set aside as public: a fraction or a count."
    )
    test: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Fraction kept for testing where no test set comes along.",
    )
    declared_sizes: Literal["auto", "partition"] | Count | Annotated[list[Count], Several] = Field(
        default="auto",
        description="Public sizes the averages divide by: 'partition' publishes the true sizes, "
        "'auto' does so only where they do not depend on the records; or numbers, one per client.",
    )
    task: Literal["classification", "regression"] | None = Field(
        default=None,
        description="The kind of the targets; if not set, it follows from their type.",
        examples=["classification"],
    )
    block: Text | None = Field(
        default=None,
        description="Block of the clients' records that these are, with a budget of its own in a "
        "shared ledger, once `udpfl budget block add` has said whose records they are not.",
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
        description="A built-in model, or package.module:function for one's own.",
    )
    options: Options = Field(
        default={}, description="Settings of the model, such as its activation."
    )


class PrivacyConfig(Section):
    """Budgets and noise; privacy = "none" in place of this section turns it off.

    Lists of mechanisms, budgets or clips are dealt out to the clients in turn.
    """

    mechanism: Text | Annotated[list[Text], Several] = Field(
        default="auto",
        description="A built-in mechanism such as laplace, package.module:Class, 'auto' for the "
        "built-in one that needs least noise, or 'none' for no privacy.",
    )
    epsilon: Positive | Annotated[list[Positive], Several] = Field(
        default=8.0, description="Budget of each client over all rounds: epsilon."
    )
    delta: Fraction | Annotated[list[Fraction], Several] = Field(
        default=1e-5, description="Budget of each client over all rounds: delta; 0 for pure DP."
    )
    accounting: Accounting = Field(
        default="vector",
        description="'vector' is a guarantee; 'scalar' is the paper's, nominal only.",
    )
    accountant: Accountant = Field(
        default="best",
        description="Rényi divergences, privacy-loss distributions, or the tighter one.",
    )
    clip: Positive | Annotated[list[Positive], Several] = Field(
        default=1.0,
        description="Bound on one record's gradient, or with unit = 'client' on all that a client "
        "sends.",
    )
    norm: Norm = Field(default="l2", description="Norm in which it is clipped.")
    clip_quantile: Fraction | None = Field(
        default=None,
        description="Adapt the clip so that this share of records lies within it, by a private "
        "count each round; it stays as it is if not set.",
        examples=[0.5],
    )
    clip_rate: Positive = Field(
        default=0.2, description="clip_quantile: how fast the clip follows what was counted."
    )
    clip_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="clip_quantile: share of the budget that the counts are planned with.",
    )
    pace: Pace = Field(
        default="uniform",
        description="How the budget is spread over the rounds: evenly, more and more, or less and "
        "less of it.",
    )
    pace_ratio: float = Field(
        default=2.0,
        ge=1,
        description="increasing, decaying: the noise of the round that has most of it over that of "
        "the round that has least.",
    )
    unit: Unit = Field(
        default="record",
        description="Whose presence is hidden: one record's, or with 'client' that of a client "
        "and all its records.",
    )
    ledger: Text | None = Field(
        default=None,
        description="Ledger file shared between runs; without one, each run keeps its own.",
        examples=["budget.sqlite"],
    )
    randomness: Literal["entropy", "seeded"] = Field(
        default="entropy",
        description="Where noise and record sampling come from; 'seeded' repeats exactly, for "
        "tests, and is not private.",
    )
    exhausted: Literal["refuse", "skip", "fit"] = Field(
        default="refuse",
        description="Where budgets in a shared ledger do not hold the whole run: refuse it before "
        "it trains, begin it without these clients, or train them with more noise.",
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
                "'stop' is gone, 'refuse' is its successor: a run that does not fit is refused "
                "before it trains"
            )
        return value

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.clip_quantile is not None and self.unit == "client":
            yield "privacy.clip_quantile", "counts records: it is not available for whole clients"
        if self.clip_quantile is not None and self.norm == "linf":
            yield "privacy.clip_quantile", "is not available for linf, which clips coordinates"
        if self.clip_quantile == 0:
            yield "privacy.clip_quantile", "must be above 0: no clip has no record within it"
        if isinstance(self.mechanism, list) and "none" in self.mechanism:
            yield "privacy.mechanism", '"none" turns privacy off for all clients, not for some'
        if self.ledger is not None and (self.mechanism == "none" or self.randomness == "seeded"):
            why = "without privacy" if self.mechanism == "none" else "with seeded randomness"
            yield (
                "privacy.ledger",
                f"a run {why} is not private and cannot be charged to {self.ledger!r}, "
                "a ledger that counts",
            )
        if self.ledger is not None and self.accounting == "vector" and self.accountant != "best":
            yield (
                "privacy.accountant",
                "a shared ledger adds up runs by its own filter, which no other accountant "
                "replaces: leave it at best",
            )
        yield from self._unused("privacy")


class TrainingConfig(Section):
    """The federated training: the method, its rounds and steps, and how it uses the machine."""

    algorithm: Text = Field(
        default="fedavg",
        description="A built-in method, or package.module:attribute for one's own.",
    )
    rounds: Count = Field(default=80, description="Rounds of training.")
    clients_per_round: Count | None = Field(
        default=None,
        description="Clients picked for each round; all of them if not set.",
        examples=[5],
    )
    local_steps: Count = Field(
        default=1,
        description="Steps of a client in a round: each is a noisy release, or with privacy.unit = "
        "'client' all of them together are one.",
    )
    sampling_rate: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Probability that a record takes part in a step; it saves noise where records "
        "are hidden, not where whole clients are.",
    )
    learning_rate: Positive = Field(default=2.0, description="Learning rate of the clients.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate goes down over the rounds."
    )
    final_learning_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="linear, cosine: fraction of the learning rate at the end.",
    )
    warmup: int = Field(
        default=0, ge=0, description="Rounds over which the learning rate first rises."
    )
    server_learning_rate: Positive = Field(default=1.0, description="Learning rate of the server.")
    server_momentum: Fraction = Field(default=0.3, description="Momentum of the server; 0 is off.")
    penalty: float = Field(
        default=0.0,
        ge=0,
        description="Pull of clients with smaller budgets towards the last model of the one with "
        "the largest: 1 is the paper's; 0 is off.",
    )
    shuffle: bool = Field(
        default=False,
        description="Whether a shuffler takes names and order off the messages of a round before "
        "the server sees them.",
    )
    stages: list[Text] = Field(
        default=[],
        description="Stages of one's own between clients and server, in this order, each as "
        "package.module:attribute.",
        examples=[["my_package.stages:Cap"]],
    )
    averaging: Fraction = Field(
        default=0.9, description="Decay of the moving average of the global model; 0 is off."
    )
    evaluate_every: Count = Field(default=1, description="Rounds from one evaluation to the next.")
    checkpoint_every: Count = Field(
        default=1, description="Rounds from one checkpoint to the next."
    )
    lanes: Literal["auto", "stacked", "single"] = Field(
        default="auto",
        description="Train clients together in one stack, one by one, or the faster way.",
    )
    chunk: Count | None = Field(
        default=None, description="Most records of a client in memory at once.", examples=[256]
    )
    memory: Count = Field(default=2048, description="MiB that per-record gradients may take.")
    options: Options = Field(default={}, description="Settings of the method.")

    def _problems(self) -> Iterator[tuple[str, str]]:
        yield from self._unused("training")


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
        description="Decides the partition, the initial model and the choice of clients; never "
        "the noise.",
    )
    device: str = Field(
        default="auto", pattern="^(auto|cpu|cuda|cuda:[0-9]+)$", description="Where to compute."
    )
    threads: Count | None = Field(
        default=None, description="CPU threads; the library's choice if not set.", examples=[4]
    )
    out: Text | None = Field(
        default=None, description="Folder of the run; a new one if not set.", examples=["out/first"]
    )
    record_updates: list[Count] = Field(
        default=[],
        description="Rounds, the first is 1, whose released updates are kept for analysis.",
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
        if self.data.block is not None and self.privacy.ledger is None:
            yield "data.block", "is an account in a shared ledger: set privacy.ledger as well"
        epsilon = self.privacy.epsilon
        if self.training.penalty and not (isinstance(epsilon, list) and len(set(epsilon)) > 1):
            yield (
                "training.penalty",
                "pulls clients with smaller budgets: privacy.epsilon must be a list that differs",
            )
        if self.training.shuffle and self.training.penalty:
            yield (
                "training.shuffle",
                "hides who sent a message, and training.penalty has to know the messages of the "
                "largest budget: set one of them only",
            )
        if self.training.shuffle and (picked or clients) == 1:
            yield "training.shuffle", "needs more than one message in a round to mix"
        if max(self.record_updates, default=0) > rounds:
            yield (
                "record_updates",
                f"must be at most training.rounds = {rounds}, got {max(self.record_updates)}",
            )
        for name in ("mechanism", "epsilon", "delta", "clip"):
            dealt = getattr(self.privacy, name)
            if isinstance(dealt, list) and len(dealt) > clients:
                yield (
                    f"privacy.{name}",
                    f"holds {len(dealt)} values for data.clients = {clients}: some would go unused",
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
