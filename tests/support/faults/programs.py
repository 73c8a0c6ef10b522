"""The programs of the children. Their arguments and results are JSON values.

A result's ``found`` is the version at the path after a save, or in the object after a load (0 if the load failed).
``next`` is the version after the next save or load, without faults.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

import fastio
from fastio import dicts
from fastio.backends.pinned import PinnedTransport
from fastio.offload.stores.block_store import BlockStore
from fastio.transports.transport import Extent, ReadRequest, WriteRequest
from fastio.volumes import Volume
from faults import objects

Json = dict[str, Any]
NBYTES = 3 << 20


def save(path: str, policy: str, durable: bool = True, nbytes: int = NBYTES, faults: list[Json] | None = None) -> Json:
    """Save version NEW over an existing file under faults; then check the file, and save a small OLD."""
    _warm_up(policy, objects.format_of(path))
    return _save(path, policy, durable, nbytes, faults)


def load(path: str, policy: str, faults: list[Json] | None = None) -> Json:
    """Load a file under faults, and once more without any; the result has the versions."""
    _warm_up(policy, objects.format_of(path))
    return _load(path, policy, faults)


def learn(op: str, path: str, faults: list[Json]) -> list[Json]:
    """Twelve saves or loads under persistent faults, each with the tool that a dictionary chooses that knows nothing.

    So it tries each tool. One that has starting times may never try a slower one.
    """
    _warm_up("auto", objects.format_of(path))
    policy = dicts.Dictionary(rules=())
    return [
        _save(path, policy, True, NBYTES, faults) if op == "save" else _load(path, policy, faults) for _ in range(12)
    ]


def sweep(op: str, path: str, policy: str, call: str, effect: int) -> list[Json]:
    """Repeat ``save`` or ``load``: the fault strikes the first call of its class, then the second, up to the last."""
    _warm_up(policy, objects.format_of(path))
    results: list[Json] = []
    for first in range(1, 200):
        faults = [{"call": call, "effect": effect, "first": first, "times": 1}]
        result = _save(path, policy, True, NBYTES, faults) if op == "save" else _load(path, policy, faults)
        if result["strikes"] == 0:
            return results
        results.append(result)
    raise AssertionError(f"more than 200 calls of class {call}")


def new_volume(path: str, call: str, effect: int) -> list[Json]:
    """Make a volume; the fault strikes each call of the class in turn. ``left`` is what the folder has then."""
    results: list[Json] = []
    for first in range(1, 50):
        fault = {"call": call, "effect": effect, "first": first, "times": 1}
        result = _attempt(lambda: Volume.create(path, 1 << 20).close(), path, [fault])
        if result["strikes"] == 0:
            return results
        results.append(result | {"left": os.listdir(os.path.dirname(path))})
    raise AssertionError(f"more than 50 calls of class {call}")


def _save(path: str, policy: Any, durable: bool, nbytes: int, faults: list[Json] | None) -> Json:
    form = objects.format_of(path)
    new = objects.make(objects.NEW, nbytes, form)
    before = _census()
    result = _attempt(lambda: fastio.save(new, path, policy=policy, durable=durable), path, faults)
    result["leaked"] = _census_since(before)
    result["found"] = found(path)
    fastio.save(objects.make(objects.OLD, form=form), path, policy=policy, durable=durable)
    result["next"] = found(path)
    result["beside"] = sorted({*os.listdir(os.path.dirname(path))} - {os.path.basename(path)})
    return result


def _load(path: str, policy: Any, faults: list[Json] | None) -> Json:
    _evict(path)
    before = _census()
    loaded: list[Any] = []
    result = _attempt(lambda: loaded.append(fastio.load(path, policy=policy)), path, faults)
    result["found"] = objects.version_of(loaded.pop()) if loaded else 0
    result["leaked"] = _census_since(before)
    result["next"] = objects.version_of(fastio.load(path, policy=policy))
    result["beside"] = sorted({*os.listdir(os.path.dirname(path))} - {os.path.basename(path)})
    return result


def load_ones(path: str, policy: str, times: int, ready: str) -> Json:
    """Load ``{"ones": bytes of value 1}`` while another process truncates the file and extends it with zeros.

    Returns how many loads held only ones and zeros ("right"), how many did not ("wrong"), and the errors by type.
    Creates the file ``ready`` after the first of ``times`` loads.
    """
    seen: Counter[str] = Counter()
    for _ in range(times):
        try:
            seen["right" if int(fastio.load(path, policy=policy)["ones"].max()) <= 1 else "wrong"] += 1
        except fastio.FastIOError:
            seen["FastIOError"] += 1
        except Exception as error:
            seen[type(error).__name__] += 1
        open(ready, "w").close()
    return dict(seen)


def read_ones(path: str, policy: str, fault: Json) -> Json:
    """Load such a file under a fault, and once more without any. ``right``: every loaded byte was 1."""
    fastio.load(path, policy=policy)
    loaded: list[Any] = []
    result = _attempt(lambda: loaded.append(fastio.load(path, policy=policy)), path, [fault])
    loaded.append(fastio.load(path, policy=policy))
    result["right"] = all(bool((one["ones"] == 1).all()) for one in loaded)
    return result


def bounce(path: str, faults: list[Json]) -> Json:
    """Write and read a file by the pinned transport, in host memory, under faults; ``notes`` are those of both."""
    source = torch.randint(0, 256, (NBYTES + 5,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    transport = PinnedTransport("cpu")
    notes: list[str] = []

    def there_and_back() -> None:
        with open(path, "w+b") as file:
            for move, request, memory in (
                (transport.write, WriteRequest, source),
                (transport.read, ReadRequest, target),
            ):
                extents = [Extent(0, memory.nbytes, memory.data_ptr(), True, "cpu", memory)]
                notes.extend(move(request(path, file.fileno(), memory.nbytes, extents)).notes)

    result = _attempt(there_and_back, path, faults)
    return {**result, "notes": notes, "right": torch.equal(source, target)}


def refused_by_torch_too(path: str, op: str, uid: int | None = None) -> Json:
    """The errors of torch and of fastio for the same mistake, as another user if ``uid`` is set."""
    if uid is not None:
        os.setgid(uid)
        os.setuid(uid)
    new = objects.make(objects.NEW, form=objects.format_of(path))
    by_torch = _attempt((lambda: torch.save(new, path)) if op == "save" else (lambda: torch.load(path)), path, None)
    before = _census()
    by_fastio = _attempt((lambda: fastio.save(new, path)) if op == "save" else (lambda: fastio.load(path)), path, None)
    by_fastio["leaked"] = _census_since(before)
    return {"torch": by_torch, "fastio": by_fastio}


def save_as(path: str, uid: int, gid: int, groups: list[int], umask: int) -> Json:
    """Save NEW over a file as another user; ``meanwhile`` has the temporary files' mode, owner and group."""
    os.umask(umask)
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    new = objects.make(objects.NEW, form=objects.format_of(path))
    meanwhile: list[Any] = []

    def look(*_: int) -> None:
        for name in set(os.listdir(os.path.dirname(path))) - {os.path.basename(path)}:
            status = os.stat(os.path.join(os.path.dirname(path), name))
            meanwhile.append([status.st_mode & 0o7777, status.st_uid, status.st_gid])

    result = _attempt(lambda: fastio.save(new, path, policy="posix", progress=look), path, None)
    return {**result, "meanwhile": meanwhile}


