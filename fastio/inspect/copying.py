"""Copies files into volumes, objects out of them, and objects from one volume into another."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from fastio.errors import VolumeError
from fastio.files.atomic_file import AtomicFile
from fastio.files.free_space import free_space_named
from fastio.formats.small_reads import blocks_at
from fastio.volumes import opening
from fastio.volumes.object_file import ObjectFile, check_regular, opened
from fastio.volumes.superblock import is_volume
from fastio.volumes.views import write_all
from fastio.volumes.volume import Volume


def copy(
    source: str, destination: str, replace: bool = False, progress: Callable[[int, int], object] | None = None
) -> tuple[str, int]:
    """Copy a file or an object to a path, durably; return that path, and the number of bytes.

    Of a ``destination`` without a name, a folder or a volume, the source's name is added. The new one appears when it
    is complete. FileExistsError if there is one already, without ``replace``; VolumeError if that is a volume, and the
    source is none. Otherwise what opening the source and saving to the destination raise.
    """
    check_regular(source)  # of a pipe or a device nothing would be copied: they have no size
    with opened(source) as (fd, size):
        opening.refuse_remote(destination)
        target = _target(source, destination)
        if is_volume(target) and not is_volume(source):
            raise VolumeError(
                f"{target}: it is a volume, which the copy would replace: name file:{target} to copy into it"
            )
        if not replace and _exists(target):
            problem = f"{os.strerror(errno.EEXIST)}; force=True replaces it"
            raise FileExistsError(errno.EEXIST, problem, target)
        new_file = ObjectFile(target) if opening.is_in_volume(target) else AtomicFile(target)
        with new_file as new, free_space_named(target, size):
            new.allocate(size)
            done = 0
            for block in blocks_at(source, fd, 0, size):
                write_all(target, new.fd, memoryview(block), done)
                done += len(block)
                if progress is not None:
                    progress(done, size)
            new.commit(durable=True)
    return target, size


def _target(source: str, destination: str) -> str:
    name = os.path.basename(source)
    if not opening.is_in_volume(destination):
        return os.path.join(destination, name) if os.path.isdir(destination) else destination
    where, given = opening.split(destination)
    return f"{where}/{given}{name}" if not given or given.endswith("/") else f"{where}/{given}"


def _exists(path: str) -> bool:
    if not opening.is_in_volume(path):
        return os.path.exists(path)
    where, name = opening.split(path)
    with Volume.open(where) as volume:
        return any(entry.name == name for entry in volume.ls())
