"""Full disks, failing and short system calls, forbidden rings, and concurrent writers of one path.

Each test runs real saves and loads in a process of its own, over a library that makes its system calls fail (see
faults/shim.c). In every case the path must hold one complete version, nothing may leak, and the caller must get an
error.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio import _native
from faults import ALWAYS, NOTHING, SHORTER, Fault, Server, objects

NOBODY = 65534
POLICIES = ("uring", "posix")
# Several requests in flight, and work for every thread.
LOADED_BYTES = 9 << 20


@pytest.fixture
def form() -> str:
    """The format of tests that do not set one."""
    return "pt"


def cases(thorough: Iterable[tuple[Any, ...]], others: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """(format, *case): ``thorough`` cases for ``pt``, ``others`` for the other formats, which make the same calls."""
    others = list(others)
    return [("pt", *case) for case in thorough] + [(form, *case) for form in objects.FORMATS[1:] for case in others]


@pytest.fixture
def path(tmp_path: Path, form: str) -> str:
    """A file by the format's own library, alone in its folder."""
    target = tmp_path / f"it.{form}"
    objects.write(objects.make(objects.OLD, form=form), target)
    return str(target)


@pytest.fixture
def large_path(tmp_path: Path, form: str) -> str:
    """A larger file by the format's own library, alone in its folder."""
    target = tmp_path / f"it.{form}"
    objects.write(objects.make(objects.OLD, LOADED_BYTES, form), target)
    return str(target)


def check_after(result: dict[str, Any]) -> None:
    """Check that nothing leaked, the next call works, and no temporary file remains after it."""
    assert result["leaked"] == []
    assert result["next"] == objects.OLD
    assert result["beside"] == []


def check_done(op: str, result: dict[str, Any]) -> None:
    assert result["error"] is None
    assert result["found"] == (objects.NEW if op == "save" else objects.OLD)
    check_after(result)


def check_error(error: dict[str, Any] | None, code: int, path: str) -> None:
    """Check the error: its errno, the file's name, and a class that callers catch."""
    assert error is not None, "the fault passed as success"
    assert "OSError" in error["bases"], error
    assert error["errno"] == code, error
    assert os.path.dirname(path) in error["filename"], error
    assert error["filename"] in error["message"], error


def sweep(server: Server, op: str, path: str, policy: str, call: str, effect: int) -> list[dict[str, Any]]:
    """One result for each call of the class that a save or load makes: in it, that call failed."""
    results: list[dict[str, Any]] = server.run("sweep", op=op, path=path, policy=policy, call=call, effect=effect)
    assert results, f"no call of class {call} was met"
    return results


# Each call of a save or load fails in turn

WRITES = [("uring", "ring_write"), ("posix", "write"), ("numpy", "write")]
READS = [("uring", "ring_read"), ("uring", "read"), ("posix", "read"), ("numpy", "read")]
TRANSFERS = [*(("save", *write) for write in WRITES), *(("load", *read) for read in READS)]
SOME_WRITES = [("uring", "ring_write"), ("posix", "write")]
SOME_READS = [("uring", "ring_read"), ("posix", "read")]
SOME_TRANSFERS = [*(("save", *write) for write in SOME_WRITES), *(("load", *read) for read in SOME_READS)]


@pytest.mark.parametrize(
    ("form", "code", "policy", "call"),
    cases(
        ((code, *write) for code in (errno.ENOSPC, errno.EIO) for write in WRITES),
        ((errno.EIO, *write) for write in SOME_WRITES),
    ),
)
def test_a_failed_write_raises_and_keeps_the_old_file(
    server: Server, path: str, policy: str, call: str, code: int
) -> None:
    for result in sweep(server, "save", path, policy, call, code):
        check_error(result["error"], code, path)
        assert result["found"] == objects.OLD
        check_after(result)


@pytest.mark.parametrize(("form", "policy", "call"), cases(READS, SOME_READS))
def test_a_failed_read_raises_its_errno(server: Server, large_path: str, policy: str, call: str) -> None:
    for result in sweep(server, "load", large_path, policy, call, errno.EIO):
        check_error(result["error"], errno.EIO, large_path)
        check_after(result)


