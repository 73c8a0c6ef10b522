"""Names the extra that brings a library for the CUDA of the torch that is installed."""

from __future__ import annotations

import torch

from fastio.runtime.installation import pip_install


def cure(extra: str) -> str:
    """Return the cure where the library of ``extra`` ("gds" or "codec") is missing. Both have a variant for CUDA 13."""
    ways = {"12": pip_install(extra), "13": pip_install(f"{extra}13")}
    major = (torch.version.cuda or "").partition(".")[0]
    return ways.get(major) or f"{ways['12']} for CUDA 12, {ways['13']} for CUDA 13"
