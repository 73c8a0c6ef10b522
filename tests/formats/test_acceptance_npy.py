"""``.npy`` files load or fail as with numpy.load, except those listed in docs/acceptance.md."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastio
from acceptance.arrays import ROWS, said, text
from acceptance.judging import LONGEST_MESSAGE, difference, exceptions, outcome

EXCEPTIONS = exceptions("`.npy`")
POLICIES = ("posix", "uring", "numpy", "torch")


def by_numpy(path: Any) -> torch.Tensor:
    array = np.load(path, allow_pickle=False)
    if array.dtype.itemsize == 0:  # torch 2.6 divides by it, which ends the process
        raise TypeError(f"can't convert an array of {array.dtype.str}, which has no bytes")
    return torch.from_numpy(array)


@pytest.mark.parametrize("name", ROWS)
def test_files_load_or_fail_as_with_numpy(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(ROWS[name]())
    expected = outcome(by_numpy, path)
    for policy in POLICIES:
        got = outcome(lambda source, policy=policy: fastio.load(source, policy=policy), path)
        assert difference(expected, got, EXCEPTIONS.get(name), layout=False) == "", policy
    stream = io.BytesIO(path.read_bytes())
    stream.name = str(path)  # type: ignore[misc]
    assert difference(expected, outcome(fastio.load, stream), EXCEPTIONS.get(name), layout=False) == ""
    assert outcome(fastio.verify, path)[1] is None or isinstance(outcome(fastio.verify, path)[1], fastio.FastIOError)


def test_every_listed_exception_is_a_file_of_the_corpus() -> None:
    assert EXCEPTIONS.keys() <= ROWS.keys()


def test_saving_more_dimensions_than_numpy_has_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    most = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
    fastio.save(torch.ones([1] * most), path)
    assert by_numpy(path).dim() == most
    with pytest.raises(fastio.FormatError, match=rf"has {most + 1} dimensions.*save it as \.pt"):
        fastio.save(torch.ones([1] * (most + 1)), path)


COMPOUND = {
    "records": np.dtype([("a", "<f4"), ("b", "<i8", (2,))]),
    "records with padding": np.dtype([("a", "u1"), ("b", "<f8")], align=True),
    "records of records": np.dtype([("a", [("b", "<f4")])]),
    "records without fields": np.dtype([]),
    "bytes": np.dtype("V4"),
}
ARRAYS = ["('<f4', (3,))", "('<f4', ())", "(('<f4', (3,)), (2,))", "('<f4',)", "'3f4'", "'(3,)f4'", "'f4,f4'"]


@pytest.mark.parametrize("name", COMPOUND)
def test_record_dtypes_are_refused_with_the_cure(tmp_path: Path, name: str) -> None:
    path, array = tmp_path / "a.npy", np.zeros(2, COMPOUND[name])
    with pytest.raises(fastio.FormatError, match=r"a\.npy: torch has no dtype .* save it by numpy\.save"):
        fastio.save(array, path)
    np.save(path, array)
    check_refused(path)


@pytest.mark.parametrize("descr", [*ARRAYS, "[('a', '<f4')]", "[('a', '<f4', (3,))]"])
def test_compound_dtypes_are_refused_with_the_cure_in_any_order_of_keys(tmp_path: Path, descr: str) -> None:
    path = tmp_path / "a.npy"
    last = text(f"{{'shape': (2,), 'fortran_order': False, 'descr': {descr}}}", bytes(24))
    for content in (said(descr, shape="(2,)", data=bytes(24)), last):
        path.write_bytes(content)
        check_refused(path)


def check_refused(path: Path) -> None:
    for policy in (*POLICIES, "auto"):
        with pytest.raises(fastio.FormatError, match=r"a\.npy: .*; load it with numpy\.load"):
            fastio.load(path, policy=policy)


@pytest.mark.parametrize("field", ["descr", "order", "shape"])
def test_errors_do_not_quote_long_headers(tmp_path: Path, field: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(said(**{field: "'" + "x" * 9000 + "'"}))
    for call in (fastio.load, fastio.verify):
        with pytest.raises(fastio.FastIOError) as raised:
            call(path)
        assert len(str(raised.value)) < LONGEST_MESSAGE
