"""Parses sizes and stores as users write them."""

from __future__ import annotations

import os
import re
from typing import Any, cast

from fastio.offload.stores.tiers import Store

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}


def parsed_bytes(size: Any, name: str = "") -> int | None:
    """Return the bytes of 8, "8GiB", "1.5 GB" or None. Raises ValueError, with ``name``, for anything else."""
    if size is None:
        return None
    said = f"{name}={size!r}" if name else repr(size)
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", size.strip())
        if match is None or match[2] not in _UNITS:
            units = ", ".join(filter(None, _UNITS))
            raise ValueError(f"{said} is no size: expected bytes, or a number and one of {units}")
        return int(float(match[1]) * _UNITS[match[2]])
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{said} is no size: expected 0 or more bytes, or a text such as '8GiB'")
    return size


def resolve_store(store: Any, policy: Any, force: Any = None) -> tuple[Store, bool]:
    """Return the store to use, and whether it was opened here and must be closed. TypeError if it is no store.

    ``force``: the serial number of a device whose contents may be overwritten; ValueError with an open store. The
    policy "fastensor" with one folder writes a file for each tensor, by the tool that WRDic chooses.
    """
    if force is not None and not isinstance(force, str):
        raise TypeError(f"force is a {type(force).__name__}: expected the serial number of a device, or None")
    if all(callable(getattr(store, name, None)) for name in ("write", "read", "update", "is_done", "wait", "free")):
        if force is not None:
            raise ValueError("force is for devices that are opened here, and this store is open already")
        return cast(Store, store), False
    if not isinstance(store, str | os.PathLike | list | tuple):
        raise TypeError(f"store is a {type(store).__name__}: expected a folder, a list of places, or an open store")
    from fastio.offload.stores.block_store import BlockStore
    from fastio.offload.stores.store_opening import choose_driver

    if policy == "fastensor" and not isinstance(store, list | tuple):
        driver, _ = choose_driver([store], None)
        if driver == "uring" and os.path.isdir(store):
            from fastio.offload.stores.tool_store import ToolStore

            return ToolStore(store), True
    return BlockStore(store, force=force), True
