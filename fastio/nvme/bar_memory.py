"""Maps another PCI device's memory to an address through which a disk reads and writes it (peer to peer).

    with BarWindow("0000:05:00.0", 2) as window:
        store.map(window.address, window.nbytes)
        store.read(0, window.address, nbytes)  # from the disk into the device, bypassing host memory
        store.unmap(window.address)

FlashNeuron's devices (section 3.4) are a GPU and SSDs; for GPU memory see ``fastio.nvme.gpu_memory``.
"""

from __future__ import annotations

from fastio._native import VfioPeer
from fastio.runtime.native_errors import translate_native_errors


class BarWindow:
    """BAR ``bar`` (0 to 5) of the device at ``pci_address``: :attr:`nbytes` of memory at :attr:`address`.

    For stores with the driver "vfio", whose controllers belong to this process too. The device is claimed through VFIO:
    it must have no kernel driver, or vfio-pci. The CPU can access the memory too, slowly. A context manager; ``close``
    it after the stores have unmapped it. Raises RefusedError with a cure.
    """

    def __init__(self, pci_address: str, bar: int) -> None:
        if not 0 <= bar <= 5:
            raise ValueError(f"bar is {bar}: expected 0 to 5")
        with translate_native_errors(pci_address):
            self._native = VfioPeer(pci_address, bar)
        self.address = self._native.address
        self.nbytes = self._native.nbytes

    def close(self) -> None:
        """Release the device. May be called twice."""
        self._native.close()

    def __enter__(self) -> BarWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
