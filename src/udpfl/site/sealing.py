"""Messages that only the shuffler can open.

A site signs its message and seals it for the shuffler's key, so whoever carries it, the server
included, sees bytes of one length and nothing else. Each seal has a key of its own: X25519 between
a fresh key and the shuffler's, HKDF with SHA-256, AES-256-GCM. The signature (Ed25519) covers site,
run, round, work and message, so nobody else can put a message among those that are mixed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from pathlib import Path

from udpfl.errors import InvalidInput, MissingExtra, UdpflError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise MissingExtra("cryptography", "train") from None

_PURPOSE = b"udpfl sealed message 1"
_PUBLIC, _NONCE, _SIGNATURE = 32, 12, 64
_STEP = 4096
"""Sealed messages have a length that is a multiple of this: names and numbers do not show by it."""


class NotSealed(UdpflError):
    """Bytes that are no sealed message for this key, or that somebody else has signed."""


@dataclass(frozen=True)
class Letter:
    """An opened message, and who has signed it."""

    site: str
    run: str
    round: int
    work: str
    """The digest of what the message was computed from, records apart."""
    message: bytes


def new_key() -> str:
    """A private key as text: for a shuffler to open with, or for a site to sign with."""
    return _text(os.urandom(32))


def opening_public(secret: str) -> str:
    """The public half of a shuffler's key, for which sites seal."""
    own = X25519PrivateKey.from_private_bytes(_bytes(secret))
    return _text(own.public_key().public_bytes_raw())


def signing_public(secret: str) -> str:
    """The public half of a site's key, by which a shuffler knows it."""
    own = Ed25519PrivateKey.from_private_bytes(_bytes(secret))
    return _text(own.public_key().public_bytes_raw())


def seal(letter: Letter, signed_by: str, sealed_for: str) -> bytes:
    """Seal a message.

    Args:
        letter: The message, and what it answers.
        signed_by: The site's private key.
        sealed_for: The shuffler's public key.

    Returns:
        Bytes whose length tells hardly anything.
    """
    signer = Ed25519PrivateKey.from_private_bytes(_bytes(signed_by))
    inner = _inner(letter)
    plain = signer.sign(_PURPOSE + inner) + inner
    plain += bytes(-(len(plain) + 8) % _STEP)
    fresh, nonce = X25519PrivateKey.generate(), os.urandom(_NONCE)
    public = fresh.public_key().public_bytes_raw()
    shared = fresh.exchange(X25519PublicKey.from_public_bytes(_bytes(sealed_for)))
    sealed = AESGCM(_key(shared, public, _bytes(sealed_for))).encrypt(
        nonce, len(inner).to_bytes(8, "little") + plain, _PURPOSE
    )
    return public + nonce + sealed


def unseal(data: bytes, opened_by: str, known: dict[str, str]) -> Letter:
    """Open a message.

    Args:
        data: What `seal` returned.
        opened_by: The shuffler's private key.
        known: The public keys of the sites, by their names.

    Raises:
        NotSealed: It is for another key, was changed, or is signed by nobody who is known.
    """
    own = X25519PrivateKey.from_private_bytes(_bytes(opened_by))
    public, nonce, rest = data[:_PUBLIC], data[_PUBLIC : _PUBLIC + _NONCE], data[_PUBLIC + _NONCE :]
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(public))
        key = _key(shared, public, own.public_key().public_bytes_raw())
        plain = AESGCM(key).decrypt(nonce, rest, _PURPOSE)
        length = int.from_bytes(plain[:8], "little")
        signature, inner = plain[8 : 8 + _SIGNATURE], plain[8 + _SIGNATURE :][:length]
        letter = _letter(inner)
        signer = Ed25519PublicKey.from_public_bytes(_bytes(known[letter.site]))
        signer.verify(signature, _PURPOSE + inner)
    except (InvalidTag, InvalidSignature, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotSealed(f"not a message for this shuffler: {type(error).__name__}") from None
    return letter


def _inner(letter: Letter) -> bytes:
    head = json.dumps([letter.site, letter.run, letter.round, letter.work]).encode()
    return len(head).to_bytes(4, "little") + head + letter.message


def _letter(inner: bytes) -> Letter:
    length = int.from_bytes(inner[:4], "little")
    site, run, round_, work = json.loads(inner[4 : 4 + length])
    if not (all(isinstance(own, str) for own in (site, run, work)) and type(round_) is int):
        raise ValueError("not a letter")
    return Letter(site, run, round_, work, inner[4 + length :])


def _key(shared: bytes, public: bytes, other: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt=public + other, info=_PURPOSE).derive(shared)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        data = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 32:
        raise InvalidInput("key", "must be 32 bytes, in base64")
    return data


def read_key(path: str | Path) -> str:
    """A private key from its file."""
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("key", f"cannot read {path}: {error}") from None
    _bytes(text)
    return text
