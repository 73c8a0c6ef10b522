"""Where a conversion writes: which format a name means, which files that makes, and what must not be there."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastio.errors import FormatError, UnsupportedError, quoted
from fastio.formats.detect import NPY, PT, SAFETENSORS
from fastio.models.conversion.new_file import NewFile
from fastio.models.conversion.source_tensors import Source, SourceTensor
from fastio.models.shards import INDEX_NAME, SINGLE_NAME, index_text, is_model_file, split
from fastio.sizes import parse_size
from fastio.volumes.opening import is_in_volume
from fastio.volumes.opening import split as split_volume

_FORMATS = {".safetensors": SAFETENSORS, ".pt": PT, ".pth": PT, ".bin": PT, ".npy": NPY}
_SHARD_SIZE = "5GB"
_EXPECTED = f"a name that ends in {', '.join(_FORMATS)}, or a folder for shards"


class Destination(NamedTuple):
    """A path, and its format. ``shard_size``: it is a folder of files of at most so many bytes; None: it is a file."""

    path: str
    format: str
    shard_size: int | None


def named(path: str, max_shard_size: int | str | None) -> Destination:
    """What a path means. ValueError for a name or size that means nothing."""
    most = parse_size(_SHARD_SIZE if max_shard_size is None else max_shard_size, "max_shard_size")
    is_folder = path.endswith(os.sep) or os.path.isdir(path)
    suffix = os.path.splitext(path)[1].lower()
    if max_shard_size is None and not is_folder:
        if suffix not in _FORMATS:
            raise ValueError(f"{path}: expected {_EXPECTED} (an existing one, a name that ends in {os.sep}, or with "
                             f"max_shard_size={_SHARD_SIZE!r})")  # fmt: skip
        return Destination(path, _FORMATS[suffix], None)
    if suffix in _FORMATS and not is_folder:
        raise ValueError(f"{path}: max_shard_size= makes a folder of shards, got the name of a file; leave one out")
    if not most:
        raise ValueError(f"max_shard_size={max_shard_size!r}: expected at least one byte, such as {_SHARD_SIZE!r}")
    return Destination(path.rstrip(os.sep) or os.sep, SAFETENSORS, most)


def check_free(to: Destination, sources: Sequence[str], force: bool) -> None:
    """UnsupportedError if a file would replace one of the source, FileExistsError for others without ``force``."""
    if to.shard_size is None:
        old = [to.path] if os.path.lexists(to.path) else []
    else:
        if os.path.lexists(to.path) and not os.path.isdir(to.path):
            problem = "this is a file, expected a folder for shards: name another destination"
            raise FileExistsError(errno.EEXIST, problem, to.path)
        names = sorted(filter(is_model_file, os.listdir(to.path))) if os.path.isdir(to.path) else []
        old = [os.path.join(to.path, name) for name in names]
    lying = [split_volume(source)[0].partition(":")[2] if is_in_volume(source) else source for source in sources]
    here = [path for path in lying if os.path.exists(path)]  # not what is on an unmounted device or at a remote place
    for path in old:
        if os.path.exists(path) and any(os.path.samefile(path, source) for source in here):
            raise UnsupportedError(f"{path}: this is a file of the source, which is read while it is converted; name "
                                   "another destination")  # fmt: skip
        if not force:
            problem = "there is such a file already; name another destination, or replace it by force=True"
            raise FileExistsError(errno.EEXIST, problem, path)


class NewFiles(NamedTuple):
    """The files to write, and an index of them: its path and content, if there is one."""

    files: list[NewFile]
    shard_index: tuple[str, bytes] | None
    notes: tuple[str, ...]


def new_files(to: Destination, source: Source, shards: Mapping[str, list[str]] | None = None) -> NewFiles:
    """Lay out the files. FormatError names what the format cannot hold, and the cure.

    ``shards``: the names of a folder's files, and of the tensors in each; None: as :func:`split` chooses them.
    """
    text = source.metadata
    if source.aliases and to.format == SAFETENSORS:
        text = {"format": "pt", **source.aliases} if text is None else {**source.aliases, **text}
    if to.format != SAFETENSORS:
        lost = sorted((text or {}).keys() - {"format"})
        notes = (f"left out: .{to.format} has no place for the metadata {', '.join(map(quoted, lost))}",)
        content = _one(to.path, source) if to.format == NPY else _object(source)
        return NewFiles([NewFile(to.path, to.format, content)], None, notes if lost else ())
    if source.is_nameless:
        raise FormatError(f"{to.path}: the source holds one tensor without a name, which safetensors needs; give it "
                          "one by key=")  # fmt: skip
    tensors = {tensor.name: tensor for tensor in source.tensors}
    if to.shard_size is None:
        return NewFiles([NewFile(to.path, to.format, tensors, text)], None, ())
    if shards is None:
        shards = split({name: tensor.nbytes for name, tensor in tensors.items()}, to.shard_size)
    if list(shards) == [SINGLE_NAME]:
        file = SINGLE_NAME
        return NewFiles([NewFile(os.path.join(to.path, file), to.format, tensors, text)], None, ())
    text = {"format": "pt"} if text is None else text
    kind = {key: value for key, value in text.items() if key == "format"}
    files = [
        NewFile(os.path.join(to.path, file), to.format, {name: tensors[name] for name in names}, kind)
        for file, names in shards.items()
    ]
    total = sum(tensor.nbytes for tensor in source.tensors)
    others = {key: value for key, value in text.items() if key != "format"}
    return NewFiles(files, (os.path.join(to.path, INDEX_NAME), index_text(shards, total, others)), ())


def _object(source: Source) -> dict[str, SourceTensor] | SourceTensor:
    """What a ``.pt`` holds: all names, those of one tensor share it; or the only tensor, if it has no name."""
    if source.is_nameless:
        return source.tensors[0]
    tensors = {tensor.name: tensor for tensor in source.tensors}
    return {name: tensors[source.aliases.get(name, name)] for name in source.order}


def _one(path: str, source: Source) -> SourceTensor:
    if len(source.tensors) != 1:
        names = ", ".join(quoted(tensor.name) for tensor in source.tensors[:5])
        more = ", …" if len(source.tensors) > 5 else ""
        raise FormatError(f"{path}: npy holds one tensor, the source has {len(source.tensors)} ({names}{more}); name "
                          "one by key=")  # fmt: skip
    return source.tensors[0]
