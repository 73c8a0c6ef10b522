"""``.safetensors`` files load or fail as with the library, except those listed in docs/acceptance.md."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import safetensors.torch

import fastio
from acceptance.headers import ROWS, entry, of
from acceptance.judging import LONGEST_MESSAGE, difference, exceptions, outcome

EXCEPTIONS = exceptions("`.safetensors`")
POLICIES = ("posix", "uring", "numpy", "torch")


@pytest.mark.parametrize("name", ROWS)
def test_files_load_or_fail_as_with_the_library(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(ROWS[name]())
    expected = outcome(safetensors.torch.load_file, path)
    for policy in POLICIES:
        got = outcome(lambda source, policy=policy: fastio.load(source, policy=policy), path)
        assert difference(expected, got, EXCEPTIONS.get(name), layout=False) == "", policy
    stream = io.BytesIO(path.read_bytes())
    stream.name = str(path)  # type: ignore[misc]
    assert difference(expected, outcome(fastio.load, stream), EXCEPTIONS.get(name), layout=False) == ""
    assert outcome(fastio.verify, path)[1] is None or isinstance(outcome(fastio.verify, path)[1], fastio.FastIOError)


def test_every_listed_exception_is_a_file_of_the_corpus() -> None:
    assert EXCEPTIONS.keys() <= ROWS.keys()


@pytest.mark.parametrize("field", ["name", "dtype", "shape", "offsets"])
def test_errors_do_not_quote_megabytes(tmp_path: Path, field: str) -> None:
    path, long = tmp_path / "a.safetensors", "x" * 6_000_000
    header = {
        "name": {long: entry(offsets=[0, 9])},
        "dtype": {"x": entry(dtype=long)},
        "shape": {"x": entry(shape=[1.5] * 1_000_000)},
        "offsets": {"x": entry(offsets=[long, long])},
    }[field]
    path.write_bytes(of(header))
    for call in (fastio.load, fastio.verify):
        with pytest.raises(fastio.FastIOError) as raised:
            call(path)
        assert len(str(raised.value)) < LONGEST_MESSAGE
