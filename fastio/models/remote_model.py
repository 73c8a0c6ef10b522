"""Opens local copies of all remote files of a model at once."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastio.errors import RemoteError
from fastio.models.locate import Located, missing_shard
from fastio.remote.urls import is_remote

if TYPE_CHECKING:
    from fastio.remote.cached_file import CachedFile


def copies_of(located: Located) -> Mapping[str, CachedFile]:
    """Local copies of those files of a model that are at a remote place, by their URLs; several download at a time.

    ShardMissingError for a file that only the index has; otherwise raises as
    :class:`fastio.remote.cached_file.CachedFile` does.
    """
    urls = [path for path in located.paths if is_remote(path)]
    if not urls:
        return {}
    from fastio.remote.cached_file import open_all  # not at import: few models are remote

    try:
        return dict(zip(urls, open_all(urls), strict=True))
    except RemoteError as error:
        if error.errno == errno.ENOENT and located.shard_index is not None and error.filename in urls:
            raise missing_shard(str(error.filename), located.shard_index) from error
        raise


def discard_all(copies: Mapping[str, CachedFile]) -> None:
    """Remove copies from the cache: one of them is damaged."""
    for copy in copies.values():
        copy.discard()
