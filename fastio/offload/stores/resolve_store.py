"""Resolves the store that a user gave."""

from __future__ import annotations

import os
from typing import Any, cast

from fastio.errors import kind_of
from fastio.offload.stores.tiers import Store


def resolve_store(store: Any, policy: Any, force: Any = None) -> tuple[Store, bool]:
    """Return the store to use, and whether it was opened here and must be closed. TypeError if it is no store.

    ``force``: the serial number of a device whose contents may be overwritten; ValueError with an open store. The
    policy "fastensor" with folders writes a file for each tensor, by the tool that WRDic chooses.
    """
    if force is not None and not isinstance(force, str):
        raise TypeError(f"force is {kind_of(force)}: expected the serial number of a device, or None")
    if all(callable(getattr(store, name, None)) for name in ("write", "read", "update", "is_done", "wait", "free")):
        if force is not None:
            raise ValueError("force is for devices that are opened here, and this store is open already")
        return cast(Store, store), False
    if not isinstance(store, str | os.PathLike | list | tuple):
        raise TypeError(f"store is {kind_of(store)}: expected a folder, a list of places, or an open store")
    from fastio.offload.stores.block_store import BlockStore
    from fastio.offload.stores.store_opening import choose_driver

    if policy == "fastensor":
        places = list(store) if isinstance(store, list | tuple) else [store]
        driver, _ = choose_driver(places, None)
        if driver == "uring" and all(map(os.path.isdir, places)):
            from fastio.offload.stores.tool_store import ToolStore

            return ToolStore(places), True
    return BlockStore(store, force=force), True
