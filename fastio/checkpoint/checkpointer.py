"""Provides the Checkpointer, which saves and restores the steps of a training."""

from __future__ import annotations

import inspect
import os
from types import TracebackType
from typing import Any

from fastio.arguments import Device, Path, Policy, Progress, Size
from fastio.checkpoint import at_exit
from fastio.checkpoint.folder.manifest import checked_metadata
from fastio.checkpoint.folder.step_folders import StepFolder, steps_in
from fastio.checkpoint.ranks.members import ProcessGroup, members_of
from fastio.checkpoint.ranks.shared_folder import opened_by_all
from fastio.checkpoint.restoring.reading import Restored
from fastio.checkpoint.restoring.step_reader import StepReader, Wanted
from fastio.checkpoint.save_handle import SaveHandle
from fastio.checkpoint.saving.save_settings import SaveSettings, WhenBusy, Writer
from fastio.checkpoint.saving.saver import Saver
from fastio.checkpoint.step_argument import check_new_step, check_step
from fastio.devices.argument import present_device
from fastio.engine.tool_selection import check
from fastio.errors import CheckpointError, quoted
from fastio.files.open_file import path_of
from fastio.progress import check_progress
from fastio.remote.urls import is_remote
from fastio.sizes import check_count, parse_size
from fastio.transports.transport import LOAD, SAVE
from fastio.url_secrets import hide_secrets
from fastio.volumes.opening import outside_volumes


