"""Lists the tensors of a ``.pt`` file by name: where each lies in the file, and its checksum. Reads no tensors."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import torch

from fastio.errors import FastIOError, FormatError, quoted, shortened
from fastio.formats import dense_tensors
from fastio.formats.named_tensors import named_tensors
from fastio.formats.pt import stored_tensors
from fastio.formats.pt.extra_records import torch_only_reason
from fastio.formats.pt.pickle_errors import corrupt_pickle
from fastio.formats.pt.placeholders import Placeholders
from fastio.formats.pt.reader import PICKLE, Archive, NeedsTorchError, Reader, Record, open_archive, unpickle
from fastio.formats.pt.wanted_storages import SPARSE
from fastio.formats.safetensors.dtypes import name_of
from fastio.formats.safetensors.entries import Entry
from fastio.formats.safetensors.tensor_table import TensorTable
from fastio.memory.load_buffers import empty_storage

TENSORS = (Entry, torch.Tensor)
"""What stands for a tensor in an unpickled object."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Unpickled(NamedTuple):
    """The object of a file, with an :class:`Entry` in the place of each tensor.

    Only where the native unpickler left the pickle to torch it has tensors, whose values are all zeros, over
    ``storages``. ``checksummed``: the records of storages have CRC-32s.
    """

    obj: Any
    archive: Archive
    checksummed: bool
    storages: Placeholders | None

    def table(self, path: str) -> TensorTable:
        """List the tensors. Names are keys, of nested dicts and lists joined by dots. What is no tensor is left out.

        FormatError for tensors that are not dense.
        """
        found = named_tensors(path, self.obj, TENSORS)
        return TensorTable({name: self.entry(path, name, tensor) for name, tensor in found}, None, None, 0)

    def entry(self, path: str, name: str, tensor: Any) -> Entry:
        """Where one of the tensors lies in the file. Only one that is all of its storage has a checksum."""
        if type(tensor) is Entry:
            return tensor
        assert self.storages is not None
        return _entry(path, name, tensor, self.storages, self.checksummed)


def unpickled(path: str, fd: int, size: int, will_compare: bool = False) -> Unpickled:
    """Unpickle an open file, by the rules of ``weights_only=True``. No tensor is read.

    ``will_compare``: the caller compares the CRC-32 of every record that it reads. Where that tells a wrong offset,
    the offsets are those that follow from the directory, if two headers have them: those of thousands are not read.

    CorruptFileError if the file contradicts itself or its pickle is damaged, FormatError for an archive that torch must
    read and for tensors that are not dense, UnpicklingError for what is not allowed.
    """
    try:
        archive = open_archive(path, fd, size, read_local_headers=not will_compare)
        if will_compare and not (archive.has_storage_crcs and archive.is_aligned and archive.confirms(_ends(archive))):
            archive = open_archive(path, fd, size, read_local_headers=True)
        reason = torch_only_reason(archive, verify=True)
        if reason:
            raise NeedsTorchError(reason, archive)
        checksummed = archive.has_storage_crcs
        pickled = archive.read(PICKLE, verify=True)
        found = stored_tensors.unpickle(pickled, archive.records.get, checksummed)
        if found is not None:
            return Unpickled(found[0], archive, checksummed, None)
        obj, storages = _unpickled(archive, pickled)
        return Unpickled(obj, archive, checksummed, storages)
    except NeedsTorchError as reason:
        raise FormatError(
            f"{path}: only torch reads this file ({reason}); load it with fastio.load, and save it again"
        ) from None
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(
            f"{path}: it holds what weights_only=True refuses: {error}; if you trust the file, load it with "
            "fastio.load(path, weights_only=False), and save its tensors alone"
        ) from None
    except (FastIOError, OSError, MemoryError):
        raise
    except Exception as error:  # what an unpickler raises for opcodes without sense, and torch for its arguments
        raise corrupt_pickle(path, PICKLE, error) from error


def _ends(archive: Archive) -> list[Record]:
    """The first and the last storage: a program that places records in its own way does so from the first one on."""
    return [*archive.storages[:1], *archive.storages[-1:]]


def _unpickled(archive: Archive, pickled: bytes) -> tuple[Any, Placeholders]:
    """The object by torch, with zeros in the place of all values, and the storages of its tensors."""
    storages = Placeholders(archive.path, [record for record in archive.storages_in(pickled) if record.nbytes])

    def storage_of(record: Record) -> torch.UntypedStorage:
        if record.nbytes == 0:
            return empty_storage()
        if record not in storages:
            raise KeyError(record.name)
        return storages.storage(record)

    reader = Reader(archive, True, storage_of, pickled, storages)
    try:
        return unpickle(reader, "cpu", True, {}), storages
    except RuntimeError as error:  # some versions of torch compare the indices of sparse tensors, zeros here
        if SPARSE not in pickled:
            raise
        raise FormatError(
            f"{archive.path}: it holds sparse tensors ({shortened(error)}); load the file with fastio.load"
        ) from None


def _entry(path: str, name: str, tensor: torch.Tensor, storages: Placeholders, checksummed: bool) -> Entry:
    is_dense = type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_nested
    if not is_dense or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise FormatError(
            f"{path}: {quoted(name)} is no dense tensor, but sparse, quantized, a conjugate view or of another class; "
            "load the file with fastio.load"
        )
    dtype, shape = tensor.dtype, list(tensor.shape)
    if tensor.numel() == 0:
        return Entry(dtype, shape, 0, 0, name_of(dtype), shape)
    record = storages.record_of(tensor.untyped_storage())
    if record is None:
        why = "has a shape, but no data (it is on the meta device)" if tensor.is_meta else "has no record of its own"
        raise FormatError(f"{path}: {quoted(name)} {why}; load the file with fastio.load")
    begin, end = dense_tensors.span(tensor)
    crc = record.crc if checksummed and (begin, end) == (0, record.nbytes) else None
    stride = None if tensor.is_contiguous() else list(tensor.stride())
    return Entry(dtype, shape, record.offset + begin, end - begin, name_of(dtype), shape, stride, crc)
