"""Saves and loads checkpoints of many ranks with DCP, in real processes connected by gloo."""

from __future__ import annotations

import dataclasses
import fcntl
import inspect
import mmap
import os
import pickle
import random
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.planner import LoadPlan

import fastio
import rank_tasks
from fastio.distributed import Reader, Writer, data_file
from fastio.errors import CheckpointError, CorruptFileError, FormatError, TransferError, UnsupportedError
from objects import tensor_of
from ranks import Ranks

# torch's warnings in tests without other processes; torch 2.6 has another text.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]


def takes(function: Callable[..., Any], argument: str) -> pytest.MarkDecorator:
    """Skip the test if DCP's function in this torch lacks an argument."""
    missing = argument not in inspect.signature(function).parameters
    return pytest.mark.skipif(missing, reason=f"this torch has no {argument}=")


KILLS = 7  # that hit the middle of a save, as about one in four does


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints of 1, 2 and 4 ranks; the number is also the seed of their values. Tests must not change them."""
    folder = tmp_path_factory.mktemp("saved")
    folders = {count: folder / str(count) for count in (1, 2, 4)}
    for count, path in folders.items():
        ranks.run(rank_tasks.save, str(path), count, count)
    return folders


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_any_number_of_ranks_loads_what_any_number_of_ranks_saved(
    ranks: Ranks, saved: dict[int, Path], before: int, after: int, verify: bool
) -> None:
    options = {"verify": verify}
    for wrong, transfers in ranks.run(rank_tasks.load, str(saved[before]), after, before, "fastio", options)[:after]:
        assert wrong == []
        assert transfers
        assert all(verified is verify for _, _, verified, _ in transfers)


def test_load_without_verify_reads_only_the_needed_parts(ranks: Ranks, saved: dict[int, Path]) -> None:
    nbytes = {}
    for verify in (True, False):
        answers = ranks.run(rank_tasks.load, str(saved[2]), 4, 2, "fastio", {"verify": verify})
        nbytes[verify] = sum(transfer[-1] for _, transfers in answers for transfer in transfers)
    # 37 rows of 4,000 bytes: 2 ranks stored 19 and 18, in blocks of 64 KiB and one of the rest; 4 ranks load 10, 10, 10
    # and 7, so the second needs both blocks of the first, and one of the other.
    rows = (65536 + (19 * 4000 + 65536) + 65536 + 18 * 4000) - 37 * 4000
    both = (32 + 32 + 32 + 32) - 64
    columns = 4 * (64 - 32)  # 4 ranks skip 32 of 64 columns before the first row's part, or behind the last row's
    assert nbytes[True] - nbytes[False] == rows + both * 96 * 4 + columns * 2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_torchs_reader_loads_fastios_checkpoint(ranks: Ranks, saved: dict[int, Path], count: int) -> None:
    for before in (2, 4):
        for wrong, _ in ranks.run(rank_tasks.load, str(saved[before]), count, before, "torch"):
            assert wrong == []


def test_checkpoint_of_torchs_writer_is_loaded(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 4, 5, "torch")
    for count in (1, 2, 4):
        for wrong, transfers in ranks.run(rank_tasks.load, str(tmp_path), count, 5)[:count]:
            assert wrong == []
            assert sum(nbytes for *_, nbytes in transfers) > 0


@pytest.mark.parametrize(("written", "read"), [("fastio", "fastio"), ("fastio", "torch"), ("torch", "fastio")])
def test_fsdp2_states_round_trip_between_fastio_and_torch(
    ranks: Ranks, tmp_path: Path, written: str, read: str
) -> None:
    saved = ranks.run(rank_tasks.fsdp_save, str(tmp_path), 4, written)[0]
    assert saved.keys() >= {".model.0.weight", ".optimizer.state.0.weight.exp_avg"}
    for count in (2, 1, 4) if read == written else (2,):
        before, after = ranks.run(rank_tasks.fsdp_load, str(tmp_path), count, read)[0]
        assert before != saved
        assert after == saved


@pytest.mark.parametrize(("policy", "tool"), [("posix", "posix"), ("torch", "torch"), ("memory", "memory")])
def test_policy_chooses_the_transport(ranks: Ranks, tmp_path: Path, policy: str, tool: str) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 2, 6, "fastio", {"policy": policy})
    for wrong, transfers in ranks.run(rank_tasks.load, str(tmp_path), 2, 6, "fastio", {"policy": policy})[:2]:
        assert wrong == []
        assert {transfer[0] for transfer in transfers} == {tool}


def test_every_item_is_a_torch_file_with_checksums(saved: dict[int, Path], tmp_path: Path) -> None:
    infos = Reader(saved[4]).read_metadata().storage_data
    for index, info in infos.items():
        data = (saved[4] / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        path = tmp_path / "item.pt"
        path.write_bytes(data)
        assert fastio.verify(path).checksummed, index
        torch.load(path, weights_only=True)


def test_large_tensors_start_on_a_page(saved: dict[int, Path]) -> None:
    infos = Reader(saved[4]).read_metadata().storage_data
    starts = {
        index.fqn: info.offset + info.fastio[0] for index, info in infos.items() if index.fqn in ("rows", "columns")
    }
    assert starts
    assert all(start % 4096 == 0 for start in starts.values())


def test_whole_tensors_are_read_once_in_one_batch(ranks: Ranks, saved: dict[int, Path]) -> None:
    (wrong, transfers), *_ = ranks.run(rank_tasks.load, str(saved[1]), 1, 1)
    assert wrong == []
    payload = sum(v.nbytes for _, v in rank_tasks.leaves(rank_tasks.whole(1)) if isinstance(v, torch.Tensor))
    in_place, buffered = transfers  # tensors; objects and tensors with other strides than in the file
    assert in_place[-1] + buffered[-1] - payload in range(30_000, 60_000)  # bytes of the pickled objects
    assert buffered[-1] < 200_000


def test_saving_again_replaces_the_checkpoint_and_its_files(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 4, 7, "torch")
    ranks.run(rank_tasks.save, str(tmp_path), 4, 8)
    first = {path.name for path in tmp_path.iterdir()}
    ranks.run(rank_tasks.save, str(tmp_path), 2, 9)
    second = {path.name for path in tmp_path.iterdir()}
    assert len(first) == 1 + 4
    assert len(second) == 1 + 2
    assert first & second == {".metadata"}
    assert ranks.run(rank_tasks.load, str(tmp_path), 4, 9)[0][0] == []


def test_failing_rank_leaves_the_checkpoint_before(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 4, 10)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for failures in ranks.run(rank_tasks.failure, rank_tasks.save_failing, str(tmp_path), 4, 11):
        assert ("OSError", "no more objects") in failures.values()
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    assert ranks.run(rank_tasks.load, str(tmp_path), 4, 10)[0][0] == []
    ranks.run(rank_tasks.save, str(tmp_path), 4, 12)
    assert len(list(tmp_path.iterdir())) == 1 + 4


@takes(dcp.save, "use_collectives")
def test_saves_without_collectives_are_loaded_and_replaced(ranks: Ranks, tmp_path: Path) -> None:
    for seed in (13, 14):
        assert ranks.run(rank_tasks.save_without_collectives, str(tmp_path), 2, seed)[:2] == [[], []]
    assert len(list(tmp_path.glob("*.distcp"))) == 2


@takes(dcp.DefaultSavePlanner.__init__, "enable_plan_caching")
def test_saves_with_cached_plans_are_loaded_and_replaced(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(rank_tasks.save_with_cached_plans, str(tmp_path), 2, [15, 16, 17])[:2] == [[], []]
    assert len(list(tmp_path.glob("*.distcp"))) == 2


@takes(dcp.async_save, "async_stager")  # without it DCP does not copy tensors in host memory
@pytest.mark.parametrize("stager", [False, True], ids=["its-stager", "blocking-stager"])
def test_asynchronous_saves_on_a_thread_are_loaded(ranks: Ranks, tmp_path: Path, stager: bool) -> None:
    for turn in range(2):
        assert ranks.run(rank_tasks.save_asynchronously, str(tmp_path), 2, 18 + turn, False, stager)[:2] == [[], []]


@takes(dcp.async_save, "async_checkpointer_type")
def test_asynchronous_saves_in_a_process_are_loaded(ranks: Ranks, tmp_path: Path) -> None:
    for turn in range(2):
        assert ranks.run(rank_tasks.save_asynchronously, str(tmp_path), 1, 20 + turn, True, False)[0] == []


def test_flipped_byte_raises_an_error_that_names_the_tensor(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 2, 22)
    infos = Reader(tmp_path).read_metadata().storage_data
    for name in ("rows", "columns", "objects.text", "dtypes.torch.bool", "scalar"):
        info = next(info for index, info in infos.items() if index.fqn == name)
        path = tmp_path / info.relative_path
        at = info.offset + info.fastio[0] + info.fastio[1] // 2
        _flip(path, at)
        for failures in ranks.run(rank_tasks.failure, rank_tasks.load, str(tmp_path), 2, 22)[:2]:
            kind, text = next(iter(failures.values()))
            assert kind == "CorruptFileError", text
            assert str(path) in text
            assert name in text
        _flip(path, at)
    assert ranks.run(rank_tasks.load, str(tmp_path), 2, 22)[0][0] == []


def test_flipped_byte_in_torchs_checkpoint_raises_an_error_that_names_the_tensor(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(rank_tasks.save, str(tmp_path), 2, 23, "torch")
    infos = Reader(tmp_path).read_metadata().storage_data
    for name in ("rows", "objects.text"):
        info = next(info for index, info in infos.items() if index.fqn == name)
        path = tmp_path / info.relative_path
        _flip(path, info.offset + info.length // 2)
        failures = ranks.run(rank_tasks.failure, rank_tasks.load, str(tmp_path), 2, 23)[0]
        kind, text = next(iter(failures.values()))
        assert (kind, name in text, str(path) in text) == ("CorruptFileError", True, True), text
        _flip(path, info.offset + info.length // 2)


def test_killed_rank_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder, pool = tmp_path / "checkpoint", tmp_path / "pool"
    pool.mkdir()
    with Ranks(2, pool, timeout=20) as doomed:
        doomed.run(rank_tasks.save, str(folder), 2, 24)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        survivor, killed = doomed.answers(rank_tasks.save_and_die, str(folder), 2, 25, 1)
        assert killed == (False, "ended with -9")
        assert not survivor[0]  # the survivor failed, and did not hang
    left = {path.name for path in folder.iterdir()} - before.keys()
    assert left  # data files existed at the time of the kill
    assert {name: (folder / name).read_bytes() for name in before} == before
    _alone(folder, 24)
    _save_alone(folder, 26)
    assert len(list(folder.iterdir())) == 2
    _alone(folder, 26)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of this single process, with seed 30."""
    _save_alone(tmp_path / "checkpoint", 30)
    return tmp_path / "checkpoint"


