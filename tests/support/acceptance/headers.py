"""safetensors files with unusual headers, by their names in the tests and in docs/acceptance.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

# Bits per element.
DTYPES = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64, "F16": 16,
    "BF16": 16, "F32": 32, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8, "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_PAIR = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


def raw(header: bytes, data: bytes = b"\1\2", length: int | None = None) -> bytes:
    """A file with these header bytes; ``length`` replaces their length."""
    said = len(header) if length is None else length
    return said.to_bytes(8, "little") + header + data


def text(header: str, data: bytes = b"\1\2") -> bytes:
    """A file with this header text."""
    return raw(header.encode(), data)


def of(header: Any, data: bytes = b"\1\2") -> bytes:
    """A file with this header, as the library would write it."""
    return text(json.dumps(header, separators=(",", ":")), data)


def entry(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2), **more: Any) -> dict[str, Any]:
    """A tensor's entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def _one(**fields: Any) -> bytes:
    return of({"x": entry(**fields)})


def _said(**fields: str) -> bytes:
    """A file with one entry whose fields have these JSON texts."""
    said = {"dtype": '"U8"', "shape": "[2]", "data_offsets": "[0,2]", **fields}
    return text('{"x":{' + ",".join(f'"{name}":{value}' for name, value in said.items()) + "}}")


def _two(first: tuple[int, int], second: tuple[int, int], nbytes: int = 4) -> bytes:
    spans = {"x": first, "y": second}
    return of({n: entry(shape=[max(e - b, 0)], offsets=[b, e]) for n, (b, e) in spans.items()}, bytes(range(nbytes)))


def _further(value: str) -> bytes:
    """A file whose entry has a further field."""
    return text('{"x":' + _PAIR[:-1] + ',"more":' + value + "}}")


def _behind(more: str) -> bytes:
    """A file with a text after the header's JSON."""
    return text('{"x":' + _PAIR + "}" + more)


