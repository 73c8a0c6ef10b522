"""Damages pickles."""

from __future__ import annotations

import random


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the pickle with bytes changed, removed, copied or truncated."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2))):
        at, end = sorted(chance.randrange(len(found)) for _ in "12")
        match chance.randrange(8):
            case 0:
                del found[at : min(end, at + 20)]
            case 1:
                found[at:at] = found[end : end + chance.randrange(20)]
            case 2:
                del found[max(1, end) :]
            case 3:
                found[at] = chance.choice(b"(tR.}](eusabqhjrNKMJGXQc)0\x80\x85\x86\x87\x88\x89\x8a")
            case _:
                found[at] = chance.randrange(256)
    return bytes(found)
