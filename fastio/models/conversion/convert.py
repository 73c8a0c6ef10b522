"""convert: files of tensors from one format into another, at the speed of the disk and in bounded memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastio.arguments import Path, Policy, Progress, Size, Weights
from fastio.engine.tool_selection import check
from fastio.errors import kind_of, quoted
from fastio.files.checkpoint_folders import DCP_METADATA, holds_shards
from fastio.files.new_folders import new_folders
from fastio.files.open_file import MISSING_SOURCE, is_path, translate_open_limit
from fastio.models.conversion.chunked_copy import copy_all
from fastio.models.conversion.commit import commit_file, commit_shards
from fastio.models.conversion.destinations import NewFiles, check_free, named, new_files
from fastio.models.conversion.model_source import of_model
from fastio.models.conversion.npy_source import is_npy, of_npy
from fastio.models.conversion.source_tensors import Source
from fastio.models.locate import locate
from fastio.progress import check_progress, shown
from fastio.results import SaveResult, publish
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD, SAVE
from fastio.volumes.opening import outside_volumes


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of :func:`convert`: ``files`` were written, with ``tensors`` tensors of ``nbytes`` bytes.

    ``verified``: every byte of the source was compared with a checksum. ``tied`` maps names that are other names of the
    same tensor to the name that it has in safetensors. ``notes`` say what was left out.
    """

    source: str
    destination: str
    files: tuple[str, ...]
    tensors: int
    nbytes: int
    seconds: float
    verified: bool
    tied: dict[str, str]
    notes: tuple[str, ...]


def convert(
    source: Weights,
    destination: Path,
    *,
    key: str | None = None,
    max_shard_size: Size | None = None,
    force: bool = False,
    policy: Policy = "auto",
    progress: Progress = None,
) -> Conversion:
    """Convert files of tensors into another format: ``.pt``, safetensors, ``.npy``, shards; checkpoints of DCP from.

    One chunk is read while the one before it is written, past the page cache where that is faster. About 100 MB of
    memory are used for that, whatever the sizes, and how ever ranks divided tensors among them; a tensor whose elements
    are stored in another order (a transposed view in a ``.pt``) is in memory as a whole beside it.

    What has checksums is compared with them on the way. New files of safetensors and ``.pt`` get checksums, as
    :func:`fastio.save_file` and :func:`fastio.save` write them. They appear in one step, durably, when all of them are
    complete: after an error or Ctrl-C nothing is left. A pickle is read by the rules of ``weights_only=True``.

    Names of a ``.pt`` that are one and the same tensor share it in a new ``.pt``. In safetensors one name is kept, and
    the metadata map the others to it, as :func:`fastio.save_model` does. Tensors that share only a part of their memory
    become separate ones.

    Args:
        source: a ``.pt``, a file of safetensors or a ``.npy``, told by its first bytes; a list of files, an index or a
            folder, as for :func:`fastio.safe_open`; or a folder of ``torch.distributed.checkpoint``, also one of parts
            of tensors in safetensors.
        destination: a name that ends in ``.safetensors``, ``.pt``, ``.pth``, ``.bin`` or ``.npy``; or a folder for
            shards of safetensors with an index: one that exists, a name that ends in ``/``, or with ``max_shard_size``.
        key: convert this entry alone: a tensor, or (of a ``.pt`` or a DCP checkpoint) a dict of tensors in the outer
            one, such as ``"model"``. Where the source holds one tensor without a name, the name that it gets.
        max_shard_size: the most bytes of tensors in one file of a folder; a larger tensor has a file of its own.
            None: 5 GB.
        force: replace what is at the destination: the file, or the folder's files of a model.
        policy: who chooses the tools, as for :func:`fastio.save` and :func:`fastio.load`.
        progress: True for a progress bar, or a function that is called with (bytes done, bytes in all).

    Raises:
        FormatError (a ValueError): the source is no flat dict of tensors, or the new format lacks a dtype; the message
        names the entry. TensorMissingError (a KeyError): ``key`` is not there. FileExistsError: the destination exists.
        UnsupportedError: it is a file of the source. CorruptFileError, ChecksumError: the source is damaged, or was
        written to meanwhile. TransferError (an OSError): the system refused, as for a full disk; the message names the
        file, and the tensor. ValueError: the destination's name means no format. Otherwise what
        :func:`fastio.safe_open` raises.

    >>> fastio.convert("pytorch_model.bin", "model.safetensors").verified
    True
    """
    started = time.perf_counter()
    check(policy, LOAD)
    check(policy, SAVE)
    check_progress(progress)
    if key is not None and not isinstance(key, str):
        raise TypeError(f"key={quoted(key)} is {kind_of(key)}: expected the name of an entry, or None for all")
    name = outside_volumes("destination", destination)
    to = named(name, max_shard_size)
    with contextlib.ExitStack() as stack, translate_open_limit("convert", name):
        with gc_paused():
            found = _open(source, key, stack, policy)
            check_free(to, [file.path for file in found.files], force)
            plan = new_files(to, found)
        if to.shard_size is not None:
            stack.enter_context(new_folders(to.path))
        with shown(progress, f"converting to {os.path.basename(to.path)}") as told:
            written, results = copy_all(plan.files, stack, policy, told)
        for file in found.files:
            file.check_unchanged()
        if to.shard_size is None:
            plan = plan._replace(notes=plan.notes + commit_file(written[0], to.format))
        else:
            commit_shards(to, written, plan.shard_index)
    origin = os.fsdecode(source) if is_path(source) else ", ".join(file.path for file in found.files)
    return concluded(origin, name, found, plan, results, started)


def concluded(
    source: str, destination: str, found: Source, plan: NewFiles, written: Sequence[SaveResult], started: float
) -> Conversion:
    """Publish the transfers of a conversion that began at ``started``, and return its result."""
    for transfer in (*(file.transfer() for file in found.files), *written):
        if transfer is not None:
            publish(transfer)
    return Conversion(
        source=source,
        destination=destination,
        files=(*(file.path for file in plan.files), *([] if plan.shard_index is None else [plan.shard_index[0]])),
        tensors=len(found.tensors),
        nbytes=sum(tensor.nbytes for tensor in found.tensors),
        seconds=time.perf_counter() - started,
        verified=all(file.is_verified for file in found.files),
        tied=found.aliases,
        notes=plan.notes,
    )


def _open(where: Weights, key: str | None, stack: contextlib.ExitStack, policy: Policy) -> Source:
    """Open what :func:`convert` takes; ``stack`` closes it."""
    if is_path(where):
        path = os.fsdecode(where)
        if os.path.isfile(os.path.join(path, DCP_METADATA)) or holds_shards(path):
            from fastio.models.conversion.dcp_source import of_ranks  # DCP is imported only for its folders

            return of_ranks(path, key, stack, policy)
        (first, *_) = locate(path, MISSING_SOURCE).paths
        if is_npy(first):
            return of_npy(first, key, stack, policy)
    return of_model(where, key, stack, policy)
