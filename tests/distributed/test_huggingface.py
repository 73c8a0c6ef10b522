"""Checkpoints in safetensors: DCP's writer and reader in real processes, and consolidation; torch's are the oracle."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.api import CheckpointException

import fastio
from fastio.distributed import HuggingFaceReader, HuggingFaceWriter, consolidate
from fastio.errors import CheckpointError, CorruptFileError, FormatError, UnsupportedError
from fastio.models.conversion import woven
from objects import same_bits, tensor_of
from ranks import WORLD, RankError, Ranks

hf_storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage", reason="torch has no such storage yet")
theirs = pytest.importorskip("torch.distributed.checkpoint._consolidate_hf_safetensors")
import shard_tasks  # noqa: E402 - it imports torch's storage

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),
]
LIST = "fastio.shards.json"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of four ranks, by who wrote them. Tests must not change them."""
    folder = tmp_path_factory.mktemp("saved")
    for seed, kind in enumerate(("fastio", "torch")):
        ranks.run(shard_tasks.save, str(folder / kind), WORLD, seed, kind)
    return {"fastio": folder / "fastio", "torch": folder / "torch"}


SEEDS = {"fastio": 0, "torch": 1}


@pytest.mark.parametrize(("written", "read"), [("fastio", "fastio"), ("fastio", "torch"), ("torch", "fastio")])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_any_number_of_ranks_loads_what_four_saved(
    ranks: Ranks, saved: dict[str, Path], written: str, read: str, after: int
) -> None:
    for wrong, nbytes, _, verified in ranks.run(shard_tasks.load, str(saved[written]), after, SEEDS[written], read)[
        :after
    ]:
        assert wrong == []
        assert (nbytes > 0) == (read == "fastio")
        assert verified == (written == "fastio" or read == "torch")


def test_two_ranks_read_little_more_than_they_need_of_what_four_saved(ranks: Ranks, saved: dict[str, Path]) -> None:
    answers = ranks.run(shard_tasks.load, str(saved["fastio"]), 2, 0)[:2]
    assert sum(read for _, read, _, _ in answers) <= 1.05 * sum(held for *_, held, _ in answers)


def test_files_and_headers_are_those_of_torch(saved: dict[str, Path]) -> None:
    names = [f"shard-{shard:05d}-model-00001-of-00001.safetensors" for shard in range(1, 5)]
    assert sorted(os.listdir(saved["torch"])) == names
    assert sorted(os.listdir(saved["fastio"])) == [LIST, *names]
    for name in names:
        with fastio.safe_open(saved["fastio"] / name) as ours, fastio.safe_open(saved["torch"] / name) as other:
            keys = ("DCP_SHARDING_INFO", "DCP_VERSION", "format")
            mine, text = ours.metadata() or {}, other.metadata() or {}
            assert {key: mine[key] for key in keys[1:]} == {key: text[key] for key in keys[1:]}
            assert json.loads(mine[keys[0]]) == json.loads(text[keys[0]])


@pytest.mark.parametrize("written", ["fastio", "torch"])
@pytest.mark.parametrize("together", [False, True], ids=["one rank", "all ranks"])
def test_consolidation_makes_a_model_of_whole_tensors(
    ranks: Ranks, saved: dict[str, Path], tmp_path: Path, written: str, together: bool
) -> None:
    expected = shard_tasks.whole(SEEDS[written])
    mapping = {name: number % 3 + 1 for number, name in enumerate(expected)}
    out = tmp_path / "new" / "model"
    if together:
        answers = ranks.run(
            shard_tasks.consolidate_together, str(saved[written]), str(out), {"fqn_to_index_mapping": mapping}
        )
        assert sum(written > 0 for written, _, _ in answers) == 3  # of four ranks: there are three files
        assert sum(written for written, _, _ in answers) == sum(value.nbytes for value in expected.values())
        assert {verified for _, verified, _ in answers} == {written == "fastio"}
    else:
        found = consolidate(saved[written], out, mapping)
        assert (found.tensors, found.verified) == (len(expected), written == "fastio")
        assert found.nbytes == sum(value.nbytes for value in expected.values())
    files = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(os.listdir(out)) == [*files, INDEX]
    loaded = {name: tensor for file in files for name, tensor in load_file(out / file).items()}
    assert_equal(loaded, expected)
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"] == {name: files[number - 1] for name, number in mapping.items()}
    assert fastio.verify(out / files[0]).checksummed
    oracle = tmp_path / "oracle"
    oracle.mkdir()
    theirs.consolidate_safetensors_files(str(saved[written]), str(oracle), mapping)
    others = {name: tensor for file in files for name, tensor in load_file(oracle / file).items()}
    others["scalar"] = expected["scalar"]  # torch's consolidation writes a zero
    assert_equal(others, loaded)
    assert json.loads((oracle / INDEX).read_text()) == index


