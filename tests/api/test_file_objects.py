"""Saves to file objects: short writes, pipes, full disks, and the memory that a save needs."""

from __future__ import annotations

import errno
import io
import os
import pickle
import resource
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import warm_python
from objects import assorted, same

FORMS = ("pt", "safetensors", "npy")


def object_of(form: str) -> Any:
    tensor = torch.arange(60_000.0)
    return tensor if form == "npy" else {"x": tensor, "y": torch.ones(3)}


class Dribbling(io.RawIOBase):
    """Accepts at most 1000 bytes per call and ``room`` in all; then every write returns ``last``."""

    def __init__(self, room: int, last: int | None = None) -> None:
        self.taken = bytearray()
        self._room, self._last = room, last

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int | None:
        count = min(len(data), 1000, self._room - len(self.taken))
        if count == 0:
            return self._last
        self.taken += data[:count]
        return count


@pytest.mark.parametrize("form", FORMS)
def test_save_completes_short_writes_of_a_raw_file_object(form: str) -> None:
    f = Dribbling(1 << 20)
    fastio.save(object_of(form), f, format=form)
    assert same(fastio.load(io.BytesIO(f.taken)), object_of(form))


@pytest.mark.parametrize("form", FORMS)
def test_save_to_a_raw_file_object_that_stops_accepting_bytes_raises_eio(form: str) -> None:
    with pytest.raises(fastio.TransferError, match=r"<file object>") as refused:
        fastio.save(object_of(form), Dribbling(100_000, 0), format=form)
    assert refused.value.errno == errno.EIO


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_save_to_an_unbuffered_file_on_a_full_disk_raises_an_error(tmp_path: Path, form: str, legacy: bool) -> None:
    """The first write beyond the limit is short; the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = {"_use_new_zipfile_serialization": False} if legacy and form == "pt" else {}
    with (tmp_path / "it").open("wb", buffering=0) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises((OSError, RuntimeError)):
                fastio.save(object_of(form), file, format=form, **arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "it").stat().st_size <= 100_000


@pytest.mark.parametrize("form", FORMS)
def test_save_to_an_unbuffered_tempfile_works_and_a_full_disk_raises_an_error(form: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.NamedTemporaryFile(buffering=0) as file:
        fastio.save(object_of(form), file, format=form)
        assert same(fastio.load(file.name), object_of(form))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            file.seek(0)
            with pytest.raises((OSError, RuntimeError)):
                fastio.save(object_of(form), file, format=form)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", FORMS)
def test_save_to_a_full_nonblocking_pipe_raises_eagain(form: str) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb"), open(writing, "wb", buffering=0) as file:
        with pytest.raises(fastio.TransferError) as refused:
            fastio.save(object_of(form), file, format=form)
        assert refused.value.errno == errno.EAGAIN
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_save_to_a_blocking_pipe_delivers_the_object(form: str) -> None:
    reading, writing = os.pipe()
    read: list[bytes] = []
    with open(reading, "rb") as source:
        reader = threading.Thread(target=lambda: read.append(source.read()), daemon=True)
        reader.start()
        with open(writing, "wb", buffering=0) as file:
            fastio.save(object_of(form), file, format=form)
        reader.join()
    assert same(fastio.load(io.BytesIO(read[0])), object_of(form))


@pytest.mark.parametrize("base", [object, io.RawIOBase])
@pytest.mark.parametrize("form", FORMS)
def test_save_accepts_file_objects_whose_write_returns_none(form: str, base: type) -> None:
    class Silent(base):  # type: ignore[misc]
        taken = b""

        def write(self, data: Any) -> None:
            self.taken += data

        def flush(self) -> None:
            pass

    f = Silent()
    fastio.save(object_of(form), f, format=form)
    assert same(fastio.load(io.BytesIO(f.taken)), object_of(form))


@pytest.mark.parametrize("legacy", [False, True])
def test_save_by_torch_to_a_raw_file_object_is_complete(tmp_path: Path, legacy: bool) -> None:
    obj = {"x": torch.arange(60_000.0), "y": torch.eye(3).to_sparse()} if legacy else assorted()
    with (tmp_path / "it").open("wb", buffering=0) as file:
        fastio.save(obj, file, _use_new_zipfile_serialization=not legacy)
    assert same(torch.load(tmp_path / "it"), obj)


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_save_to_a_file_object_does_not_copy_tensors(tmp_path: Path, form: str) -> None:
    code = f"""
