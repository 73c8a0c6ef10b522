"""Saves and loads the checkpoints of Hugging Face accelerate, in its own files, with fastio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.integrations.missing_library import missing
from fastio.torch_patch import patch_torch

try:
    import accelerate.checkpointing  # noqa: F401
except ImportError as error:
    raise missing("accelerate", error) from error

from fastio.integrations.safetensors_patch import patch_safetensors


@contextlib.contextmanager
def patch_accelerate() -> Iterator[None]:
    """Make ``save_state``, ``load_state``, ``save`` and ``save_model`` of an Accelerator use fastio inside the context.

    The folder has the files and formats that accelerate writes: runs with and without fastio read each other's files.
    Each file is there complete or not at all, and durable when ``save_state`` returns. Files of ``torch.save`` are
    compared with their checksums when they are loaded. Sharded states of FSDP still use torch.distributed.checkpoint.

    It is :func:`fastio.patch_torch` and :func:`fastio.patch_safetensors` together, in every thread, and nests. The
    originals do what fastio cannot.

    >>> from fastio.integrations.accelerate import patch_accelerate
    >>> model, optimizer = accelerator.prepare(model, optimizer)
    >>> with patch_accelerate():
    ...     accelerator.save_state("checkpoint")  # in the next run: accelerator.load_state("checkpoint")
    """
    with patch_torch(), patch_safetensors():
        yield