def test_ranks_that_consolidate_all_fail_and_leave_nothing(
    ranks: Ranks, saved: dict[str, Path], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in os.listdir(saved["fastio"]):
        (damaged / name).write_bytes((saved["fastio"] / name).read_bytes())
    with open(damaged / "shard-00002-model-00001-of-00001.safetensors", "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\xff\xfe\xff")
    mapping = {name: number + 1 for number, name in enumerate(shard_tasks.whole(0))}
    with pytest.raises(RankError) as caught:
        ranks.run(
            shard_tasks.consolidate_together,
            str(damaged),
            str(tmp_path / "a" / "b"),
            {"fqn_to_index_mapping": mapping},
        )
    for rank in range(WORLD):
        caught.match(rf"rank {rank}: [\s\S]*CorruptFileError: .*shard-00002")
    assert os.listdir(tmp_path) == ["damaged"]


def test_writer_consolidates_by_itself(ranks: Ranks, tmp_path: Path) -> None:
    for seed in (3, 4):
        ranks.run(shard_tasks.save, str(tmp_path), WORLD, seed, "fastio", {"enable_consolidation": True})
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "sharded"]
    assert_equal(load_file(tmp_path / "model.safetensors"), shard_tasks.whole(4))
    assert len(os.listdir(tmp_path / "sharded")) == WORLD + 1
    for folder in (tmp_path, tmp_path / "sharded"):
        assert ranks.run(shard_tasks.load, str(folder), 2, 4)[0][0] == []


def test_copies_on_all_ranks_make_a_model_without_consolidation(ranks: Ranks, tmp_path: Path) -> None:
    for seed in (5, 6):
        ranks.run(shard_tasks.save_copies, str(tmp_path), WORLD, seed)
        index = json.loads((tmp_path / INDEX).read_text())
        assert sorted(os.listdir(tmp_path)) == [*sorted(set(index["weight_map"].values())), INDEX]
        with fastio.safe_open(tmp_path) as files:
            assert_equal(files.get_tensors(), shard_tasks.whole(seed))
    for read in ("fastio", "torch"):
        assert ranks.run(shard_tasks.load, str(tmp_path), 4, 6, read)[0][0] == []
    mapping = dict.fromkeys(shard_tasks.whole(0), 1)
    with pytest.raises(RankError, match="fqn_to_index_mapping puts tensors of the ranks"):
        ranks.run(shard_tasks.save_copies, str(tmp_path), WORLD, 7, {"fqn_to_index_mapping": mapping})


def test_killed_rank_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder, pool = tmp_path / "checkpoint", tmp_path / "pool"
    pool.mkdir()
    with Ranks(2, pool, timeout=20) as doomed:
        doomed.run(shard_tasks.save, str(folder), 2, 8)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        survivor, killed = doomed.answers(shard_tasks.save_and_die, str(folder), 2, 9, 1)
        assert killed == (False, "ended with -9")
        assert not survivor[0]
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert_equal(load_alone(folder), shard_tasks.whole(8))
    save_alone(folder, shard_tasks.whole(10))  # removes what the dead rank left
    assert sorted(os.listdir(folder)) == ["model-00001-of-00001.safetensors", INDEX]
    assert_equal(load_alone(folder), shard_tasks.whole(10))


