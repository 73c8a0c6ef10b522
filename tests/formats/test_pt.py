"""``.pt`` files are interchangeable with torch's, byte for byte."""

from __future__ import annotations

import itertools
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastio
import warm_python
from fastio.engine.torch_load import READ_AGAIN
from fastio_bench.harness import page_cache
from objects import DTYPES, assorted, same, tensor_of

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("tool", TOOLS)
def test_torch_loads_files_that_fastio_saved(tmp_path: Path, tool: str, durable: bool) -> None:
    path, obj = tmp_path / "a.pt", assorted()
    result = fastio.save(obj, path, policy=tool, durable=durable)
    assert (result.op, result.tool, result.durable, result.format) == ("save", tool, durable, "pt")
    for mmap in (False, True):
        assert same(torch.load(path, mmap=mmap), obj)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    assert fastio.verify(path).checksummed


@pytest.mark.parametrize("tool", TOOLS)
def test_fastio_loads_files_that_torch_saved(tmp_path: Path, tool: str) -> None:
    path, obj = tmp_path / "a.pt", assorted()
    torch.save(obj, path)
    with fastio.record() as transfers:
        loaded = fastio.load(path, policy=tool)
    assert same(loaded, obj)
    assert loaded["tied"].untyped_storage().data_ptr() == loaded["large"].untyped_storage().data_ptr()
    assert [(t.op, t.tool, t.verified) for t in transfers] == [("load", tool, tool != "torch")]


@pytest.mark.parametrize("tool", ["uring", "posix", "numpy"])
def test_sparse_tensors_load_with_torchs_invariant_checks(tmp_path: Path, tool: str) -> None:
    path, elements = tmp_path / "a.pt", 3_000_000
    with torch.sparse.check_sparse_tensor_invariants(True):
        tensor = torch.ones(elements).to_sparse()
        fastio.save(tensor, path, policy=tool)
        for bring in (page_cache.drop, page_cache.warm):
            bring(path)
            loaded = fastio.load(path, policy=tool)
            assert torch.equal(loaded.values(), tensor.values())
            assert torch.equal(loaded.indices(), tensor.indices())


@pytest.mark.parametrize("alignment", [64, 4096])
def test_saved_file_equals_torchs_except_for_its_id(tmp_path: Path, alignment: int) -> None:
    """Except for the id, which torch derives from its process, and the CRC of that record."""
    config = pytest.importorskip("torch.utils.serialization", reason="before torch 2.7").config
    count, numel = (40, 16384) if alignment == 4096 else (200, 16)
    obj = [torch.randn(numel) for _ in range(count)] + [torch.empty(0), torch.ones(3)]
    path = tmp_path / "golden.file.pt"
    before = config.save.storage_alignment
    config.save.storage_alignment = alignment
    try:
        torch.save(obj, path)
    finally:
        config.save.storage_alignment = before
    theirs = _without_id(path)
    fastio.save(obj, path, policy="uring")
    assert _without_id(path) == theirs


@pytest.mark.parametrize("tool", TOOLS)
def test_file_repacked_by_zipfile_loads(tmp_path: Path, tool: str) -> None:
    obj, old, new = assorted(), tmp_path / "old.pt", tmp_path / "new.pt"
    fastio.save(obj, old)
    with zipfile.ZipFile(old) as archive, zipfile.ZipFile(new, "w") as packed:
        for info in archive.infolist():
            packed.writestr(info.filename, archive.read(info))
    assert same(fastio.load(new, policy=tool), obj)
    fastio.verify(new)


