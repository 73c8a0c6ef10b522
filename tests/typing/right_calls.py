"""Calls that mypy and pyright must accept. Checked by tests/api/test_types.py, never run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fastio
from fastio.dicts import Dictionary, RDic, WRDic
from fastio.distributed import HuggingFaceWriter, Reader, Writer, consolidate, share_dictionaries
from fastio.offload import BlockStore, ToolStore, encode

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters())
state: dict[str, torch.Tensor] = {"weight": torch.zeros(2)}

result: fastio.SaveResult = fastio.save(model.state_dict(), "model.pt")
speed: float = result.bandwidth
fastio.save(state, Path("model.pt"), policy="uring", durable=False, progress=True)
fastio.save(state, io.BytesIO(), pickle_protocol=4)
fastio.save(state, "a.safetensors", format="safetensors", metadata={"format": "pt"}, checksums=True, hashes=True)
fastio.save(torch.zeros(2), "a.npy", clone=True, progress=lambda done, total: done + total)
with open("model.pt", "rb") as file:
    fastio.load(file, weights_only=True)
loaded: Any = fastio.load("model.pt", "cpu", mmap=True)
fastio.load("model.pt", map_location=torch.device("cuda", 0), keys=["model"], policy=RDic())
fastio.load("model.pt", map_location=lambda storage, location: storage)
fastio.load("model.pt", {"cuda:0": "cpu"}, into="pinned", verify=False, encoding="latin1")

fastio.save_file(state, "a.safetensors", {"format": "pt"})
tensors: dict[str, torch.Tensor] = fastio.load_file("a.safetensors", device=0, backend="pread")
with fastio.safe_open("a.safetensors", framework="pt", device="cuda:0", backend="mmap") as reader:
    tensor: torch.Tensor = reader.get_tensor("weight")
    part: torch.Tensor = reader.get_slice("weight")[:, 1]
    reader.prefetch(["weight", ("bias", slice(1))], memory_budget="1GiB")
with fastio.safe_open("a.safetensors", framework="np") as arrays:
    array: np.ndarray[Any, Any] = arrays.get_tensor("weight")
several: fastio.TensorReader = fastio.safe_open(["a.safetensors", Path("b.safetensors")])
fastio.save_model(model, "folder", {"license": "mine"}, max_shard_size="5GB", force_contiguous=True)
missing, unexpected = fastio.load_model(model, "folder", strict=False, device={"": "cpu"}, backend="mmap")
names: list[str] = missing + unexpected
fastio.load_into(model.state_dict(), ["a.pt", "b.pt"], dtype=torch.bfloat16, group=True)
converted: fastio.Conversion = fastio.convert("a.pt", "b.safetensors", max_shard_size=10**9)

explanation: fastio.Explanation = fastio.explain(10**9, op="save", folder=Path("."))
checked: bool = fastio.verify(Path("model.pt")).checksummed
compared: fastio.Comparison = fastio.diff("a.pt", Path("b.safetensors"), atol=1e-5, rtol=0, strip_prefix="model.")
apart: list[str] = [name for name, one in compared.differences.items() if one.values and one.values.elements > 3]
sidecar: str = fastio.seal("a.safetensors", hashes=True).sidecar
available = [tool.name for tool in fastio.tools() if tool.available]
with fastio.record() as transfers:
    tools: list[str] = [transfer.tool for transfer in transfers]
with fastio.patch_torch(), fastio.patch_safetensors():
    pass

with fastio.Checkpointer("run", keep=2, memory_budget="2GiB", when_busy="skip", policy=Dictionary()) as checkpointer:
    saved: fastio.SaveHandle = checkpointer.save(1, {"model": model}, metadata={"loss": 1.0})
    written: fastio.SaveResult = saved.written.result(timeout=1.0)
    done, total = saved.progress
    restored = checkpointer.restore(into={"model": model}, map_location="cpu")
    step: int = restored.step + 1 if restored else 0

with fastio.Offload(model, store="/tmp", budget="8GiB", policy="optimal", codec="none") as offload:
    model(torch.zeros(2)).sum().backward()
fastio.Offload(store=["/dev/nvme0n1", Path("/dev/nvme1n1")], policy=lambda activations, need, forward_s: [0])
fastio.Offload(store=BlockStore("/tmp", driver="uring"), policy=[torch.ops.aten.mm.default])
fastio.Offload(store=ToolStore("/tmp", policy="w+r"))
encode(torch.zeros(2), "csr+fp16")
hybrid = fastio.Hybrid(model, optimizer, gpu_budget="8GiB", planner="optimal", optimizer_store=["/tmp"], device="cpu")
hybrid.step()
WRDic(mode="w")
Writer("step", policy="auto", overwrite=False)
HuggingFaceWriter("step", {"weight": 1}, save_distributed=True, durable=False)
is_checked: bool = consolidate("step", "model", max_shard_size="5GB", group=True).verified
Reader(Path("step"), progress=True)
share_dictionaries("folder", mode="per_rank")

try:
    fastio.load("model.pt")
except (fastio.CorruptFileError, fastio.TransferError, fastio.ActivationLostError, fastio.UnsupportedError) as error:
    base: fastio.FastIOError = error
fastio.distributed.Writer("step")
fastio.offload.BlockStore("/tmp")
