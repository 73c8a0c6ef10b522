"""Makes transformers' Trainer write its checkpoints while training continues."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import safetensors.torch
import torch
from transformers.trainer_utils import rotate_checkpoints

from fastio.errors import UnsupportedError
from fastio.files.atomic_file import sync_folder
from fastio.files.folder_exchange import exchange_folders, put_back
from fastio.integrations.background_files import BackgroundFiles, NewFiles
from fastio.integrations.safetensors_patch import exchange

SAVING = ".fastio-saving"
"""The folder, in the run's, of the checkpoint that is being written: the Trainer does not look for one there."""
_STATE_NAME = "trainer_state.json"


class BackgroundSaves:
    """A mixin for ``transformers.Trainer``: checkpoints are written by a thread, while training continues.

    Put it before the class of a Trainer. A save copies model, optimizer and the rest to host memory, which is kept for
    the next one, and returns; a thread writes them. Files and folders are the Trainer's own. A ``checkpoint-<step>``
    appears in one step, when all of it is complete and durable, so ``resume_from_checkpoint=True`` never finds half a
    one. Until then it is in the folder ``.fastio-saving`` of the run, which the next run's first save removes. An older
    one of the same name is replaced in one step. Where the filesystem cannot do that (as NFS), a kill may leave the
    older one in ``.fastio-saving``; the next ``train`` puts it back.

    ``save_total_limit`` removes older checkpoints once the new one has appeared, never the best one. The next save, the
    load of the best model and the end of ``train`` wait for the write, and raise its error; nothing is removed then.
    ``on_save`` of a callback comes before the checkpoint has appeared.

    UnsupportedError at the first save on several ranks (use :func:`patch_transformers` there), and with
    ``push_to_hub`` other than at the end, which would upload a checkpoint before it is written; and with
    ``enable_jit_checkpoint``, which makes the folder itself.

    >>> from fastio.integrations.transformers import BackgroundSaves
    >>> class BackgroundTrainer(BackgroundSaves, Trainer):
    ...     pass
    >>> BackgroundTrainer(model, TrainingArguments("run1", save_steps=500), train_dataset=dataset).train()
    """

    args: Any
    state: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._background = BackgroundFiles()
        self._is_saving = False
        super().__init__(*arguments, **options)

    def train(self, *arguments: Any, **options: Any) -> Any:
        """Train as the Trainer does; its last checkpoint is there when this returns, or raises."""
        put_back(os.path.join(self.args.output_dir, SAVING), self.args.output_dir)  # before one to resume is looked for
        try:
            return super().train(*arguments, **options)  # type: ignore[misc]
        finally:
            self._background.close()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._require_supported()
        self._background.wait()
        run = self._get_output_dir(trial)
        name = f"checkpoint-{self.state.global_step}"
        staged = os.path.join(run, SAVING)
        _clear(run)  # what a run that was killed has left
        try:
            files = self._collected(model, trial, staged)
            if self.args.save_strategy != "no" and self.state.best_global_step:
                self._name_best(run, name)
            self.state.save_to_json(os.path.join(staged, name, _STATE_NAME))
            limit, best = self.args.save_total_limit, self.state.best_model_checkpoint

            def end(written: bool) -> None:
                try:
                    if written:
                        _publish(run, name)
                        rotate_checkpoints(run, limit, best, use_mtime=True)
                finally:
                    _clear(run)

            self._background.start(files, end)
        except BaseException:
            if not self._background.is_busy:  # the thread clears it: what it has yet to publish must stay whole
                _clear(run)
            raise

    def _get_output_dir(self, trial: Any) -> str:
        run: str = super()._get_output_dir(trial)  # type: ignore[misc]
        return os.path.join(run, SAVING) if self._is_saving else run

    def _load_best_model(self) -> None:
        self._background.wait()
        super()._load_best_model()  # type: ignore[misc]

    def _finalize_training(self, *arguments: Any, **options: Any) -> Any:
        self._background.wait()  # it may remove the last checkpoint
        return super()._finalize_training(*arguments, **options)  # type: ignore[misc]

    def _require_supported(self) -> None:
        if self.args.world_size > 1:
            raise UnsupportedError(
                f"{self.args.output_dir}: BackgroundSaves saves on one rank, got {self.args.world_size}; use "
                "fastio.integrations.transformers.patch_transformers there"
            )
        if getattr(self.args, "enable_jit_checkpoint", False):
            raise UnsupportedError(
                f"{self.args.output_dir}: enable_jit_checkpoint makes a checkpoint's folder before BackgroundSaves has "
                "written it, and takes it for whole before it is; leave it out, or use "
                "fastio.integrations.transformers.patch_transformers"
            )
        if self.args.push_to_hub and self.args.hub_strategy != "end":
            raise UnsupportedError(
                f"{self.args.output_dir}: hub_strategy={self.args.hub_strategy.value!r} uploads a checkpoint before "
                "BackgroundSaves has written it; use hub_strategy='end', or patch_transformers"
            )

    def _collected(self, model: Any, trial: Any, staged: str) -> NewFiles:
        """Have the Trainer save to ``staged``; files of tensors are collected instead of written."""
        files = NewFiles()
        self._is_saving = True
        try:
            with _collecting(files, staged):
                super()._save_checkpoint(model, trial)  # type: ignore[misc]
        finally:
            self._is_saving = False
        return files

    def _name_best(self, run: str, name: str) -> None:
        """Name the best checkpoint as the Trainer does, which looked for it in another folder."""
        best = f"checkpoint-{self.state.best_global_step}"
        path = os.path.join(run, best)
        if best == name or os.path.exists(path):
            self.state.best_model_checkpoint = path


@contextlib.contextmanager
def _collecting(files: NewFiles, folder: str) -> Iterator[None]:
    """Inside, torch.save and safetensors' save_file of paths in a folder add to ``files``; others write."""
    save, save_file = torch.save, safetensors.torch.save_file
    inside = os.path.join(folder, "")

    def collect(obj: Any, f: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(f, (str, os.PathLike)) and os.fspath(f).startswith(inside) and not (arguments or options):
            files.add_pt(obj, os.fspath(f))
        else:
            save(obj, f, *arguments, **options)

    def collect_file(tensors: Any, filename: Any, metadata: dict[str, str] | None = None) -> None:
        if os.fspath(filename).startswith(inside):
            files.add_safetensors(tensors, os.fspath(filename), metadata)
        else:
            save_file(tensors, filename, metadata=metadata)

    pairs = [(save, collect), (save_file, collect_file)]
    exchange(pairs)
    try:
        yield
    finally:
        exchange([(ours, original) for original, ours in pairs])


def _publish(run: str, name: str) -> None:
    """Give a whole checkpoint its place in a run's folder, durably. An older one of the same name takes its place."""
    staged, path = os.path.join(run, SAVING, name), os.path.join(run, name)
    for folder, _, names in os.walk(staged, topdown=False, onerror=_raise):
        for file in names:
            _sync_file(os.path.join(folder, file))
        sync_folder(folder)
    if os.path.isdir(path):
        exchange_folders(staged, path)
    else:
        os.rename(staged, path)
        sync_folder(run)


def _clear(run: str) -> None:
    """Remove what a save has left in a run's folder, after putting back what it was about to replace."""
    saving = os.path.join(run, SAVING)
    put_back(saving, run)
    shutil.rmtree(saving, ignore_errors=True)


def _raise(error: OSError) -> None:
    raise error


def _sync_file(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
