"""NVMe controllers without the kernel in the way: what is here, what stands in the way, and what must not be written.

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
