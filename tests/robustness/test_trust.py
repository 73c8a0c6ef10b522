"""Folders to which other users may write: their links, pipes, pickles and swapped files do no harm."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import socket
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

import fastio
from fastio import dicts
from fastio.dicts import Context
from fastio.distributed import Reader, Writer
from fastio.errors import CorruptFileError, NotReplaceableError, TransferError

PRECIOUS = b"precious"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that no save may change, in a folder of its own."""
    path = tmp_path / "private" / "precious"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


# The temporary file of a save


def as_link(name: Path, precious: Path) -> None:
    name.symlink_to(precious)


def as_hard_link(name: Path, precious: Path) -> None:
    name.hardlink_to(precious)


def as_file(name: Path, _: Path) -> None:
    name.write_bytes(b"evil")


def as_pipe(name: Path, _: Path) -> None:
    os.mkfifo(name)


def as_nothing(_: Path, __: Path) -> None:
    pass


SWAPS = [as_link, as_hard_link, as_file, as_pipe, as_nothing]


def swap(folder: Path, put: Callable[[Path, Path], None], precious: Path, moved: bool) -> None:
    """Replace the one temporary file in a folder by something else."""
    (name,) = folder.glob(".it*.tmp")
    if moved:
        name.rename(folder / "moved")
    else:
        name.unlink()
    put(name, precious)


@pytest.mark.parametrize("put", SWAPS)
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("policy", ["posix", "uring", "torch"])
def test_a_temporary_file_swapped_during_the_save_is_refused(
    folder: Path, precious: Path, policy: str, moved: bool, put: Callable[[Path, Path], None]
) -> None:
    path = folder / "it.pt"
    fastio.save(torch.zeros(3), path)
    swapped: list[bool] = []

    def once(*_: int) -> None:
        if not swapped:
            swapped.append(True)
            swap(folder, put, precious, moved)

    with pytest.raises(NotReplaceableError, match=r"it\.pt.*another program|another program.*it\.pt") as refused:
        fastio.save(torch.ones(100_000), path, policy=policy, progress=once)
    assert refused.value.errno == errno.ESTALE
    assert swapped
    assert precious.read_bytes() == PRECIOUS
    assert torch.equal(torch.load(path), torch.zeros(3))
    left = {entry.name for entry in folder.iterdir()} - {"it.pt", "moved"}
    assert len(left) == (put is not as_nothing)  # files that are not fastio's stay
    fastio.save(torch.ones(2), path)
    assert torch.equal(torch.load(path), torch.ones(2))


at_rename: list[Callable[[], None]] = []  # called between the last check of a name and its rename


def on_audit(event: str, _: Any) -> None:
    if event == "os.rename" and at_rename:
        at_rename.pop()()


@pytest.mark.parametrize("put", [as_link, as_hard_link, as_file, as_pipe])
def test_a_temporary_file_swapped_just_before_the_rename_is_refused(
    folder: Path, precious: Path, put: Callable[[Path, Path], None]
) -> None:
    sys.addaudithook(on_audit)
    fastio.save(torch.zeros(3), folder / "it.pt")
    at_rename.append(lambda: swap(folder, put, precious, moved=True))
    with pytest.raises(NotReplaceableError, match="another program"):
        fastio.save(torch.ones(3), folder / "it.pt")
    assert not at_rename
    assert precious.read_bytes() == PRECIOUS
    assert torch.equal(torch.load(folder / "moved"), torch.ones(3))


@pytest.mark.parametrize("put", SWAPS)
def test_torchs_own_save_only_writes_to_the_created_file(
    folder: Path, precious: Path, put: Callable[[Path, Path], None]
) -> None:
    """The swap happens just before torch opens the file: torch reads the pickle module's name first."""
    fired: list[bool] = []

    class Module(types.ModuleType):
        Pickler, Unpickler, dumps, loads = pickle.Pickler, pickle.Unpickler, pickle.dumps, pickle.loads

        @property
        def __name__(self) -> str:  # type: ignore[override]
            if not fired:
                fired.append(True)
                swap(folder, put, precious, moved=False)
            return "pickle"

    with pytest.raises(NotReplaceableError):
        fastio.save(torch.ones(1000), folder / "it.pt", pickle_module=Module("it"))
    assert fired
    assert precious.read_bytes() == PRECIOUS
    assert not (folder / "it.pt").exists()


