"""What cannot be pickled is named: file, place in the object, type and cure; with the classes that pickle raises."""

from __future__ import annotations

import io
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class Refusing:
    def __reduce__(self) -> Any:
        raise RuntimeError("I refuse")


def state(value: Any) -> dict[str, Any]:
    return {"weight": torch.ones(3), "optimizer": {"lr": 0.1, "hooks": [1, Holder((2, value))]}}


PLACE = r"obj\['optimizer'\]\['hooks'\]\[1\].held\[1\] is a "


@pytest.mark.parametrize("arguments", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
@pytest.mark.parametrize(
    ("value", "kind", "cure"),
    [
        (lambda: None, "function", "define it at the top of a module"),
        (threading.Lock(), "lock", "save what it holds as tensors and plain data"),
        ((one for one in ()), "generator", "leave it out"),
    ],
    ids=["function", "lock", "generator"],
)
def test_what_cannot_be_pickled_is_named(
    tmp_path: Path, value: Any, kind: str, cure: str, arguments: dict[str, Any]
) -> None:
    path = tmp_path / "a.pt"
    fastio.save({}, path)
    before = path.read_bytes()
    with pytest.raises(fastio.UnpicklableError, match=f"a.pt: {PLACE}{kind}, and cannot be saved: .*{cure}") as raised:
        fastio.save(state(value), path, **arguments)
    with pytest.raises((pickle.PicklingError, TypeError, AttributeError)) as torchs:
        torch.save(state(value), tmp_path / "b.pt", **arguments)
    assert isinstance(raised.value, type(torchs.value))
    assert str(torchs.value) in str(raised.value)
    assert path.read_bytes() == before


def test_the_place_is_named_for_file_objects_and_under_the_patch() -> None:
    with pytest.raises(fastio.UnpicklableError, match=f"<file object>: {PLACE}function"):
        fastio.save(state(lambda: None), io.BytesIO())
    with fastio.patch_torch(), pytest.raises(fastio.UnpicklableError, match=f"{PLACE}function"):
        torch.save(state(lambda: None), io.BytesIO())


def test_an_error_of_the_objects_own_keeps_its_class(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"a.pt: {PLACE}Refusing, and cannot be saved: I refuse"):
        fastio.save(state(Refusing()), tmp_path / "a.pt")


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    call: Any = fastio.save
    with pytest.raises(TypeError, match="unexpected keyword") as raised:
        call({}, tmp_path / "a.pt", compress=True)
    assert not isinstance(raised.value, fastio.FastIOError)


def test_cycles_and_depth(tmp_path: Path) -> None:
    ring: list[Any] = [lambda: None]
    ring.insert(0, ring)
    with pytest.raises(fastio.UnpicklableError, match=r"obj\[1\] is a function"):
        fastio.save(ring, tmp_path / "a.pt")
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RecursionError, match=r"a\.pt: obj cannot be pickled, it is nested too deeply"):
        fastio.save(deep, tmp_path / "a.pt")