def test_missing_folder_or_metadata_raises(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        _load_alone(folder / "other")
    (folder / ".metadata").unlink()
    with pytest.raises(CheckpointError, match=r"\.metadata is missing beside 1 data files.*no save"):
        _load_alone(folder)
    with pytest.raises(CheckpointError, match="no save"):
        Reader(folder).read_metadata()
    with fastio.Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"found checkpoints of fastio\.Checkpointer: name the file of a step"):
        Reader(folder).read_metadata()


def test_missing_data_file_raises_and_is_named(folder: Path) -> None:
    (path,) = folder.glob("*.distcp")
    path.unlink()
    with pytest.raises(CheckpointError, match=re.escape(f"{path}: there is no such file")):
        _load_alone(folder)


def test_truncated_data_file_raises(folder: Path) -> None:
    (path,) = folder.glob("*.distcp")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(CorruptFileError, match=r"the checkpoint has it at bytes \d+ to \d+, but the file has \d+"):
        _load_alone(folder)


def test_changed_byte_of_the_metadata_raises(folder: Path) -> None:
    path = folder / ".metadata"
    data = path.read_bytes()
    for at in (*range(0, len(data), 97), *range(len(data) - 24, len(data))):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptFileError):
            Reader(folder).read_metadata()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError):
        _load_alone(folder)


