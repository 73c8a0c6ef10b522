"""Mutations that damage a file: blind ones, and for each format some that target its fields.

Every mutation takes the bytes of a valid file and a seeded generator, and returns the damaged bytes.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Mutation = Callable[[bytes, random.Random], bytes]


def absurd(chance: random.Random, size: int, width: int) -> int:
    """A number of ``width`` bytes that a careless reader mishandles, in a file of ``size`` bytes."""
    top = 1 << (8 * width)
    number = chance.choice(
        [
            *(0, 1, 7, size - 1, size, size + 1, size // 2, chance.randrange(size)),
            *(0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 32, 1 << 40),
            *(top - 1, top - 2, top // 2, top // 2 - 1, top - size, chance.randrange(top)),
        ]
    )
    return number % top


# Any format


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def truncate(data: bytes, chance: random.Random) -> bytes:
    near_the_end = chance.random() < 0.5
    return data[: len(data) - chance.randrange(1, 200)] if near_the_end else data[: chance.randrange(len(data))]


def remove(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.choice([1, 2, 8, 64, 512]) :]


def insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.choice([0, len(data), chance.randrange(len(data))])
    return data[:at] + chance.randbytes(chance.choice([1, 4, 64, 4096])) + data[at:]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    length = min(chance.choice([1, 2, 4, 8, 64]), len(data) - at)
    return data[:at] + chance.choice([bytes(length), b"\xff" * length, chance.randbytes(length)]) + data[at + length :]


def copy_within(data: bytes, chance: random.Random) -> bytes:
    length = chance.choice([4, 16, 46, 256])
    source, target = chance.randrange(len(data)), chance.randrange(len(data))
    return (data[:target] + data[source : source + length] + data[target + length :])[: len(data)]


BLIND: list[Mutation] = [flip_bits, flip_bits, truncate, remove, insert, overwrite, copy_within]


# pt: a zip file. Fields by PKWARE's APPNOTE 6.3, section 4.3.


@dataclass(frozen=True)
class Entry:
    """A record and its entry in the central directory."""

    at: int  # offset of the entry
    name: bytes
    header: int
    data: int
    nbytes: int


def entries(data: bytes) -> list[Entry]:
    """The records of an undamaged zip file without a comment."""
    count, start = struct.unpack_from("<H4xI", data, len(data) - 22 + 10)
    found = []
    at = start
    for _ in range(count):
        nbytes, length, extra, comment = struct.unpack_from("<I4xHHH", data, at + 20)[0:4]
        (header,) = struct.unpack_from("<I", data, at + 42)
        local_name, local_extra = struct.unpack_from("<HH", data, header + 26)
        name = data[at + 46 : at + 46 + length]
        found.append(Entry(at, name, header, header + 30 + local_name + local_extra, nbytes))
        at += 46 + length + extra + comment
    return found


def _put(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


_CENTRAL_FIELDS = [(6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)]
_LOCAL_FIELDS = [(6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)]
_END_FIELDS = [(8, 2), (10, 2), (12, 4), (16, 4), (20, 2)]
_END64_FIELDS = [(4, 8), (24, 8), (32, 8), (40, 8), (48, 8)]
_LOCATOR_FIELDS = [(4, 4), (8, 8), (16, 4)]


def zip_field(data: bytes, chance: random.Random) -> bytes:
    """Absurd sizes, offsets, lengths, counts and flags in one to three fields, including zip64 fields."""
    end = len(data) - 22
    places = [(end, _END_FIELDS), (end - 20, _LOCATOR_FIELDS), (end - 76, _END64_FIELDS)]
    for entry in entries(data):
        places += [(entry.at, _CENTRAL_FIELDS), (entry.header, _LOCAL_FIELDS)]
    for _ in range(chance.choice([1, 1, 2, 3])):
        base, fields = chance.choice(places)
        offset, width = chance.choice(fields)
        data = _put(data, base + offset, absurd(chance, len(data), width).to_bytes(width, "little"))
    return data


def zip_overlap(data: bytes, chance: random.Random) -> bytes:
    """Two entries of the directory point to one record, or into the middle of one."""
    one, other = chance.sample(entries(data), 2)
    header = other.header + chance.choice([0, 0, 1, 30, other.nbytes])
    data = _put(data, one.at + 42, struct.pack("<I", header))
    if chance.random() < 0.5:
        data = _put(data, one.at + 20, struct.pack("<II", other.nbytes, other.nbytes))
    return data


def zip_duplicate(data: bytes, chance: random.Random) -> bytes:
    """Two records with one name: in the directory, and sometimes also in the local header."""
    same_length = [(a, b) for a in entries(data) for b in entries(data) if a != b and len(a.name) == len(b.name)]
    if not same_length:
        return flip_bits(data, chance)
    one, other = chance.choice(same_length)
    if chance.random() < 0.5:
        data = _put(data, one.header + 30, other.name)
    return _put(data, one.at + 46, other.name)


def zip_double_entry(data: bytes, chance: random.Random) -> bytes:
    """One directory entry occurs twice, with matching counts."""
    entry = chance.choice(entries(data))
    length = 46 + sum(struct.unpack_from("<HHH", data, entry.at + 28))
    end = len(data) - 98
    copy = data[entry.at : entry.at + length]
    if chance.random() < 0.5:
        copy = _put(copy, 42, struct.pack("<I", chance.choice(entries(data)).header))
    changed = data[:end] + copy + data[end:]
    count = len(entries(data)) + 1
    end += length
    (nbytes,) = struct.unpack_from("<Q", changed, end + 40)
    changed = _put(changed, end + 24, struct.pack("<QQQ", count, count, nbytes + length))
    changed = _put(changed, end + 56 + 8, struct.pack("<Q", end))
    return _put(changed, end + 76 + 8, struct.pack("<HHI", count, count, nbytes + length))


def zip64_lie(data: bytes, chance: random.Random) -> bytes:
    """An entry refers to a zip64 field for its numbers, and that field is wrong."""
    entry = chance.choice(entries(data))
    name, extra = struct.unpack_from("<HH", data, entry.at + 28)
    values = [absurd(chance, len(data), 8) for _ in range(chance.choice([0, 1, 2, 3]))]
    if chance.random() < 0.4:  # a correct zip64 field
        values = [entry.nbytes, entry.nbytes, entry.header]
    field = struct.pack(f"<HH{len(values)}Q", 1, chance.choice([8 * len(values), 0xFFFF]), *values)
    at = entry.at + 46 + name + extra
    changed = data[:at] + field + data[at:]
    changed = _put(changed, entry.at + 30, struct.pack("<H", extra + len(field)))
    changed = _put(changed, entry.at + 20, b"\xff" * 8)
    if len(values) == 3 or chance.random() < 0.5:
        changed = _put(changed, entry.at + 42, b"\xff" * 4)
    end = len(changed) - 98
    (nbytes,) = struct.unpack_from("<Q", changed, end + 40)
    changed = _put(changed, end + 40, struct.pack("<Q", nbytes + len(field)))
    changed = _put(changed, end + 56 + 8, struct.pack("<Q", end))
    return _put(changed, end + 76 + 12, struct.pack("<I", nbytes + len(field)))


def with_true_crcs(data: bytes) -> bytes:
    """Correct every CRC, so that only the reader's checks of the contents remain."""
    changed = bytearray(data)
    for entry in entries(data):
        end = entry.data + entry.nbytes
        crc = zlib.crc32(data[entry.data : end])
        struct.pack_into("<I", changed, entry.at + 16, crc)
        if data[end : end + 4] == b"PK\x07\x08":
            struct.pack_into("<I", changed, end + 4, crc)
    return bytes(changed)


