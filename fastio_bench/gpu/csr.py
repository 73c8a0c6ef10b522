"""Encodes and decodes tensors by CSR-128 on a device, small enough for a memory checker. Exit status 1: wrong bits."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from fastio.errors import ToolUnavailableError
from fastio.offload import decode, encode
from fastio_bench.gpu.script import Script

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_ZEROS = (0.0, 0.6, 1.0)  # shares


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, elements=100_000)
    try:
        same = outcomes(script.given.elements, script.device)
    except ToolUnavailableError as error:
        script.tell(unavailable=str(error))
        sys.exit(1)
    wrong = [case for case, is_same in same.items() if not is_same]
    script.tell(cases=len(same), wrong=wrong)
    if wrong:
        sys.exit(1)


def outcomes(elements: int, device: torch.device) -> dict[str, bool]:
    """Whether the bits came back, by case."""
    torch.manual_seed(0)
    same = {}
    for count in (1, 31, 128, 129, elements):
        for dtype in _DTYPES:
            for zeros in _ZEROS:
                values = torch.rand(count) * 200 + 1
                tensor = (values * (torch.rand(count) >= zeros)).to(dtype).to(device)
                same[f"{count} {dtype}, {zeros:.0%} zeros"] = torch.equal(decode(encode(tensor, "csr")), tensor)
    return same


if __name__ == "__main__":
    main()
