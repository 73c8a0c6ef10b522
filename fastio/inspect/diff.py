"""diff: which tensors of two files differ, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real

from fastio.arguments import Path
from fastio.errors import kind_of, quoted
from fastio.files.open_file import path_of
from fastio.inspect.differences import TensorDifference, differences
from fastio.inspect.listing import contents
from fastio.sizes import count_of


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of :func:`diff`. ``tensors`` are the numbers of tensors in the first and the second file.

    ``differences`` has those that differ, by name; ``missing`` says which tensors could not be compared, and why.
    """

    first: str
    second: str
    tensors: tuple[int, int]
    differences: dict[str, TensorDifference] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether all tensors were compared, and are equal or within the tolerances."""
        return not self.differences and not self.missing

    def __str__(self) -> str:
        if self.equal:
            return f"equal: {count_of(self.tensors[0], 'tensor')}"
        lines = [f"{name}: {_described(one)}" for name, one in self.differences.items()]
        return "\n".join([*lines, *self.missing])


def diff(first: Path, second: Path, *, atol: float = 0.0, rtol: float = 0.0, strip_prefix: str = "") -> Comparison:
    """Compare the tensors of two files by name, as ``fastio diff`` does; of any format, or of folders of shards.

    Two NaN are equal. Values that are no tensors are not compared. One pair of tensors is in memory at a time.

    Args:
        first, second: files of ``.pt``, safetensors or ``.npy``, indexes, or folders of shards.
        atol, rtol: numbers up to ``atol + rtol * abs(b)`` apart are taken for equal, as for ``torch.allclose``.
        strip_prefix: left out where a name begins with it, as ``"module."``.

    Raises:
        FormatError (a ValueError): a file is of another format, or two names are the same without ``strip_prefix``.
        CorruptFileError: the structure of a file is damaged; damaged tensors are in the result. Otherwise what ``open``
        raises.

    >>> found = fastio.diff("before.pt", "after.safetensors", atol=1e-5)
    >>> found.equal, {name: one.values.absolute for name, one in found.differences.items() if one.values}
    """
    for name, tolerance in (("atol", atol), ("rtol", rtol)):
        if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not tolerance >= 0:
            raise ValueError(f"{name}={quoted(tolerance)} is {kind_of(tolerance)}: expected a number, 0 or more")
    if not isinstance(strip_prefix, str):
        raise TypeError(f"strip_prefix={quoted(strip_prefix)} is {kind_of(strip_prefix)}: expected a str")
    one, other = contents(path_of("first", first)), contents(path_of("second", second))
    found = {each.name: each for each in differences(one, other, atol, rtol, strip_prefix)}
    missing = tuple(f"{side.path}: {reason}" for side in (one, other) for reason in side.missing)
    return Comparison(one.path, other.path, (len(one.tensors), len(other.tensors)), found, missing)


def _described(one: TensorDifference) -> str:
    if one.problem:
        return f"{one.kind}: {one.problem}"
    if one.values is None:
        return f"{one.kind}: {' and '.join(filter(None, one.found))}"
    far = "" if one.values.absolute is None else f", by up to {one.values.absolute:.6g}"
    return f"{one.values.elements:,} of {count_of(one.values.total, 'value')} differ{far}"
