"""safe_open: single tensors and parts of tensors from the files of a model."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from fastio.engine.tool_selection import check
from fastio.errors import quoted
from fastio.models.part_reads import Batch, Part, batches, read_batch
from fastio.models.selection import Selection, select, whole
from fastio.models.weight_files import WeightFiles
from fastio.transports.transport import LOAD

_FRAMEWORKS = ("pt", "torch", "pytorch")


def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", *, policy: Any = "auto") -> TensorReader:
    """Open safetensors files for reading tensors and parts of them, as ``safetensors.safe_open`` does.

    Every offset and shape in the headers is compared with the files here, before any memory is made. The files stay
    open until the context ends, or :meth:`TensorReader.close` is called.

    Args:
        filename: a file; a list of files; an index of shards; or a folder with ``model.safetensors`` or
            ``model.safetensors.index.json``.
        framework: ``"pt"``.
        device: where tensors are read to: a name, a ``torch.device`` or an accelerator's number.
        policy: who chooses the tool, as for :func:`fastio.load`.

    Raises:
        FileNotFoundError: a file is missing; ShardMissingError: one that the index names. CorruptFileError: a file is
        damaged or none of safetensors, a name is in two files, or the index and the files differ. FormatError: this
        torch lacks a dtype. TransferError (an OSError): the system refused.

    >>> with fastio.safe_open("model.safetensors", framework="pt") as f:
    ...     rows = f.get_slice("embedding")[:1000]
    """
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: expected 'pt'; safetensors.safe_open has the other frameworks")
    check(policy, LOAD)
    target = torch.device("cpu" if device is None else device)
    return TensorReader(WeightFiles(filename), target, policy)


class TensorReader:
    """Open files of a model, as :func:`safe_open` returns them. Use as a context.

    Tensors that were returned belong to the caller: they outlive the context, and each gives its memory back by itself.
    Methods may be called from several threads, but not during :meth:`close`. After it they raise ValueError.
    """

    def __init__(self, files: WeightFiles, device: torch.device, policy: Any) -> None:
        self._files: WeightFiles | None = files
        self._device = device
        self._policy = policy

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Tensors that were returned stay valid."""
        files, self._files = self._files, None
        if files is not None:
            files.close()

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(self._check_open().file_of)

    def offset_keys(self) -> list[str]:
        """Return the names of all tensors in the order of the files, and in a file by offset."""
        return list(self._check_open().in_order())

    def metadata(self) -> dict[str, str] | None:
        """Return the text in the headers; None if there is none. The first file's where two differ."""
        return self._check_open().metadata()

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read a tensor. Raises TensorMissingError, CorruptFileError, TransferError."""
        return self._read(self._part(name))

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """Read all tensors, in the order of :meth:`offset_keys`."""
        names = self.offset_keys()
        found: dict[str, torch.Tensor] = {}
        for batch in batches([self._part(name) for name in names]):
            tensors = read_batch(batch, self._device, self._policy)
            found.update(zip([part.name for part in batch.parts], tensors, strict=True))
        return found

    def get_slice(self, name: str) -> TensorSlice:
        """Return an object that reads the part of a tensor that it is indexed with. TensorMissingError."""
        return TensorSlice(self, self._part(name))

    def _check_open(self) -> WeightFiles:
        if self._files is None:
            raise ValueError("the files are closed: use them inside the context, or open them again")
        return self._files

    def _part(self, name: str, selection: Selection | None = None) -> Part:
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name is a str, got {type(name).__name__}")
        entry = self._check_open().entry(name)
        return Part(self._check_open().file_of[name], name, entry, selection or whole(entry.shape))

    def _read(self, part: Part) -> torch.Tensor:
        self._check_open()
        return read_batch(Batch([part], [0]), self._device, self._policy)[0]


class TensorSlice:
    """A stored tensor, of which indexing reads a part."""

    def __init__(self, reader: TensorReader, part: Part) -> None:
        self._reader = reader
        self._part = part

    def get_shape(self) -> list[int]:
        """Return the shape in the file's header."""
        return list(self._part.entry.stored_shape)

    def get_dtype(self) -> str:
        """Return the dtype's name in the file's header, such as ``"BF16"``."""
        return self._part.entry.stored_dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read what ``index`` selects, as indexing of the whole tensor would return it, in memory of its own.

        Integers, slices, ``...`` and None read only what they select: rows are read as they are; columns too, if more
        than 16 KiB lie between the selected parts of two rows, else the rows are read and the rest is dropped. Lists,
        masks and tensors read the whole tensor first. Raises what torch raises for an index that does not fit.
        """
        part = self._part
        try:
            selection = select(part.entry.shape, index)
            if selection is None:
                return self._reader._read(part)[index].clone()
        except (IndexError, ValueError, TypeError) as error:
            shape = quoted(part.entry.shape)
            raise type(error)(f"{part.file.path}: {quoted(part.name)} has shape {shape}: {error}") from None
        return self._reader._read(part._replace(selection=selection))