def test_data_that_does_not_match_the_metadata_raises(folder: Path) -> None:
    # DCP's planner does not check the metadata.
    metadata = Reader(folder).read_metadata()
    entry = metadata.state_dict_metadata["rows"]
    entry.size = entry.chunks[0].sizes = torch.Size((1000, 37))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptFileError, match=r"'rows'.*shape \[37, 1000\]"):
        _raise_cause(lambda: dcp.load({"rows": torch.empty(1000, 37)}, storage_reader=Reader(folder)))


def test_transformed_items_raise_and_name_the_transformation(folder: Path) -> None:
    metadata = Reader(folder).read_metadata()
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UnsupportedError, match="transformed by zstd"):
        _load_alone(folder)


def test_damaged_tensor_loads_without_verify(folder: Path) -> None:
    info = next(i for x, i in Reader(folder).read_metadata().storage_data.items() if x.fqn == "rows")
    _flip(folder / info.relative_path, info.offset + info.fastio[0])
    with pytest.raises(CorruptFileError, match="rows"):
        _load_alone(folder)
    state = _load_alone(folder, verify=False)
    assert rank_tasks.differences(state, 30) == [".rows"]


def test_failed_write_leaves_the_checkpoint_before(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(TransferError, match="File too large"):
            _save_alone(folder, 31)
        with pytest.raises(TransferError, match="File too large"):
            _save_alone(folder.parent / "new" / "deeper", 31)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not (folder.parent / "new").exists()


@takes(dcp.save, "no_dist")
def test_kills_at_random_moments_leave_a_complete_checkpoint(tmp_path: Path) -> None:
    folder, pool = tmp_path / "checkpoint", tmp_path / "pool"
    pool.mkdir()
    with Ranks(1, pool) as alone:
        ((interrupted, wrong),) = alone.run(rank_tasks.kill_savers, str(folder), KILLS)
    assert wrong == []
    assert interrupted == KILLS
    _save_alone(folder, 42)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", ["fastio", "torch"])
def test_any_flipped_byte_raises_or_changes_nothing(tmp_path: Path, kind: str) -> None:
    state = {"large": tensor_of(torch.float32, 50, 100), "small": tensor_of(torch.int16, 9), "object": "text"}
    _raise_cause(lambda: dcp.save(state, storage_writer=rank_tasks.writer(str(tmp_path), kind)))
    (path,) = tmp_path.glob("*.distcp")
    chance, detected = random.Random(kind), 0
    for _ in range(150):
        at = chance.randrange(path.stat().st_size)
        _flip(path, at)
        loaded = {"large": torch.zeros(50, 100), "small": torch.zeros(9, dtype=torch.int16), "object": ""}
        try:
            _raise_cause(lambda loaded=loaded: dcp.load(loaded, storage_reader=Reader(tmp_path)))
        except CorruptFileError:
            detected += 1
        else:
            assert all(torch.equal(loaded[name], state[name]) for name in ("large", "small")), at
            assert loaded["object"] == "text", at
        _flip(path, at)
    assert detected > 50


def test_later_of_two_concurrent_saves_is_complete_and_the_other_is_removed(folder: Path) -> None:
    """The later commit is complete: its data file is not removed as a leftover, and the other's file is removed."""

    def meanwhile(done: int, total: int) -> None:
        if done == total:
            _save_alone(folder, 33)
            _alone(folder, 33)

    _raise_cause(lambda: dcp.save(rank_tasks.whole(34), storage_writer=Writer(folder, progress=meanwhile)))
    _alone(folder, 34)
    assert len(list(folder.iterdir())) == 2


def test_dcp_to_torch_save_converts_fastios_checkpoint(folder: Path, tmp_path: Path) -> None:
    dcp_to_torch_save(str(folder), tmp_path / "one.pt")
    assert rank_tasks.differences(fastio.load(tmp_path / "one.pt"), 30) == []


def test_lazy_views_and_other_strides_round_trip(tmp_path: Path) -> None:
    state = {
        "conjugate": tensor_of(torch.complex64, 6).conj(),
        "negative": tensor_of(torch.complex64, 4).conj().imag,
        "parameter": torch.nn.Parameter(torch.arange(70_000.0).reshape(70, 1000)),
        "channels_last": torch.arange(4 * 3 * 50 * 50.0).reshape(4, 3, 50, 50).to(memory_format=torch.channels_last),
    }
    _raise_cause(lambda: dcp.save(state, storage_writer=Writer(tmp_path)))
    loaded = {name: torch.zeros_like(value).detach() for name, value in state.items()}
    _raise_cause(lambda: dcp.load(loaded, storage_reader=Reader(tmp_path)))
    for name, value in state.items():
        assert torch.equal(loaded[name], value.detach().resolve_conj().resolve_neg()), name
        assert loaded[name].stride() == torch.zeros_like(value).stride()


class Boxes(dcp.DefaultLoadPlanner):
    """Loads only these boxes of its tensors: for each name a list of (offsets, lengths)."""

    def __init__(self, boxes: dict[str, list[tuple[list[int], list[int]]]]) -> None:
        super().__init__()
        self._boxes = boxes

    def create_local_plan(self) -> LoadPlan:
        whole = {item.storage_index.fqn: item for item in super().create_local_plan().items}
        return LoadPlan(
            [
                dataclasses.replace(
                    whole[name],
                    dest_offsets=torch.Size(at),
                    storage_offsets=torch.Size(at),
                    lengths=torch.Size(lengths),
                )
                for name, boxes in self._boxes.items()
                for at, lengths in boxes
            ]
        )


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", ["fastio", "torch"])
def test_random_boxes_of_tensors_are_loaded(tmp_path: Path, kind: str, verify: bool) -> None:
    large = tensor_of(torch.int32, 60, 50, 4)
    state = {
        "rows": large,
        "permuted": large.permute(2, 0, 1),
        "inner": large[3:50, :, 1:3],
        "one": large[:1, 5:6],
        "bytes": tensor_of(torch.uint8, 70_001),
        "scalar": torch.tensor(7.5),
        "converted": tensor_of(torch.bfloat16, 40, 30),
    }
    _raise_cause(lambda: dcp.save(state, storage_writer=rank_tasks.writer(str(tmp_path), kind)))
    chance = random.Random(kind)
    for _ in range(25):
        boxes: dict[str, list[tuple[list[int], list[int]]]] = {}
        expected = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in state.items()}
        for name, value in state.items():
            for _ in range(chance.choice([1, 1, 2])):
                at = [chance.choice([0, chance.randrange(length)]) for length in value.shape]
                lengths = [
                    chance.choice([length - begin, length - begin, 1, chance.randint(0, length - begin)])
                    for begin, length in zip(at, value.shape, strict=True)
                ]
                boxes.setdefault(name, []).append((at, lengths))
                box = tuple(slice(begin, begin + length) for begin, length in zip(at, lengths, strict=True))
                expected[name][box] = value[box].double()
        loaded = {
            name: torch.zeros(value.shape, dtype=torch.float32 if name == "converted" else value.dtype)
            for name, value in state.items()
        }
        reader = Reader(tmp_path, verify=verify)
        _raise_cause(
            lambda loaded=loaded, reader=reader, boxes=boxes: dcp.load(
                loaded, storage_reader=reader, planner=Boxes(boxes)
            )
        )
        for name, value in expected.items():
            assert torch.equal(loaded[name].double(), value), (name, boxes[name])


