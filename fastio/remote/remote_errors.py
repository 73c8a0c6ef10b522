"""Turns the errors of fsspec and of its filesystems' libraries into RemoteError."""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial

from fastio.errors import FastIOError, RemoteError, shortened
from fastio.runtime.handled_errors import HandledErrors
from fastio.runtime.installation import pip_install
from fastio.url_secrets import hide_secrets

_CURES = {
    errno.ENOENT: "check the URL: whether the bucket or folder exists, and the name",
    errno.EACCES: "give credentials that may do this, or name another place",
    errno.EISDIR: "name a file in it",
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
    errno.EROFS: "name a place that can be written to",
    errno.ENOPKG: "install that, then try again",
    errno.EEXIST: "a file is where a folder should be: name another place, or remove it",
    errno.EOPNOTSUPP: "the filesystem of this URL cannot do that: name another place",
}
# Of errors without an errno, as filesystems raise them.
_BY_CLASS = (
    (FileNotFoundError, errno.ENOENT),
    (PermissionError, errno.EACCES),
    (IsADirectoryError, errno.EISDIR),
    (NotADirectoryError, errno.ENOTDIR),
    (TimeoutError, errno.ETIMEDOUT),
    (asyncio.TimeoutError, errno.ETIMEDOUT),
)
_ANY_CURE = "check the URL, the credentials and the network, then try again"


def translate_remote_errors(operation: str, url: str) -> HandledErrors[Exception]:
    """Inside, errors of a filesystem become a RemoteError that names the URL; errors of fastio pass as they are."""
    return HandledErrors(Exception, partial(_raise, operation, url))


def _raise(operation: str, url: str, error: Exception) -> None:
    if isinstance(error, FastIOError):
        return
    number, cure = _judged(error)
    shown = hide_secrets(url)
    # The library's own text may have the path of the URL: it is not shown as the cause if that has secrets.
    cause = error if shown == url else None
    path, shown_path = url.partition("://")[2], shown.partition("://")[2]
    text = shortened(str(error).replace(path, shown_path)) if str(error) else type(error).__name__
    if not isinstance(error, OSError):
        problem = f"{type(error).__name__}: {text}"
    else:
        problem = error.strerror or (text if number == errno.EIO else f"{os.strerror(number)} ({text})")
    raise RemoteError(number, operation, problem, cure or _CURES.get(number, _ANY_CURE), url) from cause


def _judged(error: Exception) -> tuple[int, str]:
    """The errno that an error means, and a cure that is better than the errno's."""
    kind = type(error).__name__
    if isinstance(error, ImportError):
        return errno.ENOPKG, "" if "install" in str(error).lower() else pip_install("remote")
    if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
        return errno.EPROTONOSUPPORT, "check how the URL begins: s3://, gs://, hf:// or another one that fsspec knows"
    if isinstance(error, NotImplementedError):
        return errno.EOPNOTSUPP, ""
    if "Credential" in kind or "Auth" in kind or "Token" in kind:
        return errno.EACCES, ""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, ""
    return next((number for one, number in _BY_CLASS if isinstance(error, one)), errno.EIO), ""
