"""Makes the files that ranks wrote the checkpoint of a folder: a model, or parts of tensors with a list of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastio.distributed import huggingface_files as files
from fastio.distributed.data_file import folder_lock
from fastio.distributed.huggingface_names import Place
from fastio.errors import FormatError, TransferError
from fastio.files.atomic_file import sync_folder, write_durably
from fastio.files.checkpoint_folders import SHARD_LIST, SHARD_NAME
from fastio.formats.safetensors import sidecar
from fastio.models.model_replacement import replacing_model
from fastio.models.module_saving import remove_files
from fastio.models.shards import index_text


class Written(NamedTuple):
    """A tensor, or a part of one, of ``nbytes`` bytes in a rank's file, and what that file is to be."""

    tensor: str
    part: str
    place: Place
    nbytes: int


def commit(folder: str, written: Sequence[Written], durable: bool) -> None:
    """Rename the ranks' files, which are complete, and remove those of the checkpoint before.

    At any moment a reader finds all of one of them. FormatError if there is nothing to commit. TransferError if the
    system refuses; the checkpoint before is still there then, and no new file.
    """
    parts = {one.part: one.place for one in written}
    if not parts:
        raise FormatError(f"{folder}: there is no tensor to save; expected at least one")
    with folder_lock(folder):
        try:
            if any(place.shard for place in parts.values()):
                _commit_shards(folder, parts, durable)
            else:
                _commit_model(folder, parts, written, durable)
        except OSError as error:
            if isinstance(error, TransferError):
                raise
            raise TransferError(error.errno or 0, "renaming new files", str(error.filename or folder)) from error
        finally:
            for part in parts:  # of all ranks; those that were renamed are gone
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, part))


def _commit_model(folder: str, parts: Mapping[str, Place], written: Sequence[Written], durable: bool) -> None:
    names = {part: place.name() for part, place in parts.items()}
    tensors: dict[str, list[str]] = {name: [] for name in sorted(names.values())}
    for one in written:
        tensors[names[one.part]].append(one.tensor)
    with replacing_model(folder, set(tensors), index_text(tensors, sum(one.nbytes for one in written), {})):
        _rename(folder, names, durable)
    others = set(filter(SHARD_NAME.fullmatch, os.listdir(folder)))
    if os.path.lexists(os.path.join(folder, SHARD_LIST)):  # until it is removed, it names the checkpoint
        others.add(SHARD_LIST)
    remove_files(folder, others)


def _commit_shards(folder: str, parts: Mapping[str, Place], durable: bool) -> None:
    first = files.first_free(folder, max(place.shard for place in parts.values()))
    names = {part: place.name(first) for part, place in parts.items()}
    kept = {*names.values(), SHARD_LIST}
    try:
        _rename(folder, names, durable)
        write_durably(os.path.join(folder, SHARD_LIST), files.list_text(sorted(names.values())))
    except BaseException:
        if set(files.listed(folder)).isdisjoint(names.values()):
            remove_files(folder, set(names.values()))
        raise
    remove_files(folder, {name for name in os.listdir(folder) if files.is_own(name)} - kept)


def _rename(folder: str, names: Mapping[str, str], durable: bool) -> None:
    for part, name in names.items():
        path = os.path.join(folder, name)
        sidecar.remove_old(path)
        os.rename(os.path.join(folder, part), path)
    if durable:
        sync_folder(folder)
