"""Finds NVMe controllers for user-level drivers, what prevents their use, and what must not be overwritten.

Nothing in this package writes to a device. The drivers themselves are native: see
``fastio.offload.stores.block_store``.
"""

from fastio.nvme.controllers import Controller, Namespace, controllers
from fastio.nvme.obstacles import DRIVERS, Obstacle, obstacles
from fastio.nvme.safety import refuse_contents, refuse_controller_in_use, refuse_in_use

__all__ = [
    "DRIVERS",
    "Controller",
    "Namespace",
    "Obstacle",
    "controllers",
    "obstacles",
    "refuse_contents",
    "refuse_controller_in_use",
    "refuse_in_use",
]
