"""The policy of a site: what it allows, in a file at the site that no server can change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from udpfl.accounting import Accounting, Norm
from udpfl.accounting.budget import Budget
from udpfl.accounting.events import Unit
from udpfl.config import Count, Fraction, Options, Positive, Section, Several, Text, read
from udpfl.config.explaining import validated
from udpfl.ledger.accounts import Runs
from udpfl.mechanisms import BUILT_IN as MECHANISMS
from udpfl.mechanisms.randomiser import BUILT_IN as RANDOMISERS
from udpfl.plugins import offered

Names = Annotated[list[Text], Several]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _plain_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"must be at most 64 letters, digits, dots and dashes, got {name!r}")
    return name


SiteName = Annotated[str, AfterValidator(_plain_name)]


class SiteData(Section):
    """The site's own records. Nothing that a server sends decides anything about them."""

    name: Text = Field(
        description="A built-in data set, 'table' for CSV files, or your own as "
        "package.module:function.",
        examples=["table"],
    )
    dir: Text | None = Field(
        default=None,
        description="Folder with the data files; if not set, the folder of this policy.",
        examples=["/srv/records"],
    )
    options: Options = Field(
        default={},
        description="Settings of the data set. A table needs its file and what it is to learn, and "
        "labels and scale as public facts, not read off the records.",
        examples=[
            {
                "path": "patients.csv",
                "target": "ill",
                "labels": ["no", "yes"],
                "scale": {"age": [0, 120]},
            }
        ],
    )
    declared_size: Count = Field(
        description="Public number that stands for the number of records, or of persons: what "
        "averages are divided by. Round it: the true number tells whether somebody is there.",
        examples=[1000],
    )
    person: Text | None = Field(
        default=None,
        description="Column that says whose a row is, so that the unit of privacy is a person.",
        examples=["patient"],
    )
    rows_per_person: Count | None = Field(
        default=None,
        description="person: most rows of a person that are used, a public number.",
        examples=[10],
    )
    task: Literal["classification", "regression"] | None = Field(
        default=None,
        description="What the targets are; if not set, their type decides.",
        examples=["classification"],
    )
    block: Text | None = Field(
        default=None,
        description="Block of the ledger that pays, added with `udpfl budget block add`.",
        examples=["2026-Q3"],
    )
    test: Fraction = Field(
        default=0.0,
        description="For trials with a public data set: share of the records that is never trained "
        "on.",
    )
    part: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="For trials with a public data set: which of its parts this site holds, the "
        "first is 0.",
        examples=[0],
    )
    parts: Count | None = Field(
        default=None, description="part: how many parts there are.", examples=[3]
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="part, test: decides which records are in which part."
    )

    def _problems(self) -> Iterator[tuple[str, str]]:
        if (self.part is None) != (self.parts is None):
            yield "data.part", "and data.parts go together: set both, or none"
        elif self.part is not None and self.parts is not None and self.part >= self.parts:
            yield "data.part", f"must be below data.parts = {self.parts}, got {self.part}"
        if self.test and self.parts is None:
            yield (
                "data.test",
                "is for trials, with data.parts: which records are held out depends on all of "
                "them, so one more would move others, which no noise hides. Keep test records in "
                "a file of their own",
            )
        if self.rows_per_person is not None and self.person is None:
            yield "data.rows_per_person", "has no effect without data.person"


class SiteBudget(Section):
    """What all releases of this site together may cost."""

    epsilon: Positive = Field(description="Over all runs: epsilon.", examples=[8.0])
    delta: Fraction = Field(description="Over all runs: delta; 0 for pure DP.", examples=[1e-5])
    runs: Runs = Field(
        default="many",
        description="How many runs share it. 'many' are added up by a filter, which holds however "
        "later runs depend on earlier ones; a budget for 'one' run needs less noise.",
    )

    @property
    def budget(self) -> Budget:
        """The same as a pair."""
        return Budget(self.epsilon, self.delta)


