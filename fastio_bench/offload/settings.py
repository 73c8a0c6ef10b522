"""The ways of training that ``fastio-bench offload`` compares, by name, with fastio's settings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastio_bench.offload.training_ways import SAVE_ON_CPU, SYNCHRONOUS, TOOL, TORCH

Ways = dict[str, dict[str, Any]]
MODES = {"w": "Fastensor_w", "r": "Fastensor_r"}
"""Dictionaries that may be named as tools: WDic and RDic, and their rows in the paper's tables 8, 10 and 11."""
LEARNING = (SYNCHRONOUS, *MODES.values())
"""The ways whose dictionaries learn before the rounds."""


def asked(policies: Sequence[str], codecs: Sequence[str], shared: Mapping[str, Any]) -> Ways:
    """Every policy with every codec. Names have the codec if there are several. ``shared`` is part of all settings."""
    return {
        policy if len(codecs) == 1 else f"{policy}, {codec}": {"policy": policy, "codec": codec, **shared}
        for policy in policies
        for codec in codecs
    }


def all_of(own: Ways, tools: Sequence[str], shared: Mapping[str, Any]) -> Ways:
    """The chosen ways, then those to compare with: Fastensor's way, the same by each tool or mode, and torch's two.

    The paper's way has no codec, and waits for each transfer. torchtune's method is for devices (``--device``).
    """
    return {**own, **fastensor(tools, shared), TORCH: {}, SAVE_ON_CPU: {}, **own}


def fastensor(tools: Sequence[str], shared: Mapping[str, Any]) -> Ways:
    """Fastensor's way, and the same by each tool or mode alone."""
    paper = {"policy": SYNCHRONOUS, "codec": "none", **shared}
    return {SYNCHRONOUS: paper, **{MODES.get(tool, f"{tool} alone"): {**paper, TOOL: tool} for tool in tools}}
