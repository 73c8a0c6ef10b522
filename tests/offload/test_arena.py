"""Tests the two-ended arena against a plain list of blocks, and which end each kind of block uses."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.offload.stores.arena import Arena, ArenaFullError, _End

ALIGNMENT = 64
NBYTES = 64 * ALIGNMENT


def test_resident_blocks_fill_the_low_end_and_ephemeral_ones_the_high_end() -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    assert [arena.resident(100), arena.resident(64)] == [0, 128]
    assert [arena.ephemeral(100), arena.ephemeral(64)] == [NBYTES - 128, NBYTES - 192]
    assert arena.used == 384
    assert arena.gap == NBYTES - 384


def test_arena_is_full_when_the_ends_meet_and_usable_after_a_free() -> None:
    arena = Arena(4096, 1024)
    low = arena.resident(2048)
    arena.ephemeral(1024)
    with pytest.raises(
        ArenaFullError, match=r"of 1 KiB \(1,025 bytes\): the largest free run is 1 KiB \(1,024 bytes\);"
    ):
        arena.resident(1025)
    arena.ephemeral(1024)
    with pytest.raises(ArenaFullError):
        arena.ephemeral(0)
    arena.free(low)
    assert arena.resident(1) == 0


def test_freed_ephemeral_blocks_leave_no_hole_between_resident_ones() -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    passing = []
    for _ in range(8):
        arena.resident(64)
        passing.append(arena.ephemeral(128))
    for offset in passing:
        arena.free(offset)
    assert arena.gap == NBYTES - 8 * 64


def test_misuse_raises_an_error_that_names_the_argument() -> None:
    arena = Arena(4096)
    with pytest.raises(KeyError, match="offset 3"):
        arena.free(3)
    with pytest.raises(ValueError, match="-1"):
        arena.resident(-1)
    with pytest.raises(ValueError, match="alignment"):
        Arena(10, 0)
    error = ArenaFullError(1, 2, 3)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@given(
    st.lists(st.tuples(st.sampled_from(["resident", "ephemeral", "free", "keep"]), st.integers(0, 700)), max_size=60)
)
def test_blocks_never_overlap_and_freeing_all_empties_the_arena(steps: list[tuple[str, int]]) -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    blocks: list[tuple[int, int]] = []
    for kind, number in steps:
        if kind == "keep":
            blocks = [block for block in blocks if (block[0] // ALIGNMENT + number) % 3]
            arena.keep([offset for offset, _ in blocks])
            assert arena.used == sum(length for _, length in blocks)
            continue
        if kind == "free":
            if blocks:
                offset, _ = blocks.pop(number % len(blocks))
                arena.free(offset)
            continue
        full: ArenaFullError | None = None
        try:
            offset = arena.resident(number) if kind == "resident" else arena.ephemeral(number)
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
        assert arena.used == sum(length for _, length in blocks)
    for offset, _ in blocks:
        arena.free(offset)
    assert (arena.used, arena.gap) == (0, NBYTES)


@pytest.mark.parametrize("interrupted", ["take", "free_block"])
def test_what_an_interrupted_call_left_is_free_again(interrupted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(NBYTES, ALIGNMENT)
    blocks = [arena.ephemeral(128) for _ in range(4)]
    half_done = getattr(_End, interrupted)

    def interrupt(*given: int) -> None:
        half_done(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_End, interrupted, interrupt)
        with pytest.raises(KeyboardInterrupt):
            arena.ephemeral(64) if interrupted == "take" else arena.free(blocks.pop(1))
    arena.keep(blocks)
    assert arena.used == 128 * len(blocks)
    for offset in blocks:
        arena.free(offset)
    assert (arena.used, arena.gap) == (0, NBYTES)