class AllowedReleases(Section):
    """What a request may ask the site to release. Limits, unless it says otherwise."""

    in_all: Count = Field(
        description="Most releases over all runs. The site plans the noise of a run so that this "
        "many releases keep the budget; a request can only ask for more noise.",
        examples=[400],
    )
    sampling_rate: float = Field(
        gt=0,
        le=1,
        description="Probability with which a record takes part in a step, for which the noise is "
        "planned. A request with another one is refused: a lower one would need less noise.",
        examples=[0.1],
    )
    paces: bool = Field(
        default=False,
        description="Whether a run may have more noise in some rounds and less in others "
        "(privacy.pace). All its releases together cost what was planned; a single one may then "
        "have less noise than the site would give it.",
    )
    per_round: Count = Field(
        default=1,
        description="Most releases in one round: local steps, and one more where the clip adapts.",
    )
    units: Annotated[list[Unit], Several] = Field(
        default=["record", "person"], description="What a release may hide the presence of."
    )
    accounting: Annotated[list[Accounting], Several] = Field(
        default=["vector"],
        description="Accounting that is allowed; 'scalar' is nominal, no guarantee.",
    )
    mechanisms: Names = Field(
        default=["gaussian", "laplace", "staircase"],
        description="Noise that is allowed, on updates and on the counts of a clip that adapts: "
        "built-in names, your own as package.module:Class, and randomised response of methods that "
        "bring it (coordinates, directions).",
    )
    norms: Annotated[list[Norm], Several] = Field(
        default=["l2"], description="Norms of the clip that are allowed."
    )
    clip: Positive = Field(
        default=1.0,
        description="Largest sensitivity of a release: the clip, or twice the clip where a method "
        "does not say what it sends without records.",
    )


class AllowedModel(Section):
    """A network that may be trained on the records of the site."""

    name: Text = Field(
        description="A built-in model, or your own as package.module:function.",
        examples=["cnn-small"],
    )
    options: Options = Field(default={}, description="Its settings, exactly these.")


class AllowedServer(Section):
    """What the server may bring along."""

    models: Annotated[list[AllowedModel], Several] = Field(
        description="Networks that may be trained, each with exactly these options. The site "
        "builds them itself: a model of another shape is refused.",
        examples=[[{"name": "cnn-small"}]],
    )
    parameters: Count = Field(
        default=20_000_000, description="Most parameters that a network may have."
    )
    methods: Names = Field(
        default=["fedavg", "fedprox", "fedsgd", "scaffold"],
        description="Federated methods that are allowed (training.algorithm).",
    )
    minimum_cohort: Count = Field(
        default=2,
        description="Fewest sites that a round has to ask. The site knows what the server claims, "
        "not who is there.",
    )
    adds_noise: bool = Field(
        default=False,
        description="Whether a method may send updates without noise to a server that adds it: "
        "then the site's guarantee rests on that server.",
    )
    seeded_noise: bool = Field(
        default=False,
        description="Whether noise may come from a seed that the server knows. For tests with "
        "public records only: such releases are not private.",
    )


class SiteShuffler(Section):
    """A shuffler between this site and the server, if there is one.

    Then every message is sealed for it, and the server gets the messages of all sites mixed.
    """

    public_key: Text | None = Field(
        default=None,
        description="The shuffler's public key. If set, the server never gets a message of this "
        "site by itself.",
        examples=["rQvqY0oXnQb2v1pQ0o7w4H8n3sF2m5u6kq9Zl1t8xE0="],
    )
    signing_key: Text = Field(
        default="seal.key",
        description="File with the key by which the shuffler knows this site, as seen from this "
        "policy (`udpfl deploy keys --seal`).",
    )


