"""Philox on the host, for many counters at a time: what references and records are compared with."""

from __future__ import annotations

import numpy as np

__all__ = ["philox_words"]

WORD = 0xFFFFFFFF


def philox_words(counters: np.ndarray, upper: int, seed: int) -> list[np.ndarray]:
    """Philox4x32-10, as the paper has it, in 64 bits: four arrays, each with a word of every counter.

    ``counters`` is an array of uint64: the lower halves of counters of 128 bits, whose upper half is ``upper``. The key
    is ``seed``.

    >>> [int(word[0]) for word in philox_words(np.zeros(1, np.uint64), 0, 1)[:3]]
    [3823634032, 3842641596, 2515673792]
    """
    c = [counters & WORD, counters >> 32, np.full_like(counters, upper & WORD), np.full_like(counters, upper >> 32)]
    k0, k1 = seed & WORD, seed >> 32
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> 32) ^ c[1] ^ np.uint64(k0), b & WORD, (a >> 32) ^ c[3] ^ np.uint64(k1), a & WORD]
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c
