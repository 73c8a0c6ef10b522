"""Runs the Python side of the CUDA kernels over a stand-in for CuPy, whose kernels run on an emulated device."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import emulated_cupy
from fastio import _native
from fastio.devices import crc32_cuda
from fastio.offload.codecs import csr_cuda
from fastio.offload.codecs.device_numbers import run

HOST = torch.device("cpu")
DTYPES = {2: torch.float16, 4: torch.float32, 8: torch.float64}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory, compiler: str, repository: Path) -> Iterator[None]:
    """The kernels on the emulated device: for them, host memory is a GPU's."""
    library = emulated_cupy.build(compiler, repository / "native", tmp_path_factory.mktemp("kernels"))
    with emulated_cupy.installed(library):
        yield


def noise(nbytes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("itemsize", [2, 4, 8])
@settings(max_examples=30)
@given(elements=st.integers(0, 3000), density=st.floats(0, 1), seed=st.integers(0, 2**32), data=st.data())
def test_csr_payloads_are_those_of_the_cpu_codec(
    itemsize: int, elements: int, density: float, seed: int, data: st.DataObject
) -> None:
    words = noise(elements * itemsize, seed).numpy().view(f"u{itemsize}")
    words[np.random.default_rng(seed).random(elements) >= density] = 0
    plain = torch.from_numpy(words.view(np.uint8)).view(DTYPES[itemsize])
    payload = run(csr_cuda.pack(plain, elements, itemsize, 0.0))
    assert payload is not None
    expected = np.zeros(_native.csr_nbytes(elements, itemsize, int(np.count_nonzero(words))), np.uint8)
    _native.csr_encode(words.ctypes.data, elements, itemsize, expected.ctypes.data, len(expected))
    assert (payload.numpy() == expected).all()
    back = torch.full((elements * itemsize,), 0xA5, dtype=torch.uint8)
    assert not csr_cuda.unpack(payload, back, elements, itemsize)
    assert (back.numpy() == words.view(np.uint8)).all()
    if elements:
        payload[data.draw(st.integers(0, 20 * -(-elements // 128) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        back.fill_(0xA5)
        assert csr_cuda.unpack(payload, back, elements, itemsize)
        for row in range(0, len(back), 128 * itemsize):
            found, good = back.numpy()[row : row + 128 * itemsize], words.view(np.uint8)[row : row + 128 * itemsize]
            assert (found == good).all() or (found == 0xFF).all()


@pytest.mark.usefixtures("emulated")
def test_csr_does_not_pack_below_the_least_ratio() -> None:
    assert csr_cuda.KERNELS.is_available()
    assert run(csr_cuda.pack(torch.ones(1000), 1000, 4, 1.01)) is None


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("elements", [0, 1000])
def test_csr_learns_from_one_number_whether_and_how_to_pack(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number that the host takes from a GPU is a wait for it."""
    taken: list[torch.Tensor] = []

    def counting(take: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        return lambda tensor: (taken.append(tensor), take(tensor))[1]

    for name in ("__int__", "__bool__", "item", "tolist", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, counting(getattr(torch.Tensor, name)))
    plain = torch.arange(elements) % 3
    packed = run(csr_cuda.pack(plain, elements, 8, 0.0, torch.tensor(True)))
    assert len(taken) == 1
    assert run(csr_cuda.pack(plain, elements, 8, 0.0, torch.tensor(False))) is None
    assert len(taken) == 2
    monkeypatch.undo()
    assert packed is not None
    plainly = run(csr_cuda.pack(plain, elements, 8, 0.0))
    assert plainly is not None
    assert torch.equal(packed, plainly)


@pytest.mark.usefixtures("emulated")
@settings(max_examples=50)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9000)), max_size=8),
    seed=st.integers(0, 2**32),
    least=st.sampled_from([1, 128, 1000, 16 << 10]),
    most=st.sampled_from([1, 3, 4096]),
)
def test_crc32_of_ranges_is_that_of_zlib(ranges: list[tuple[int, int]], seed: int, least: int, most: int) -> None:
    memory = noise(18_000, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32_cuda, "_LEAST_PIECE", least)
        patch.setattr(crc32_cuda, "_PIECES", most)
        values = crc32_cuda.crc32_of_ranges([(memory.data_ptr() + at, nbytes) for at, nbytes in ranges], HOST)
    assert values == [zlib.crc32(memory[at : at + nbytes].numpy()) for at, nbytes in ranges]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("nbytes", [16 << 10, (16 << 10) + 1, 3_000_001])
def test_crc32_of_a_large_range_is_that_of_zlib(nbytes: int) -> None:
    memory = noise(nbytes, nbytes)
    assert crc32_cuda.crc32_of_ranges([(memory.data_ptr(), nbytes)], HOST) == [zlib.crc32(memory.numpy())]
