"""Device memory of the simulated accelerator: reuse per stream, record_stream, the limit, the counters."""

from __future__ import annotations

import pytest
import torch

import simulated

DEVICE = "simulated:0"
MIB = 1 << 20


def test_a_freed_block_is_handed_out_again_at_once_on_its_stream() -> None:
    tensor = torch.empty(MIB, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    side = torch.simulated.Stream()
    del tensor
    with torch.simulated.stream(side):
        assert torch.empty(MIB, dtype=torch.uint8, device=DEVICE).data_ptr() != address
    assert torch.empty(MIB, dtype=torch.uint8, device=DEVICE).data_ptr() == address


def test_record_stream_keeps_a_block_until_the_stream_is_done() -> None:
    simulated.configure_execution("always")
    side = torch.simulated.Stream()
    tensor = torch.ones(MIB, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        total = tensor.sum()
    tensor.record_stream(side)
    del tensor
    other = torch.zeros(MIB, dtype=torch.uint8, device=DEVICE)
    assert other.data_ptr() != address
    side.synchronize()
    assert total.item() == MIB
    assert torch.empty(MIB, dtype=torch.uint8, device=DEVICE).data_ptr() == address


def test_memory_reused_while_another_stream_reads_it_is_an_error() -> None:
    side = torch.simulated.Stream()
    tensor = torch.ones(MIB, device=DEVICE)
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        tensor.sum()
    del tensor  # without record_stream
    with pytest.raises(RuntimeError, match=r"^allocation on .*aten::sum on stream \d+ .*without record_stream"):
        torch.empty(MIB, device=DEVICE)
    assert "aten::sum" in simulated.error()


def test_the_same_wrong_program_has_wrong_bits_without_the_check() -> None:
    simulated.configure_execution("always", check_order=False)
    side = torch.simulated.Stream()
    tensor = torch.ones(MIB, device=DEVICE)
    torch.simulated.synchronize()
    with torch.simulated.stream(side):
        total = tensor.sum()
    del tensor
    other = torch.zeros(MIB, device=DEVICE)
    torch.simulated.current_stream().synchronize()
    side.synchronize()
    assert total.item() != MIB
    assert other.sum().item() == 0


def test_a_block_freed_before_its_stream_waits_is_no_error() -> None:
    side = torch.simulated.Stream()
    tensor = torch.ones(MIB, device=DEVICE)
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        total = tensor.sum()
    del tensor
    torch.simulated.current_stream().wait_stream(side)
    torch.empty(MIB, device=DEVICE)
    assert total.item() == MIB


def test_the_limit_raises_out_of_memory_and_the_cache_is_given_back_first() -> None:
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=torch.simulated.memory_reserved(0) + 8 * MIB)
    first = torch.empty(6 * MIB, dtype=torch.uint8, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match="4194304 bytes were asked for"):
        torch.empty(4 * MIB, dtype=torch.uint8, device=DEVICE)
    torch.empty(4 * MIB, dtype=torch.uint8, device="simulated:1")
    del first
    torch.empty(8 * MIB, dtype=torch.uint8, device=DEVICE)
    free, total = torch.simulated.mem_get_info(0)
    assert free == total - torch.simulated.memory_reserved(0)


def test_out_of_memory_waits_for_recorded_streams() -> None:
    simulated.configure_execution("always")
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=torch.simulated.memory_reserved(0) + 8 * MIB)
    side = torch.simulated.Stream()
    tensor = torch.zeros(6 * MIB, dtype=torch.uint8, device=DEVICE)
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        tensor.add_(1)
    tensor.record_stream(side)
    del tensor
    torch.empty(6 * MIB, dtype=torch.uint8, device=DEVICE)
    assert side.query()


def test_counters() -> None:
    torch.simulated.empty_cache()
    before = torch.simulated.memory_allocated(0)
    torch.simulated.reset_peak_memory_stats(0)
    tensor = torch.empty(5 * MIB // 2 - 511, dtype=torch.uint8, device=DEVICE)
    assert torch.simulated.memory_allocated(0) == before + 5 * MIB // 2
    del tensor
    assert torch.simulated.memory_allocated(0) == before
    assert torch.simulated.max_memory_allocated(0) == before + 5 * MIB // 2
    reserved = torch.simulated.memory_reserved(0)
    torch.simulated.empty_cache()
    assert torch.simulated.memory_reserved(0) == reserved - 4 * MIB


def test_small_blocks_share_segments_and_grow_together_again() -> None:
    torch.simulated.empty_cache()
    before = torch.simulated.memory_reserved(0)
    tensors = [torch.empty(100, dtype=torch.uint8, device=DEVICE) for _ in range(1000)]
    assert torch.simulated.memory_reserved(0) - before <= 2 * MIB
    addresses = {tensor.data_ptr() for tensor in tensors}
    assert len(addresses) == 1000
    del tensors
    torch.simulated.empty_cache()
    assert torch.simulated.memory_reserved(0) <= before
