"""A pickle without sense in a sound archive: the error names the file. A user's own errors pass."""

from __future__ import annotations

import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from mutated_pickles import mutated

SENSELESS = {
    "a tuple without its mark": b"\x80\x02t.",
    "a call without a function": b"\x80\x02X\x01\x00\x00\x00aR.",
    "a memo nobody wrote": b"\x80\x02h\x03.",
    "an append to nothing": b"\x80\x02a.",
    "text that is not UTF-8": b"\x80\x02X\x02\x00\x00\x00\xff\xfe.",
    "no end": b"\x80\x02}q\x00",
    "a call of text": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "a tensor of one argument": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nK\x01\x85R.",
}


def archive_with(pickled: bytes, path: Path) -> None:
    """An archive whose checksums are right, with this pickle beside the storage of four numbers."""
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(4)}, buffer)
    records = zipfile.ZipFile(buffer)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in records.namelist():
            archive.writestr(name, pickled if name.endswith("data.pkl") else records.read(name))


@pytest.mark.parametrize("arguments", [{}, {"mmap": True}, {"map_location": "meta"}, {"weights_only": False}], ids=str)
@pytest.mark.parametrize("body", SENSELESS.values(), ids=SENSELESS.keys())
def test_a_senseless_pickle_raises_an_error_that_names_the_file(
    tmp_path: Path, body: bytes, arguments: dict[str, Any]
) -> None:
    path = tmp_path / "a.pt"
    archive_with(body, path)
    if arguments.get("weights_only") is False:  # such a pickle may call anything, wrongly too
        with pytest.raises((fastio.CorruptFileError, pickle.UnpicklingError, TypeError)):
            fastio.load(path, **arguments)
        return
    with pytest.raises((fastio.CorruptFileError, pickle.UnpicklingError)) as raised:
        fastio.load(path, **arguments)
    if isinstance(raised.value, fastio.CorruptFileError):
        assert "a.pt" in str(raised.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_mutated_pickles_raise_errors_that_name_the_file(tmp_path: Path) -> None:
    path, chance, refused = tmp_path / "a.pt", random.Random(5), 0
    with zipfile.ZipFile(io.BytesIO(saved_archive())) as records:
        name = next(name for name in records.namelist() if name.endswith("data.pkl"))
        good = records.read(name)
    for _ in range(300):
        archive_with(mutated(good, chance), path)
        refused += error_of(path)
    assert refused > 30


def error_of(path: Path) -> bool:
    """Whether the file is refused by an error that names it; what torch words passes as it is."""
    try:
        fastio.load(path)
    except fastio.FastIOError as error:
        return path.name in str(error) or pytest.fail(f"no name: {error!r}")
    except (pickle.UnpicklingError, RuntimeError):  # forbidden globals, tensors of wrong sizes
        return False
    return False


def saved_archive() -> bytes:
    buffer = io.BytesIO()
    torch.save({"w": torch.ones(4), "n": [1, (2, "x")], "o": {"step": 3.5}}, buffer)
    return buffer.getvalue()


def test_errors_of_a_users_map_location_pass(tmp_path: Path) -> None:
    def place(storage: Any, location: str) -> Any:
        raise KeyError(location)

    fastio.save({"w": torch.ones(4)}, tmp_path / "a.pt")
    with pytest.raises(KeyError) as raised:
        fastio.load(tmp_path / "a.pt", map_location=place)
    assert not isinstance(raised.value, fastio.FastIOError)


class Picky:
    """Refuses its state, as a class may whose fields were renamed."""

    def __init__(self) -> None:
        self.fields = {"old": 1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.fields = {"new": state["fields"]["new"]}


def test_errors_of_a_users_class_pass(tmp_path: Path) -> None:
    fastio.save({"w": torch.ones(4), "picky": Picky()}, tmp_path / "a.pt")
    with pytest.raises(KeyError, match="new") as raised:
        fastio.load(tmp_path / "a.pt", weights_only=False)
    assert not isinstance(raised.value, fastio.FastIOError)
