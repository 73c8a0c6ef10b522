"""The modelled time of the simulated accelerator: what works take, and when the host sees that they have ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import simulated

DEVICE = "simulated:0"
MIB = 1 << 20
CALL_S = 1e-4


@pytest.fixture(autouse=True)
def modelled_time() -> Iterator[None]:
    simulated.configure(copy_bandwidth=100 * MIB, latency=1e-3, compute_bandwidth=100 * MIB)
    simulated.configure_time(True, call_seconds=CALL_S)
    yield
    simulated.configure_time(False)


def spans(*works: simulated.Work) -> list[tuple[float, float]]:
    """The begin and end of works, in seconds since the first one was issued."""
    return [(work.started - works[0].issued, work.ended - works[0].issued) for work in works]


def test_works_take_the_time_of_their_bytes_and_wait_for_what_they_are_ordered_after() -> None:
    x = torch.ones(MIB, dtype=torch.uint8, device=DEVICE)
    host = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    side = torch.simulated.Stream()
    torch.simulated.synchronize()
    begin = len(simulated.trace())
    y = x + x  # reads and writes 3 MiB, if both operands count
    computed = torch.simulated.current_stream().record_event()
    x + y
    with torch.simulated.stream(side):
        side.wait_event(computed)
        host.copy_(y, non_blocking=True)
    torch.simulated.synchronize()
    one, other, copy = sorted(simulated.trace()[begin:], key=lambda work: work.issued)
    assert [work.engine for work in (one, other, copy)] == ["compute", "compute", "to_host"]
    ends = [one.nbytes / (100 * MIB), (one.nbytes + other.nbytes) / (100 * MIB)]
    expected = [(0, ends[0]), (ends[0], ends[1]), (ends[0], ends[0] + 0.011)]
    assert spans(one, other, copy) == [pytest.approx(span, abs=1e-9) for span in expected]
    assert [work.issued - one.issued for work in (other, copy)] == pytest.approx([CALL_S, 2 * CALL_S])


def test_the_host_sees_a_work_end_at_its_time() -> None:
    x = torch.ones(MIB, device=DEVICE)
    torch.simulated.synchronize()
    begin = len(simulated.trace())
    x.neg()  # 8 MiB
    ended = torch.simulated.current_stream().record_event()
    asked = 1
    while not ended.query():
        asked += 1
    x.neg()
    torch.simulated.synchronize()
    x.neg()
    torch.simulated.synchronize()
    one, other, last = simulated.trace()[begin:]
    assert asked * CALL_S == pytest.approx(one.ended - one.issued, abs=1.5 * CALL_S)  # rounding may cost a call
    assert other.issued == pytest.approx(one.issued + (asked + 1) * CALL_S)
    assert last.issued == pytest.approx(other.ended + CALL_S)


def test_events_tell_the_modelled_time() -> None:
    x = torch.ones(MIB, device=DEVICE)
    begin, end = (torch.simulated.Event(enable_timing=True) for _ in range(2))
    torch.simulated.synchronize()
    begin.record()
    x.neg()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(1e3 * (0.08 + CALL_S))


def test_memory_that_another_stream_used_is_free_once_the_host_sees_that_end() -> None:
    side = torch.simulated.Stream()
    tensor = torch.ones(4 * MIB, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        tensor.neg()
    tensor.record_stream(side)
    del tensor
    assert torch.empty(4 * MIB, dtype=torch.uint8, device=DEVICE).data_ptr() != address
    while not side.query():
        pass
    assert torch.empty(4 * MIB, dtype=torch.uint8, device=DEVICE).data_ptr() == address
