"""What is in the files of a run folder: one type for each, from plain data and back; no torch.

run.json             Identity
participants.json    a list of ClientRow
metrics.jsonl        a RoundRow in each line
evaluation.json      FinalEvaluation
summary.json         Summary
model.safetensors    Stamp, in its header

Nothing in them is believed here. A value is never converted to another: what a report compares with
a ledger is what was written. `from_dict` raises `InvalidInput`, with the name of the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast, get_args

from udpfl.accounting.statement import Kind, PrivacyStatement
from udpfl.errors import InvalidInput
from udpfl.harmonizer import Matched
from udpfl.ledger.chain import Head

if TYPE_CHECKING:
    from udpfl.data.records import Task

VERSION = 2
"""Of the run folders that are written now. Version 1 had no such field, see `runs/_version1.py`."""

Plain = Mapping[str, Any]
"""A JSON object."""
Pair = tuple[float, float]
"""A budget: epsilon and delta."""
Figure = float | str | None
"""A number; "inf" or "nan" of a model that diverged; None where it was not measured."""


class NewerFolder(InvalidInput):
    """A run folder that only a newer version of udpfl can read."""


@dataclass(frozen=True)
class Claim:
    """What a run claims from its first moment, because many a run never ends."""

    kind: Kind
    why: str

    def __str__(self) -> str:
        word = {"guarantee": "private", "nominal": "nominal", "none": "not private"}[self.kind]
        return f"{word}: {self.why}"

    @classmethod
    def from_dict(cls, plain: Any) -> Claim:
        """The inverse of `dataclasses.asdict`."""
        plain = _object("privacy", plain)
        kind = _field(plain, "kind", str)
        if kind not in get_args(Kind):
            raise InvalidInput("kind", f"must be one of {get_args(Kind)}, got {kind!r}")
        return cls(cast(Kind, kind), _field(plain, "why", str))


@dataclass(frozen=True)
class Identity:
    """run.json: which run this is, by which version, and what is known of it beforehand."""

    id: str
    privacy: Claim
    server_adds_noise: bool
    """Whether the method trusts the server to add the noise, and not the clients."""
    task: Task
    udpfl: str = ""
    """The version of udpfl that began it."""
    torch: str = ""
    started: str = ""
    fingerprints: tuple[str, ...] | None = None
    """Of the records of each client; None where the folder does not say."""
    block: str | None = None
    """The block of the clients' accounts that pays."""
    ledger: str | None = None
    """A ledger that runs share; None where the run has its own."""
    ledger_from_here: str | None = None
    """The way from the folder to that ledger."""
    sites: tuple[str, ...] | None = None
    """The sites of a deployment, which keep their own ledgers; None where clients are simulated."""
    version: int = VERSION
    """Of the folder."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, the version first."""
        plain = asdict(self)
        if self.fingerprints is not None:
            plain["fingerprints"] = list(self.fingerprints)
        if self.sites is None:
            del plain["sites"]
        else:
            plain["sites"] = list(self.sites)
        return {"version": plain.pop("version"), **plain}

    @classmethod
    def from_dict(cls, plain: Any) -> Identity:
        """The inverse of `to_dict`."""
        plain = _object("run", plain)
        task = _field(plain, "task", str)
        if task not in ("classification", "regression"):
            raise InvalidInput("task", f"must be classification or regression, got {task!r}")
        seen = _field(plain, "fingerprints", list | None, None)
        sites = _field(plain, "sites", list | None, None)
        return cls(
            id=_field(plain, "id", str),
            privacy=Claim.from_dict(_field(plain, "privacy", dict)),
            server_adds_noise=_field(plain, "server_adds_noise", bool),
            task=cast("Task", task),
            udpfl=_field(plain, "udpfl", str, ""),
            torch=_field(plain, "torch", str, ""),
            started=_field(plain, "started", str, ""),
            fingerprints=None if seen is None else tuple(map(str, seen)),
            block=_field(plain, "block", str | None, None),
            ledger=_field(plain, "ledger", str | None, None),
            ledger_from_here=_field(plain, "ledger_from_here", str | None, None),
            sites=None if sites is None else tuple(map(str, sites)),
            version=version_of(plain),
        )