def zip_forged(data: bytes, chance: random.Random) -> bytes:
    """A record that is not a tensor is damaged, and its CRC is correct."""
    small = [entry for entry in entries(data) if b"/data/" not in entry.name and entry.nbytes]
    pickles = [entry for entry in small if entry.name.endswith(b"data.pkl")]
    entry = chance.choice(pickles * 3 + small)
    contents = data[entry.data : entry.data + entry.nbytes]
    mutation = chance.choice([flip_bits, overwrite, copy_within, _pickle_number])
    return with_true_crcs(_put(data, entry.data, mutation(contents, chance)[: entry.nbytes]))


def _pickle_number(pickled: bytes, chance: random.Random) -> bytes:
    """A number of the pickle (BININT, BININT1, BININT2: numel, offset, shape, stride) becomes absurd."""
    widths = {ord("J"): 4, ord("M"): 2, ord("K"): 1}
    places = [at for at in range(len(pickled) - 5) if pickled[at] in widths]
    if not places:
        return flip_bits(pickled, chance)
    at = chance.choice(places)
    width = widths[pickled[at]]
    return _put(pickled, at + 1, absurd(chance, len(pickled), width).to_bytes(width, "little"))


PT: list[Mutation] = [
    *(zip_field, zip_field, zip_field, zip_overlap, zip_duplicate, zip_double_entry, zip64_lie),
    *(zip_forged, zip_forged, zip_forged),
]


