"""The folder of a training: one folder a step, visible by its manifest."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator

from fastio.checkpoint import manifest
from fastio.checkpoint.damage import is_damage
from fastio.checkpoint.manifest import Manifest
from fastio.errors import CorruptFileError, FastIOError, TransferError

_STEP = re.compile(r"step-(\d{10,})")
_OWN = re.compile(r"(?:state|changes)(?:\.\d+)?\.pt|step-\d{10,}\..+\.pt|manifest\.json|\..+\.fastio-.+\.tmp")


def name_of(step: int) -> str:
    """The name of a step's folder."""
    return f"step-{step:010d}"


class StepFolder:
    """The steps in ``path``. Reading never changes anything."""

    def __init__(self, path: str) -> None:
        self.path = path

    def of(self, step: int) -> str:
        """Where a step is, or would be."""
        return os.path.join(self.path, name_of(step))

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
        os.unlink(os.path.join(self.of(step), manifest.NAME))

    def remove(self, step: int) -> None:
        """Remove the files of a hidden step, unless one of that number was saved since.

        Files that other steps link to stay with them.
        """
        path = self.of(step)
        if not _may_be(os.path.join(path, manifest.NAME)):
            _remove_folder(path)

    def clear_leftovers(self) -> None:
        """Remove what writers that were killed left behind. Only for who holds the folder's lock."""
        for step, path in self._all():
            try:
                named = {manifest.NAME, *(file.name for file in manifest.read(self.of(step)).files)}
            except FileNotFoundError:
                _remove_folder(path)
                continue
            except FastIOError:
                continue  # somebody may still save what is in it
            remove_all(path, leftovers(path, named))

    def _all(self) -> Iterator[tuple[int, str]]:
        for name in os.listdir(self.path):
            match = _STEP.fullmatch(name)
            if match is not None:
                yield int(match[1]), os.path.join(self.path, name)


def leftovers(path: str, named: Collection[str]) -> set[str]:
    """What Checkpointers have written into a step's folder, and no manifest names. What others keep there is theirs."""
    return {name for name in os.listdir(path) if name not in named and _OWN.fullmatch(name)}


def _may_be(path: str) -> bool:
    """Whether there is such a file: also where the system cannot tell, as os.path.exists does not have it."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def remove_all(path: str, names: Iterable[str]) -> None:
    """Remove these files of a folder, and folders with all that is in them."""
    for name in names:
        target = os.path.join(path, name)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)


def _remove_folder(path: str) -> None:
    """Remove a step's folder. Not by rmtree, which, interrupted, may close its descriptor twice: another's by then."""
    if os.path.islink(path):
        raise OSError(errno.ENOTDIR, "a link is not removed", path)
    remove_all(path, os.listdir(path))
    os.rmdir(path)
