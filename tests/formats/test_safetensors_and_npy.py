"""``.safetensors`` and ``.npy`` files round-trip with their libraries; unsupported objects raise."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from objects import DTYPES, same, same_bits, tensor_of

TOOLS = ["uring", "posix", "torch", "numpy", "memory"]
# numpy has no dtype for these; the library's own writer refuses complex64 in some versions.
NO_NPY = {"torch.bfloat16", "torch.complex32", "torch.float4_e2m1fn_x2"}


def some() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(300, 400),
        "half": tensor_of(torch.bfloat16, 7),
        "bytes": tensor_of(torch.uint8, 3),
        "none": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "columns": torch.randn(50, 60).t(),
    }


@pytest.mark.parametrize("tool", TOOLS)
def test_safetensors_files_round_trip_with_the_library(tmp_path: Path, tool: str) -> None:
    path, obj = tmp_path / "a.safetensors", some()
    assert fastio.save(obj, path, policy=tool).format == "safetensors"
    for loaded in (safetensors.torch.load_file(path), fastio.load(path, policy=tool)):
        assert set(loaded) == set(obj)
        assert all(torch.equal(loaded[name], obj[name]) for name in obj)
    library = {name: tensor.contiguous() for name, tensor in obj.items()}
    safetensors.torch.save_file(library, path, metadata={"made": "by the library"})
    loaded = fastio.load(path, policy=tool)
    assert all(torch.equal(loaded[name], obj[name]) for name in obj)


@pytest.mark.parametrize("tool", TOOLS)
def test_files_have_the_expected_bytes(tmp_path: Path, tool: str) -> None:
    """Headers are the libraries' own, padded with spaces so that the data begins on a page."""
    tensors, header = tmp_path / "a.safetensors", b'{"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
    obj = {"b": torch.arange(3, dtype=torch.int16), "a": torch.ones(1, 2)}
    fastio.save(obj, tensors, policy=tool, checksums=False)
    header += b'"b":{"dtype":"I16","shape":[3],"data_offsets":[8,14]}}'
    payload = bytes.fromhex("0000803f 0000803f 0000 0100 0200")
    assert tensors.read_bytes() == (4088).to_bytes(8, "little") + header.ljust(4088) + payload
    array, header = tmp_path / "a.npy", b"{'descr': '<i2', 'fortran_order': False, 'shape': (1, 3)}"
    fastio.save(torch.arange(3, dtype=torch.int16).reshape(1, 3), array, policy=tool)
    payload = bytes.fromhex("0000 0100 0200")
    assert (
        array.read_bytes() == b"\x93NUMPY\x01\x00" + (4086).to_bytes(2, "little") + header.ljust(4085) + b"\n" + payload
    )


def test_safetensors_metadata_is_read_by_the_library(tmp_path: Path) -> None:
    path, obj, metadata = tmp_path / "a.safetensors", some(), {"format": "pt", "grüße": "…"}
    stream = io.BytesIO()
    fastio.save(obj, stream, format="safetensors", metadata=metadata)
    fastio.save(obj, path, metadata=metadata)
    assert path.read_bytes() == stream.getvalue()
    with safetensors.safe_open(path, "pt") as file:
        found = file.metadata()
        assert found.pop("fastio.checksums")
        assert found == metadata
    assert fastio.load(path).keys() == obj.keys()
    with pytest.raises(fastio.FormatError, match="str to str"):
        fastio.save(obj, path, metadata={"step": 3})
    for name in ("a.pt", "a.npy"):
        with pytest.raises(TypeError, match="metadata"):
            fastio.save(torch.ones(3), tmp_path / name, metadata=metadata)