# safetensors: the length of a JSON header (8 bytes), the header, the tensors.


def safetensors_length(data: bytes, chance: random.Random) -> bytes:
    return _put(data, 0, absurd(chance, len(data), 8).to_bytes(8, "little"))


def safetensors_header(data: bytes, chance: random.Random) -> bytes:
    """A header that is valid JSON with wrong dtypes, shapes, offsets, names or types."""
    (length,) = struct.unpack_from("<Q", data)
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    for _ in range(chance.choice([1, 1, 2])):
        name = chance.choice([key for key in header if key != "__metadata__"])
        entry = header[name]
        if not isinstance(entry, dict) or not entry:
            break
        field = chance.choice(["dtype", "shape", "data_offsets", "data_offsets", "name", "entry"])
        size = len(data)
        if field == "dtype":
            entry["dtype"] = chance.choice(["F64", "F4", "BOOL", "U8", "I64", "F8_E4M3", "f32", "", 3, None, ["F32"]])
        elif field == "shape" and isinstance(entry.get("shape"), list):
            shapes: list[Any] = [[absurd(chance, size, 8)], [1 << 32, 1 << 32], [0, 1 << 63], [-1, -4], [2.5], [True]]
            shapes += [[1 << 63, 2], [1 << 200], "3", None, [[3]], {}, [1] * 200, [1e300], [*entry["shape"], 1]]
            entry["shape"] = chance.choice(shapes)
        elif field == "data_offsets" and isinstance(entry.get("data_offsets"), list):
            offsets: list[Any] = [[absurd(chance, size, 8), absurd(chance, size, 8)], [-8, 0], [0, 1 << 70], [0], []]
            offsets += [[8, 0], [0, 0], "0", None, [0.0, 8.0], [True, False], [0, 8, 16], [1, 2]]
            others = [other for other in header.values() if isinstance(other, dict) and "data_offsets" in other]
            offsets += [chance.choice(others)["data_offsets"]] * 3
            entry["data_offsets"] = chance.choice(offsets)
        elif field == "name":
            header[chance.choice(["", "\ud800", "__metadata__", "\0", "x" * 5000, "../../x"])] = header.pop(name)
        else:
            header[name] = chance.choice([{}, [], None, 0, "F32", {**entry, "more": 1}, {"dtype": "F32"}])
    return _with_header(data, json.dumps(header).encode())


def safetensors_text(data: bytes, chance: random.Random) -> bytes:
    """A header that is almost JSON, has a duplicate name, or is nested far too deep."""
    (length,) = struct.unpack_from("<Q", data)
    header = data[8 : 8 + length]
    depth = chance.choice([500, 5_000, 50_000])
    first = header[: header.index(b"}") + 1].rstrip()
    choices = [
        b'{"a":' + b"[" * depth,
        b'{"a":' + b'{"a":' * depth,
        b"{" + b'"a":0,' * 100 + b'"a":0}',
        b"{" + first[1:] + b"," + header.lstrip()[1:],  # the first entry twice
        header.replace(b'"', b"'"),
        header.replace(b":", b"=", 1),
        header.rstrip() + b"garbage",
        header + b" " * chance.choice([1, 7, 4096]),
        b" " + header,
        b'{"a":' + b"9" * depth + b"}",
        b'{"a":1e999}',
        b'{"a":NaN}',
        b"\xff\xfe" + header,
        header.replace(b'"', b'"\xff', 1),
        b"[]",
        b"{}",
        b"",
    ]
    return _with_header(data, chance.choice(choices))