KINDS: dict[str, dict[str, Any]] = {
    "one file": {},
    "two files": {"fqn_to_index_mapping": {"a": 1, "b": 2}},
    "parts": {"save_distributed": True},
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("two files", "two files"),
        ("parts", "parts"),
        ("two files", "parts"),
        ("parts", "one file"),
        ("one file", "one file"),
    ],
)
def test_kill_at_any_step_of_a_save_leaves_one_of_both_checkpoints(tmp_path: Path, old: str, new: str) -> None:
    """Forked processes end before the first, the second … call that changes a name in the folder."""
    states = [{"a": torch.full((5, 4), float(seed)), "b": torch.full((7,), float(seed))} for seed in (1, 2)]
    save_alone(tmp_path / "old", states[0], **KINDS[old])
    for cut in range(40):
        folder = tmp_path / str(cut)
        shutil.copytree(tmp_path / "old", folder)
        child = os.fork()
        if not child:
            end_at(cut)
            try:
                save_alone(folder, states[1], **KINDS[new])
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        found = load_alone(folder, {"a": torch.zeros(5, 4), "b": torch.zeros(7)})
        assert any(torch.equal(found["a"], s["a"]) and torch.equal(found["b"], s["b"]) for s in states), cut
        if os.waitstatus_to_exitcode(status):  # all of the save was done
            assert torch.equal(found["a"], states[1]["a"])
            break
        if cut % 3:
            continue
        save_alone(folder, states[0], **KINDS[new])
        found = load_alone(folder, {"a": torch.zeros(5, 4), "b": torch.zeros(7)})
        assert torch.equal(found["a"], states[0]["a"])
        assert not [name for name in os.listdir(folder) if name.endswith((".part", "99999.safetensors"))]
    else:
        pytest.fail("the save has more steps than expected")
    assert cut > 3


def end_at(cut: int) -> None:
    """End this process, a child, at the call of that number that renames, links or removes a file."""
    left = [cut]

    def ending(name: str) -> None:
        original = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not left[0]:
                os._exit(0)
            left[0] -= 1
            return original(*arguments, **options)

        setattr(os, name, call)

    for name in ("rename", "replace", "link", "unlink"):
        ending(name)


@pytest.mark.parametrize("seed", range(4))
def test_tensors_in_boxes_of_any_kind_are_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Tensors of up to four dimensions, cut at random in each of them, their parts scattered over files."""
    chance = random.Random(seed)
    monkeypatch.setattr(woven, "_STRIP", chance.choice([64, 300, 5000, 1 << 20]))
    expected: dict[str, torch.Tensor] = {}
    files: list[dict[str, tuple[list[int], torch.Tensor]]] = [{} for _ in range(3**4)]
    for dtype in (torch.float64, torch.int32, torch.bfloat16, torch.int8, torch.bool):
        name, shape = str(dtype), [chance.randint(1, 9) for _ in range(chance.randint(1, 4))]
        expected[name] = tensor_of(dtype, *shape, seed=seed)
        cuts = [sorted({0, size, *(chance.randint(0, size) for _ in range(2))}) for size in shape]
        boxes = list(product(*map(pairwise, cuts)))
        for number, box in zip(chance.sample(range(len(files)), len(boxes)), boxes, strict=True):
            part = expected[name][tuple(slice(*edges) for edges in box)]
            files[number][name] = [begin for begin, _ in box], part.contiguous()
    folder = tmp_path / "parts"
    folder.mkdir()
    for number, content in enumerate(files):
        info = {name: {"saved_offsets": offsets} for name, (offsets, _) in content.items()}
        tensors = {name: part for name, (_, part) in content.items()}
        save_file(tensors, folder / f"{number}.safetensors", {"DCP_SHARDING_INFO": json.dumps(info)})
    consolidate(folder, tmp_path / "out")
    assert_equal(load_file(tmp_path / "out" / "model.safetensors"), expected)
    state = {name: torch.zeros_like(value) for name, value in expected.items()}
    assert_equal(load_alone(folder, state), expected)


def test_consolidation_removes_what_a_killed_one_left_of_another_number_of_files(tmp_path: Path) -> None:
    save_alone(tmp_path / "parts", {"a": torch.ones(2)}, save_distributed=True)
    out = tmp_path / "out"
    consolidate(tmp_path / "parts", out)
    left = [f".model-0000{number}-of-00002.safetensors.fastio-0.tmp" for number in (1, 2)]
    others = [".notes.safetensors.fastio-0.tmp", ".model.safetensors.tmp"]
    for name in (*left, *others):
        (out / name).write_bytes(b"left")
    with open(out / left[1]) as held:  # of a save that runs
        fcntl.flock(held, fcntl.LOCK_EX)
        consolidate(tmp_path / "parts", out, force=True)
    assert sorted(os.listdir(out)) == sorted([left[1], *others, "model.safetensors"])


MEMORY = """
import sys
from fastio.distributed import consolidate

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