def _without_id(path: Path) -> bytes:
    """Return the file's bytes with the id and its CRC masked, behind the local header and in the directory."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = next(i for i in archive.infolist() if i.filename.endswith("serialization_id"))
        digits, directory = archive.read(info), archive.start_dir
    assert re.fullmatch(rb"\d{40}", digits)
    crc, name = info.CRC.to_bytes(4, "little"), info.filename.encode()
    payload = data.index(digits, info.header_offset)
    for at in (data.index(crc, payload + 40, directory), data.index(name, directory) - 30):
        assert data[at : at + 4] == crc
        data[at : at + 4] = b"----"
    data[payload : payload + 40] = b"-" * 40
    return bytes(data)


def test_large_storages_start_on_a_page_and_small_ones_are_packed(tmp_path: Path) -> None:
    large, small = tmp_path / "large.pt", tmp_path / "small.pt"
    fastio.save([torch.zeros(1 << 16) for _ in range(4)], large, policy="uring")
    fastio.save([torch.zeros(10) for _ in range(500)], small, policy="uring")
    with zipfile.ZipFile(large) as archive, large.open("rb") as file:
        for info in archive.infolist():
            if "/data/" in info.filename:
                file.seek(info.header_offset + 26)
                name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
                assert (info.header_offset + 30 + name + extra) % 4096 == 0
    assert small.stat().st_size < 500 * 300


@pytest.mark.parametrize("obj", [5, {}, torch.empty(0, 3)])
def test_a_file_without_bytes_of_tensors_is_small(tmp_path: Path, obj: Any) -> None:
    fastio.save(obj, tmp_path / "a.pt", policy="posix")
    torch.save(obj, tmp_path / "b.pt")
    sizes = [(tmp_path / name).stat().st_size for name in ("a.pt", "b.pt")]
    assert abs(sizes[0] - sizes[1]) < 64  # the name of the folder in it may differ


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_round_trips(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pt"
    obj = {"x": torch.arange(5000.0), "y": [1, "two"]}
    fastio.save(obj, path, pickle_protocol=protocol)
    assert same(fastio.load(path, weights_only=protocol == 2), obj)
    assert same(torch.load(path, weights_only=False), obj)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_round_trips(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "a.pt"
    obj = [tensor_of(dtype, 1000, 33), tensor_of(dtype), tensor_of(dtype, 0, 2)]
    fastio.save(obj, path)
    assert same(fastio.load(path), obj)
    assert same(torch.load(path), obj)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
def test_quantized_tensors_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    obj = torch.quantize_per_tensor(torch.randn(64, 64), 0.1, 3, torch.qint8)
    fastio.save(obj, path)
    assert same(fastio.load(path, weights_only=False), torch.load(path, weights_only=False))


def test_modules_and_optimizers_round_trip(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    path = tmp_path / "a.pt"
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    fastio.save(state, path)
    assert same(fastio.load(path), state)
    fastio.save(model, path)
    assert same(fastio.load(path, weights_only=False).state_dict(), model.state_dict())


class Tagged(torch.Tensor):
    """A tensor subclass."""


def test_tensor_subclass_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    tensor = torch.randn(100, 100).as_subclass(Tagged)
    fastio.save({"t": tensor}, path)
    with torch.serialization.safe_globals([Tagged]):
        loaded = fastio.load(path)["t"]
    assert type(loaded) is Tagged
    assert torch.equal(loaded, tensor)


def test_saving_a_view_writes_the_whole_storage_as_torch_does(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.pt", tmp_path / "theirs.pt"
    sliver = torch.randn(1 << 18)[5:7]
    fastio.save(sliver, ours)
    torch.save(sliver, theirs)
    assert fastio.load(ours).untyped_storage().nbytes() == torch.load(theirs).untyped_storage().nbytes() == 1 << 20


def test_loaded_tensors_can_be_changed_shared_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save({"a": torch.zeros(1 << 20), "b": torch.ones(1 << 20)}, path)
    loaded = fastio.load(path)
    loaded["a"].add_(1)
    assert torch.equal(loaded["a"], loaded["b"])
    loaded["a"].share_memory_()
    assert loaded["a"].is_shared()
    kept = loaded["b"].numpy()
    del loaded
    assert kept.sum() == 1 << 20
    assert torch.equal(fastio.load(path)["b"], torch.ones(1 << 20))


def test_deleting_a_loaded_tensor_frees_its_memory(tmp_path: Path) -> None:
    """A deleted storage returns its pages while its neighbours live on."""
    path = tmp_path / "a.pt"
    fastio.save({"small": torch.ones(4096), "large": torch.ones(10 << 20)}, path, durable=False)
    code = """
