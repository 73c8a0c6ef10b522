"""Runs all examples in one process that imports torch once: ``python examples``, as in ``make demo``.

It ends with status 1 at the first example that fails.
"""

from __future__ import annotations

import sys

import resume
import train_hybrid
import train_offload

if __name__ == "__main__":
    for example in (train_offload, train_hybrid, resume):
        if example.main():
            sys.exit(1)
