"""Whose version counter a tensor has. torch tells the number that it shows alone, and not every two tensors over one
storage share a counter: ``.data`` and ``set_`` make new ones, which may show the same number over other bytes.

The counter's address is read in the tensor's own memory. Where it lies there is found out once, by comparing tensors
that share a counter with others that do not.
"""

from __future__ import annotations

import ctypes
import itertools

import torch

_WORD = ctypes.sizeof(ctypes.c_size_t)
_LOOKED_AT = 12  # words, of which any tensor has more
_NOTHING = torch.empty(0, device="cpu")
_strangers = itertools.count(-1, -1)


def counter_of(tensor: torch.Tensor) -> int:
    """A number that tensors of one counter have in common, and no others while one of them lives.

    Where torch keeps its counters elsewhere than it is known to, a number that nobody else has.
    """
    if OFFSET is None:
        return next(_strangers)
    return ctypes.c_size_t.from_address(tensor._cdata + OFFSET).value


def witness_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of no bytes with the same counter, whose version it tells, and which it keeps from being another's."""
    witness = tensor.detach()
    witness.data = _NOTHING
    return witness


def _found() -> int | None:
    """How far into a tensor's memory the address of its counter lies, in bytes."""
    places = set(range(_LOOKED_AT))
    for _ in range(4):
        one = torch.empty(2, device="cpu")
        akin = (one, one.detach(), one[1:], one.view(2, 1))
        apart = (one, one.data, torch.empty(2, device="cpu"), one.data)
        same, other = ([_words(tensor) for tensor in tensors] for tensors in (akin, apart))
        places = {
            at for at in places if len({words[at] for words in same}) == 1 and len({words[at] for words in other}) == 4
        }
    return places.pop() * _WORD if len(places) == 1 else None


def _words(tensor: torch.Tensor) -> list[int]:
    return list((ctypes.c_size_t * _LOOKED_AT).from_address(tensor._cdata))


OFFSET = _found()
