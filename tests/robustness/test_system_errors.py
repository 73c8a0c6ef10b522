"""System errors have the types that open, torch.save and torch.load raise, and fastio's own types as well."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import warm_python
from fastio.errors import FastIOError, NotReplaceableError, TransferError

ALL = sorted(number for number in errno.errorcode if number)


@pytest.mark.parametrize("kind", [TransferError, NotReplaceableError])
@pytest.mark.parametrize("way", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickled", "copied"])
def test_transfer_errors_are_pythons_subclass_for_every_errno_and_survive_copies(
    kind: Any, way: Callable[[Any], Any]
) -> None:
    for number in (*ALL, 0, 9999):
        error = TransferError(number, "read", "a/b", 7) if kind is TransferError else kind(number, "a cure", "a/b")
        copied = way(error)
        for one in (error, copied):
            assert isinstance(one, type(OSError(number, "")))
            assert isinstance(one, kind)
            assert isinstance(one, RuntimeError)  # as torch.save's
            assert (one.errno, one.filename, type(one).__name__) == (number, "a/b", kind.__name__)
        assert type(copied) is type(error)
        assert vars(copied) == vars(error)
        assert (str(copied), copied.strerror, copied.args) == (str(error), error.strerror, error.args)


def test_transfer_errors_are_no_subclass_for_another_errno() -> None:
    assert not isinstance(TransferError(errno.EIO, "read", "it"), PermissionError | FileNotFoundError)
    assert not isinstance(TransferError(errno.EACCES, "read", "it"), FileNotFoundError)


# Bad paths. For the zip format torch raises an uninformative RuntimeError, for the legacy format the error of open.


@pytest.fixture(
    params=["missing/it", "file/it", "ring", "x" * 300, "folder", "file/", "new/", "folder/.", "missing/.."]
)
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A path to which no file can be saved, and from which none can be loaded."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "ring").symlink_to("ring")
    return f"{tmp_path}/{request.param}"


def raised(action: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    return caught.value


@pytest.mark.parametrize("policy", ["auto", "posix", "torch"])
@pytest.mark.parametrize("form", ["pt", "safetensors", "npy"])
def test_save_to_a_bad_path_raises_as_torch_save_does(bad: str, form: str, policy: str) -> None:
    if policy == "torch" and form != "pt":
        pytest.skip("torch saves .pt alone")
    obj: Any = torch.ones(3) if form == "npy" else {"x": torch.ones(3)}
    by_open = raised(lambda: torch.save(obj, bad, _use_new_zipfile_serialization=False))
    by_zip = raised(lambda: torch.save(obj, bad))
    own = raised(lambda: fastio.save(obj, bad, format=form, policy=policy))
    assert isinstance(by_open, OSError)
    assert isinstance(own, type(by_open)), own
    assert isinstance(own, type(by_zip)), own
    assert isinstance(own, FastIOError)
    assert own.errno == by_open.errno  # type: ignore[attr-defined]
    assert os.path.basename(bad) in str(own)


@pytest.mark.parametrize("policy", ["auto", "posix", "torch"])
def test_load_and_verify_of_a_bad_path_raise_as_torch_load_does(bad: str, policy: str) -> None:
    by_torch = raised(lambda: torch.load(bad))
    for own in (raised(lambda: fastio.load(bad, policy=policy)), raised(lambda: fastio.verify(bad))):
        assert type(own) is type(by_torch)
        assert (own.errno, own.filename) == (by_torch.errno, bad)  # type: ignore[attr-defined]


# Without permissions, in a process that gives up its privileges


IMPORTS = """
import errno, os, warnings
import torch, fastio
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from fastio.distributed import Reader, Writer
warnings.simplefilter("ignore")
"""


def in_a_process(program: str, folder: Path) -> str:
    done = warm_python.run(IMPORTS + textwrap.dedent(program), folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its user")
def test_missing_permissions_raise_permission_error(tmp_path: Path) -> None:
    """Another user accesses files and folders of root."""
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o001)
    for name, mode in (("closed", 0o700), ("readable", 0o755), ("writable", 0o777), ("unlisted", 0o733)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        fastio.save({"x": torch.ones(3)}, tmp_path / name / "it.pt")
        (tmp_path / name / "it.pt").chmod(0o600)
    said = in_a_process(
        """
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        state = {"x": torch.zeros(3)}
        for name in ("closed", "readable", "writable"):
            path = f"{name}/it.pt"
            actions = {
                "save": lambda: fastio.save(state, path),
                "save by torch": lambda: fastio.save(state, path, policy="torch"),
                "save legacy": lambda: fastio.save(state, path, _use_new_zipfile_serialization=False),
                "load": lambda: fastio.load(path),
                "verify": lambda: fastio.verify(path),
                "open": lambda: open(path, "r+b"),
            }
            if name != "writable":
                actions["new"] = lambda: fastio.save(state, f"{name}/new.pt")
                actions["writer"] = lambda: dcp.save(dict(state), storage_writer=Writer(f"{name}/new"))
            for doing, action in actions.items():
                try:
                    action()
                except (Exception, CheckpointException) as error:
                    if isinstance(error, CheckpointException):
                        (error, _), *_ = error.failures.values()
                    assert isinstance(error, PermissionError), (name, doing, type(error), error)
                    assert error.errno == errno.EACCES, (name, doing, error)
                    assert name in error.filename, (name, doing, error)
                else:
                    raise AssertionError(f"{name} {doing}: no error")
        fastio.save(state, "unlisted/new.pt")  # into a folder that is writable but not readable
        assert torch.equal(torch.load("unlisted/new.pt")["x"], state["x"])
        print("done")
        """,
        tmp_path,
    )
    assert said == "done\n"
    for name in ("closed", "readable", "writable", "unlisted"):
        assert torch.equal(torch.load(tmp_path / name / "it.pt")["x"], torch.ones(3))
        assert {entry.name for entry in (tmp_path / name).iterdir()} <= {"it.pt", "new.pt"}


def test_save_to_a_read_only_mount_raises_erofs(tmp_path: Path) -> None:
    """In a mount namespace of its own."""
    (tmp_path / "disk").mkdir()
    fastio.save({"x": torch.ones(3)}, tmp_path / "disk" / "it.pt")
    program = """
