"""Parses headers of ``.npy`` files: by numpy, by other programs, and malformed."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastio.files.npy_header import NpyHeader, parse


def written(array: np.ndarray, version: tuple[int, int]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()[10 if version[0] == 1 else 12 :].split(b"\n")[0]


@given(
    dtype=hnp.scalar_dtypes().filter(lambda dtype: dtype.kind not in "MmOV"),
    shape=hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    fortran=st.booleans(),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_headers_written_by_numpy_are_parsed(
    dtype: np.dtype, shape: tuple[int, ...], fortran: bool, version: tuple[int, int]
) -> None:
    array = np.zeros(shape, dtype, order="F" if fortran else "C")
    as_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    assert parse(written(array, version), version[0]) == NpyHeader(dtype.str, as_fortran, shape)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }",
        '{"shape": (3, 4), "fortran_order": False, "descr": "<f4"}',
        "{'shape':(3,4,),'descr':'<f4','fortran_order':False}",
    ],
)
def test_headers_written_by_others_are_parsed(text: str) -> None:
    assert parse(text.encode(), 1) == NpyHeader("<f4", False, (3, 4))


def test_record_and_array_dtypes_are_recognized() -> None:
    array = np.zeros(2, [("a, (b]", "<f4"), ("c", "<i8", (2,))])
    text = written(array, (1, 0))
    assert parse(text, 1) == NpyHeader(None, False, ())
    descr, order_and_shape = text.strip()[1:-1].split(b", 'fortran")
    for other in (b"{'fortran" + order_and_shape + descr + b"}", b"{'descr':('<f4', (3,)), 'shape': (2,)}"):
        assert parse(other, 1) == NpyHeader(None, False, ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 'x')}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2,)}",
        "{'descr': 7, 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3, 4]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}\xa0",
        "(" * 50_000,
        "__import__('os').abort()",
    ],
)
def test_malformed_headers_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="found"):
        parse(text.encode(), 1)


def test_parsing_in_many_threads_gives_equal_headers() -> None:
    text = written(np.zeros((2, 3), np.float32), (1, 0))
    with ThreadPoolExecutor(8) as threads:
        headers = list(threads.map(lambda _: parse(text, 1), range(2000)))
    assert set(headers) == {NpyHeader("<f4", False, (2, 3))}
