"""Saves and loads checkpoints of the Trainer of the package ``pytorch_lightning`` with fastio."""

from __future__ import annotations

from fastio.integrations.lightning_background import BackgroundCheckpointFiles
from fastio.integrations.lightning_files import CheckpointFiles
from fastio.integrations.missing_library import missing

try:
    from pytorch_lightning.plugins.io import TorchCheckpointIO
except ImportError as error:
    raise missing("lightning", error) from error


class FastCheckpointIO(CheckpointFiles, TorchCheckpointIO):
    """Saves and loads the same files as Lightning, faster and checked.

    Everything else stays Lightning's: names, callbacks, ``ckpt_path="last"``. Files saved with it load without it, and
    the other way round. Each is on the disk complete or not at all, and every byte is compared with its checksum on
    load. To save while training continues, take :class:`FastAsyncCheckpointIO`.

    >>> import pytorch_lightning as pl
    >>> from fastio.integrations.pytorch_lightning import FastCheckpointIO
    >>> trainer = pl.Trainer(max_epochs=10, plugins=[FastCheckpointIO()])
    >>> trainer.fit(model, ckpt_path="last")
    """


class FastAsyncCheckpointIO(BackgroundCheckpointFiles, TorchCheckpointIO):
    """Saves and loads the same files as :class:`FastCheckpointIO`, and writes them while training continues.

    A save copies the checkpoint to host memory, which is kept for the next one, and returns; a thread writes the file.
    The next save waits for it. An error of the thread is raised by the next save or load, and at the end of ``fit``.

    A checkpoint that ``save_top_k`` removes is removed when the newer one is on the disk, not before; if that fails, it
    stays. Callbacks find a file at its path only once it is whole. On several ranks, rank 0 writes: others that load
    the file outside of ``fit`` must wait for it, as by a barrier after ``fit``.

    >>> import pytorch_lightning as pl
    >>> from fastio.integrations.pytorch_lightning import FastAsyncCheckpointIO
    >>> trainer = pl.Trainer(max_epochs=10, plugins=[FastAsyncCheckpointIO()])
    >>> trainer.fit(model)
    """
