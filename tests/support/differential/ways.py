"""Ways to save and load ``.pt`` files, and the comparison of torch and fastio for one object."""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import fastio
from differential import archives, tensors
from differential.classes import SAFE, checksum
from differential.outcomes import Neighbours, Outcome, compare_errors, outcome
from differential.schedules import Schedule

OBJECTS = ("path", "bytes", "file", "raw")
PLACES = (
    "none",
    "cpu",
    "device",
    "same",
    "default",
    "clone",
    "dict",
    "meta",
    "absent",
    "watch",
    "simulated",
    "simulated",
)


class Save(NamedTuple):
    """A way to save. ``arguments`` are torch.save's; ``crc`` and ``alignment`` are torch's settings."""

    by: str
    policy: str
    durable: bool
    patched: bool
    arguments: dict[str, Any]
    crc: bool
    alignment: int


class Load(NamedTuple):
    """A way to load. ``of``: the file's writer, "torch" or "fastio". ``safe``: the classes are allowed."""

    of: str
    by: str
    policy: str
    cold: bool
    patched: bool
    verify: bool
    weights_only: bool
    safe: bool
    where: str
    mmap: bool


@cache
def tools(operation: str, form: str = "pt", device: str = "cpu") -> list[str]:
    able = [tool for tool in fastio.tools() if tool.files and operation in tool.operations and form in tool.formats]
    found = [tool.name for tool in able if device in tool.devices]
    return [*found, "auto", "auto"]


def any_save(rng: random.Random) -> Save:
    arguments: dict[str, Any] = {}
    if rng.random() < 0.15:
        arguments["pickle_protocol"] = rng.choice([2, 3, 4, 5])
    if rng.random() < 0.03:
        arguments["_use_new_zipfile_serialization"] = False
    if rng.random() < 0.03:
        arguments["_disable_byteorder_record"] = True
    by = rng.choice(OBJECTS) if rng.random() < 0.25 else "path"
    crc, alignment = rng.random() > 0.06, rng.choice([64, 64, 64, 64, 64, 64, 64, 256, 4096])
    return Save(by, rng.choice(tools("save")), rng.random() < 0.05, rng.random() < 0.1, arguments, crc, alignment)


def any_load(rng: random.Random) -> Load:
    by = rng.choice(OBJECTS) if rng.random() < 0.2 else "path"
    where = rng.choice(PLACES) if rng.random() < 0.3 else "none"
    if where == "simulated" and not hasattr(torch, "simulated"):
        where = "cpu"
    # A named tool would have to support the device.
    tool = (
        "auto" if where == "absent" else rng.choice(tools("load", "pt", "simulated" if where == "simulated" else "cpu"))
    )
    return Load(
        rng.choice(["torch", "fastio"]), by, tool, rng.random() < 0.15, rng.random() < 0.1,
        rng.random() < 0.8, rng.random() < 0.5, rng.random() < 0.5, where, by == "path" and rng.random() < 0.03,
    )  # fmt: skip


@contextlib.contextmanager
def settings(way: Save) -> Iterator[None]:
    """Apply torch's settings of a save inside the context."""
    serialization: Any = torch.serialization
    with contextlib.ExitStack() as stack:
        if not way.crc and hasattr(serialization, "set_crc32_options"):  # torch has it since 2.6
            before = serialization.get_crc32_options()
            stack.callback(serialization.set_crc32_options, before)
            serialization.set_crc32_options(False)
        with contextlib.suppress(ImportError):  # torch has it since 2.7
            from torch.utils.serialization import config

            stack.callback(setattr, config.save, "storage_alignment", config.save.storage_alignment)
            config.save.storage_alignment = way.alignment
        yield


def save(way: Save, obj: Any, path: Path) -> None:
    """Save with fastio."""

    def write(target: Any) -> None:
        if way.patched:
            with fastio.patch_torch():
                torch.save(obj, target, **way.arguments)
        else:
            fastio.save(obj, target, policy=way.policy, durable=way.durable, format="pt", **way.arguments)

    if way.by == "path":
        write(path)
    elif way.by == "bytes":
        buffer = io.BytesIO()
        write(buffer)
        path.write_bytes(buffer.getvalue())
    else:
        with open(path, "w+b", buffering=0 if way.by == "raw" else -1) as file:
            write(file)


