"""Steps at a remote place: written into a local folder, then uploaded, the manifest last; read through the cache.

A step is visible if its manifest is there, as in a folder of this machine. A mark is there from before its first file
is uploaded until after its last one is removed, so a step that was killed on its way is known as one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from fastio.checkpoint.folder import lock, manifest
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import FIRST_MARK, StepFolder, is_marked, is_own, name_of, number_of
from fastio.errors import CheckpointError, CorruptFileError, FastIOError
from fastio.remote import cache_folder
from fastio.remote.cached_file import CachedFile, open_all
from fastio.remote.place import Place, place_of
from fastio.remote.renamed_errors import renamed_errors
from fastio.remote.staging import staging_folder
from fastio.remote.upload import upload
from fastio.remote.urls import joined
from fastio.runtime.handled_errors import HandledErrors
from fastio.sizes import format_size
from fastio.url_secrets import hide_secrets

_log = logging.getLogger("fastio.checkpoint")


class RemoteSteps(StepFolder):
    """The steps below a URL, which is ``path``, and the local folder in which they are written.

    Only what a Checkpointer wrote is removed, by the same rules as in a folder of this machine. RemoteError if the
    place refuses or cannot be reached. With ``make`` a missing folder is made; else CheckpointError if there is none.
    """

    is_remote = True

    def __init__(self, url: str, make: bool) -> None:
        self.path = url.rstrip("/")
        place = self._place()
        self._made: list[str] = []
        if make:
            self._made = place.make_folder()
        elif not _is_folder(place):
            raise CheckpointError(f"{url}: there is no such folder to read checkpoints from")

    def withdraw(self) -> None:
        """Remove the folders that this made, as in a folder of this machine. Object stores have none."""
        if not self._made:
            return
        place = self._place()
        if place.is_local:
            with contextlib.suppress(FastIOError, OSError):
                if os.listdir(place.path) == [lock.NAME]:
                    lock.FolderLock(place.path).remove()
        place.remove_folders(self._made)

    @property
    def lock_folder(self) -> str:
        """A folder of this machine is locked itself, so that it has one writer under its path and its URLs."""
        place = self._place()
        return place.path if place.is_local else self._local.path

    @property
    def _local(self) -> StepFolder:
        return _LocalSteps(self)

    def _place(self, *names: str) -> Place:
        url = self.path
        for name in names:
            url = joined(url, name)
        return place_of(url)

    def path_of(self, step: int) -> str:
        return joined(self.path, name_of(step))

    def names_of(self, step: int) -> set[str]:
        """The names of the files of a step that are at the remote place."""
        return self._place(name_of(step)).names()

    def visible(self) -> list[int]:
        return sorted(step for step, names in self._listing().items() if manifest.NAME in names)

    def read_manifest(self, step: int) -> Manifest:
        place = self._place(name_of(step), manifest.NAME)
        return manifest.parsed(place.url, place.read())

    @contextlib.contextmanager
    def staged(self, step: int, tick: Callable[[], None]) -> Iterator[StepFolder]:
        local = self._local
        try:
            yield local
            self._upload(local.path_of(step), step, tick)
        finally:
            _discard(local, step)

    @contextlib.contextmanager
    def fetched(self, step_manifest: Manifest) -> Iterator[str]:
        url = self.path_of(step_manifest.step)
        names = [file.name for file in step_manifest.files]
        with contextlib.ExitStack() as stack:
            with HandledErrors(FileNotFoundError, _missing):
                copies = open_all([joined(url, name) for name in names])
            for copy in copies:
                stack.callback(copy.close)
            folder = stack.enter_context(staging_folder())
            stack.enter_context(HandledErrors(CorruptFileError, partial(_discard_copies, copies)))
            stack.enter_context(renamed_errors(folder, url))
            for name, copy in zip(names, copies, strict=True):
                copy.link(os.path.join(folder, name))
            yield folder

    def hide(self, step: int) -> None:
        self._mark(step)
        self._place(name_of(step), manifest.NAME).remove()

    def remove(self, step: int) -> None:
        names = self.names_of(step)
        if manifest.NAME not in names:
            self._remove(step, set(filter(is_own, names)))

    def clear_leftovers(self) -> None:
        local = self._local
        local.clear_leftovers()
        for step in local.visible():
            _discard(local, step)
        for step, names in self._listing().items():
            if not is_marked(names):
                continue
            own = set(filter(is_own, names))
            if manifest.NAME in names:
                try:
                    own -= {file.name for file in self.read_manifest(step).files}
                except FastIOError:
                    continue  # a damaged step's files may still be of use
            self._remove(step, own)

    def _listing(self) -> Mapping[int, Set[str]]:
        """The names of the files of each step, visible or not."""
        found: dict[int, set[str]] = {}
        for path in self._place().find_all():
            folder, _, name = path.partition("/")
            step = number_of(folder)
            if step is not None and name and "/" not in name:
                found.setdefault(step, set()).add(name)
        return found

    def _mark(self, step: int) -> None:
        self._place(name_of(step), FIRST_MARK).write(b"")

    def _upload(self, folder: str, step: int, tick: Callable[[], None]) -> None:
        """Upload a step that is complete in a local folder; after an error nothing of it is left."""
        began = time.perf_counter()
        made, url = manifest.read(folder), self.path_of(step)
        before = self.names_of(step)
        new = {file.name for file in made.files}
        self._place(name_of(step)).make_folder()
        try:
            self._mark(step)
            for name in (*(file.name for file in made.files), manifest.NAME):
                upload(os.path.join(folder, name), joined(url, name), tick)
        except BaseException:
            with contextlib.suppress(Exception):  # the next writer removes leftovers
                if not self.has(made):
                    is_leftover = before and manifest.NAME not in before
                    self._remove(step, new if is_leftover else {*new, FIRST_MARK})
            raise
        with contextlib.suppress(OSError):  # as above
            self._remove(step, {*filter(is_own, before), FIRST_MARK} - new)
        nbytes, seconds = sum(file.nbytes for file in made.files), time.perf_counter() - began
        _log.info("step %d uploaded: %s in %.2f s", step, format_size(nbytes), seconds)

    def _remove(self, step: int, names: Set[str]) -> None:
        """Remove files of a step, marks last, and its folder if nothing else is in it."""
        for name in sorted(names, key=lambda name: (is_marked([name]), name)):
            self._place(name_of(step), name).remove()
        place = self._place(name_of(step))
        if not place.is_object_store and not place.names():
            place.remove_folders([place.path])


class _LocalSteps(StepFolder):
    """The folder of this machine in which the steps of a remote place are written."""

    def __init__(self, remote: RemoteSteps) -> None:
        identity = place_of(remote.path).identity
        super().__init__(cache_folder.folder(os.path.join("steps", cache_folder.digest(identity))))
        self._remote = remote

    def make(self, step: int) -> tuple[str, set[str]]:
        path, before = super().make(step)
        return path, before | self._remote.names_of(step)  # so that no file of a step that is replaced is overwritten


def remote_steps(url: str, make: bool, incremental: bool, writer: str) -> RemoteSteps:
    """The steps at a URL. ValueError for settings of saves that need the files of the step before, or a process."""
    shown = hide_secrets(url)
    if incremental:
        raise ValueError(f"incremental=True links to files of the step before, which are at {shown}: leave it out")
    if writer == "process":
        raise ValueError(f"writer='process' writes to folders of this machine, got {shown}: leave it out")
    return RemoteSteps(url, make)


def _discard(local: StepFolder, step: int) -> None:
    """Remove the local files of a step."""
    with contextlib.suppress(OSError):  # the next writer removes leftovers
        with contextlib.suppress(FileNotFoundError):
            local.hide(step)
        local.remove(step)


def _discard_copies(copies: list[CachedFile], _: CorruptFileError) -> None:
    for copy in copies:
        copy.discard()


def _missing(error: FileNotFoundError) -> None:
    raise CorruptFileError(str(error.filename), None, "is missing") from error


def _is_folder(place: Place) -> bool:
    try:
        return place.is_folder()
    except FileNotFoundError:
        return False
