"""Tells URLs of remote places from paths, and joins and divides them."""

from __future__ import annotations

import os
import re

from fastio.url_secrets import note_secrets

# fsspec's, with chains such as simplecache::s3://bucket/key. A drive of the three others is a volume's.
_URL = re.compile(r"(?:[A-Za-z][\w+.-]*::)*(?!(?:nvme|vfio|spdk):)[A-Za-z][\w+.-]*://")

_CUT = re.compile(r"(?!(?:file|nvme|vfio|spdk):)([A-Za-z][\w+.-]+:)/(?=[^/])")


def is_remote(path: str) -> bool:
    """Whether a path is the URL of a remote place: ``s3://bucket/key``, ``file:///folder/name``, ``a::b://c``."""
    if _URL.match(path) is None:
        return False
    note_secrets(path)
    return True


def cut_url(path: str) -> str:
    """The URL that pathlib made a path of, ``s3://bucket`` of ``s3:/bucket``; empty if there is a folder ``s3:``."""
    match = _CUT.match(path)
    return "" if match is None or os.path.lexists(match[1]) else f"{match[1]}/{path[match.end(1) :]}"


def joined(folder: str, name: str) -> str:
    """The URL of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}" if not folder.endswith("://") else folder + name


def parent_of(url: str) -> str:
    """The URL of the folder that a file is in."""
    folder = url.rpartition("/")[0]
    return f"{folder}/" if folder.endswith(":/") else folder


def base_of(url: str) -> str:
    """The last part of a URL, which is the name of its file."""
    return url.rstrip("/").rpartition("/")[2]
