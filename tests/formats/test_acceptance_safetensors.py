"""``.safetensors`` files load or fail as with the library, except those listed in docs/acceptance.md."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
import safetensors.torch

import fastio
from acceptance.headers import ROWS, entry, of, text
from acceptance.judging import LONGEST_MESSAGE, difference, exceptions, outcome
from fastio.formats.safetensors import header
from faults.fuzz import same

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


@pytest.mark.parametrize("name", ROWS)
def test_white_space_in_a_header_changes_nothing(tmp_path: Path, name: str) -> None:
    """A header that is written in the library's form is parsed by another way than any other."""
    content = ROWS[name]()
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= len(content) - 8:
        return
    path, spaced = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    path.write_bytes(content)
    spaced.write_bytes((length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b"\n" + content[8 + length :])
    (found, error), (expected, refusal) = outcome(fastio.load, path), outcome(fastio.load, spaced)
    assert type(error) is type(refusal)
    assert error is not None or same(found, expected, layout=False)
    with contextlib.suppress(fastio.FastIOError), fastio.safe_open(path) as one, fastio.safe_open(spaced) as other:
        assert one.metadata() == other.metadata()
        assert one.offset_keys() == other.offset_keys()
        for key in one.keys():  # noqa: SIM118  # it is no dict
            slices = one.get_slice(key), other.get_slice(key)
            assert slices[0].get_shape() == slices[1].get_shape()
            assert slices[0].get_dtype() == slices[1].get_dtype()


def _large(names: list[str], more: str = "") -> bytes:
    """A file of a byte each."""
    entries = [f'"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{n + 1}]}}' for n, name in enumerate(names)]
    return text("{" + ",".join(entries) + more + "}", bytes(n % 251 for n in range(len(names))))


@pytest.mark.parametrize("odd", [False, True])
def test_large_headers_are_read_without_a_closer_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: bool
) -> None:
    end = ",{}}," if odd else ""
    names = [*(f"layer {n:05}{end}" for n in range(5000)), "ü", "__metadata", "}"]
    path = tmp_path / "a.safetensors"
    path.write_bytes(_large(names, ',"__metadata__":{"a":"b"}'))
    expected = safetensors.torch.load_file(path)
    fastio.save_file(expected, tmp_path / "b.safetensors")
    closer, looks = header.parse, list[int]()
    monkeypatch.setattr(header, "parse", lambda text: looks.append(len(text)) or closer(text))
    assert same(fastio.load(path), expected, layout=False)
    with fastio.safe_open(path) as file:
        assert file.metadata() == {"a": "b"}
        assert file.offset_keys() == names
        assert file.get_tensor(names[-1]) == expected[names[-1]]
    assert sum(looks) < 100  # the metadata
    assert same(fastio.load(tmp_path / "b.safetensors"), expected, layout=False)


def test_fields_in_any_order_are_read_without_a_closer_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(text('{"x":{"data_offsets":[0,2],"shape":[2,1],"dtype":"U8"}}'))
    monkeypatch.setattr(header, "parse", None)
    assert same(fastio.load(path), safetensors.torch.load_file(path), layout=False)


@pytest.mark.parametrize(
    ("names", "more", "problem"),
    [
        ([*map(str, range(5000)), "7"], "", "a name occurs twice"),
        (["__metadata__", *map(str, range(5000))], ',"__metadata__":{}', "a name occurs twice"),
        (
            [*map(str, range(5000))],
            ',"x":{"dtype":"U8","shape":[1],"data_offsets":[5000,5001]}',
            r"5,000 bytes\) of data",
        ),
        ([*map(str, range(5000))], ',"x":{"dtype":"U8","shape":[1],"data_offsets":[8,9]}', "tensor before it ends at"),
        ([*map(str, range(5000))], ',"x":{"dtype":"U8","shape":[-0],"data_offsets":[8,8]}', "not whole numbers"),
        ([*map(str, range(5000))], ',"x":1', "lacks dtype, shape or data_offsets"),
        ([*map(str, range(5000))], ",", "not the JSON"),
    ],
)
def test_large_headers_are_refused_for_what_is_wrong_in_one_place(
    tmp_path: Path, names: list[str], more: str, problem: str
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(_large(names, more))
    for call in (fastio.load, fastio.safe_open, fastio.verify):
        with pytest.raises(fastio.CorruptFileError, match=problem):
            call(path)  # type: ignore[operator]


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
