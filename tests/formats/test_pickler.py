"""The native pickler writes the same bytes as torch's pickler."""

from __future__ import annotations

import copyreg
import functools
import io
import random
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
from accelerators import DEVICE
from fastio.formats.pt import pickler
from state_objects import made

# Records that depend on fastio's own layout of storages.
LAYOUT = (".storage_alignment", ".data/serialization_id")


def fastio_save(value: Any, path: Path, **arguments: Any) -> None:
    assert fastio.save(value, path, policy="posix", **arguments).tool == "posix"


def records(save: Callable[..., Any], value: Any, folder: Path, **arguments: Any) -> dict[str, bytes]:
    path = folder / "it.pt"
    save(value, path, **arguments)
    with zipfile.ZipFile(path) as archive:
        found = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in found.items() if name not in LAYOUT}


def same(value: Any, folder: Path, **arguments: Any) -> None:
    """Assert that fastio writes the same records as torch, in the same order: that of newer torches."""
    ours, theirs = (records(save, value, folder, **arguments) for save in (fastio_save, torch.save))
    assert ours == theirs
    names = list(theirs)
    if "data/10" not in theirs or names.index("data/2") < names.index("data/10"):  # torch 2.6 sorts the names as text
        assert list(ours) == names


@pytest.mark.parametrize("seed", range(60))
def test_random_objects_are_pickled_as_by_torch(tmp_path: Path, seed: int) -> None:
    chance = random.Random(1000 * seed)
    same([made(chance) for _ in range(5)], tmp_path)


def numbers() -> list[int]:
    edges = [0, *(1 << bits for bits in (7, 8, 15, 16, 31, 32, 39, 40, 55, 56, 62))]
    around = [edge + off for edge in edges for off in (-1, 0, 1)]
    return [*around, *(-number for number in around), (1 << 63) - 1, -(1 << 63)]


def with_attributes() -> OrderedDict[str, Any]:
    state = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()  # whose _metadata is an attribute
    assert vars(state)
    return state


def moved() -> OrderedDict[str, int]:
    """Return an OrderedDict whose order is not that of insertion."""
    found = OrderedDict(a=1, b=2, c=3)
    found.move_to_end("a")
    return found


def shared() -> list[Any]:
    tensor, text, items = torch.arange(12.0), "a text", [1, 2]
    views = [tensor, tensor[3:], tensor.view(3, 4).T, tensor.detach()]
    parameter = nn.Parameter(tensor)
    return [views, tensor, text, items, {"x": items, text: text}, (text, items), parameter, [parameter], views]


def holding_itself() -> list[Any]:
    table: dict[str, Any] = {}
    ordered: OrderedDict[str, Any] = OrderedDict()
    items: list[Any] = [table, ordered]
    table["items"] = ordered["items"] = items
    vars(ordered)["table"] = table
    return items


def trained() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "weights": list(model.parameters())}


COUNTS = (0, 1, 2, 999, 1000, 1001, 2000, 2001)
VALUES: dict[str, Callable[[], Any]] = {
    "numbers": numbers,
    "text": lambda: ["", "x" * 300, "\u00e9\U0001f600", "storage", "cpu", {"0": torch.ones(2), "1": torch.ones(3)}],
    "lists": lambda: [[list(range(n))] for n in COUNTS],
    "dicts": lambda: [{i: str(i) for i in range(n)} for n in COUNTS],
    "ordered": lambda: [OrderedDict((str(i), i) for i in range(n)) for n in COUNTS],
    "moved": moved,
    "tuples": lambda: [tuple(range(n)) for n in range(6)],
    "attributes": with_attributes,
    "shared": shared,
    "holding itself": holding_itself,
    "trained": trained,
    "dtypes": lambda: [torch.float32, torch.bfloat16, torch.float32],
    "empty": lambda: [torch.empty(0), torch.empty(0, 3), torch.tensor(1), torch.empty(0, dtype=torch.int8)],
    "many": lambda: [torch.full((2,), float(i)) for i in range(300)],
    "grad": lambda: [torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2), requires_grad=False)],
    "typed": lambda: [torch.ones(3, dtype=d) for d in (torch.bool, torch.bfloat16, torch.complex128, torch.int16)],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_supported_values_are_pickled_natively(tmp_path: Path, name: str) -> None:
    value = VALUES[name]()
    assert pickler.pickle(value) is not None
    same(value, tmp_path)


