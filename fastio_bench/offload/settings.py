"""Which ways of training ``fastio-bench offload`` sets side by side, by name, with fastio's settings for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastio_bench.offload.training_ways import SYNCHRONOUS, TOOL, TORCH

Ways = dict[str, dict[str, Any]]


def asked(policies: Sequence[str], codecs: Sequence[str], shared: Mapping[str, Any]) -> Ways:
    """Every policy with every codec; the codec is in the name where there are several. ``shared``: in all settings."""
    return {
        policy if len(codecs) == 1 else f"{policy}, {codec}": {"policy": policy, "codec": codec, **shared}
        for policy in policies
        for codec in codecs
    }


def all_of(own: Ways, tools: Sequence[str], shared: Mapping[str, Any]) -> Ways:
    """Those that were asked for, then what they are held against: the Fastensor paper's way, by each tool, torch's.

    The paper's way has no codec, and waits for each transfer.
    """
    paper = {"policy": SYNCHRONOUS, "codec": "none", **shared}
    alone = {f"{tool} alone": {**paper, TOOL: tool} for tool in tools}
    return {**own, SYNCHRONOUS: paper, **alone, TORCH: {}, **own}
