"""A step's folder that several ranks fill, and that gets its name in one rename when it is complete."""

from __future__ import annotations

import contextlib
import os
import stat

from fastio.checkpoint.folder import manifest
from fastio.checkpoint.folder.step_folders import (
    FIRST_MARK,
    StepFolder,
    has_kind,
    leftovers,
    make_temporary,
    obstructed,
    remove_own,
    remove_unpublished,
    temporary_name,
)
from fastio.errors import TransferError
from fastio.files.atomic_file import sync_folder
from fastio.files.folder_exchange import exchanged


def remove_parts(steps: StepFolder, step: int, token: str) -> None:
    """Remove the folder of a step with that token, once nothing writes into it, if it is there."""
    with contextlib.suppress(OSError):  # the next writer removes it
        remove_unpublished(temporary_name(steps.path_of(step), token))


class UnpublishedStep:
    """The folder of a step under a temporary name, ``path``.

    Processes that write it together have a ``token`` of it: the first of them makes it. Without a token, what a dead
    writer left in it is removed.
    """

    def __init__(self, steps: StepFolder, step: int, token: str = "new") -> None:
        self._steps, self._step = steps, step
        self._target = steps.path_of(step)
        if not has_kind(self._target, stat.S_ISDIR) and os.path.lexists(self._target):
            raise obstructed(self._target, "a folder")
        try:
            self.path = make_temporary(self._target, token)
            if token == "new":
                remove_unpublished(self.path)
                make_temporary(self._target)
            with contextlib.suppress(FileExistsError):
                open(os.path.join(self.path, FIRST_MARK), "xb").close()
        except OSError as error:
            raise TransferError(error.errno or 0, "making the folder of a step", self._target) from error

    def publish(self) -> None:
        """Give the folder, whose files are durable, its name; it replaces a step of the same number.

        Files of other programs in the replaced folder move to the new one.
        """
        try:
            sync_folder(self.path)
            self._rename()
            sync_folder(self._steps.path)
        except OSError as error:
            raise TransferError(error.errno or 0, "publishing the step", self._target) from error
        with contextlib.suppress(OSError):  # the next writer removes leftovers
            self._steps.unmark(self._step)
            if os.path.isdir(self.path):  # the step that was replaced
                self._move_foreign()
                remove_unpublished(self.path)

    def discard(self) -> None:
        """Remove the folder after an error."""
        with contextlib.suppress(OSError):  # the next writer removes it
            remove_unpublished(self.path)

    def _rename(self) -> None:
        if not os.path.isdir(self._target):
            os.rename(self.path, self._target)
        elif not exchanged(self.path, self._target):
            # Without an exchange in one step, the old step of this number is gone for a moment; others stay.
            self._steps.hide(self._step)
            remove_own(self._target)
            os.rename(self.path, self._target)

    def _move_foreign(self) -> None:
        own = leftovers(self.path, ()) | {manifest.NAME}
        for name in set(os.listdir(self.path)) - own:
            if not os.path.lexists(os.path.join(self._target, name)):
                os.rename(os.path.join(self.path, name), os.path.join(self._target, name))
