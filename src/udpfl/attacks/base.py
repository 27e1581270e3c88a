"""What an attack is, and what comes of it. An attack is one file with one subclass of `Attack`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast, get_args

from pydantic import ValidationError

from udpfl.accounting import PrivacyStatement
from udpfl.config.section import Section
from udpfl.errors import InvalidInput

if TYPE_CHECKING:
    from udpfl.attacks.target import Target

AttackKind = Literal["membership", "reconstruction", "attribute"]
Options = TypeVar("Options", bound=Section)
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


UNTRAINED = "same attack on the untrained model"
"""A baseline: whoever does as well there owes nothing to the training."""


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


@dataclass(frozen=True)
class Figure:
    """One number of an attack, with its interval and what it is held against.

    Example:
        >>> from udpfl.attacks import Figure
        >>> print(Figure("AUC", 0.612, 0.58, 0.64))
        AUC 0.612 (95 %: 0.58 to 0.64)
    """

    name: str
    """What it measures, for people: "TPR at 1 % FPR"."""
    value: float
    """As it was found."""
    low: float | None = None
    """The lower end of its interval."""
    high: float | None = None
    """The upper end."""
    confidence: float = 0.95
    """Of the interval."""
    cap: float | None = None
    """The most that the privacy statement allows; None where it says nothing of this figure."""
    exceeds: bool = False
    """Whether the figure is above its cap by more than chance explains."""
    unit: str = ""
    """Such as "dB"; empty for shares and scores."""

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        said = f"{self.name} {self.value:.3g}{unit}"
        if self.low is not None and self.high is not None:
            said += f" ({100 * self.confidence:g} %: {self.low:.3g} to {self.high:.3g})"
        if self.cap is not None:
            said += f", cap {self.cap:.3g}" + (" EXCEEDED" if self.exceeds else "")
        return said


@dataclass(frozen=True)
class Curve:
    """A line to draw, such as a receiver operating characteristic."""

    name: str
    """Its title."""
    x: tuple[float, ...]
    """From left to right."""
    y: tuple[float, ...]
    """As many."""
    x_label: str = "false positive rate"
    """What x is."""
    y_label: str = "true positive rate"
    """What y is."""
    log: bool = False
    """Whether both axes are logarithmic."""
    cap: tuple[float, ...] = ()
    """The most that the privacy statement allows at each x; empty where it says nothing."""


@dataclass(frozen=True)
class Picture:
    """An image of the result's page, such as a grid of reconstructions."""

    title: str
    """What it shows."""
    png: str
    """The file in base64."""


@dataclass(frozen=True)
class Attacked:
    """What was attacked: which run, seen from where, on which records."""

    run: str
    """The id of the run."""
    model: str
    """SHA-256 of the model that was attacked, in hex."""
    view: str
    """What the attacker sees, for people: "the final model"."""
    records: str
    """On which records the attack was tried, for people."""


@dataclass(frozen=True)
class AttackResult:
    """What one attack on one run found.

    Args:
        attack: The name of the attack.
        kind: "membership", "reconstruction" or "attribute".
        attacked: Which run, from which view, on which records.
        privacy: What the run states about privacy.
        figures: The results, the one that matters most first.
        baselines: What somebody who learned nothing from the run achieves.
        verdict: One sentence in plain words.
        exceeded: Whether a figure is above what the privacy statement allows, beyond its interval.
        options: The settings of the attack.
        seed: Of the choices that the attack makes at random.
        seconds: How long it took.
        notes: What is to be known of these numbers.
        curves: Lines to draw.
        pictures: Images to show.

    Example:
        >>> from udpfl import PrivacyStatement
        >>> from udpfl.attacks import AttackResult, Attacked, Figure
        >>> run = Attacked("run-1", "", "the final model", "20 records")
        >>> none = PrivacyStatement.none("privacy is turned off")
        >>> auc = (Figure("AUC", 0.5),)
        >>> found = AttackResult("loss", "membership", run, none, auc, (), "Nothing learned.")
        >>> AttackResult.from_dict(found.to_dict()) == found
        True
    """

    attack: str
    kind: AttackKind
    attacked: Attacked
    privacy: PrivacyStatement
    figures: tuple[Figure, ...]
    baselines: tuple[Figure, ...]
    verdict: str
    exceeded: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    pictures: tuple[Picture, ...] = ()

    def __str__(self) -> str:
        return self.verdict

    def figure(self, name: str) -> Figure:
        """The figure of this name."""
        for own in (*self.figures, *self.baselines):
            if own.name == name:
                return own
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = asdict(self)
        plain["privacy"] = self.privacy.to_dict()
        plain["statement"] = str(self.privacy)
        found: dict[str, Any] = _lists(plain)
        return found

    @classmethod
    def from_dict(cls, plain: Any) -> AttackResult:
        """The inverse of `to_dict`; what is missing is never guessed."""
        wanted = {own.name for own in fields(cls)} | {"statement"}
        if not isinstance(plain, Mapping) or plain.keys() != wanted:
            raise InvalidInput("attack", f"must have the fields {sorted(wanted)}")
        if plain["kind"] not in get_args(AttackKind) or not isinstance(plain["exceeded"], bool):
            raise InvalidInput("attack", "must have a kind, and say whether a cap was exceeded")
        own = {name: value for name, value in plain.items() if name != "statement"}
        try:
            own["attacked"] = Attacked(**own["attacked"])
            own["privacy"] = PrivacyStatement.from_dict(own["privacy"])
            for name, kind in (("figures", Figure), ("baselines", Figure), ("pictures", Picture)):
                own[name] = tuple(kind(**each) for each in own[name])
            own["curves"] = tuple(map(_curve, own["curves"]))
            own["notes"] = tuple(own["notes"])
        except TypeError as error:
            raise InvalidInput("attack", f"is not as this version writes it: {error}") from None
        return cls(**own)


