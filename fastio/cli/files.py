"""The files that a path on the command line means."""

from __future__ import annotations

import os

from fastio.files.open_file import check_regular
from fastio.inspect.contents import contents


def files_of(path: str) -> tuple[str, ...]:
    """The file, or the shards of a folder or of an index. Raises what :func:`contents` does, and OSError."""
    if os.path.isdir(path) or path.endswith(".index.json"):
        return contents(path).files
    check_regular(path)
    return (path,)
