"""Makes modules, and the files that have their weights."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fastio
from differential import tensors

State = dict[str, torch.Tensor]
WRITERS = ("library", "save_file", "shards", "list", "torch.pt", "fastio.pt")
SEALED = ("save_file", "shards", "list")  # their files have checksums of tensors


def state(rng: random.Random) -> State:
    """The weights of a module: names of submodules, most dtypes of safetensors, some larger than a window."""
    medium = rng.random() < 0.3
    made: State = {}
    for number in range(rng.randrange(1, 12)):
        name = f"{rng.choice(['', 'a.', 'a.b.', 'layers.0.', 'layers.1.'])}w{number}"
        made[name] = tensors.filled(rng, tensors.shape_of(rng, medium), rng.choice(tensors.COMMON + tensors.FLOATS))
    return made


def module_of(
    rng: random.Random, obj: State, places: Mapping[str, str], dtype: torch.dtype | None = None, fill: bool = False
) -> nn.Module:
    """A module with the names and shapes of a state, filled with its values, or with ones in every byte.

    Floating-point tensors have ``dtype``. Some of two dimensions are not contiguous.
    """
    root = nn.Module()
    for name, like in obj.items():
        module = root
        *path, last = name.split(".")
        for step in path:
            if step not in dict(module.named_children()):
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        own = dtype if dtype is not None and like.is_floating_point() else like.dtype
        made = torch.empty(like.shape, dtype=own, device=places.get(name, "cpu"))
        if not fill and like.dim() == 2 and rng.random() < 0.2:
            made = torch.empty(like.shape[::-1], dtype=own, device=made.device).t()
        if fill:
            made.copy_(like)
        elif made.numel() and not made.is_meta:
            ones = torch.full((made.numel() * own.itemsize,), 1, dtype=torch.uint8).view(own)
            made.copy_(ones.view(made.shape))
        if like.is_floating_point() and rng.random() < 0.8:
            module.register_parameter(last, nn.Parameter(made, requires_grad=False))
        else:
            module.register_buffer(last, made)
    return root


def write(rng: random.Random, writer: str, obj: State, folder: Path) -> Any:
    """Write a state; returns what is to be loaded."""
    path = folder / "model.safetensors"
    if writer == "library":
        importlib.import_module("safetensors.torch").save_file(obj, path)
    elif writer == "save_file":
        fastio.save_file(obj, path)
    elif writer == "shards":
        fastio.save_model(module_of(rng, obj, {}, fill=True), folder, max_shard_size=rng.randrange(1, 1 << 20))
        return folder
    elif writer == "list":
        names = rng.sample(list(obj), len(obj))
        at = rng.randrange(len(names) + 1)
        fastio.save_file({name: obj[name] for name in names[:at]}, path)
        fastio.save_file({name: obj[name] for name in names[at:]}, folder / "rest.safetensors")
        return [path, folder / "rest.safetensors"]
    else:
        path = folder / "model.pt"
        (torch.save if writer == "torch.pt" else fastio.save)(obj, path)
    return path


def flip(rng: random.Random, files: list[Path], name: str) -> bool:
    """Change a bit of a tensor in the file of safetensors that has it."""
    for path in files:
        if path.suffix != ".safetensors":
            continue
        with open(path, "r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length)).get(name)
            if entry is None:
                continue
            begin, end = entry["data_offsets"]
            at = 8 + length + rng.randrange(begin, end)
            file.seek(at)
            (value,) = file.read(1)
            file.seek(at)
            file.write(bytes([value ^ (1 << rng.randrange(8))]))
            return True
    return False
