"""Recognises files that hold no tensors fastio can read, from their first bytes: what they are, and the cure."""

from __future__ import annotations

import pickle
import re
import struct
from collections.abc import Callable
from typing import NamedTuple

from fastio.errors import FastIOError, FormatError, quoted
from fastio.formats.detect import is_legacy
from fastio.formats.small_reads import head
from fastio.runtime.handled_errors import HandledErrors
from fastio.url_secrets import hide_secrets

HEAD_BYTES = 512  # a tar's signature is at byte 257
ANY = "a .pt, .safetensors or .npy file"
_AGAIN = "download or copy the file itself"


class _Kind(NamedTuple):
    what: str
    cure: str


_HTML = _Kind("an HTML page", f"{_AGAIN}: a server answered with a page, often one that asks to log in or says why not")
_JSON = _Kind(
    "JSON",
    "name the file of the tensors, of an index one of its shards; fastio.safe_open, fastio.load_model and the command, "
    "as in `fastio verify FOLDER`, take the folder, or an index named *.index.json",
)
_UNPACK = "unpack it with {}, and name the file that was in it"
_PICTURE = "name the file of the tensors"
_SIGNATURES = {
    b"version https://git-lfs.github.com/spec/": _Kind(
        "a Git LFS pointer, a text that stands for the file", "fetch the file itself with `git lfs pull`"
    ),
    b"FASTIOVO": _Kind(
        "a volume of fastio", "name an object in it, as in file:VOLUME/NAME; `fastio ls VOLUME` lists them"
    ),
    b"\x1f\x8b": _Kind("compressed by gzip", _UNPACK.format("gunzip")),
    b"\x28\xb5\x2f\xfd": _Kind("compressed by zstd", _UNPACK.format("unzstd")),
    b"\xfd7zXZ\0": _Kind("compressed by xz", _UNPACK.format("unxz")),
    b"BZh": _Kind("compressed by bzip2", _UNPACK.format("bunzip2")),
    b"\x04\x22\x4d\x18": _Kind("compressed by lz4", _UNPACK.format("unlz4")),
    b"7z\xbc\xaf\x27\x1c": _Kind("a 7-Zip archive", _UNPACK.format("7z x")),
    b"PK\x05\x06": _Kind("an empty zip archive", _AGAIN),
    b"GGUF": _Kind("a GGUF model of llama.cpp", "open it with llama.cpp or the gguf package, or get its safetensors"),
    b"\x89HDF\r\n\x1a\n": _Kind("an HDF5 file, as Keras writes them", "open it with keras.models.load_model or h5py"),
    b"\x89PNG": _Kind("a PNG picture", _PICTURE),
    b"\xff\xd8\xff": _Kind("a JPEG picture", _PICTURE),
    b"%PDF": _Kind("a PDF document", _PICTURE),
    b"\x7fELF": _Kind("a program or library (ELF)", _PICTURE),
    b"SQLite format 3\0": _Kind("an SQLite database", _PICTURE),
    b"PAR1": _Kind("a Parquet table", "open it with pyarrow or pandas, and save its tensors with fastio.save"),
    b"ARROW1": _Kind("an Arrow table", "open it with pyarrow, and save its tensors with fastio.save"),
}
_TENSORFLOW = _Kind("a model of TensorFlow", "open it with TensorFlow, and save its arrays with fastio.save")
_TAR = f"{_UNPACK.format('tar -xf')}; torch's own of before 2017 need weights_only=False"
_PATTERNS = (
    (re.compile(rb"\s*<(!doctype html|html|head)", re.IGNORECASE), _HTML),
    (re.compile(rb"\s*<\?xml"), _Kind("XML", f"{_AGAIN}: storage servers answer with XML where they refuse")),
    (re.compile(rb".{257}ustar", re.DOTALL), _Kind("a tar archive", _TAR)),
    (re.compile(rb".{4}TFL3", re.DOTALL), _Kind("a TensorFlow Lite model", _TENSORFLOW.cure)),
    # Fields 1 (a version) and 2 of a protobuf: TensorFlow's SavedModel has version 1, which ONNX left in 2017; and the
    # first entry of the index of a checkpoint of TensorFlow.
    (re.compile(rb"\x08\x01\x12|\x00\x00.\x08.\x1a\x02\x08\x01", re.DOTALL), _TENSORFLOW),
    (re.compile(rb"\x08[\x02-\x1f][\x12\x1a\x22\x2a\x32\x3a]"), _Kind("an ONNX model", "open it with onnx.load")),
    (
        re.compile(rb"\x80[\x02-\x05]"),
        _Kind(
            "a pickle that torch.save did not write, or a part of one",
            "if you trust its origin, open it with pickle.load, and save what is in it with fastio.save",
        ),
    ),
    (re.compile(rb"\x00{64}"), _Kind("nothing but zeros", f"{_AGAIN} again: its bytes were not written")),
)
# What torch's unpicklers raise for bytes without sense. A user's own classes may raise anything else.
_RAISED = (
    *(pickle.UnpicklingError, EOFError, RuntimeError, LookupError, ValueError, TypeError, AssertionError),
    *(AttributeError, OverflowError, ImportError, struct.error),
)


