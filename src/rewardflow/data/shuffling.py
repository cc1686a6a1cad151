"""The order of an epoch.

Always true: the order is a permutation that depends on (size, seed, epoch) alone: the numbers 0 to size - 1, sorted by
the 8-byte BLAKE2b digest of the text "seed/epoch/number". No random generator, library or version has a say in it.
"""

from __future__ import annotations

import hashlib


def epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    start = hashlib.blake2b(f"{seed}/{epoch}/".encode(), digest_size=8)

    def place(number: int) -> bytes:
        digest = start.copy()
        digest.update(str(number).encode())
        return digest.digest()

    return sorted(range(size), key=place)
