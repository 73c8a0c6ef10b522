"""Tests CRC-32 on an accelerator. tests/offload/test_emulated_kernels.py runs CUDA's kernel without a GPU."""

from __future__ import annotations

import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerators import DEVICE
from fastio import devices
from fastio.devices import crc32_cuda, cupy_kernels
from fastio.errors import ToolUnavailableError


def test_without_cupy_it_raises_an_error_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    cupy_kernels._compile.cache_clear()
    try:
        assert not crc32_cuda.is_available()
        with pytest.raises(ToolUnavailableError, match=r"'crc32' is unavailable.*pip install"):
            crc32_cuda.crc32_of_ranges([], torch.device("cuda", 0))
    finally:
        cupy_kernels._compile.cache_clear()


@pytest.mark.gpu
@settings(max_examples=50)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 5_000_000)), max_size=8),
    seed=st.integers(0, 2**32),
)
def test_crc32_of_ranges_on_the_device_is_that_of_zlib(ranges: list[tuple[int, int]], seed: int) -> None:
    if DEVICE == "cuda":
        pytest.importorskip("cupy")
    memory = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, 10_000_000, dtype=np.uint8))
    on_device = memory.to(DEVICE)
    placed = [(on_device.data_ptr() + at, nbytes) for at, nbytes in ranges]
    values = devices.of(DEVICE).crc32_of_ranges(placed, on_device.device)
    assert values == [zlib.crc32(memory[at : at + nbytes].numpy()) for at, nbytes in ranges]
