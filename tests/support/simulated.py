"""The simulated accelerator, under the name that the tests use."""

from fastio.devices.simulated import *  # noqa: F403
