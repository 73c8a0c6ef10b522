"""The catalogue of peers by name: other libraries, fastio, and each of fastio's tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastio_bench.peers import libraries, optional_libraries
from fastio_bench.peers.peer import BOTH, TENSOR, TOOL, Peer

if TYPE_CHECKING:
    import fastio

__all__ = ["TOOL", "Peer", "every", "find", "way"]


_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}  # for torch's allocations
_TOUCHED = "maps the file: timed until a byte of every page is read, since all others have every byte in memory then"


def every() -> list[Peer]:
    """All peers, torch first: ratios are over torch."""
    return [
        Peer("torch", "torch", "torch", libraries.torch_save, libraries.torch_load, settings="as it comes"),
        Peer(
            "torch, no CRC",
            "torch",
            "torch",
            libraries.torch_save_without_crc,
            None,
            variant_of="torch",
            settings="set_crc32_options(False)",
        ),
        Peer(
            "torch, huge pages",
            "torch",
            "torch",
            None,
            libraries.torch_load,
            variant_of="torch",
            environment=_HUGE_PAGES,
            settings="THP_MEM_ALLOC_ENABLE=1",
        ),
        Peer(
            "torch, mmap",
            "torch",
            "torch",
            None,
            libraries.torch_load_mapped,
            variant_of="torch",
            mapped=True,
            settings=f"load(mmap=True) {_TOUCHED}",
        ),
        Peer(
            "safetensors",
            "safetensors",
            "safetensors.torch",
            libraries.safetensors_save,
            libraries.safetensors_load,
            mapped=True,
            settings=f"save_file; load_file {_TOUCHED}",
        ),
        Peer(
            "numpy",
            "numpy",
            "numpy",
            libraries.numpy_save,
            libraries.numpy_load,
            settings="save of one array, savez of a state dict; load, allow_pickle=False",
        ),
        Peer(
            "DCP",
            "torch",
            "torch.distributed.checkpoint",
            libraries.dcp_save,
            libraries.dcp_load,
            environment=_HUGE_PAGES,
            settings=f"one process; FileSystemWriter(thread_count={libraries.dcp_threads()}), a thread and a file a "
            "processor, 8 at most; FileSystemReader, which has no threads to set, into new tensors in huge pages "
            "(THP_MEM_ALLOC_ENABLE=1)",
        ),
        Peer(
            "DALI",
            "nvidia-dali-cuda120",
            "nvidia.dali",
            None,
            libraries.dali_load,
            kinds=TENSOR,
            files_of="numpy",
            settings=f"numpy reader on the CPU, {libraries.DALI_THREADS} threads, prefetch_queue_depth=1, pipeline "
            "included; the tensor is a view of its buffer (DLPack); reads numpy's file",
            ready=libraries.dali_ready,
        ),
        Peer(
            "fastsafetensors",
            "fastsafetensors",
            "fastsafetensors",
            optional_libraries.fastsafetensors_save,
            optional_libraries.fastsafetensors_load,
            files_of="safetensors",
            settings=f"ParallelSaver of {optional_libraries.fastsafetensors_shards()} shards, as many threads, one a "
            "processor, 8 at most; loads: nogds, a thread a core; tensors are views of its buffer; reads safetensors' "
            "file",
            ready=optional_libraries.fastsafetensors_ready,
        ),
        Peer(
            "runai-model-streamer",
            "runai-model-streamer",
            "runai_model_streamer",
            None,
            optional_libraries.runai_load,
            files_of="safetensors",
            environment={"RUNAI_STREAMER_MEMORY_LIMIT": "-1"},
            settings="16 threads (its default), memory unlimited; tensors are views of its buffer; reads safetensors' "
            "file",
        ),
        Peer(
            "torchsnapshot",
            "torchsnapshot",
            "torchsnapshot",
            optional_libraries.torchsnapshot_save,
            optional_libraries.torchsnapshot_load,
            environment=_HUGE_PAGES,
            settings="Snapshot.take and restore, 16 transfers at once (its default); restores into new tensors in huge "
            "pages (THP_MEM_ALLOC_ENABLE=1)",
        ),
        Peer(
            "DeepNVMe",
            "deepspeed",
            "deepspeed.ops.op_builder",
            optional_libraries.deepnvme_save,
            optional_libraries.deepnvme_load,
            settings=f"aio_handle: blocks of {optional_libraries.DEEPNVME_BLOCK >> 20} MiB, queue depth "
            f"{optional_libraries.DEEPNVME_DEPTH}, overlap_events; a file a tensor; what is saved is copied into its "
            "pinned memory beforehand, untimed",
            adopt=optional_libraries.deepnvme_adopt,
            ready=optional_libraries.deepnvme_handle,
        ),
        Peer(
            "TensorNVMe",
            "tensornvme",
            "tensornvme",
            optional_libraries.tensornvme_save,
            None,
            settings=f"DiskOffloader: uring, {optional_libraries.TENSORNVME_ENTRIES} entries; its file is readable "
            "only to the process that wrote it (so no loads) and removed with it, which is timed",
        ),
        Peer("fastio", "fastio", "fastio", _fastio_save, _fastio_load, settings='policy="auto", verify=True'),
        Peer(
            "fastio, unverified",
            "fastio",
            "fastio",
            None,
            _fastio_load_unverified,
            variant_of="fastio",
            settings='policy="auto", verify=False',
        ),
    ]


def find(name: str, device: str = "cpu") -> Peer:
    """The peer of that name; ``tool:<name>`` is one of fastio's tools, on that device."""
    if name.startswith(TOOL):
        return _tool(name, device)
    return {peer.name: peer for peer in every()}[name]