import errno, torch, fastio
for path in ("disk/it.pt", "disk/new.pt"):
    for policy in ("auto", "torch"):
        try:
            fastio.save({"x": torch.zeros(3)}, path, policy=policy)
        except fastio.TransferError as error:
            print(errno.errorcode[error.errno], isinstance(error, PermissionError))
print(fastio.load("disk/it.pt")["x"].sum().item())
"""
    mount = 'mount --bind disk disk && mount -o remount,ro,bind disk || exit 77; exec "$1" -c "$0"'
    command = ["unshare", "-m", "sh", "-c", mount, program, sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace can be made here")
    assert done.stdout.split("\n") == [*["EROFS False"] * 4, "3.0", ""], done


def test_relative_paths_work_in_a_working_folder_deeper_than_path_max(tmp_path: Path) -> None:
    said = in_a_process(
        """
        for _ in range(25):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        try:
            open(os.path.abspath("it.pt"), "wb")
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG
        torch.save(torch.ones(3), "theirs.pt")
        assert torch.load("theirs.pt").sum() == 3
        for policy in ("auto", "posix", "uring", "torch"):
            for form in ("pt",) if policy == "torch" else ("pt", "safetensors", "npy"):
                for value in (1.0, 2.0):
                    tensor = torch.full((2000,), value)
                    obj = tensor if form == "npy" else {"x": tensor}
                    fastio.save(obj, f"it.{form}", policy=policy)
                    found = fastio.load(f"it.{form}", policy=policy)
                    assert torch.equal(found if form == "npy" else found["x"], tensor)
                    fastio.verify(f"it.{form}")
        fastio.save(torch.ones(3), "legacy.pt", _use_new_zipfile_serialization=False)
        os.symlink("it.pt", "link.pt")
        fastio.save(torch.ones(2), "link.pt")
        assert os.path.islink("link.pt")
        assert fastio.load("theirs.pt").sum() == fastio.load("it.pt", mmap=True).sum() + 1 == 3
        os.mkdir("folder")
        fastio.save(torch.ones(2), "folder/it.pt")
        dcp.save({"w": torch.ones(3)}, storage_writer=Writer("made/now"))
        state = {"w": torch.zeros(3)}
        dcp.load(state, storage_reader=Reader("made/now"))
        assert state["w"].sum() == 3
        try:
            fastio.save(torch.ones(2), "missing/it.pt")
        except FileNotFoundError:
            print(sorted(os.listdir()))
        """,
        tmp_path,
    )
    names = ["folder", "it.npy", "it.pt", "it.safetensors", "legacy.pt", "link.pt", "made", "theirs.pt"]
    assert said == f"{names}\n"


def test_a_removed_working_folder_raises_file_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for action in (lambda: fastio.save(torch.ones(2), "it.pt"), lambda: fastio.load("it.pt")):
        with pytest.raises(FileNotFoundError) as missing:
            action()
        assert missing.value.filename == "it.pt"


TOO_MANY_FILES = """
import io, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
state, tensor, paths = {"x": torch.ones(3)}, torch.ones(3), {"pt": "it.pt", "safetensors": "it.safetensors"}
actions = {"save npy": lambda: fastio.save(tensor, "it.npy"), "load npy": lambda: fastio.load("it.npy")}
for form, path in paths.items():
    for policy in ("auto", "posix", "uring", *(["torch"] if form == "pt" else [])):
        actions[f"save {path} {policy}"] = lambda path=path, policy=policy: fastio.save(state, path, policy=policy)
        actions[f"load {path} {policy}"] = lambda path=path, policy=policy: fastio.load(path, policy=policy)
