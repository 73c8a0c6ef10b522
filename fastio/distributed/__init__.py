"""Checkpoints of many ranks: storage for torch.distributed.checkpoint (DCP), and dictionaries shared by ranks.

Example::

    import torch.distributed.checkpoint as dcp
    from fastio.distributed import Reader, Writer

    dcp.save(state_dict, storage_writer=Writer("checkpoints/step-100"))
    dcp.load(state_dict, storage_reader=Reader("checkpoints/step-100"))
"""

from fastio.distributed.consolidation import consolidate
from fastio.distributed.huggingface_reader import HuggingFaceReader
from fastio.distributed.huggingface_writer import HuggingFaceWriter
from fastio.distributed.reader import Reader
from fastio.distributed.shared_dictionaries import share_dictionaries
from fastio.distributed.writer import Writer

__all__ = ["HuggingFaceReader", "HuggingFaceWriter", "Reader", "Writer", "consolidate", "share_dictionaries"]
