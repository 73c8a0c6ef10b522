"""Saves to unusual targets: pipes, devices, open files without a name, links, missing folders."""

from __future__ import annotations

import io
import os
import pickle
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.errors import FolderMissingError, NotReplaceableError
from fastio.files.atomic_file import AtomicFile
from objects import same

FORMS = ("pt", "safetensors", "npy")


def object_of(form: str) -> Any:
    tensor = torch.arange(100_000).reshape(50, -1).t()  # larger than a pipe, and not contiguous
    return tensor if form == "npy" else {"x": tensor, "y": torch.ones(3)}


def same_values(one: Any, other: Any) -> bool:
    """Equal except for strides, which packing changes."""
    if isinstance(one, dict):
        return bool(one.keys() == other.keys()) and all(torch.equal(one[name], other[name]) for name in one)
    return torch.equal(one, other)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("linked", [False, True])
def test_save_to_a_pipe_writes_into_it(tmp_path: Path, form: str, linked: bool) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    path = tmp_path / "link" if linked else pipe
    if linked:
        path.symlink_to("pipe")
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    reports: list[tuple[int, int]] = []
    result = fastio.save(object_of(form), path, format=form, progress=lambda *report: reports.append(report))
    reader.join()
    assert same_values(fastio.load(io.BytesIO(read[0])), object_of(form))
    assert pipe.is_fifo()
    assert sorted(tmp_path.iterdir()) == sorted({path, pipe})
    assert (result.reason, result.durable) == ("the path is no regular file", False)
    assert result.fallbacks == ("not durable: the path is no regular file",)
    assert result.nbytes == {"pt": 0, "npy": 800_000, "safetensors": 800_012}[form]
    assert reports == [(result.nbytes, result.nbytes)]


@pytest.fixture(params=["null", "full"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of /dev/null or /dev/full, which a test may replace by mistake."""
    path = tmp_path / str(request.param)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, {"null": 3, "full": 7}[path.name]))
        path.read_bytes() if path.name == "null" else path.open("rb").close()
    except PermissionError:
        pytest.skip("only root may make devices, and not on every filesystem")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_save_to_a_device_writes_to_it(device: Path, form: str) -> None:
    if device.name == "null":
        assert fastio.save(object_of(form), device, format=form, durable=False).fallbacks == ()
    else:
        with pytest.raises(RuntimeError) as refused:
            fastio.save(object_of(form), device, format=form)
        if form != "pt":  # for pt the message is torch's
            assert isinstance(refused.value, fastio.TransferError)
            assert str(device) in str(refused.value)
            assert "No space left" in str(refused.value)
    assert device.is_char_device()
    assert list(device.parent.iterdir()) == [device]


def test_atomic_file_refuses_to_replace_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(NotReplaceableError, match=r"pipe.*name another path|name another path.*pipe") as refused:
        AtomicFile(str(pipe))
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["memfd", "removed", "removed, with another name", "removed, and made again"])
@pytest.mark.parametrize("way", ["/proc/self/fd", "/dev/fd"])
def test_save_to_an_unnamed_open_file_overwrites_it_in_place(tmp_path: Path, form: str, kind: str, way: str) -> None:
    if kind == "memfd":
        file = os.fdopen(os.memfd_create("it"), "w+b")
    else:
        path = tmp_path / "it"
        file = path.open("w+b")
        if "another" in kind:
            (tmp_path / "other").hardlink_to(path)
        path.unlink()
        if "again" in kind:  # the kernel's name for the removed file
            Path(f"{path} (deleted)").write_bytes(b"somebody else's")
    before = {entry: entry.read_bytes() for entry in tmp_path.iterdir() if entry.name != "other"}
    with file:
        file.write(b"longer than what is saved" * 100_000)
        file.flush()
        result = fastio.save(object_of(form), f"{way}/{file.fileno()}", format=form)
        file.seek(0)
        assert same_values(fastio.load(file), object_of(form))
    assert result.fallbacks == ("not durable: the path names an open file that has no name any more",)
    assert not result.durable
    assert {entry: entry.read_bytes() for entry in tmp_path.iterdir() if entry.name != "other"} == before


@pytest.mark.parametrize("form", FORMS)
def test_save_to_the_descriptor_path_of_a_named_file_replaces_the_file(tmp_path: Path, form: str) -> None:
    with (tmp_path / "it").open("w+b") as file:
        assert fastio.save(object_of(form), f"/dev/fd/{file.fileno()}", format=form).durable
    assert same_values(fastio.load(tmp_path / "it"), object_of(form))
    assert [entry.name for entry in tmp_path.iterdir()] == ["it"]


def test_save_follows_chains_of_links_and_rejects_cycles(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "first.pt").symlink_to("one/second.pt")
    (tmp_path / "one" / "second.pt").symlink_to("../two/third.pt")
    for value in (1.0, 2.0):  # first the target is missing, then it is a file
        fastio.save(torch.tensor(value), tmp_path / "first.pt")
        assert fastio.load(tmp_path / "two" / "third.pt") == value
    assert not (tmp_path / "two" / "third.pt").is_symlink()
    (tmp_path / "ring.pt").symlink_to("ring.pt")
    with pytest.raises(fastio.TransferError, match=r"ring\.pt"):
        fastio.save(torch.ones(1), tmp_path / "ring.pt")


def test_atomic_file_keeps_its_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with AtomicFile("it") as new:
        monkeypatch.chdir("folder")
        new.commit(False)
    assert [str(entry.relative_to(tmp_path)) for entry in tmp_path.rglob("*") if entry.is_file()] == ["it"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("policy", ["auto", "torch", "posix"])
def test_a_path_through_a_missing_folder_is_not_found(tmp_path: Path, form: str, policy: str) -> None:
    path = f"{tmp_path}/missing/../x"
    for action in (lambda: fastio.save(object_of(form), path, format=form, policy=policy), lambda: fastio.load(path)):
        with pytest.raises(FileNotFoundError, match=r"missing/\.\./x"):
            action()
    with pytest.raises(RuntimeError, match="Parent directory"):
        torch.save(object_of(form), path)
    with pytest.raises(FolderMissingError):
        fastio.save(object_of(form), path, format=form, policy=policy)
    assert list(tmp_path.iterdir()) == []


def test_save_through_proc_root_and_links_reaches_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    obj = object_of("pt")
    for index, folder in enumerate((f"/proc/{os.getpid()}/root{tmp_path}/folder", f"{tmp_path}/link/../link")):
        fastio.save(obj, f"{folder}/{index}.pt")
        assert same(fastio.load(tmp_path / "folder" / f"{index}.pt"), obj)
    assert len(list((tmp_path / "folder").iterdir())) == 2