def test_safetensors_data_starts_on_a_page(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    fastio.save(some(), path)
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 4096 == 0


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        ([torch.ones(1)], "dict of tensors"),
        ({"x": 5}, "not a tensor"),
        ({3: torch.ones(1)}, "names are str"),
        ({"__metadata__": torch.ones(1)}, "rename"),
        ({"x": torch.eye(3).to_sparse()}, "to_dense"),
        ({"x": tensor_of(torch.complex128, 3)}, "complex128"),
    ],
)
def test_saving_unsupported_objects_as_safetensors_raises_and_writes_nothing(
    tmp_path: Path, obj: Any, problem: str
) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(fastio.FormatError, match=problem):
        fastio.save(obj, path)
    assert list(tmp_path.iterdir()) == []


def test_saving_overlapping_tensors_as_safetensors_raises(tmp_path: Path) -> None:
    shared = torch.ones(10)
    for obj in ({"a": shared, "b": shared}, {"a": shared[:6], "b": shared[5:]}):
        with pytest.raises(fastio.FormatError, match=r"'a' and 'b' share memory.*clone"):
            fastio.save(obj, tmp_path / "a.safetensors")
    fastio.save({"a": shared[:5], "b": shared[5:]}, tmp_path / "a.safetensors")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if "float8" not in str(d) and str(d) not in NO_NPY], ids=str)
def test_npy_files_round_trip_with_numpy(tmp_path: Path, tool: str, dtype: torch.dtype) -> None:
    path = tmp_path / "a.npy"
    for shape in ((100, 33), (), (0, 4), (5,)):
        tensor = tensor_of(dtype, *shape)
        fastio.save(tensor, path, policy=tool)
        assert same_bits(torch.from_numpy(np.load(path)), tensor)
        np.save(path, tensor.numpy())
        assert same_bits(fastio.load(path, policy=tool), tensor)


def test_npy_in_column_order_loads(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    array = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    np.save(path, array)
    assert np.array_equal(fastio.load(path).numpy(), array)


def test_npy_raises_for_unsupported_objects_and_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for obj in ([torch.ones(1)], torch.ones(2).bfloat16(), torch.eye(2).to_sparse()):
        with pytest.raises(fastio.FormatError):
            fastio.save(obj, path)
    for array in (np.array([{}], dtype=object), np.array(["text"]), np.array([1.0], dtype=">f8")):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(fastio.FormatError, match=r"numpy\.load"):
            fastio.load(path)


@pytest.mark.parametrize("kind", [">f8", "U3", "S3", "O", "M8[D]", "longdouble", [("x", "f4")]], ids=str)
def test_saving_arrays_whose_dtype_torch_lacks_as_npy_raises(tmp_path: Path, kind: Any) -> None:
    for shape in ((2, 3), ()):
        array = np.zeros(shape, np.dtype(kind))
        for target in (tmp_path / "a.npy", io.BytesIO()):
            with pytest.raises(fastio.FormatError, match=r"float32.*astype.*numpy\.save") as refused:
                fastio.save(array, target, format="npy")
            assert repr(array.dtype.str) in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["?", "i1", "u2", "u4", "i8", "u8", "f2", "f4", "c8", "longlong"])
