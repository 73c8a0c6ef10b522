"""Saves and loads Trainer checkpoints and models of Hugging Face transformers, in its own files, with fastio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.integrations.accelerate import patch_accelerate
from fastio.integrations.missing_library import missing

try:
    import transformers.modeling_utils  # noqa: F401
except ImportError as error:
    raise missing("transformers", error) from error

from fastio.integrations.transformers_background import BackgroundSaves

__all__ = ["BackgroundSaves", "patch_transformers"]


@contextlib.contextmanager
def patch_transformers() -> Iterator[None]:
    """Make a Trainer's checkpoints, ``save_pretrained`` and ``from_pretrained`` use fastio inside the context.

    ``checkpoint-<step>`` folders have the files and formats that the Trainer writes: a run can continue from them
    without fastio, and with fastio from those written without it. ``resume_from_checkpoint``, rotation and
    ``load_best_model_at_end`` are the Trainer's own. Each file is there complete or not at all, and durable. Files of
    ``torch.save`` are compared with their checksums when they are loaded. A folder is not saved atomically: if it lacks
    ``trainer_state.json``, its save was interrupted; use the checkpoint before it.

    For the method and its limits see :func:`fastio.integrations.accelerate.patch_accelerate`.

    >>> from fastio.integrations.transformers import patch_transformers
    >>> trainer = Trainer(model, TrainingArguments("run1", save_steps=500), train_dataset=dataset)
    >>> with patch_transformers():
    ...     trainer.train()  # in the next run: trainer.train(resume_from_checkpoint=True)
    """
    with patch_accelerate():
        yield
