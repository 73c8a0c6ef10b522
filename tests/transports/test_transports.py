"""The contract for each transport that runs on any machine. The others have files of their own."""

from __future__ import annotations

import pytest
import torch

from accelerators import DEVICE
from fastio.backends import _memory
from fastio.backends.memory import MemoryTransport
from fastio.backends.numpy_ import NumpyTransport
from fastio.backends.posix import PosixTransport
from fastio.backends.torch_ import TorchTransport
from fastio.backends.uring import UringTransport
from fastio.errors import RefusedError
from fastio.testing import ChecksumContract
from fastio.transports.transport import Extent


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


def test_tensor_of_an_extent_without_storage_is_refused_off_host_and_cuda() -> None:
    with pytest.raises(RefusedError, match="storage"):
        _memory.tensor(Extent(0, 8, 4096, False, "meta"))
