"""Finds, makes and removes the folders of steps. A step is visible if it has a manifest."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator

from fastio._native import Descriptor
from fastio.checkpoint.folder import lock, manifest
from fastio.checkpoint.folder.corruption import is_corruption
from fastio.checkpoint.folder.long_path import LongPathFolder
from fastio.checkpoint.folder.manifest import Manifest
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, FolderMissingError, TransferError, quoted
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.files.new_folders import folder_not_made

_STEP = re.compile(r"step-(\d{10,})")
# A manifest that is being written, or was hidden. Only Checkpointers make one; it is there from before a step's first
# file is written until after its last one is removed.
_MARK = re.compile(rf"\.{re.escape(manifest.NAME)}\.fastio-[^/]+\.tmp")
FIRST_MARK = f".{manifest.NAME}.fastio-new.tmp"
_TEMPORARY_NAME = re.compile(r"\.step-\d{10,}\.fastio-(?:new|[0-9a-f]{16})")
_DATA = re.compile(r"__\d+_[0-9a-f]{16}\.distcp")
_OWN = re.compile(
    rf"(?:\.(?:{manifest.FILE.pattern}|{re.escape(DCP_METADATA)})\.fastio-[^/]+\.tmp)|{manifest.FILE.pattern}"
    rf"|{_MARK.pattern}"
)


def name_of(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:010d}"


def number_of(name: str) -> int | None:
    """The number of the step whose folder has this name; None if it is not the name of one."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match is not None and name == name_of(int(match[1])) else None


