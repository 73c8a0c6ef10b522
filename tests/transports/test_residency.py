"""Whether the page cache holds a file is told by samples of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastio._native import resident
from fastio.transports.transport import is_resident

MIB = 1 << 20


@pytest.mark.parametrize("dropped", [0, 20 * MIB, 40 * MIB])
def test_samples_tell_what_all_pages_do(dropped: int, tmp_path: Path) -> None:
    nbytes = 40 * MIB + 12345
    with open(tmp_path / "file", "wb+") as file:
        file.write(os.urandom(MIB) * 40 + bytes(12345))
        file.flush()
        os.fsync(file.fileno())
        if dropped:  # a filesystem in memory keeps all pages: then both say so
            os.posix_fadvise(file.fileno(), 0, dropped, os.POSIX_FADV_DONTNEED)
        exact, sampled = resident(file.fileno(), nbytes), resident(file.fileno(), nbytes, sampled=True)
        assert sampled == pytest.approx(exact, abs=0.05)
        assert is_resident(file.name, file.fileno(), nbytes) == (exact >= 0.9)