class Checkpointer:
    """Saves and restores the steps of a training in a folder: a step is there complete and checked, or not at all.

    A step is one folder with a ``state.pt`` that plain ``torch.load`` opens, and a ``manifest.json``, which is written
    last. :meth:`save` copies the state to host memory and returns; a thread writes it while training continues. That
    memory, of the size of all saved tensors, is kept for the next save. The next call, or :meth:`close`, raises an
    error of the thread.

    Only files that a Checkpointer wrote are read or removed. Links are not followed. Other programs' folders, and their
    files in a step's folder, stay. Damage to one step affects no other step.

    A folder has one writer: a second one, in any process, is refused with FolderInUseError. The lock ends with its
    process, however that ends. A fork of the process cannot use the Checkpointer. Not thread-safe.

    Args:
        folder: made if it is missing; FolderMissingError if the folder that it is to be made in is missing, too. Or a
            URL of fsspec, such as ``"s3://bucket/run1"``: the thread that writes uploads each step, its manifest last;
            ValueError beside ``incremental`` and ``writer="process"``. Only on one machine is a second writer refused.
        keep: how many of the last saved steps stay; None for all. One more is on the disk while it is written, and
            shortly afterwards, until the space of the removed step is free.
        keep_every: steps that are multiples of it stay forever.
        asynchronous: False writes before ``save`` returns, straight from the tensors, without a copy.
        memory_budget: the most host memory for the copy, in bytes or as ``"2GiB"``. A larger state passes through it
            in chunks, so ``save`` returns when all but the last chunk has been written: it blocks for about as long as
            writing takes. At least 32 MiB are used.
        incremental: True lets a step that mostly did not change link to the files of the step before (hard links): it
            takes the time and space of its changes. Its own files, one or two, are then called ``changes.pt`` and
            ``changes.1.pt``; only a Checkpointer opens them. Changes are found by digests of the snapshot before, at
            the speed of reading memory, and most of them are written meanwhile. A digest has 256 bits for 16 KiB, under
            a random key of this process, so any change is missed with probability 2^-128. The first step of every
            process is therefore full; so is one that does not fit into ``memory_budget``, with a RuntimeWarning, once.
        when_busy: what ``save`` does while the step before is still being written. ``"wait"`` waits for it. ``"skip"``
            returns a false handle at once, so that several steps are merged into the next one that is saved: call
            ``wait`` before the last save, or it may be skipped. ``"queue"`` copies the state and returns; the step is
            written after the one before. Each copy takes memory: as many wait as fit into ``memory_budget``, without
            one a single step; then ``save`` waits. ValueError beside ``incremental``.
        writer: ``"thread"``, or ``"process"``: a process that is started now, copies lie in memory shared with it, and
            what ``save`` copied is written and visible a little later though this process is killed. A Checkpointer
            that is made meanwhile waits for it. It is nice (10), so that training goes first, and takes 250 MB for
            torch. A state larger than ``memory_budget`` is written by a thread. ValueError beside
            ``asynchronous=False``, or a ``policy`` that is a Dictionary.
        read_back: read each step from the disk again and compare all of it before it becomes visible. Otherwise its
            directory is compared. A restore checks every byte in any case.
        policy: chooses the tool, as for :func:`fastio.save`.
        progress: True for a bar, or a function of (bytes done, bytes in all); it starts after one second.
        read_only: only look and restore; other processes may write meanwhile. ValueError beside an option of saves.
        process_group: the ranks that save and restore together. ``"auto"``: all ranks of torch.distributed, if it is
            initialized with more than one; else, or with None, this process alone. Or a ProcessGroup. See below.

    With several ranks (FSDP2, HSDP, DTensor, tensor parallel, DDP) every rank makes the Checkpointer and makes the
    same calls, in the same order, and gives its own state: its parts of DTensors, and plain tensors, which are
    taken to be the same on all ranks and are stored once. A step is then a checkpoint of
    torch.distributed.checkpoint, with one file of each rank and a manifest; any number of ranks, and one process,
    restore it, and so does torch's own load. It is visible when the files of all ranks are durable. With the same
    number of ranks each gets its own other values back; with another number, those of the first rank, and its own
    :class:`RandomState`, if the rank was there. All ranks must see one folder. An error of a rank is
    :class:`fastio.RankError` on all; one that ended, RankLostError. ValueError beside ``incremental`` and
    ``writer="process"``.

    >>> with fastio.Checkpointer("run1", keep=2) as checkpointer:
    ...     state = {"model": model, "optimizer": optimizer, "random": RandomState(), "losses": losses}
    ...     restored = checkpointer.restore(into=state)
    ...     for step in range(restored.step + 1 if restored else 0, steps):
    ...         train(step)
    ...         checkpointer.save(step, state)
    """

    def __init__(
        self,
        folder: Path,
        keep: int | None = 3,
        keep_every: int | None = None,
        asynchronous: bool = True,
        memory_budget: Size | None = None,
        *,
        incremental: bool = False,
        when_busy: WhenBusy = "wait",
        writer: Writer = "thread",
        read_back: bool = False,
        policy: Policy = "auto",
        progress: Progress = None,
        read_only: bool = False,
        process_group: ProcessGroup = "auto",
    ) -> None:
        check_count("keep", keep, "1 or more, or None for all")
        check_count("keep_every", keep_every, "1 or more, or None")
        settings = SaveSettings(
            keep, keep_every, asynchronous, parse_size(memory_budget, "memory_budget"), incremental, when_busy, writer,
            read_back, policy, progress,
        )  # fmt: skip
        settings.check()
        check_progress(progress)
        if read_only:
            _check_reader(
                keep=keep, keep_every=keep_every, asynchronous=asynchronous, memory_budget=memory_budget,
                incremental=incremental, when_busy=when_busy, writer=writer, read_back=read_back,
            )  # fmt: skip
        for op in (LOAD,) if read_only else (SAVE, LOAD):
            check(policy, op)
        self._policy = policy
        self._process = os.getpid()
        self._members = members_of(process_group)
        self._saver: Saver | None = None
        try:
            self._steps = self._open(folder, settings, make=not read_only)
            self._reader = StepReader(self._steps, policy, progress, self._members)
            if not read_only:
                with self._steps.withdrawn_on_error():
                    self._saver = Saver(self._steps, settings, self._members)
                at_exit.close_at_exit(self)
        except BaseException:
            self._members.close()
            raise
        self._is_open = True

    def _open(self, folder: Path, settings: SaveSettings, make: bool) -> StepFolder:
        """Return the folder of the steps; the first rank makes it if it is missing."""
        members, path = self._members, path_of("folder", folder)
        if is_remote(path):
            from fastio.checkpoint.folder.remote_steps import remote_steps  # not at import: few folders are remote

            if members.world > 1:
                raise ValueError(
                    f"{path}: steps of several ranks cannot be at a remote place; use a folder that all ranks see, and "
                    "copy it, or save by one process with process_group=None"
                )
            return remote_steps(path, make, settings.incremental, settings.writer)
        path = outside_volumes("folder", folder)
        what = "Checkpointer" if make else "Checkpointer(read_only=True)"
        with members.agreement(what):
            if members.rank == 0:
                steps = steps_in(path, make)
        with members.agreement(what):
            if members.rank > 0:
                steps = steps_in(path, make=False)
        with steps.withdrawn_on_error():
            return opened_by_all(steps, members, make)

    def __repr__(self) -> str:
        settings = [f"policy {self._policy!r}"]
        if self._saver is None:
            settings.insert(0, "read-only")
        else:
            settings = [*self._saver.described(), *settings]
        members = self._members
        if members.world > 1:
            settings.append(f"rank {members.rank} of {members.world}")
        busy = self._saver is not None and self._saver.is_busy
        state = "closed" if not self._is_open else "writing a step" if busy else "open"
        return f"<fastio Checkpointer in {hide_secrets(self._steps.path)}: {', '.join(settings)}, {state}>"

    def save(self, step: int, state: Any, metadata: dict[str, Any] | None = None) -> SaveHandle:
        """Save a step; returns a handle, which is false if the step was skipped (see ``when_busy`` and ``on_signal``).

        Returns when the state may change again; the step is visible once it is written, for which :meth:`wait` and
        ``handle.written`` wait. It then replaces a step of the same number.

        Args:
            step: 0 or more. Steps are ordered by when they were saved: after going back to an earlier step, the step
                saved next is the newest, whatever its number.
            state: a tree of dicts, lists, tuples and their subclasses. Its leaves are objects whose class has
                ``state_dict`` and ``load_state_dict`` (modules, optimizers, schedulers, samplers that have them,
                :class:`RandomState`), tensors, generators, and anything that torch.save takes. It is not changed. Of
                what :meth:`restore` reads with ``weights_only=False`` only, a RuntimeWarning names each kind once.
            metadata: a dict that JSON can hold and does not change: its keys are text, and it has lists, not tuples.
                :meth:`restore` returns it, and it is in the step's manifest.

        Raises:
            The error of a save before, if it was not raised yet, nor retrieved from its handle: then nothing of this
            step is saved, and the next call saves again. TransferError (an OSError) if the system refuses.
            CheckpointError, naming the place, for a tensor whose memory was freed, and for a container of modules that
            cannot be copied. UnpicklableError for objects that cannot be pickled. TypeError for a DataLoader of torch,
            which has no state to restore. TypeError or ValueError for other metadata.
        """
        saver = self._require_saver()
        check_new_step(step)
        stored_metadata = checked_metadata(metadata)
        return saver.save(step, state, stored_metadata)

    def wait(self) -> None:
        """Return when all saved steps are visible and would survive a power cut; raise the error of one that failed."""
        self._require()
        if self._saver is not None:
            self._saver.wait()

    def on_signal(self, signal: int, within: float = 30) -> None:
        """Note a signal that asks this process to end, such as SIGTERM, for one more save within some seconds.

        The handler notes the signal and returns, so that no half-updated state is saved. The training loop looks at
        :attr:`should_stop` after each step. The next :meth:`save` is the last one: it waits for the step before instead
        of being skipped, and later ones are skipped. What is not written when the time is over is stopped: nothing of
        the step is left, and CheckpointError is raised as errors of saves are. Earlier steps stay.

        A handler that was there before is called too, except Python's own one for the first Ctrl-C. :meth:`close`
        restores it, and so does a fork in the child.

        Args:
            signal: such as ``signal.SIGTERM``. Call this once for each of several.
            within: seconds from the first signal until all must be written. Schedulers kill a process some time after
                SIGTERM: Slurm, Kubernetes and torchrun after 30 s, if not told otherwise.

        Raises:
            CheckpointError in another thread than the main one, where Python allows no handlers. ValueError for
            anything that is no signal, or cannot be handled.

        >>> checkpointer.on_signal(signal.SIGTERM, within=25)
        >>> for step in range(first, steps):
        ...     train(step)
        ...     if step % 1000 == 0 or checkpointer.should_stop:
        ...         checkpointer.save(step, state)
        ...     if checkpointer.should_stop:
        ...         break
        """
        self._require_saver().stop.listen(signal, within)

    @property
    def should_stop(self) -> bool:
        """Whether a signal of :meth:`on_signal` came: save once more, and leave the training loop."""
        return self._saver is not None and self._saver.should_stop

    def steps(self) -> list[int]:
        """Return the numbers of the steps whose manifests are intact, in ascending order."""
        self._require()
        return sorted(self._reader.numbers("steps()"))

    def latest(self) -> int | None:
        """Return the visible step that was saved last; None if there is none."""
        self._require()
        numbers = self._reader.numbers("latest()")
        return numbers[-1] if numbers else None

    def restore(
        self,
        step: int | None = None,
        map_location: Device = None,
        into: Any = None,
        *,
        weights_only: bool | None = True,
    ) -> Restored | None:
        """Restore a step and check all data in it, after waiting for a save in progress.

        Args:
            step: None for the newest intact step: damaged steps are skipped, each with a RuntimeWarning that names it.
            map_location: the device for tensors that are not filled in place (default: the CPU). Not a function or
                dict as for torch.load: a snapshot lies in host memory, whatever device its tensors were on.
            into: a tree like the one given to :meth:`save`. In the order of the tree, tensors get the saved values,
                objects with a state get it by ``load_state_dict``, and lists and dicts of plain data get their saved
                contents. Other values are replaced in their dict or list. Saved entries that the tree lacks are not
                read: ``into={"model": model}`` restores the model only.
                Tensors in the tree, and tensors of torch's modules and optimizers, are filled directly, without a
                second copy in memory, if they share their memory with no other tensor, have the saved dtype, shape and
                strides, were saved without sharing their storage, the two trees have the same shape, and
                ``map_location`` is the CPU. Classes with their own ``load_state_dict``, and modules with hooks for it,
                get tensors in new memory, and so does everything after them: put the model and the optimizer first.
            weights_only: as for torch.load; None is True.

        Returns:
            ``Restored(step, state, metadata)``. ``state`` is ``into``, if given, else the saved state, in which a
            ``state_dict`` stands for each object that had one: as torch.load returns it after torch.save, with the same
            types and the same sharing. A generator comes back as a new one on its device; on a machine without that
            device, as an OrderedDict with its ``state``. None if ``step`` is None and nothing was ever saved. All of it
            was read and compared with its checksums before it was unpickled.

        Raises:
            CorruptFileError: the step is damaged. CheckpointError: there is no such step, or no intact one, or it does
            not have the shape of ``into``, or two of its tensors share a part of their memory and were not saved so, or
            the memory of one was freed, or a module or optimizer of torch cannot take its saved state (names, shapes,
            parameter groups): nothing is changed then. After damage, or if another ``load_state_dict`` refuses the
            saved state, tensors of ``into`` may have been overwritten. TransferError: the step cannot be read now, for
            example for lack of memory or descriptors; no earlier step is returned instead. TypeError for a ``step``
            that is no integer, or a ``map_location`` that is not a device; UnsupportedError for a device that torch
            does not find here. What ``load_state_dict`` and torch.load raise.
        """
        check_step(step)
        device = present_device("map_location", map_location)
        weights_only = weights_only is None or weights_only
        self.wait()
        wanted = Wanted(into, device, weights_only)
        return self._reader.restore_newest(wanted) if step is None else self._reader.restore(step, wanted)

    def verify(self, step: int) -> int:
        """Check all data of a step, and return the bytes of its files.

        CorruptFileError names the file, and the record if the damage lies in one: exactly where :meth:`restore` raises
        it. Padding between the records, and fields of the zip file that a restore does not read, are no data: a change
        in them is logged as a warning. CheckpointError if there is no such step.
        """
        check_step(step, "")
        self.wait()
        return self._reader.check(step)

    def prune(self) -> list[int]:
        """Remove the steps that ``keep`` and ``keep_every`` do not keep, as every save does; return their numbers.

        The step saved last always stays. So do damaged steps, whose intact parts may still be of use.
        """
        return self._require_saver().prune()

    def close(self) -> None:
        """Wait for the save in progress, raise its error, and release the folder's lock.

        A second call does nothing; if the first was interrupted, it waits again.
        """
        if os.getpid() != self._process:
            return
        if self._saver is not None:
            self._saver.require_no_callback()
        self._is_open = False
        if self._saver is not None:
            self._saver.close()
        else:
            self._members.close()

    def _require(self) -> None:
        """Raise CheckpointError in a forked process, or if this is closed."""
        if os.getpid() != self._process:
            raise CheckpointError(
                f"{self._steps.path}: this Checkpointer belongs to process {self._process}, which forked this one; "
                "make another, with read_only=True or in another folder"
            )
        if not self._is_open:
            raise CheckpointError(f"{self._steps.path}: this Checkpointer is closed; make another")

    def _require_saver(self) -> Saver:
        self._require()
        if self._saver is None:
            raise CheckpointError(f"{self._steps.path}: this Checkpointer was opened with read_only=True")
        self._saver.require_no_callback()
        return self._saver

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_reader(**given: Any) -> None:
    """ValueError for an option of saves."""
    defaults = inspect.signature(Checkpointer).parameters
    for name, value in given.items():
        if value != defaults[name].default:
            raise ValueError(
                f"{name}={quoted(value)}: only saves use it, and read_only=True has none: leave one of them out"
            )
