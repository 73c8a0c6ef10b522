"""Hugging Face accelerate: its checkpoints, in its own files, by fastio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.integrations.missing_library import missing
from fastio.integrations.safetensors_patch import Place, replaced

try:
    import accelerate.checkpointing  # noqa: F401
except ImportError as error:
    raise missing("accelerate", error) from error

SAVES = (Place("safetensors.torch", "save_file"), Place("accelerate.utils.other", "safe_save_file"))
LOADS = (Place("safetensors.torch", "load_file"), Place("accelerate.utils.modeling", "safe_load_file"))


@contextlib.contextmanager
def patch_accelerate() -> Iterator[None]:
    """Inside, ``save_state``, ``load_state``, ``save`` and ``save_model`` of an Accelerator move their bytes by fastio.

    The folder is the one that accelerate writes, with the same files in the same formats: with fastio or without,
    either reads what the other wrote. Each file is there whole or not at all, and durable when ``save_state`` returns;
    what ``torch.save`` wrote is compared with its checksums when it is loaded. Sharded states of FSDP go by
    torch.distributed.checkpoint, as ever.

    It replaces :func:`torch.save`, :func:`torch.load` (see :func:`fastio.patch_torch`) and safetensors' ``save_file``
    and ``load_file``, in every thread, and nests; what they cannot do by fastio is left to the originals.

    >>> from fastio.integrations.accelerate import patch_accelerate
    >>> model, optimizer = accelerator.prepare(model, optimizer)
    >>> with patch_accelerate():
    ...     accelerator.save_state("checkpoint")  # in the next run: accelerator.load_state("checkpoint")
    """
    with replaced(SAVES, LOADS):
        yield
