"""Checks the arguments of save and load before a file is opened: torch's errors, in words that help."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from fastio.errors import kind_of
from fastio.files.open_file import is_path
from fastio.formats.pt.torch_settings import decides_weights_only

_SAFE = ("encoding",)  # what the unpickler of weights_only=True takes
_UNSAFE = ("encoding", "errors", "fix_imports", "buffers")
_ELSEWHERE = {
    "device": "map_location= says where the tensors go",
    "strict": "it is for load_model",
    "dtype": "it is for load_model, or convert the tensors afterwards",
    "framework": "it is for safe_open",
}


def check_writable(f: Any) -> None:
    """Raise AttributeError, as torch does, for what is neither a path nor a file object to write to."""
    if not is_path(f) and not hasattr(f, "write"):
        raise AttributeError(
            f"f is {kind_of(f)}: expected a path (str or os.PathLike), or a file object with a 'write' method; the "
            "object to save comes first: save(obj, f)"
        )


def check_readable(f: Any) -> None:
    """Raise AttributeError, as torch does, for what is neither a path nor a seekable file object."""
    if not is_path(f) and not all(hasattr(f, name) for name in ("read", "seek", "tell")):
        raise AttributeError(
            f"f is {kind_of(f)}: expected a path (str or os.PathLike), or a file object with 'read', 'seek' and 'tell'"
        )


def check_load_keywords(given: dict[str, Any], weights_only: bool, own: Iterable[str]) -> None:
    """Raise TypeError for a keyword that no unpickler takes. One of a ``pickle_module`` may take others.

    Args:
        given: what torch.load would give its unpickler.
        weights_only: whether that is the safe one, unless the environment decides.
        own: the names of the other keywords of ``load``.
    """
    if not given or given.get("pickle_module") is not None:
        return
    safe = weights_only and not decides_weights_only()
    for name in given.keys() - {"pickle_module"} - set(_SAFE if safe else _UNSAFE):
        if name in _UNSAFE:
            raise TypeError(f"load() takes {name}= with weights_only=False only")
        alike = difflib.get_close_matches(name, list(own), n=1)
        hint = f"did you mean {alike[0]}=?" if alike else _ELSEWHERE.get(name, f"expected one of {', '.join(own)}")
        raise TypeError(f"load() got an unexpected keyword argument {name!r}: {hint}")
