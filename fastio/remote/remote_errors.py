"""Turns the errors of fsspec and of its filesystems' libraries into RemoteError."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from functools import partial

from fastio.errors import FastIOError, RemoteError, shortened
from fastio.runtime.handled_errors import HandledErrors
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
_OF_THE_NETWORK = (ConnectionError, TimeoutError, asyncio.TimeoutError, socket.gaierror)
_ANY_CURE = "check the URL, the credentials and the network, then try again"


def translate_remote_errors(operation: str, url: str) -> HandledErrors[Exception]:
    """Inside, errors of a filesystem become a RemoteError that names the URL; errors of fastio pass as they are."""
    return HandledErrors(Exception, partial(_raise, operation, url))


def _raise(operation: str, url: str, error: Exception) -> None:
    if isinstance(error, FastIOError):
        return
    meant = _meant(error)
    number, cure = _judged(meant)
    shown = hide_secrets(url)
    # The library's own text may have the path of the URL: it is not shown as the cause if that has secrets.
    cause = error if shown == url else None
    path, shown_path = url.partition("://")[2], shown.partition("://")[2]
    # A library may show the URL in other words, or that of a redirection, which is signed.
    text = shortened(hide_secrets(str(meant).replace(path, shown_path))) or type(meant).__name__
    if not isinstance(meant, OSError):
        problem = f"{type(meant).__name__}: {text}"
    else:
        problem = meant.strerror or (text if number == errno.EIO else f"{os.strerror(number)} ({text})")
    raise RemoteError(number, operation, problem, cure or _CURES.get(number, _ANY_CURE), url) from cause


def _meant(error: Exception) -> Exception:
    """The error behind a FileNotFoundError: that of HTTP is raised for whatever the server or the network answers."""
    cause = error.__cause__
    if not isinstance(error, FileNotFoundError) or error.errno is not None or not isinstance(cause, Exception):
        return error
    status = getattr(cause, "status", None)
    is_other = status not in (404, 410) if isinstance(status, int) else isinstance(cause, _OF_THE_NETWORK)
    return cause if is_other or _is_aiohttps(cause) else error


def _is_aiohttps(error: Exception) -> bool:
    """Whether it is aiohttp's error of a connection that was lost, which is no OSError."""
    return any(kind.__name__ == "ClientConnectionError" for kind in type(error).__mro__)


def _judged(error: Exception) -> tuple[int, str]:
    """The errno that an error means, and a cure that is better than the errno's."""
    kind = type(error).__name__
    if isinstance(error, ImportError):
        cure = f"install the library of {error.name}, then try again" if error.name else ""
        return errno.ENOPKG, "" if "install" in str(error).lower() else cure
    if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
        return errno.EPROTONOSUPPORT, "check how the URL begins: s3://, gs://, hf:// or another one that fsspec knows"
    if isinstance(error, NotImplementedError):
        return errno.EOPNOTSUPP, ""
    if "Credential" in kind or "Auth" in kind or "Token" in kind or getattr(error, "status", 0) in (401, 403, 407):
        return errno.EACCES, ""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, ""
    return next((number for one, number in _BY_CLASS if isinstance(error, one)), errno.EIO), ""
