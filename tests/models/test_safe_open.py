"""safe_open returns what safetensors' own returns, reads only what is wanted, and refuses damaged and mixed files."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from fastio.models import part_reads
from fastio.models.selection import blocks, pieces, select, whole
from objects import DTYPES, same_bits, tensor_of

INDEX = "model.safetensors.index.json"
HELD = [dtype for dtype in DTYPES if dtype not in (torch.complex128, torch.complex32)]  # by the format
INDICES: list[Any] = [
    slice(None), ..., 1, -1, 4, -5, slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 1),
    slice(2, 100), (slice(None), slice(2, 4)), (slice(None), slice(-2, None)), (1, 2), (1, 2, 3), (..., 2),
    (..., slice(1, 2)), (1, ...), (..., ...), (1, ..., 2), None, (None, 1), True, (), (slice(None), -7), [0, 2],
    (slice(None), [0, 2]), [5], torch.tensor(1), torch.tensor([1, 2]), np.int64(1), slice(1, np.int64(3)), 1.0, "a",
    slice(None, None, 0), (slice(0, 4, 2), slice(1, 6, 3)), (slice(1, 2), slice(1, 3)),
]  # fmt: skip


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    tensors = {f"{seed}.{dtype}": tensor_of(dtype, 4, 6, seed=seed) for dtype in HELD}
    large = torch.randn(600, 512, generator=torch.Generator().manual_seed(seed))
    return tensors | {f"{seed}.scalar": torch.tensor(2.5), f"{seed}.empty": torch.empty(0, 7), f"{seed}.large": large}


def save_shards(folder: Path, shards: int = 3) -> dict[str, torch.Tensor]:
    weight_map, everything = {}, {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        tensors = state(number)
        fastio.save_file(tensors, folder / name, {"format": "pt", "shard": str(number)})
        weight_map |= dict.fromkeys(tensors, name)
        everything |= tensors
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return everything


def outcome(part: Any, index: Any) -> Any:
    try:
        tensor = part[index]
    except Exception as error:
        return type(error)
    return tuple(tensor.shape), tensor.dtype, tensor.tolist()


def test_one_file_reads_as_with_the_library(tmp_path: Path) -> None:
    tensors = state()
    fastio.save_file(tensors, tmp_path / "a", {"k": "v"})
    with (
        fastio.safe_open(tmp_path / "a", framework="pt", device="cpu") as ours,
        safetensors.safe_open(tmp_path / "a", "pt") as theirs,
    ):
        assert ours.keys() == sorted(theirs.keys())
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == {"k": "v"}
        assert theirs.metadata().keys() == {"k", "fastio.checksums"}
        for name, tensor in tensors.items():
            assert same_bits(ours.get_tensor(name), tensor)
            assert ours.get_slice(name).get_shape() == theirs.get_slice(name).get_shape()
            assert ours.get_slice(name).get_dtype() == theirs.get_slice(name).get_dtype()
        found = ours.get_tensors()
        assert list(found) == ours.offset_keys()
    gc.collect()
    assert all(same_bits(found[name], tensors[name]) for name in tensors)  # after the context


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_slices_are_the_librarys(tmp_path: Path, index: Any) -> None:
    tensors = {"a": torch.arange(24.0).reshape(4, 6), "scalar": torch.tensor(2.0), "empty": torch.empty(0, 3)}
    fastio.save_file(tensors, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as ours, safetensors.safe_open(tmp_path / "a", "pt") as theirs:
        for name in tensors:
            mine, library = ours.get_slice(name), theirs.get_slice(name)
            assert outcome(mine, index) == outcome(library, index)


def test_random_slices_of_many_shapes_are_torchs(tmp_path: Path) -> None:
    shapes = [(3, 5, 7), (2, 20_000), (40, 9_000), (1, 1, 8), (2, 3, 4, 5), (300, 3)]
    tensors = {str(n): tensor_of(torch.int16, *shape) for n, shape in enumerate(shapes)}
    fastio.save_file(tensors, tmp_path / "a")
    chance = random.Random(5)
    with fastio.safe_open(tmp_path / "a") as file:
        for _ in range(300):
            name = chance.choice(list(tensors))
            index = tuple(
                chance.choice(
                    [
                        slice(None),
                        chance.randrange(size),
                        slice(*sorted(chance.choices(range(size + 1), k=2))),
                        slice(chance.randrange(size), None, chance.randrange(1, size + 2)),
                    ]
                )
                for size in tensors[name].shape
            )
            assert torch.equal(file.get_slice(name)[index], tensors[name][index]), (name, index)


@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_rows_and_columns_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = tensor_of(dtype, 6, 8)
    fastio.save_file({"a": tensor}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file:
        part = file.get_slice("a")
        assert same_bits(part[2:5], tensor[2:5])
        columns = tensor.view(torch.uint8).unflatten(1, (8, -1))[:, 2:5].flatten(1)
        assert torch.equal(part[:, 2:5].view(torch.uint8), columns)


def test_a_large_tensor_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.models.part_reads.BATCH_BYTES", 10_000)
    tensor = torch.randn(7, 40, 50)
    fastio.save_file({"a": tensor}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file, fastio.record() as transfers:
        assert torch.equal(file.get_slice("a")[:, ::3, 5:40], tensor[:, ::3, 5:40])
    assert len(transfers) > 5
    assert max(one.nbytes for one in transfers) <= 10_000


def test_bytes_that_are_read() -> None:
    """Rows and columns: their bytes only. Narrow columns of short rows: whole rows."""
    rows = select((1000, 4096), slice(10, 20))
    assert rows is not None
    assert rows.is_contiguous
    assert blocks(rows, 2) == ([40_960], 1, 40_960, 40_960, [])
    columns = select((100, 4096), (slice(None), slice(1024, 2048)))
    assert columns is not None
    assert blocks(columns, 2) == ([1024], 100, 4096, 1024, [])
    narrow = select((100, 4096), (slice(None), slice(0, 128)))
    assert narrow is not None
    assert blocks(narrow, 2) == ([0], 1, 99 * 4096 + 128, 99 * 4096 + 128, [(100, 4096), (128, 1)])
    apart = select((100, 65_536), (slice(None), slice(1024, 1152)))
    assert apart is not None
    assert blocks(apart, 2) == ([1024], 100, 65_536, 128, [])
    cube = select((3, 5, 4096), (slice(1, 3), slice(0, 5, 2), slice(0, 1024)))
    assert cube is not None
    assert blocks(cube, 2) == ([5 * 4096, 2 * 5 * 4096], 3, 2 * 4096, 1024, [])


def test_pieces_are_the_selection_in_order() -> None:
    elements = torch.arange(6 * 50 * 7).reshape(6, 50, 7)
    selection = select((6, 50, 7), (slice(1, 6, 2), slice(3, 40), slice(2, 5)))
    assert selection is not None
    for most in (1, 7, 30, 400, 10_000):
        found = [elements.as_strided(p.shape, p.stride, p.start).flatten() for p in pieces(selection, most)]
        assert torch.equal(torch.cat(found), elements[1:6:2, 3:40, 2:5].flatten())
    assert list(pieces(whole((3, 4)), 2)) == [whole((3, 4))]  # one run is not split


def test_rows_read_their_bytes_only(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.randn(1000, 100)}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file, fastio.record() as transfers:
        file.get_slice("a")[10:20]
    assert [one.nbytes for one in transfers] == [4000]
    assert not transfers[0].verified
    assert "not verified: 1 of 1 reads are of parts of tensors" in transfers[0].fallbacks[0]


@pytest.mark.parametrize("how", ["folder", "index", "list"])
def test_many_files_are_one_collection(tmp_path: Path, how: str) -> None:
    tensors = save_shards(tmp_path)
    where: Any = {"folder": tmp_path, "index": tmp_path / INDEX, "list": sorted(tmp_path.glob("*.safetensors"))}[how]
    with fastio.safe_open(where) as file:
        assert file.keys() == sorted(tensors)
        assert file.metadata() == {"format": "pt", "shard": "0"}
        assert all(same_bits(file.get_tensor(name), tensors[name]) for name in tensors)
        assert file.get_tensors().keys() == tensors.keys()


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file of safetensors"):
        fastio.safe_open(tmp_path)
    (tmp_path / ".metadata").touch()  # as in a checkpoint of DCP
    with pytest.raises(FileNotFoundError, match=r"convert it by fastio\.convert"):
        fastio.safe_open(tmp_path)
    (tmp_path / ".metadata").unlink()
    for name in ("adapter.safetensors", "model.safetensors"):
        fastio.save_file({name: torch.ones(3)}, tmp_path / name)
        with fastio.safe_open(tmp_path) as file:
            assert file.keys() == [name]
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match=r"adapter.safetensors, other.safetensors.*name one"):
        fastio.safe_open(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_shards(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(fastio.ShardMissingError, match=r"names this file for \d+ tensors? .*download") as caught:
        fastio.safe_open(tmp_path)
    assert isinstance(caught.value, FileNotFoundError)
    assert str(caught.value.filename).endswith("model-00002-of-00003.safetensors")


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path) -> None:
    save_shards(tmp_path)
    good = json.loads((tmp_path / INDEX).read_text())

    def refused(change: Any, match: str) -> None:
        bad = json.loads(json.dumps(good))
        change(bad)
        (tmp_path / INDEX).write_text(json.dumps(bad))
        with pytest.raises(fastio.CorruptFileError, match=match) as caught:
            fastio.safe_open(tmp_path)
        assert caught.value.path == str(tmp_path / INDEX)

    shard = good["weight_map"]["0.large"]
    refused(lambda bad: bad["weight_map"].update(absent=shard), "'absent': .*no file of it has that tensor")
    refused(lambda bad: bad["weight_map"].update({"1.large": shard}), r"'1.large': .*it is in model-00002-of-00003")
    for name in ("../model.safetensors", "/etc/passwd", "", "..", 3):
        refused(lambda bad, name=name: bad["weight_map"].update({"0.large": name}), "bare name")
    refused(lambda bad: bad.pop("weight_map"), "no weight_map")
    refused(lambda bad: bad.update(weight_map=[]), "no weight_map")
    (tmp_path / INDEX).write_text("{")
    with pytest.raises(fastio.CorruptFileError, match="not the JSON"):
        fastio.safe_open(tmp_path)


def test_one_name_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        fastio.save_file({"weight": torch.ones(3), name: torch.ones(2)}, tmp_path / name)
    with pytest.raises(fastio.CorruptFileError, match=r"/b: tensor 'weight': is also in .*/a"):
        fastio.safe_open([tmp_path / "a", tmp_path / "b"])


def test_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    fastio.save_file({"layers.0.weight": torch.ones(3)}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file:
        for read in (file.get_tensor, file.get_slice):
            with pytest.raises(fastio.TensorMissingError, match=r"/a: no tensor 'layers.0.wight'.*alike: 'layers.0.we"):
                read("layers.0.wight")
        with pytest.raises(TypeError, match="str"):
            file.get_tensor(3)  # type: ignore[arg-type]
        with pytest.raises(IndexError, match=r"/a: 'layers.0.weight' has shape \[3\]: .*out of"):
            file.get_slice("layers.0.weight")[3]


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3)}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a") as file:
        part = file.get_slice("a")
    file.close()
    for read in (file.keys, lambda: file.get_tensor("a"), lambda: part[:], file.metadata, file.offset_keys):
        with pytest.raises(ValueError, match="closed"):
            read()


def test_bad_arguments(tmp_path: Path) -> None:
    fastio.save_file({"a": torch.ones(3)}, tmp_path / "a")
    with pytest.raises(ValueError, match="framework='tf'"):
        fastio.safe_open(tmp_path / "a", framework="tf")  # type: ignore[call-overload]
    with pytest.raises(RuntimeError, match="foo"):
        fastio.safe_open(tmp_path / "a", device="foo")
    with pytest.raises(ValueError, match="nope"):
        fastio.safe_open(tmp_path / "a", policy="nope")
    with pytest.raises(ValueError, match="empty"):
        fastio.safe_open([])
    for where in (3, None, b"a", [3]):
        with pytest.raises(TypeError, match="path"):
            fastio.safe_open(where)
    with pytest.raises(FileNotFoundError):
        fastio.safe_open(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        fastio.safe_open([tmp_path])


@pytest.mark.parametrize("device", ["mps", *([] if torch.cuda.is_available() else ["cuda", "cuda:0"])])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, device: str) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save_file({"weight": torch.ones(2, 2)}, path)
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2, bias=False)
    said = f"device='{device}': .*; or name a device of this machine, such as 'cpu'"
    with pytest.raises(fastio.UnsupportedError, match=said):
        fastio.safe_open(path, framework="pt", device=device)
    for places in (device, {"": device}):
        with pytest.raises(fastio.UnsupportedError, match=said):
            fastio.load_model(module, path, device=places)
    assert module.weight.is_meta


def test_damaged_headers_are_refused_when_the_file_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write(header: Any, nbytes: int = 12) -> None:
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(nbytes))

    entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
    write({"a": entry})
    fastio.safe_open(path).close()
    for bad in (
        {"a": entry | {"shape": [4]}},
        {"a": entry | {"shape": [-3]}},
        {"a": entry | {"data_offsets": [0, 16]}},
        {"a": entry | {"data_offsets": [4, 16]}},
        {"a": entry | {"shape": [1 << 62, 1 << 62]}},
        {"a": {"dtype": "F32"}},
    ):
        write(bad)
        with pytest.raises(fastio.CorruptFileError, match="/a: tensor 'a'"):
            fastio.safe_open(path)
    write({"a": entry}, 11)
    with pytest.raises(fastio.CorruptFileError, match="/a"):
        fastio.safe_open(path)


@pytest.mark.parametrize("kept", [5000, 4096, 100])
def test_a_file_that_is_cut_short_while_open_hands_out_nothing(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    fastio.save_file({"a": torch.randn(100, 100)}, path)
    with fastio.safe_open(path) as file:
        os.truncate(path, kept)
        with pytest.raises(fastio.CorruptFileError, match="/a: tensor 'a'"):
            file.get_tensor("a")
        with pytest.raises(fastio.CorruptFileError, match="/a: tensor 'a'"):
            file.get_slice("a")[:, 3:5]
        file.prefetch([("a", slice(0, 40)), ("a", slice(50, 100))])
        with pytest.raises(fastio.CorruptFileError, match="/a: tensor 'a'"):
            file.get_slice("a")[50:]


def test_a_file_that_is_written_to_while_open_hands_out_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    fastio.save_file({"a": torch.randn(100, 100)}, path)
    os.utime(path, ns=(0, 0))
    with fastio.safe_open(path) as file:
        file.get_tensor("a")
        with path.open("r+b") as other:
            other.seek(5000)
            other.write(b"new")
        with pytest.raises(fastio.CorruptFileError, match="written to while it was open"):
            file.get_tensor("a")
        fastio.save_file({"a": torch.ones(1)}, path)  # another file of that name is no harm
    with fastio.safe_open(path) as file:
        assert file.get_slice("a").get_shape() == [1]


def test_memory_is_given_back_tensor_by_tensor(tmp_path: Path) -> None:
    fastio.save_file({str(n): torch.full((1 << 20,), float(n)) for n in range(8)}, tmp_path / "a")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with fastio.safe_open(tmp_path / "a") as file:
        tensors = file.get_tensors()
    before = resident()
    kept = tensors["3"]
    del tensors
    gc.collect()
    assert resident() < before - (20 << 20)
    assert kept.mean().item() == 3.0


@pytest.mark.parametrize("tool", ["uring", "posix", "memory"])
def test_every_tool_reads_parts(tmp_path: Path, tool: str) -> None:
    tensor = torch.randn(700, 9000)
    fastio.save_file({"b": torch.ones(5), "a": tensor}, tmp_path / "a")
    with fastio.safe_open(tmp_path / "a", policy=tool) as file:
        part = file.get_slice("a")
        assert torch.equal(part[100:300], tensor[100:300])
        assert torch.equal(part[:, 10:3000], tensor[:, 10:3000])
        assert torch.equal(part[3:700:50, 10:30], tensor[3:700:50, 10:30])
        assert torch.equal(file.get_tensor("a"), tensor)


def test_close_waits_for_reads_and_hands_out_nothing_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is opened after close() gets the number of the closed descriptor."""
    for value in (7.0, 9.0):
        fastio.save_file({"t": torch.full((50_000,), value)}, tmp_path / f"{value:.0f}", checksums=False)
    status = (tmp_path / "7").stat()
    os.utime(tmp_path / "9", ns=(status.st_atime_ns, status.st_mtime_ns))
    began, closed = threading.Event(), threading.Event()
    read = part_reads.read_extents

    def late(*arguments: Any) -> Any:
        began.set()
        assert closed.wait(300)
        return read(*arguments)

    monkeypatch.setattr(part_reads, "read_extents", late)
    file = fastio.safe_open(tmp_path / "7")
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(file.get_tensor, "t")
        assert began.wait(300)
        file.close()
        others = [os.open(tmp_path / "9", os.O_RDONLY) for _ in range(4)]
        closed.set()
        assert torch.equal(found.result(60), torch.full((50_000,), 7.0))
    for fd in others:
        os.close(fd)
    with pytest.raises(ValueError, match="closed"):
        file.get_tensor("t")


def test_a_part_of_safetensors_is_called_a_tensor_and_of_a_pt_a_record(tmp_path: Path) -> None:
    tensors, pt = tmp_path / "a.safetensors", tmp_path / "a.pt"
    for path in (tensors, pt):
        fastio.save({"w": torch.ones(20_000)}, path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    for door in (
        fastio.load,
        fastio.load_file,
        fastio.verify,
        fastio.seal,
        lambda path: fastio.convert(path, tmp_path / "b.pt"),
    ):
        with pytest.raises(fastio.ChecksumError, match=r"a\.safetensors: tensor 'w': its") as raised:
            door(tensors)
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    for door in (fastio.load, fastio.verify):
        with pytest.raises(fastio.CorruptFileError, match=r"a\.pt: record 'data/0' \(tensor 'w'\): its") as raised_:
            door(pt)
        assert str(pickle.loads(pickle.dumps(raised_.value))) == str(raised_.value)
