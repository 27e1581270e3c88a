"""The generator of Salmon et al. 2011."""

from __future__ import annotations


def philox(key: int, high: int, pair: int) -> list[int]:
    """Salmon et al. 2011 with Python's integers."""
    mask = (1 << 32) - 1
    c = [pair & mask, pair >> 32, high & mask, high >> 32]
    k = [key & mask, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return [c[0] | c[1] << 32, c[2] | c[3] << 32]