class StepFolder:
    """The folder that holds the steps' folders. Reading never changes anything.

    Only what a Checkpointer wrote is removed. A folder counts as a step's only if it has the exact name of one, is not
    a link, and has an intact manifest, or the mark of a step that is being written or removed. In such a folder only
    files with the names of a step's own are removed, and the folder itself only when it is empty.

    ``path`` is one that system calls accept. ``make`` makes the folder if it is missing. OSError if that fails.
    """

    is_remote = False

    def __init__(self, folder: str, make: bool = False) -> None:
        self._folder = LongPathFolder(folder, make)
        self.path = self._folder.path

    def path_of(self, step: int) -> str:
        """Return the path of a step's folder, which need not exist."""
        return os.path.join(self.path, name_of(step))

    @contextlib.contextmanager
    def withdrawn_on_error(self) -> Iterator[None]:
        """Remove the folder again after an error inside the context, as :meth:`withdraw` does."""
        try:
            yield
        except BaseException:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Remove the folder if this made it, unless it has another writer or holds more than a lock."""
        if not self._folder.was_made:
            return
        with contextlib.suppress(FastIOError, OSError):
            if os.listdir(self.path) in ([], [lock.NAME]):
                lock.FolderLock(self.path).remove()
                os.rmdir(self.path)

    @property
    def lock_folder(self) -> str:
        """The folder whose lock the steps' writer holds."""
        return self.path

    @contextlib.contextmanager
    def staged(self, step: int, tick: Callable[[], None]) -> Iterator[StepFolder]:
        """The folder into which a step is written; at the end it is where readers find it.

        ``tick`` is called now and then if that takes long. What it raises ends it, and nothing of the step is left.
        """
        yield self

    @contextlib.contextmanager
    def fetched(self, step_manifest: Manifest) -> Iterator[str]:
        """The path of a folder with the files of a step, for reading."""
        yield self.path_of(step_manifest.step)

    def make(self, step: int) -> tuple[str, set[str]]:
        """Make a step's folder if it is missing; return its path and the names that are in it already.

        A new folder gets a mark before it gets its name, so that it is known as a step's whenever its writer dies.
        :meth:`unmark` removes the mark when the step is complete.

        CheckpointError if something that no Checkpointer made is in place of the folder or its manifest.
        """
        path = self.path_of(step)
        try:
            if not has_kind(path, stat.S_ISDIR):
                _make_marked(path)
            before = set(os.listdir(path)) - {FIRST_MARK}
        except NotADirectoryError:
            raise obstructed(path, "a folder") from None
        except OSError as error:
            raise TransferError(error.errno or 0, "making the folder of a step", path) from error
        if manifest.NAME in before and not has_kind(os.path.join(path, manifest.NAME), stat.S_ISREG):
            raise obstructed(os.path.join(path, manifest.NAME), "a regular file")
        return path, before

    def unmark(self, step: int) -> None:
        """Remove the mark that :meth:`make` put into a step's folder, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path_of(step), FIRST_MARK))

    def visible(self) -> list[int]:
        """Return the steps that have a manifest, damaged or not, in ascending order."""
        return sorted(step for step, path in self._all() if _may_exist(os.path.join(path, manifest.NAME)))

    def read_manifests(self) -> tuple[list[Manifest], dict[int, CorruptFileError | TransferError]]:
        """Return the manifests, in the order in which the steps were saved, and the errors of those that are damaged.

        TransferError if one cannot be read now.
        """
        found: list[Manifest] = []
        damaged: dict[int, CorruptFileError | TransferError] = {}
        for step in self.visible():
            try:
                step_manifest = self.read_manifest(step)
                if step_manifest.step != step:
                    raise CorruptFileError(
                        self.path_of(step), None, f"its manifest is that of step {step_manifest.step}"
                    )
                found.append(step_manifest)
            except FileNotFoundError:
                continue  # pruned meanwhile
            except (CorruptFileError, TransferError) as error:
                if not is_corruption(error):
                    raise
                damaged[step] = error
        return sorted(found, key=lambda step_manifest: step_manifest.order), damaged

    def read_manifest(self, step: int) -> Manifest:
        """Return the manifest of a step; raises as ``manifest.read`` does."""
        return manifest.read(self.path_of(step))

    def has(self, step_manifest: Manifest) -> bool:
        """Return whether a step still has this manifest; True if its manifest cannot be read."""
        try:
            return self.read_manifest(step_manifest.step).order == step_manifest.order
        except FileNotFoundError:
            return False
        except FastIOError:
            return True

    def hide(self, step: int) -> None:
        """Make a step invisible by one rename; its files stay until :meth:`remove`."""
        path = self.path_of(step)
        os.rename(os.path.join(path, manifest.NAME), os.path.join(path, manifest.HIDDEN))

    def remove(self, step: int) -> None:
        """Remove the files of a hidden step, unless a step of that number was saved since.

        Other steps keep the files that they link to. Files that no Checkpointer wrote stay in the step's folder.
        """
        path = self.path_of(step)
        if not _may_exist(os.path.join(path, manifest.NAME)):
            remove_own(path)

    def abandon(self, step: int) -> None:
        """After an error, remove the folder that was made for a step; only its mark if the step is complete."""
        if is_marked(_names(self.path_of(step))):
            self.remove(step)
            self.unmark(step)

    def clear_leftovers(self) -> None:
        """Remove what killed writers left behind. The caller must hold the folder's lock."""
        for name in filter(_TEMPORARY_NAME.fullmatch, _names(self.path)):
            path = os.path.join(self.path, name)
            if has_kind(path, stat.S_ISDIR):
                remove_unpublished(path)
        for step, path in self._all():
            try:
                named = {file.name for file in manifest.read(self.path_of(step)).files}
            except FileNotFoundError:
                if is_marked(_names(path)):
                    remove_own(path)
                continue
            except FastIOError:
                continue  # a damaged step's files may still be of use
            remove_all(path, leftovers(path, named))

    def _all(self) -> Iterator[tuple[int, str]]:
        for name in _names(self.path):
            step = number_of(name)
            path = os.path.join(self.path, name)
            if step is not None and has_kind(path, stat.S_ISDIR):
                yield step, path


def steps_in(folder: str, make: bool) -> StepFolder:
    """Return the StepFolder of a path; with ``make`` a missing folder is made.

    ValueError for an empty path, CheckpointError if the folder is missing, FolderMissingError
    if its parent is missing, TransferError if it cannot be made.
    """
    if not folder:
        raise ValueError("folder='': expected the path of a folder; '.' is the current one")
    try:
        steps = StepFolder(folder, make)
        if os.path.isdir(steps.path):
            return steps
    except FileNotFoundError as error:
        if make:
            parent = os.path.dirname(os.path.abspath(folder))
            name = quoted(os.path.basename(folder.rstrip("/")))
            raise FolderMissingError(parent, f"the folder to make {name} in does not exist") from error
    except OSError as error:
        if make:
            raise folder_not_made(error, folder) from error
    found = (
        "expected a folder of checkpoints, found a file"
        if os.path.exists(folder)
        else ("there is no such folder to read checkpoints from")
    )
    raise CheckpointError(f"{folder}: {found}")