@pytest.mark.parametrize(
    ("form", "effect", "op", "policy", "call"),
    cases(
        ((effect, *transfer) for effect in (SHORTER, errno.EINTR) for transfer in TRANSFERS),
        [(errno.EINTR, *transfer) for transfer in SOME_TRANSFERS[1::2]],
    ),
)
def test_short_and_interrupted_transfers_are_completed(
    server: Server, large_path: str, op: str, policy: str, call: str, effect: int
) -> None:
    for result in sweep(server, op, large_path, policy, call, effect):
        check_done(op, result)
        assert result["transfers"][-1]["tool"] == policy


@pytest.mark.parametrize(("form", "policy", "call"), cases(READS, SOME_READS))
def test_a_read_that_returns_zero_bytes_raises_or_is_retried(
    server: Server, large_path: str, policy: str, call: str
) -> None:
    for result in sweep(server, "load", large_path, policy, call, NOTHING):
        if result["error"] is None:  # the missing bytes were read again, or were not needed
            check_done("load", result)
        else:
            assert "FastIOError" in result["error"]["bases"], result["error"]
            assert large_path in result["error"]["message"]
            check_after(result)


STEPS = [
    ("allocate", errno.ENOSPC),
    ("allocate", errno.EIO),
    ("rename", errno.EIO),
    ("rename", errno.EACCES),
    ("open", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("sync", errno.EIO),
]


@pytest.mark.parametrize(
    ("form", "policy", "call", "code"),
    cases(
        ((policy, *step) for policy in POLICIES for step in STEPS),
        [("uring", "allocate", errno.ENOSPC), ("posix", "rename", errno.EIO), ("uring", "sync", errno.EIO)],
    ),
)
def test_a_failed_step_of_a_save_raises_and_keeps_the_old_file(
    server: Server, path: str, policy: str, call: str, code: int
) -> None:
    results = sweep(server, "save", path, policy, call, code)
    for number, result in enumerate(results):
        check_error(result["error"], code, path)
        # The last step of a save syncs the folder: by then the complete new file is in place.
        in_place = call == "sync" and number == len(results) - 1 > 0
        assert result["found"] == (objects.NEW if in_place else objects.OLD)
        check_after(result)


# Permanent faults


@pytest.mark.parametrize(("form", "op", "policy", "call"), cases(TRANSFERS, SOME_TRANSFERS))
def test_permanently_short_transfers_are_completed(
    server: Server, large_path: str, op: str, policy: str, call: str
) -> None:
    result = server.run(op, Fault(call, SHORTER, times=ALWAYS), path=large_path, policy=policy)
    assert result["strikes"] > 3
    check_done(op, result)
    assert result["transfers"][-1]["tool"] == policy


@pytest.mark.parametrize(("form", "policy", "call"), cases(WRITES, SOME_WRITES))
def test_writes_of_zero_bytes_raise_eio_and_keep_the_old_file(
    server: Server, path: str, policy: str, call: str
) -> None:
    result = server.run("save", Fault(call, NOTHING, times=ALWAYS), path=path, policy=policy)
    assert result["strikes"] >= 1
    check_error(result["error"], errno.EIO, path)
    assert result["found"] == objects.OLD
    check_after(result)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_save_without_durability_never_syncs(server: Server, path: str, policy: str) -> None:
    fault = Fault("sync", errno.EIO, times=ALWAYS)
    result = server.run("save", fault, path=path, policy=policy, durable=False)
    assert result["strikes"] == 0
    assert result["transfers"][-1]["durable"] == "False"
    check_done("save", result)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("code", "times"), [(errno.EOPNOTSUPP, ALWAYS), (errno.EINTR, 1)])
def test_save_works_on_filesystems_without_fallocate(
    server: Server, path: str, policy: str, code: int, times: int
) -> None:
    result = server.run("save", Fault("allocate", code, times=times), path=path, policy=policy)
    assert result["strikes"] >= 1
    check_done("save", result)


def test_save_works_if_the_old_file_cannot_be_held_open(server: Server, path: str) -> None:
    objects.write(objects.make(objects.OLD, 2 << 20, objects.format_of(path)), Path(path))
    result = server.run("save", Fault("hold", errno.EMFILE, times=ALWAYS), path=path, policy="posix")
    assert result["strikes"] == 1
    check_done("save", result)


@pytest.mark.parametrize("times", [1, 4, 9])
def test_save_retries_if_another_writer_locks_its_new_file(server: Server, path: str, times: int) -> None:
    result = server.run("save", Fault("lock", errno.EAGAIN, times=times), path=path, policy="posix")
    assert result["strikes"] == times
    check_done("save", result)


