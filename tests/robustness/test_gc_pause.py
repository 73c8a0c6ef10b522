"""The pause of Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fastio.runtime.gc_pause import gc_paused


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that the collector looked at by itself or by request, in order."""
    found: list[int] = []

    def note(phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            found.append(details["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def test_after_a_pause_no_collection_of_old_objects_is_due(collections: list[int]) -> None:
    while gc.get_count()[1] <= gc.get_threshold()[1]:
        gc.collect(0)  # so that the next collection that the collector starts is of older objects, too
    del collections[:]
    with gc_paused():
        kept = [[number] for number in range(20_000)]
        assert not collections
    more = [[number] for number in range(50)]
    assert collections == [0]
    assert len(kept) + len(more) == 20_050


def test_what_became_garbage_meanwhile_is_found(collections: list[int]) -> None:
    with gc_paused():
        ring: list[object] = []
        ring.append(ring)
        del ring
    assert collections == [0]
    assert gc.isenabled()


def test_a_collector_that_the_program_disabled_stays_so(collections: list[int]) -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
        assert not collections
    finally:
        gc.enable()