def _names(path: str) -> list[str]:
    """Return the names in a folder. TransferError if it cannot be listed."""
    try:
        return os.listdir(path)
    except OSError as error:
        raise TransferError(error.errno or 0, "listing the folder", path) from error


def is_marked(names: Iterable[str]) -> bool:
    """Return whether a folder with these names is a step's that is being written or removed, or was when killed."""
    return any(_MARK.fullmatch(name) for name in names)


def is_own(name: str) -> bool:
    """Return whether a file of a step's folder has a name that only Checkpointers give, or is its manifest's mark."""
    return _OWN.fullmatch(name) is not None


def leftovers(path: str, named: Collection[str]) -> set[str]:
    """Return the files of a step's folder that Checkpointers wrote and that are not in ``named``."""
    own = {name for name in _names(path) if name not in named and is_own(name)}
    if DCP_METADATA not in named and any(map(_DATA.fullmatch, own)):  # else another program put a checkpoint there
        own |= {DCP_METADATA} & set(_names(path))
    return own


def remove_all(path: str, names: Iterable[str]) -> None:
    """Remove files of a folder, but no links, folders or pipes; the files that mark it as a step's go last.

    DCP's metadata go before the files that tell them from another program's.
    """
    for name in sorted(names, key=lambda name: (_MARK.fullmatch(name) is not None, name != DCP_METADATA)):
        target = os.path.join(path, name)
        if has_kind(target, stat.S_ISREG):
            os.unlink(target)


def remove_own(path: str) -> None:
    """Remove the files of a step's folder, and the folder if nothing else is in it.

    The folder is renamed before its mark is removed, so that a later writer recognizes it wherever this is interrupted.
    """
    own = leftovers(path, ())
    marks = {name for name in own if _MARK.fullmatch(name)}
    remove_all(path, own - marks)
    if set(_names(path)) <= marks and _STEP.fullmatch(os.path.basename(path)):
        os.rename(path, path := temporary_name(path))
    remove_all(path, marks)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # files of other programs are in it
            raise


def remove_unpublished(path: str) -> None:
    """Remove a step's folder that was never published, or was replaced: its manifest counts as a mark."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(os.path.join(path, manifest.NAME), os.path.join(path, manifest.HIDDEN))
    remove_own(path)


def _make_marked(path: str) -> None:
    """Make a step's folder under a temporary name, put a mark into it, and rename it."""
    new = make_temporary(path)
    try:
        with Descriptor(os.path.join(new, FIRST_MARK), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW):
            os.rename(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_own(new)
        raise


def make_temporary(path: str, token: str = "new") -> str:
    """Make the folder in which a step is written before it gets its name, or find the one that is there.

    ``token``: 16 hexadecimal digits that tell it from others; without them, a dead writer left the one that is there.
    CheckpointError if something else is in its place.
    """
    new = temporary_name(path, token)
    try:
        os.mkdir(new)
    except FileExistsError:
        if not has_kind(new, stat.S_ISDIR):
            raise obstructed(new, "a folder") from None
    return new


def temporary_name(path: str, token: str = "new") -> str:
    """Return the temporary name of a step's folder, for when it holds no files of the step, or is not published."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.fastio-{token}")


def _may_exist(path: str) -> bool:
    """Return whether something of that name exists; True if the system cannot tell."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def has_kind(path: str, is_kind: Callable[[int], bool]) -> bool:
    """Return whether something of that name and kind exists. Links are not followed."""
    try:
        return is_kind(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def obstructed(path: str, expected: str) -> CheckpointError:
    """Return the error for what no Checkpointer made in the place of something that one makes."""
    return CheckpointError(
        f"{path}: there is something else than {expected} (links are not followed), which is not replaced; move it "
        "away, or use another folder"
    )