def save_and_look(path: str, faults: list[Json]) -> Json:
    """Save NEW over a file under faults; the result has the file's mode afterwards."""
    _warm_up("posix")
    new = objects.make(objects.NEW)
    result = _attempt(lambda: fastio.save(new, path, policy="posix"), path, faults)
    return {**result, "mode": os.stat(path).st_mode & 0o7777, "found": found(path)}


def save_forever(path: str, policy: str, durable: bool, nbytes: int, ready: str) -> Json:
    """Save NEW, OLD, NEW, ... until killed; creates the file ``ready`` before the first save."""
    versions = [objects.make(version, nbytes, objects.format_of(path)) for version in (objects.NEW, objects.OLD)]
    open(ready, "w").close()
    while True:
        for version in versions:
            fastio.save(version, path, policy=policy, durable=durable)


def hammer(path: str, rounds: int, seed: int) -> Json:
    """Eight threads save and load one path with different tools: every load must give one complete version."""
    policies = ["uring", "posix", "torch", "auto"]
    saved = [objects.make(version, 256 << 10) for version in range(8)]
    problems: list[str] = []

    def work(number: int) -> None:
        policy = policies[(number + seed) % 4]
        try:
            for turn in range(rounds):
                if (turn + number) % 2:
                    fastio.save(saved[(number + turn + seed) % 8], path, policy=policy, durable=False)
                else:
                    got = fastio.load(path, policy=policy)
                    difference = objects.differ(got, saved[int(got["version"])])
                    if difference:
                        problems.append(f"{policy}: {difference}")
        except Exception as error:
            problems.append(f"{policy} {'save' if (turn + number) % 2 else 'load'}: {type(error).__name__}: {error}")

    for policy in policies:
        _warm_up(policy)
    before = _census()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"problems": problems, "leaked": _census_since(before)}


def store(folder: str, driver: str, faults: list[Json] | None = None) -> Json:
    """Offload three blobs to a block store and read them back, under faults, then in the same store without any."""
    _warm_up("posix")
    return _store(folder, driver, faults)


