"""Truncated, changed and lost steps, failing system calls, full disks: nothing damaged is ever restored."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from disks import tmpfs
from fastio.checkpoint import Checkpointer
from fastio.errors import CheckpointError, CorruptFileError, TransferError
from faults import Server
from trainings import folder_of, is_of, state_of


@pytest.fixture(params=["full", "incremental"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with steps 1 and 2."""
    folder = tmp_path / "run"
    with Checkpointer(folder, incremental=request.param == "incremental") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
    expected = ["changes.pt", "step-0000000001.1.state.pt"] if request.param == "incremental" else ["state.pt"]
    assert sorted(os.listdir(folder_of(folder, 2))) == sorted([*expected, "manifest.json"])
    return folder


def check_skipped(folder: Path, expected: int | None) -> None:
    """Check that ``restore`` warns that it skips step 2, and returns the step before."""
    with Checkpointer(folder, read_only=True) as checkpointer:
        if expected is None:
            with (
                pytest.warns(RuntimeWarning, match="step 2 is skipped"),
                pytest.raises(CheckpointError, match="all"),
            ):
                checkpointer.restore()
            return
        with pytest.warns(RuntimeWarning, match="step 2 is skipped"):
            restored = checkpointer.restore()
        assert restored is not None
        assert restored.step == expected
        assert is_of(restored.state, expected)


# Damage


def test_flipped_byte_anywhere_is_detected(saved: Path, tmp_path: Path) -> None:
    chance = random.Random(1)
    seen = {"skipped": 0, "right": 0}
    for name in os.listdir(folder_of(saved, 2)):
        path = folder_of(saved, 2) / name
        if path.stat().st_nlink > 1:  # shared with step 1: copy it, so that only step 2 is damaged
            copy = path.read_bytes()
            path.unlink()
            path.write_bytes(copy)
        whole = path.read_bytes()
        ends = [*range(16), *range(len(whole) - 16, len(whole))]
        places = set(ends) | {chance.randrange(len(whole)) for _ in range(16)}
        for at in sorted(place for place in places if 0 <= place < len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            where = f"{name}, byte {at} of {len(whole)}"
            with Checkpointer(saved, read_only=True) as checkpointer:
                problem = ""
                try:
                    checkpointer.verify(2)
                except CorruptFileError as error:
                    problem = str(error)
                assert not problem or name in problem, where
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    restored = checkpointer.restore()
            assert restored is not None, where
            # A byte that does not affect the state (padding, a date) does no harm: the state is right.
            assert is_of(restored.state, restored.step), where
            assert (restored.step, len(caught), bool(problem)) in ((1, 1, True), (2, 0, False)), where
            assert not caught or "step 2 is skipped" in str(caught[0].message)
            seen["skipped" if caught else "right"] += 1
        path.write_bytes(whole)
    assert seen["skipped"] > 30
    assert seen["right"] > 0
    with Checkpointer(saved, read_only=True) as checkpointer:
        assert checkpointer.verify(2) > 0


@pytest.mark.parametrize("into", [True, False])
def test_damage_found_while_filling_live_tensors_restores_the_step_before(saved: Path, into: bool) -> None:
    """Tensors that were overwritten before the damage was found are overwritten again by the step before."""
    name = json.loads((folder_of(saved, 2) / "manifest.json").read_text())["files"][0]["name"]
    path = folder_of(saved, 2) / name
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((3_000,), 2.0).numpy().tobytes()) + 4000] ^= 1
    path.write_bytes(data)
    live = {"fixed": torch.zeros(40_000, dtype=torch.uint8), "moving": torch.zeros(3_000), "tiny": torch.tensor(0)}
    live["step"] = 0  # type: ignore[assignment]
    with Checkpointer(saved, read_only=True) as checkpointer:
        with pytest.raises(CorruptFileError, match="data/1"):
            checkpointer.restore(2, into=dict(live) if into else None)
        with pytest.warns(RuntimeWarning, match="step 2 is skipped.*data/1"):
            restored = checkpointer.restore(into=live if into else None)
    assert restored is not None
    assert is_of(restored.state, 1)
    assert not into or is_of(live, 1)


