"""fastio.save and fastio.load as replacements for torch.save and torch.load."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
import time
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
import warm_python
from fastio._native import Control
from fastio.engine.background_job import WORTH_A_THREAD, under_way
from objects import assorted, same


def test_paths_and_file_objects_round_trip(tmp_path: Path) -> None:
    obj = assorted()
    for f in (str(tmp_path / "a.pt"), tmp_path / "b.pt", tmp_path / "noext", tmp_path / "ü.pt"):
        fastio.save(obj, f)
        assert same(fastio.load(f), obj)
        assert same(torch.load(f), obj)
    stream = io.BytesIO()
    fastio.save(obj, stream)
    stream.seek(0)
    assert same(fastio.load(stream), obj)
    with open(tmp_path / "c.pt", "wb") as file:
        fastio.save(obj, file)
    with open(tmp_path / "c.pt", "rb") as file:
        assert same(fastio.load(file), obj)


def test_load_of_an_unseekable_file_object_raises_torchs_error() -> None:
    class Pipe(io.BytesIO):
        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation("seek")

    for f in (Pipe(b"\x93NUMPY" + bytes(20)), io.StringIO("\x93NUMPY")):
        theirs = _error(torch.load, f)
        assert theirs is not None
        assert type(_error(fastio.load, f)) is type(theirs)


def test_map_location_works_as_in_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    obj = {"x": torch.arange(100000.0), "y": torch.ones(2)}
    fastio.save(obj, path)
    seen = []

    def moved(storage: Any, location: str) -> Any:
        seen.append((location, storage.nbytes()))
        return storage

    def filled(storage: Any, _: str) -> Any:
        values = torch.empty(0, dtype=torch.float32).set_(storage, 0, (storage.nbytes() // 4,))
        seen.append(float(values[-1]))
        return None

    for where in (None, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}, {"cpu": "cpu"}, moved, filled):
        assert same(fastio.load(path, where), obj)
    assert seen == [("cpu", 400000), ("cpu", 8), 99999.0, 1.0]
    shapes = fastio.load(path, "meta")
    assert shapes["x"].is_meta
    assert shapes["x"].shape == (100000,)
    for where in ("nonsense", "cuda:77" if not torch.cuda.is_available() else "nonsense"):
        assert type(_error(torch.load, path, where)) is type(_error(fastio.load, path, where))


def test_map_location_accepts_registered_device_names(tmp_path: Path) -> None:
    path, obj = tmp_path / "a.pt", {"x": torch.arange(1000)}
    fastio.save(obj, path)
    registry = torch.serialization._package_registry
    before = list(registry)

    def to_shelf(storage: Any, location: str) -> Any:
        return storage if location == "shelf" else None

    torch.serialization.register_package(99, lambda _: None, to_shelf)
    try:
        with fastio.record() as transfers:
            assert same(fastio.load(path, "shelf"), obj)
    finally:
        registry[:] = before
    assert (transfers[0].tool, transfers[0].verified) == ("torch", False)
    assert "map_location" in transfers[0].reason
    for name in ("shelf", "nonsense", b"nonsense"):
        assert str(_error(fastio.load, path, name)) == str(_error(torch.load, path, name))
        assert type(_error(fastio.load, path, name)) is type(_error(torch.load, path, name))
    fastio.save(obj, tmp_path / "a.safetensors")
    with pytest.raises(fastio.FastIOError, match=r"a\.safetensors: torch has no device 'shelf'.*map_location='cpu'"):
        fastio.load(tmp_path / "a.safetensors", "shelf")


def _error(function: Any, *arguments: Any, **keywords: Any) -> BaseException | None:
    try:
        function(*arguments, **keywords)
    except Exception as error:
        return error
    return None


def test_legacy_format_round_trips(tmp_path: Path) -> None:
    path, obj = tmp_path / "old.pt", {"x": torch.arange(10)}
    torch.save(obj, path, _use_new_zipfile_serialization=False)
    assert same(fastio.load(path), obj)
    fastio.save(obj, path, _use_new_zipfile_serialization=False)
    assert same(torch.load(path), obj)


def test_a_custom_pickle_module_works_as_in_torch(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    module = types.SimpleNamespace(**{name: getattr(pickle, name) for name in dir(pickle) if name[0] != "_"})
    module.__name__ = "mine"
    fastio.save({"x": torch.ones(3)}, path, pickle_module=module)
    assert fastio.load(path, weights_only=False, pickle_module=module)["x"].sum() == 3
    with pytest.raises(RuntimeError, match="safely"):
        fastio.load(path, pickle_module=module)


def test_skip_data_and_fake_tensor_mode_work_as_in_torch(tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    path = tmp_path / "a.pt"
    with torch.serialization.skip_data():
        fastio.save({"x": torch.ones(1000)}, path)
    fastio.save({"x": torch.ones(1000)}, path)
    with torch.serialization.skip_data():
        theirs = _error(torch.load, path)  # torch 2.6 refuses
        assert type(_error(fastio.load, path)) is type(theirs)
        assert theirs is not None or fastio.load(path)["x"].shape == (1000,)
    with FakeTensorMode():
        assert fastio.load(path)["x"].shape == (1000,)


def test_mistakes_raise_what_torch_raises(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(b"this is no checkpoint" * 10)
    (tmp_path / "empty").write_bytes(b"")
    for name in ("missing.pt", ".", "garbage", "empty"):
        theirs, ours = _error(torch.load, tmp_path / name), _error(fastio.load, tmp_path / name)
        assert theirs is not None
        assert isinstance(ours, type(theirs)), (name, theirs, ours)
    for name in ("no/such/folder.pt", "."):
        theirs = _error(torch.save, {"x": torch.ones(2)}, tmp_path / name)
        ours = _error(fastio.save, {"x": torch.ones(2)}, tmp_path / name)
        assert theirs is not None
        assert isinstance(ours, type(theirs)), (name, theirs, ours)
        assert isinstance(ours, OSError)
        assert isinstance(ours, fastio.FastIOError)
    theirs, ours = (_error(save, lambda: None, tmp_path / "a.pt") for save in (torch.save, fastio.save))
    assert isinstance(ours, type(theirs))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("policy", ["auto", "torch", "posix"])
def test_paths_that_end_in_a_slash_or_pass_through_a_file_raise_as_open_does(tmp_path: Path, policy: str) -> None:
    (tmp_path / "folder").mkdir()
    fastio.save(torch.ones(3), tmp_path / "x.pt")
    (tmp_path / "link.pt").symlink_to("x.pt")
    before = sorted(tmp_path.rglob("*"))
    for name, kind in (
        ("folder/new/", IsADirectoryError),
        ("folder/new/.", FileNotFoundError),
        ("folder/", IsADirectoryError),
        ("none/new/", FileNotFoundError),
        ("x.pt/", IsADirectoryError),
        ("x.pt/.", NotADirectoryError),
        ("link.pt/", IsADirectoryError),
        ("x.pt/new.pt", NotADirectoryError),
    ):
        path = f"{tmp_path}/{name}"
        ours = _error(fastio.save, torch.zeros(3), path, policy=policy)
        assert isinstance(ours, kind), (name, ours)
        assert type(_error(open, path, "wb")) is kind
        assert isinstance(ours, fastio.FastIOError)
        theirs = _error(torch.save, torch.zeros(3), path)
        assert isinstance(theirs, RuntimeError)
        assert isinstance(ours, RuntimeError)
        assert isinstance(_error(fastio.load, path), type(_error(torch.load, path)))
        assert str(pickle.loads(pickle.dumps(ours))) == str(ours)
    assert sorted(tmp_path.rglob("*")) == before
    assert torch.equal(fastio.load(tmp_path / "x.pt"), torch.ones(3))


@pytest.mark.parametrize("legacy", [False, True])
def test_unknown_arguments_raise_torchs_type_error(tmp_path: Path, legacy: bool) -> None:
    named: dict[str, Any] = {"foo": 1, "_use_new_zipfile_serialization": not legacy}
    for f in (tmp_path / "a.pt", io.BytesIO()):
        errors = [_error(save, torch.ones(3), f, **named) for save in (torch.save, fastio.save)]
        assert str(errors[0]) == str(errors[1])
        assert isinstance(errors[1], TypeError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("policy", ["auto", "uring", "posix", "torch", "numpy", "memory"])
def test_durable_accepts_any_truth_value(tmp_path: Path, policy: str) -> None:
    for durable in (np.True_, np.False_, 1, 0, None, "yes", torch.tensor(True)):
        result = fastio.save({"x": torch.ones(5)}, tmp_path / "a.pt", policy=policy, durable=durable)
        assert result.durable is bool(durable)


def test_dictionary_file_stores_durable_as_a_boolean(tmp_path: Path) -> None:
    code = "import fastio, numpy, sys, torch; fastio.save(torch.ones(5), sys.argv[1], durable=numpy.True_)"
    environment = {**os.environ, "FASTIO_DICTIONARY_DIR": str(tmp_path / "dictionaries")}
    done = warm_python.run(code, str(tmp_path / "a.pt"), environment=environment)
    assert done.returncode == 0, done.stderr
    kept = [path.read_text() for path in (tmp_path / "dictionaries").rglob("*.json")]
    assert any('"durable":true' in text for text in kept)


def test_save_keeps_mode_and_follows_links(tmp_path: Path) -> None:
    target, link = tmp_path / "real.pt", tmp_path / "link.pt"
    fastio.save(torch.zeros(5), target)
    target.chmod(0o640)
    link.symlink_to(target)
    fastio.save(torch.ones(5), link)
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert torch.equal(torch.load(target), torch.ones(5))
    fastio.save(torch.ones(100000), target)
    fastio.save(torch.ones(5), target)
    assert target.stat().st_size < 10000  # shorter than the old file


def test_mode_of_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        fastio.save(torch.zeros(5), tmp_path / "a.pt")
    finally:
        os.umask(before)
    assert (tmp_path / "a.pt").stat().st_mode & 0o777 == 0o640


def test_save_to_a_device_or_pipe_is_done_by_torch_and_not_durable(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for path in ("/dev/null", pipe):
        result = fastio.save({"x": torch.ones(5)}, path)
        assert (result.tool, result.durable, result.nbytes) == ("torch", False, 0)
        assert result.fallbacks == ("not durable: the path is no regular file",)
    reader.join()
    assert fastio.load(io.BytesIO(read[0]))["x"].sum() == 5
    assert fastio.save({"x": torch.ones(5)}, "/dev/null", durable=False).fallbacks == ()


def test_transfer_nbytes_are_tensor_bytes_if_known_else_file_size(tmp_path: Path) -> None:
    path, legacy, obj = tmp_path / "a.pt", tmp_path / "legacy.pt", {"x": torch.ones(1000)}
    with fastio.record() as transfers:
        for tool in ("torch", "posix"):
            fastio.save(obj, path, policy=tool)
            fastio.load(path, policy=tool)
        fastio.save(obj["x"], io.BytesIO(), format="npy")
    assert [transfer.nbytes for transfer in transfers] == [4000] * 5
    with fastio.record() as transfers:
        fastio.load(path, mmap=True)
        fastio.save(obj, legacy, _use_new_zipfile_serialization=False)
        fastio.load(legacy)
        fastio.save(obj, io.BytesIO())
    sizes = [4000, legacy.stat().st_size, legacy.stat().st_size, 0]
    assert [transfer.nbytes for transfer in transfers] == sizes


def test_patch_torch_nests_and_restores(tmp_path: Path) -> None:
    save, load = torch.save, torch.load
    path = tmp_path / "a.pt"
    with fastio.record() as transfers:
        with fastio.patch_torch():
            with pytest.raises(IsADirectoryError), fastio.patch_torch():
                torch.save({"x": torch.ones(5)}, tmp_path, pickle, 2)
            torch.save({"x": torch.ones(5)}, path, pickle, 2)
            assert torch.save is not save
            assert torch.load(path, "cpu", weights_only=True)["x"].sum() == 5
            assert torch.load(path, None, pickle)["x"].sum() == 5
        assert (torch.save, torch.load) == (save, load)
        torch.load(path)
    assert [t.op for t in transfers] == ["save", "load", "load"]
    patch = fastio.patch_torch()
    assert torch.save is not save
    patch.undo()
    patch.undo()
    assert (torch.save, torch.load) == (save, load)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mmap": True},
        {"encoding": "latin1", "weights_only": False},
        {"pickle_module": pickle},
        {"pickle_module": pickle, "weights_only": False, "mmap": True, "fix_imports": False},
    ],
    ids=", ".join,
)
def test_patch_torch_drops_load_arguments_that_torch_ignores_for_safetensors(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    path, obj = tmp_path / "a.safetensors", {"x": torch.randn(1000)}
    fastio.save(obj, path)
    with fastio.record() as transfers, fastio.patch_torch():
        assert same(torch.load(path, **arguments), obj)
        with pytest.raises(RuntimeError, match="map_location"):  # torch does not ignore map_location either
            torch.load(path, {"cuda": "cpu"}, **arguments)
    (note,) = (note for note in transfers[0].fallbacks if "ignores" in note)
    assert all(name in note for name in arguments if name != "weights_only")
    assert "weights_only" not in note
    if arguments != {"mmap": True}:
        with pytest.raises((TypeError, RuntimeError)):
            fastio.load(path, **arguments)  # fastio's own load refuses arguments without effect
    with fastio.record() as transfers, fastio.patch_torch():
        assert same(torch.load(path, mmap=False, pickle_module=None), obj)
    assert not any("ignores" in note for note in transfers[0].fallbacks)


def test_patch_torch_obeys_torchs_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.pt"
    torch.save(Fraction(1, 3), path)
    with fastio.patch_torch():
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path)
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        with pytest.warns(UserWarning, match="TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
            assert torch.load(path) == Fraction(1, 3)
        with pytest.raises(pickle.UnpicklingError):
            torch.load(path, weights_only=True)


def test_patch_torch_nests_across_threads(tmp_path: Path) -> None:
    save = torch.save
    errors = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                with fastio.patch_torch():
                    torch.save(torch.full((100,), number), tmp_path / f"{number}.pt")
                    assert torch.load(tmp_path / f"{number}.pt")[0] == number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert torch.save is save


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    path, obj = tmp_path / "a.pt", {"x": torch.ones(16 << 20)}
    saved: list[tuple[int, int]] = []
    loaded: list[tuple[int, int]] = []
    fastio.save(obj, path, progress=lambda done, total: saved.append((done, total)))
    fastio.load(path, progress=lambda done, total: loaded.append((done, total)))
    for seen in (saved, loaded):
        assert seen[-1][0] == seen[-1][1] >= 64 << 20
    with pytest.raises(TypeError, match="progress"):
        fastio.load(path, progress="yes")


def test_progress_reports_the_total_if_the_job_ended_before_the_wait() -> None:
    reports: list[tuple[int, int]] = []
    control, ended = Control(), threading.Event()

    def work() -> str:
        control.advance(WORTH_A_THREAD)
        ended.set()
        return "done"

    before = len(sys._current_frames())
    with under_way(work, control, WORTH_A_THREAD) as job:
        assert ended.wait(300)
        while len(sys._current_frames()) > before:  # its thread still runs
            time.sleep(0.001)
        assert [job.wait(lambda *report: reports.append(report)) for _ in range(2)] == ["done", "done"]
    assert reports == [(WORTH_A_THREAD, WORTH_A_THREAD)]


def test_progress_reports_the_total_when_torch_does_the_work(tmp_path: Path) -> None:
    path, legacy, obj = tmp_path / "a.pt", tmp_path / "legacy.pt", {"x": torch.ones(1000)}
    old = {"_use_new_zipfile_serialization": False}
    for target, arguments in ((path, {"policy": "torch"}), (legacy, old), (io.BytesIO(), {}), ("/dev/null", {})):
        reports: list[tuple[int, int]] = []
        fastio.save(obj, target, progress=lambda *report, reports=reports: reports.append(report), **arguments)
        assert [done == total for done, total in reports] == [True]
    with open(path, "rb") as file:
        for source, arguments in ((path, {"policy": "torch"}), (path, {"mmap": True}), (legacy, {}), (file, {})):
            reports = []
            fastio.load(source, progress=lambda *report, reports=reports: reports.append(report), **arguments)
            assert [done == total for done, total in reports] == [True]
        for form, thing in (("npy", obj["x"]), ("safetensors", obj)):
            reports, stream = [], io.BytesIO()
            fastio.save(thing, stream, format=form, progress=lambda *report, reports=reports: reports.append(report))
            stream.seek(0)
            fastio.load(stream, progress=lambda *report, reports=reports: reports.append(report))
            assert reports == [(4000, 4000)] * 2
        for f in (path, file):
            with pytest.raises(TypeError, match="progress"):
                fastio.load(f, progress="yes")
    for f in (path, stream):
        with pytest.raises(TypeError, match="progress"):
            fastio.save(obj, f, progress="yes")


def test_save_and_load_leave_torchs_settings_unchanged(tmp_path: Path) -> None:
    config = pytest.importorskip("torch.utils.serialization", reason="before torch 2.7").config
    before = config.save.storage_alignment, torch.serialization.get_crc32_options()
    fastio.save(assorted(), tmp_path / "a.pt")
    fastio.load(tmp_path / "a.pt")
    assert (config.save.storage_alignment, torch.serialization.get_crc32_options()) == before


def test_tools_report_operations_or_why_they_are_unavailable() -> None:
    by_name = {tool.name: tool for tool in fastio.tools()}
    assert {"torch", "numpy", "posix", "uring", "dali", "gds", "pinned", "memory"} <= set(by_name)
    assert by_name["uring"].operations == ("load", "save")
    assert by_name["posix"].formats == ("pt", "safetensors", "npy")
    if not torch.cuda.is_available():
        for name in ("gds", "pinned"):
            assert not by_name[name].available
            assert by_name[name].reason
            assert by_name[name].cure
        with pytest.raises(fastio.ToolUnavailableError, match="pinned"):
            fastio.save(torch.ones(1), "a.pt", policy="pinned")
    with pytest.raises(ValueError, match="policy"):
        fastio.save(torch.ones(1), "a.pt", policy="teleport")


@pytest.mark.parametrize("moved", ["_load", "_save"])
def test_probe_reports_a_torch_whose_private_functions_changed(tmp_path: Path, moved: str) -> None:
    code = f"""
import sys, torch
if {moved!r} == "_load":
    original = torch.serialization._load
    torch.serialization._load = lambda zip_file, *a, **k: original(zip_file.the_new_method(), *a, **k)
else:
    original = torch.serialization._save
    torch.serialization._save = lambda obj, zip_file, *a: original(obj, zip_file.the_new_method(), *a)
import fastio
from fastio.formats.pt import torch_probe
print(torch_probe.unsupported_reason())
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert "the_new_method" in printed


def test_torch_does_the_work_if_the_probe_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio.formats.pt.torch_probe.unsupported_reason", lambda: "this torch is from the future")
    path, obj = tmp_path / "a.pt", assorted()
    result = fastio.save(obj, path)
    assert (result.tool, result.route, result.reason) == ("torch", "library", "this torch is from the future")
    with fastio.record() as transfers:
        assert same(fastio.load(path), obj)
    assert (transfers[0].tool, transfers[0].verified) == ("torch", False)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(fastio.CorruptFileError):
        fastio.load(path)
