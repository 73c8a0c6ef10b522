"""Finds the steps of a folder, and reads or checks one of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch

from fastio.checkpoint.folder.corruption import concerns_step, is_corruption
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.ranks.members import Alone
from fastio.checkpoint.restoring.reading import Restored, RestoreRequest
from fastio.checkpoint.restoring.step_kinds import check_part, read_of_kind
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import CheckpointError, CorruptFileError, RankError, TransferError
from fastio.progress import shown

_Found = TypeVar("_Found")


class Wanted(NamedTuple):
    """How to restore: see :meth:`fastio.Checkpointer.restore`."""

    into: Any
    device: torch.device
    weights_only: bool


class StepReader:
    """Reads the steps of a folder. Other processes may write there meanwhile."""

    def __init__(self, steps: StepFolder, policy: Any, progress: Any, members: Alone) -> None:
        self._steps, self._members = steps, members
        self._policy, self._progress = policy, progress

    def numbers(self, what: str) -> list[int]:
        """Return the numbers of the steps whose manifests are intact, in the order in which they were saved.

        ``what``, here and below, is the call of all ranks.
        """
        return [manifest.step for manifest in self._manifests(what)[0]]

    def _manifests(self, what: str) -> tuple[list[Manifest], dict[int, CorruptFileError | TransferError]]:
        return self._members.first(self._steps.read_manifests, what)

    def restore_newest(self, wanted: Wanted) -> Restored | None:
        """Restore the newest intact step, with a RuntimeWarning for each damaged one; None if nothing was ever saved.

        CheckpointError if all are damaged.
        """
        manifests, damaged = self._manifests(what := "restore()")
        skipped = sorted(damaged)
        for number in skipped:
            _warn(number, damaged[number])
        for manifest in reversed(manifests):
            try:
                return self._read(manifest, wanted)
            except (CorruptFileError, TransferError, RankError) as error:
                if not self._concern(error, manifest.step):
                    raise
                if not self._has(manifest, what):  # another process pruned it meanwhile, or saved it again
                    return self.restore_newest(wanted)
                if not all(is_corruption(one) for one in _each(error)):
                    raise
                _warn(manifest.step, error)
                skipped.append(manifest.step)
        if skipped:
            raise CheckpointError(f"{self._steps.path}: all steps are damaged: {', '.join(map(str, sorted(skipped)))}")
        return None

    def restore(self, step: int, wanted: Wanted) -> Restored:
        """Restore a step. CheckpointError if there is no such step."""
        return self._while_there(step, f"restore({step})", lambda manifest: self._read(manifest, wanted))

    def check(self, step: int) -> int:
        """Check all data of a step; return the bytes of its files. CheckpointError if there is no such step."""
        return self._while_there(step, f"verify({step})", self._checked)

    def _checked(self, manifest: Manifest) -> int:
        """Check this rank's share of a step's files; return the bytes of all."""
        members = self._members
        with members.agreement(f"verify({manifest.step})"), self._steps.fetched(manifest) as folder:
            check_part(folder, manifest, members.rank, members.world)
        return sum(file.nbytes for file in manifest.files)

    def _while_there(self, step: int, what: str, read: Callable[[Manifest], _Found]) -> _Found:
        """Return ``read`` of a step; again if another process saved the step anew meanwhile."""
        while True:
            manifest = self._find(step, what)
            try:
                return read(manifest)
            except (CorruptFileError, TransferError, RankError) as error:
                if not self._concern(error, step) or self._has(manifest, what):
                    raise

    def _concern(self, error: Exception, step: int) -> bool:
        """Whether an error, or all errors of the ranks, are of a step's files."""
        folder = self._steps.path_of(step)
        return all(isinstance(e, CorruptFileError | TransferError) and concerns_step(e, folder) for e in _each(error))

    def _has(self, manifest: Manifest, what: str) -> bool:
        return self._members.first(lambda: self._steps.has(manifest), what)

    def _find(self, step: int, what: str) -> Manifest:
        manifests, damaged = self._manifests(what)
        if step in damaged:
            raise damaged[step]
        for manifest in manifests:
            if manifest.step == step:
                return manifest
        there = ", ".join(str(manifest.step) for manifest in manifests) or "none"
        raise CheckpointError(f"{self._steps.path}: there is no step {step}; there are: {there}")

    def _read(self, manifest: Manifest, wanted: Wanted) -> Restored:
        members, what = self._members, f"restore({manifest.step})"
        with shown(self._progress, f"restoring step {manifest.step}") as on_progress:
            told = after_a_second(on_progress)
            with members.agreement(what, twice=True) as checked:
                request = RestoreRequest(
                    wanted.into, wanted.device, wanted.weights_only, self._policy, told, checked.reach
                )
                with self._steps.fetched(manifest) as folder:
                    return read_of_kind(folder, manifest, request, members)


def _each(error: Exception) -> list[Any]:
    """The errors of all ranks, or the one of this process."""
    return list(error.errors.values()) if isinstance(error, RankError) else [error]


def _warn(step: int, error: Exception) -> None:
    warnings.warn(f"checkpoint of step {step} is skipped: {error}", RuntimeWarning, stacklevel=4)