@pytest.mark.parametrize("left", [0, 1, 100, -1, -5000])
def test_truncated_files_skip_the_step(saved: Path, left: int) -> None:
    names = [name for name in os.listdir(folder_of(saved, 2)) if not name.startswith("step-")]
    for name in names:
        path = folder_of(saved, 2) / name
        whole = path.read_bytes()
        path.write_bytes(whole[:left])
        check_skipped(saved, 1)
        with Checkpointer(saved, read_only=True) as checkpointer, pytest.raises(CorruptFileError):
            checkpointer.restore(2)
        path.write_bytes(whole)


def test_missing_files_skip_the_step(saved: Path) -> None:
    manifest = folder_of(saved, 2) / "manifest.json"
    name = json.loads(manifest.read_text())["files"][0]["name"]
    (folder_of(saved, 2) / name).rename(saved / "elsewhere")
    check_skipped(saved, 1)
    (saved / "elsewhere").rename(folder_of(saved, 2) / name)
    # A step without its manifest is not there: a writer that is killed before the end leaves this.
    manifest.rename(folder_of(saved, 2) / ".manifest.json.fastio-0.tmp")
    with Checkpointer(saved, read_only=True) as checkpointer:
        assert checkpointer.steps() == [1]
        assert checkpointer.latest() == 1
        restored = checkpointer.restore()
        assert restored is not None
        assert restored.step == 1
    assert folder_of(saved, 2).exists()  # reading changes nothing
    with Checkpointer(saved) as checkpointer:
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        assert not folder_of(saved, 2).exists()


