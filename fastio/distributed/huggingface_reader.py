"""Loads checkpoints in safetensors by DCP: Hugging Face's models, and what ranks saved of them, to any ranks."""

from __future__ import annotations

from torch.distributed.checkpoint.metadata import Metadata

from fastio.distributed import huggingface_metadata
from fastio.distributed.reader import Reader
from fastio.formats.detect import SAFETENSORS


class HuggingFaceReader(Reader):
    """Load safetensors on many ranks: ``dcp.load(state_dict, storage_reader=HuggingFaceReader(path))``.

    It loads folders of :class:`fastio.distributed.HuggingFaceWriter`, of torch's ``HuggingFaceStorageWriter``, and any
    model of safetensors, such as one from the Hugging Face Hub. Nothing is unpickled. A stored tensor, or a rank's part
    of one, that is loaded whole is read straight into the tensor of ``state_dict``. The number of ranks may differ from
    that of the save; each reads the parts that it needs some of.

    Of a part of what is stored, only what is needed is read, from its first byte to its last; with ``verify`` also the
    rest of the blocks at its ends: the parts of ``HuggingFaceWriter(save_distributed=True)`` have CRC-32s of blocks, as
    those of :class:`fastio.distributed.Writer`. Other CRC-32s of fastio, in a header or a sidecar, cover all that is
    stored of a tensor in a file: with ``verify`` all of it is read.

    Arguments and errors are those of :class:`fastio.distributed.Reader`. CorruptFileError also if the parts of a tensor
    do not fill it, as when a file is missing.

    >>> dcp.load(state_dict, storage_reader=HuggingFaceReader("model"))
    """

    _format = SAFETENSORS

    def _metadata(self, rank: int | None) -> Metadata:
        return huggingface_metadata.read(self.path)  # the error of the first try, if DCP tries again by rank