class SiteMachine(Section):
    """How the site computes."""

    device: str = Field(
        default="auto", pattern="^(auto|cpu|cuda|cuda:[0-9]+)$", description="Device to compute on."
    )
    threads: Count | None = Field(
        default=None, description="Number of CPU threads; if not set, torch decides.", examples=[4]
    )
    memory: Count | None = Field(
        default=None,
        description="Memory for per-record gradients, in MiB; unless it is set 2048 on a CPU, and "
        "two fifths of what a GPU has free.",
        examples=[8192],
    )


class Policy(Section):
    """What a site allows.

    Example:
        >>> from udpfl.site import Policy
        >>> policy = Policy.of({"name": "a", "data": {"name": "mnist5k", "declared_size": 4000},
        ...     "budget": {"epsilon": 8.0, "delta": 1e-5}, "releases": {"in_all": 80,
        ...     "sampling_rate": 0.5}, "server": {"models": [{"name": "cnn-small"}]}})
        >>> policy.releases.accounting
        ['vector']
    """

    name: SiteName = Field(
        description="Of the site, the same in every run: letters, digits, dots and dashes.",
        examples=["clinic-a"],
    )
    state: Text = Field(
        default="state",
        description="Folder of the ledger, the runs and the log, as seen from this policy. Keep it "
        "on a local disk, and back it up (docs/deployment.md).",
    )
    code: Text = Field(
        default=".",
        description="Folder with Python files of yours that this policy names, such as a loader or "
        "a network, as seen from this policy.",
    )
    data: SiteData = Field(description="The site's own records.")
    budget: SiteBudget = Field(description="What all releases together may cost.")
    releases: AllowedReleases = Field(description="What a request may ask for.")
    server: AllowedServer = Field(description="What the server may bring along.")
    shuffler: SiteShuffler = Field(
        default=SiteShuffler(), description="A shuffler between this site and the server."
    )
    machine: SiteMachine = Field(default=SiteMachine(), description="How the site computes.")

    def _problems(self) -> Iterator[tuple[str, str]]:
        if self.server.seeded_noise and self.budget.runs == "many":
            yield (
                "server.seeded_noise",
                "is for tests: releases of a seed spoil a ledger that runs share. Set budget.runs "
                '= "one" as well',
            )
        if self.releases.per_round > self.releases.in_all:
            yield (
                "releases.per_round",
                f"must be at most releases.in_all = {self.releases.in_all}, "
                f"got {self.releases.per_round}",
            )
        if "scalar" in self.releases.accounting and self.budget.runs == "many":
            yield (
                "releases.accounting",
                '"scalar" states a nominal number of one run, no guarantee, and cannot keep a '
                'budget over runs: leave it out, or set budget.runs = "one"',
            )
        known = {*MECHANISMS, *RANDOMISERS, *offered("mechanisms")}
        for name in self.releases.mechanisms:
            if name not in known and ":" not in name:
                yield (
                    "releases.mechanisms",
                    f"there is no {name!r}; known names are {', '.join(sorted(known))}",
                )
        if self.data.person is not None and "person" not in self.releases.units:
            yield "releases.units", 'needs "person", because data.person is set'

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        """A policy of plain tables.

        Raises:
            InvalidInput: A key is missing, unknown or wrong; all of them at once.
        """
        return validated(cls, values)

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """The policy in a TOML file; paths in it are seen from the folder of the file.

        Raises:
            InvalidInput: There is no such file, or something in it is wrong.
        """
        policy = cls.of(read(path, "policy"))
        folder = Path(path).absolute().parent
        directory, key = folder / (policy.data.dir or ""), folder / policy.shuffler.signing_key
        return policy.model_copy(
            update={
                "state": str(folder / policy.state),
                "code": str((folder / policy.code).resolve()),
                "data": policy.data.model_copy(update={"dir": str(directory)}),
                "shuffler": policy.shuffler.model_copy(update={"signing_key": str(key)}),
            }
        )

    @property
    def ledger(self) -> Path:
        """The file of the site's ledger."""
        return Path(self.state) / "ledger.sqlite"