def test_save_ignores_links_pipes_and_folders_with_names_of_temporaries(folder: Path, precious: Path) -> None:
    path = folder / "it.pt"
    names = [folder / f".it.pt.fastio-{slot}.tmp" for slot in range(4)]
    names[0].symlink_to(precious)
    os.mkfifo(names[1])
    names[2].mkdir()
    names[3].symlink_to(folder / "nothing")
    for value in (1.0, 2.0):
        fastio.save(torch.tensor(value), path)
        assert torch.load(path) == value
    assert precious.read_bytes() == PRECIOUS
    assert {entry.name for entry in folder.iterdir()} == {"it.pt", *(name.name for name in names)}


# The lock of a dictionary


def learn() -> None:
    """Make the dictionary of the working folder learn, so that it has something to store."""
    own: Any = dicts.default("save", ".")
    for _ in range(6):
        own.observe(Context("save", "pt", "cpu", durable=True), 1 << 20, "posix", 0.5)


def as_socket(name: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, tempfile.TemporaryDirectory(dir="/tmp") as short:  # paths of 107 bytes
        made.bind(f"{short}/it")
        os.rename(f"{short}/it", name)


def as_dangling_link(name: Path, precious: Path) -> None:
    name.symlink_to(precious.with_name("new"))


@pytest.mark.parametrize("put", [as_link, as_dangling_link, as_pipe, as_socket])
def test_a_dictionary_lock_that_is_not_a_regular_file_is_refused(
    folder: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", "known")
    dicts.forget()
    learn()
    dicts.flush()
    (kept,) = (folder / "known").glob("*.json")
    before = kept.read_bytes()
    lock = kept.with_name(f"{kept.name}.lock")
    lock.unlink()
    put(lock, precious)
    dicts.forget()
    learn()
    with pytest.warns(RuntimeWarning, match=r"\.lock.*cannot be kept"):
        dicts.flush()
    dicts.forget()
    assert kept.read_bytes() == before
    assert precious.read_bytes() == PRECIOUS
    assert [entry.name for entry in precious.parent.iterdir()] == ["precious"]


# Distributed checkpoints

STATE = {"w": torch.arange(6.0), "n": 7}


def save(folder: Path, state: dict[str, Any] | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state or STATE), storage_writer=Writer(folder))


def load(folder: Path, reader: Any = None) -> dict[str, Any]:
    state = {"w": torch.zeros(6), "n": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader or Reader(folder))
    return state


def failure(folder: Path) -> BaseException:
    with pytest.raises(CheckpointException) as failed:
        load(folder)
    (error, _), *_ = failed.value.failures.values()
    return error


def change(folder: Path, name: str = ".metadata") -> Any:
    """Load the metadata of a folder, so that a test can change it and write it back."""
    with open(folder / name, "rb") as file:
        return pickle.load(file)


class Evil:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._made = function, arguments

    def __reduce__(self) -> Any:
        return self._made


def build(what: bytes, state: bytes) -> bytes:
    """A pickle that sets a state on the object that ``what`` makes."""
    return b"\x80\x04" + what + state + b"b."


def call_of(what: bytes, argument: str) -> bytes:
    """A pickle that calls the function that ``what`` names, with one string."""
    text = argument.encode()
    return b"\x80\x04" + what + b"\x8c" + bytes([len(text)]) + text + b"\x85R."


ENCODING = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "a call": lambda witness: pickle.dumps(Evil(os.mkdir, str(witness))),
    "a call inside metadata": lambda witness: pickle.dumps(
        Metadata({}, planner_data=Evil(os.mkdir, str(witness)), storage_data={})
    ),
    "eval": lambda witness: pickle.dumps(Evil(eval, f"__import__('os').mkdir({str(witness)!r})")),
    "torch.load": lambda witness: pickle.dumps(Evil(torch.load, str(witness))),
    "a state for a class": lambda _: build(
        b"ctorch.distributed.checkpoint.metadata\nMetadata\n", b"(N}X\x05\x00\x00\x00stateK\x07st"
    ),
    "a state for a member of an enum": lambda _: build(ENCODING + b"(K\x00tR", b"}X\x05\x00\x00\x00stateK\x07s"),
    "a name inside a module": lambda witness: call_of(
        b"\x8c\x27torch.distributed.checkpoint.filesystem\x8c\x08os.mkdir\x93", str(witness)
    ),
}


@pytest.mark.parametrize("kind", PICKLES)
def test_malicious_pickles_in_a_checkpoint_folder_have_no_effect(folder: Path, tmp_path: Path, kind: str) -> None:
    witness = tmp_path / "witness"
    data = PICKLES[kind](witness)
    for name in (".metadata", "__7.metadata"):
        (folder / name).write_bytes(data)
    assert isinstance(failure(folder), CorruptFileError)
    (folder / "__1_0123456789abcdef.distcp").write_bytes(b"what an older checkpoint may need")
    save(folder)
    assert torch.equal(load(folder)["w"], STATE["w"])
    assert (folder / "__1_0123456789abcdef.distcp").exists()  # the unreadable metadata may refer to it
    assert not witness.exists()
    assert not hasattr(Metadata, "state")
    encoding: Any = torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING
    assert not any(hasattr(member, "state") for member in encoding)


