"""Offsets of storages are confirmed by the headers in front of their bytes, with every tool."""

from __future__ import annotations

import io
import operator
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio

TOOLS = ("posix", "uring", "numpy", "memory", "torch")
RECORDS = ("byteorder", "data/0", "data/1", "version")
SIZES = {"small": 6, "large": 5 << 20}


def state(count: int, value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.arange(value, value + count), "b": torch.full((count + 1,), value)}


def shifted(data: bytes, record: str) -> bytes:
    """Return the archive with four more bytes in front of a record's header, and a directory that fits."""
    body = bytearray(data)
    begin = body.rindex(b"PK\3\4", 0, body.index(b"/" + record.encode(), body.index(b"PK\3\4")))
    body[begin:begin] = bytes(4)
    ends = body.rindex(b"PK\6\6")
    directory = struct.unpack_from("<Q", body, ends + 48)[0] + 4
    at = directory
    while body[at : at + 4] == b"PK\1\2":
        name, extra, comment = struct.unpack_from("<3H", body, at + 28)
        (header,) = struct.unpack_from("<I", body, at + 42)
        if header >= begin:
            struct.pack_into("<I", body, at + 42, header + 4)
        at += 46 + name + extra + comment
    struct.pack_into("<Q", body, ends + 48, directory)
    struct.pack_into("<Q", body, body.rindex(b"PK\6\7") + 8, ends)
    struct.pack_into("<I", body, body.rindex(b"PK\5\6") + 16, directory)
    return bytes(body)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("writer", [torch.save, fastio.save])
@pytest.mark.parametrize("size", SIZES)
def test_extra_bytes_before_a_record_do_not_shift_its_tensor(tmp_path: Path, size: str, writer: Any, crc: bool) -> None:
    """The second load reuses memory with the first file's headers, which lie where unshifted ones would."""
    plain, moved = tmp_path / "plain.pt", tmp_path / "moved.pt"
    torch.serialization.set_crc32_options(crc)
    try:
        writer(state(SIZES[size], 1.0), plain)
        writer(state(SIZES[size], 2.0), moved)
    finally:
        torch.serialization.set_crc32_options(True)
    original = moved.read_bytes()
    for record in RECORDS if size == "small" else RECORDS[1:3]:
        moved.write_bytes(shifted(original, record))
        expected = torch.load(moved)
        for tool in TOOLS:
            for _ in range(2):
                fastio.load(plain, policy=tool)
                loaded = fastio.load(moved, policy=tool)
                assert all(torch.equal(loaded[key], expected[key]) for key in expected), (record, tool)
            assert torch.equal(fastio.load(moved, keys=["b"], policy=tool)["b"], expected["b"]), (record, tool)


def test_storage_that_the_pickle_does_not_name_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    tensors = state(1000, 3.0)
    stream = io.BytesIO()
    torch.save(tensors, stream)
    with zipfile.ZipFile(stream) as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    writer = torch._C.PyTorchFileWriter(str(path))  # aligns storages
    for name, data in parts.items():
        if name not in ("version", ".data/serialization_id"):
            writer.write_record(name, data, len(data))
        if name == "data/0":
            writer.write_record("data/7", bytes(64 << 20), 64 << 20)
    writer.write_end_of_file()
    for tool in TOOLS[:4]:
        with fastio.record() as transfers:
            loaded = fastio.load(path, policy=tool)
        assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)
        assert transfers[0].nbytes == sum(tensor.nbytes for tensor in tensors.values())


class Computed:
    """Text that a pickle computes when it is loaded."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return operator.concat, (self.text[:1], self.text[1:])


def test_storage_with_a_computed_name_is_loaded_by_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    tensor = torch.arange(5000.0)

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, torch.storage.TypedStorage):
                return ("storage", torch.FloatStorage, Computed("12"), "cpu", 5000)
            return None

    pickled = io.BytesIO()
    Pickler(pickled, 2).dump([tensor])
    writer = torch._C.PyTorchFileWriter(str(path))
    writer.write_record("data.pkl", pickled.getvalue(), len(pickled.getvalue()))
    writer.write_record("byteorder", b"little", 6)
    writer.write_record("data/12", tensor.numpy().tobytes(), tensor.nbytes)
    writer.write_end_of_file()
    with fastio.record() as transfers:
        assert torch.equal(fastio.load(path, weights_only=False, policy="posix")[0], tensor)
    assert transfers[0].tool == "torch"
    assert "computes the name" in transfers[0].reason


def test_empty_tensors_have_no_memory_and_keep_their_dtypes(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    empty = torch.empty(0)
    for save in torch.save, fastio.save:
        save([empty, empty.view(torch.int64), torch.empty(2, 0)], path)
        for tool in TOOLS:
            loaded, expected = fastio.load(path, policy=tool), torch.load(path)
            assert [one.dtype for one in loaded] == [one.dtype for one in expected]
            assert {one.untyped_storage().data_ptr() for one in loaded} == {0}
            with pytest.raises(RuntimeError, match="not resizable"):
                loaded[0].resize_(3)


@pytest.mark.parametrize("tool", [*TOOLS, "mmap"])
def test_the_widest_numbers_are_aligned_in_memory(tmp_path: Path, tool: str) -> None:
    config = pytest.importorskip("torch.utils.serialization.config", reason="torch 2.6 aligns to 64 always")
    path, before = tmp_path / "a.pt", config.save.storage_alignment
    config.save.storage_alignment = 8
    try:
        torch.save({"first": torch.ones(8, dtype=torch.uint8), "wide": torch.ones(1, dtype=torch.complex128)}, path)
    finally:
        config.save.storage_alignment = before
    arguments: dict[str, Any] = {"mmap": True} if tool == "mmap" else {"policy": tool}
    assert fastio.load(path, **arguments)["wide"].data_ptr() % 16 == 0
    with fastio.safe_open(path) as file:
        assert file.get_tensor("wide").data_ptr() % 16 == 0
        assert file.get_tensors()["wide"].data_ptr() % 16 == 0