@pytest.mark.gpu
def test_gpu_tensors_are_pickled_natively(tmp_path: Path) -> None:
    tensor = torch.ones(5, device=DEVICE)
    value = [tensor, tensor[1:], torch.ones(2), nn.Parameter(tensor), torch.ones(3, device=DEVICE)]
    assert pickler.pickle(value) is not None
    ours, theirs = (records(save, value, tmp_path)["data.pkl"] for save in (fastio.save, torch.save))
    assert ours == theirs


def test_native_pickling_calls_no_reducer_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = records(torch.save, value := trained(), tmp_path)

    def refuse(*_: Any) -> Any:
        raise AssertionError("torch is asked")

    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", refuse)
    monkeypatch.setattr(nn.Parameter, "__reduce_ex__", refuse)
    assert records(fastio_save, value, tmp_path) == expected


class Nested:
    """An object that is pickled as a file of torch's."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getstate__(self) -> bytes:
        torch.save(self.tensor, buffer := io.BytesIO())
        return buffer.getvalue()

    def __setstate__(self, state: bytes) -> None:
        self.tensor = torch.load(io.BytesIO(state))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch's own, of quantized tensors
def test_what_torch_pickles_is_the_same_beside_a_device(tmp_path: Path) -> None:
    on_device = torch.ones(5, device=DEVICE)  # what is on a device is not copied to the host for the pickle
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    value = [on_device, quantized(), ragged, Nested(torch.arange(1000))]
    assert pickler.pickle(value) is None
    fastio.save(value, tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", weights_only=False)
    assert torch.equal(found[0], on_device)
    assert torch.equal(found[1].dequantize(), value[1].dequantize())
    assert all(map(torch.equal, found[2].unbind(), ragged.unbind()))
    assert torch.equal(found[3].tensor, value[3].tensor)


class Marked(torch.Tensor):
    """A subclass."""


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = "remember"  # type: ignore[attr-defined]
    return tensor


def itself_in_a_tuple() -> Any:
    items: list[Any] = []
    items.append((items, 1))
    return items[0]


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


LEFT: dict[str, Callable[[], Any]] = {
    "a subclass": lambda: torch.ones(3).as_subclass(Marked),
    "attributes": lambda: with_attribute(torch.ones(3)),
    "a parameter's attributes": lambda: with_attribute(nn.Parameter(torch.ones(3))),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.ones(3, device="meta"),
    "quantized": quantized,
    "a new dtype": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "a storage": lambda: torch.ones(3).untyped_storage(),
    "surrogates": lambda: "\udcff",
    "long": lambda: 1 << 63,
    "bytes": lambda: b"bytes",
    "a set": lambda: {1, 2},
    "a tuple in itself": itself_in_a_tuple,
    "deep": lambda: functools.reduce(lambda inner, _: [inner], range(150), []),
    "a function": lambda: torch.add,
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_unsupported_values_are_pickled_by_torch(tmp_path: Path, name: str) -> None:
    tensor = torch.ones(2)
    value = [tensor, LEFT[name](), tensor]
    assert pickler.pickle(value) is None
    same(value, tmp_path)


def test_views_of_two_dtypes_raise_as_in_torch(tmp_path: Path) -> None:
    tensor = torch.ones(4)
    value = [tensor, tensor.view(torch.int32)]
    for save in (torch.save, fastio_save):
        with pytest.raises(RuntimeError, match="view the same data as different types"):
            save(value, tmp_path / "it.pt")


def test_tensor_hooks_cause_a_warning(tmp_path: Path) -> None:
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    with pytest.warns(UserWarning, match="will not be serialized"):
        fastio_save([tensor], tmp_path / "it.pt")


@pytest.fixture
def reduced_otherwise() -> Iterator[None]:
    copyreg.pickle(torch.Tensor, lambda tensor: (torch.Size, (tuple(tensor.shape),)))  # type: ignore[arg-type]
    yield
    del copyreg.dispatch_table[torch.Tensor]


@pytest.mark.usefixtures("reduced_otherwise")
def test_registered_copyreg_reducer_is_used(tmp_path: Path) -> None:
    assert pickler.pickle([torch.ones(2, 3)]) is None
    same([torch.ones(2, 3)], tmp_path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_writes_what_torch_writes(tmp_path: Path, protocol: int) -> None:
    same(trained(), tmp_path, pickle_protocol=protocol)
