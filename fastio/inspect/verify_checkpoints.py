"""Checks folders of checkpoints: the steps of a Checkpointer, the data files of torch.distributed.checkpoint."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from fastio.engine.background_job import Progress
from fastio.engine.record_checksums import record_checksums
from fastio.errors import FastIOError
from fastio.formats.pt.reader import Record
from fastio.formats.small_reads import read_at
from fastio.inspect.checkpoints import manifests, remote_manifests
from fastio.remote.urls import is_remote


class CheckedPart(NamedTuple):
    """A step, or a data file: ``compared`` files or items of it, ``nbytes`` in all; ``others`` have no checksums."""

    path: str
    compared: int
    nbytes: int
    others: int


def verify_steps(path: str) -> Iterator[tuple[str, CheckedPart | FastIOError | OSError]]:
    """Check all steps of a Checkpointer's folder, or the one whose folder it is; yield each one's path and result.

    Those at a URL are downloaded, one after the other. TransferError or RemoteError if the folder cannot be read.
    """
    from fastio.checkpoint.restoring.step_kinds import check_part

    remote, steps = remote_manifests(path) if is_remote(path) else (None, manifests(path))
    for _, folder, found in steps:
        if isinstance(found, FastIOError):
            yield folder, found
            continue
        try:
            with contextlib.nullcontext(folder) if remote is None else remote.fetched(found) as files:
                check_part(files, found)
            yield folder, CheckedPart(folder, len(found.files), sum(file.nbytes for file in found.files), 0)
        except (FastIOError, OSError) as error:
            yield folder, error


def verify_distributed(
    path: str, progress: Progress | None = None
) -> Iterator[tuple[str, CheckedPart | FastIOError | OSError]]:
    """Check the data files of a checkpoint of torch.distributed.checkpoint; yield each one's path and result.

    What fastio wrote is compared with the CRC-32s in the metadata, what DCP wrote with those of torch.save.
    """
    from fastio.distributed import metadata as metadata_file
    from fastio.distributed.items_by_file import items_by_file, whole_items

    try:
        found = metadata_file.read(path)
        by_file = items_by_file(path, whole_items(found.state_dict_metadata), found.storage_data)
    except (FastIOError, OSError) as error:
        yield metadata_file.path_of(path), error
        return
    for name in sorted(by_file, key=str):
        file = os.path.join(path, str(name))
        try:
            yield file, _checked(path, name, by_file[name], found.storage_data, progress)
        except (FastIOError, OSError) as error:
            yield file, error


def _checked(folder: str, name: Any, items: list[Any], infos: Any, progress: Progress | None) -> CheckedPart:
    """Compare the items of a data file with their checksums."""
    from fastio.distributed.dcp_zip_items import check
    from fastio.distributed.load_file import FileLoad, mismatch
    from fastio.distributed.reader import open_data_file

    with contextlib.ExitStack() as stack:
        path, fd, size = open_data_file(folder, name, items, stack)
        load = FileLoad(path, fd, size, "auto", True, None)
        for item in items:
            load.add(item, infos[item.storage_index])
        stored = [request.stored for request in load.locate()]
        known = [one for one in stored if one.crc is not None]
        filled = [one for one in known if one.nbytes]
        records = [Record(one.name, one.offset, one.nbytes, one.crc or 0) for one in filled]
        for one, value in zip(filled, record_checksums(path, fd, records, size, {}, progress), strict=True):
            if value != one.crc:
                raise mismatch(path, one, value)
        compared, nbytes = len(known), sum(one.nbytes for one in known)
        for one in stored:  # objects of torch.save, as DCP's own writer stores them
            if one.crc is None and one.dtype is None:
                data = memoryview(read_at(path, fd, one.offset, one.nbytes, one.name))
                if check(path, one.name, data):
                    compared, nbytes = compared + 1, nbytes + one.nbytes
        return CheckedPart(path, compared, nbytes, len(stored) - compared)
