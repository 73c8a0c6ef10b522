"""``fastio.load(mmap=True)`` copies nothing, in every format; the file never changes, and a short one is an error."""

from __future__ import annotations

import io
import mmap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from objects import DTYPES, assorted, same, tensor_of

HELD = [dtype for dtype in DTYPES if dtype not in (torch.complex128, torch.complex32)]  # by safetensors


def save(folder: Path, suffix: str, seed: int = 0) -> tuple[Path, Any]:
    path = folder / f"a.{suffix}"
    tensors = {f"{dtype}": tensor_of(dtype, 40, 60, seed=seed) for dtype in HELD} | {"empty": torch.empty(0, 3)}
    obj: Any = {"pt": assorted(), "safetensors": tensors, "npy": torch.randn(300, 40).t()}[suffix]
    fastio.save(obj, path)
    return path, obj


def loads(f: Any, **arguments: Any) -> tuple[Any, fastio.Transfer]:
    with fastio.record() as transfers:
        found = fastio.load(f, mmap=True, **arguments)
    return found, transfers[-1]


def tensors_of(found: Any) -> list[torch.Tensor]:
    values = found.values() if isinstance(found, dict) else [found]
    return [value for value in values if isinstance(value, torch.Tensor) and value.layout == torch.strided]


def mapped_bytes(path: Path) -> list[range]:
    """The addresses at which this process has mapped a file."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if len(line) > 5 and line[5] == str(path)]
    return [range(int(begin, 16), int(end, 16)) for begin, end in spans]


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npy"])
def test_equals_a_plain_load_without_a_copy(tmp_path: Path, suffix: str) -> None:
    path, _ = save(tmp_path, suffix)
    plain, before = fastio.load(path), path.read_bytes()
    found, transfer = loads(path)
    assert same(found, plain)
    assert (transfer.tool, transfer.route, transfer.verified) == ("mmap", "mmap", False)
    assert transfer.fallbacks == ("not verified: mapped pages are read when they are used",)
    assert loads(path, verify=False)[1].fallbacks == ()
    spans = mapped_bytes(path)
    for tensor in tensors_of(found):
        if tensor.numel():
            assert any(tensor.data_ptr() in span for span in spans)
            tensor.detach().untyped_storage().fill_(0)
    assert path.read_bytes() == before
    assert same(fastio.load(path, mmap=True), plain)
    path.unlink()
    del plain, found
    assert not mapped_bytes(path)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_keys_and_devices(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    fastio.save({"x": torch.ones(1000), "y": torch.zeros(5)}, path)
    found, transfer = loads(path, keys=["x"], map_location="cpu")
    assert same(found, {"x": torch.ones(1000)})
    assert transfer.nbytes == 4000
    if suffix == "safetensors":
        with pytest.raises(fastio.FastIOError, match=r"map_location=.cpu."):
            fastio.load(path, "cuda", mmap=True)


def test_storages_that_tensors_share(tmp_path: Path) -> None:
    base, path = torch.arange(1000.0), tmp_path / "a.pt"
    fastio.save([base, base[10:]], path)
    whole, part = fastio.load(path, mmap=True)
    whole[10] = -1
    assert part[0] == -1


def test_a_file_of_torch_and_its_setting(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": torch.arange(100000)}, path)
    assert same(loads(path)[0], {"x": torch.arange(100000)})
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        found, transfer = loads(path)
        assert transfer.tool == "torch"
        found["x"][0] = 7
    assert torch.load(path)["x"][0] == 7
    config = pytest.importorskip("torch.utils.serialization", reason="before torch 2.7").config
    with config.patch("load.mmap", True):
        for suffix, route in (("pt", "mmap"), ("safetensors", "")):
            fastio.save({"x": torch.ones(3)}, tmp_path / f"b.{suffix}")
            with fastio.record() as transfers:
                fastio.load(tmp_path / f"b.{suffix}")
            assert (transfers[0].route == "mmap") == (route == "mmap")


def test_safetensors_of_others_that_are_not_aligned(tmp_path: Path) -> None:
    path, header = tmp_path / "a.safetensors", b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}} '
    header += b" " * (-(8 + len(header)) % 4 + 1)
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.arange(3, dtype=np.float32).tobytes())
    assert same(safetensors.torch.load_file(path), {"x": torch.arange(3.0)})
    found, transfer = loads(path)
    assert same(found, {"x": torch.arange(3.0)})
    assert found["x"].data_ptr() % 4 == 0
    assert any("copied: 1 storages" in note for note in transfer.fallbacks)


def test_empty_tensors_share_their_storage_as_in_torch(tmp_path: Path) -> None:
    """Also where the records of an archive by another program are not aligned, and others are copied."""
    tensor = torch.empty((3, 0), dtype=torch.int32)
    path = tmp_path / "a.pt"
    torch.save({"one": tensor, "other": tensor.view(3, 0), "full": torch.ones(3)}, path)
    with zipfile.ZipFile(path) as good, zipfile.ZipFile(tmp_path / "b.pt", "w") as moved:
        for number, name in enumerate(good.namelist()):
            info = zipfile.ZipInfo(name)
            info.extra = b"FB" + (number % 7).to_bytes(2, "little") + bytes(number % 7)
            moved.writestr(info, good.read(name))
    for each in path, tmp_path / "b.pt":
        for load in torch.load, fastio.load:
            found = load(each, mmap=True)
            assert found["one"].untyped_storage()._cdata == found["other"].untyped_storage()._cdata
            assert torch.equal(found["full"], torch.ones(3))


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npy"])
def test_a_short_file_is_an_error_at_the_load(tmp_path: Path, suffix: str) -> None:
    path, _ = save(tmp_path, suffix)
    data = path.read_bytes()
    for length in (len(data) - 1, len(data) - 5000, len(data) // 2, 5000, 100, 1, 0):
        path.write_bytes(data[:length])
        with pytest.raises((RuntimeError, EOFError)):
            fastio.load(path, mmap=True)


def test_file_objects_are_refused(tmp_path: Path) -> None:
    for suffix in ("pt", "safetensors", "npy"):
        path, _ = save(tmp_path, suffix)
        with pytest.raises(ValueError, match="path"):
            fastio.load(io.BytesIO(path.read_bytes()), mmap=True)
