"""Makes whole files of safetensors of a checkpoint whose ranks saved parts of tensors, on one rank or on all."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastio.arguments import Group, Path, Policy, Progress, Size
from fastio.distributed.huggingface_files import model_name
from fastio.distributed.huggingface_names import check_mapped, check_mapping
from fastio.engine.call_checks import check_flag
from fastio.engine.tool_selection import check
from fastio.files.atomic_file import AtomicFile
from fastio.files.new_folders import make_folders, remove_folders
from fastio.files.open_file import translate_open_limit
from fastio.formats.detect import SAFETENSORS
from fastio.models.conversion.chunked_copy import copy_all
from fastio.models.conversion.commit import commit_file
from fastio.models.conversion.convert import Conversion, concluded
from fastio.models.conversion.destinations import check_free, named, new_files
from fastio.models.conversion.new_file import NewFile
from fastio.models.model_replacement import replacing_model
from fastio.models.rank_group import RankGroup, rank_group, together
from fastio.progress import check_progress, shown
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD, SAVE
from fastio.volumes.opening import outside_volumes


def consolidate(
    folder: Path,
    destination: Path,
    fqn_to_index_mapping: Mapping[str, int] | None = None,
    *,
    max_shard_size: Size | None = None,
    force: bool = False,
    group: Group = None,
    policy: Policy = "auto",
    progress: Progress = None,
) -> Conversion:
    """Make a model of whole tensors, as Hugging Face's, of a checkpoint whose ranks saved parts of tensors.

    The checkpoint is one that :class:`fastio.distributed.HuggingFaceWriter` or torch's ``HuggingFaceStorageWriter``
    saved with ``save_distributed``, or a folder of DCP. Rows are copied from file to file; other parts, such as
    columns, are put together a strip at a time. That takes less than 200 MB of memory, whatever the sizes. All that has
    checksums is compared with them, and the new files have some. They appear in one step, when all of them are complete
    and durable: at any moment ``destination`` holds all of an older model or all of the new one.

    Args:
        folder: the checkpoint.
        destination: the new model's folder, made if it is missing.
        fqn_to_index_mapping: the number of each tensor's file, from 1 on. None: files are filled one after the other.
        max_shard_size: then the most bytes of tensors in one file; a larger tensor has a file of its own. None: 5 GB.
        force: replace a model that is in the folder, such as one that ``enable_consolidation=True`` made there; without
            it that is FileExistsError.
        group: a process group, or True for the default one, whose ranks each make some of the files; a collective call.
            There should be as many files as ranks.
        policy: who chooses the tools, as for :func:`fastio.save` and :func:`fastio.load`.
        progress: True for a progress bar, or a function that is called with (bytes done, bytes in all) of this rank.

    Raises what :func:`fastio.convert` raises; ValueError if the mapping lacks a tensor. With a ``group``, an error of a
    rank is raised by all.

    >>> fastio.distributed.consolidate("step-100/sharded", "step-100").verified
    True
    """
    started = time.perf_counter()
    check(policy, LOAD)
    check(policy, SAVE)
    check_flag("force", force)
    check_progress(progress)
    mapping = check_mapping(fqn_to_index_mapping)
    if mapping is not None and max_shard_size is not None:
        raise ValueError("fqn_to_index_mapping and max_shard_size= both divide the tensors into files; leave one out")
    source, name = outside_volumes("folder", folder), outside_volumes("destination", destination)
    to = named(os.path.join(name, ""), max_shard_size)
    ranks = rank_group(group)
    with contextlib.ExitStack() as stack, translate_open_limit("consolidate", name):
        with together(ranks), gc_paused():
            from fastio.models.conversion.dcp_source import of_ranks  # which imports this package

            found = of_ranks(source, None, stack, policy)
            check_free(to, [file.path for file in found.files], force)
            shards = None if mapping is None else _shards(mapping, [tensor.name for tensor in found.tensors])
            plan = new_files(to, found, shards)
        _made(to.path, ranks, stack)
        own = _own(plan.files, ranks)
        with together(ranks):
            new: list[AtomicFile] = []
            results: list[SaveResult] = []
            if own:
                with shown(progress, f"consolidating to {os.path.basename(to.path)}") as told:
                    new, results = copy_all(own, stack, policy, told)
            for file in found.files:
                file.check_unchanged()
        names = {os.path.basename(file.path) for file in plan.files}
        leads = ranks is None or ranks.rank == 0
        replacing: Any = replacing_model(to.path, names, plan.shard_index and plan.shard_index[1])
        with together(ranks), replacing if leads else contextlib.nullcontext():
            with together(ranks):  # the old model's files are aside
                pass
            with together(ranks):
                for one in new:
                    commit_file(one, SAFETENSORS)
    return concluded(source, name, found, plan, results, started)


def _shards(mapping: Mapping[str, int], names: Sequence[str]) -> dict[str, list[str]]:
    check_mapped(mapping, names)
    count = max(mapping[name] for name in names)
    shards: dict[str, list[str]] = {}
    for name in names:
        shards.setdefault(model_name(mapping[name], count), []).append(name)
    return dict(sorted(shards.items()))


def _made(path: str, ranks: RankGroup | None, stack: contextlib.ExitStack) -> None:
    """Make the destination. After an error, the rank that ends last removes what was made, if it is empty."""
    made: list[str] = []
    with together(ranks):
        if ranks is None or ranks.rank == 0:
            made = make_folders(path)
    if ranks is not None:
        made = ranks.agree(said=made)[0]

    def end(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            remove_folders(made)

    stack.push(end)


def _own(files: Sequence[NewFile], ranks: RankGroup | None) -> list[NewFile]:
    """The files that this rank makes: the largest go first, each to the rank that has the fewest bytes."""
    if ranks is None:
        return list(files)
    loads = [0] * ranks.world
    own = []
    for file in sorted(files, key=lambda file: -file.size):
        rank = loads.index(min(loads))
        loads[rank] += file.size
        if rank == ranks.rank:
            own.append(file)
    return own