consolidate(sys.argv[1], sys.argv[2])  # for late imports
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
consolidate(sys.argv[3], sys.argv[4])
print(status("VmHWM") - before)
"""


def test_memory_of_consolidation_is_bounded(tmp_path: Path) -> None:
    """Also of columns, of which a strip at a time is in memory."""
    for name, rows in (("small", 2), ("large", 1 << 15)):
        (tmp_path / name).mkdir()
        for rank in range(2):
            info = {"w": {"saved_offsets": [0, 1024 * rank]}}
            part = {"w": torch.full((rows, 1024), float(rank))}
            save_file(part, tmp_path / name / f"{rank}.safetensors", {"DCP_SHARDING_INFO": json.dumps(info)})
    paths = [f"{tmp_path}/{name}" for name in ("small", "small-out", "large", "large-out")]
    said = subprocess.run([sys.executable, "-c", MEMORY, *paths], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(said) < 160 << 20  # of 256 MiB
    with fastio.safe_open(tmp_path / "large-out") as files:
        row = files.get_slice("w")[-1]
    assert row.tolist() == [0.0] * 1024 + [1.0] * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parts of one rank."""
    save_alone(tmp_path / "folder", shard_tasks.whole(1), save_distributed=True)
    return tmp_path / "folder"


def test_flipped_byte_raises_an_error_that_names_the_tensor(folder: Path, tmp_path: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff")
    for call in (lambda: load_alone(folder), lambda: consolidate(folder, tmp_path / "out")):
        with pytest.raises(CorruptFileError, match=rf"{path}: .*CRC-32"):
            call()
    assert not (tmp_path / "out").exists()
    assert load_alone(folder, verify=False).keys() == shard_tasks.whole(1).keys()


def test_missing_and_mixed_files_raise(folder: Path, tmp_path: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    content = path.read_bytes()
    path.rename(tmp_path / path.name)
    with pytest.raises(CheckpointError, match=f"{path}: there is no such file"):
        load_alone(folder)
    path.write_bytes(content)
    (folder / "shard-00009-model-00001-of-00001.safetensors").write_bytes(content)  # not in the list
    assert_equal(load_alone(folder), shard_tasks.whole(1))
    (folder / LIST).unlink()
    for call in (lambda: load_alone(folder), lambda: consolidate(folder, tmp_path / "out")):
        with pytest.raises(CorruptFileError, match="files of two saves are mixed"):
            call()


def test_parts_with_holes_raise(tmp_path: Path) -> None:
    for number, at in enumerate((0, 4)):
        info = {"w": {"saved_offsets": [at]}}
        save_file({"w": torch.ones(3)}, tmp_path / f"{number}.safetensors", {"DCP_SHARDING_INFO": json.dumps(info)})
    with pytest.raises(CorruptFileError, match=r"'w': its 2 parts do not fill its shape \[7\]"):
        load_alone(tmp_path, {"w": torch.zeros(7)})


@pytest.mark.parametrize("info", ["no", "[]", '{"w": {}}', '{"w": {"saved_offsets": [-1]}}', '{"w": 3}', "{}"])
def test_offsets_that_are_none_raise(tmp_path: Path, info: str) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors", {"DCP_SHARDING_INFO": info})
    with pytest.raises(CorruptFileError, match=r"a\.safetensors.*DCP_SHARDING_INFO"):
        load_alone(tmp_path, {"w": torch.zeros(3)})


def test_what_safetensors_cannot_hold_is_refused_and_nothing_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    tied = torch.ones(3)
    for state, options, said in (
        ({"a": torch.ones(2), "step": 3}, {}, "'step' is no tensor"),
        ({"a": tied, "b": tied}, {}, "share memory"),
        ({}, {}, "there is no tensor to save"),
        ({"a": tied, "m": torch.empty(2, device="meta")}, {}, "'m' has a shape, but no data"),
        ({"a": tied}, {"fqn_to_index_mapping": {"b": 1}}, "fqn_to_index_mapping lacks 1 of 1 tensors, 'a'"),
    ):
        with pytest.raises((FormatError, ValueError), match=said):
            save_alone(folder, state, **options)
        assert os.listdir(tmp_path) == []


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs save_distributed=True"):
        HuggingFaceWriter(tmp_path, enable_consolidation=True)
    with pytest.raises(ValueError, match="numbered from 1"):
        HuggingFaceWriter(tmp_path, {"a": 0})
    with pytest.raises(TypeError, match="an int"):
        HuggingFaceWriter(tmp_path, {"a": "1"})  # type: ignore[dict-item]
    save_alone(tmp_path, {"a": torch.ones(2)})
    with pytest.raises(RuntimeError, match="already exists"):
        save_alone(tmp_path, {"a": torch.ones(2)}, overwrite=False)
    save_alone(tmp_path / "parts", {"a": torch.ones(2)}, save_distributed=True)
    with pytest.raises(FileExistsError, match="force=True"):
        consolidate(tmp_path / "parts", tmp_path)
    with pytest.raises(UnsupportedError, match="file of the source"):
        consolidate(tmp_path, tmp_path, force=True)
    with pytest.raises(CheckpointError, match="this is a file; expected a folder"):
        consolidate(tmp_path / "model-00001-of-00001.safetensors", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no file of safetensors"):
        load_alone(tmp_path / "empty")
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(0, {"w": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"found checkpoints of fastio\.Checkpointer: name the file of a step"):
        consolidate(tmp_path / "run", tmp_path / "out")


def test_load_of_a_rank_is_its_part_of_a_models_folder(tmp_path: Path) -> None:
    """Any model of safetensors, as from a hub, without the library having saved it."""
    expected = {"a": tensor_of(torch.bfloat16, 8, 5), "b": torch.arange(3)}
    save_file(expected, tmp_path / "model.safetensors")
    assert_equal(load_alone(tmp_path, {"a": torch.zeros(8, 5).bfloat16(), "b": torch.zeros(3).long()}), expected)


def test_convert_takes_parts_of_ranks(folder: Path, tmp_path: Path) -> None:
    fastio.convert(folder, tmp_path / "one.pt")
    assert_equal(torch.load(tmp_path / "one.pt"), shard_tasks.whole(1))


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert same_bits(found[name], value), name


def cause(call: Any) -> Any:
    """Call, and raise the error that DCP's exception wraps."""
    try:
        return call()
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def save_alone(folder: Path, state: dict[str, Any], **options: Any) -> None:
    cause(lambda: dcp.save(state, storage_writer=HuggingFaceWriter(folder, **options)))


def load_alone(folder: Path, state: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    into = {name: torch.zeros_like(value) for name, value in shard_tasks.whole(0).items()} if state is None else state
    cause(lambda: dcp.load(into, storage_reader=HuggingFaceReader(folder, **options)))
    return into