def test_a_refused_class_is_named_with_the_cure_and_can_be_allowed(folder: Path) -> None:
    save(folder)
    metadata = change(folder)
    metadata.planner_data["more"] = Evil(complex, 1, 2)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    error = failure(folder)
    assert isinstance(error, CorruptFileError)
    assert "builtins.complex" in str(error)
    assert "add_safe_globals" in str(error)
    with torch.serialization.safe_globals([complex]):
        assert torch.equal(load(folder)["w"], STATE["w"])


def test_reader_reads_torchs_metadata_with_a_path_object(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = dcp.FileSystemWriter(folder)
        dcp.save({**STATE, "half": torch.ones(2, 2, dtype=torch.bfloat16)}, storage_writer=writer)
    assert change(folder).storage_meta.checkpoint_id == folder
    loaded = load(folder)
    assert torch.equal(loaded["w"], STATE["w"])
    assert loaded["n"] == 7


@pytest.mark.parametrize("name", ["../private/it.distcp", "/etc/passwd", "..", ".", "", "a/b", 7, None])
def test_data_file_names_outside_the_folder_are_refused(folder: Path, precious: Path, name: Any) -> None:
    save(folder)
    metadata = change(folder)
    ((old, _),) = {(info.relative_path, 0) for info in metadata.storage_data.values()}
    (precious.parent / "it.distcp").write_bytes((folder / old).read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    error = failure(folder)
    assert isinstance(error, CorruptFileError)
    assert repr(name) in str(error)
    assert ".metadata" in str(error)


@pytest.mark.parametrize("put", [as_pipe, as_socket, as_nothing])
@pytest.mark.parametrize("of", [".metadata", "*.distcp"])
def test_files_that_are_not_regular_raise_without_blocking(
    folder: Path, precious: Path, of: str, put: Callable[[Path, Path], None]
) -> None:
    save(folder)
    (name,) = folder.glob(of)
    name.unlink()
    put(name, precious)
    error = failure(folder)
    assert name.name in str(error)
    assert isinstance(error, fastio.CheckpointError if put is as_nothing else TransferError)


@pytest.mark.parametrize("put", [as_link, as_dangling_link])
def test_a_link_in_place_of_metadata_is_replaced_not_followed(
    folder: Path, precious: Path, put: Callable[[Path, Path], None]
) -> None:
    put(folder / ".metadata", precious)
    save(folder)
    assert not (folder / ".metadata").is_symlink()
    assert torch.equal(load(folder)["w"], STATE["w"])
    assert precious.read_bytes() == PRECIOUS
    assert [entry.name for entry in precious.parent.iterdir()] == ["precious"]


def test_save_keeps_links_and_pipes_with_names_of_data_files(folder: Path, precious: Path) -> None:
    names = [folder / f"__0_{digit * 16}.distcp" for digit in "ab"]
    names[0].symlink_to(precious)
    os.mkfifo(names[1])
    save(folder)
    assert precious.read_bytes() == PRECIOUS
    assert names[0].is_symlink()
    assert names[1].is_fifo()
    assert torch.equal(load(folder)["w"], STATE["w"])


def test_save_into_a_folder_locked_by_another_program_works_without_cleaning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastio.distributed.data_file._LOCK_TIMEOUT_SECONDS", 0.1)
    (folder / "__1_0123456789abcdef.distcp").write_bytes(b"of another rank, maybe")
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        save(folder)
    finally:
        os.close(held)
    assert torch.equal(load(folder)["w"], STATE["w"])
    assert (folder / "__1_0123456789abcdef.distcp").exists()
    assert f"{folder}: saved without its lock" in caplog.text
    save(folder)
    assert not (folder / "__1_0123456789abcdef.distcp").exists()
    assert len(list(folder.glob("*.distcp"))) == 1


def test_reader_reads_metadata_of_torch_before_2_3(folder: Path) -> None:
    """Before torch 2.3 tensor properties were another class."""
    earlier = pytest.importorskip("torch.distributed._shard.sharded_tensor.metadata")
    save(folder)
    metadata = change(folder)
    properties = earlier.TensorProperties(dtype=torch.float32)
    metadata.state_dict_metadata["w"].properties = properties
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert b"sharded_tensor" in (folder / ".metadata").read_bytes()
    assert torch.equal(load(folder)["w"], STATE["w"])
