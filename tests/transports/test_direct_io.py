"""The alignment of direct I/O by statx: large alignments, files without direct I/O, kernels that do not report it."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastio
from benching import on_disk
from fastio.files import direct_io
from fastio.inspect import machine_checks as checks
from fastio.offload.stores.block_store import BlockStore
from faults import ALWAYS, NOTHING, Fault, Server, objects

NBYTES = 9 << 20  # several requests in flight, and a last one with a partial page


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Path]:
    """An ext4 filesystem with journaled data: it opens files with O_DIRECT, but then uses the page cache."""
    folder, image = tmp_path / "disk", tmp_path / "image"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    if os.geteuid() != 0:
        pytest.skip("only root may mount a filesystem")
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop,data=journal", image, folder]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{command[0]} is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def alignment_of(answer: int) -> Fault:
    """Make statx report that alignment of direct I/O, and the ring reject any other."""
    return Fault("alignment", answer, times=ALWAYS)


@pytest.mark.parametrize("op", ["save", "load"])
@pytest.mark.parametrize(("form", "answer"), [("pt", 8192), ("pt", 1 << 20), ("safetensors", 1 << 20), ("npy", 8192)])
def test_larger_alignments_are_obeyed(server: Server, tmp_path: Path, op: str, form: str, answer: int) -> None:
    path = tmp_path / f"it.{form}"
    objects.write(objects.make(objects.OLD, NBYTES, form), path)
    arguments = {"nbytes": NBYTES} if op == "save" else {}
    result = server.run(op, alignment_of(answer), path=str(path), policy="uring", **arguments)
    assert result["error"] is None
    assert result["strikes"] >= 1
    assert result["transfers"][-1]["route"] == "direct"
    assert result["found"] == (objects.NEW if op == "save" else objects.OLD)
    assert (result["next"], result["leaked"], result["beside"]) == (objects.OLD, [], [])


@pytest.mark.parametrize("op", ["save", "load"])
@pytest.mark.parametrize("answer", [NOTHING, 3 * 4096, 2 << 20])
def test_uring_refuses_files_without_usable_direct_io(server: Server, tmp_path: Path, op: str, answer: int) -> None:
    path = tmp_path / "it.pt"
    objects.write(objects.make(objects.OLD), path)
    result = server.run(
        op, alignment_of(answer), Fault("direct", errno.EIO, times=ALWAYS), path=str(path), policy="uring"
    )
    assert result["strikes"] >= 1
    assert "RefusedError" in result["error"]["bases"], result["error"]
    assert str(path) in result["error"]["message"]
    assert ("takes no direct I/O" if answer == NOTHING else f"{answer} bytes") in result["error"]["message"]
    assert (result["next"], result["leaked"], result["beside"]) == (objects.OLD, [], [])


@pytest.mark.parametrize(("answer", "why"), [(NOTHING, "takes no direct I/O"), (8192, "aligned to 8192 bytes")])
def test_pinned_uses_the_page_cache_without_usable_direct_io(
    server: Server, tmp_path: Path, answer: int, why: str
) -> None:
    faults = alignment_of(answer), Fault("direct", errno.EIO, times=ALWAYS)
    result = server.run("bounce", *faults, path=str(tmp_path / "file"))
    assert (result["error"], result["right"]) == (None, True)
    assert len(result["notes"]) == 2
    assert all(note.startswith("through the page cache: ") and why in note for note in result["notes"])


def test_a_filesystem_without_direct_io_uses_the_page_cache(journaled: Path) -> None:
    path = journaled / "it.pt"
    obj = {"ones": torch.ones(3 << 18)}
    with pytest.raises(fastio.FastIOError, match=f"uring: .*{path} takes no direct I/O"):
        fastio.save(obj, path, policy="uring")
    assert list(journaled.glob("*.pt")) == []
    assert fastio.save(obj, path).route != "direct"
    with pytest.raises(fastio.FastIOError, match=f"uring: .*{path} takes no direct I/O"):
        fastio.load(path, policy="uring")
    with BlockStore(journaled) as store:
        assert store.notes == (f"{journaled}: no direct I/O, so through the page cache",)
    assert checks.direct_io(journaled) == (
        f"{journaled} takes no direct I/O, its filesystem says; saves and loads go through the page cache"
    )


def test_doctor_reports_the_disks_alignment(tmp_path: Path) -> None:
    on_disk(tmp_path)
    with open(tmp_path / "file", "w+b") as file:
        reported = direct_io.kernel_alignment(file.name, file.fileno())
    said = checks.direct_io(tmp_path)
    if reported is None:
        assert said == "yes; the kernel does not tell the alignment, fastio's is 4096 bytes"
    else:
        memory, offset = reported
        assert said == f"yes; memory aligned to {memory} and offsets to {offset} bytes, fastio's are to 4096"


def test_alignment_is_4096_if_the_kernel_does_not_report_it() -> None:
    with open("/proc/version", "rb") as file:
        assert direct_io.kernel_alignment(file.name, file.fileno()) is None
        assert direct_io.alignment(file.name, file.fileno()) == 4096
    with pytest.raises(fastio.TransferError, match="statx") as caught:
        direct_io.kernel_alignment("closed", -1)
    assert caught.value.errno == errno.EBADF