actions["save legacy.pt"] = lambda: fastio.save(state, "legacy.pt", _use_new_zipfile_serialization=False)
actions["load legacy.pt"] = lambda: fastio.load("legacy.pt")
actions["load mmap"] = lambda: fastio.load("it.pt", mmap=True)
actions["verify"] = lambda: fastio.verify("it.pt")
for action in actions.values():
    action()
data = open("it.npy", "rb").read()
actions["load a stream"] = lambda: fastio.load(io.BytesIO(data))
checkpointer = fastio.Checkpointer("run")

def save_a_step(asynchronous=True):
    checkpointer.save(1, state)
    checkpointer.wait()

def open_another():
    fastio.Checkpointer("another").close()

save_a_step()
actions |= {
    "step saved": save_a_step, "step restored": checkpointer.restore, "step read": lambda: checkpointer.restore(1),
    "step verified": lambda: checkpointer.verify(1), "steps": checkpointer.steps, "latest": checkpointer.latest,
    "pruned": checkpointer.prune, "opened": open_another,
}
for name, action in actions.items():
    for left in range(12):
        held = []
        try:
            while True:
                held.append(open("/dev/null"))
        except OSError:
            pass
        for file in held[:left]:
            file.close()
        try:
            action()
            done = True
        except fastio.TransferError as error:
            assert error.errno == errno.EMFILE and "(`ulimit -n`" in str(error) and error.filename, (name, left, error)
            done = False
        except fastio.errors.RefusedError as error:  # its cure is another tool, which needs fewer descriptors
            assert name.endswith("uring") and "Too many open files" in str(error) and "policy='auto'" in str(error)
            done = False
        except RuntimeError as error:  # torch 2.6 does not say why
            assert name == "save it.pt torch" and str(error).endswith(" cannot be opened."), (name, left, error)
            done = False
        except Exception as error:
            raise AssertionError(f"{name}, {left} left") from error
        for file in held:
            file.close()
        assert done >= (left > 8) and not (done and left == 0), (name, left)
    action()
checkpointer.close()
print("done")
"""


def test_too_many_open_files_raise_emfile_with_the_cure(tmp_path: Path) -> None:
    """Whichever call it is that finds no descriptor: fastio's, torch's or Python's."""
    assert in_a_process(TOO_MANY_FILES, tmp_path) == "done\n"
