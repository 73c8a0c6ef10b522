"""safe_open: single tensors and parts of tensors from the files of a model."""

from __future__ import annotations

from typing import Literal, overload

from fastio.arguments import Backend, Device, Group, Policy, Weights
from fastio.devices.argument import named_device, present_device
from fastio.engine.call_checks import check_flag
from fastio.engine.tool_selection import check
from fastio.models.array_reader import ArrayReader
from fastio.models.rank_group import rank_group
from fastio.models.safetensors_arguments import check_backend, check_framework
from fastio.models.tensor_reader import TensorReader
from fastio.models.weight_files import WeightFiles
from fastio.transports.transport import LOAD


@overload
def safe_open(
    filename: Weights,
    framework: Literal["pt", "torch", "pytorch"] = "pt",
    device: Device = "cpu",
    *,
    backend: Backend = "mmap",
    policy: Policy = "auto",
    verify: bool = True,
    group: Group = None,
) -> TensorReader: ...
@overload
def safe_open(
    filename: Weights,
    framework: Literal["np", "numpy"],
    device: Device = "cpu",
    *,
    backend: Backend = "mmap",
    policy: Policy = "auto",
    verify: bool = True,
    group: Group = None,
) -> ArrayReader: ...
def safe_open(
    filename: Weights,
    framework: Literal["pt", "torch", "pytorch", "np", "numpy"] = "pt",
    device: Device = "cpu",
    *,
    backend: Backend = "mmap",
    policy: Policy = "auto",
    verify: bool = True,
    group: Group = None,
) -> TensorReader | ArrayReader:
    """Open safetensors or ``.pt`` files for reading tensors and parts of them, as ``safetensors.safe_open`` does.

    Every offset and shape in the headers is compared with the files here, before any memory is made. The files stay
    open until the context ends, or :meth:`TensorReader.close` is called. Of a ``.pt``, names are keys, of nested dicts
    and lists joined by dots; its pickle is read by the rules of ``weights_only=True``. Tensors that share a storage
    are read one by one, and share nothing.

    Args:
        filename: a file; a list of files; an index of shards; or a folder with ``model.safetensors``,
            ``model.safetensors.index.json``, ``pytorch_model.bin`` or ``pytorch_model.bin.index.json``. URLs of fsspec
            do as well: the files are downloaded into a cache.
        framework: ``"pt"`` for tensors; ``"np"`` for numpy arrays, in host memory.
        device: where tensors are read to: a name, a ``torch.device`` or an accelerator's number.
        backend: safetensors' argument, ``"mmap"`` or ``"pread"``. It has no effect: ``policy`` says how files are read.
        policy: who chooses the tool, as for :func:`fastio.load`.
        verify: compare each tensor that is read whole with its checksum, if its file has one. Parts of tensors cannot
            be compared; their transfers say so.
        group: a process group of torch.distributed, or True for the default one, whose ranks on one machine read the
            same files. :meth:`TensorReader.get_tensors` and :meth:`TensorReader.tensors` are then collective calls, in
            which each rank reads a share and broadcasts it, as in :func:`fastio.load_model`. All other reads are the
            rank's own; into host memory they go through the page cache, which reads what several ranks need once.

    Raises:
        FileNotFoundError: a file is missing; ShardMissingError: one that the index names. CorruptFileError: a file is
        damaged or none of safetensors, a name is in two files, or the index and the files differ. ChecksumError (a
        CorruptFileError): the checksums of a file are another file's; from a read: the tensor is damaged. FormatError:
        this torch lacks a dtype, or only torch reads the ``.pt``, or it holds tensors that are not dense.
        UnsupportedError: torch finds no such device here.
        ``pickle.UnpicklingError``: it holds what ``weights_only=True`` refuses. TransferError (an OSError): the system
        refused.

    >>> with fastio.safe_open("model.safetensors", framework="pt") as f:
    ...     rows = f.get_slice("embedding")[:1000]
    """
    is_torch = check_framework(framework)
    check_backend(backend)
    check(policy, LOAD)
    check_flag("verify", verify)
    target = named_device("device", device)
    if not is_torch and target.type != "cpu":
        raise ValueError(f"device={device!r}: numpy's arrays are in host memory; leave it out, or use framework='pt'")
    present_device("device", device)
    rank_group(group)  # raises if there is no such group
    reader = TensorReader(WeightFiles(filename, verify, is_shared=group is not None), target, policy, group)
    return reader if is_torch else ArrayReader(reader)
