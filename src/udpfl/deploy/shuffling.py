"""The shuffler as a party of its own: it opens sealed messages, and hands them on mixed.

It runs on a host of its own, as one more node of the federation. Sites seal their messages for its
key, the server carries them there, and gets back the messages of a round without names, in a new
order. The shuffler needs no trust for privacy: the noise is in the messages already. It is trusted
with anonymity alone, that it keeps no list and does not work with the server.

A server that hands over few messages, or the same ones in other company, would learn who sent what.
One that asks every site for something else, with learning rates of their own for example, would
know them by what they send. So a batch has messages of at least `minimum` sites that were computed
from the same request with the same clip and noise, signed by keys that the shuffler knows, each
site once, and a round is mixed with one set of messages only.

The server still sees which nodes answered, when, and how many; and by what it gets back, every
message's public weight: sites that declare different sizes can be told apart by those.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import SystemRandom
from typing import Any

import torch
from pydantic import Field

from udpfl.algorithms import ClientMessage
from udpfl.algorithms.message import tensors_from_bytes, tensors_to_bytes
from udpfl.config import Count, Section, Text, read
from udpfl.config.explaining import validated
from udpfl.config.section import refusal
from udpfl.errors import InvalidInput, MissingExtra, Refused, WrongKey
from udpfl.federation.stages.shuffler import anonymous
from udpfl.site.reasons import plain
from udpfl.site.sealing import Letter, NotSealed, opening_public, read_key, unseal
from udpfl.site.wire import round_number, run_id
from udpfl.writing import write_whole

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError:
    raise MissingExtra("cryptography", "train") from None

log = logging.getLogger(__name__)


class ShufflerConfig(Section):
    """A shuffler, and the sites that it mixes.

    Example:
        >>> from udpfl.deploy.shuffling import ShufflerConfig
        >>> ShufflerConfig.of({"minimum": 3, "sites": {"clinic-a": "…"}}).minimum
        3
    """

    state: Text = Field(
        default="state", description="Folder where it notes which rounds it has mixed."
    )
    key: Text = Field(default="shuffler.key", description="File with its private key.")
    minimum: Count = Field(default=3, description="Fewest messages that it mixes, 2 or more.")
    sites: dict[Text, Text] = Field(
        description="The public keys of the sites, by their names.",
        examples=[{"clinic-a": "rQvqY0oXnQb2v1pQ0o7w4H8n3sF2m5u6kq9Zl1t8xE0="}],
    )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ShufflerConfig:
        """From plain tables."""
        return validated(cls, values)

    @classmethod
    def read(cls, path: str | Path) -> ShufflerConfig:
        """From a TOML file; paths in it are seen from the folder of the file."""
        own, folder = cls.of(read(path, "config")), Path(path).absolute().parent
        places = {"state": str(folder / own.state), "key": str(folder / own.key)}
        return own.model_copy(update=places)


class ShufflerParty:
    """Answers requests to mix; see `site.service` for how it is reached.

    Raises:
        WrongKey: The private key cannot be read, what is given for a site is no public key, or
            there are fewer sites than messages that have to be mixed.
    """

    def __init__(self, config: ShufflerConfig) -> None:
        try:
            self._config, self._key = config, read_key(config.key)
        except InvalidInput as error:
            raise WrongKey("key", error.message) from None
        if problems := [(f"sites.{name}", why) for name, why in _not_keys(config.sites)]:
            raise refusal(problems)
        if config.minimum < 2:
            raise WrongKey("minimum", f"must be 2 or more, got {config.minimum}: one is not mixed")
        if config.minimum > len(config.sites):
            raise WrongKey(
                "minimum",
                f"must be at most the number of [sites], which is {len(config.sites)}, got "
                f"{config.minimum}: no round would have enough messages",
            )
        self._state = Path(config.state)
        self._state.mkdir(parents=True, exist_ok=True)

    def handle(self, about: Mapping[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """What is asked: who it is, or to mix the messages of a round."""
        try:
            match about.get("ask"):
                case "describe":
                    facts = {"public_key": opening_public(self._key)}
                    return {"shuffler": {**facts, "minimum": self._config.minimum}}, b""
                case "finish":
                    return {"refused": ""}, b""
                case "shuffle":
                    place = run_id(about.get("run")), round_number(about.get("round"))
                    mixed = self.mix(*place, unpack(body))
                    return {"refused": "", "messages": len(mixed)}, pack(mixed)
                case other:
                    raise Refused(f"a shuffler cannot be asked to {str(other)[:40]!r}")
        except (Refused, InvalidInput) as error:
            log.warning("refused: %s", plain(error))
            return {"refused": plain(error)}, b""
        except Exception:
            log.error("a request could not be answered: %s", plain(traceback.format_exc()))
            return {"refused": "the shuffler could not answer; its log says why"}, b""

    def close(self) -> None:
        """Nothing is held open."""

    def mix(self, run: str, round_: int, sealed: Sequence[bytes]) -> list[bytes]:
        """The messages of a round without names, in a new order.

        Raises:
            Refused: There are too few, or others than when this round was mixed before.
        """
        letters: dict[str, Letter] = {}
        messages: dict[str, ClientMessage] = {}
        for data in sealed:
            try:
                letter = unseal(data, self._key, dict(self._config.sites))
                message = _nameless(letter)
            except NotSealed as error:
                log.warning("round %d of %s: %s", round_, run, plain(error))
                continue
            if (letter.run, letter.round) == (run, round_) and letter.site not in letters:
                letters[letter.site], messages[letter.site] = letter, message
        letters = _asked_alike(letters)
        if len(letters) < self._config.minimum:
            raise Refused(
                f"{len(letters)} messages of known sites to the same request are too few to hide "
                f"anybody: at least {self._config.minimum} are mixed"
            )
        self._require_same(run, round_, letters)
        mixed = [messages[site] for site in letters]
        SystemRandom().shuffle(mixed)
        return [message.to_bytes() for message in mixed]

    def _require_same(self, run: str, round_: int, letters: Mapping[str, Letter]) -> None:
        """Refuse another set of messages for a round that was mixed: the difference would tell."""
        content = sorted((site, own.message) for site, own in letters.items())
        digest = hashlib.sha256(repr(content).encode()).hexdigest()
        path = self._state / run / str(round_)
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, digest.encode())
        elif path.read_text() != digest:
            raise Refused(f"round {round_} was mixed already, with other messages")


def _nameless(letter: Letter) -> ClientMessage:
    """The message without a name; one that cannot be read is not to keep the others from mixing."""
    try:
        return anonymous(ClientMessage.from_bytes(letter.message))
    except Exception as error:  # whatever a site has signed
        raise NotSealed(f"{letter.site} has signed what is no message: {error}") from None


def _not_keys(sites: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The sites whose messages could never be opened, and why."""
    owners: dict[bytes, str] = {}
    for site, text in sites.items():
        try:
            data = base64.b64decode(text.strip(), validate=True)
            Ed25519PublicKey.from_public_bytes(data)
        except ValueError:
            yield site, f"must be what `udpfl deploy keys --seal` printed, got {text[:60]!r}"
            continue
        if (owner := owners.setdefault(data, site)) != site:
            yield site, f"is the key of {owner}"


def _asked_alike(letters: Mapping[str, Letter]) -> dict[str, Letter]:
    """Those that were computed from the same as most: others could be told by their content."""
    counts = Counter(own.work for own in letters.values() if own.work)
    usual = max(counts, key=lambda work: (counts[work], work), default=None)
    for own in letters.values():
        if own.work != usual:
            log.warning("%s was asked for something else than most sites: left out", own.site)
    return {site: own for site, own in letters.items() if own.work == usual}


def pack(parts: Sequence[bytes]) -> bytes:
    """Several byte strings as one."""
    arrays = [torch.frombuffer(bytearray(own), dtype=torch.uint8) for own in parts]
    return tensors_to_bytes({f"{number:06d}": own for number, own in enumerate(arrays)})


def unpack(data: bytes) -> list[bytes]:
    """The inverse of `pack`."""
    tensors, _ = tensors_from_bytes(data)
    return [tensors[name].numpy().tobytes() for name in sorted(tensors)]