@dataclass(frozen=True)
class ClientRow:
    """One client in participants.json: what it declares, its noise and its budget.

    `federation` plans with these and says what each of them means. Releases are events as
    `accounting.serial` writes them: nothing that they name is imported here.
    """

    name: str
    declared_size: int
    rate: float
    rounds: int
    steps: int
    batches: int = 1
    epochs: int = 1
    trainings: int = 1
    participation: float = 1.0
    penalty: float = 0.0
    parameters: bool = False
    diameter: bool = False
    delta: float | None = None
    shares_steps: bool = False
    count: Plain | None = None
    factors: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()
    asked: tuple[int, ...] = ()
    shuffled: int = 0
    release: Plain | None = None
    budget: Pair | None = None
    matched: Matched | None = None
    """To what its noise was matched; written only where it was."""

    @property
    def stated_delta(self) -> float | None:
        """That of the budget, or the client's own where the method's noise could keep none."""
        return self.budget[1] if self.budget else self.delta

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {own.name: getattr(self, own.name) for own in fields(self)}
        plain |= {key: list(getattr(self, key)) for key in ("factors", "levels", "asked")}
        plain["budget"] = None if self.budget is None else list(self.budget)
        matched = plain.pop("matched")
        return plain if matched is None else {**plain, "matched": matched.to_dict()}

    @classmethod
    def from_dict(cls, plain: Any) -> ClientRow:
        """The inverse of `to_dict`. A field that is not known may be about noise: refused."""
        plain = _object("client", plain)
        if unknown := sorted(plain.keys() - {own.name for own in fields(cls)}):
            raise InvalidInput(unknown[0], "is not a field of a client")
        released = _field(plain, "parameters", bool, False)
        return cls(
            name=_field(plain, "name", str),
            declared_size=_field(plain, "declared_size", int),
            rate=_field(plain, "rate", float | int),
            rounds=_field(plain, "rounds", int),
            steps=_field(plain, "steps", int),
            batches=_field(plain, "batches", int, 1),
            epochs=_field(plain, "epochs", int, 1),
            trainings=_field(plain, "trainings", int, 1),
            participation=_field(plain, "participation", float | int, 1.0),
            penalty=_field(plain, "penalty", float | int, 0.0),
            parameters=released,
            diameter=_field(plain, "diameter", bool, released),
            delta=_field(plain, "delta", float | int | None, None),
            shares_steps=_field(plain, "shares_steps", bool, False),
            count=_field(plain, "count", dict | None, None),
            factors=tuple(_field(plain, "factors", list, [])),
            levels=tuple(_field(plain, "levels", list, [])),
            asked=tuple(_field(plain, "asked", list, [])),
            shuffled=_field(plain, "shuffled", int, 0),
            release=_field(plain, "release", dict | None),
            budget=_pair("budget", _field(plain, "budget", list | None)),
            matched=Matched.from_dict(plain["matched"]) if "matched" in plain else None,
        )