@pytest.mark.parametrize("checksums", [True, False])
def test_part_of_a_tensor_without_checksum_is_read_alone(tmp_path: Path, checksums: bool) -> None:
    state = {"rows": tensor_of(torch.int32, 100, 1000)}
    usual = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(checksums)
    try:
        _raise_cause(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path)))
    finally:
        torch.serialization.set_crc32_options(usual)
    loaded = {"rows": torch.zeros(100, 1000, dtype=torch.int32)}
    planner = Boxes({"rows": [([90, 0], [5, 1000])]})
    with fastio.record() as transfers:
        _raise_cause(lambda: dcp.load(loaded, storage_reader=Reader(tmp_path), planner=planner))
    assert sum(transfer.nbytes for transfer in transfers) == (100 if checksums else 5) * 4000
    assert [transfer.verified for transfer in transfers] == [checksums]
    assert torch.equal(loaded["rows"][90:95], state["rows"][90:95])
    assert loaded["rows"].count_nonzero() == loaded["rows"][90:95].count_nonzero()


@pytest.mark.parametrize("policy", ["uring", "posix"])
def test_loading_two_tensors_into_tied_ones_gives_one_of_the_values(tmp_path: Path, policy: str) -> None:
    if not any(tool.name == policy and tool.available for tool in fastio.tools()):
        pytest.skip(f"{policy} cannot be used here")
    state = {name: tensor_of(torch.uint8, 9 << 20, seed=seed) for seed, name in enumerate("ab")}
    _raise_cause(lambda: dcp.save(state, storage_writer=Writer(tmp_path)))
    # Memory on a page boundary allows direct I/O, without a copy in between.
    memory = torch.frombuffer(mmap.mmap(-1, 9 << 20), dtype=torch.uint8)
    loaded = {"a": memory, "b": memory}
    _raise_cause(lambda: dcp.load(loaded, storage_reader=Reader(tmp_path, policy=policy)))
    assert any(torch.equal(memory, value) for value in state.values())