def test_save_raises_ebusy_if_locks_never_succeed(server: Server, path: str) -> None:
    result = server.run("save", Fault("lock", errno.EAGAIN, times=ALWAYS), path=path, policy="posix")
    check_error(result["error"], errno.EBUSY, path)
    assert result["found"] == objects.OLD
    check_after(result)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_only_old_leftovers_of_the_target_are_removed(server: Server, path: str, code: int) -> None:
    """Leftovers are recognised by their age there; files of other targets or names stay."""
    folder, base = os.path.split(path)
    around = os.path.join(folder, f".{base}.fastio-{{}}.tmp")
    old = [around.format(slot) for slot in ("u0123456789abcdef", "2")]
    others = [around.format(slot) for slot in ("ufedcba9876543210", "notes")]
    others.append(os.path.join(folder, ".other.pt.fastio-u0123456789abcdef.tmp"))
    for name in (*old, *others):
        Path(name).write_bytes(b"left")
        os.utime(name, (0, 0) if "fedc" not in name else None)
    result = server.run("save", Fault("lock", code, times=ALWAYS), path=path, policy="posix")
    assert result["strikes"] >= 1
    assert result["error"] is None
    assert (result["found"], result["next"], result["leaked"]) == (objects.NEW, objects.OLD, [])
    assert result["beside"] == sorted(os.path.basename(name) for name in others)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_failed_save_without_locks_leaves_no_file(server: Server, path: str, code: int) -> None:
    faults = [Fault("lock", code, times=ALWAYS), Fault("write", errno.ENOSPC)]
    result = server.run("save", *faults, path=path, policy="posix")
    check_error(result["error"], errno.ENOSPC, path)
    assert result["found"] == objects.OLD
    check_after(result)


# Unavailable tools: another one is used, and the result says so

CLOSED = [
    Fault("direct", errno.EINVAL, times=ALWAYS),
    Fault("ring_setup", errno.EPERM, times=ALWAYS),
    Fault("ring_setup", errno.ENOSYS, times=ALWAYS),
    Fault("ring_setup", errno.ENOMEM, times=ALWAYS),
]


@pytest.mark.parametrize(
    ("form", "op", "fault"),
    [
        *(("pt", op, fault) for op in ("save", "load") for fault in CLOSED),
        # A device that opens files with O_DIRECT, but refuses direct transfers.
        ("pt", "save", Fault("ring_write", errno.EINVAL, first=2, times=ALWAYS)),
        ("pt", "load", Fault("ring_read", errno.EINVAL, first=2, times=ALWAYS)),
        *(("pt", op, Fault("alignment", NOTHING, times=ALWAYS)) for op in ("save", "load")),
        ("safetensors", "save", CLOSED[0]),
        ("npy", "load", CLOSED[1]),
    ],
    ids=str,
)
def test_auto_falls_back_and_reports_it_without_direct_io_or_io_uring(
    server: Server, large_path: str, op: str, fault: Fault
) -> None:
    results = server.run("learn", fault, op=op, path=large_path)
    assert any(result["strikes"] for result in results), "uring was never tried"
    for result in results:
        assert result["error"] is None
        assert result["found"] == (objects.NEW if op == "save" else objects.OLD)
        check_after(result)
        transfer = result["transfers"][-1]
        assert transfer["tool"] != "uring" or not result["strikes"]
        # torch.load reads by itself; the ring only verifies the file before.
        if result["strikes"] and transfer["route"] == "direct":
            assert (transfer["tool"], fault.call, op) == ("posix", "ring_setup", "load"), transfer
        elif result["strikes"] and transfer["route"] != "library":
            assert "uring: " in transfer["fallbacks"], transfer


def read_without_a_ring(server: Server, path: str, *faults: Fault) -> dict[str, Any]:
    """A cold load by posix without io_uring, under further faults."""
    forbidden = Fault("ring_setup", errno.EPERM, times=ALWAYS)
    result: dict[str, Any] = server.run("load", forbidden, *faults, path=path, policy="posix")
    check_after(result)
    return result


def test_posix_reads_past_the_page_cache_if_io_uring_is_forbidden(server: Server, large_path: str) -> None:
    result = read_without_a_ring(server, large_path)
    assert result["found"] == objects.OLD
    assert (result["transfers"][-1]["tool"], result["transfers"][-1]["route"]) == ("posix", "direct")


