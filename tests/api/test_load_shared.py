"""load(into="shared"): bits, checksums, other processes, a full /dev/shm, and nothing left behind."""

from __future__ import annotations

import errno
import gc
import io
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.multiprocessing as mp

import fastio
import warm_python
from fastio.memory import load_buffers
from interrupting import descriptors
from objects import DTYPES, same, tensor_of


@pytest.fixture(params=sorted(mp.get_all_sharing_strategies()))
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(request.param)
    yield request.param
    mp.set_sharing_strategy(before)


def segments() -> set[str]:
    """Shared memory of this process: names, and open descriptors of names that are gone."""
    gc.collect()
    named = {name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_")}
    return named | {name for name in descriptors() if name.startswith("/dev/shm/")}


def state() -> dict[str, Any]:
    base = torch.randn(60, 50)
    tensors = {f"{number}": tensor_of(dtype, 9, 7) for number, dtype in enumerate(DTYPES)}
    return {**tensors, "rows": base[3:20], "turned": base.t(), "large": torch.randn(3_000_000), "step": 3}


@pytest.mark.parametrize("policy", ["auto", "posix", "uring"])
def test_a_pt_is_shared_verified_and_freed(tmp_path: Path, strategy: str, policy: str) -> None:
    expected, before = state(), segments()
    torch.save(expected, tmp_path / "a.pt")
    with fastio.record() as transfers:
        found = fastio.load(tmp_path / "a.pt", into="shared", policy=policy)
    assert transfers[0].verified
    assert same(found, expected)
    assert all(tensor.is_shared() for tensor in found.values() if isinstance(tensor, torch.Tensor))
    assert found["rows"].untyped_storage().data_ptr() == found["turned"].untyped_storage().data_ptr()
    assert len(segments() - before) == len(DTYPES) + 2
    large = found.pop("large")
    del found
    assert len(segments() - before) == 1
    large.add_(1)
    assert torch.equal(large, expected["large"] + 1)
    del large
    assert segments() == before


def test_the_other_formats(tmp_path: Path, strategy: str) -> None:
    tensors = {"a": torch.randn(100), "b": tensor_of(torch.bfloat16, 3, 5), "none": torch.empty(0, 2)}
    fastio.save_file(tensors, tmp_path / "a.safetensors")
    safetensors.torch.save_file(tensors, tmp_path / "theirs.safetensors")
    np.save(tmp_path / "a.npy", np.asfortranarray(np.arange(30.0).reshape(5, 6)))
    for name in ("a", "theirs"):
        found = fastio.load_file(tmp_path / f"{name}.safetensors", into="shared")
        assert same(found, fastio.load_file(tmp_path / f"{name}.safetensors"))
        assert all(tensor.is_shared() for tensor in found.values())
    assert list(fastio.load(tmp_path / "a.safetensors", keys=["b"], into="shared")) == ["b"]
    array = fastio.load(tmp_path / "a.npy", into="shared")
    assert array.is_shared()
    assert np.array_equal(array.numpy(), np.load(tmp_path / "a.npy"))


CHILD = """
import sys, torch, fastio, torch.multiprocessing as mp

def change(queue, done):
    tensor = queue.get()
    assert tensor.is_shared()
    tensor.mul_(2)
    del tensor
    done.set()

if __name__ == "__main__":
    mp.set_sharing_strategy(sys.argv[2])
    context = mp.get_context("fork")
    tensor = fastio.load(sys.argv[1], into="shared")["a"]
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=change, args=(queue, done))
    child.start()
    queue.put(tensor)
    assert done.wait(300)
    child.join()
    assert child.exitcode == 0
    assert torch.equal(tensor, 2 * torch.arange(1000)), tensor
"""


def test_another_process_reads_and_writes_it(tmp_path: Path, strategy: str) -> None:
    torch.save({"a": torch.arange(1000)}, tmp_path / "a.pt")
    ended = warm_python.run(CHILD, str(tmp_path / "a.pt"), strategy)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_damage_is_an_error_and_leaves_nothing(tmp_path: Path, strategy: str, name: str) -> None:
    tensors = {"a": torch.ones(10_000), "b": torch.randn(20_000)}
    fastio.save(tensors, tmp_path / name)
    raw = bytearray((tmp_path / name).read_bytes())
    raw[raw.index(tensors["b"].numpy().tobytes()) + 50_000] ^= 1
    (tmp_path / name).write_bytes(raw)
    before = segments()
    match = "data/1" if name == "a.pt" else "'b'"
    with pytest.raises(fastio.CorruptFileError, match=match) as caught:
        fastio.load(tmp_path / name, into="shared")
    assert segments() == before
    del caught  # its traceback kept no memory


@pytest.mark.parametrize("raced", [False, True])
def test_a_full_disk_of_shared_memory_is_an_error(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch, raced: bool
) -> None:
    """A sparse file has more bytes than shared memory has room."""
    disk = os.statvfs("/dev/shm")
    count = 2 * disk.f_blocks * disk.f_frsize
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (count,)})
        try:
            file.truncate(file.tell() + count)
        except OSError:
            pytest.skip("the filesystem has no file of that size")
    before = segments()
    if raced:  # another process took the room after it was looked for
        monkeypatch.setattr(load_buffers, "check_room", lambda path, nbytes: None)
    said = r"reserving .* of shared memory for .* \(/dev/shm has .* free: .*--shm-size.*No space left"
    with pytest.raises(fastio.TransferError, match=said) as caught:
        fastio.load(tmp_path / "a.npy", into="shared")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "a.npy"))
    # torch leaves a descriptor of a segment that it could not make, whose name is removed.
    left = [name for name in segments() - before if not name.endswith("(deleted)")]
    assert not left
    assert raced or segments() == before


def test_too_many_open_files_is_an_error_with_the_cure(tmp_path: Path) -> None:
    if mp.get_sharing_strategy() != "file_descriptor":
        pytest.skip("only this strategy keeps a file open for each tensor")
    torch.save({f"{n}": torch.ones(2) for n in range(300)}, tmp_path / "a.pt")
    before, limits = segments(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(descriptors()) + 100, limits[1]))
    try:
        match = r"set_sharing_strategy.'file_system'.*Too many open files"
        with pytest.raises(fastio.TransferError, match=match):
            fastio.load(tmp_path / "a.pt", into="shared")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert segments() == before


def test_what_excludes_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"a": torch.ones(3)}, path)
    torch.save({"a": torch.ones(3)}, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (path, {"map_location": "meta"}, "into='shared' is host memory, got map_location='meta'"),
        (path, {"map_location": {"cpu": "cpu"}}, "is host memory, got map_location="),
        (path, {"mmap": True}, "mmap=True maps the file"),
        (path, {"policy": "torch"}, r"torch reads this file by itself .*share_memory_\(\)"),
        (tmp_path / "legacy.pt", {}, "torch reads this file by itself .*legacy"),
        (io.BytesIO(path.read_bytes()), {}, "needs a path, got a file object"),
    ]
    for where, options, match in cases:
        with pytest.raises(fastio.FastIOError, match=match):
            fastio.load(where, into="shared", **options)
    with pytest.raises(ValueError, match="into='disk': expected 'pinned', 'shared' or None"):
        fastio.load(path, into="disk")
    assert fastio.load(path, "cpu", into="shared")["a"].is_shared()
    if not torch.cuda.is_available():
        with pytest.raises(fastio.ToolUnavailableError, match=r"CUDA.*load without into='pinned'"):
            fastio.load(path, into="pinned")