def test_numpy_arrays_are_saved_as_npy(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.npy"
    for array in (np.arange(24).reshape(2, 3, 4)[::-1].astype(kind), np.ones((), kind)):
        fastio.save(array, path)
        assert np.array_equal(np.load(path), array)


def test_first_bytes_choose_the_format_on_load_and_the_suffix_on_save(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(10)}
    for name, form in (("a.npy", "pt"), ("b.pt", "safetensors"), ("c", "npy"), ("d.bin", None), ("E.NPY", None)):
        path = tmp_path / name
        obj: Any = tensors["x"] if form == "npy" or name == "E.NPY" else tensors
        result = fastio.save(obj, path, format=form)
        assert result.format == (form or ("npy" if name == "E.NPY" else "pt"))
        loaded = fastio.load(path)
        assert torch.equal(loaded if isinstance(loaded, torch.Tensor) else loaded["x"], tensors["x"])
    with pytest.raises(ValueError, match="expected one of"):
        fastio.save(tensors, tmp_path / "x", format="cpy")


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy"])
@pytest.mark.parametrize("protocol", range(1, pickle.HIGHEST_PROTOCOL + 1))  # torch does not load 0
def test_legacy_torch_files_load_with_any_suffix(tmp_path: Path, name: str, protocol: int) -> None:
    path, obj = tmp_path / name, {"x": torch.arange(10)}
    fastio.save(obj, path, format="pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
    with fastio.record() as transfers:
        assert same(fastio.load(path, weights_only=protocol == 2), obj)  # torch's restricted unpickler knows only 2
        with open(path, "rb") as file:
            assert same(fastio.load(file, weights_only=protocol == 2), obj)
    assert [(transfer.tool, transfer.path) for transfer in transfers] == [("torch", str(path))] * 2


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy", "a.bin"])
def test_truncated_files_raise_corrupt_file_error(tmp_path: Path, name: str) -> None:
    """Of a file with fewer than nine bytes only the suffix tells the format; without a suffix torch reads it."""
    path = tmp_path / name
    fastio.save(
        torch.ones(30) if name == "a.npy" else {"x": torch.ones(30)},
        path,
        format="npy" if name == "a.npy" else "safetensors",
    )
    whole = path.read_bytes()
    for length in (*range(0 if name != "a.bin" else 9, 101), len(whole) - 1):
        path.write_bytes(whole[:length])
        for call in (fastio.load, fastio.verify, fastio.explain):
            with pytest.raises(fastio.CorruptFileError, match=name):
                call(path)
        with open(path, "rb") as file, pytest.raises(fastio.CorruptFileError, match=name):
            fastio.load(file)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy"])
def test_damaged_first_bytes_raise_the_error_of_the_suffixs_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    fastio.save(torch.ones(30) if name == "a.npy" else {"x": torch.ones(30)}, path)
    whole = path.read_bytes()
    for place in range(9 if name == "a.safetensors" else 6):
        damaged = bytearray(whole)
        damaged[place] ^= 0x81
        path.write_bytes(damaged)
        for call in (fastio.load, fastio.verify):
            with pytest.raises(fastio.CorruptFileError, match=name):
                call(path)


def test_file_objects_are_saved_and_loaded_in_every_format(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(1000.0), "y": torch.ones(3)}
    for form in ("pt", "safetensors", "npy"):
        stream = io.BytesIO()
        obj: Any = tensors["x"] if form == "npy" else tensors
        assert fastio.save(obj, stream, format=form).route == "stream"
        (tmp_path / "file").write_bytes(stream.getvalue())
        stream.seek(0)
        with open(tmp_path / "file", "rb") as file, fastio.record() as transfers:
            for f in (tmp_path / "file", stream, file):
                assert same(fastio.load(f), obj)
        why = "f is a file object" if form == "pt" else "the file carries no checksums of its tensors"
        for transfer in transfers[1:]:
            assert (transfer.format, transfer.route, transfer.reason) == (form, "stream", "f is a file object")
            assert transfer.verified == (form == "safetensors")
            assert transfer.fallbacks == (() if transfer.verified else (f"not verified: {why}",))
        assert transfers[2].path == str(tmp_path / "file")


def test_file_objects_with_short_reads_load() -> None:
    class Dribbling(io.BytesIO):
        def read(self, nbytes: int | None = -1) -> bytes:
            return super().read(7 if nbytes is None or nbytes < 0 else min(nbytes, 7))

    for form in ("safetensors", "npy"):
        obj: Any = torch.arange(1000.0) if form == "npy" else {"x": torch.arange(1000.0)}
        whole = io.BytesIO()
        fastio.save(obj, whole, format=form)
        with fastio.record() as transfers:
            assert same(fastio.load(Dribbling(whole.getvalue())), obj)
        assert [transfer.format for transfer in transfers] == [form]


def test_file_objects_load_from_their_position_to_their_end(tmp_path: Path) -> None:
    tensors = some()
    for form in ("safetensors", "npy"):
        obj: Any = tensors["weight"] if form == "npy" else tensors
        for before in (b"x", b"PK\x03\x04" + bytes(5000)):
            stream = io.BytesIO(before)
            stream.seek(len(before))
            fastio.save(obj, stream, format=form)
            stream.seek(len(before))
            loaded = fastio.load(stream)
            assert torch.equal(loaded, obj) if form == "npy" else all(torch.equal(loaded[n], obj[n]) for n in obj)
            assert stream.tell() == len(stream.getvalue())
    with gzip.open(tmp_path / "a.npy.gz", "wb") as packed:
        np.save(packed, tensors["weight"].numpy())
    with gzip.open(tmp_path / "a.npy.gz", "rb") as packed:
        assert torch.equal(fastio.load(packed), tensors["weight"])


def test_error_for_a_damaged_file_object_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    fastio.save(torch.arange(1000), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with open(path, "rb") as file, pytest.raises(fastio.CorruptFileError, match=r"a\.npy.*needs 7.81 KiB .8,000 bytes"):
        fastio.load(file)
    with pytest.raises(fastio.CorruptFileError, match=r"<file object>.*needs 7.81 KiB .8,000 bytes"):
        fastio.load(io.BytesIO(whole + b"more"))


@pytest.mark.parametrize("shape", [[0, 1 << 63], [0, 1 << 70], [0, 1 << 62, 1 << 62]], ids=str)
def test_impossible_shapes_without_bytes_raise(tmp_path: Path, shape: list[int]) -> None:
    tensors, array = tmp_path / "a.safetensors", tmp_path / "a.npy"
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    tensors.write_bytes(len(header).to_bytes(8, "little") + header)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {tuple(shape)}, }}\n".encode()
    array.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    for path in (tensors, array):
        with pytest.raises(fastio.CorruptFileError, match="its shapes cannot be tensors") as raised:
            fastio.load(path)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy"])
def test_arguments_of_pt_only_raise_for_other_formats(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    obj: Any = torch.ones(3) if name == "a.npy" else {"x": torch.ones(3)}
    with pytest.raises(TypeError, match="pickle_protocol"):
        fastio.save(obj, path, pickle_protocol=4)
    fastio.save(obj, path)
    with pytest.raises(TypeError, match="encoding"):
        fastio.load(path, encoding="latin1")
    assert same(fastio.load(path, pickle_module=None), obj)
    with pytest.raises(ValueError, match="mmap=True needs a path"):
        fastio.load(io.BytesIO(path.read_bytes()), mmap=True)
    arguments: dict[str, Any]
    for arguments in ({"map_location": {"cuda": "cpu"}}, {"map_location": lambda s, _: s}):
        with pytest.raises(RuntimeError, match=r"\.pt"):
            fastio.load(path, **arguments)
        with pytest.raises(RuntimeError, match=r"\.pt"):
            fastio.load(io.BytesIO(path.read_bytes()), **arguments)


@pytest.mark.parametrize("name", ["a.safetensors", "a.npy", "tensors.bin"])
def test_error_for_a_missing_device_names_it_and_the_cure(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    obj: Any = torch.ones(3) if name == "a.npy" else {"x": torch.ones(3)}
    fastio.save(obj, path, format="npy" if name == "a.npy" else "safetensors")
    for device in ("meta", "vulkan", *(() if torch.cuda.is_available() else ("cuda", torch.device("cuda:7")))):
        with pytest.raises(fastio.FastIOError, match=rf"{name}.*{device}.*map_location='cpu'") as refused:
            fastio.load(path, device)
        assert isinstance(refused.value, RuntimeError)  # as torch.load's for a .pt file
        with open(path, "rb") as file, pytest.raises(RuntimeError, match=rf"{name}.*{device}.*map_location='cpu'"):
            fastio.load(file, device)
