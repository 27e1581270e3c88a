"""The file of a deployed federation: the configuration of a run, and the section `deploy`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from udpfl.config import Config, Count, Positive, Section, Text, apply, load, read
from udpfl.config.explaining import validated
from udpfl.errors import InvalidInput


class DeployConfig(Section):
    """How a server deals with sites on other machines."""

    sites: list[Text] = Field(
        default=[],
        description="Names of the sites, in the order that counts. If empty, whoever is there when "
        "the run begins, as many as data.clients.",
        examples=[["clinic-a", "clinic-b"]],
    )
    enough: Count | None = Field(
        default=None,
        description="Fewest answers with which a round goes on; if not set, more than half of "
        "those that it asks.",
        examples=[2],
    )
    round_timeout: Positive = Field(
        default=600.0, description="Seconds after which a round goes on without late answers."
    )
    start_timeout: Positive = Field(
        default=300.0, description="Seconds to wait for the sites before the first round."
    )
    retry_after: Positive = Field(
        default=2.0,
        description="Seconds until a site that failed is asked again; each time twice as long.",
    )
    attempts: Count = Field(
        default=4, description="How often a site is asked in a round before it is left out."
    )
    pause_after: Count = Field(
        default=3,
        description="How often a round without enough answers is begun again before the run stops. "
        "It can be resumed then.",
    )
    poll_every: Positive = Field(
        default=0.3, description="Seconds between two looks for an answer."
    )
    shuffler: Literal["server", "node"] = Field(
        default="server",
        description="training.shuffle: who takes the names off messages: the server itself, or "
        "with 'node' a node of its own, for which sites seal their messages.",
    )
    evaluate: Literal["test", "none"] = Field(
        default="test",
        description="Whether the server evaluates models on the test records of its own data (the "
        "section data), or has no records.",
    )

    def wait_before(self, attempt: int) -> float:
        """Seconds to wait before an attempt, of which the first is 0."""
        return self.retry_after * 2 ** (attempt - 1) if attempt else 0.0

    def _problems(self) -> Iterator[tuple[str, str]]:
        if len(set(self.sites)) < len(self.sites):
            yield "deploy.sites", "names a site twice"


class _DeploySection(Section):
    """The section by itself."""

    deploy: DeployConfig = Field(default=DeployConfig(), description="The server and its sites.")


@dataclass(frozen=True)
class Federation:
    """A deployed federation, as its file says.

    Example:
        >>> from udpfl.deploy import Federation
        >>> Federation.of({"deploy": {"sites": ["clinic-a", "clinic-b"]}}).config.data.clients
        2
    """

    config: Config
    """Of the run. What it does not set explicitly about budget and noise, sites decide."""
    deploy: DeployConfig
    """Timeouts, retries, and who takes part."""

    @classmethod
    def read(cls, path: str | Path, overrides: Iterable[str] = ()) -> Federation:
        """Read a TOML file, under overrides such as "training.rounds=5".

        Raises:
            InvalidInput: There is no such file, or something in it is wrong.
        """
        return cls.of(read(path), overrides)

    @classmethod
    def of(cls, values: Mapping[str, Any], overrides: Iterable[str] = ()) -> Federation:
        """The same from plain tables."""
        tables = apply(values, overrides)
        deploy = validated(_DeploySection, {"deploy": tables.pop("deploy", {})}).deploy
        if deploy.sites:
            tables["data"] = {**tables.get("data", {}), "clients": len(deploy.sites)}
        config = load(_with_ledger(tables))
        _check(config, deploy)
        return cls(config, deploy)


_AT_THE_SITE = "at each site"
"""Stands for the ledgers that sites keep, where a setting needs one."""


def _with_ledger(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Noise that follows results needs a ledger that runs share, which sites have."""
    privacy = tables.get("privacy", {})
    if isinstance(privacy, Mapping) and privacy.get("pace") == "plateau":
        return {**tables, "privacy": {"ledger": _AT_THE_SITE, **privacy}}
    return dict(tables)


def _check(config: Config, deploy: DeployConfig) -> None:
    if not config.privacy.enabled:
        raise InvalidInput("privacy", "sites take part in private runs only")
    if config.privacy.ledger not in (None, _AT_THE_SITE):
        raise InvalidInput("privacy.ledger", "every site keeps its own: leave it out")
    if config.training.clients_per_round == 1 or config.data.clients == 1:
        raise InvalidInput("data.clients", "a federation has more than one site")
    if deploy.shuffler == "node" and not config.training.shuffle:
        raise InvalidInput(
            "deploy.shuffler", "'node' has no effect without training.shuffle = true"
        )
    asked = config.training.clients_per_round or config.data.clients
    if deploy.enough is not None and deploy.enough > asked:
        raise InvalidInput("deploy.enough", f"a round asks {asked} sites, got {deploy.enough}")
