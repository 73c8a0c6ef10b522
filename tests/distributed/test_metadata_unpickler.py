"""DCP's metadata are unpickled natively, to what the restricted unpickler in Python makes of them."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from fastio.distributed import Writer, metadata, metadata_unpickler
from fastio.errors import CorruptFileError
from mutated_pickles import mutated

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),  # the text in torch 2.6
]


def state() -> dict[str, Any]:
    layers = {f"layer.{number}": torch.full((3, number), float(number)) for number in range(20)}
    return {**layers, "half": torch.ones(5, dtype=torch.float16), "big": torch.ones(40_000), "own": {"epoch": 3}}


@pytest.fixture(params=["fastio", "torch"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "x") if request.param == "fastio" else dcp.FileSystemWriter(tmp_path / "x")
    dcp.save(state(), storage_writer=writer)
    return tmp_path / "x"


def in_python(data: bytes) -> tuple[Any, int]:
    stream = io.BytesIO(data)
    return metadata_unpickler._Unpickler(stream).load(), len(data) - stream.tell()


def described(found: Any) -> bytes:
    """All of an object, with the attributes that ``==`` leaves out, whatever in it is shared."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.fast = True
    with contextlib.suppress(ValueError, RecursionError):  # a mutation made a cycle
        pickler.dump(found)
    return stream.getvalue()


def test_metadata_are_unpickled_natively(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = in_python((folder / ".metadata").read_bytes())[0]

    def refuse(_: Any) -> Any:
        raise AssertionError("unpickled in Python")

    monkeypatch.setattr(metadata_unpickler._Unpickler, "load", refuse)
    assert metadata.read(str(folder)) == expected
    assert isinstance(expected, Metadata)


def test_mutated_metadata_give_what_the_unpickler_in_python_gives(folder: Path) -> None:
    data = (folder / ".metadata").read_bytes()
    chance, understood = random.Random(1), 0
    for _ in range(1000):
        pickled = mutated(data, chance)
        try:
            expected: Any = in_python(pickled)
        except Exception as error:
            expected = error
        try:
            found: Any = metadata_unpickler.unpickle(pickled)
        except Exception as error:
            found = error
        understood += not isinstance(found, Exception)
        if isinstance(expected, pickle.UnpicklingError) and "frame" in str(expected):
            continue  # its length, which the pickle can be read without
        assert type(found) is type(expected)
        if not isinstance(found, Exception):
            assert described(found[0]) == described(expected[0])
    assert understood > 50


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_metadata_of_each_protocol_are_read(folder: Path, protocol: int) -> None:
    expected = metadata.read(str(folder))
    assert metadata_unpickler.unpickle(pickle.dumps(expected, protocol)) == (expected, 0)
    assert metadata_unpickler.unpickle(pickle.dumps(expected, protocol) + b"more") == (expected, 4)


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadataIndex\n}\x8c\x03fqnK\x01sb.",  # a state for a class
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadataIndex\nN}\x8c\x03fqnK\x01s\x86b.",
        b"\x80\x04ctorch.serialization\n_get_layout\n}\x8c\x03fqnK\x01sb.",
        b"\x80\x04\x8c\x08builtins\x8c\x05print\x93\x8c\x02hi\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93)\x81.",
        b"\x80\x02\x8c\x02os\x8c\x06system\x93)\x81.",
        b"\x80\x04\x8c\x01xQ.",
    ],
)
def test_pickles_that_would_do_more_are_refused(folder: Path, pickled: bytes, capsys: Any) -> None:
    (folder / ".metadata").write_bytes(pickled)
    with pytest.raises(CorruptFileError, match="cannot be unpickled"):
        metadata.read(str(folder))
    assert not hasattr(MetadataIndex, "fqn")
    assert capsys.readouterr().out == ""
