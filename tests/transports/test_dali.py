"""The ``dali`` transport over the real library: on the host, and on CUDA if there is a device."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib import format as npy

from fastio.errors import RefusedError
from fastio.runtime.installation import pip_install
from fastio.testing import LoadContract
from fastio.testing.layouts import MIB, Memory
from fastio.transports import registry
from fastio.transports.transport import LOAD, Extent, ReadRequest, Transport, TransportResult, WriteRequest

dali = registry.find("dali")
# In CI all tests must run, so a missing DALI is a failure.
may_skip = os.environ.get("CI", "").lower() not in {"1", "true"}
installed = pytest.mark.skipif(dali.transport is None and may_skip, reason=f"{dali.reason}; {dali.cure}")


def transport_of_dali() -> Transport:
    return registry.get("dali")


class DaliContract(LoadContract):
    """The contract with a file that is an array of bytes; the extents lie in its data."""

    make = transport_of_dali

    def preamble(self, nbytes: int) -> bytes:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({nbytes},), }}"
        return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"

    def test_loads_beyond_four_gibibytes(self, transport: Transport) -> None:
        """A file of that size is refused as an array of one axis, and loads with two axes."""
        with pytest.raises(RefusedError, match="32 bits"):
            super().test_loads_beyond_four_gibibytes(transport)
        header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (5200, 1048576), }".ljust(117) + b"\n"
        row = np.random.default_rng(3).integers(0, 256, MIB, dtype=np.uint8)
        memory = Memory(len(row), device=self.device)
        offset = 128 + 5100 * MIB
        with self.file(0) as (path, fd):
            os.pwrite(fd, self.preamble(0)[:10] + header, 0)
            os.pwrite(fd, row.tobytes(), offset)
            os.ftruncate(fd, 128 + 5200 * MIB)
            extent = Extent(offset, len(row), memory.address, False, self.device, memory)
            transport.read(ReadRequest(path, fd, 128 + 5200 * MIB, [extent]))
        assert np.array_equal(memory.get(), row)


@installed
class TestOnTheHost(DaliContract):
    pass


@installed
@pytest.mark.cuda
class TestOnCuda(DaliContract):
    device = "cuda"


def load(path: Path, into: Memory | None = None) -> tuple[TransportResult, bytes]:
    """Load all data of an ``.npy`` file with the transport; returns the result and the bytes."""
    with path.open("rb") as file:
        npy.read_magic(file)
        npy.read_array_header_1_0(file)
        begin, size = file.tell(), path.stat().st_size
        memory = into or Memory(size - begin)
        extent = Extent(begin, size - begin, memory.address, False, "cpu", memory, "array")
        moved = transport_of_dali().read(ReadRequest(str(path), file.fileno(), size, [extent]))
    memory.check_guards()
    return moved, memory.get().tobytes()


@installed
@pytest.mark.parametrize("code", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (3, 0, 2), (2, 3, 4, 5)])
def test_loads_all_supported_dtypes_and_shapes(tmp_path: Path, code: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 256, (*shape, np.dtype(code).itemsize), dtype=np.uint8)
    array = (array & 1 if code == "?" else array).view(code).reshape(shape)
    np.save(tmp_path / "a.npy", array)
    moved, got = load(tmp_path / "a.npy")
    assert got == array.tobytes()
    assert moved == TransportResult("cached")


@installed
@pytest.mark.parametrize("shape", [(40 * MIB,), (3, 17 * MIB), (70000, 600), (1, 2, 20 * MIB), (5, 1000, 7001)])
def test_loads_large_arrays_region_by_region(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(2).integers(0, 256, shape, dtype=np.uint8)
    np.save(tmp_path / "a.npy", array)
    assert load(tmp_path / "a.npy")[1] == array.tobytes()


REFUSED = [
    ("dtype", np.ones((3, 4), np.complex64)),
    ("dtype", np.ones((3, 4), ">f4")),
    ("dtype", np.ones((3, 4), "V2")),
    ("Fortran", np.asfortranarray(np.arange(12.0).reshape(3, 4))),
]


@installed
@pytest.mark.parametrize(("why", "array"), REFUSED)
def test_refuses_dtypes_and_orders_that_dali_cannot_load_unchanged(
    tmp_path: Path, why: str, array: npt.NDArray[Any]
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(RefusedError, match=why) as caught:
        load(tmp_path / "a.npy")
    assert str(tmp_path / "a.npy") in str(caught.value)


@installed
def test_refuses_files_that_are_not_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"PK\x03\x04" + bytes(10000))
    memory = Memory(100)
    extent = Extent(0, 100, memory.address, False)
    with path.open("rb") as file, pytest.raises(RefusedError):
        transport_of_dali().read(ReadRequest(str(path), file.fileno(), 10004, [extent]))


@installed
def test_refuses_extents_outside_the_arrays_data(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1000, np.uint8))
    memory = Memory(100)
    extent = Extent(100, 100, memory.address, False)
    with (tmp_path / "a.npy").open("rb") as file, pytest.raises(RefusedError, match="outside"):
        transport_of_dali().read(ReadRequest("a.npy", file.fileno(), 1128, [extent]))


@installed
def test_loads_the_new_file_after_a_path_and_descriptor_are_reused(tmp_path: Path) -> None:
    """DALI shares live mappings by path; a load must still read the file that it was given."""
    np.save(tmp_path / "a.npy", np.full(3 * MIB, 1, np.uint8))
    fd = os.open(tmp_path / "a.npy", os.O_RDONLY)
    readers = [open_reader(str(tmp_path / "a.npy")), open_reader(f"/proc/self/fd/{fd}")]
    os.close(fd)
    np.save(tmp_path / "next.npy", np.full(3 * MIB, 2, np.uint8))
    os.replace(tmp_path / "next.npy", tmp_path / "a.npy")
    assert set(load(tmp_path / "a.npy")[1]) == {2}
    del readers


def open_reader(path: str) -> Any:
    """A DALI reader of ``path`` outside fastio, and its output."""
    module, fn = (importlib.import_module(name) for name in ("nvidia.dali", "nvidia.dali.fn"))
    pipeline = module.Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(fn.readers.numpy(device="cpu", files=[path]))
    pipeline.build()
    return pipeline, pipeline.run()


@installed
def test_supports_only_loads_of_npy(tmp_path: Path) -> None:
    transport = transport_of_dali()
    assert transport.capabilities.operations == frozenset({LOAD})
    assert transport.capabilities.formats == frozenset({"npy"})
    with (tmp_path / "file").open("w+b") as file, pytest.raises(RefusedError):
        transport.write(WriteRequest("file", file.fileno(), 0, []))


def test_without_dali_the_tool_names_the_package_to_install() -> None:
    """Runs a Python that cannot import ``nvidia.dali``."""
    program = (
        "import sys; sys.modules['nvidia.dali'] = None\n"
        "from fastio.transports import registry; tool = registry.find('dali');"
        "print(tool.transport, tool.reason, tool.cure, sep='|')"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    transport, reason, cure = said.strip().split("|")
    assert transport == "None"
    assert "nvidia.dali does not import" in reason
    assert cure == pip_install("dali")
