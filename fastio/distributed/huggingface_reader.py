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

    fastio's CRC-32s, in a header or a sidecar, cover a stored part each: with ``verify`` it is read whole, also where a
    rank needs less. Without it, and of files without checksums, only what is needed is read, from its first byte to its
    last.

    Arguments and errors are those of :class:`fastio.distributed.Reader`. CorruptFileError also if the parts of a tensor
    do not fill it, as when a file is missing.

    >>> dcp.load(state_dict, storage_reader=HuggingFaceReader("model"))
    """

    _format = SAFETENSORS

    def _metadata(self, rank: int | None) -> Metadata:
        return huggingface_metadata.read(self.path)  # the error of the first try, if DCP tries again by rank
