"""The private stream: every Poisson draw and every noise value comes out of one function, `words`.

A stream turns a key (run, client, round, step, purpose) into 256 bits and expands those on the
device of the buffer: on a CPU with AES-256 in counter mode, which is both cryptographic and the
fastest there is, on an accelerator (and on a CPU without `cryptography`) with Philox. `Entropy`
takes the bits from the operating system, afresh each time, and keeps nothing: nobody can replay the
sampling or the noise.
`Keyed` hashes them from a seed: a test mode, and whoever knows the seed can remove the noise, so
nothing that ran on it is private.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from udpfl.engine._kernels import kernels_for
from udpfl.errors import InvalidInput

try:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
except ImportError:
    CRYPTOGRAPHIC = False
else:
    CRYPTOGRAPHIC = True

Words = Callable[[Tensor], None]
"""Fills an int64 vector with the next words of a key."""

_ZEROS = memoryview(bytes(1 << 20))
"""What is encrypted to get the key stream, a piece at a time."""


class Key(NamedTuple):
    """What a draw is for. Two different keys never share a random bit."""

    run: str
    client: str
    round: int
    step: int
    purpose: str = "noise"


class PrivateStream(ABC):
    """Source of uniform 64-bit words."""

    private: ClassVar[bool]

    @abstractmethod
    def _bits(self, key: Key) -> bytes:
        """32 bytes for this key."""

    def _many_bits(self, keys: Sequence[Key]) -> bytes:
        """32 bytes for each of them."""
        return b"".join(map(self._bits, keys))

    def words(self, key: Key, device: torch.device) -> Words:
        """The words of one key, one after the other, in as many calls as one likes."""
        return _expanded(self._bits(key), device)

    def fill(self, buffer: Tensor, keys: Sequence[Key]) -> Tensor:
        """Fill row i of an int64 buffer with independent uniform words for keys[i]."""
        self.fill_parts(buffer.view(-1), [buffer.shape[1]] * len(buffer), keys)
        return buffer

    def fill_parts(self, flat: Tensor, sizes: Sequence[int], keys: Sequence[Key]) -> None:
        """Fill the parts of an int64 vector, of these sizes, with the words of their keys."""
        if len(sizes) != len(keys) or sum(sizes) != flat.numel():
            raise InvalidInput("keys", f"{len(keys)} for {len(sizes)} parts of a vector")
        if (kernels := kernels_for(flat)) is not None:
            many = torch.tensor(sizes)
            starts = many.cumsum(0) - many
            starts, many = (t.to(flat.device, non_blocking=True) for t in (starts, many))
            longest = max(sizes, default=0)
            kernels.fill_with_words(flat, starts, many, self.keys_on(flat.device, keys), longest)
            return
        for part, key in zip(flat.split(list(sizes)), keys, strict=True):
            self.words(key, flat.device)(part)

    def keys_on(self, device: torch.device, keys: Sequence[Key]) -> Tensor:
        """The bits of these keys, as kernels take them [n, 4]."""
        bits = bytearray(self._many_bits(keys))
        words = torch.frombuffer(bits, dtype=torch.int64) if keys else torch.empty(0).long()
        return words.view(-1, 4).to(device, non_blocking=True)

    @contextmanager
    def layers(self, key: Key, device: torch.device) -> Iterator[None]:
        """Random layers (dropout) draw from torch's own generators, seeded here for a while.

        A record's mask depends on its place in the batch, so masks that the server could compute
        would make every record depend on every other one.
        """
        seed = int.from_bytes(self._bits(key)[:8], "little") >> 1
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.default_generator.manual_seed(seed)
            if devices:
                with torch.cuda.device(device):  # of several, the one that computes
                    torch.cuda.manual_seed(seed)
            yield


@dataclass(frozen=True)
class Entropy(PrivateStream):
    """Fresh bits from the operating system for every draw; the key decides nothing."""

    private: ClassVar[bool] = True

    def _bits(self, key: Key) -> bytes:
        return os.urandom(32)

    def _many_bits(self, keys: Sequence[Key]) -> bytes:
        return os.urandom(32 * len(keys))


@dataclass(frozen=True)
class Keyed(PrivateStream):
    """Reproducible draws: not private, for tests and debugging."""

    private: ClassVar[bool] = False
    seed: int

    def _bits(self, key: Key) -> bytes:
        text = "\x00".join((key.run, key.client, str(key.round), str(key.step), key.purpose))
        secret = self.seed.to_bytes(16, "little", signed=True)
        return blake2b(text.encode(), digest_size=32, key=secret, person=b"udpfl").digest()


def _expanded(bits: bytes, device: torch.device) -> Words:
    """Uniform words from 256 bits, each used once."""
    if device.type == "cpu" and CRYPTOGRAPHIC:
        return _key_stream(bits)
    words = np.frombuffer(bits, dtype=np.uint64)
    if device.type == "cpu":
        # 128 bits of key and 128 of counter; the low half of the counter starts at zero.
        counter = np.concatenate([np.zeros(2, np.uint64), words[2:]])
        philox = np.random.Philox(key=words[:2], counter=counter)
        return lambda row: _copied(philox.random_raw(row.numel()), row)
    generator = torch.Generator(device)
    generator.manual_seed(int(words[0]) & (2**63 - 1))
    generator.set_offset(int(words[1] >> np.uint64(6)) * 4)  # a further 58 bits
    return lambda row: _drawn(row, generator)


def _copied(raw: NDArray[np.uint64], row: Tensor) -> None:
    row.copy_(torch.from_numpy(raw.view(np.int64)).view(row.shape))


def _drawn(row: Tensor, generator: torch.Generator) -> None:
    row.random_(-(2**63), None, generator=generator)


def _key_stream(key: bytes) -> Words:
    """AES-256 in counter mode, from a counter of zero: no key is used twice."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def fill(row: Tensor) -> None:
        buffer = row.numpy().data.cast("B")
        for start in range(0, len(buffer), len(_ZEROS)):
            piece = buffer[start : start + len(_ZEROS)]
            stream.update_into(_ZEROS[: len(piece)], piece)

    return fill


