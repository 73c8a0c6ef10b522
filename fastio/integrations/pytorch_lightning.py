"""Saves and loads checkpoints of the Trainer of the package ``pytorch_lightning`` with fastio."""

from __future__ import annotations

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
    load. To save while training continues, wrap it in Lightning's own ``AsyncCheckpointIO``.

    >>> import pytorch_lightning as pl
    >>> from pytorch_lightning.callbacks import ModelCheckpoint
    >>> from fastio.integrations.pytorch_lightning import FastCheckpointIO
    >>> newest = ModelCheckpoint("run", save_last=True)
    >>> trainer = pl.Trainer(max_epochs=10, plugins=[FastCheckpointIO()], callbacks=[newest])
    >>> trainer.fit(model, ckpt_path="last")
    """