@pytest.mark.parametrize("policy", ["uring", "posix"])
def test_loading_into_overlapping_tensors_succeeds(tmp_path: Path, policy: str) -> None:
    if not any(tool.name == policy and tool.available for tool in fastio.tools()):
        pytest.skip(f"{policy} cannot be used here")
    state = {name: tensor_of(torch.uint8, 8 << 20, seed=seed) for seed, name in enumerate("ab")}
    _raise_cause(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path)))
    for _ in range(8):
        memory = torch.zeros(12 << 20, dtype=torch.uint8)
        loaded = {"a": memory[: 8 << 20], "b": memory[4 << 20 :]}
        _raise_cause(lambda loaded=loaded: dcp.load(loaded, storage_reader=Reader(tmp_path, policy=policy)))
        assert torch.equal(memory[: 4 << 20], state["a"][: 4 << 20])
        assert torch.equal(memory[8 << 20 :], state["b"][4 << 20 :])


def test_loading_into_a_tensor_saved_for_backward_raises_in_backward(tmp_path: Path) -> None:
    state = {"weight": torch.full((64, 64), 5.0)}
    _raise_cause(lambda: dcp.save(state, storage_writer=Writer(tmp_path)))
    weight, given = torch.ones(64, 64), torch.ones(64, 64, requires_grad=True)
    loss = (given * weight).sum()
    _raise_cause(lambda: dcp.load({"weight": weight}, storage_reader=Reader(tmp_path)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_damaged_metadata_raises_even_beside_older_rank_metadata(folder: Path) -> None:
    _raise_cause(lambda: dcp.save(rank_tasks.whole(7), storage_writer=Writer(folder), use_collectives=False))
    _save_alone(folder, 30)
    content = bytearray((folder / ".metadata").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(CorruptFileError, match="metadata"):
        _alone(folder, 30)


def test_foreign_metadata_file_does_not_keep_old_data_files(folder: Path) -> None:
    (folder / "notes.metadata").write_text("mine")
    for seed in (31, 32):
        _save_alone(folder, seed)
    assert sum(name.suffix == ".distcp" for name in folder.iterdir()) == 1


def test_saving_sparse_tensors_raises_and_writes_nothing(tmp_path: Path) -> None:
    """No reader can load them, and torch's own writer refuses them too."""
    with pytest.raises(UnsupportedError, match=r"'rows'.*torch.sparse_coo.*to_dense"):
        _raise_cause(lambda: dcp.save({"rows": torch.eye(3).to_sparse()}, storage_writer=Writer(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_saving_a_tensor_without_data_raises_and_writes_nothing(tmp_path: Path) -> None:
    state = {"a": torch.ones(2), "m": torch.empty(2, device="meta")}
    with pytest.raises(FormatError, match=r"'m' has a shape, but no data"):
        _raise_cause(lambda: dcp.save(state, storage_writer=Writer(str(tmp_path / "saved")), no_dist=True))
    assert not list(tmp_path.glob("saved/*"))


def test_child_forked_during_a_commit_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    """A DataLoader made during a save forks such children."""
    with data_file.folder_lock(str(tmp_path)):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_save_reports_its_result_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with fastio.record() as transfers:
        dcp.save(
            rank_tasks.whole(32),
            storage_writer=Writer(tmp_path / "new" / "folder", progress=lambda *numbers: seen.append(numbers)),
        )
    (transfer,) = transfers
    assert (transfer.op, transfer.format, transfer.durable, transfer.verified) == ("save", "distcp", True, True)
    size = Path(transfer.path).stat().st_size
    assert seen[-1] == (size, size)
    assert size > transfer.nbytes


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def _raise_cause(call: Any) -> Any:
    """Call, and raise the error that DCP's exception wraps."""
    try:
        return call()
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def _save_alone(folder: Path, seed: int) -> None:
    _raise_cause(lambda: dcp.save(rank_tasks.whole(seed), storage_writer=Writer(folder)))


def _load_alone(folder: Path, **options: Any) -> dict[str, Any]:
    state = rank_tasks.whole(1000)
    _raise_cause(lambda: dcp.load(state, storage_reader=Reader(folder, **options)))
    return state


def _alone(folder: Path, seed: int) -> None:
    assert rank_tasks.differences(_load_alone(folder), seed) == []
