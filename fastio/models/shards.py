"""Divides a model into files of bounded size, and names them, as huggingface_hub does. Pure: names and numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def split(sizes: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """Return which names go into which file, in the given order, at most ``most`` bytes of tensors in a file.

    A tensor that is larger has a file of its own. The rule is ``split_torch_state_dict_into_shards``'s: files are
    filled one after the other.
    """
    shards: list[list[str]] = []
    current: list[str] = []
    nbytes = 0
    for name, size in sizes.items():
        if size > most:
            shards.append([name])
            continue
        if nbytes + size > most:
            shards.append(current)
            current, nbytes = [], 0
        current.append(name)
        nbytes += size
    if current or not shards:
        shards.append(current)
    if len(shards) == 1:
        return {SINGLE_NAME: shards[0]}
    return {f"model-{n:05d}-of-{len(shards):05d}.safetensors": names for n, names in enumerate(shards, 1)}


def index_text(shards: Mapping[str, list[str]], total_size: int, metadata: Mapping[str, str]) -> bytes:
    """The index of several files: their tensors, the bytes of all tensors, and text."""
    weight_map = {name: file for file, names in shards.items() for name in names}
    index = {"metadata": {"total_size": total_size, **metadata}, "weight_map": weight_map}
    return (json.dumps(index, indent=2) + "\n").encode()


def is_model_file(name: str) -> bool:
    """Whether a file name is one that :func:`split` gives, or that of an index of such files."""
    return _NAME.fullmatch(name) is not None
