"""Registry of tools: by name, a transport or the reason why it is unavailable. Only this module imports backends."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from importlib import metadata
from typing import NamedTuple

from fastio import devices
from fastio.errors import ToolUnavailableError
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.transports.transport import LOAD, Transport

ENTRY_POINT_GROUP = "fastio.transports"

_BUILT_IN = {
    "uring": "fastio.backends.uring:UringTransport",
    "posix": "fastio.backends.posix:PosixTransport",
    "torch": "fastio.backends.torch_:TorchTransport",
    "numpy": "fastio.backends.numpy_:NumpyTransport",
    "memory": "fastio.backends.memory:MemoryTransport",
    "dali": "fastio.backends.dali:DaliTransport",
    "gds": "fastio.backends.gds:GdsTransport",
    "pinned": "fastio.backends.pinned:PinnedTransport",
    "nvme": "fastio.backends.namespace:nvme",
    "vfio": "fastio.backends.namespace:vfio",
    "spdk": "fastio.backends.spdk:SpdkTransport",
}
# Tools over heavy libraries, which they import when they are made. For memory of an accelerator dictionaries consider
# them if the library is installed. For host memory the program must have imported it: there DALI took 8 to 100 times as
# long as posix, and its import alone takes longer than most loads.
_LIBRARIES = {"dali": "nvidia.dali", "gds": "kvikio"}
# What such a tool can move at most, known without the import: operation and format. A tool that is not listed: all.
_SERVES: dict[str, tuple[str, str]] = {"dali": (LOAD, "npy")}
# Tools for memory of an accelerator only.
_ACCELERATED = {"gds", "pinned"}
# Dictionaries never choose these for files: the reference is for tests, and drivers of whole namespaces have no files.
_ASIDE = {"memory", "nvme", "vfio", "spdk"}


class Tool(NamedTuple):
    """One line of :func:`fastio.tools`: the transport, or why there is none."""

    name: str
    transport: Transport | None
    reason: str = ""
    cure: str = ""


_lock = lock_across_forks()
_tools: dict[str, Tool] = {}


def _installed_plugins() -> dict[str, metadata.EntryPoint]:
    """The plug-ins' entry points by name. ``entry_points(group=...)`` takes three times as long: it parses all of them.

    A plug-in cannot replace a built-in tool, nor a plug-in that comes before it on the path.
    """
    found: dict[str, metadata.EntryPoint] = {}
    for package in metadata.distributions():
        if ENTRY_POINT_GROUP in (package.read_text("entry_points.txt") or ""):
            for entry in package.entry_points.select(group=ENTRY_POINT_GROUP):
                if entry.name not in _BUILT_IN:
                    found.setdefault(entry.name, entry)
    return found


# Found at import, so that the first save or load need not search.
_plugins = _installed_plugins()


def names() -> list[str]:
    """The names of all tools, the built-in ones first."""
    return [*_BUILT_IN, *_plugins]


def plugin_versions() -> dict[str, str]:
    """The packages that plug-ins come from, and their versions."""
    return {entry.dist.name: entry.dist.version for entry in _plugins.values() if entry.dist}


def warm_up() -> None:
    """Make the built-in tools without heavy libraries, so that the first save or load need not import them."""
    for name in _BUILT_IN:
        if name not in _LIBRARIES and name not in _ACCELERATED and name not in _ASIDE:
            find(name)


def imported() -> tuple[bool, ...]:
    """Which heavy libraries the program has imported. What :func:`at_hand` returns changes with nothing else."""
    return tuple(library in sys.modules for library in _LIBRARIES.values())


def at_hand(devices: frozenset[str], op: str, file_format: str) -> list[Tool]:
    """The tools that a dictionary may consider to ``op`` a file of format ``file_format`` with memory on ``devices``.

    Unavailable tools come with their reason. The first call for an accelerator imports the libraries of its tools.
    """
    on_cpu = devices <= {"cpu"}
    return [
        find(name)
        for name in names()
        if name not in _ASIDE
        and not (on_cpu and name in _ACCELERATED)
        and (name not in _LIBRARIES or _is_usable(_LIBRARIES[name], on_cpu))
        and _SERVES.get(name, (op, file_format)) == (op, file_format)
    ]


def _is_usable(library: str, on_cpu: bool) -> bool:
    return library in sys.modules or (not on_cpu and is_installed(library))


@functools.cache
def is_installed(library: str) -> bool:
    """Whether a library can be found, without importing more than the packages that it lies in."""
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):  # no such package above it; a module without a spec
        return False


def is_here(kind: str) -> bool:
    """Whether this machine has a device of that kind. A tool says only which kinds it could use."""
    accelerator = devices.find(kind)
    return accelerator is None or accelerator.is_available()


def find(name: str) -> Tool:
    """The tool of that name, made on first use and kept. An unknown name gives a tool that is unavailable."""
    tool = _tools.get(name)
    if tool is None:
        with _lock:
            tool = _tools.get(name)
            if tool is None:
                tool = _tools[name] = _make(name)
    return tool


def get(name: str) -> Transport:
    """The transport of that name; raises ToolUnavailableError with the reason and the cure."""
    tool = find(name)
    if tool.transport is None:
        raise ToolUnavailableError(name, tool.reason, tool.cure)
    return tool.transport


def require(name: str, op: str, file_format: str, devices: frozenset[str]) -> None:
    """ToolUnavailableError for a tool that is not here, or cannot do this."""
    can = get(name).capabilities
    if can.namespaces:
        cure = f"save to a volume, as in {name}:.../step.pt; activations go there by fastio.Offload(store='{name}:...')"
        raise ToolUnavailableError(name, "it moves no files, only objects of volumes on NVMe namespaces", cure)
    if not can.can(op, file_format, devices):
        formats = "every format" if can.formats is None else ", ".join(sorted(can.formats))
        raise ToolUnavailableError(
            name,
            f"it cannot {op} {file_format} with memory on {', '.join(sorted(devices))}",
            f"it can {' and '.join(sorted(can.operations))} {formats} with memory on {', '.join(sorted(can.devices))}",
        )


def _make(name: str) -> Tool:
    try:
        if name in _BUILT_IN:
            module, _, attribute = _BUILT_IN[name].partition(":")
            factory = getattr(importlib.import_module(module), attribute)
        elif name in _plugins:
            factory = _plugins[name].load()
        else:
            known = ", ".join([*_BUILT_IN, *_plugins])
            return Tool(name, None, "no tool has that name", f"known tools: {known}")
        transport = factory()
    except ToolUnavailableError as error:
        return Tool(name, None, error.reason, error.cure)
    except (Exception, SystemExit) as error:  # a plug-in may raise anything; the other tools must still work
        return Tool(name, None, f"{type(error).__name__}: {error}", "see the tool's own documentation")
    if not isinstance(transport, Transport):
        return Tool(name, None, f"{factory!r} does not make a fastio.transports.transport.Transport", "ask its author")
    return Tool(name, transport)
