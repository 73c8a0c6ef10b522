"""A window into another PCI device's memory: an address here through which a disk reads and writes it (peer to peer).

    with BarWindow("0000:05:00.0", 2) as window:
        store.map(window.address, window.nbytes)
        store.read(0, window.address, nbytes)  # from the disk into the device, past host memory
        store.unmap(window.address)

FlashNeuron's (section 3.4) devices are a GPU and SSDs; for GPU memory see ``fastio.nvme.gpu_memory``.
"""

from __future__ import annotations

from fastio import _native
from fastio.runtime.native_errors import translate_native_errors


class BarWindow:
    """BAR ``bar`` (0 to 5) of the device at ``pci_address``, :attr:`nbytes` of memory at :attr:`address` here.

    For stores over the driver "vfio", whose controllers are this process's as well. The device is claimed through VFIO:
    the kernel must have no driver for it, or have left it to vfio-pci. The processor reaches the memory too, slowly. A
    context manager; ``close`` it after the stores have let go of it (``unmap``). Raises RefusedError with what would
    help.
    """

    def __init__(self, pci_address: str, bar: int) -> None:
        if not 0 <= bar <= 5:
            raise ValueError(f"a PCI device has the BARs 0 to 5, got {bar}")
        with translate_native_errors(pci_address):
            self._native = _native.VfioPeer(pci_address, bar)
        self.address = self._native.address
        self.nbytes = self._native.nbytes

    def close(self) -> None:
        """Give the device up. Twice is fine."""
        self._native.close()

    def __enter__(self) -> BarWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
