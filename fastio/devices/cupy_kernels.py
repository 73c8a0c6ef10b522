"""CUDA kernels of this package: compiled at run time through CuPy, started on torch's streams."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
from collections.abc import Callable
from typing import Any

import torch

from fastio.devices import cuda_extras
from fastio.errors import ToolUnavailableError

_WARPS = 8  # in a block
_WARP = 32  # threads


class Kernels:
    """The kernels of one ``.cu`` file, in each of which a warp does one of a number of tasks.

    ``tool`` names them in errors. CuPy compiles and loads them for each device when they are first used there.
    """

    def __init__(self, tool: str, package: str, file: str) -> None:
        self._source = (tool, package, file)

    def is_available(self) -> bool:
        """Return whether CuPy is installed and compiles the source for this device."""
        return not isinstance(_compile(*self._source), ToolUnavailableError)

    def require(self) -> tuple[Any, Callable[[str], Any]]:
        """Return CuPy and what finds a kernel by its name. Raises ToolUnavailableError without CuPy."""
        found = _compile(*self._source)
        if isinstance(found, ToolUnavailableError):
            raise found
        return found

    def launch(self, name: str, tasks: int, device: torch.device, *arguments: torch.Tensor | int) -> None:
        """Start a kernel with a warp for each task on torch's current stream of ``device``.

        All its parameters are pointers or 64-bit numbers. Raises ToolUnavailableError without CuPy.
        """
        cupy, kernel = self.require()
        values = tuple(a if isinstance(a, int) else a.data_ptr() for a in arguments)
        stream = _Stream(torch.cuda.current_stream(device).cuda_stream)
        with cupy.cuda.Device(device.index), stream.in_cupy(cupy):
            kernel(name)(((tasks + _WARPS - 1) // _WARPS,), (_WARP * _WARPS,), values)


class _Stream:
    """A torch stream, in the protocol by which CuPy accepts foreign streams."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address

    def in_cupy(self, cupy: Any) -> Any:
        """Return the stream as CuPy takes it: ExternalStream until CuPy 14, which warns about it."""
        made = getattr(cupy.cuda.Stream, "from_external", None)
        return cupy.cuda.ExternalStream(self._address) if made is None else made(self)


@functools.cache
def _compile(tool: str, package: str, file: str) -> tuple[Any, Callable[[str], Any]] | ToolUnavailableError:
    """Return CuPy and what finds a kernel by its name, or the reason why there is none."""
    try:
        cupy: Any = importlib.import_module("cupy")
        source = importlib.resources.files(package).joinpath(file).read_text(encoding="utf-8")
        module = cupy.RawModule(code=source, options=("--std=c++17",))
        module.compile()
    except Exception as error:  # importing CuPy loads CUDA libraries, which may fail in any way
        reason = f"CuPy cannot compile the kernels: {type(error).__name__}: {error}"
        return ToolUnavailableError(tool, reason, cuda_extras.cure("codec"))
    return cupy, functools.cache(module.get_function)  # CuPy makes a new object at each lookup
