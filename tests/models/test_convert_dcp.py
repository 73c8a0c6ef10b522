"""convert of folders of torch.distributed.checkpoint, which torch's own readers judge."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

import fastio
from fastio.distributed import Writer
from fastio.models.conversion import chunked_copy
from objects import same_bits, tensor_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]
DTYPES = [torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.complex64, torch.float8_e4m3fn]


class Divided(DefaultSavePlanner):
    """Stores tensors in three parts along a dimension, as ranks do."""

    def __init__(self, dimension: int | None) -> None:
        super().__init__()
        self._dimension = dimension

    def create_local_plan(self) -> SavePlan:
        whole, dimension = super().create_local_plan(), self._dimension
        items = []
        for item in whole.items:
            tensor = self.state_dict[item.index.fqn]
            if dimension is None or not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or not tensor.numel():
                items.append(item)
                continue
            begin = 0
            for part in tensor.chunk(3, dimension):
                offsets = [0] * tensor.dim()
                offsets[dimension] = begin
                begin += part.shape[dimension]
                chunk = ChunkStorageMetadata(torch.Size(offsets), part.size())
                data = TensorWriteData(chunk, TensorProperties.create_from_tensor(tensor), tensor.size())
                index = MetadataIndex(item.index.fqn, chunk.offsets)
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items, planner_data=whole.planner_data)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn]

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type is not WriteItemType.SHARD or write_item.tensor_data is None:
            return super().transform_object(write_item, object)
        chunk = write_item.tensor_data.chunk
        return object[tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))]


def state() -> dict[str, torch.Tensor]:
    found = {f"{index}.it": tensor_of(dtype, 7, 6, 5) for index, dtype in enumerate(DTYPES)}
    return found | {"one": torch.tensor(2.5), "none": torch.empty(0, 3), "wide": torch.randn(1501, 1001)}


def save(obj: dict[str, Any], folder: Path, writer: str, dimension: int | None = None) -> None:
    options = {"sync_files": False} if writer == "torch" else {}
    made = dcp.FileSystemWriter(folder, **options) if writer == "torch" else Writer(folder)
    dcp.save(obj, storage_writer=made, planner=Divided(dimension))


@pytest.mark.parametrize("dimension", [None, 0, 1])
@pytest.mark.parametrize("writer", ["torch", "fastio"])
def test_a_model_in_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, dimension: int | None
) -> None:
    monkeypatch.setattr(chunked_copy, "CHUNK", 4 << 20)
    obj = {"model": state(), "optimizer": {"step": torch.ones(1), "name": "adam"}}
    save(obj, tmp_path / "dcp", writer, dimension)
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "torch.pt")
    expected = torch.load(tmp_path / "torch.pt")["model"]
    with fastio.record() as transfers:
        result = fastio.convert(tmp_path / "dcp", tmp_path / "a.safetensors", key="model")
    assert result.verified
    assert all(transfer.verified for transfer in transfers)
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], tensor) for name, tensor in expected.items())
    fastio.convert(tmp_path / "dcp", tmp_path / "b.pt", key="model.wide")
    assert torch.equal(torch.load(tmp_path / "b.pt")["model.wide"], expected["wide"])
    with pytest.raises(fastio.FormatError, match=r"'optimizer\.name' is no tensor.*key='model'"):
        fastio.convert(tmp_path / "dcp", tmp_path / "c.safetensors")
    with pytest.raises(fastio.TensorMissingError, match=r"no key 'modle'.*'model'"):
        fastio.convert(tmp_path / "dcp", tmp_path / "c.safetensors", key="modle")
    assert not (tmp_path / "c.safetensors").exists()


@pytest.mark.parametrize("dimension", [None, 1])
@pytest.mark.parametrize("writer", ["torch", "fastio"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, writer: str, dimension: int | None) -> None:
    obj = state()
    save(obj, tmp_path / "dcp", writer, dimension)
    fastio.convert(tmp_path / "dcp", tmp_path / "flat.safetensors")
    (data,) = (tmp_path / "dcp").glob("*.distcp")
    raw = bytearray(data.read_bytes())
    part = obj["wide"] if dimension is None else obj["wide"].chunk(3, 1)[1].contiguous()
    raw[raw.index(part.numpy().tobytes()) + 1000] ^= 1
    data.write_bytes(raw)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(fastio.CorruptFileError, match="'wide'") as caught:
        fastio.convert(tmp_path / "dcp", tmp_path / "a.safetensors")
    assert caught.value.path == str(data)
    data.unlink()
    with pytest.raises(fastio.CheckpointError, match="there is no such file"):
        fastio.convert(tmp_path / "dcp", tmp_path / "a.safetensors")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("at", [100, 1400])
def test_parts_that_overlap_or_lie_outside_are_refused(tmp_path: Path, dimension: int, at: int) -> None:
    save({"wide": torch.randn(1500, 1500)}, tmp_path / "dcp", "torch", dimension)
    path = tmp_path / "dcp" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    chunks = metadata.state_dict_metadata["wide"].chunks
    moved = torch.Size([at if axis == dimension else 0 for axis in (0, 1)])
    known = metadata.storage_data
    known[MetadataIndex("wide", moved)] = known[MetadataIndex("wide", chunks[1].offsets)]
    chunks[1] = ChunkStorageMetadata(moved, chunks[1].sizes)
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(fastio.CorruptFileError, match="its parts do not fill its shape"):
        fastio.convert(tmp_path / "dcp", tmp_path / "a.safetensors")
    assert not (tmp_path / "a.safetensors").exists()
