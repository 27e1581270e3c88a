"""What travels between a server and a site: bytes and plain data, whatever carries them.

A request has a body, the same for every site of a round, and an address, this site's own. What a
site sends back is an answer: a released message or a refusal, and what the site says of itself. All
of it comes from the other side, so nothing is believed: `read` checks the type of every field.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from udpfl.accounting import PrivacyStatement
from udpfl.algorithms.message import Tensors, tensors_from_bytes, tensors_to_bytes
from udpfl.errors import InvalidInput
from udpfl.ledger.chain import Head
from udpfl.ledger.charges import IMPORTED
from udpfl.site.reasons import plain

VERSION = 1
"""Of the requests and answers; a site refuses another one."""
NO_HEAD = Head(0, "")
"""Of a ledger without charges, or where nobody knows of one."""
_RUN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHAIN = re.compile(r"[0-9a-f]{64}")
_MOST = 2**53
_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class SiteRequest:
    """What a server asks of one site in one round.

    Example:
        >>> import torch
        >>> from udpfl.site import SiteRequest
        >>> request = SiteRequest("run-1", {"seed": 0}, 1, {"model": torch.zeros(3)}, 0.1, cohort=2)
        >>> SiteRequest.read(request.body(), request.address()).round
        1
    """

    run: str
    """The id of the run, the same in all its rounds."""
    settings: Mapping[str, Any]
    """What the server proposes for the run, see `site.settings`."""
    round: int
    """The first is 1."""
    tensors: Tensors
    """The model, and what the method and the stages add, by name."""
    learning_rate: float
    """Of the clients in this round."""
    cohort: int
    """How many sites this round asks, as the server claims."""
    settled: int = -1
    """Rounds up to this one are safe with the server: it will not ask for them again."""
    steps: int | None = None
    """Local steps in this round, where the method shares them out; else those of the settings."""
    client: int = 0
    """The number of the site in the schedule of the run."""
    head: Head = NO_HEAD
    """The last charge of this site that the server knows of."""

    def __post_init__(self) -> None:
        run_id(self.run)
        _table("settings", self.settings)
        object.__setattr__(self, "learning_rate", _number("learning_rate", self.learning_rate))
        for name, least in (("round", 1), ("cohort", 1), ("settled", -1), ("client", 0)):
            _whole(name, getattr(self, name), least)
        if self.steps is not None:
            _whole("steps", self.steps, 1)
        object.__setattr__(self, "head", head_from(self.head))

    @property
    def digest(self) -> str:
        """Of all that a message is computed from: sites that are asked alike have the same."""
        return sha256(tensors_to_bytes(self.tensors, self._work)).hexdigest()

    @property
    def _work(self) -> dict[str, Any]:
        """What a message is computed from, beside the tensors."""
        return {
            "run": self.run,
            "settings": dict(self.settings),
            "round": self.round,
            "learning_rate": self.learning_rate,
            "steps": self.steps,
        }

    def body(self) -> bytes:
        """What is the same for all sites of a round."""
        more = {"version": VERSION, "cohort": self.cohort, "settled": self.settled}
        return tensors_to_bytes(self.tensors, {**self._work, **more})

    def address(self) -> dict[str, Any]:
        """What is for this site alone, as plain data."""
        return {"client": self.client, "head": list(self.head)}

    @classmethod
    def read(cls, body: bytes, address: Mapping[str, Any]) -> SiteRequest:
        """The request of a body and an address.

        Raises:
            InvalidInput: It is damaged, of another version, or a field is not what it should be.
        """
        tensors, header = tensors_from_bytes(body)
        own = {**_table("request", header), **_table("address", address)}
        if own.pop("version", None) != VERSION:
            raise InvalidInput("version", f"this site reads requests of version {VERSION}")
        if unknown := sorted(own.keys() - _FIELDS):
            raise InvalidInput(str(unknown[0])[:40], "is not a field of a request")
        if missing := sorted(_NEEDED - own.keys()):
            raise InvalidInput(missing[0], "is missing")
        return cls(**{**own, "tensors": tensors, "head": head_from(own.get("head"))})


_NEEDED = {"run", "settings", "round", "learning_rate", "cohort", "client"}
_FIELDS = {*_NEEDED, "settled", "steps", "head"}


@dataclass(frozen=True)
class SiteAnswer:
    """What a site sends back: a released message, or why there is none.

    Example:
        >>> from udpfl.site import SiteAnswer
        >>> SiteAnswer("clinic-a", refused="another model").to_dict()["refused"]
        'another model'
    """

    site: str
    """The name of the site."""
    message: bytes = field(default=b"", repr=False)
    """A `ClientMessage`, charged and stored at the site; empty where it refused."""
    is_sealed: bool = False
    """Whether the message is for the shuffler alone."""
    refused: str = ""
    """Why there is no message."""
    is_final: bool = False
    """Whether it is of no use to ask for this round again."""
    head: Head = NO_HEAD
    """The last charge in the site's ledger."""
    privacy: PrivacyStatement | None = None
    """What the site says that it has spent."""

    def to_dict(self) -> dict[str, Any]:
        """All but the message, as plain data."""
        return {
            "version": VERSION,
            "site": self.site,
            "is_sealed": self.is_sealed,
            "refused": self.refused,
            "is_final": self.is_final,
            "head": list(self.head),
            "privacy": None if self.privacy is None else self.privacy.to_dict(),
        }

    @classmethod
    def read(cls, message: bytes, about: Mapping[str, Any]) -> SiteAnswer:
        """The inverse of `to_dict`, with the message.

        Raises:
            InvalidInput: A field is not what it should be.
        """
        own = _table("answer", about)
        stated = own.get("privacy")
        return cls(
            site=_text("site", own.get("site")),
            message=message,
            is_sealed=own.get("is_sealed") is True,
            refused=plain(_text("refused", own.get("refused", ""))),
            is_final=own.get("is_final") is True,
            head=head_from(own.get("head")),
            privacy=None if stated is None else PrivacyStatement.from_dict(stated),
        )