import sys, fastio
def rss():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) * 1024
state = fastio.load(sys.argv[1])
full = rss()
del state["large"]
print(full - rss())
assert state["small"].sum() == 4096
"""
    freed = int(warm_python.run(code, str(path)).stdout)
    assert freed > 0.95 * (40 << 20)


def test_weights_only_is_the_default(tmp_path: Path) -> None:
    path, witness = tmp_path / "evil.pt", tmp_path / "witness"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (witness,)

    torch.save({"x": torch.ones(5), "evil": Evil()}, path)
    for tool, arguments in itertools.product(("auto", *TOOLS), ({}, {"weights_only": None})):
        with pytest.raises(Exception, match=r"[Ww]eights") as caught:
            fastio.load(path, policy=tool, **arguments)
        assert type(caught.value).__name__ == "UnpicklingError"
    with open(path, "rb") as file, pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights"):
        fastio.load(file, weights_only=None)
    with fastio.Checkpointer(tmp_path / "steps") as checkpoints:
        checkpoints.save(1, [Evil()])
        for arguments in ({}, {"weights_only": None}):
            with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights"):
                checkpoints.restore(1, **arguments)
    assert not witness.exists()
    fastio.load(path, weights_only=False)
    assert witness.exists()


def test_flipped_byte_raises_corrupt_file_error(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    fastio.save({"x": torch.zeros(1 << 18)}, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert torch.load(path)["x"].count_nonzero() == 1  # torch does not notice
    for tool in ("auto", *TOOLS):
        with pytest.raises(fastio.CorruptFileError, match="data/0"):
            fastio.load(path, policy=tool)
    with pytest.raises(fastio.CorruptFileError, match="data/0"):
        fastio.verify(path)
    assert fastio.load(path, verify=False)["x"].count_nonzero() == 1


def test_file_without_checksums_loads_unverified_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"x": torch.ones(100000)}, path)
    finally:
        torch.serialization.set_crc32_options(before)
    with fastio.record() as transfers:
        assert fastio.load(path)["x"].sum() == 100000
    assert not transfers[0].verified
    assert "no checksums" in " ".join(transfers[0].fallbacks)
    assert not fastio.verify(path).checksummed


def filled_by_the_caller(obj: dict[str, torch.Tensor], path: Path) -> None:
    """Write a file as torch's documentation shows: first without data, then the storages' bytes."""
    with torch.serialization.skip_data():
        torch.save(obj, path)
    with path.open("r+b") as file, zipfile.ZipFile(path) as archive:
        for number, tensor in enumerate(obj.values()):
            (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith(f"/data/{number}"))
            assert entry.CRC == 0
            with archive.open(entry):  # leaves the file at the entry's bytes
                offset = archive.fp.tell()  # type: ignore[union-attr]
            file.seek(offset)
            file.write(tensor.numpy().tobytes())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("tool", ["auto", *TOOLS])
def test_skip_data_file_filled_later_loads_unverified(tmp_path: Path, count: int, tool: str) -> None:
    path = tmp_path / "a.pt"
    obj = {str(number): torch.randn(1000 + number) for number in range(count)}
    filled_by_the_caller(obj, path)
    for arguments in {}, {"pickle_module": pickle, "weights_only": False}:  # the latter make torch load it
        with fastio.record() as transfers:
            loaded = fastio.load(path, policy=tool, **arguments)
        assert same(loaded, obj)
        assert same(torch.load(path), obj)
        assert not transfers[0].verified
        assert "not verified: the file carries no checksums of its tensors" in transfers[0].fallbacks
    verified = fastio.verify(path)
    with zipfile.ZipFile(path) as archive:
        small = sum(entry.file_size for entry in archive.infolist() if "/data/" not in entry.filename)
        records = len(archive.infolist())
    assert (verified.checksummed, verified.records, verified.nbytes) == (False, records, small)


@pytest.mark.parametrize("arguments", [{}, {"pickle_module": pickle, "weights_only": False}], ids=["fastio", "torch"])
def test_small_records_of_a_skip_data_file_are_verified(tmp_path: Path, arguments: dict[str, Any]) -> None:
    path = tmp_path / "a.pt"
    filled_by_the_caller({"weight": torch.ones(1000)}, path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"weight", b"height", 1))
    with pytest.raises(fastio.CorruptFileError, match=r"data\.pkl"):
        fastio.load(path, **arguments)
    with pytest.raises(fastio.CorruptFileError, match=r"data\.pkl"):
        fastio.verify(path)


def four_bytes_of(crc: int) -> bytes:
    """Return the four bytes with this CRC-32, which is affine: linear after an XOR with the CRC of zeros."""
    zero, found, basis = zlib.crc32(bytes(4)), 0, {}
    for bit in range(32):
        value, made_of = zlib.crc32((1 << bit).to_bytes(4, "little")) ^ zero, 1 << bit
        while value.bit_length() in basis:
            other, others = basis[value.bit_length()]
            value, made_of = value ^ other, made_of ^ others
        basis[value.bit_length()] = value, made_of
    rest = crc ^ zero
    while rest:
        value, made_of = basis[rest.bit_length()]
        rest, found = rest ^ value, found ^ made_of
    return found.to_bytes(4, "little")


def test_no_flipped_bit_makes_a_file_look_like_one_without_checksums(tmp_path: Path) -> None:
    """The only storage's CRC-32 has a single bit: without it the directory looks like that of skipped data."""
    path = tmp_path / "a.pt"
    obj = {"weight": torch.frombuffer(bytearray(four_bytes_of(1 << 9)), dtype=torch.float32)}
    torch.save(obj, path)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (entry,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data/0"))
        with archive.open(entry):  # leaves the file at the entry's bytes
            start = archive.fp.tell()  # type: ignore[union-attr]
    assert entry.CRC == 1 << 9
    name = data.rindex(entry.filename.encode())
    refused = 0
    for place in (*range(start, start + 4 + 16), *range(name - 46, name + len(entry.filename))):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                with fastio.record() as transfers:
                    loaded = fastio.load(path)
            except fastio.CorruptFileError:
                refused += 1
            else:
                assert same(loaded, obj)
                assert transfers[0].verified or transfers[0].fallbacks[-1:] == (READ_AGAIN,)
    assert refused >= (4 + 4) * 8  # the bytes, and their CRC in the directory


def _offset_of(path: Path, record: str) -> int:
    """Where the bytes of a record begin in a file."""
    with zipfile.ZipFile(path) as archive:  # the root's name and the alignment differ if the dictionary let torch save
        (offset,) = (entry.header_offset for entry in archive.infolist() if entry.filename.endswith(f"/{record}"))
    with path.open("rb") as file:
        file.seek(offset)
        name, extra = struct.unpack("<26x2H", file.read(30))  # lengths of the two fields that lie before the data
    return offset + 30 + int(name) + int(extra)


def test_storage_behind_4_gib_is_loaded_from_its_place(tmp_path: Path) -> None:
    """Of the file that the next test saves: with a hole, so that only what lies behind it is written and read."""
    path, after = tmp_path / "large.pt", torch.arange(5000)
    obj = {"large": torch.empty((4 << 30) + 8192, dtype=torch.uint8), "after": torch.empty_like(after)}
    with torch.serialization.skip_data():
        torch.save(obj, path)
    with path.open("r+b") as file:
        file.seek(_offset_of(path, "data/1"))
        file.write(after.numpy().tobytes())
    assert torch.equal(fastio.load(path, keys=["after"], verify=False)["after"], after)


@pytest.mark.nightly
def test_storages_above_4_gib_round_trip(tmp_path: Path) -> None:
    """Offsets and sizes need more than 32 bits: one storage above 4 GiB, one after it."""
    path = tmp_path / "large.pt"
    large = torch.zeros((4 << 30) + 8192, dtype=torch.uint8)
    large[-1] = 7
    obj = {"large": large, "after": torch.arange(5000)}
    fastio.save(obj, path, durable=False)
    mapped = torch.load(path, mmap=True)
    assert mapped["large"].shape == large.shape
    assert mapped["large"][-1] == 7
    assert torch.equal(mapped["after"], obj["after"])
    del mapped
    loaded = fastio.load(path)
    assert loaded["large"][-1] == 7
    assert torch.equal(loaded["after"], obj["after"])


@settings(max_examples=60)
@given(st.lists(st.integers(0, 50000), max_size=12), st.sampled_from(TOOLS), st.sampled_from(TOOLS))
def test_any_pair_of_tools_round_trips(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: str, second: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.pt"
    obj = [tensor_of(torch.uint8, size, seed=size) for size in sizes]
    fastio.save(obj, path, policy=first, durable=False)
    assert same(fastio.load(path, policy=second), obj)
    assert same(torch.load(path), obj)


@pytest.mark.parametrize("tool", TOOLS)
def test_load_reads_the_payload_once(tmp_path: Path, tool: str) -> None:
    """Also with tools that do not read the gaps between storages."""
    path = tmp_path / "a.pt"
    fastio.save([torch.randn(1 << 16) for _ in range(20)], path)
    done: list[int] = []
    fastio.load(path, policy=tool, progress=lambda _, total: done.append(total))
    assert len(done) <= 1


@pytest.mark.parametrize("place", [0, 24 << 20, (48 << 20) - 1])
def test_flipped_byte_anywhere_in_a_large_file_raises(tmp_path: Path, place: int) -> None:
    path = tmp_path / "large.pt"
    fastio.save({"tensor": torch.zeros(48 << 20, dtype=torch.uint8)}, path, durable=False)
    offset = _offset_of(path, "data/0")
    with path.open("r+b") as file:
        file.seek(offset + place)
        file.write(b"\x01")
    with pytest.raises(fastio.CorruptFileError, match="data/0"):
        fastio.load(path, policy="uring")
    assert fastio.load(path, policy="uring", verify=False)["tensor"].sum() == 1


def zipped_again(path: Path, method: int) -> None:
    """Rewrite a zip file with the same members, compressed."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)


def test_compressed_file_is_verified_before_torch_loads_it(tmp_path: Path) -> None:
    path, obj = tmp_path / "a.pt", {"weight": torch.arange(100_000)}
    torch.save(obj, path)
    zipped_again(path, zipfile.ZIP_DEFLATED)
    with fastio.record() as transfers:
        assert same(fastio.load(path), obj)
    assert (transfers[0].tool, transfers[0].verified, transfers[0].fallbacks) == ("torch", False, (READ_AGAIN,))
    verified = fastio.verify(path)
    with zipfile.ZipFile(path) as archive:
        assert verified.records == len(archive.infolist())
        assert verified.nbytes == sum(member.file_size for member in archive.infolist())
    assert verified.checksummed
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for check in (fastio.load, fastio.verify):
        with pytest.raises(fastio.CorruptFileError, match="cannot be read as its directory says") as raised:
            check(path)
        assert raised.value.record == "data/0"


def test_verifying_another_programs_zip_file_raises(tmp_path: Path) -> None:
    path = tmp_path / "book.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("chapter/one.txt", "Call me Ishmael." * 100)
    with pytest.raises(fastio.FormatError, match="another program"):
        fastio.verify(path)


def test_unsupported_compression_raises_corrupt_file_error(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"weight": torch.arange(1000)}, path)
    zipped_again(path, zipfile.ZIP_BZIP2)
    with pytest.raises(fastio.CorruptFileError, match=r"'data.pkl': is compressed by method 12, not torch's; restore"):
        fastio.load(path)


def test_torchscript_is_verified_before_torch_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript itself
        torch.jit.save(torch.jit.trace(torch.nn.Linear(64, 64), torch.ones(64)), path)
        with fastio.record() as transfers:
            fastio.load(path, weights_only=False)
    assert (transfers[0].tool, transfers[0].verified, transfers[0].fallbacks) == ("torch", False, (READ_AGAIN,))
    assert fastio.verify(path).checksummed
    with zipfile.ZipFile(path) as archive:
        weight = max(archive.infolist(), key=lambda member: member.file_size)
    data = bytearray(path.read_bytes())
    data[weight.header_offset + 8192] ^= 1
    path.write_bytes(data)
    with pytest.raises(fastio.CorruptFileError):
        fastio.load(path, weights_only=False)


@pytest.mark.parametrize("pickled_natively", [True, False])
def test_a_storage_that_ends_within_an_element_loads(tmp_path: Path, pickled_natively: bool) -> None:
    path, odd = tmp_path / "a.pt", torch.arange(1001).to(torch.uint8)[8:408].view(torch.float32)
    obj = {"odd": odd} if pickled_natively else {"odd": odd, "complex": 1j}  # the second is torch's to pickle
    fastio.save(obj, path)
    assert fastio.verify(path).checksummed
    for loaded in (fastio.load(path), torch.load(path), torch.load(path, mmap=True)):
        assert torch.equal(loaded["odd"].view(torch.uint8), odd.view(torch.uint8))
