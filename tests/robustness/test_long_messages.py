"""Error messages shorten each quotation of a file to about 200 characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from acceptance.judging import LONGEST_MESSAGE
from acceptance.zips import Member, build
from fastio.dicts import WDic
from fastio.errors import CorruptFileError

LONG = "x" * 60_000


def test_messages_shorten_record_names(tmp_path: Path) -> None:
    path, long = tmp_path / "a.pt", f"a/{LONG}".encode()
    for names in ([long], [long, b"b/data.pkl"], [long, b"a/data.pkl", long], [b"a/data.pkl", long + b"\xff"]):
        path.write_bytes(build([Member(name, b"bytes", crc=1) for name in names]))
        for call in (fastio.load, fastio.verify):
            with pytest.raises(fastio.FastIOError) as raised:
                call(path)
            assert len(str(raised.value)) < LONGEST_MESSAGE


def test_corrupt_file_error_keeps_the_full_record_name() -> None:
    error = CorruptFileError("a.pt", LONG, "is damaged")
    assert error.record == LONG
    assert len(str(error)) < LONGEST_MESSAGE


@pytest.mark.parametrize(
    "context",
    [
        {"op": LONG, "format": "pt", "device": "cpu", "durable": None, "resident": None, "small": 0},
        {"op": "save", "format": "pt", "device": "cpu", "durable": None, "resident": None, "small": [LONG]},
    ],
    ids=["names", "numbers"],
)
def test_messages_shorten_values_of_dictionaries(tmp_path: Path, context: dict[str, Any]) -> None:
    path = tmp_path / "tools.json"
    plain = {"schema": "fastio-dictionary/1", "contexts": [{**context, "sizes": {}, "failures": {}}]}
    path.write_text(json.dumps(plain))
    with pytest.raises(fastio.DictionaryError) as raised:
        WDic.load(path)
    assert len(str(raised.value)) < LONGEST_MESSAGE


def test_messages_shorten_lists_of_missing_checkpoint_entries(tmp_path: Path) -> None:
    with fastio.Checkpointer(tmp_path) as keeper:
        keeper.save(1, {f"{LONG}{number}": torch.ones(2) for number in range(20)})
        keeper.wait()
        with pytest.raises(fastio.CheckpointError) as raised:
            keeper.restore(into={"other": torch.ones(2)})
    assert len(str(raised.value)) < LONGEST_MESSAGE
