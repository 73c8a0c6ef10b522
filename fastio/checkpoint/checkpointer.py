"""The Checkpointer: what a training calls."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import torch

from fastio.checkpoint import at_exit
from fastio.checkpoint.delayed_progress import after_a_second
from fastio.checkpoint.folder.corruption import is_about, is_damage
from fastio.checkpoint.folder.manifest import LIMIT, Manifest, checked_metadata
from fastio.checkpoint.folder.step_folders import steps_in
from fastio.checkpoint.restoring.reading import Restored, Wish, check_step, read_step
from fastio.checkpoint.saving.saver import Manner, Saver
from fastio.checkpoint.sizes import check_count, parsed
from fastio.engine.progress import check_progress, shown
from fastio.errors import CheckpointError, CorruptFileError, TransferError

_log = logging.getLogger("fastio.checkpoint")

_Found = TypeVar("_Found")


class Checkpointer:
    """Saves and restores the steps of a training in a folder: each is there whole and checked, or not at all.

    A step is one folder with a ``state.pt`` that plain ``torch.load`` opens, and a ``manifest.json``, put in its place
    last. :meth:`save` copies the state to host memory and returns; a thread writes it while training goes on. That
    memory, of the size of all tensors saved, is kept for the next save. An error of the thread is raised by whatever
    is called next, and by :meth:`close`.

    Only what a Checkpointer wrote is read or removed: links are not followed, folders of others and others' files in a
    step's folder stay. A step that is damaged in any way costs that step alone.

    One writer a folder: another one, of this process or any other, is refused with FolderInUseError. The lock goes
    with its process, however that ends. A fork of the process cannot use it. Not thread-safe.

    Args:
        folder: made if it is missing.
        keep: how many steps stay, those saved last; None for all. One more is on the disk while it is written, and
            for the moment after it in which the room of the one that goes is given back.
        keep_every: steps that are multiples of it stay for ever.
        asynchronous: False writes before ``save`` returns, straight from the tensors, without a copy.
        memory_budget: the most host memory for the copy, in bytes or as ``"2GiB"``. A state that is larger passes
            through it in pieces, so ``save`` returns when all but the last of it has been written: it blocks for about
            as long as writing takes. At least 32 MiB are taken.
        incremental: True lets a step whose tensors did not change for the most part refer to the files of the one
            before, by hard links: it is written and stored in the time and space of what changed. Its own files, one or
            two, are then called ``changes.pt`` and ``changes.1.pt``; only a Checkpointer opens them. What changed is
            found by digests of the snapshot before, at the speed of reading memory, and most of it is written
            meanwhile: 256 bits for 16 KiB, under a random key of this process, so that one change in 2^128 may be
            missed, whatever it is. So the first step of every process is full; so is one that does not fit into
            ``memory_budget``.
        when_busy: what ``save`` does while the step before is still being written: ``"wait"`` for it, or ``"skip"``:
            return False at once, so that several steps are merged into the next one that is saved: call ``wait``
            before the last, or it may be left out.
        read_back: read each step from the disk again and compare all of it before it becomes visible. Without, what is
            compared is its directory; each byte is checked when it is restored, in any case.
        policy: who chooses the tool, as for :func:`fastio.save`.
        progress: True for a bar, or a function of (bytes done, bytes in all); for what takes more than a second.
        read_only: only look and restore; other processes may write meanwhile.

    >>> with fastio.Checkpointer("run1", keep=2) as checkpointer:
    ...     state = {"model": model, "optimizer": optimizer, "random": RandomState(), "losses": losses}
    ...     restored = checkpointer.restore(into=state)
    ...     for step in range(restored.step + 1 if restored else 0, steps):
    ...         train(step)
    ...         checkpointer.save(step, state)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int | None = 3,
        keep_every: int | None = None,
        asynchronous: bool = True,
        memory_budget: int | str | None = None,
        *,
        incremental: bool = False,
        when_busy: str = "wait",
        read_back: bool = False,
        policy: Any = "auto",
        progress: Any = None,
        read_only: bool = False,
    ) -> None:
        check_count("keep", keep, "1 or more, or None for all")
        check_count("keep_every", keep_every, "1 or more, or None")
        if when_busy not in ("wait", "skip"):
            raise ValueError(f"when_busy={when_busy!r}: expected 'wait' or 'skip'")
        check_progress(progress)
        budget = parsed(memory_budget, "memory_budget")
        self._steps = steps_in(os.fsdecode(folder), make=not read_only)
        self._when_busy = when_busy
        self._policy, self._progress = policy, progress
        self._process = os.getpid()
        self._saver: Saver | None = None
        if not read_only:
            self._saver = Saver(
                self._steps,
                Manner(keep, keep_every, asynchronous, budget, incremental, read_back, policy, progress),
            )
            at_exit.close_at_exit(self)
        self._is_open = True

    def save(self, step: int, state: Any, metadata: dict[str, Any] | None = None) -> bool:
        """Save a step; gives whether it is, see ``when_busy``. One of that number is replaced when this one is whole.

        Returns when the state may change again; the step is visible once it is written (see :meth:`wait`).

        Args:
            step: 0 or more. Steps are in the order in which they were saved: after going back to an earlier one, what
                is saved next is the newest, whatever its number.
            state: a tree of dicts, lists and tuples (of subclasses, too) of whatever has ``state_dict`` and
                ``load_state_dict`` in its class (modules, optimizers, schedulers, data loaders, :class:`RandomState`),
                tensors, generators, and anything that torch.save takes. It is not changed.
            metadata: a dict of what JSON holds; it comes back with :meth:`restore`, and is in the step's manifest.

        Raises:
            What the save before raised, if its error was not heard yet: then nothing of this one is saved, and a
            further call saves. TransferError (an OSError) where the system refuses. CheckpointError, naming the place,
            for a tensor whose memory was freed, and for a container with modules in it that cannot be made anew. What
            torch.save raises for what cannot be pickled.
        """
        saver = self._writing()
        if type(step) is not int or not 0 <= step < LIMIT:
            raise ValueError(f"step={step!r}: expected a whole number, 0 or more and below 2**63")
        kept_metadata = checked_metadata(metadata)
        if self._when_busy == "skip" and saver.is_busy:
            _log.info("step %d: not saved, the one before is still being written", step)
            return False
        saver.save(step, state, kept_metadata)
        return True

    def wait(self) -> None:
        """Return when what was saved is visible, and would survive a power cut; raise the error if it could not be."""
        self._require()
        if self._saver is not None:
            self._saver.wait()

    def steps(self) -> list[int]:
        """The numbers of the steps that can be restored, in ascending order, as far as their manifests tell."""
        self._require()
        return sorted(one.step for one in self._steps.whole()[0])

    def latest(self) -> int | None:
        """The step that was saved last, of those that are visible; None if there is none."""
        self._require()
        manifests = self._steps.whole()[0]
        return manifests[-1].step if manifests else None

    def restore(
        self, step: int | None = None, map_location: Any = None, into: Any = None, *, weights_only: bool | None = True
    ) -> Restored | None:
        """Restore a step, every byte of it checked, once what is being saved is written.

        Args:
            step: None for the newest that is whole: one that is damaged is skipped, with a RuntimeWarning that names
                it.
            map_location: the device for tensors that are not filled in place (default: the CPU). No function or
                dict, as torch.load has: a snapshot lies in host memory, whatever its tensors were on.
            into: a tree as it was given to :meth:`save`. Tensors in it get the saved values, whatever has a state gets
                its state by ``load_state_dict``, in the order of the tree, lists and dicts of plain data get the
                contents that they had, and other values are replaced in the dict or list that they are in. What is
                missing of it is left alone, and is not read: ``into={"model": model}`` restores the model.
                Tensors of torch's modules and optimizers, and tensors in the tree, are filled directly, without a
                second copy in memory, if they have their memory to themselves, are of the same dtype, shape and
                strides, nothing else was saved with theirs, the two trees have the same shape, and ``map_location`` is
                the CPU. Classes with a ``load_state_dict`` of their own, and modules with hooks for it, get tensors in
                new memory, and so does what comes after them: put the model and the optimizer first.
            weights_only: as for torch.load; None is True.

        Returns:
            ``Restored(step, state, metadata)``; ``state`` is ``into``, if that was given, else what was saved, with
            the ``state_dict`` of whatever had one: what torch.load gives of what torch.save writes, with the same types
            and the same sharing. None if ``step`` is None and nothing was ever saved. All of it was read and compared
            with its checksums before it was unpickled.

        Raises:
            CorruptFileError: the step asked for is damaged. CheckpointError: no such step, none that is whole, or not
            of the shape of ``into``, or the memory of one of its tensors was freed. After damage, and where a
            ``load_state_dict`` refuses what was saved, tensors of ``into`` may have been overwritten. TransferError: a
            step cannot be read now, for want of memory or descriptors, say; no earlier one is given in its place.
            TypeError for a ``map_location`` that is no device. Otherwise what ``load_state_dict`` and torch.load raise.
        """
        device = _device(map_location)
        weights_only = weights_only is None or weights_only
        self.wait()
        if step is not None:
            return self._while_there(step, lambda one: self._read(one, device, into, weights_only))
        manifests, damaged = self._steps.whole()
        skipped = sorted(damaged)
        for number in skipped:
            _warn(number, damaged[number])
        for one in reversed(manifests):
            try:
                return self._read(one, device, into, weights_only)
            except (CorruptFileError, TransferError) as error:
                if not is_about(error, self._steps.of(one.step)):
                    raise
                if not self._steps.has(one):  # whoever writes here has pruned it meanwhile, or saved it again
                    return self.restore(None, map_location, into, weights_only=weights_only)
                if not is_damage(error):
                    raise
                _warn(one.step, error)
                skipped.append(one.step)
        if skipped:
            raise CheckpointError(f"{self._steps.path}: all steps are damaged: {', '.join(map(str, sorted(skipped)))}")
        return None

    def verify(self, step: int) -> int:
        """Check every byte of a step; gives their number.

        CorruptFileError names the file, and the record if it lies in one. CheckpointError if there is no such step.
        """
        self.wait()
        return self._while_there(step, lambda one: check_step(self._steps.of(step), one))

    def prune(self) -> list[int]:
        """Remove the steps that ``keep`` and ``keep_every`` do not keep, as every save does; gives their numbers.

        The step saved last always stays, and so do damaged ones: somebody may still want what is in them.
        """
        return self._writing().prune()

    def close(self) -> None:
        """Wait for what is being written, raise its error, and let others write.

        A second call does nothing, but where the first was interrupted: it waits again.
        """
        if os.getpid() != self._process:
            return
        self._is_open = False
        if self._saver is not None:
            self._saver.close()

    def _require(self) -> None:
        """This process, and open."""
        if os.getpid() != self._process:
            raise CheckpointError(
                f"{self._steps.path}: this Checkpointer belongs to process {self._process}, which forked this one; "
                "make another, with read_only=True or in another folder"
            )
        if not self._is_open:
            raise CheckpointError(f"{self._steps.path}: this Checkpointer is closed")

    def _writing(self) -> Saver:
        self._require()
        if self._saver is None:
            raise CheckpointError(f"{self._steps.path}: this Checkpointer was opened with read_only=True")
        return self._saver

    def _while_there(self, step: int, read: Callable[[Manifest], _Found]) -> _Found:
        """What ``read`` makes of a step: once more, where whoever writes here has saved it again meanwhile."""
        while True:
            one = self._find(step)
            try:
                return read(one)
            except (CorruptFileError, TransferError) as error:
                if not is_about(error, self._steps.of(step)) or self._steps.has(one):
                    raise

    def _find(self, step: int) -> Manifest:
        manifests, damaged = self._steps.whole()
        if step in damaged:
            raise damaged[step]
        for one in manifests:
            if one.step == step:
                return one
        there = ", ".join(str(one.step) for one in manifests) or "none"
        raise CheckpointError(f"{self._steps.path}: there is no step {step}; there are: {there}")

    def _read(self, one: Manifest, device: torch.device, into: Any, weights_only: bool) -> Restored:
        with shown(self._progress, f"restoring step {one.step}") as told:
            wish = Wish(into, device, weights_only, self._policy, after_a_second(told))
            return read_step(self._steps.of(one.step), one, wish)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _device(map_location: Any) -> torch.device:
    if map_location is None:
        return torch.device("cpu")
    if not isinstance(map_location, str | int | torch.device):
        kind = type(map_location).__name__
        raise TypeError(f"map_location is a {kind}: a checkpoint is restored to one device, such as 'cpu' or 'cuda:0'")
    return torch.device(map_location)


def _warn(step: int, error: Exception) -> None:
    warnings.warn(f"checkpoint of step {step} is skipped: {error}", RuntimeWarning, stacklevel=3)
