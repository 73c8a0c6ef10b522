"""save_model: a module's weights as files of safetensors, and an index of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import torch

from fastio import api, formats
from fastio.arguments import Path, Policy, Size
from fastio.engine.call_checks import swapped
from fastio.errors import FormatError, quoted
from fastio.files.atomic_file import sync_folder, write_durably
from fastio.files.new_folders import new_folders
from fastio.files.open_file import path_of
from fastio.formats.detect import SAFETENSORS
from fastio.formats.safetensors import sidecar
from fastio.formats.safetensors.format import checked_metadata
from fastio.models.module_tensors import module_tensors, tied_groups
from fastio.models.shards import INDEX_NAME, index_text, is_model_file, split
from fastio.remote.urls import is_remote
from fastio.sizes import parse_size
from fastio.volumes.opening import refuse_cut_url, refuse_volume

_SUFFIX = ".safetensors"


def save_model(
    model: torch.nn.Module,
    filename: Path,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    max_shard_size: Size = "5GB",
    policy: Policy = "auto",
    checksums: bool = True,
    hashes: bool = False,
) -> None:
    """Save the weights of a module as safetensors: one file, or a folder of files with an index.

    Names and files are those of ``huggingface_hub.save_torch_model``. Of tied tensors one is saved, and the metadata
    map the other names to it. Every file is written durably and replaced in one step, the index last. Files of an
    earlier save that the new one does not need are removed at the end. If names of several files are written again, the
    old index is removed first: a folder whose save was interrupted has no index, rather than one of mixed files.

    Args:
        model: the module; its parameters and persistent buffers are saved.
        filename: a name that ends in ``.safetensors`` for one file; else a folder, which is made if it is missing. Or
            the URL of one, to which the files are uploaded once all are written, the index last.
        metadata: text that is stored as well: in the file, or if there are several, in the index.
        force_contiguous: False refuses tensors that are not contiguous. They are stored packed in any case.
        max_shard_size: in a folder, the most bytes of tensors in one file; a larger tensor has a file of its own.
        policy: who chooses the tool, as for :func:`fastio.save`.
        checksums, hashes: store a CRC-32, a SHA-256 of each tensor in its file's metadata, as for
            :func:`fastio.save_file`.

    Raises:
        FormatError (a ValueError): a tensor cannot be saved, which the message names; nothing was written.
        UnsupportedError: the module holds tensors of tensors. TransferError (an OSError): the system refused; no folder
        that the save made is left.

    >>> fastio.save_model(model, "folder", max_shard_size="5GB")
    """
    most = parse_size(max_shard_size, "max_shard_size")
    if not most:
        raise ValueError(f"max_shard_size={max_shard_size!r}: expected a size of at least one byte, such as '5GB'")
    if not isinstance(model, torch.nn.Module):
        if isinstance(filename, torch.nn.Module):
            raise swapped("save_model", "model", model, filename)
        raise TypeError(
            f"expected a module, got {type(model).__name__}; save_file and fastio.save store the tensors of a dict"
        )
    name = path_of("filename", filename)
    tensors, aliases = _distinct(model, name)
    if not force_contiguous:
        _refuse_strided(name, tensors)
    text = {**aliases, **({} if metadata is None else checked_metadata(name, metadata))}
    options = {"checksums": checksums, "hashes": hashes}
    if name.endswith(_SUFFIX) and not os.path.isdir(name):
        api.save(tensors, name, policy=policy, format=SAFETENSORS, metadata={"format": "pt", **text}, **options)
        return
    refuse_volume(name)
    refuse_cut_url(name)
    shards = split({key: tensor.nbytes for key, tensor in tensors.items()}, most)
    if not is_remote(name):
        _save_folder(name, tensors, shards, text, policy, options)
        return
    from fastio.models.remote_saving import save_folder  # not at import: few models are remote

    save_folder(name, lambda folder: _save_folder(folder, tensors, shards, text, policy, options))


def _distinct(model: torch.nn.Module, path: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors to save, and the names that were left out with the names that stand for them."""
    found = module_tensors(model)
    if found.others:
        name = min(found.others)
        raise FormatError(
            f"{path}: {quoted(name)} is no tensor with a shape (a module's extra state, or a lazy module before its "
            "first call), which safetensors cannot hold; save model.state_dict() as .pt"
        )
    tensors = {name: tensor.detach() for name, tensor in found.tensors.items()}
    aliases: dict[str, str] = {}
    for group in tied_groups(found.tensors):
        kept = group.kept()
        if kept is None:
            raise FormatError(
                f"{path}: {', '.join(map(quoted, group.names[:5]))} share memory, and none of them includes all of it, "
                "which safetensors cannot represent; give one a clone(), or save model.state_dict() as .pt"
            )
        aliases.update({name: kept for name in sorted(group.names) if name != kept})
    for name in aliases:
        del tensors[name]
    return tensors, aliases


def _refuse_strided(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.layout == torch.strided and not tensor.is_contiguous():
            raise FormatError(
                f"{path}: {quoted(name)} is not contiguous (strides {tensor.stride()} of shape {list(tensor.shape)}); "
                "save it with force_contiguous=True, which stores it packed"
            )


def _save_folder(
    folder: str,
    tensors: Mapping[str, torch.Tensor],
    shards: Mapping[str, list[str]],
    text: dict[str, str],
    policy: Any,
    options: dict[str, bool],
) -> None:
    several = len(shards) > 1
    contents = {file: {name: tensors[name] for name in names} for file, names in shards.items()}
    arguments: dict[str, Any] = {"metadata": {"format": "pt"} if several else {"format": "pt", **text}, **options}
    for file, content in contents.items():  # what the format cannot hold is refused before anything is written
        formats.lay_out(SAFETENSORS, content, os.path.join(folder, file), arguments)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = index_text(shards, total, text) if several else None
    with new_folders(folder):
        old = {name for name in os.listdir(folder) if is_model_file(name)}
        if several and old.intersection(shards):
            remove_files(folder, old.intersection({INDEX_NAME, "model.safetensors"}))
        try:
            for file, content in contents.items():
                api.save(content, os.path.join(folder, file), policy=policy, format=SAFETENSORS, **arguments)
            if index is not None:
                write_durably(os.path.join(folder, INDEX_NAME), index)
        except BaseException:
            remove_new_files(folder, set(shards), old, index)
            raise
        # Also if the save before was interrupted: what is left of it must not be taken for this one's.
        remove_files(folder, old - shards.keys() - ({INDEX_NAME} if several else set()))


def remove_new_files(folder: str, shards: set[str], old: set[str], index: bytes | None) -> None:
    """Remove what a failed save wrote into a folder under names that were free.

    Not if its index has replaced an old one, as before a failed fsync: then all of the new model is there.
    """
    if index is not None and INDEX_NAME in old:
        with contextlib.suppress(OSError), open(os.path.join(folder, INDEX_NAME), "rb") as file:
            if file.read() == index:
                return
    remove_files(folder, (shards if index is None else {*shards, INDEX_NAME}) - old)


def remove_files(folder: str, names: set[str]) -> None:
    """Remove files durably; those that are gone already are no error."""
    for name in sorted(names, key=lambda name: (not name.endswith(".json"), name)):  # an index before its files
        path = os.path.join(folder, name)
        for unwanted in (path, sidecar.name_of(path)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unwanted)
    if names:
        sync_folder(folder)
