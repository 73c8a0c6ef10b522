"""PyTorch Lightning, the package ``lightning``: checkpoints of its Trainer and of Fabric by fastio."""

from __future__ import annotations

from fastio.integrations.lightning_files import CheckpointFiles
from fastio.integrations.missing_library import missing

try:
    from lightning.pytorch.plugins.io import TorchCheckpointIO
except ImportError as error:
    raise missing("lightning", error) from error


class FastCheckpointIO(CheckpointFiles, TorchCheckpointIO):
    """Saves and loads the very files that Lightning saves and loads, faster and checked.

    Everything else stays Lightning's: names, callbacks, ``ckpt_path="last"``. A file saved with it loads without it,
    and the other way round. Each is on the disk whole or not at all, and every byte is compared with its checksum when
    it is loaded. To save while training goes on, wrap it in Lightning's own ``AsyncCheckpointIO``.

    >>> import lightning as L
    >>> from fastio.integrations.lightning import FastCheckpointIO
    >>> trainer = L.Trainer(max_epochs=10, plugins=[FastCheckpointIO()])
    >>> trainer.fit(model, ckpt_path="last")
    """