@dataclass(frozen=True)
class SiteFacts:
    """What a site says of itself before a run: public numbers, nothing computed from records.

    Example:
        >>> from udpfl.site import SiteFacts
        >>> facts = SiteFacts("clinic-a", 1000, (28, 28), 10, "classification", 8.0, 1e-5)
        >>> SiteFacts.read(facts.to_dict()) == facts
        True
    """

    site: str
    """Its name."""
    declared_size: int
    """The public number of its records."""
    input_shape: tuple[int, ...]
    """Of one input."""
    outputs: int
    """Numbers that a model has to answer with."""
    task: str
    """Either "classification" or "regression"."""
    epsilon: float
    """Its budget over all runs."""
    delta: float
    """Its budget over all runs."""
    input_type: str = "float32"
    """Or "int64" for token ids."""
    head: Head = NO_HEAD
    """The last charge in its ledger."""
    udpfl: str = ""
    """The version of udpfl that it runs."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        own = asdict(self)
        return {**own, "input_shape": list(self.input_shape), "head": list(self.head)}

    @classmethod
    def read(cls, plain: Any) -> SiteFacts:
        """The inverse of `to_dict`.

        Raises:
            InvalidInput: A field is not what it should be.
        """
        own = _table("facts", plain)
        shape = own.get("input_shape")
        if not isinstance(shape, list) or not 0 < len(shape) <= 8:
            raise InvalidInput("input_shape", "must be a list of whole numbers")
        return cls(
            site=_text("site", own.get("site")),
            declared_size=_whole("declared_size", own.get("declared_size"), 1),
            input_shape=tuple(_whole("input_shape", size, 1) for size in shape),
            outputs=_whole("outputs", own.get("outputs"), 1),
            task=_text("task", own.get("task")),
            epsilon=_number("epsilon", own.get("epsilon")),
            delta=_number("delta", own.get("delta")),
            input_type=_input_type(own.get("input_type", "float32")),
            head=head_from(own.get("head")),
            udpfl=_text("udpfl", own.get("udpfl", "")),
        )


def run_id(value: Any) -> str:
    """The id of a run, which becomes the name of a folder at the site."""
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise InvalidInput("run", "must be at most 64 letters, digits, dashes and underscores")
    if value.startswith(IMPORTED):
        raise InvalidInput(
            "run", f"must not begin with {IMPORTED!r}: a site imports under such ids"
        )
    return value


def round_number(value: Any) -> int:
    """The number of a round; the first is 1."""
    return _whole("round", value, 1)


def head_from(value: Any) -> Head:
    """The number and the hash of a charge; None stands for no charge."""
    if value is None:
        return NO_HEAD
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidInput("head", "must be a number and a hash")
    number, chain = _whole("head", value[0], 0), value[1]
    if not isinstance(chain, str) or (number > 0 and not _CHAIN.fullmatch(chain)):
        raise InvalidInput("head", "must be a number and a hash")
    return Head(number, chain if number else "")


def _input_type(value: Any) -> str:
    if value not in ("float32", "int64"):
        raise InvalidInput("input_type", "must be float32 or int64")
    return str(value)


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(name, "must be a table")
    return dict(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 10_000:
        raise InvalidInput(name, "must be a text")
    return value


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise InvalidInput(name, f"must be a whole number from {least}")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, "must be a finite number")
    if not -_LARGEST <= value <= _LARGEST:  # nor is it this where it is no number
        raise InvalidInput(name, "must be a finite number")
    return float(value)