def _with_header(data: bytes, header: bytes) -> bytes:
    (length,) = struct.unpack_from("<Q", data)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


SAFETENSORS: list[Mutation] = [safetensors_length, safetensors_header, safetensors_header, safetensors_text]


# npy: magic, version, the length of a header (2 or 4 bytes), the header (a Python literal), the array.


def npy_version(data: bytes, chance: random.Random) -> bytes:
    return _put(data, 6, bytes(chance.choice([(2, 0), (3, 0), (0, 0), (1, 1), (4, 0), (255, 255)])))


def npy_length(data: bytes, chance: random.Random) -> bytes:
    data = npy_version(data, chance) if chance.random() < 0.5 else data
    return _put(data, 8, absurd(chance, len(data), 4).to_bytes(4, "little")[: chance.choice([2, 4])])


def npy_header(data: bytes, chance: random.Random) -> bytes:
    """A header that is a wrong Python literal, no literal, or nested far too deep."""
    size = len(data)
    depth = chance.choice([90, 900, 9_000])
    number = absurd(chance, size, 8)
    shapes = [f"({number},)", "(-1,)", "(4294967296, 4294967296)", "(1.5,)", "('a',)", "3", "None", "()", "[5, 7]"]
    shapes += ["(0, 18446744073709551615)", "(" + "1, " * 70 + ")", "(" * depth + ")" * depth, "(True, 7)", "(2**9,)"]
    shapes += ["(" + "-" * depth + "1,)", "(" + "9" * depth + ",)", "(1j,)"]
    descrs = [
        "'|O'",
        "'<f8'",
        "'>f4'",
        "'<f16'",
        "'|V4'",
        "'<U9'",
        "'|S0'",
        "'<M8[s]'",
        "''",
        "'<f99999999999'",
        "None",
    ]
    descrs += ["[('a', '<f4')]", "[('a', '<f4', (1000000000, 1000000000))]", "('<f4', (3, 9))", "'f4,f4'", "7", "'|b1'"]
    orders = ["True", "False", "None", "2", "'x'"]
    (length,) = struct.unpack_from("<H", data, 8)
    shape = data[10 : 10 + length].decode().partition("'shape': ")[2].partition(")")[0] + ")"
    descr, order = "'<f4'", "False"
    for _ in range(chance.choice([1, 1, 2])):
        changed = chance.randrange(4)
        descr = chance.choice(descrs) if changed == 0 else descr
        order = chance.choice(orders) if changed == 1 else order
        shape = chance.choice(shapes) if changed >= 2 else shape
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if chance.random() < 0.1:
        header = chance.choice(
            ["", "{}", "[]", "{'descr': '<f4'}", header[:-3], header + header, header + "\0", "__import__('os')"]
        )
    encoded = header.encode().ljust(118) + b"\n"
    return data[:8] + struct.pack("<H", min(len(encoded), 65535)) + encoded + data[10 + length :]


NPY: list[Mutation] = [npy_version, npy_length, npy_header, npy_header, npy_header]

AIMED: dict[str, list[Mutation]] = {"pt": PT, "safetensors": SAFETENSORS, "npy": NPY}


def mutate(file_format: str, data: bytes, number: int, large: bool = False) -> tuple[str, bytes]:
    """Apply the mutation with that number; returns its name and the damaged bytes.

    A ``large`` file is nearly all tensors, so fewer of its mutations are blind.
    """
    chance = random.Random(f"{file_format} {number}")
    blind = [flip_bits, truncate, remove, insert] if large else BLIND
    mutation = chance.choice(blind + AIMED[file_format])
    return mutation.__name__, mutation(data, chance)
