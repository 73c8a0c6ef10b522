"""The folder of a training: one folder a step, visible by its manifest."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator

from fastio._native import Descriptor
from fastio.checkpoint.folder import manifest
from fastio.checkpoint.folder.corruption import is_damage
from fastio.checkpoint.folder.long_path import ReachableFolder
from fastio.checkpoint.folder.manifest import Manifest
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError

_STEP = re.compile(r"step-(\d{10,})")
# A manifest that is being written, or was hidden: only a Checkpointer has one, from before a step's first file is
# written to after its last is removed.
_MARK = re.compile(rf"\.{re.escape(manifest.NAME)}\.fastio-[^/]+\.tmp")
_FIRST_MARK = f".{manifest.NAME}.fastio-new.tmp"
_UNNAMED = re.compile(r"\.step-\d{10,}\.fastio-new")
_OWN = re.compile(rf"(?:\.{manifest.FILE.pattern}\.fastio-[^/]+\.tmp)|{manifest.FILE.pattern}|{_MARK.pattern}")


def name_of(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:010d}"


class StepFolder:
    """The steps in a folder. Reading never changes anything.

    Nothing is removed that a Checkpointer did not write. A folder is taken for a step's only if it has the exact name
    of one, is no link, and has a manifest that is whole, or the mark of one that is written or removed. In such a
    folder only files with the names of a step's own are removed, and the folder itself only when it is empty.

    ``path`` is one that system calls take. ``make`` makes the folder, if it is missing. OSError if that fails.
    """

    def __init__(self, folder: str, make: bool = False) -> None:
        self._folder = ReachableFolder(folder, make)
        self.path = self._folder.path

    def of(self, step: int) -> str:
        """Where a step is, or would be."""
        return os.path.join(self.path, name_of(step))

    def make(self, step: int) -> tuple[str, set[str]]:
        """Make a step's folder, if it is not there; gives its path, and the names of what is in it already.

        A new one has a mark in it before it has its name, so that it is known as a step's whenever its writer dies:
        :meth:`unmark` removes that, when the step is whole.

        CheckpointError if something is in its place, or in its manifest's, that no Checkpointer writes to.
        """
        path = self.of(step)
        try:
            if not _has_kind(path, stat.S_ISDIR):
                _make_marked(path)
            before = set(os.listdir(path)) - {_FIRST_MARK}
        except NotADirectoryError:
            raise _in_the_way(path, "a folder") from None
        except OSError as error:
            raise TransferError(error.errno or 0, "making the folder of a step", path) from error
        if manifest.NAME in before and not _has_kind(os.path.join(path, manifest.NAME), stat.S_ISREG):
            raise _in_the_way(os.path.join(path, manifest.NAME), "a regular file")
        return path, before

    def unmark(self, step: int) -> None:
        """Remove the first mark of a step's folder, if it has it."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.of(step), _FIRST_MARK))

    def visible(self) -> list[int]:
        """The steps that have a manifest, damaged or not, in ascending order."""
        return sorted(step for step, path in self._all() if _may_be(os.path.join(path, manifest.NAME)))

    def whole(self) -> tuple[list[Manifest], dict[int, CorruptFileError | TransferError]]:
        """The manifests, in the order in which the steps were saved; and what is wrong with those that are damaged.

        TransferError where one cannot be read now.
        """
        found: list[Manifest] = []
        damaged: dict[int, CorruptFileError | TransferError] = {}
        for step in self.visible():
            try:
                one = manifest.read(self.of(step))
                if one.step != step:
                    raise CorruptFileError(self.of(step), None, f"its manifest is that of step {one.step}")
                found.append(one)
            except FileNotFoundError:
                continue  # pruned meanwhile
            except (CorruptFileError, TransferError) as error:
                if not is_damage(error):
                    raise
                damaged[step] = error
        return sorted(found, key=lambda one: one.order), damaged

    def has(self, one: Manifest) -> bool:
        """Whether a step is still the one of this manifest, as far as can be told."""
        try:
            return manifest.read(self.of(one.step)).order == one.order
        except FileNotFoundError:
            return False
        except FastIOError:
            return True

    def hide(self, step: int) -> None:
        """Make a step invisible, at once; its files stay until they are removed."""
        path = self.of(step)
        os.rename(os.path.join(path, manifest.NAME), os.path.join(path, manifest.HIDDEN))

    def remove(self, step: int) -> None:
        """Remove the files of a hidden step, unless one of that number was saved since.

        Files that other steps link to stay with them, and so does what others keep in the step's folder.
        """
        path = self.of(step)
        if not _may_be(os.path.join(path, manifest.NAME)):
            remove_own(path)

    def abandon(self, step: int) -> None:
        """After an error, remove the folder of a step if it was made for it; only its mark, if the step is whole."""
        if is_marked(os.listdir(self.of(step))):
            self.remove(step)
            self.unmark(step)

    def clear_leftovers(self) -> None:
        """Remove what writers that were killed left behind. Only for who holds the folder's lock."""
        for name in filter(_UNNAMED.fullmatch, os.listdir(self.path)):
            path = os.path.join(self.path, name)
            if _has_kind(path, stat.S_ISDIR):
                remove_own(path)
        for step, path in self._all():
            try:
                named = {file.name for file in manifest.read(self.of(step)).files}
            except FileNotFoundError:
                if is_marked(os.listdir(path)):
                    remove_own(path)
                continue
            except FastIOError:
                continue  # its files may still be of use
            remove_all(path, leftovers(path, named))

    def _all(self) -> Iterator[tuple[int, str]]:
        for name in os.listdir(self.path):
            match = _STEP.fullmatch(name)
            if match is not None and name == name_of(int(match[1])):
                path = os.path.join(self.path, name)
                if _has_kind(path, stat.S_ISDIR):
                    yield int(match[1]), path


