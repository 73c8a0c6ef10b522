"""Finds which version counter a tensor has.

torch shows only the counter's value, and two tensors over one storage need not share a counter: ``.data`` and ``set_``
make new counters, which may show the same value over other bytes.

So the counter's address is read from the tensor's own memory. Its offset there is found once, by comparing tensors that
share a counter with tensors that do not.
"""

from __future__ import annotations

import ctypes
import functools
import itertools

import torch

_WORD = ctypes.sizeof(ctypes.c_size_t)
_WORDS_SEARCHED = 12  # every tensor object is larger
_word_at = ctypes.c_size_t.from_address
_unique = itertools.count(-1, -1)


def counter_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors with one counter share, and no others while one of them lives.

    If the offset of the counter is unknown in this torch, return a new number for each call.
    """
    if OFFSET is None:
        return next(_unique)
    return _word_at(tensor._cdata + OFFSET).value


def witness_of(tensor: torch.Tensor, lazy: bool = True) -> torch.Tensor:
    """Return an empty tensor that shares the counter: it shows the version and keeps the counter's address in use.

    ``lazy``: the tensor may be a conjugate or negative view.
    """
    witness = tensor.detach()
    if lazy and witness.is_conj():  # not all devices allow that a conjugate or negative view gets other memory
        witness = witness.conj()
    if lazy and witness.is_neg():
        witness = torch._neg_view(witness)
    witness.data = empty_on(tensor.device)  # of the same device: not all devices allow another one here
    return witness


@functools.cache
def empty_on(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return an empty tensor on a device, always the same."""
    return torch.empty(0, dtype=dtype, device=device)


def _find_offset() -> int | None:
    """Return the offset in bytes of the counter's address in a tensor's memory; None if it was not found."""
    places = set(range(_WORDS_SEARCHED))
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
    return list((ctypes.c_size_t * _WORDS_SEARCHED).from_address(tensor._cdata))


OFFSET = _find_offset()
