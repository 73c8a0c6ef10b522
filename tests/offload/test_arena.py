"""Tests the arena against a plain list of blocks."""

from __future__ import annotations

import pickle
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.offload.stores.arena import Arena, ArenaFullError

ALIGNMENT = 64
NBYTES = 64 * ALIGNMENT


def test_blocks_lie_as_low_as_they_fit() -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    assert [arena.block(nbytes) for nbytes in (100, 64, 0, 200)] == [0, 128, 192, 256]
    arena.free(128)
    arena.free(0)
    assert [arena.block(nbytes) for nbytes in (65, 65, 64)] == [0, 512, 128]


def test_a_full_arena_says_what_is_free_and_is_usable_after_a_free() -> None:
    arena = Arena(4096, 1024)
    low = arena.block(2048)
    arena.block(1024)
    with pytest.raises(
        ArenaFullError, match=r"of 1 KiB \(1,025 bytes\): the largest free run is 1 KiB \(1,024 bytes\);"
    ):
        arena.block(1025)
    arena.block(1024)
    with pytest.raises(ArenaFullError):
        arena.block(0)
    arena.free(low)
    assert arena.block(2048) == 0


def test_misuse_raises_an_error_that_names_the_argument() -> None:
    arena = Arena(4096)
    with pytest.raises(KeyError, match="offset 3"):
        arena.free(3)
    with pytest.raises(ValueError, match="-1"):
        arena.block(-1)
    with pytest.raises(ValueError, match="alignment"):
        Arena(10, 0)
    error = ArenaFullError(1, 2, 3)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def blocks_in(arena: Arena) -> int:
    """How many blocks of the least size the arena still has room for."""
    count = 0
    while True:
        try:
            arena.block(1)
        except ArenaFullError:
            return count
        count += 1


@given(st.lists(st.tuples(st.sampled_from(["block", "free", "keep"]), st.integers(0, 700)), max_size=60))
def test_blocks_never_overlap_and_all_that_is_free_can_be_had(steps: list[tuple[str, int]]) -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    blocks: list[tuple[int, int]] = []
    for kind, number in steps:
        if kind == "keep":
            blocks = [block for block in blocks if (block[0] // ALIGNMENT + number) % 3]
            arena.keep([offset for offset, _ in blocks])
            continue
        if kind == "free":
            if blocks:
                offset, _ = blocks.pop(number % len(blocks))
                arena.free(offset)
            continue
        full: ArenaFullError | None = None
        try:
            offset = arena.block(number)
        except ArenaFullError as error:
            full = error
        if full:
            assert full.gap < max(1, number)
            continue
        rounded = max(1, -(-number // ALIGNMENT)) * ALIGNMENT
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= NBYTES - rounded
        assert all(offset + rounded <= first or first + length <= offset for first, length in blocks)
        blocks.append((offset, rounded))
    assert sorted(arena.offsets) == sorted(offset for offset, _ in blocks)
    assert blocks_in(arena) == (NBYTES - sum(length for _, length in blocks)) // ALIGNMENT


@pytest.mark.parametrize("call", ["block", "free"])
def test_what_an_interrupted_call_left_is_free_again(call: str) -> None:
    """An interrupt comes at each line of the call."""
    line, ended = 0, False
    while not ended:
        line += 1
        arena = Arena(NBYTES, ALIGNMENT)
        blocks = [arena.block(128) for _ in range(4)]
        left = [line]

        def interrupt(frame: FrameType, event: str, _given: Any, left: list[int] = left) -> Any:
            if event == "line" and frame.f_code.co_name == call:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
            return interrupt

        freed = blocks.pop(1)
        sys.settrace(interrupt)
        try:
            arena.block(64) if call == "block" else arena.free(freed)
            ended = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        arena.keep(blocks)
        assert sorted(arena.offsets) == blocks
        assert blocks_in(arena) == 64 - 6