def poisson_indices(stream: PrivateStream, key: Key, records: Tensor, rate: float) -> Tensor:
    """Each record independently with probability `rate`, exact to 2^-64."""
    return poisson_samples(stream, [key], [records], [rate])[0]


def poisson_samples(
    stream: PrivateStream,
    keys: Sequence[Key],
    records: Sequence[Tensor],
    rates: Sequence[float],
) -> list[Tensor]:
    """A sample of every lane's records; what was drawn is looked at once for all lanes."""
    samples = list(records)
    drawn = [lane for lane, rate in enumerate(rates) if rate < 1 and len(records[lane])]
    if not drawn:
        return samples
    pool = torch.cat([records[lane] for lane in drawn])
    sizes = [len(records[lane]) for lane in drawn]
    words = torch.empty_like(pool, dtype=torch.int64)
    stream.fill_parts(words, sizes, [keys[lane] for lane in drawn])
    below = torch.tensor([int(rates[lane] * 2**64) - 2**63 for lane in drawn], device=pool.device)
    lengths = torch.tensor(sizes, device=pool.device)
    taken = words < below.repeat_interleave(lengths, output_size=len(pool))
    places = taken.nonzero().squeeze(1)
    ends = lengths.cumsum(0)
    counts = torch.searchsorted(places, ends).diff(prepend=ends.new_zeros(1)).tolist()
    for lane, sample in zip(drawn, pool[places].split(counts), strict=True):
        samples[lane] = sample
    return samples


def random_batches(
    stream: PrivateStream, keys: Sequence[Key], samples: Sequence[Tensor], count: int
) -> list[list[Tensor]]:
    """Every lane's sample split into `count` batches: for each batch the records of each lane.

    Guarantee: a record is in exactly one batch. A draw of its own decides which, uniform to 2^-64,
    so adding or removing another record changes nothing about it.
    """
    if count == 1:
        return [list(samples)]
    batches: list[list[Tensor]] = [[] for _ in range(count)]
    for key, sample in zip(keys, samples, strict=True):
        words = torch.empty_like(sample, dtype=torch.int64)
        if len(sample):
            stream.words(key, sample.device)(words)
        places = words.remainder(count)
        sizes = places.bincount(minlength=count).tolist()
        parts = sample[places.argsort(stable=True)].split(sizes)
        for batch, part in zip(batches, parts, strict=True):
            batch.append(part)
    return batches
