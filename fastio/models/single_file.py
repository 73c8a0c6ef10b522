"""load_file and save_file with the signatures of ``safetensors.torch``."""

from __future__ import annotations

import time

import torch

from fastio import api
from fastio.arguments import Backend, Device, HostMemory, Path
from fastio.devices.argument import named_device
from fastio.engine.call_checks import check_flag, swapped
from fastio.engine.load import load_open, with_download
from fastio.engine.plan import LoadRequest
from fastio.files.open_file import path_of, translate_open_limit
from fastio.formats import dense_tensors
from fastio.formats.detect import SAFETENSORS
from fastio.models.safetensors_arguments import check_backend
from fastio.results import publish
from fastio.volumes.object_file import opened


def load_file(
    filename: Path,
    device: Device = "cpu",
    *,
    backend: Backend = "mmap",
    verify: bool = True,
    into: HostMemory | None = None,
) -> dict[str, torch.Tensor]:
    """Load a safetensors file, as ``safetensors.torch.load_file`` does, by the fastest way there is here.

    The tensors belong to the caller, and each gives its memory back by itself.

    Args:
        filename: a file of safetensors, whatever its suffix. :func:`fastio.load` takes the other formats.
        device: where the tensors are loaded to: a name, a ``torch.device`` or an accelerator's number.
        backend: safetensors' argument, ``"mmap"`` or ``"pread"``. It has no effect: the tool is chosen by measured
            times.
        verify: compare each tensor with its checksum, if the file has them: fastio's own do, and those of others after
            ``fastio seal``.
        into: ``"pinned"`` or ``"shared"``: the kind of host memory that is filled, as for :func:`fastio.load`.

    Returns:
        A dict of names to tensors with the dtypes and shapes of the file.

    Raises:
        CorruptFileError: the file is cut short, damaged, or none of safetensors; ChecksumError (a CorruptFileError): a
        tensor is damaged, or the checksums are another file's. FormatError: it is a ``.pt`` or ``.npy``, or this torch
        lacks a dtype.
        TransferError (an OSError): the system refused. FileNotFoundError and others as of ``open``.

    >>> state = fastio.load_file("model.safetensors", device="cpu")
    """
    started = time.perf_counter()
    path = path_of("filename", filename)
    check_backend(backend)
    check_flag("verify", verify)
    target = named_device("device", device)
    dense_tensors.check_mode(path, SAFETENSORS)
    request = api.into_memory(LoadRequest(path, target, True, None, "auto", verify, {}), into)
    with translate_open_limit("load", path), opened(path) as (fd, size):
        # Not what the first bytes say: a pickle is never loaded here.
        tensors, transfer = with_download(
            request, started, lambda began: load_open(request, fd, size, SAFETENSORS, began, None)
        )
    publish(transfer)
    found: dict[str, torch.Tensor] = tensors
    return found


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: Path,
    metadata: dict[str, str] | None = None,
    *,
    checksums: bool = True,
    hashes: bool = False,
) -> None:
    """Save tensors as a safetensors file, as ``safetensors.torch.save_file`` does, atomically and durably.

    Unlike the library it takes tensors that are not contiguous, and packs them. :func:`fastio.save` does the same with
    more options, and returns how the bytes travelled.

    Args:
        tensors: a dict of names to dense tensors of any shape, dtype of the format and device. No two may share memory:
            :func:`fastio.save_model` leaves out all but one of tied tensors.
        filename: the path of the file, whatever its suffix. An old file is replaced when the new one is whole.
        metadata: text that is stored in the header.
        checksums: store a CRC-32 of each tensor in the header's metadata, under the key ``"fastio.checksums"``, which
            other libraries ignore; and ``"format": "pt"`` if ``metadata`` is None, because accelerate refuses metadata
            without it: fastio then reads the file as one without metadata. Without checksums the header is the
            library's own.
        hashes: store a SHA-256 of each tensor as well. It takes a second pass over the memory; ``fastio verify``
            compares it, loads do not.

    Raises:
        FormatError (a ValueError): the format cannot hold a tensor, which the message names. TransferError (an
        OSError): the system refused; the path holds the old file.

    >>> fastio.save_file({"weight": torch.zeros(4, 4)}, "model.safetensors", metadata={"format": "pt"})
    """
    if isinstance(filename, dict) and not isinstance(tensors, dict):
        raise swapped("save_file", "tensors", tensors, filename)
    path = path_of("filename", filename, "a path (str or os.PathLike); fastio.save takes file objects")
    api.save(tensors, path, format=SAFETENSORS, metadata=metadata, checksums=checksums, hashes=hashes)