def _place(name: str, seen: list[Any]) -> Any:
    def watch(storage: Any, location: str) -> Any:
        seen.append((location, storage.nbytes(), checksum(storage)))
        return storage

    return {
        "none": None, "cpu": "cpu", "device": torch.device("cpu"), "same": lambda storage, _: storage,
        "default": lambda *_: None, "clone": lambda storage, _: storage.clone(), "dict": {"cpu": "cpu"},
        "meta": torch.device("meta"), "absent": "cuda:1", "watch": watch, "simulated": "simulated:1",
    }[name]  # fmt: skip


def load(way: Load, path: Path, by_torch: bool) -> Any:
    """Load with torch or fastio; returns the object, and the calls of a map_location that records them."""
    seen: list[Any] = []
    allowed: Any = torch.serialization.safe_globals(SAFE) if way.safe else contextlib.nullcontext()
    arguments: dict[str, Any] = {"map_location": _place(way.where, seen), "weights_only": way.weights_only}
    if way.mmap:
        arguments["mmap"] = True
    with allowed, contextlib.ExitStack() as stack:
        if by_torch:
            return torch.load(path, **arguments), seen
        source: Any = path
        if way.by == "bytes":
            source = io.BytesIO(path.read_bytes())
        elif way.by != "path":
            source = stack.enter_context(open(path, "rb", buffering=0 if way.by == "raw" else -1))
        if way.patched:
            stack.enter_context(fastio.patch_torch())
            return torch.load(source, **arguments), seen
        return fastio.load(source, policy=way.policy, verify=way.verify, **arguments), seen


def _on_devices(rng: random.Random, obj: Any) -> Any:
    """A container with some of its own tensors on devices."""

    def moved(one: Any) -> Any:
        plain = type(one) is torch.Tensor and one.layout == torch.strided and one.dtype in tensors.COMMON
        movable = plain and one.device.type == "cpu" and not one.is_nested and rng.random() < 0.5
        return one.to(rng.choice(["simulated:0", "simulated:1"])) if movable else one

    if type(obj) is dict:
        return {key: moved(one) for key, one in obj.items()}
    return [moved(one) for one in obj] if type(obj) is list else moved(obj)


def make_cold(path: Path) -> None:
    """Drop a file from the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check(rng: random.Random, obj: Any, folder: Path, milliseconds: int, log: Callable[[Any], None]) -> None:
    """Save and load an object in some ways, and pass each way to ``log``.

    Raises DifferentError where fastio differs from torch.
    """
    by_torch, by_fastio = folder / "torch.pt", folder / "fastio.pt"
    on_devices = hasattr(torch, "simulated") and rng.random() < 0.1
    rewrite = archives.any_kind(rng) if rng.random() < 0.08 else None
    saving = any_save(rng)
    if on_devices:  # which a named tool would have to support
        obj, saving = _on_devices(rng, obj), saving._replace(policy="auto")
    loads = [any_load(rng) for _ in range(rng.randrange(2, 5))]
    if rewrite is not None:
        saving = saving._replace(crc=True)
    if "_use_new_zipfile_serialization" in saving.arguments:
        # In this format torch reads tensors after it has made the object, which holds uninitialized memory until then.
        obj = [tensors.plain(rng) for _ in range(4)]
        loads = [way._replace(where="same") if way.where == "watch" else way for way in loads]
    log(saving)
    with settings(saving):
        want = outcome(lambda: torch.save(obj, by_torch, **saving.arguments))
        with Schedule(rng, milliseconds):
            got = outcome(lambda: save(saving, obj, by_fastio))
    if not compare_errors("save", want, got):
        return
    if rewrite is not None:
        log(rewrite)
        if not archives.rewrite(rewrite, by_torch):
            return
    known: dict[Any, Outcome] = {}
    neighbours = Neighbours(rng)

    def wanted(way: Load) -> Outcome:
        key = (way.where, way.weights_only, way.safe, way.mmap)
        if key not in known:
            known[key] = outcome(lambda: load(way, by_torch, by_torch=True))
        return known[key]

    first = loads[0]._replace(where="none", weights_only=False, mmap=False)
    if rewrite is not None and wanted(first).error is not None:
        return  # fastio may read or refuse an archive that torch does not read
    neighbours.compare("torch.load of fastio's file", wanted(first), lambda: load(first, by_fastio, by_torch=True))
    for way in loads:
        log(way)
        path = by_torch if way.of == "torch" else by_fastio
        want = wanted(way)
        if way.cold:
            make_cold(path)
        with Schedule(rng, milliseconds):
            neighbours.compare("load", want, partial(load, way, path, by_torch=False))
    neighbours.drop()
