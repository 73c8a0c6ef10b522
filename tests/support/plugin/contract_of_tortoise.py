"""The tests of a plug-in's author: the contract of transports, and nothing else.

Not collected by itself: test_plugin runs it in a process where the plug-in is installed.
"""

from __future__ import annotations

from fastio_tortoise import TortoiseTransport

from fastio.testing import TransportContract


class TestTortoise(TransportContract):
    make = TortoiseTransport
