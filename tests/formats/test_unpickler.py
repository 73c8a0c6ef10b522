"""The native unpickler makes the same objects as torch's."""

from __future__ import annotations

import io
import math
import pickle
import random
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _weights_only_unpickler

import fastio
from fastio import _native
from fastio.formats.pt import stored_tensors, unpickler
from fastio.formats.pt.reader import open_archive
from fastio.formats.safetensors.entries import Entry
from mutated_pickles import mutated
from state_objects import made


def described(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Return a comparable description of a value; a container inside itself becomes "itself"."""
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, torch.Tensor):
        numbers = repr(value.detach().flatten().tolist()) if value.numel() < 1000 else ""
        where = value.storage_offset(), tuple(value.shape), value.stride()
        hooks = described(value._backward_hooks, within)
        return type(value), value.dtype, where, value.requires_grad, value.is_conj(), value.is_neg(), hooks, numbers
    if isinstance(value, torch.TypedStorage):
        return torch.TypedStorage, value.dtype
    if isinstance(value, dict):
        items = [(described(key, within), described(item, within)) for key, item in value.items()]
        return type(value), items, described(getattr(value, "__dict__", None), within)
    if isinstance(value, list | tuple):
        return type(value), [described(item, within) for item in value]
    return type(value), repr(value)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("safe", [True, False])
def test_random_objects_load_as_by_torch(tmp_path: Path, seed: int, safe: bool) -> None:
    value = [made(random.Random(1000 * seed + turn)) for turn in range(5)]
    torch.save(value, tmp_path / "x.pt")
    loaded = fastio.load(tmp_path / "x.pt", weights_only=safe, policy="posix")
    assert described(loaded) == described(torch.load(tmp_path / "x.pt", weights_only=safe))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch's unpickler fail if it is used."""

    def refuse(_: Any) -> Any:
        raise AssertionError("torch unpickled it")

    monkeypatch.setattr(_weights_only_unpickler.Unpickler, "load", refuse)


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("where", [None, "cpu", torch.device("cpu")])
def test_state_dicts_are_unpickled_natively(tmp_path: Path, where: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(5, 3)).sum().backward()
    optimizer.step()
    path = tmp_path / "x.pt"
    fastio.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, path)
    loaded = fastio.load(path, where, policy="posix")
    assert loaded["epoch"] == 3
    assert loaded["model"]._metadata == model.state_dict()._metadata
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded["model"][name], tensor)
    optimizer.load_state_dict(loaded["optimizer"])