def _deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def _dtype(name: str, shape: list[int]) -> bytes:
    bits = DTYPES[name]
    for length in shape:
        bits *= length
    nbytes = -(-bits // 8)
    return of({"x": entry(name, shape, [0, nbytes])}, bytes(nbytes))


_NUMBERS = [
    "2.0",
    "2e0",
    "20e-1",
    "+2",
    "02",
    "0x2",
    '"2"',
    "true",
    "null",
    "-0",
    "-2",
    "1e400",
    "NaN",
    "Infinity",
    "2,",
]
_NUMBERS += ["-Infinity", "9" * 19, "18446744073709551615", "18446744073709551616", "9" * 400, "9" * 5000, "[2]", " 2 "]
_SHAPES = ["[]", "[1]", "[2]", "[1,2]", "[2,1]", "[-2]", "[-1,-2]", "null", "2", "{}", '"2"', "[null]", "[0]", "[0,2]"]
_SHAPES += ["[2,9223372036854775808]", "[0,9223372036854775808]", "[9223372036854775808,0]", "[4294967296,4294967296]"]
_SHAPES += [
    "[0,4611686018427387904,8]",
    "[4611686018427387904,8,0]",
    "[18446744073709551616,0]",
    "[4294967298,4294967296]",
]
_SAID_DTYPES = ['"u8"', '"U8 "', '"C128"', '""', "null", "1", '["U8"]', '{"U8":null}', '{"U8":1}', '"\\u0055\\u0038"']
_OFFSETS = [
    "[0]",
    "[]",
    "[0,2,2]",
    "null",
    "{}",
    "[2,0]",
    "[0,1]",
    "[0,3]",
    "[1,2]",
    '"02"',
    "[-0,2]",
    "[0,-2]",
    "[null,2]",
]
_OFFSETS += ["[0,18446744073709551618]", "[18446744073709551615,1]"]
_KEYS = [
    '"dtype"',
    '"__metadata__ "',
    '""',
    '"\\u0078"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    '"\\ude00"',
    '"\\ud83d\\u0041"',
]
_KEYS += [
    '"\\u0000"',
    '"a\tb"',
    '"a\\tb"',
    '"a\x7fb"',
    '"\\x41"',
    '"a/b"',
    '"é"',
    "'x'",
    "x",
    "1",
    '"' + "x" * 5000 + '"',
]
_METADATA = ["null", "{}", '{"a":"b"}', '{"a":1}', '{"a":null}', '{"a":["b"]}', "[]", '"a"', "1", '{"a":"\\ud800"}']
_METADATA += ['{"\\ud800":"a"}', '{"a":"b","a":"c"}', '{"a":"\\u0000"}', '{"format":"tf"}', "{" + '"a":{' * 3 + "}}}}"]

ROWS: dict[str, Callable[[], bytes]] = {
    "as the library writes it": lambda: of({"x": entry()}),
    "nothing": lambda: b"",
    "seven bytes": lambda: bytes(7),
    "a length alone": lambda: bytes(8),
    "header of no bytes": lambda: raw(b""),
    "header of no bytes and no data": lambda: raw(b"", b""),
    "no tensors": lambda: raw(b"{}", b""),
    "no tensors, but data": lambda: raw(b"{}"),
    "header longer than the file": lambda: raw(b"{}", b"", 100),
    "header of 2^63 bytes": lambda: raw(b"{}", b"", 1 << 63),
    "header of 100000001 bytes": lambda: raw(b"{}", b"", 100_000_001),
    "header said a byte shorter": lambda: raw(b'{"x":' + _PAIR.encode() + b"}", b"\1\2", len(_PAIR) + 5),
    "header said a byte longer": lambda: raw(b'{"x":' + _PAIR.encode() + b"}", b"\1\2", len(_PAIR) + 7),
    **{f"dtype {n} of {s}": lambda n=n, s=s: _dtype(n, s) for n in DTYPES for s in ([4, 8], [], [3])},
    **{f"dtype {name} of [0]": lambda n=name: _dtype(n, [0]) for name in ("U8", "F4", "F8_E8M0", "C64")},
    **{
        f"dtype {said}": lambda s=said: _said(dtype=s)
        for said in _SAID_DTYPES
    },
    **{f"length {said[:24]} of {len(said)}": lambda s=said: _said(shape=f"[{s}]") for said in _NUMBERS},
    **{f"shape {said[:40]}": lambda s=said: _said(shape=s) for said in _SHAPES},
    **{f"{n} dimensions": lambda n=n: _one(shape=[1] * (n - 1) + [2]) for n in (8, 25, 26, 32, 64, 65, 200, 5000)},
    "65 dimensions of 0": lambda: of({"x": entry(shape=[0] * 65, offsets=[0, 0])}, b""),
    "0 of 2^62 and 8": lambda: of({"x": entry(shape=[0, 1 << 62, 8], offsets=[0, 0])}, b""),
    "2^62 and 8 of 0": lambda: of({"x": entry(shape=[1 << 62, 8, 0], offsets=[0, 0])}, b""),
    "0 of 2^63": lambda: of({"x": entry(shape=[0, 1 << 63], offsets=[0, 0])}, b""),
    "0 of 2^62": lambda: of({"x": entry(shape=[0, 1 << 62], offsets=[0, 0])}, b""),
    "0 of 2^62, F64": lambda: of({"x": entry("F64", shape=[0, 1 << 62], offsets=[0, 0])}, b""),
    "2^62 of 0, F64": lambda: of({"x": entry("F64", shape=[1 << 62, 0], offsets=[0, 0])}, b""),
    **{f"offsets {said}": lambda s=said: _said(data_offsets=s) for said in _OFFSETS},
    **{f"offset {said[:24]} of {len(said)}": lambda s=said: _said(data_offsets=f"[0,{s}]") for said in _NUMBERS},
    "in another order": lambda: _two((2, 4), (0, 2)),
    "with a gap": lambda: _two((0, 1), (2, 4)),
    "with a gap in front": lambda: _two((1, 2), (2, 4)),
    "with a gap behind": lambda: _two((0, 1), (1, 3)),
    "overlapping": lambda: _two((0, 3), (2, 4)),
    "the same bytes twice": lambda: _two((0, 4), (0, 4)),
    "one within the other": lambda: _two((0, 4), (1, 3)),
    "end before begin": lambda: _two((0, 2), (4, 2)),
    "an empty one at the end": lambda: _two((0, 4), (4, 4)),
    "an empty one in the middle of another": lambda: _two((0, 4), (2, 2)),
    "an empty one outside": lambda: _two((0, 4), (9, 9)),
    "two empty ones": lambda: _two((0, 0), (0, 0), 0),
    "data cut short": lambda: of({"x": entry()}, b"\1"),
    "a byte behind the data": lambda: of({"x": entry()}, b"\1\2\3"),
    **{f"name {key[:24]} of {len(key)}": lambda k=key: text("{" + k + ":" + _PAIR + "}") for key in _KEYS},
    **{
        f"metadata {said[:40]}": lambda s=said: text('{"__metadata__":' + s + ',"x":' + _PAIR + "}")
        for said in _METADATA
    },
    "metadata twice": lambda: text('{"__metadata__":{},"__metadata__":{},"x":' + _PAIR + "}"),
    "metadata null and again": lambda: text('{"__metadata__":null,"__metadata__":{},"x":' + _PAIR + "}"),
    "metadata by an escaped name": lambda: text('{"__m\\u0065tadata__":{"a":"b"},"x":' + _PAIR + "}"),
    "metadata last": lambda: text('{"x":' + _PAIR + ',"__metadata__":{"a":"b"}}'),
    "a name twice": lambda: text('{"x":' + _PAIR + ',"x":' + _PAIR + "}"),
    "a name twice, once escaped": lambda: text('{"x":' + _PAIR + ',"\\u0078":' + _PAIR + "}"),
    "a name twice, with other bytes": lambda: text('{"x":' + _PAIR.replace("2]", "1]") + ',"x":' + _PAIR + "}"),
    "a name twice, the first no entry": lambda: text('{"x":1,"x":' + _PAIR + "}"),
    "dtype twice": lambda: text('{"x":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}'),
    "shape twice": lambda: text('{"x":{"dtype":"U8","shape":[9],"shape":[2],"data_offsets":[0,2]}}'),
    "a further field": lambda: _one(more=1),
    "a further field twice": lambda: _further('1,"more":2'),
    "a further field of 1e400": lambda: _further('1e400'),
    "a further field of NaN": lambda: _further('NaN'),
    "a further field of 400 digits": lambda: _further("9" * 400),
    "a further field of 300 digits": lambda: _further("9" * 300),
    "a further field of maps": lambda: _further('{"a":' * 124 + "1" + "}" * 124),
    "a further field of too many maps": lambda: _further('{"a":' * 126 + "1" + "}" * 126),
    "a further field of -0": lambda: _further('-0'),
    "a further field of maps of a surrogate": lambda: _further('{"a":[{"\\ud800":1}]}'),
    "a further field of a long number": lambda: _further("9" * 5000),
    "a further field of a long fraction": lambda: text('{"x":' + _PAIR[:-1] + ',"more":0.' + "9" * 5000 + "}}"),
    "a further field of a surrogate": lambda: _further('"\\ud800"'),
    "a further field by a surrogate": lambda: text('{"x":' + _PAIR[:-1] + ',"\\ud800":1}}'),
    **{
        f"a further field {depth} deep": lambda d=depth: _further(_deep(d))
        for depth in (100, 124, 125, 126, 127, 128, 500, 5000, 100_000)
    },
    "no dtype": lambda: text('{"x":{"shape":[2],"data_offsets":[0,2]}}'),
    "no shape": lambda: text('{"x":{"dtype":"U8","data_offsets":[0,2]}}'),
    "no offsets": lambda: text('{"x":{"dtype":"U8","shape":[2]}}'),
    "fields in upper case": lambda: text('{"x":{"DTYPE":"U8","SHAPE":[2],"DATA_OFFSETS":[0,2]}}'),
    **{
        f"an entry that is {said}": lambda s=said: text('{"x":' + _PAIR + ',"y":' + s + "}")
        for said in ("null", "1", '"U8"', "[]", "{}", "true", '["U8",[0],[2,2]]', '["U8",[0],[2,2],1]', '["U8",[0]]')
    },
    "a list": lambda: text("[]"),
    "a string": lambda: text('"x"'),
    "null": lambda: text("null"),
    "leading space": lambda: text(' {"x":' + _PAIR + "}"),
    "leading newline": lambda: text('\n{"x":' + _PAIR + "}"),
    "trailing spaces": lambda: _behind("" + " " * 9),
    "trailing white space": lambda: _behind("\n\t\r "),
    "trailing zero": lambda: _behind("\0"),
    "trailing form feed": lambda: _behind("\f"),
    "trailing brace": lambda: _behind("}"),
    "trailing comma": lambda: text('{"x":' + _PAIR + ",}"),
    "no-break space": lambda: text('{\xa0"x":' + _PAIR + "}"),
    "comment": lambda: text('{/**/"x":' + _PAIR + "}"),
    "byte order mark": lambda: text('\ufeff{"x":' + _PAIR + "}"),
    **{
        f"in {coding}": lambda c=coding: raw(('{"x":' + _PAIR + "}").encode(c))
        for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "utf-8-sig", "utf-7")
    },
    "bytes that are not UTF-8": lambda: raw(b'{"\xff":' + _PAIR.encode() + b"}"),
    "a surrogate in UTF-8": lambda: raw(b'{"\xed\xa0\x80":' + _PAIR.encode() + b"}"),
}  # fmt: skip
