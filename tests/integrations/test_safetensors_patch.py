"""patch_safetensors: safetensors' functions return and raise what they do without it, and fastio does the work."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError

import fastio
from objects import DTYPES, same, same_bits, tensor_of

HELD = [dtype for dtype in DTYPES if dtype not in (torch.complex128, torch.complex32)]  # by the format
INDICES: list[Any] = [
    ..., (), 1, -1, 3, -4, slice(0, 100), slice(5, 7), slice(2, 1), slice(-2, None), slice(None, None, 2),
    slice(None, None, -1), slice(None, None, 0), None, [0, 1], torch.tensor(1), torch.tensor([True, False, True]),
    np.int64(1), True, (1, 2), (slice(None), 1), (slice(None), slice(1, 3)), (slice(None),) * 3, (..., 1), 1.0, "a",
]  # fmt: skip


@pytest.fixture(scope="module")
def library() -> ModuleType:
    """safetensors.torch a second time, which the patch does not see: only modules in sys.modules are patched."""
    spec = importlib.util.find_spec("safetensors.torch")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def patched(library: ModuleType) -> Iterator[list[Any]]:
    with fastio.record() as transfers, fastio.patch_safetensors():
        yield transfers


def tensors_of_all_dtypes() -> dict[str, torch.Tensor]:
    made = {str(dtype): tensor_of(dtype, 3, 4) for dtype in HELD}
    return made | {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 7), "large": torch.randn(300, 500)}


def raised(call: Callable[[], Any]) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def outcome(part: Any, index: Any) -> Any:
    try:
        return part[index].clone(memory_format=torch.contiguous_format)
    except Exception as error:
        return type(error)


def test_files_are_the_librarys_and_moved_by_fastio(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    tensors, text = tensors_of_all_dtypes(), {"format": "pt", "ü": ""}
    safetensors.torch.save_file(tensors, tmp_path / "ours", metadata=text)
    library.save_file(tensors, tmp_path / "theirs", metadata=text)
    for path in (tmp_path / "ours", str(tmp_path / "theirs")):
        ours, theirs = safetensors.torch.load_file(path), library.load_file(path, device=None)
        assert list(ours) == list(theirs)
        assert ours.keys() == tensors.keys()
        assert all(same_bits(ours[name], tensor) for name, tensor in tensors.items())
    assert safetensors.torch.load_file(tmp_path / "ours", "cpu", backend="pread").keys() == ours.keys()
    assert [transfer.op for transfer in patched] == ["save", "load", "load", "load"]
    with library.safe_open(tmp_path / "ours", "pt") as file:
        assert text.items() <= file.metadata().items()


def test_safe_open_is_the_librarys(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    path = tmp_path / "a"
    tensors = tensors_of_all_dtypes()
    library.save_file(tensors, path, metadata={"format": "pt"})
    with safetensors.safe_open(path, framework="pt", device="cpu") as ours, library.safe_open(path, "pt") as theirs:
        assert ours.keys() == theirs.keys()
        assert ours.offset_keys() == theirs.offset_keys()
        assert ours.metadata() == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert one.get_shape() == other.get_shape()
            assert one.get_dtype() == other.get_dtype()
            assert same_bits(one[...], tensors[name])
            assert same_bits(ours.get_tensor(name), tensors[name])
        if hasattr(theirs, "get_tensors"):
            assert ours.get_tensors().keys() == theirs.get_tensors().keys()
    library.save_file(tensors, path)
    with safetensors.safe_open(path, "pt") as ours, library.safe_open(path, "pt") as theirs:
        assert ours.metadata() == theirs.metadata()
    assert {transfer.op for transfer in patched} == {"load"}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("name", ["three", "scalar", "empty"])
def test_slices_are_the_librarys(tmp_path: Path, library: ModuleType, patched: list[Any], name: str) -> None:
    shape = {"three": (3, 4, 5), "scalar": (), "empty": (0, 3)}[name]
    library.save_file({"x": torch.randn(shape)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as ours, library.safe_open(tmp_path / "a", "pt") as theirs:
        for index in INDICES:
            one, other = outcome(ours.get_slice("x"), index), outcome(theirs.get_slice("x"), index)
            assert same(one, other), index


def test_load_model_and_save_model_are_the_librarys(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    def model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
        made[2].weight = made[0].weight
        return made

    first, second, third = map(model, range(3))
    safetensors.torch.save_model(first, str(tmp_path / "a"))
    library.save_model(first, str(tmp_path / "b"))
    assert same(library.load_file(tmp_path / "a"), library.load_file(tmp_path / "b"))
    assert safetensors.torch.load_model(second, tmp_path / "a") == library.load_model(third, tmp_path / "b")
    assert same(second.state_dict(), first.state_dict())
    other = torch.nn.Sequential(torch.nn.Linear(4, 4))
    for load_model in (safetensors.torch.load_model, library.load_model):
        with pytest.raises(RuntimeError, match="Unexpected key"):
            load_model(other, tmp_path / "a")
    assert "save" in {transfer.op for transfer in patched}


def test_tensors_and_slices_are_good_after_the_context(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    x = torch.randn(10, 10)
    library.save_file({"x": x}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        tensor, part = file.get_tensor("x"), file.get_slice("x")
    os.unlink(tmp_path / "a")
    assert same_bits(tensor, x)
    assert same_bits(part[2:5], x[2:5])
    file.__exit__(None, None, None)
    for call in (file.keys, file.offset_keys, file.metadata, lambda: file.get_tensor("x"), lambda: file.get_slice("x")):
        with pytest.raises(SafetensorError, match="closed"):
            call()


BAD_FILES: dict[str, Callable[[Path], Any]] = {
    "missing": lambda path: path / "missing",
    "folder": lambda path: path,
    "in no folder": lambda path: path / "missing" / "a",
    "cut short": lambda path: written(path / "short", (path / "good").read_bytes()[:-1]),
    "too long": lambda path: written(path / "long", (path / "good").read_bytes() + b" "),
    "empty": lambda path: written(path / "empty", b""),
    "zeros": lambda path: written(path / "zeros", bytes(30)),
    "pickle": lambda path: written(path / "pickle", pickle.dumps({"x": 5})),
    "pt": lambda path: torch.save({"x": torch.ones(3)}, path / "x.pt") or path / "x.pt",
    "index": lambda path: written(path / "m.safetensors.index.json", b'{"weight_map": {"x": "good"}}'),
    "dtype": lambda path: written(path / "F6", of_dtype("F6_E2M3")),
    "bytes": lambda path: os.fsencode(path / "good"),
    "number": lambda path: 5,
    "None": lambda path: None,
    "list": lambda path: [path / "good"],
}  # fmt: skip


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def of_dtype(name: str) -> bytes:
    header = json.dumps({"x": {"dtype": name, "shape": [4], "data_offsets": [0, 3]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(3)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_raise_the_librarys_errors(
    tmp_path: Path, library: ModuleType, patched: list[Any], kind: str
) -> None:
    library.save_file({"x": torch.ones(3)}, tmp_path / "good")
    path = BAD_FILES[kind](tmp_path)
    for name in ("load_file", "open"):
        calls: list[Callable[[], Any]] = [
            lambda: safetensors.torch.load_file(path), lambda: library.load_file(path)
        ] if name == "load_file" else [
            lambda: safetensors.safe_open(path, "pt"), lambda: library.safe_open(path, "pt")
        ]  # fmt: skip
        ours, theirs = map(raised, calls)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            assert issubclass(ours, theirs), name


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((), {}), (("foo",), {}), ((None,), {}), (("pt", "nonsense"), {}), (("pt", "meta"), {}), (("pt", -1), {}),
        (("pt", torch.device("cpu")), {}), (("pt",), {"backend": "x"}), (("pt",), {"colour": 1}), (("pt", 1.5), {}),
    ],
)  # fmt: skip
def test_bad_arguments_raise_the_librarys_errors(
    tmp_path: Path, library: ModuleType, patched: list[Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    library.save_file({"x": torch.ones(3)}, tmp_path / "a")
    theirs = raised(lambda: library.safe_open(tmp_path / "a", *arguments, **options))
    assert theirs is not None
    with pytest.raises(theirs):
        safetensors.safe_open(tmp_path / "a", *arguments, **options)
    assert patched == []


X = torch.arange(12.0).reshape(3, 4)
BAD_SAVES: dict[str, tuple[Any, Any, str]] = {
    "no dict": ([1], None, "o"),
    "no tensor": ({"a": 5}, None, "o"),
    "number as name": ({5: X}, None, "o"),
    "not contiguous": ({"a": X.t()}, None, "o"),
    "shared": ({"a": X, "b": X}, None, "o"),
    "overlapping": ({"a": X[:2], "b": X[1:]}, None, "o"),
    "sparse": ({"a": X.to_sparse()}, None, "o"),
    "meta": ({"a": X.to("meta")}, None, "o"),
    "complex128": ({"a": X.to(torch.complex128)}, None, "o"),
    "metadata of a number": ({"a": X}, {"a": 5}, "o"),
    "metadata list": ({"a": X}, [("a", "b")], "o"),
    "surrogate": ({"a": X}, {"\ud800": "x"}, "o"),
    "folder": ({"a": X}, None, "."),
    "no folder": ({"a": X}, None, "missing/o"),
    "below a file": ({"a": X}, None, "file/o"),
}


# Of these fastio's own error is logged. The folders' are instances of safetensors', the rest it does not see.
LEFT = set(BAD_SAVES) - {"no dict", "not contiguous", "folder", "no folder", "below a file"}


@pytest.mark.parametrize("kind", BAD_SAVES)
def test_bad_saves_raise_the_librarys_errors(
    tmp_path: Path, library: ModuleType, patched: list[Any], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    tensors, metadata, name = BAD_SAVES[kind]
    written(tmp_path / "file", b"")
    theirs = raised(lambda: library.save_file(tensors, tmp_path / name, metadata))
    assert theirs is not None
    with pytest.raises(theirs):
        safetensors.torch.save_file(tensors, tmp_path / name, metadata)
    assert os.listdir(tmp_path) == ["file"]
    assert ("left to safetensors itself" in caplog.text) == (kind in LEFT)


@pytest.mark.parametrize("path", [5, None, b"o"])
def test_saves_to_no_path_raise_the_librarys_errors(library: ModuleType, patched: list[Any], path: Any) -> None:
    with pytest.raises(TypeError):
        library.save_file({"a": X}, path)
    with pytest.raises(TypeError):
        safetensors.torch.save_file({"a": X}, path)


def test_errors_are_safetensors_and_fastios(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    library.save_file({"weight": torch.ones(3)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        for read in (file.get_tensor, file.get_slice):
            with pytest.raises(SafetensorError, match="alike: 'weight'") as missing:
                read("weigth")
            assert isinstance(missing.value, fastio.TensorMissingError)
        with pytest.raises(TypeError):
            file.get_tensor(5)
    again = pickle.loads(pickle.dumps(missing.value))
    assert type(again) is type(missing.value)
    assert str(again) == str(missing.value)
    written(tmp_path / "a", (tmp_path / "a").read_bytes()[:-1])
    for load in (safetensors.torch.load_file, lambda path: safetensors.safe_open(path, "pt")):
        with pytest.raises(SafetensorError) as short:
            load(tmp_path / "a")
        assert isinstance(short.value, fastio.CorruptFileError)
    assert pickle.loads(pickle.dumps(short.value)).path == str(tmp_path / "a")
    with pytest.raises(SafetensorError, match="make it first") as nowhere:
        safetensors.torch.save_file({"x": X}, tmp_path / "none" / "a")
    assert isinstance(nowhere.value, FileNotFoundError)
    assert isinstance(pickle.loads(pickle.dumps(nowhere.value)), SafetensorError)


def test_damage_is_never_left_to_the_library(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    library.save_file({"x": torch.ones(10_000)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "pt") as file:
        part = file.get_slice("x")
        os.truncate(tmp_path / "a", 1000)
        for read in (lambda: file.get_tensor("x"), lambda: part[5:], file.get_tensors):
            with pytest.raises(SafetensorError) as error:
                read()
            assert isinstance(error.value, fastio.CorruptFileError)


def test_other_frameworks_are_left_to_the_library(
    tmp_path: Path, library: ModuleType, patched: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    safetensors.numpy.save_file({"x": np.arange(5)}, tmp_path / "a")
    with (
        caplog.at_level(logging.INFO, "fastio.integrations"),
        safetensors.safe_open(tmp_path / "a", framework="np") as file,
    ):
        assert isinstance(file, library.safe_open)
        assert file.get_tensor("x").tolist() == [0, 1, 2, 3, 4]
    assert "framework='np': read by safetensors itself" in caplog.text
    assert safetensors.numpy.load_file(tmp_path / "a")["x"].tolist() == [0, 1, 2, 3, 4]
    assert patched == []


def test_several_threads_read_from_one_open_file(tmp_path: Path, library: ModuleType, patched: list[Any]) -> None:
    tensors = {f"{n}": torch.full((1000,), n) for n in range(40)}
    library.save_file(tensors, tmp_path / "a")
    file = safetensors.safe_open(tmp_path / "a", "pt")
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    found: dict[str, torch.Tensor] = {}

    def work(part: int) -> None:
        found.update({name: slices[name][...] for name in list(slices)[part::4]})

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensor) for name, tensor in tensors.items())


def names() -> list[tuple[ModuleType, str]]:
    return [(safetensors, "safe_open"), (safetensors.torch, "safe_open"), (safetensors.torch, "load_file"),
            (safetensors.torch, "save_file"), (sys.modules["early_library"], "opener")]  # fmt: skip


def test_names_in_all_modules_are_replaced_and_restored(
    tmp_path: Path, library: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "early_library.py").write_text("from safetensors import safe_open as opener\n")
    (tmp_path / "late_library.py").write_text("from safetensors.torch import load_file, save_file, safe_open\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("early_library")
    before = [getattr(*place) for place in names()]
    first = fastio.patch_safetensors()
    inside = [getattr(*place) for place in names()]
    assert not {id(one) for one in inside} & {id(one) for one in before}
    with contextlib.suppress(ZeroDivisionError), fastio.patch_safetensors():
        __import__("late_library")
        raise ZeroDivisionError
    assert [getattr(*place) for place in names()] == inside
    late = sys.modules["late_library"]
    assert late.load_file is safetensors.torch.load_file is inside[2]
    assert inspect.signature(inside[2]) == inspect.signature(library.load_file)
    assert inspect.signature(inside[3]) == inspect.signature(library.save_file)
    assert isinstance(inside[0], type)
    first.undo()
    first.undo()
    assert [getattr(*place) for place in names()] == before
    assert [late.safe_open, late.load_file, late.save_file] == before[1:4]
    second = fastio.patch_safetensors()
    first.undo()
    assert safetensors.torch.load_file is not before[2]
    second.undo()
    assert safetensors.torch.load_file is before[2]


def test_saves_without_metadata_have_none_and_differ_from_the_librarys_in_the_header_alone(
    tmp_path: Path, library: ModuleType, patched: list[Any]
) -> None:
    # safetensors' own tests pass under the patch but for three: two compare the bytes of a header, one this message.
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7)}
    safetensors.torch.save_file(tensors, tmp_path / "ours")
    library.save_file(tensors, tmp_path / "theirs")
    with safetensors.safe_open(tmp_path / "ours", "pt") as file:
        assert file.metadata() is None
    ours, theirs = ((tmp_path / name).read_bytes() for name in ("ours", "theirs"))
    data = [content[8 + int.from_bytes(content[:8], "little") :] for content in (ours, theirs)]
    assert data[0] == data[1]
    with pytest.raises(FileNotFoundError, match=r"No such file or directory; expected .*: check the path: 'notafile'"):
        safetensors.safe_open("notafile", framework="pt")


@pytest.mark.usefixtures("patched")
def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n")
    for call in (safetensors.torch.load_file, lambda file: safetensors.safe_open(file, "pt")):
        with pytest.raises(SafetensorError, match=r"Git LFS pointer.*git lfs pull") as found:
            call(path)
        assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)
