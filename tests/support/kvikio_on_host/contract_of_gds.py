"""The transport contract for the GPUDirect transport, over the real kvikio and a driver with host memory.

pytest does not collect it: test_gds runs it in a process of its own with that driver.
"""

from __future__ import annotations

import functools

from fastio.backends.gds import GdsTransport
from fastio.testing import TransportContract


class TestGdsOverKvikio(TransportContract):
    make = functools.partial(GdsTransport, device="cpu")
