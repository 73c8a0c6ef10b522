"""Reads the tensors of a model's files as numpy arrays, for ``safe_open(framework="np")``."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import torch

from fastio.errors import FormatError, quoted
from fastio.models.tensor_reader import TensorReader
from fastio.models.tensor_slice import TensorSlice
from fastio.runtime.uncopied import Uncopied


class ArrayReader(Uncopied):
    """Open files of a model, as :func:`fastio.safe_open` returns them for numpy. Use as a context.

    Arrays belong to the caller, may be written to, and outlive the context. FormatError for a dtype that numpy lacks:
    bfloat16 and the float8 ones, unless a package such as ``ml_dtypes`` has registered them.
    """

    def __init__(self, reader: TensorReader) -> None:
        self._reader = reader

    def __repr__(self) -> str:
        return f"<fastio ArrayReader of {self._reader!r}>"

    def __enter__(self) -> ArrayReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Arrays that were returned stay valid."""
        self._reader.close()

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return self._reader.keys()

    def offset_keys(self) -> list[str]:
        """Return the names of all tensors in the order of the files, and in a file by offset."""
        return self._reader.offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """Return the text in the headers; None if there is none. The first file's where two differ."""
        return self._reader.metadata()

    def get_tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Read a tensor. Raises what :meth:`fastio.TensorReader.get_tensor` raises."""
        return _array(name, self._reader.get_tensor(name))

    def get_tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read all tensors, in the order of :meth:`offset_keys`."""
        return {name: _array(name, tensor) for name, tensor in self._reader.get_tensors().items()}

    def get_slice(self, name: str) -> ArraySlice:
        """Return an object that reads the part of a tensor that it is indexed with. TensorMissingError."""
        return ArraySlice(name, self._reader.get_slice(name))


class ArraySlice:
    """A stored tensor, of which indexing reads a part as an array."""

    def __init__(self, name: str, stored: TensorSlice) -> None:
        self._name = name
        self._stored = stored

    def __repr__(self) -> str:
        return f"<fastio ArraySlice of {self._stored!r}>"

    def get_shape(self) -> list[int]:
        """Return the shape in the file's header."""
        return self._stored.get_shape()

    def get_dtype(self) -> str:
        """Return the dtype's name in the file's header, such as ``"F16"``."""
        return self._stored.get_dtype()

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        """Read what ``index`` selects, as :meth:`fastio.TensorSlice.__getitem__` does."""
        return _array(self._name, self._stored[index])


def _array(name: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory of a tensor as an array."""
    try:
        return tensor.numpy()
    except TypeError:  # a dtype that torch does not give to numpy
        pass
    try:
        dtype = np.dtype(str(tensor.dtype).partition(".")[2])
        return tensor.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tensor.shape)
    except TypeError:
        raise FormatError(
            f"{quoted(name)} has dtype {tensor.dtype}, which numpy lacks; open the file with framework='pt'"
        ) from None
