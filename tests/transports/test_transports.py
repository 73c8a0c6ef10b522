"""The contract for each transport that runs on any machine. The others have files of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accelerators import DEVICE
from fastio._native import Control
from fastio.backends import _memory
from fastio.backends.memory import MemoryTransport
from fastio.backends.numpy_ import NumpyTransport
from fastio.backends.posix import PosixTransport
from fastio.backends.torch_ import TorchTransport
from fastio.backends.uring import UringTransport
from fastio.errors import RefusedError
from fastio.testing import ChecksumContract
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


class TestMemory(ChecksumContract):
    make = MemoryTransport


class TestNumpy(ChecksumContract):
    make = NumpyTransport


class TestTorch(ChecksumContract):
    make = TorchTransport


class TestPosix(ChecksumContract):
    make = PosixTransport


class TestPosixPastThePageCache(ChecksumContract):
    """posix as it reads where io_uring is forbidden."""

    make = staticmethod(lambda: PosixTransport(past_cache=True))


class TestUring(ChecksumContract):
    make = UringTransport


@pytest.mark.gpu
class TestTorchOnDevice(ChecksumContract):
    make = TorchTransport
    device = DEVICE


def test_tensor_of_an_extent_shares_its_memory() -> None:
    owner = torch.arange(1000, dtype=torch.int16)
    begin = owner.data_ptr()
    for keeper in (owner, owner.untyped_storage(), owner.numpy(), None):
        seen = _memory.tensor(Extent(0, 200, begin + 10, False, "cpu", keeper))
        assert seen.dtype == torch.uint8
        assert seen.shape == (200,)
        assert seen.data_ptr() == begin + 10
    elsewhere = _memory.tensor(Extent(0, 8, begin, False, "cpu", torch.zeros(1)))
    assert elsewhere.data_ptr() == begin, "an owner of other memory must be ignored"
    assert _memory.tensor(Extent(0, 0, 0, False)).shape == (0,)


def test_posix_reads_by_way_of_the_page_cache_where_other_processes_read_the_same(tmp_path: Path) -> None:
    nbytes = 8 << 20
    (tmp_path / "file").write_bytes(bytes(range(256)) * (nbytes >> 8))
    target = torch.zeros(nbytes, dtype=torch.uint8)
    extents = [Extent(0, nbytes, target.data_ptr(), True, "cpu", target)]
    with open(tmp_path / "file", "rb") as file:
        request = ReadRequest(str(tmp_path / "file"), file.fileno(), nbytes, extents, resident=False, cached=True)
        assert PosixTransport(past_cache=True).read(request).route == "cached"
    assert target[-256:].tolist() == list(range(256))


def test_tensor_of_an_extent_without_storage_is_refused_off_host_and_cuda() -> None:
    with pytest.raises(RefusedError, match="storage"):
        _memory.tensor(Extent(0, 8, 4096, False, "meta"))


@pytest.mark.parametrize("tool", ["posix", "uring"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_parts_of_a_file_are_written_one_after_the_other(tmp_path: Path, tool: str, order: tuple[int, ...]) -> None:
    """As conversions and checkpoints in chunks do: each request has extents in one part, and leaves the rest alone."""
    part, size = 4 << 20, 3 * (4 << 20) - 1000
    data = torch.randint(0, 256, (size,), dtype=torch.uint8)
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(size)
        for number in order:
            begin, end = number * part, min((number + 1) * part, size)
            middle = begin + 1_000_001
            extents = [
                Extent(at, stop - at, data.data_ptr() + at, False, owner=data)
                for at, stop in ((begin, middle), (middle, end))
            ]
            control = Control()
            registry.get(tool).write(WriteRequest(str(tmp_path), file.fileno(), size, extents, control=control))
            assert control.done == size
        assert (tmp_path / "file").read_bytes() == data.numpy().tobytes()
