"""The models of ``fastio-bench weights``: their tensors, as a module and as sharded safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from fastio_bench.workloads.shapes import Shape

SHARDS, RANKS = 4, 4
_INDEX = "model.safetensors.index.json"
_ITEM = 2  # bytes of bfloat16
_EXPERT_LAYERS, _EXPERTS, _EXPERT_SHAPE = 52, 64, (256, 128)


@dataclass(frozen=True, slots=True)
class Model:
    """A model in bfloat16: the shape of each tensor, by name."""

    name: str
    label: str
    shapes: dict[str, Shape]

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(prod(shape) for shape in self.shapes.values()) * _ITEM

    @property
    def small(self) -> str:
        """The name of a small tensor, in the last shard."""
        return "model.norm.weight"


def llama(nbytes: int) -> Model:
    """As Llama 3.2 1B, with as many layers as ``nbytes`` allow, at least one."""
    width, inner, heads, words = 2048, 8192, 512, 32_000
    layer: dict[str, Shape] = {
        "self_attn.q_proj.weight": (width, width),
        "self_attn.k_proj.weight": (heads, width),
        "self_attn.v_proj.weight": (heads, width),
        "self_attn.o_proj.weight": (width, width),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    each = sum(prod(shape) for shape in layer.values()) * _ITEM
    layers = max(1, (nbytes - words * width * _ITEM) // each)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (words, width)}
    shapes |= {f"model.layers.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()}
    shapes["model.norm.weight"] = (width,)
    return Model("llama", f"Llama-like, {layers} layers", shapes)


def experts() -> Model:
    """A mixture of experts: 10,000 matrices of 64 KiB."""
    shapes: dict[str, Shape] = {
        f"model.layers.{layer}.experts.{number}.{name}.weight": _EXPERT_SHAPE
        for layer in range(_EXPERT_LAYERS)
        for number in range(_EXPERTS)
        for name in ("w1", "w2", "w3")
    }
    shapes["model.norm.weight"] = (_EXPERT_SHAPE[0],)
    return Model("experts", f"mixture of experts, {len(shapes):,} tensors", shapes)


def find(name: str, nbytes: int) -> Model:
    """The model of that name."""
    return llama(nbytes) if name == "llama" else experts()


def tensors(model: Model) -> dict[str, torch.Tensor]:
    """Random values, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(30)
    made = {}
    for name, shape in model.shapes.items():
        bits = torch.randint(-(1 << 62), 1 << 62, (-(-prod(shape) // 4),), generator=generator)
        # No infinities and no NaNs: without the highest bit of the exponent.
        numbers = bits.view(torch.int16)[: prod(shape)].bitwise_and_(-0x4001)
        made[name] = numbers.view(torch.bfloat16).view(shape)
    return made


def module(model: Model) -> torch.nn.Module:
    """A module whose parameters have these names, in memory that was written to."""
    import torch

    root = torch.nn.Module()
    for name, shape in model.shapes.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at.get_submodule(part)
        parameter = torch.nn.Parameter(torch.empty(shape, dtype=torch.bfloat16), requires_grad=False)
        parameter.fill_(1)
        at.register_parameter(last, parameter)
    return root


def write(model: Model, folder: Path) -> None:
    """Write the model as shards of safetensors with an index, and each shard as a file of torch too."""
    import torch
    from safetensors.torch import save_file

    made = tensors(model)
    where: dict[str, str] = {}
    groups = _groups(model)
    for number, names in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        shard = {name: made[name] for name in names}
        save_file(shard, folder / file, metadata={"format": "pt"})
        torch.save(shard, folder / Path(file).with_suffix(".bin"))
        where |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": model.nbytes}, "weight_map": where}
    (folder / _INDEX).write_text(json.dumps(index))


def _groups(model: Model) -> list[list[str]]:
    """The names of each shard: about as many bytes in each."""
    found: list[list[str]] = [[]]
    left, held = model.nbytes / SHARDS, 0
    for name, shape in model.shapes.items():
        if held >= left and len(found) < SHARDS:
            found.append([])
            held = 0
        found[-1].append(name)
        held += prod(shape) * _ITEM
    return found


def part(name: str, shape: Shape, rank: int) -> tuple[slice, ...]:
    """What one of four ranks holds of a tensor: rows, columns of the projections back to the width, or all."""
    if len(shape) < 2:
        return (slice(None),)
    dimension = 1 if name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight")) else 0
    size = shape[dimension] // RANKS
    own = slice(rank * size, (rank + 1) * size)
    return (own,) if dimension == 0 else (slice(None), own)