def problem(first: bytes, expected: str = ANY) -> str:
    """What a file is that begins with these bytes, what was expected, and the cure; empty if its kind is unknown.

    ``first`` are the first :data:`HEAD_BYTES` bytes, or the whole file if it has fewer.
    """
    kind = None if is_legacy(first) else _kind(first)
    return f"it is {kind.what}, expected {expected}; {kind.cure}" if kind else ""


def unknown(first: bytes, expected: str = ANY) -> str:
    """What is said of a file of no known kind."""
    return f"its first bytes, {first[:8]!r}, are of no format known here, expected {expected}; check where it is from"


def problem_of(path: str, fd: int, size: int, expected: str = ANY) -> str:
    """:func:`problem` of an open file."""
    return problem(head(path, fd, size, HEAD_BYTES), expected)


def named_errors(path: str, first: Callable[[], bytes], irregular: str = "") -> HandledErrors[Exception]:
    """Inside, what torch raises for a file that it cannot have written becomes a FormatError, also of torch's class.

    ``first()`` reads the first :data:`HEAD_BYTES` bytes. ``irregular`` is said of what is no regular file. What says
    nothing about the file's bytes, and what torch says of its legacy format, passes as it is.
    """

    def handle(error: Exception) -> None:
        if isinstance(error, FastIOError | OSError) or is_legacy(found := first()):
            return
        raise _made(type(error), f"{path}: {irregular or problem(found) or unknown(found)}") from None

    return HandledErrors(_RAISED, handle)


_classes: dict[type[Exception], type[FormatError]] = {}


def _made(kind: type[Exception], message: str) -> FormatError:
    if kind not in _classes:
        names = {"__module__": FormatError.__module__, "__qualname__": "FormatError", "__doc__": FormatError.__doc__}
        methods = {
            "__init__": Exception.__init__,  # UnicodeDecodeError's takes five
            "__str__": lambda self: hide_secrets(str(self.args[0])),  # KeyError's is a repr
            "__reduce__": lambda self: (_made, (kind, self.args[0])),
        }
        bases = (FormatError,) if issubclass(FormatError, kind) else (FormatError, kind)
        _classes[kind] = type("FormatError", bases, names | methods)
    return _classes[kind](message)


def _kind(first: bytes) -> _Kind | None:
    if not first:
        return _Kind("empty (0 bytes)", f"{_AGAIN} again: it was never written, or cut short")
    for signature, kind in _SIGNATURES.items():
        if first.startswith(signature):
            return kind
    for pattern, kind in _PATTERNS:
        if pattern.match(first):
            return kind
    return _text(first)


def _text(first: bytes) -> _Kind | None:
    """JSON or other plain text, which has at least one line of 4 characters; None for anything else."""
    text = first.decode("utf-8-sig", "replace").rstrip("\ufffd")  # the last character may be cut
    if len(text) < 4 or "\ufffd" in text or not all(c.isprintable() or c in "\n\r\t" for c in text):
        return None
    if re.match(r'\s*(\{\s*["}]|\[\s*["\[{\d\]])', text):
        return _JSON
    line = text.strip().partition("\n")[0][:60]
    return _Kind(f"plain text that begins with {quoted(line)}", "name the file of the tensors")