def _tool(name: str, device: str) -> Peer:
    """One of fastio's tools by name, with its native format: npy for numpy and for tools without pt.

    All tools that write fastio's pt read the same file, that of the first of them: a file's place on the disk matters
    too. (policy="torch" is torch.save itself, and numpy writes another format.)
    """
    import fastio

    policy = name.removeprefix(TOOL)
    statuses = fastio.tools()
    status = next(status for status in statuses if status.name == policy)
    layout: Literal["npy", "pt"] = "npy" if policy == "numpy" or "pt" not in status.formats else "pt"

    def save(thing: Any, path: str, durable: bool) -> str:
        return way(fastio.save(thing, path, policy=policy, durable=durable, format=layout))

    def load(path: str) -> tuple[Any, str]:
        with fastio.record() as transfers:
            thing = fastio.load(path, device, policy=policy)
        return thing, way(transfers[-1])

    files_of = "" if "save" in status.operations else f"{TOOL}numpy"
    if layout == "pt" and policy != "torch":
        files_of = TOOL + next(other.name for other in statuses if _fills_pt(other, device))
    return Peer(
        name,
        "fastio",
        "fastio",
        save if "save" in status.operations else None,
        load if "load" in status.operations else None,
        kinds=TENSOR if layout == "npy" else BOTH,
        files_of=files_of,
        settings=f'policy="{policy}", format="{layout}"',
    )


def _fills_pt(status: fastio.ToolStatus, device: str) -> bool:
    able = status.available and status.files and "pt" in status.formats and "save" in status.operations
    return able and device.partition(":")[0] in status.devices and status.name not in ("torch", "numpy")


def _fastio_save(thing: Any, path: str, durable: bool) -> str:
    import fastio

    result = fastio.save(thing, path, durable=durable)
    return way(result)


def _fastio_load(path: str, verify: bool = True) -> tuple[Any, str]:
    import fastio

    with fastio.record() as transfers:
        thing = fastio.load(path, verify=verify)
    return thing, way(transfers[-1])


def _fastio_load_unverified(path: str) -> tuple[Any, str]:
    return _fastio_load(path, verify=False)


def way(transfer: fastio.Transfer) -> str:
    """The tool that moved the bytes, and the route it took."""
    return f"{transfer.tool}, {transfer.route}"
