"""Loads of parts of stored tensors: only the blocks that hold them are read, and all that is read is checked."""

from __future__ import annotations

import dataclasses
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan

import block_tasks
import fastio
from fastio.distributed import HuggingFaceReader, HuggingFaceWriter, Reader, Writer, metadata
from fastio.errors import CorruptFileError
from objects import tensor_of
from ranks import Ranks

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),
]

BLOCK = 64 << 10  # of tensors of up to 4 MiB
ROW = 4096  # bytes


@pytest.mark.parametrize("kind", ["dcp", "safetensors", "steps"])
def test_ranks_read_little_more_than_they_need_of_others_parts(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    ranks.run(block_tasks.save, str(tmp_path), 4, kind)
    for count in (2, 3):
        ranks.run(block_tasks.load, str(tmp_path), count, kind)  # what Python reads once is read here
        answers = [answer for answer in ranks.run(block_tasks.load, str(tmp_path), count, kind) if answer is not None]
        assert len(answers) == count
        for answer in answers:
            assert answer.are_right
            assert answer.verified
            assert answer.wanted <= answer.read <= 1.05 * answer.wanted


def test_tools_without_checksums_of_their_own_keep_those_of_blocks(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(block_tasks.save, str(tmp_path), 4, "dcp", "numpy")
    assert all(hasattr(info, "fastio_blocks") for info in Reader(tmp_path).read_metadata().storage_data.values())
    assert all(answer is None or answer.are_right for answer in ranks.run(block_tasks.load, str(tmp_path), 3, "dcp"))


class Rows(dcp.DefaultLoadPlanner):
    """Loads only these boxes of its tensors, each given by its begin and its size."""

    def __init__(self, boxes: dict[str, tuple[list[int], list[int]]]) -> None:
        super().__init__()
        self._boxes = boxes

    def create_local_plan(self) -> LoadPlan:
        items = []
        for item in super().create_local_plan().items:
            begin, size = self._boxes[item.storage_index.fqn]
            at = torch.Size(begin)
            items.append(dataclasses.replace(item, dest_offsets=at, storage_offsets=at, lengths=torch.Size(size)))
        return LoadPlan(items)


@pytest.fixture
def rows(tmp_path: Path) -> torch.Tensor:
    """A saved tensor of 512 rows: 2 MiB, 32 blocks of 16 rows."""
    saved = tensor_of(torch.int32, 512, ROW // 4)
    dcp.save({"rows": saved}, storage_writer=Writer(tmp_path))
    return saved


def load_rows(folder: Path, begin: int, count: int, reader: type[Reader] = Reader) -> tuple[torch.Tensor, int]:
    """Load some rows; returns them with zeros in the place of all others, and the bytes read."""
    loaded = {"rows": torch.zeros(512, ROW // 4, dtype=torch.int32)}
    planner = Rows({"rows": ([begin, 0], [count, ROW // 4])})
    with fastio.record() as transfers:
        try:
            dcp.load(loaded, storage_reader=reader(folder), planner=planner)
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None
    assert all(transfer.verified for transfer in transfers)
    return loaded["rows"], sum(transfer.nbytes for transfer in transfers)


@pytest.mark.parametrize(
    ("begin", "count", "blocks"),
    [(0, 16, 1), (0, 17, 2), (15, 2, 2), (16, 32, 2), (17, 31, 2), (5, 3, 1), (15, 18, 3), (7, 500, 32), (0, 512, 32)],
)
def test_blocks_that_hold_the_part_are_read(
    tmp_path: Path, rows: torch.Tensor, begin: int, count: int, blocks: int
) -> None:
    loaded, nbytes = load_rows(tmp_path, begin, count)
    assert torch.equal(loaded[begin : begin + count], rows[begin : begin + count])
    assert loaded.count_nonzero() == rows[begin : begin + count].count_nonzero()
    assert nbytes == blocks * BLOCK


@pytest.mark.parametrize("row", [16, 31, 32, 40, 48, 63])
def test_damage_in_a_block_that_is_read_is_told(tmp_path: Path, rows: torch.Tensor, row: int) -> None:
    path, at = place_of(tmp_path)
    with path.open("r+b") as file:
        file.seek(at + row * ROW)
        byte = file.read(1)[0]
        file.seek(at + row * ROW)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptFileError) as caught:
        load_rows(tmp_path, 20, 40)  # rows 20 to 59: of the blocks of rows 16 to 63
    assert str(path) in str(caught.value)
    assert "'rows'" in str(caught.value)
    for begin, count in ((0, 16), (64, 448)):
        loaded, _ = load_rows(tmp_path, begin, count)
        assert torch.equal(loaded[begin : begin + count], rows[begin : begin + count])


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """The file of such a tensor in safetensors, saved as a part."""
    dcp.save(
        {"rows": tensor_of(torch.int32, 512, ROW // 4)},
        storage_writer=HuggingFaceWriter(tmp_path, save_distributed=True),
    )
    (path,) = tmp_path.glob("*.safetensors")
    return path


@pytest.mark.parametrize("change", ["none", "digit", "cut", "list", "no JSON"])
def test_blocks_of_safetensors_are_read_and_all_of_a_part_if_their_checksums_were_altered(
    tmp_path: Path, parts: Path, change: str
) -> None:
    expected = load_file(parts)["rows"]
    data = parts.read_bytes()
    at = data.index(b"fastio.blocks")
    begin = data.index(b"rows", at)
    changed = {
        "none": data,
        "digit": data[: begin + 12] + bytes([data[begin + 12] ^ 1]) + data[begin + 13 :],
        "cut": data[: begin + 12] + b'\\"' + data[begin + 14 :],
        "list": data[: begin - 3] + b"[" + data[begin - 2 :],
        "no JSON": data[: begin - 3] + b"?" + data[begin - 2 :],
    }[change]
    parts.write_bytes(changed)
    loaded, nbytes = load_rows(tmp_path, 20, 40, HuggingFaceReader)
    assert torch.equal(loaded[20:60], expected[20:60])
    assert nbytes == (3 * BLOCK if change == "none" else expected.nbytes)


@pytest.mark.parametrize(("row", "is_read"), [(15, False), (16, True), (63, True), (64, False)])
def test_damage_in_a_block_of_safetensors_that_is_read_is_told(
    tmp_path: Path, parts: Path, row: int, is_read: bool
) -> None:
    with parts.open("r+b") as file:
        file.seek(parts.stat().st_size - (512 - row) * ROW)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    if not is_read:
        load_rows(tmp_path, 20, 40, HuggingFaceReader)
        return
    with pytest.raises(CorruptFileError, match="'rows'"):
        load_rows(tmp_path, 20, 40, HuggingFaceReader)


def place_of(folder: Path) -> tuple[Path, int]:
    """The file of the only tensor, and where its bytes begin."""
    (info,) = Reader(folder).read_metadata().storage_data.values()
    return folder / info.relative_path, info.offset + info.fastio[0]


def test_random_boxes_are_loaded(tmp_path: Path) -> None:
    state = {
        "many": tensor_of(torch.float32, 70, 50, 300),
        "odd": tensor_of(torch.uint8, 700_001),
        "wide": tensor_of(torch.complex128, 3, 60_000),
        "converted": tensor_of(torch.bfloat16, 400, 300),
    }
    dcp.save(state, storage_writer=Writer(tmp_path))
    chance = random.Random(3)
    for _ in range(40):
        boxes, expected = {}, {}
        for name, value in state.items():
            begin = [chance.choice([0, chance.randrange(length)]) for length in value.shape]
            size = [
                chance.choice([length - at, length - at, 1, chance.randint(0, length - at)])
                for at, length in zip(begin, value.shape, strict=True)
            ]
            boxes[name] = begin, size
            box = tuple(slice(at, at + count) for at, count in zip(begin, size, strict=True))
            expected[name] = torch.zeros_like(value)
            expected[name][box] = value[box]
        loaded = {
            name: torch.zeros(value.shape, dtype=torch.float32 if name == "converted" else value.dtype)
            for name, value in state.items()
        }
        dcp.load(loaded, storage_reader=Reader(tmp_path), planner=Rows(boxes))
        for name, value in expected.items():
            assert torch.equal(loaded[name], value.to(loaded[name].dtype)), (name, boxes[name])


def change_metadata(folder: Path, change: Any) -> None:
    """Change the entries of the metadata, and write them as they were."""
    found = metadata.read(str(folder))
    for info in found.storage_data.values():
        change(info)
    (folder / ".metadata").write_bytes(metadata.pickled(found))


def test_checkpoints_without_checksums_of_blocks_are_read_whole(tmp_path: Path, rows: torch.Tensor) -> None:
    change_metadata(tmp_path, lambda info: delattr(info, "fastio_blocks"))  # as fastio wrote them before
    loaded, nbytes = load_rows(tmp_path, 20, 40)
    assert torch.equal(loaded[20:60], rows[20:60])
    assert nbytes == rows.nbytes


def test_torch_and_earlier_readers_find_what_they_know(tmp_path: Path, rows: torch.Tensor) -> None:
    found: Any = pickle.loads((tmp_path / ".metadata").read_bytes())
    (info,) = found.storage_data.values()
    assert len(info.fastio) == 5
    loaded = {"rows": torch.zeros_like(rows)}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(tmp_path))
    assert torch.equal(loaded["rows"], rows)


@pytest.mark.parametrize("altered", [(BLOCK, b""), (0, bytes(128)), (BLOCK, bytes(128)), (BLOCK - 1, bytes(132))])
def test_altered_checksums_of_blocks_are_told(tmp_path: Path, rows: torch.Tensor, altered: tuple[int, bytes]) -> None:
    change_metadata(tmp_path, lambda info: setattr(info, "fastio_blocks", altered))
    with pytest.raises(CorruptFileError, match=r"'rows'.*the metadata was altered"):
        load_rows(tmp_path, 0, 5)
