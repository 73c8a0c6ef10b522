"""Which tools can do an operation, and its key in the dictionaries. Pure: no file, no clock, no device."""

from __future__ import annotations

from collections.abc import Mapping

from fastio.dicts.context import Context, small_class
from fastio.transports.transport import LOAD, SAVE, Capabilities


def can(capabilities: Capabilities, operation: str, file_format: str, devices: frozenset[str]) -> bool:
    """Whether a transport can do ``operation`` for a file of ``file_format`` and memory on all of ``devices``."""
    return (
        operation in capabilities.operations
        and (capabilities.formats is None or file_format in capabilities.formats)
        and (devices | {"cpu"}) - capabilities.devices <= {"cpu"}
        and (bool(devices - {"cpu"}) or "cpu" in capabilities.devices)
    )


def candidates(
    tools: Mapping[str, Capabilities], operation: str, file_format: str, devices: frozenset[str]
) -> tuple[str, ...]:
    """The tools that a dictionary may choose from, those that take least CPU by what they declare first.

    Which is: no copy through the page cache, then no pass of its own over the bytes for checksums, last a library's own
    save and load. A dictionary uses the first of those that are equal in time.
    """
    able = [name for name, c in tools.items() if c.automatic and can(c, operation, file_format, devices)]
    return tuple(sorted(able, key=lambda name: _passes(tools[name])))


def _passes(capabilities: Capabilities) -> tuple[bool, bool, bool]:
    return not capabilities.direct, not capabilities.checksums, bool(capabilities.whole)


def save_context(file_format: str, device: str, durable: bool, nbytes: int, extents: int) -> Context:
    """The dictionary's key for a save of ``nbytes`` tensor bytes in ``extents`` storages."""
    return Context(SAVE, file_format, device, durable, None, small_class(nbytes, extents))


def load_context(file_format: str, device: str, resident: bool, nbytes: int, extents: int) -> Context:
    """The dictionary's key for a load; ``resident`` is whether the page cache holds the file."""
    return Context(LOAD, file_format, device, None, resident, small_class(nbytes, extents))
