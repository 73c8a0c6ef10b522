"""Hugging Face transformers: checkpoints of its Trainer, and saved models, in its own files, by fastio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.integrations import accelerate
from fastio.integrations.missing_library import missing
from fastio.integrations.safetensors_patch import Place, replaced

try:
    import transformers.modeling_utils  # noqa: F401
except ImportError as error:
    raise missing("transformers", error) from error

SAVES = (*accelerate.SAVES, Place("transformers.modeling_utils", "safe_save_file"))
LOADS = (*accelerate.LOADS, Place("transformers.trainer_utils", "safe_load_file"))


@contextlib.contextmanager
def patch_transformers() -> Iterator[None]:
    """Inside, a Trainer's checkpoints and ``save_pretrained`` move their bytes by fastio.

    ``checkpoint-<step>`` folders are those that the Trainer writes, with the same files in the same formats: a run may
    go on from them without fastio, and with fastio from those written without; ``resume_from_checkpoint``, rotation and
    ``load_best_model_at_end`` are the Trainer's own. Each file is there whole or not at all, and durable; what
    ``torch.save`` wrote is compared with its checksums when it is loaded. The folder as a whole is not saved in one
    step: one without ``trainer_state.json`` is of a save that was interrupted, and the one before is to be used.

    How it is done, and its limits: as for :func:`fastio.integrations.accelerate.patch_accelerate`.

    >>> from fastio.integrations.transformers import patch_transformers
    >>> trainer = Trainer(model, TrainingArguments("run1", save_steps=500), train_dataset=dataset)
    >>> with patch_transformers():
    ...     trainer.train()  # in the next run: trainer.train(resume_from_checkpoint=True)
    """
    with replaced(SAVES, LOADS):
        yield
