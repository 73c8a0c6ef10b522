"""How ``checkpoint-v1`` was made, with fastio 0.1.0. Not to be run again: it stands for what users have on their disks.

python tests/data/make_checkpoint_v1.py FOLDER
"""

from __future__ import annotations

import os
import sys

import torch

from fastio.checkpoint import Checkpointer

with Checkpointer(sys.argv[1], incremental=True) as checkpointer:
    for step in (1, 2):
        state = {
            "fixed": torch.arange(2000),
            "moving": torch.full((3,), float(step), dtype=torch.bfloat16),
            "nested": {"list": [1, 2.5, None, "text"], "tuple": (True, b"bytes")},
        }
        checkpointer.save(step, state, {"loss": 0.5, "names": ["a", "ä"]})
os.unlink(os.path.join(sys.argv[1], ".lock"))