def test_only_own_files_are_removed_from_a_dead_writers_step(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log").write_text("kept")
    left = folder_of(tmp_path / "run", 1)
    (left / "folder").mkdir(parents=True)
    (left / ".manifest.json.fastio-0.tmp").touch()
    (left / "state.1.pt").write_text("half of a file")
    (left / "state.pt").symlink_to(tmp_path / "logs" / "log")
    (left / "logs").symlink_to(tmp_path / "logs")
    (left / "nowhere").symlink_to(tmp_path / "absent")
    with Checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [2]
    assert sorted(os.listdir(left)) == ["folder", "logs", "nowhere", "state.pt"]
    assert (tmp_path / "logs" / "log").read_text() == "kept"


def test_all_steps_damaged_raises_and_a_new_save_works(saved: Path) -> None:
    for step in (1, 2):
        path = folder_of(saved, step) / "manifest.json"
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.warns(RuntimeWarning, match="step 1 is skipped"):
        check_skipped(saved, None)
    with Checkpointer(saved, keep=1) as checkpointer:
        assert checkpointer.steps() == []
        with pytest.raises(CorruptFileError):
            checkpointer.restore(1)
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        assert checkpointer.steps() == [3]
        assert folder_of(saved, 1).exists()  # damaged steps are kept


def test_step_folder_under_another_number_is_corrupt(saved: Path) -> None:
    shutil.copytree(folder_of(saved, 1), folder_of(saved, 5))
    with Checkpointer(saved, read_only=True) as checkpointer:
        assert checkpointer.steps() == [1, 2]
        with pytest.raises(CorruptFileError, match="step 1"):
            checkpointer.restore(5)


@pytest.mark.parametrize("policy", ["uring", "posix", "numpy"])
@pytest.mark.parametrize("nbytes", [20_000, 40 << 20])  # in a copy, and in two pieces of one
def test_byte_of_the_copy_that_changes_before_it_is_written_is_found(
    tmp_path: Path, held: threading.Event, policy: str, nbytes: int
) -> None:
    """The checksums are those of what was copied, so that they guard the copy's memory, too."""
    state = {"tensor": torch.arange(nbytes, dtype=torch.uint8)}
    with Checkpointer(tmp_path, policy=policy) as checkpointer:
        checkpointer.save(1, state)
        (snapshot,) = checkpointer._saver._snapshots._users
        (copy,) = [storage for _, storage, size in snapshot._copies if size == nbytes]
        copy[nbytes - 1] ^= 1
        held.set()
        checkpointer.wait()
        with pytest.raises(CorruptFileError, match=r"state\.pt"):
            checkpointer.verify(1)
        checkpointer.save(2, state)
        checkpointer.wait()
        checkpointer.verify(2)


def test_read_back_detects_a_byte_that_the_disk_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.checkpoint.saving import writing

    save = writing.save_layout

    def save_and_damage(layout: Any, path: str, *rest: Any) -> Any:
        result = save(layout, path, *rest)
        with open(path, "r+b") as file:
            file.seek(20_000)
            byte = file.read(1)[0]
            file.seek(20_000)
            file.write(bytes([byte ^ 1]))
        return result

    with Checkpointer(tmp_path, read_back=True) as checkpointer:
        checkpointer.save(1, state_of(1))
        checkpointer.wait()
        monkeypatch.setattr(writing, "save_layout", save_and_damage)
        checkpointer.save(2, state_of(2))
        with pytest.raises(CorruptFileError, match="returns other bytes"):
            checkpointer.wait()
        assert checkpointer.steps() == [1]


# The system fails


@pytest.mark.parametrize(
    ("policy", "call", "code"),
    [
        ("posix", "write", errno.ENOSPC),
        ("uring", "ring_write", errno.EIO),
        ("posix", "allocate", errno.ENOSPC),
        ("posix", "open", errno.EMFILE),
        ("posix", "rename", errno.EIO),
        ("posix", "sync", errno.EIO),
    ],
)
def test_failing_system_call_raises_and_leaves_no_step(
    server: Server, tmp_path: Path, policy: str, call: str, code: int
) -> None:
    results = server.run("checkpoints.sweep", folder=str(tmp_path), policy=policy, call=call, effect=code)
    assert results
    for result in results:
        assert result["whole"] == [True] * len(result["steps"])
        assert result["next"]
        assert result["left"] == []
        if result["error"] is None:
            assert result["steps"] == [0, 1], result
            continue
        assert "OSError" in result["error"]["bases"], result
        assert result["error"]["errno"] == code, result
        # The last call opens and syncs the folder: the step is complete and visible by then.
        assert result["steps"] == [0] or (call in ("open", "sync") and result["steps"] == [0, 1]), result
    assert any(result["error"] for result in results)


@pytest.mark.parametrize("policy", ["posix", "uring", "numpy", "torch"])
@pytest.mark.parametrize("call", ["open", "read", "ring_read"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
def test_earlier_step_is_restored_only_if_bytes_are_lost(
    server: Server, tmp_path: Path, policy: str, call: str, code: int
) -> None:
    results = server.run("checkpoints.restores", folder=str(tmp_path), policy=policy, call=call, effect=code)
    assert results or (call == "ring_read" and policy != "uring")
    for result in results:
        if code == errno.EIO:
            assert result["steps"] == [0], result
            assert "step 1 is skipped" in result["warned"][0], result
        else:
            assert result["steps"] == [], result
            assert result["error"]["type"] == "TransferError", result
            assert result["error"]["errno"] == code, result


class Refusing:
    """An object whose ``load_state_dict`` fails, as if it read another file."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def state_dict(self) -> dict[str, Any]:
        return {"shard": "elsewhere"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise self._error


ERRORS_OF_THE_PROGRAM = [
    FileNotFoundError(errno.ENOENT, "no such shard", "elsewhere"),
    OSError(errno.EIO, "a broken disk"),
    OSError(errno.ENOMEM, "no memory"),
    CorruptFileError("/elsewhere/shard.pt", None, "is not what was written"),
    TransferError(errno.EIO, "read", "/elsewhere/shard.pt"),
]


@pytest.mark.parametrize("error", ERRORS_OF_THE_PROGRAM, ids=repr)
@pytest.mark.parametrize("by_torch", [False, True])
def test_error_of_load_state_dict_is_raised_and_no_step_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, by_torch: bool
) -> None:
    if by_torch:
        from fastio.formats.pt import torch_probe

        monkeypatch.setattr(torch_probe, "unsupported_reason", lambda: "another torch")
    with Checkpointer(tmp_path) as checkpointer:
        for step in (0, 1):
            checkpointer.save(step, {"loader": Refusing(error), "tensor": torch.ones(3)})
        for which in (None, 1):
            with pytest.raises(type(error)) as caught:
                checkpointer.restore(which, into={"loader": Refusing(error), "tensor": torch.zeros(3)})
            assert caught.value is error


@pytest.mark.parametrize("error", ERRORS_OF_THE_PROGRAM, ids=repr)
def test_error_of_progress_is_raised_and_no_step_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from fastio.engine import delayed_progress

    def progress(done: int, total: int) -> None:
        raise error

    monkeypatch.setattr(delayed_progress, "_SECONDS", 0.0)
    with Checkpointer(tmp_path) as checkpointer:
        for step in (0, 1):
            checkpointer.save(step, {"tensor": torch.ones(3)})
    with Checkpointer(tmp_path, read_only=True, progress=progress) as checkpointer:
        with pytest.raises(type(error)) as caught:
            checkpointer.restore()
        assert caught.value is error


def test_full_disk_raises_and_earlier_steps_stay(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 8) as folder:
        state = {"tensor": torch.ones(750_000)}
        with Checkpointer(folder / "run", keep=2) as checkpointer:
            for step in (1, 2):
                checkpointer.save(step, state)
            checkpointer.wait()
            checkpointer.save(3, state)  # with keep=2 there are three for a while
            with pytest.raises(OSError, match="No space left") as caught:
                checkpointer.save(4, state)
            assert caught.value.errno == errno.ENOSPC
            state["tensor"] += 1  # training goes on
            assert checkpointer.steps() == [1, 2]
            for step in (1, 2):
                checkpointer.verify(step)
            assert os.statvfs(folder).f_bavail * 4096 > 1 << 20  # nothing of the failed step is left
            checkpointer.save(4, {"tensor": torch.ones(1000)})
            checkpointer.wait()
            assert checkpointer.steps() == [2, 4]
            checkpointer.save(5, state)
            checkpointer.wait()
            restored = checkpointer.restore()
            assert restored is not None
            assert torch.equal(restored.state["tensor"], state["tensor"])


# The previous release


def test_step_written_by_the_first_release_is_restored(repository: Path) -> None:
    """The step was written once by ``tests/data/make_checkpoint_v1.py``, and every later version must read it."""
    with Checkpointer(repository / "tests" / "data" / "checkpoint-v1", read_only=True) as checkpointer:
        assert checkpointer.steps() == [1, 2]
        for step in (1, 2):
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert restored is not None
            assert restored.metadata == {"loss": 0.5, "names": ["a", "ä"]}
            assert torch.equal(restored.state["fixed"], torch.arange(2000))
            assert restored.state["moving"].tolist() == [step] * 3
            assert restored.state["moving"].dtype == torch.bfloat16
            assert restored.state["nested"] == {"list": [1, 2.5, None, "text"], "tuple": (True, b"bytes")}


def test_step_of_a_later_version_raises(tmp_path: Path) -> None:
    from fastio import _native

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state_of(1))
    path = folder_of(tmp_path, 1) / "manifest.json"
    fields = json.loads(path.read_text()) | {"version": 3, "new": "field", "crc32": ""}
    fields["crc32"] = ""
    value = _native.crc32(json.dumps(fields).encode())
    path.write_text(json.dumps({**fields, "crc32": f"{value:08x}"}) + "\n")
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(CheckpointError, match=r"of version 3.*install a newer"):
        checkpointer.restore()
    assert fastio.verify(folder_of(tmp_path, 1) / "state.pt").checksummed
