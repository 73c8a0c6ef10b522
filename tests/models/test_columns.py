"""Parts of rows are read straight to their place, with whole tensors in one transfer, and no bytes between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio import dicts
from fastio.dicts.context import Context
from fastio.models import part_reads
from fastio.transports.extent_rows import ExtentRows, Rows
from fastio.transports.transport import Extent

COLUMNS = (slice(None), slice(1000, 2000))


def save_model(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {f"layer{n}.{name}": torch.randn(512, 4096) for n in range(2) for name in ("down", "up")}
    tensors |= {"norm": torch.randn(300), "empty": torch.empty(3, 0)}
    fastio.save_file(tensors, folder / "model.safetensors")
    return tensors


def plan(tensors: dict[str, torch.Tensor]) -> list[Any]:
    columns: list[Any] = [(name, COLUMNS) for name in tensors if name.endswith("down")]
    return [*columns, *((name, slice(128, 256)) for name in tensors if name.endswith("up")), "norm", "empty"]


def counted(name: str) -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines[name])


def test_one_entry_stands_for_many_extents() -> None:
    rows = Rows(100, 8, 5000, False, "cpu", "owner", "columns", 3, 64)
    single = Extent(400, 50, 9000, True, "cpu", "owner", "whole")
    extents = ExtentRows([rows, single, rows._replace(offset=1000, repeats=1)])
    expected = [
        Extent(100, 8, 5000, False, "cpu", "owner", "columns"),
        Extent(164, 8, 5008, False, "cpu", "owner", "columns"),
        Extent(228, 8, 5016, False, "cpu", "owner", "columns"),
        single,
        Extent(1000, 8, 5000, False, "cpu", "owner", "columns"),
    ]
    assert list(extents) == expected
    assert [extents[index] for index in range(len(extents))] == expected
    assert (extents[-2], extents[1:3]) == (single, expected[1:3])
    with pytest.raises(IndexError):
        extents[5]
    assert not ExtentRows([])


@pytest.mark.parametrize("tool", ["auto", "posix", "uring", "numpy", "memory"])
def test_runs_and_columns_are_read_together(tmp_path: Path, tool: str) -> None:
    tensors = save_model(tmp_path)
    with fastio.safe_open(tmp_path, policy=tool) as file, fastio.record() as transfers:
        file.prefetch(plan(tensors))
        for name, index in (item for item in plan(tensors) if not isinstance(item, str)):
            assert torch.equal(file.get_slice(name)[index], tensors[name][index]), name
        assert torch.equal(file.get_tensor("norm"), tensors["norm"])
        assert file.get_tensor("empty").shape == (3, 0)
    wanted = 2 * 512 * 1000 * 4 + 2 * 128 * 4096 * 4 + 300 * 4
    assert [one.nbytes for one in transfers] == [wanted]
    assert "not verified: 4 of 5 reads are of parts" in transfers[0].fallbacks[-1]


def test_a_tool_that_takes_rows_one_by_one_is_not_chosen(tmp_path: Path) -> None:
    """Not even by a dictionary that knows it as the fastest."""
    tensors = save_model(tmp_path)
    dictionary, nbytes = dicts.RDic(), 512 * 1000 * 4
    for resident in (True, False):
        for tool in ("posix", "uring", "numpy") * 10:
            seconds = 0.0003 if tool == "numpy" else 0.3
            dictionary.observe(Context("load", "columns", "cpu", None, resident), nbytes, tool, seconds)
    with fastio.safe_open(tmp_path, policy=dictionary) as file, fastio.record() as transfers:
        assert torch.equal(file.get_slice("layer0.down")[COLUMNS], tensors["layer0.down"][COLUMNS])
    assert transfers[0].tool in ("posix", "uring")
    assert {context.format for context in dictionary.tuners} == {"columns"}


def test_columns_of_a_cached_file_read_no_other_bytes(tmp_path: Path) -> None:
    tensors = save_model(tmp_path)
    (tmp_path / "model.safetensors").read_bytes()
    with fastio.safe_open(tmp_path, policy="posix") as file:
        before = counted("rchar")
        found = file.get_slice("layer1.down")[COLUMNS]
        read = counted("rchar") - before
    assert torch.equal(found, tensors["layer1.down"][COLUMNS])
    assert found.nbytes <= read <= 1.05 * found.nbytes


def test_a_damaged_tensor_beside_columns_is_named(tmp_path: Path) -> None:
    tensors = save_model(tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[content.index(tensors["norm"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    with fastio.safe_open(path) as file:
        file.prefetch(plan(tensors))
        with pytest.raises(fastio.ChecksumError, match="'norm'"):
            file.get_tensor("norm")
        assert torch.equal(file.get_slice("layer0.down")[COLUMNS], tensors["layer0.down"][COLUMNS])


def test_tensors_of_one_transfer_give_their_memory_back_apart(tmp_path: Path) -> None:
    tensors = save_model(tmp_path)
    with fastio.safe_open(tmp_path) as file:
        file.prefetch(plan(tensors))
        one, other = (file.get_slice(f"layer{n}.down")[COLUMNS] for n in (0, 1))
    del one
    assert torch.equal(other, tensors["layer1.down"][COLUMNS])
    assert other.untyped_storage().nbytes() == other.nbytes
    assert other.data_ptr() % part_reads.CACHE_LINE == 0
