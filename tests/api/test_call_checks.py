"""Wrong arguments of save and load: torch's exceptions, before any file is touched, in words that help."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fastio.save({"x": torch.ones(3)}, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def error_of(call: Any, *arguments: Any, **keywords: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the classes are compared
        call(*arguments, **keywords)
    return raised.value


@pytest.mark.parametrize("target", [None, 3, {"x": 1}, ["a.pt"], b"a.pt"])
def test_what_is_no_file_is_refused(target: Any) -> None:
    """torch raises AttributeError, which says nothing of the argument."""
    saved, loaded = error_of(fastio.save, {"x": torch.ones(3)}, target), error_of(fastio.load, target)
    assert (type(saved), type(loaded)) == (TypeError, TypeError)
    assert "expected a path" in str(saved)
    assert "expected a path" in str(loaded)


def test_swapped_arguments_of_a_save_say_which_comes_first() -> None:
    with pytest.raises(TypeError, match=r"f is a dict: .* save\(obj, f\)"):
        fastio.save("a.pt", {"x": torch.ones(3)})  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:pickle_load_args")  # torch's, before its error
@pytest.mark.parametrize("weights_only", [None, True, False])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("device", "map_location= says"),
        ("wieghts_only", "did you mean weights_only="),
        ("map_lokation", "did you mean map_location="),
        ("strict", "load_model"),
        ("anything", "expected one of map_location"),
    ],
)
def test_a_keyword_that_no_unpickler_takes_is_no_damage_of_the_file(
    path: Path, name: str, hint: str, weights_only: bool | None
) -> None:
    call: Any = fastio.load
    with pytest.raises(TypeError, match=hint) as raised:
        call(path, weights_only=weights_only, **{name: 1})
    assert not isinstance(raised.value, fastio.FastIOError)
    assert type(raised.value) is type(error_of(torch.load, path, weights_only=weights_only, **{name: 1}))


@pytest.mark.parametrize(("name", "value"), [("errors", "strict"), ("fix_imports", True)])
def test_keywords_of_the_full_unpickler_need_it(path: Path, name: str, value: Any) -> None:
    call: Any = fastio.load
    with pytest.raises(TypeError, match=f"{name}= with weights_only=False"):
        call(path, **{name: value})
    assert call(path, weights_only=False, **{name: value})["x"].sum() == 3
    assert call(path, encoding="utf-8")["x"].sum() == 3


def test_keywords_of_torch_load_are_checked_under_the_patch_and_for_file_objects(path: Path) -> None:
    with fastio.patch_torch(), pytest.raises(TypeError, match="map_location"):
        torch.load(path, device="cpu")
    call: Any = fastio.load
    with pytest.raises(TypeError, match="map_location"):
        call(io.BytesIO(path.read_bytes()), device="cpu")


def test_keywords_of_a_pickle_module_are_its_own(path: Path) -> None:
    import pickle

    class Module:
        load = staticmethod(pickle.load)

        class Unpickler(pickle.Unpickler):
            def __init__(self, file: Any, special: int = 0, **keywords: Any) -> None:
                assert special == 7
                super().__init__(file, **keywords)

    call: Any = fastio.load
    assert call(path, weights_only=False, pickle_module=Module, special=7)["x"].sum() == 3
