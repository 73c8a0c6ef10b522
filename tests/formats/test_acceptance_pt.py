"""``.pt`` archives load or fail as with torch.load, except those listed in docs/acceptance.md."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fastio
from acceptance import directories, records
from acceptance.judging import difference, exceptions, outcome
from acceptance.zips import STATE, build, changed
from fastio.engine.torch_load import READ_AGAIN
from faults.fuzz import same

ROWS = {**records.ROWS, **directories.ROWS}
EXCEPTIONS = exceptions("`.pt`")
POLICIES = ("posix", "uring", "numpy", "torch")
# Torch unpickles memory that nothing has written, which raises any error.
UNDEFINED = "pickle marked a folder"


@pytest.mark.parametrize("name", ROWS)
def test_archives_load_or_fail_as_with_torch(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(ROWS[name]())
    expected = outcome(torch.load, path)
    for policy in POLICIES:
        got = outcome(lambda source, policy=policy: fastio.load(source, policy=policy), path)
        assert difference(expected, got, EXCEPTIONS.get(name), layout=True) == "", policy
    if name not in EXCEPTIONS and name != UNDEFINED:
        with path.open("rb") as file:
            assert difference(expected, outcome(fastio.load, file), None, layout=True) == ""


@pytest.mark.parametrize("name", ROWS)
def test_verify_passes_what_loads_and_raises_fastio_errors(tmp_path: Path, name: str) -> None:
    """verify raises only errors of fastio, and none for an archive that load accepts."""
    path = tmp_path / "a.pt"
    path.write_bytes(ROWS[name]())
    _, refusal = outcome(fastio.verify, path)
    assert refusal is None or isinstance(refusal, fastio.FastIOError)
    if outcome(fastio.load, path)[1] is None:
        assert refusal is None


def test_every_listed_exception_is_an_archive_of_the_corpus() -> None:
    assert EXCEPTIONS.keys() <= ROWS.keys()


@pytest.mark.parametrize(
    ("name", "opener"),
    [
        ("of torch.package", r"torch\.package\.PackageImporter"),
        ("of torch.export", r"torch\.export\.load"),
        ("of numpy.savez", r"numpy\.load"),
        ("of something else", "another program"),
    ],
)
def test_error_for_another_programs_archive_names_what_opens_it(tmp_path: Path, name: str, opener: str) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(ROWS[name]())
    for call in (fastio.load, fastio.verify, fastio.explain):
        with pytest.raises(fastio.FormatError, match=opener):
            call(path)


def test_unusual_archive_is_verified_before_torch_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for name in ("comment", "storage's name in upper case", "version b'3junk'", "all deflated"):
        path.write_bytes(ROWS[name]())
        with fastio.record() as transfers:
            assert same(fastio.load(path), STATE, layout=True)
        assert (transfers[0].tool, transfers[0].fallbacks[-1:]) == ("torch", (READ_AGAIN,)), name
    path.write_bytes(build(changed("data/0", name=b"a/DATA/0", crc=1)))
    assert same(torch.load(path), STATE, layout=True)
    with pytest.raises(fastio.CorruptFileError, match="do not match their CRC-32"):
        fastio.load(path)
    assert same(fastio.load(path, verify=False), STATE, layout=True)