@dataclass(frozen=True)
class Findings:
    """What an attack found. `Attack.run` adds the run, the settings and the time.

    Args:
        view: What the attacker saw, for people: "the final model".
        records: On which records the attack was tried, for people.
        figures: The results, the one that matters most first.
        baselines: What somebody who learned nothing from the run achieves.
        verdict: One sentence in plain words.
        exceeded: Whether a figure is above what the privacy statement allows, beyond its interval.
        notes: What is to be known of these numbers.
        curves: Lines to draw.
        pictures: Images to show.

    Example:
        >>> from udpfl.attacks import Figure, Findings
        >>> auc = (Figure("AUC", 0.5),)
        >>> Findings("the final model", "20 records", auc, (), "Nothing learned.").exceeded
        False
    """

    view: str
    records: str
    figures: tuple[Figure, ...]
    baselines: tuple[Figure, ...]
    verdict: str
    exceeded: bool = False
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    pictures: tuple[Picture, ...] = ()


class Attack(ABC, Generic[Options]):
    """One attack with its options.

    A subclass sets the class variables, and implements `find`. Its options are a `Section`, so that
    `--set` and Python refuse what is not known, with the name of the key.

    Args:
        options: What is to differ from the defaults.
        seed: Of the choices that the attack makes at random.
    """

    name: ClassVar[str]
    """As on the command line."""
    kind: ClassVar[AttackKind]
    """What it finds out about records."""
    what: ClassVar[str]
    """What it does, in one line."""
    needs: ClassVar[str]
    """What the attacker needs, in one line."""
    paper: ClassVar[str]
    """Where it comes from."""
    options_type: ClassVar[type[Section]] = Section
    """The settings that it takes."""

    options: Options
    """As they are in this attack."""

    def __init__(self, options: Mapping[str, Any] | Section | None = None, seed: int = 0) -> None:
        self.seed = seed
        given = options if isinstance(options, self.options_type) else None
        if given is None:
            given = read_options(self.name, self.options_type, dict(options or {}))
        self.options = cast("Options", given)

    def run(self, target: Target, progress: Progress = silent) -> AttackResult:
        """Attack a finished run, and say what came of it.

        Args:
            target: The run.
            progress: Called with what is being done, how much of it is done, and how much there is.

        Returns:
            What was found, with the run, its privacy statement, the settings and the time.
        """
        began = time.perf_counter()
        found = self.find(target, progress)
        return AttackResult(
            self.name,
            self.kind,
            target.described(found.view, found.records),
            target.privacy,
            found.figures,
            found.baselines,
            found.verdict,
            found.exceeded,
            self.options.model_dump(mode="json"),
            self.seed,
            round(time.perf_counter() - began, 3),
            found.notes,
            found.curves,
            found.pictures,
        )

    @abstractmethod
    def find(self, target: Target, progress: Progress) -> Findings:
        """What this attack finds in a finished run."""


def read_options(attack: str, kind: type[Section], given: Mapping[str, Any]) -> Section:
    """The options of an attack; what it does not know is refused by its name."""
    known = list(kind.model_fields)
    for key in given:
        if key not in known:
            raise InvalidInput(
                f"set {key}",
                f"{attack} has no such option; its options are: {', '.join(known) or 'none'}",
            )
    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "options"
        raise InvalidInput(f"set {key}", str(first["msg"])) from None


def _curve(plain: Mapping[str, Any]) -> Curve:
    own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return Curve(**own)


def _lists(plain: Any) -> Any:
    """The same with lists in place of tuples, as JSON has them."""
    if isinstance(plain, Mapping):
        return {key: _lists(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_lists(value) for value in plain]
    return plain