def sweep_store(folder: str, driver: str, call: str, effect: int) -> list[Json]:
    """Repeat ``store``: the fault strikes the first call of its class, then the second, up to the last."""
    _warm_up("posix")
    results: list[Json] = []
    for first in range(1, 200):
        result = _store(folder, driver, [{"call": call, "effect": effect, "first": first, "times": 1}])
        if result["strikes"] == 0:
            return results
        results.append(result)
    raise AssertionError(f"more than 200 calls of class {call}")


def _store(folder: str, driver: str, faults: list[Json] | None) -> Json:
    source = torch.Generator().manual_seed(3)
    sizes = (2 << 20, 70_001, 8192)
    blobs = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=source) for nbytes in sizes]
    before = _census()
    opened: list[BlockStore] = []

    def under_faults() -> None:
        opened.append(BlockStore(folder, driver=driver))
        _offload(opened[0], blobs)

    result = _attempt(under_faults, os.path.join(folder, "any"), faults)
    with opened[0] as it:
        for index in range(len(blobs)):
            if index in it:
                it.free(index)
        _offload(it, blobs)
        while it.update():  # a blob that was freed while it was written is in use until that write ends
            time.sleep(0.001)
        result |= {"driver": it.driver, "notes": it.notes, "used": it.stats.bytes_used}
    result["folder"] = sorted(os.listdir(folder))
    del it
    opened.clear()
    result["leaked"] = _census_since(before)
    return result


def _offload(it: BlockStore, blobs: list[torch.Tensor]) -> None:
    """One iteration: write every blob, then read each in reverse order into other memory, compare and free it."""
    for index, blob in enumerate(blobs):
        it.write(index, blob.data_ptr(), blob.nbytes)
    for index in range(len(blobs)):
        it.wait(index)
    for index in reversed(range(len(blobs))):
        came = torch.zeros_like(blobs[index])
        it.read(index, came.data_ptr(), came.nbytes)
        it.wait(index)
        if not torch.equal(came, blobs[index]):
            raise AssertionError(f"blob {index} came back changed")
        it.free(index)


def found(path: str) -> int:
    """The version at ``path``, read by the format's own library after ``fastio.verify``."""
    fastio.verify(path)
    return objects.version_of(objects.read(path))


def _attempt(call: Callable[[], object], path: str, faults: list[Json] | None) -> Json:
    """Make a call; returns its error or None, the transfers it recorded, and how often a fault struck."""
    error: Json | None = None
    shim = ctypes.CDLL(None) if faults else None
    if shim is not None:
        shim.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
        for fault in faults or ():
            arguments = (fault["first"], fault["times"], fault["effect"])
            if shim.fault_arm(fault["call"].encode(), os.path.dirname(path).encode(), *arguments) != 0:
                raise ValueError(f"the shim does not take {fault}")
    with fastio.record() as transfers:
        try:
            call()
        except Exception as caught:
            error = {
                "type": type(caught).__name__,
                "bases": [base.__name__ for base in type(caught).__mro__],
                "errno": getattr(caught, "errno", None),
                "filename": str(getattr(caught, "filename", None)),
                "message": str(caught),
            }
    strikes = int(shim.fault_disarm()) if shim is not None else 0
    recorded = [{key: str(value) for key, value in asdict(transfer).items()} for transfer in transfers]
    return {"error": error, "transfers": recorded, "strikes": strikes}


def _evict(path: str) -> None:
    """Evict a file from the page cache, so that the next load is cold."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _warm_up(policy: str, form: str = "pt") -> None:
    """Save and load elsewhere once: creates pools, kept buffers and torch's threads before the census counts."""
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, f"warm.{form}")
        fastio.save(objects.make(objects.OLD, form=form), path, policy=policy)
        fastio.load(path, policy=policy)
        found(path)
    finally:
        shutil.rmtree(folder)
    gc.collect()
    gc.freeze()  # so that each census only scans newer objects


def _census() -> Json:
    gc.collect()
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return {"descriptors": descriptors, "threads": _threads()}


def _threads() -> dict[str, str]:
    """Threads by number, without the kernel's io_uring workers, which it ends when they are idle."""
    threads = {}
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/comm") as file:
                name = file.read().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if not name.startswith("iou-"):
            threads[number] = name
    return threads


def _census_since(before: Json) -> list[str]:
    """New descriptors and threads since ``before`` that remain."""
    deadline = time.monotonic() + 300
    while True:
        now = _census()
        leaked = [
            f"{kind[:-1]} {number}: {what}"
            for kind in ("descriptors", "threads")
            for number, what in now[kind].items()
            if number not in before[kind]
        ]
        if not leaked or time.monotonic() > deadline:
            return leaked
        time.sleep(0.01)  # OpenMP's threads end a little later than their parent
