"""The private stream: one set of tests for the keyed and the entropy source."""

from __future__ import annotations

import math
import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy import stats

from udpfl.engine import Entropy, Key, Keyed, randomness
from udpfl.engine.randomness import poisson_indices, poisson_samples

STREAMS = [Entropy(), Keyed(11)]
KEY = Key("run", "client", 3, 2)


def words(stream, keys, size):
    return stream.fill(torch.empty(len(keys), size, dtype=torch.int64), keys).numpy()


@pytest.fixture(params=[True, False], ids=["aes", "philox"])
def generator(request, monkeypatch):
    """With the cipher, and as on a machine that has none."""
    if request.param:
        pytest.importorskip("cryptography")
    monkeypatch.setattr(randomness, "CRYPTOGRAPHIC", request.param)


@pytest.mark.usefixtures("generator")
@pytest.mark.parametrize("stream", STREAMS, ids=["entropy", "keyed"])
class TestBoth:
    def test_every_bit_is_fair_and_bits_are_independent(self, stream):
        rows = words(stream, [KEY._replace(client=f"c{i}") for i in range(4)], 20_000)
        bits = (rows.reshape(-1, 1).view(np.uint64) >> np.arange(64, dtype=np.uint64)) & np.uint64(
            1
        )
        signs = bits.astype(np.float64) * 2 - 1
        n = len(signs)
        assert np.abs(signs.mean(0)).max() < 5.5 / math.sqrt(n)
        pairs = signs.T @ signs / n - np.eye(64)
        assert np.abs(pairs).max() < 6.5 / math.sqrt(n)

    def test_words_are_uniform(self, stream):
        values = words(stream, [KEY], 100_000)[0] / 2.0**64 + 0.5
        assert stats.kstest(values, "uniform").pvalue > 1e-6
        counts = np.histogram(values, bins=256, range=(0, 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-6

    def test_rows_rounds_steps_clients_and_purposes_share_nothing(self, stream):
        keys = [
            KEY,
            KEY._replace(run="other"),
            KEY._replace(client="other"),
            KEY._replace(round=4),
            KEY._replace(step=3),
            KEY._replace(purpose="sampling"),
            # Parts that run into each other if nothing stands between them.
            Key("runc", "lient", 3, 2),
            Key("run", "client3", 2, 1),
            Key("run", "client", 32, 1),
            Key("run", "client", 3, 21),
        ]
        rows = words(stream, keys, 20_000)
        assert len(np.unique(rows)) == rows.size
        scaled = rows / 2.0**63
        correlations = np.corrcoef(scaled) - np.eye(len(keys))
        assert np.abs(correlations).max() < 6 / math.sqrt(20_000)
        serial = np.corrcoef(scaled[0, 1:], scaled[0, :-1])[0, 1]
        assert abs(serial) < 6 / math.sqrt(20_000)

    @pytest.mark.parametrize("rate", [0.003, 0.05, 0.5, 0.97])
    def test_poisson_sampling_is_independent_per_record(self, stream, rate):
        records, draws = torch.arange(500) + 1000, 400
        hits = np.zeros((draws, 500))
        for draw in range(draws):
            key = KEY._replace(round=draw, purpose="sampling")
            hits[draw, poisson_indices(stream, key, records, rate).numpy() - 1000] = 1
        # the number of hits per record and per draw is binomial, and records do not go together
        assert abs(hits.mean() - rate) < 6 * math.sqrt(rate * (1 - rate) / hits.size)
        spread = hits.sum(1).var(ddof=1) / (500 * rate * (1 - rate))
        assert 0.6 < spread < 1.5
        spread = hits.sum(0).var(ddof=1) / (draws * rate * (1 - rate))
        assert 0.7 < spread < 1.4

    def test_rate_one_takes_everyone(self, stream):
        records = torch.arange(7)
        assert torch.equal(poisson_indices(stream, KEY, records, 1.0), records)

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
    def test_records_may_be_named_by_any_integers(self, stream, dtype):
        records = (torch.arange(50_000) % 200).to(dtype)
        for rate in (0.01, 0.25):
            taken = len(poisson_indices(stream, KEY, records, rate))
            assert abs(taken - rate * 50_000) < 6 * math.sqrt(50_000 * rate * (1 - rate))

    def test_lanes_are_sampled_as_if_each_were_alone(self, stream):
        sizes, rates = [40_000, 0, 30_000, 5, 50_000], [0.1, 0.5, 0.7, 1.0, 0.02]
        records = [torch.arange(size) * 10 + lane for lane, size in enumerate(sizes)]
        keys = [KEY._replace(client=str(lane), purpose="sampling") for lane in range(5)]
        samples = poisson_samples(stream, keys, records, rates)
        for lane, (sample, size, rate) in enumerate(zip(samples, sizes, rates, strict=True)):
            assert (sample % 10 == lane).all()  # nobody else's records
            assert (sample.diff() > 0).all()  # no record twice
            assert abs(len(sample) - rate * size) <= 6 * math.sqrt(size * rate * (1 - rate))
        if not stream.private:  # the same bits as a lane of its own
            drawn = words(stream, [keys[2]], sizes[2])[0] / 2.0**64 + 0.5
            assert torch.equal(samples[2], records[2][torch.from_numpy(drawn < rates[2])])


def test_only_the_keyed_stream_can_be_replayed():
    again = words(Keyed(11), [KEY], 100)
    assert np.array_equal(words(Keyed(11), [KEY], 100), again)
    assert not np.array_equal(words(Keyed(12), [KEY], 100), again)
    assert not np.array_equal(words(Entropy(), [KEY], 100), words(Entropy(), [KEY], 100))
    assert Entropy.private
    assert not Keyed.private


@contextmanager
def restored():
    """Global generators go back to where they were."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        yield
    random.setstate(before[0])
    np.random.set_state(before[1])


SEEDED = {
    "Python": (random.seed, random.random),
    "numpy": (np.random.seed, np.random.random),
    "torch": (torch.manual_seed, lambda: float(torch.rand(()))),
}


@pytest.mark.parametrize("name", SEEDED)
def test_entropy_comes_from_no_generator_that_anybody_can_seed(name):
    seed, draw = SEEDED[name]
    with restored():
        seed(7)
        first, after = words(Entropy(), [KEY], 8), draw()
        seed(7)
        assert draw() == after  # nothing was drawn from it
        seed(7)
        assert not np.array_equal(words(Entropy(), [KEY], 8), first)


@pytest.mark.parametrize("stream", STREAMS, ids=["entropy", "keyed"])
def test_all_256_bits_of_a_key_are_fair_and_independent(stream):
    draws = 4_000
    rows = b"".join(stream._bits(KEY._replace(step=step)) for step in range(draws))
    bits = np.unpackbits(np.frombuffer(rows, np.uint8).reshape(draws, -1), axis=1) * 2.0 - 1
    assert bits.shape == (draws, 256)
    assert np.abs(bits.mean(0)).max() < 6.5 / math.sqrt(draws)
    assert np.abs(bits.T @ bits / draws - np.eye(256)).max() < 7.5 / math.sqrt(draws)


def test_the_cipher_is_aes_256_in_counter_mode():
    """Blocks 0 and 1 under the key of zeros, from the AES known-answer tests of NIST."""
    pytest.importorskip("cryptography")
    row = torch.empty(6, dtype=torch.int64)
    randomness._key_stream(bytes(32))(row)
    buffer = row.numpy().tobytes()
    assert bytes(buffer[:16]).hex() == "dc95c078a2408989ad48a21492842087"
    second = bytes(buffer[16:32])
    assert second != bytes(buffer[:16])
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    block = Cipher(algorithms.AES(bytes(32)), modes.ECB()).encryptor()
    assert block.update((1).to_bytes(16, "big")) == second


def test_long_rows_never_repeat_a_piece():
    """The key stream is made piece by piece: the counter must go on from one to the next."""
    row = words(Keyed(3), [KEY], 200_000)[0]
    assert len(np.unique(row)) == len(row)


@pytest.mark.usefixtures("generator")
def test_a_longer_buffer_starts_with_the_shorter_one():
    short, long = words(Keyed(1), [KEY], 10), words(Keyed(1), [KEY], 1000)
    assert np.array_equal(long[0, :10], short[0])


@pytest.mark.usefixtures("generator")
def test_words_in_several_calls_are_those_of_one():
    whole = words(Keyed(1), [KEY], 100_001)[0]
    fill, row = Keyed(1).words(KEY, torch.device("cpu")), torch.empty(100_001, dtype=torch.int64)
    for part in row.split([2, 60_000, 1, 39_998]):
        fill(part)
    assert np.array_equal(row.numpy(), whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_words_are_uniform_and_keyed():
    def draw(stream, key):
        return stream.fill(torch.empty(1, 100_000, dtype=torch.int64, device="cuda"), [key])

    first = draw(Keyed(5), KEY)
    assert torch.equal(first, draw(Keyed(5), KEY))
    assert not torch.equal(first, draw(Keyed(5), KEY._replace(step=9)))
    for stream in STREAMS:
        values = draw(stream, KEY).cpu().numpy()[0] / 2.0**64 + 0.5
        assert stats.kstest(values, "uniform").pvalue > 1e-6
