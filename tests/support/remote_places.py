"""Stand-ins for remote places: an object store with asynchronous ranges, and failures on demand. Use as ``ranged://``."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

import fsspec
import torch
from fsspec.asyn import AsyncFileSystem

Hook = Callable[[str, str], None]
"""Called with an operation and a path before each; what it raises is what the operation raises."""


class RangedStore(AsyncFileSystem):
    """Objects in memory, with ETags. ``calls`` are the operations and paths so far; ``hook`` sees each before it is."""

    protocol = ("ranged", "r2")  # the latter is an object store for fastio
    cachable = True
    objects: dict[str, bytes] = {}  # noqa: RUF012 -- one store for all instances, as a remote one is
    calls: list[tuple[str, str]] = []  # noqa: RUF012
    hook: Hook | None = None
    has_versions = True
    modified: datetime | None = None

    @classmethod
    def reset(cls) -> None:
        """Empty the store, and forget calls and hook."""
        cls.objects.clear()
        cls.calls.clear()
        cls.hook = None
        cls.has_versions = True
        cls.modified = None

    @classmethod
    def count(cls, operation: str) -> int:
        """How often an operation was called."""
        return sum(one == operation for one, _ in cls.calls)

    async def _do(self, operation: str, path: str) -> str:
        path = self._strip_protocol(path).strip("/")
        self.calls.append((operation, path))
        hook = type(self).hook
        if hook is not None:
            await asyncio.to_thread(hook, operation, path)
        return path

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        path = await self._do("info", path)
        if path in self.objects:
            data = self.objects[path]
            tag = hashlib.md5(data, usedforsecurity=False).hexdigest() if self.has_versions else ""
            return {"name": path, "size": len(data), "type": "file", "ETag": tag, "mtime": self.modified}
        if any(name.startswith(f"{path}/") for name in self.objects):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = await self._do("ls", path)
        begin = f"{path}/" if path else ""
        names = sorted({begin + name[len(begin) :].split("/")[0] for name in self.objects if name.startswith(begin)})
        if not names:
            raise FileNotFoundError(path)
        return [await self._info(name) for name in names] if detail else names

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = await self._do("cat_file", path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    async def _put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        path = await self._do("put_file", rpath)
        with open(lpath, "rb") as file:
            self.objects[path] = file.read()

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        data = await self._cat_file(rpath)
        with open(lpath, "wb") as file:
            file.write(data)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        data = await self._cat_file(path1)
        self.objects[await self._do("cp_file", path2)] = data

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.objects[await self._do("pipe_file", path)] = value

    async def _rm_file(self, path: str, **_: Any) -> None:
        path = await self._do("rm_file", path)
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)


fsspec.register_implementation("ranged", RangedStore, clobber=True)


def names_below(url: str) -> set[str]:
    """The files below a URL, relative to it; without the lock, which is in the folder itself if that is a local one."""
    fs, path = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {name.removeprefix(path).lstrip("/") for name in fs.find(path)} - {".lock"}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two dicts have the same names, dtypes and values."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )
