"""Lists what a ``.pt`` file holds, from its zip directory and the outline of its pickle."""

from __future__ import annotations

from collections.abc import Iterator

from fastio.errors import CorruptFileError, quoted
from fastio.formats.pt.pickle_outline import outline
from fastio.formats.pt.pickled_tensors import Found, find, refused
from fastio.formats.pt.reader import PICKLE, Archive, NeedsTorchError, open_archive
from fastio.inspect.contents import Contents, StoredTensor
from fastio.memory.load_buffers import Region
from fastio.sizes import exact_size

_LARGEST = 1 << 30  # bytes of a pickle that is read


def contents_of_pt(path: str, fd: int, size: int) -> Contents:
    """List an open ``.pt`` file. CorruptFileError if its directory or pickle contradicts itself."""
    notes: list[str] = []
    missing: list[str] = []
    try:
        archive = open_archive(path, fd, size, read_local_headers=True)
    except NeedsTorchError as reason:
        archive = reason.archive
        notes.append(f"fastio leaves the file to torch: {reason}")
    found, unsafe = _pickled(archive, missing)
    if unsafe:
        notes.append("fastio.load loads it with weights_only=False alone; what that runs can do harm: trust the origin")
    missing += [f"{quoted(one.name)}: {one.problem}" for one in found if one.problem]
    tensors = tuple(_unique(path, archive, found))
    used = {tensor.region.name for tensor in tensors}
    unnamed = [record for record in archive.storages if record.name not in used]
    if unnamed:
        names = ", ".join(record.name for record in unnamed[:5]) + (", ..." if len(unnamed) > 5 else "")
        nbytes = sum(record.nbytes for record in unnamed)
        notes.append(f"storages that no tensor names: {len(unnamed)}, {exact_size(nbytes)}: {names}")
    values = {one.name: one.value for one in found if one.value}
    sealed = archive.has_storage_crcs and not archive.has_compressed_records
    return Contents(path, "pt", size, tensors, {}, values, tuple(unsafe), tuple(notes), tuple(missing), sealed, (path,))


def _pickled(archive: Archive, missing: list[str]) -> tuple[list[Found], list[str]]:
    """What the pickle holds, and what a safe load refuses of it; if it is not read, why is added to ``missing``."""
    if archive.has_compressed_records:
        missing.append("its records are compressed or encrypted, so the names of its tensors are not shown")
        return [], []
    pickle = next((name for name in archive.records if name.lower() == PICKLE), PICKLE)
    nbytes = archive.records[pickle].nbytes
    if nbytes > _LARGEST:
        missing.append(
            f"its pickle has {exact_size(nbytes)}, above {exact_size(_LARGEST)}, so the names of its tensors "
            f"are not shown"
        )
        return [], []
    try:
        found = outline(archive.read(pickle, verify=True))
    except ValueError as error:
        raise CorruptFileError(archive.path, pickle, f"is no pickle: {error}; restore the file from a copy") from None
    return list(find(found)), refused(found)


def _unique(path: str, archive: Archive, found: list[Found]) -> Iterator[StoredTensor]:
    """The tensors with their places in the file. A name that is there already gets a number."""
    times: dict[str, int] = {}
    for one in found:
        if one.tensor is None:
            continue
        tensor = one.tensor
        record = archive.records.get(tensor.record)
        if record is None and tensor.storage_nbytes:
            raise CorruptFileError(path, tensor.record, f"is missing from the file, which {quoted(one.name)} needs")
        record = record or Region(tensor.record, 0, 0, 0)
        if record.nbytes != tensor.storage_nbytes:
            raise CorruptFileError(
                path,
                tensor.record,
                f"has {exact_size(record.nbytes)}, {quoted(one.name)} needs "
                f"{exact_size(tensor.storage_nbytes)}: the file was altered",
            )
        times[one.name] = times.get(one.name, 0) + 1
        name = one.name if times[one.name] == 1 else f"{one.name} ({times[one.name]})"
        start = tensor.offset * tensor.dtype.itemsize
        yield StoredTensor(name, tensor.dtype, tensor.shape, tensor.stride, path, record, start)
