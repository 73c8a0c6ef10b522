"""Tells URLs of remote places from paths, and joins and divides them."""

from __future__ import annotations

import re

# fsspec's, with chains such as simplecache::s3://bucket/key. A drive of the three others is a volume's.
_URL = re.compile(r"(?:[A-Za-z][\w+.-]*::)*(?!(?:nvme|vfio|spdk):)[A-Za-z][\w+.-]*://")


def is_remote(path: str) -> bool:
    """Whether a path is the URL of a remote place: ``s3://bucket/key``, ``file:///folder/name``, ``a::b://c``."""
    return _URL.match(path) is not None


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