def test_posix_reads_through_the_page_cache_if_direct_io_is_refused_too(server: Server, large_path: str) -> None:
    result = read_without_a_ring(server, large_path, Fault("direct", errno.EINVAL, times=ALWAYS))
    assert result["found"] == objects.OLD
    assert (result["transfers"][-1]["tool"], result["transfers"][-1]["route"]) == ("posix", "cached")
    assert "does not take O_DIRECT" in result["transfers"][-1]["fallbacks"]


@pytest.mark.parametrize("first", [13, 17, 21])
@pytest.mark.parametrize("effect", [errno.EIO, errno.EINTR, SHORTER, NOTHING])
def test_failing_or_short_threaded_direct_reads_raise_or_are_completed(
    server: Server, large_path: str, effect: int, first: int
) -> None:
    result = read_without_a_ring(server, large_path, Fault("read", effect, first))
    assert result["strikes"] > 1  # one is the ring's
    if effect == errno.EIO:
        check_error(result["error"], errno.EIO, large_path)
    elif result["error"] is not None:
        assert effect == NOTHING
        assert "CorruptFileError" in result["error"]["bases"]
        assert large_path in result["error"]["message"]
    else:
        assert result["found"] == objects.OLD


@pytest.mark.parametrize(
    ("form", "op", "fault"),
    cases(itertools.product(("save", "load"), CLOSED), itertools.product(("save", "load"), CLOSED[:2])),
    ids=str,
)
def test_a_named_tool_that_cannot_work_raises_and_keeps_the_file(
    server: Server, path: str, op: str, fault: Fault
) -> None:
    result = server.run(op, fault, path=path, policy="uring")
    assert result["strikes"] >= 1
    assert result["error"] is not None
    assert "FastIOError" in result["error"]["bases"]
    assert path in result["error"]["message"]
    assert "uring" in result["error"]["message"]
    assert result["found"] == (objects.OLD if op == "save" else 0)
    check_after(result)


@pytest.mark.parametrize("op", ["save", "load"])
@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, errno.EBUSY])
def test_interrupted_waits_on_the_ring_are_retried(server: Server, path: str, op: str, code: int) -> None:
    result = server.run(op, Fault("ring_enter", code, times=3), path=path, policy="uring")
    assert result["strikes"] == 3
    assert result["transfers"][-1]["tool"] == "uring"
    check_done(op, result)


@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("op", ["save", "load"])
def test_a_ring_that_stops_working_falls_back_or_raises(server: Server, large_path: str, op: str, first: int) -> None:
    fault = Fault("ring_enter", errno.EPERM, first, ALWAYS)
    result = server.run(op, fault, path=large_path, policy="uring")
    assert result["strikes"] >= 1
    if result["error"] is None:
        assert "uring" in result["transfers"][-1]["fallbacks"]
        check_done(op, result)
    else:
        assert "FastIOError" in result["error"]["bases"], result["error"]
        assert large_path in result["error"]["message"]
        assert os.strerror(errno.EPERM) in result["error"]["message"]
        assert result["found"] == (objects.OLD if op == "save" else 0)
        check_after(result)


# Wrong paths and missing permissions


@pytest.mark.parametrize("op", ["save", "load"])
def test_a_directory_in_place_of_the_file_raises_as_in_torch(server: Server, tmp_path: Path, op: str) -> None:
    target = tmp_path / "it.pt"
    target.mkdir()
    result = server.run("refused_by_torch_too", path=str(target), op=op)
    assert result["fastio"]["error"] is not None
    accepted = {"IsADirectoryError", result["torch"]["error"]["type"]}
    assert accepted.intersection(result["fastio"]["error"]["bases"]), result
    assert str(target) in result["fastio"]["error"]["message"]
    assert result["fastio"]["leaked"] == []
    assert list(tmp_path.iterdir()) == [target]
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("op", ["save", "load"])
def test_a_missing_folder_raises_as_in_torch(server: Server, tmp_path: Path, op: str) -> None:
    result = server.run("refused_by_torch_too", path=str(tmp_path / "none" / "it.pt"), op=op)
    assert result["fastio"]["error"] is not None
    accepted = {"FileNotFoundError", result["torch"]["error"]["type"]}
    assert accepted.intersection(result["fastio"]["error"]["bases"]), result
    assert str(tmp_path / "none") in result["fastio"]["error"]["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def readonly() -> Iterator[Path]:
    """A read-only folder; every user can enter the folders above it."""
    folder = Path(tempfile.mkdtemp())
    for form in objects.FORMATS:
        objects.write(objects.make(objects.OLD, form=form), folder / f"it.{form}")
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["it.pt", "other.pt", "it.safetensors", "other.npy"])
def test_an_unwritable_folder_raises_permission_error(server: Server, readonly: Path, name: str) -> None:
    uid = NOBODY if os.geteuid() == 0 else None
    result = server.run("refused_by_torch_too", path=str(readonly / name), op="save", uid=uid)
    error = result["fastio"]["error"]
    assert error is not None
    accepted = {"PermissionError", result["torch"]["error"]["type"]}
    assert accepted.intersection(error["bases"]), result
    assert str(readonly) in error["message"]
    assert result["fastio"]["leaked"] == []
    assert {entry.name for entry in readonly.iterdir()} == {f"it.{form}" for form in objects.FORMATS}
    assert all(objects.version_of(objects.read(path)) == objects.OLD for path in readonly.iterdir())