def steps_in(folder: str, make: bool) -> StepFolder:
    """The steps in a folder, which is made, with ``make``, or must be there: CheckpointError. TransferError."""
    try:
        steps = StepFolder(folder, make)
        if os.path.isdir(steps.path):
            return steps
    except OSError as error:
        if make:
            raise TransferError(error.errno or 0, "making the folder", folder) from error
    raise CheckpointError(f"{folder}: there is no such folder to read checkpoints from")


def is_marked(names: Iterable[str]) -> bool:
    """Whether a folder with these names is a step's that is being written or removed, or was when its writer died."""
    return any(_MARK.fullmatch(name) for name in names)


def leftovers(path: str, named: Collection[str]) -> set[str]:
    """The files of a step's folder that Checkpointers have written and ``named`` does not have."""
    return {name for name in os.listdir(path) if name not in named and _OWN.fullmatch(name)}


def remove_all(path: str, names: Iterable[str]) -> None:
    """Remove these files of a folder, but no links, folders or pipes; those that mark it as a step's go last."""
    for name in sorted(names, key=lambda name: _MARK.fullmatch(name) is not None):
        target = os.path.join(path, name)
        if _has_kind(target, stat.S_ISREG):
            os.unlink(target)


def remove_own(path: str) -> None:
    """Remove the files of a step's folder, and the folder if nothing else is in it.

    Its mark goes last, when the folder has lost its name: one that is left behind is known whenever this is
    interrupted.
    """
    own = leftovers(path, ())
    marks = {name for name in own if _MARK.fullmatch(name)}
    remove_all(path, own - marks)
    if set(os.listdir(path)) <= marks and _STEP.fullmatch(os.path.basename(path)):
        os.rename(path, path := _unnamed(path))
    remove_all(path, marks)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # others keep something there
            raise


def _make_marked(path: str) -> None:
    """Make a step's folder, with a mark in it before it has its name."""
    new = _unnamed(path)
    try:
        os.mkdir(new)
    except FileExistsError:  # of a writer that died
        if not _has_kind(new, stat.S_ISDIR):
            raise _in_the_way(new, "a folder") from None
    try:
        with Descriptor(os.path.join(new, _FIRST_MARK), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW):
            os.rename(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            remove_own(new)
        raise


def _unnamed(path: str) -> str:
    """What a step's folder is called while it holds nothing of a step."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.fastio-new")


def _may_be(path: str) -> bool:
    """Whether there is anything of that name: also where the system cannot tell."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _has_kind(path: str, is_kind: Callable[[int], bool]) -> bool:
    """Whether there is something of that name and kind, which is no link."""
    try:
        return is_kind(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _in_the_way(path: str, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: there is something else than {expected} (links are not followed), which is not replaced; move it "
        "away, or use another folder"
    )
