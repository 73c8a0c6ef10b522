"""Keeps torch.compile out of functions: it calls them, and neither traces into them nor compiles their frames.

As ``torch.compiler.disable``, but without the import of torch._dynamo, which takes a second, and without a frame more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

frames: Any = torch._C._dynamo.eval_frame  # torch.compile hooks into Python's frames here


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a function, a plain one of Python's; what it calls is not compiled either (but with torch 2.6)."""
    marked: Any = function
    marked._torchdynamo_disable = True
    if hasattr(frames, "skip_code"):  # torch 2.6
        frames.skip_code(marked.__code__)
    elif hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(marked.__code__, frames._FrameExecStrategy(skip, skip))
    return function
