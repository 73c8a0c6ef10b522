"""Saves and loads checkpoints of Trainer and Fabric of the package ``lightning`` with fastio."""

from __future__ import annotations

from fastio.integrations.lightning_files import CheckpointFiles
from fastio.integrations.missing_library import missing

try:
    from lightning.pytorch.plugins.io import TorchCheckpointIO
except ImportError as error:
    raise missing("lightning", error) from error


class FastCheckpointIO(CheckpointFiles, TorchCheckpointIO):
    """Saves and loads the same files as Lightning, faster and checked.

    Everything else stays Lightning's: names, callbacks, ``ckpt_path="last"``. Files saved with it load without it, and
    the other way round. Each is on the disk complete or not at all, and every byte is compared with its checksum on
    load. To save while training continues, wrap it in Lightning's own ``AsyncCheckpointIO``.

    >>> import lightning as L
    >>> from lightning.pytorch.callbacks import ModelCheckpoint
    >>> from fastio.integrations.lightning import FastCheckpointIO
    >>> newest = ModelCheckpoint("run", save_last=True)
    >>> trainer = L.Trainer(max_epochs=10, plugins=[FastCheckpointIO()], callbacks=[newest])
    >>> trainer.fit(model, ckpt_path="last")
    """
