"""The contract, for the GPUDirect transport over the real kvikio and a driver whose device memory is the host's.

Not collected by itself: test_gds runs it in a process of its own, which has that driver.
"""

from __future__ import annotations

import functools

from fastio.backends.gds import GdsTransport
from fastio.testing import TransportContract


class TestGdsOverKvikio(TransportContract):
    make = functools.partial(GdsTransport, device="cpu")