# Really full filesystems


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small filesystem")
    if request.param == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(folder)]
    else:
        image = tmp_path / "image"
        with image.open("wb") as file:
            file.truncate(12 << 20)
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-O", "^has_journal", image], check=False, capture_output=True, text=True
        )
        if made.returncode != 0:
            pytest.skip(f"mkfs.ext4: {made.stderr.strip()}")
        command = ["mount", "-o", "loop", str(image), str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"{' '.join(command[:4])} is not permitted here: {mounted.stderr.strip()}")
    for entry in folder.iterdir():
        shutil.rmtree(entry)  # lost+found
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("form", "policy", "allocates"),
    cases(itertools.product([*POLICIES, "torch", "auto"], [True, False]), [("auto", True), ("posix", False)]),
)
def test_a_full_disk_raises_and_keeps_the_old_file(
    server: Server, small_disk: Path, form: str, policy: str, allocates: bool
) -> None:
    target = small_disk / f"it.{form}"
    objects.write(objects.make(objects.OLD, 6 << 20, form), target)
    faults = [] if allocates else [Fault("allocate", errno.EOPNOTSUPP, times=ALWAYS)]
    result = server.run("save", *faults, path=str(target), policy=policy, nbytes=8 << 20)
    assert result["error"] is not None, "a full disk passed as success"
    assert "OSError" in result["error"]["bases"], result["error"]
    # If nothing was reserved before, torch's error does not give the reason.
    codes = (errno.ENOSPC,) if allocates or policy != "torch" else (errno.ENOSPC, errno.EIO)
    assert result["error"]["errno"] in codes, result["error"]
    assert str(small_disk) in result["error"]["message"]
    assert result["found"] == objects.OLD
    check_after(result)


def test_on_a_nearly_full_disk_the_save_itself_frees_the_old_file(small_disk: Path) -> None:
    for turn in range(8):
        fastio.save(torch.full((5 << 20,), turn, dtype=torch.uint8), small_disk / "it.pt", durable=turn % 2 == 0)
        room = os.statvfs(small_disk)
        assert room.f_bavail * room.f_frsize > 5 << 20
        assert fastio.load(small_disk / "it.pt").eq(turn).all()


@pytest.mark.parametrize("durable", [True, False])
def test_a_large_old_file_is_freed_in_the_background(tmp_path: Path, durable: bool) -> None:
    _native.wait_closed()
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(8):
        fastio.save(torch.full((4 << 20,), turn, dtype=torch.uint8), tmp_path / "it.pt", durable=durable)
        assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert fastio.load(tmp_path / "it.pt").eq(7).all()
    _native.wait_closed()
    assert len(os.listdir("/proc/self/fd")) == before


# Concurrent use


def test_concurrent_saves_and_loads_of_one_path_give_complete_versions(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "it.pt"
    torch.save(objects.make(objects.OLD, 256 << 10), target)
    children = [server.start("hammer", path=str(target), rounds=12, seed=seed, timeout=600) for seed in range(2)]
    for child in children:
        outcome = child.wait()
        assert outcome.status == 0, outcome.stderr
        assert outcome.result["problems"] == []
        assert outcome.result["leaked"] == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["it.pt"]
    final = server.run("load", path=str(target), policy="posix")
    assert final["error"] is None
    assert final["found"] in range(8)