import torch, fastio
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) << 10
def obj(nbytes):
    tensor = torch.ones(nbytes, dtype=torch.uint8)
    return tensor if {form!r} == "npy" else {{"x": tensor}}
small, large = obj(1 << 20), obj(96 << 20)
with open({str(tmp_path / "it")!r}, "wb") as file:
    fastio.save(small, file, format={form!r})
    before = peak()
    fastio.save(large, file, format={form!r})
    print(peak() - before)
"""
    done = warm_python.run(code)
    assert int(done.stdout) < 24 << 20


class Keeping:
    """A file object that keeps the buffers it gets, as one that writes later does; it has no name."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @property
    def name(self) -> str:
        raise ValueError("it has none")

    def write(self, data: Any) -> int:
        self.kept.append(data)
        return len(data)


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_bytes_passed_to_a_file_object_do_not_change_later(form: str) -> None:
    tensor = torch.arange(6_000_000.0).reshape(2000, 3000).t()  # packed and written piece by piece
    keeping = Keeping()
    fastio.save(tensor if form == "npy" else {"x": tensor}, keeping, format=form)
    others = [torch.full((1 << 20,), 9.0) for _ in range(8)]  # would reuse freed memory of the pieces
    found = fastio.load(io.BytesIO(b"".join(keeping.kept)))
    assert torch.equal(found if form == "npy" else found["x"], tensor)
    del others


@pytest.mark.parametrize("form", FORMS)
def test_save_to_an_open_file_can_be_loaded_before_it_is_closed(form: str, tmp_path: Path) -> None:
    path = tmp_path / "open"
    with open(path, "wb") as f:
        fastio.save(object_of(form), f, format=form)
        assert same(fastio.load(path), object_of(form))


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_load_from_a_nonblocking_file_object_without_data_raises_eagain(form: str) -> None:
    whole = io.BytesIO()
    fastio.save(object_of(form), whole, format=form)

    class Hesitating(io.BytesIO):
        def read(self, size: int | None = -1) -> Any:
            return super().read(size) if self.tell() < 4096 and (size or 0) < 4096 else None

    with pytest.raises(fastio.TransferError, match="does not block") as refused:
        fastio.load(Hesitating(whole.getvalue()))
    assert refused.value.errno == errno.EAGAIN


@pytest.mark.parametrize("form", ["safetensors", "npy"])
def test_load_accepts_a_file_object_that_returns_bytearrays(form: str) -> None:
    class Mutable(io.BytesIO):
        def read(self, size: int | None = -1) -> Any:
            return bytearray(super().read(size))

    f = Mutable()
    fastio.save(object_of(form), f, format=form)
    f.seek(0)
    assert same(fastio.load(f), object_of(form))


def test_error_of_a_full_device_names_it() -> None:
    for form in FORMS:
        with pytest.raises(fastio.TransferError) as refused:
            fastio.save(object_of(form), "/dev/full", format=form)
        assert refused.value.filename == "/dev/full"


def test_load_from_a_pipe_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writing = os.open(path, os.O_WRONLY)
    try:
        with pytest.raises(fastio.TransferError, match=r"of a pipe \(load io.BytesIO") as refused:
            fastio.load(path)
        assert refused.value.filename == str(path)
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its effective user")
def test_save_into_an_unwritable_folder_is_refused_with_the_cure(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        path = folder / "x.pt"
        path.touch(0o666)
        path.chmod(0o666)
        os.seteuid(65534)
        try:
            with pytest.raises(fastio.TransferError, match=r"make its folder writable, or save to open") as refused:
                fastio.save(torch.ones(3), path)
            with open(path, "wb") as f:
                fastio.save(torch.ones(3), f)
        finally:
            os.seteuid(0)
        assert refused.value.errno == errno.EACCES
        assert torch.equal(fastio.load(path), torch.ones(3))
    finally:
        path.unlink()
        folder.rmdir()


def refuse() -> None:
    raise ValueError("mine")


class Refusing:
    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def test_errors_of_what_is_in_an_archive_are_torchs() -> None:
    with io.BytesIO() as f:
        torch.save({"a": Refusing()}, f)
        for weights_only, kind in ((True, pickle.UnpicklingError), (False, ValueError)):
            f.seek(0)
            with pytest.raises(kind, match=r"^Weights only|^mine$") as raised:
                fastio.load(f, weights_only=weights_only)
            assert not isinstance(raised.value, fastio.FormatError)
