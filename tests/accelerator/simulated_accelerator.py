"""The simulated accelerator as fastio uses it, under the name that the tests use."""

from fastio.devices.simulated.accelerator import SimulatedAccelerator, use

__all__ = ["SimulatedAccelerator", "use"]