@pytest.mark.usefixtures("no_torch")
def test_tensors_that_share_a_storage_share_it_after_loading(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    fastio.save({"base": base, "row": base[1], "turned": base.T, "again": base}, tmp_path / "x.pt")
    loaded = fastio.load(tmp_path / "x.pt", policy="posix")
    assert loaded["again"] is loaded["base"]
    loaded["base"].zero_()
    assert loaded["row"].eq(0).all()
    assert loaded["turned"].eq(0).all()
    assert loaded["turned"].stride() == (1, 4)


def test_cuda_storage_loads_to_map_location_or_raises_as_in_torch(tmp_path: Path) -> None:
    class Elsewhere(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cuda:0", 2) if isinstance(obj, torch.TypedStorage) else None

    pickled = io.BytesIO()
    Elsewhere(pickled, protocol=2).dump({"x": torch.tensor([1.0, 2.0])})
    path = tmp_path / "x.pt"
    torch.save({"x": torch.tensor([1.0, 2.0])}, path)
    writer: Any = torch._C.PyTorchFileWriter(str(path))
    writer.write_record("data.pkl", pickled.getvalue(), len(pickled.getvalue()))
    writer.write_record("data/0", struct.pack("<2f", 1, 2), 8)
    writer.write_end_of_file()
    assert fastio.load(path, "cpu")["x"].tolist() == [1.0, 2.0]
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="map_location"):
            fastio.load(path)


SEEDS = [
    {"a": torch.ones(3), "n": [1, 2.5, "x", None, True, -(1 << 70)], "o": OrderedDict(z=1)},
    {f"layer.{i}": torch.full((2, i), float(i)) for i in range(300)},
    [torch.nn.Parameter(torch.ones(2)), (torch.float16, torch.Size([1])), {"k": {"l": {}}}],
]


def test_native_unpickler_agrees_with_torch_on_mutated_pickles() -> None:
    """3,000 mutations of three pickles: if the native unpickler reads one, torch's gives the same result."""
    storages = {str(key): torch.ones(4096) for key in range(400)}

    def load(saved_id: Any) -> Any:
        if saved_id and saved_id[0] != "storage":
            raise pickle.UnpicklingError
        _, kind, key, *_ = saved_id
        untyped = storages[key].untyped_storage()
        return torch.TypedStorage(wrap_storage=untyped, dtype=kind.dtype, _internal=True)

    understood = 0
    for index, seed in enumerate(SEEDS):
        archive = io.BytesIO()
        torch.save(seed, archive)
        archive.seek(0)
        data = torch._C.PyTorchFileReader(archive).get_record("data.pkl")
        chance = random.Random(index)
        for turn in range(1000):
            pickled = mutated(data, chance) if turn else data
            try:
                found = _native.unpickle(pickled, unpickler.allowed_globals(), unpickler.CALLS, load)
            except Exception as error:
                found = error
            if found is None:
                assert turn, "the seed itself"
                continue
            torchs = torchs_unpickler(pickled, load)
            understood += 1
            if isinstance(found, Exception):
                with pytest.raises(type(found)):
                    torchs.load()
                continue
            assert described(found[0]) == described(torchs.load())
    assert understood > 200


def torchs_unpickler(pickled: bytes, load: Callable[[Any], Any]) -> Any:
    """Torch's unpickler of a pickle, with ``load`` for its storages."""
    made = _weights_only_unpickler.Unpickler(io.BytesIO(pickled), encoding="utf-8")
    made.persistent_load = load
    return made


def placed(value: Any, places: dict[int, int], within: tuple[int, ...] = ()) -> Any:
    """Describe containers as they are, and what stands for a tensor, or is one, by dtype, shape, strides and place."""
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, Entry):
        begin = value.offset if value.nbytes else 0
        return "tensor", value.dtype, value.shape, value.stride if value.nbytes else None, begin
    if isinstance(value, torch.Tensor):
        stride = list(value.stride()) if value.numel() and not value.is_contiguous() else None
        begin = places[value.untyped_storage()._cdata] + value.storage_offset() * value.dtype.itemsize
        return "tensor", value.dtype, list(value.shape), stride, begin if value.numel() else 0
    if isinstance(value, dict):
        return [(placed(key, places, within), placed(item, places, within)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [placed(item, places, within) for item in value]
    return described(value)


def test_tensors_of_mutated_pickles_lie_where_torch_makes_them(tmp_path: Path) -> None:
    """Where no tensor is made, those that torch makes have the same dtypes, shapes, strides and places in the file."""
    understood = 0
    for index, seed in enumerate(SEEDS):
        path = tmp_path / f"{index}.pt"
        torch.save(seed, path)
        with path.open("rb") as file:
            archive = open_archive(str(path), file.fileno(), path.stat().st_size)
            data = archive.read("data.pkl", verify=True)
        storages = {r.name: torch.UntypedStorage(r.nbytes) for r in archive.storages}
        places = {storages[record.name]._cdata: record.offset for record in archive.storages}
        places[torch.UntypedStorage(0)._cdata] = 0

        def load(saved_id: Any, storages: Any = storages, places: Any = places) -> Any:
            if saved_id and saved_id[0] != "storage":
                raise pickle.UnpicklingError
            _, kind, key, *_ = saved_id
            untyped = storages.setdefault(f"data/{key}", torch.UntypedStorage(0))
            places.setdefault(untyped._cdata, 0)
            return torch.TypedStorage(wrap_storage=untyped, dtype=kind.dtype, _internal=True)

        chance = random.Random(index)
        for turn in range(1000):
            pickled = mutated(data, chance) if turn else data
            found = stored_tensors.unpickle(pickled, archive.records.get, True)
            if found is None:
                assert turn, "the seed itself"
                continue
            torchs = torchs_unpickler(pickled, load)
            understood += 1
            assert placed(found[0], places) == placed(torchs.load(), places)
    assert understood > 50


def test_huge_sizes_in_a_pickle_allocate_nothing() -> None:
    """A memo of four billion entries, text of four GB, and a number of 255 bytes that are not there."""
    for data in (b"\x80\x02}r\xff\xff\xff\xff.", b"\x80\x02X\xff\xff\xff\xffx.", b"\x80\x02\x8a\xff\x01."):
        assert _native.unpickle(data, {}, {}, math.floor) is None


def test_globals_that_are_not_allowed_are_never_called() -> None:
    pickled = pickle.dumps(print, protocol=2)
    called: list[Any] = []
    for data in (
        pickled,
        b"\x80\x02cbuiltins\nprint\n)R.",
        b"\x80\x02ccollections\nOrderedDict\n)R}(X\x01\x00\x00\x00aK\x01ub.",
    ):
        found = _native.unpickle(data, unpickler.allowed_globals(), {OrderedDict: OrderedDict}, called.append)
        assert found is None or found[0].a == 1
    assert not called
    not_callable = b"\x80\x02ctorch._utils\n_rebuild_parameter\n)R."
    assert _native.unpickle(not_callable, unpickler.allowed_globals(), {}, print) is None