@dataclass(frozen=True)
class RoundRow(Mapping[str, Any]):
    """A line of metrics.jsonl: by name what every round has, by key all that stages add to it."""

    plain: Plain

    @property
    def round(self) -> int:
        """The first is 1."""
        return int(self.plain["round"])

    @property
    def is_evaluated(self) -> bool:
        """Whether the model was measured after this round."""
        return self.plain.get("loss") is not None

    @property
    def participants(self) -> int:
        """How many clients answered."""
        return int(self.plain.get("participants") or 0)

    @property
    def bytes_up(self) -> int:
        """What clients sent."""
        return int(self.plain.get("bytes_up") or 0)

    @property
    def bytes_down(self) -> int:
        """What the server sent to all of them."""
        return int(self.plain.get("bytes_down") or 0)

    @property
    def seconds(self) -> float:
        """How long the round took."""
        return float(self.plain.get("seconds") or 0)

    @property
    def clip_factor(self) -> float | None:
        """By how much the clip of the next round differs from the planned one, if it adapts."""
        factor = self.plain.get("clip_factor")
        return None if factor is None else float(factor)

    @property
    def noise_std(self) -> float | None:
        """The standard deviation of the noise, the largest of any client; None if not known."""
        noise = self.plain.get("noise_std")
        most = noise.get("max") if isinstance(noise, Mapping) else None
        return most if isinstance(most, float) else None

    def __getitem__(self, key: str) -> Any:
        return self.plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, in the order in which it was given."""
        return dict(self.plain)

    @classmethod
    def from_dict(cls, plain: Any) -> RoundRow:
        """The inverse of `to_dict`."""
        plain = _object("round", plain)
        _field(plain, "round", int)
        for key in ("participants", "bytes_up", "bytes_down"):
            _field(plain, key, int | None, None)
        for key in ("seconds", "clip_factor"):
            _field(plain, key, float | int | None, None)
        return cls(plain)


@dataclass(frozen=True)
class FinalEvaluation:
    """evaluation.json: the final model on the test split. What does not fit the task is None."""

    task: Task | None = None
    test_records: int | None = None
    accuracy: Figure = None
    loss: Figure = None
    mae: Figure = None
    mse: Figure = None
    rmse: Figure = None
    class_names: Sequence[str] | None = None
    confusion: Sequence[Sequence[int]] | None = None
    """Of test records of class i, how many were taken for class j."""
    mae_by_output: Sequence[Figure] | None = None
    rmse_by_output: Sequence[Figure] | None = None
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Published figures on the same test records."""

    @property
    def figures(self) -> dict[str, Figure]:
        """How good the model is, by the name of the figure."""
        return {key: getattr(self, key) for key in ("accuracy", "loss", "mae", "mse", "rmse")}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the fields of the task."""
        plain = {own.name: getattr(self, own.name) for own in fields(self)}
        always = {"task", "test_records", "accuracy", "loss", "references"}
        always |= {"class_names"} if self.confusion is not None else set()
        return {key: value for key, value in plain.items() if key in always or value is not None}

    @classmethod
    def from_dict(cls, plain: Any) -> FinalEvaluation:
        """The inverse of `to_dict`."""
        plain = _object("evaluation", plain)
        figure, listed = float | int | str | None, list | None
        return cls(
            task=_field(plain, "task", str | None, None),
            test_records=_field(plain, "test_records", int | None, None),
            **{key: _field(plain, key, figure, None) for key in cls().figures},
            **{
                key: _field(plain, key, listed, None)
                for key in ("class_names", "confusion", "mae_by_output", "rmse_by_output")
            },
            references=_field(plain, "references", dict, {}),
        )


@dataclass(frozen=True)
class Summary:
    """summary.json: what a run came to. With this file a run is over."""

    outcome: Plain
    """What the ledger has on record of the end: figures of the model, seconds, why it stopped."""
    privacy: PrivacyStatement
    """The largest spending of any client."""
    statement: str | None
    """The same in words."""
    run: str | None
    """The folder, as it was called then."""
    clients: Mapping[str, PrivacyStatement]
    head: Head | None = None
    """The last charge in the ledger when the run ended; None where an old folder does not say."""
    decided: Head | None = None
    """The last decision then."""
    budgets: Mapping[str, Pair | None] = field(default_factory=dict)
    """What the ledger held for each client."""

    @property
    def stopped(self) -> str | None:
        """Why the run ended before its last round."""
        why = self.outcome.get("stopped")
        return None if why is None else str(why)

    @property
    def seconds(self) -> float:
        """How long all its rounds took; 0 where that is not a number."""
        seconds = self.outcome.get("seconds")
        return float(seconds) if isinstance(seconds, float | int) else 0.0

    @property
    def rounding(self) -> float | None:
        """What rounding of the noise adds to delta at most."""
        return self.outcome.get("rounding")

    @property
    def device(self) -> str | None:
        """On which it was computed."""
        return self.outcome.get("device")

    @property
    def parameters(self) -> int | None:
        """Of the model."""
        return self.outcome.get("parameters")

    def figure(self, name: str) -> float | None:
        """A figure of the final model, such as "accuracy"; None where there is none."""
        value = self.outcome.get(name)
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError):
            raise InvalidInput(name, f"must be a number, got {value!r}") from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {
            "privacy": self.privacy.to_dict(),
            "statement": self.statement,
            "run": self.run,
            "clients": {name: own.to_dict() for name, own in self.clients.items()},
            "head": None if self.head is None else list(self.head),
            "decided": None if self.decided is None else list(self.decided),
            "budgets": {
                name: None if own is None else list(own) for name, own in self.budgets.items()
            },
        }
        return {**self.outcome, **{key: own for key, own in plain.items() if own is not None}}

    @classmethod
    def from_dict(cls, plain: Any) -> Summary:
        """The inverse of `to_dict`."""
        plain = _object("summary", plain)
        known = {own.name for own in fields(cls)} - {"outcome"}
        budgets = _field(plain, "budgets", dict, {})
        stated = _field(plain, "clients", dict, {}).items()
        return cls(
            outcome={key: value for key, value in plain.items() if key not in known},
            privacy=PrivacyStatement.from_dict(_field(plain, "privacy", dict)),
            statement=_field(plain, "statement", str | None, None),
            run=_field(plain, "run", str | None, None),
            clients={name: PrivacyStatement.from_dict(own) for name, own in stated},
            head=_head(plain, "head"),
            decided=_head(plain, "decided"),
            budgets={name: _pair("budgets", own) for name, own in budgets.items()},
        )


@dataclass(frozen=True)
class Stamp:
    """What the header of a model says of its privacy."""

    statement: str | None = None
    privacy: Plain | None = None
    """As written: whoever compares it has to see what does not fit, too."""
    head: Head | None = None
    """The last charge when the run ended; a model that claims nothing names none."""

    @classmethod
    def of(cls, privacy: PrivacyStatement, head: tuple[int, str]) -> Stamp:
        """The stamp of a model with this spending, charged up to this row."""
        # A seeded run comes to the same bits, whenever it was charged.
        charged = None if privacy.kind == "none" else Head(*head)
        return cls(str(privacy), privacy.to_dict(), charged)

    @property
    def is_claim(self) -> bool:
        """Whether it may be read as a claim of privacy."""
        return not (isinstance(self.privacy, Mapping) and self.privacy.get("kind") == "none")

    @property
    def stated(self) -> PrivacyStatement | None:
        """The statement; None in a header of an old version."""
        return None if self.privacy is None else PrivacyStatement.from_dict(self.privacy)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain: dict[str, Any] = {"statement": self.statement, "privacy": self.privacy}
        plain["head"] = None if self.head is None else list(self.head)
        return {key: own for key, own in plain.items() if own is not None}

    @classmethod
    def from_dict(cls, plain: Any) -> Stamp:
        """The inverse of `to_dict`; a header of other software says none of it."""
        plain = _object("stamp", plain)
        privacy = plain.get("privacy")
        if privacy is None and "privacy" in plain:
            privacy = {}  # not a statement, which is something else than to say nothing
        return cls(plain.get("statement"), privacy, _head(plain, "head"))


def version_of(plain: Plain) -> int:
    """The version of the folder that a run.json is from."""
    version: int = _field(plain, "version", int, 1)
    if version < 1:
        raise InvalidInput("version", f"must be at least 1, got {version}")
    return version


_REQUIRED: Any = object()


def _field(plain: Plain, key: str, kind: Any, default: Any = _REQUIRED) -> Any:
    """A field of this type; true and false are no numbers."""
    value = plain.get(key, default)
    if value is _REQUIRED:
        raise InvalidInput(key, "is missing")
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = kind.__name__ if isinstance(kind, type) else str(kind)
        raise InvalidInput(key, f"must be of type {name}, got {value!r}")
    return value


def _object(name: str, plain: Any) -> Plain:
    if not isinstance(plain, Mapping):
        raise InvalidInput(name, f"must be an object, got {plain!r}")
    return plain


def _pair(name: str, budget: Any) -> Pair | None:
    if budget is None:
        return None
    if not isinstance(budget, list) or len(budget) != 2:
        raise InvalidInput(name, f"must be an epsilon and a delta, got {budget!r}")
    return budget[0], budget[1]


def _head(plain: Plain, key: str) -> Head | None:
    if plain.get(key) is None:
        return None
    try:
        number, chain = plain[key]
        return Head(int(number), str(chain))
    except (TypeError, ValueError):
        raise InvalidInput(key, f"must be a number and a hash, got {plain[key]!r}") from None
