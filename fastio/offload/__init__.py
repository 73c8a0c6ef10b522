"""Activation offload: moves what backward needs to host memory or an SSD during forward, and back in time.

The parts can be used alone: the planners (:func:`plan`), the codecs (:func:`encode`, :func:`decode`), the block store
(:class:`BlockStore`) and the store of files (:class:`ToolStore`).
"""

from fastio.offload.codecs.encoding import Encoded, decode, encode, is_exact
from fastio.offload.manager import Offload
from fastio.offload.planning.schedule import ActivationProfile, InfeasibleBudget, Schedule, plan
from fastio.offload.planning.timeline import Timeline
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.tiers import ActivationLostError
from fastio.offload.stores.tool_store import ToolStore

__all__ = [
    "ActivationLostError",
    "ActivationProfile",
    "BlockStore",
    "Encoded",
    "InfeasibleBudget",
    "Offload",
    "Schedule",
    "Timeline",
    "ToolStore",
    "decode",
    "encode",
    "is_exact",
    "plan",
]
