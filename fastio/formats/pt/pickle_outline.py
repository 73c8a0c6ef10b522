"""Outlines a pickle: its containers, values and calls, without importing, calling or building anything that it names.

Source: the opcodes of ``pickletools``. An outline has nodes for containers and for objects, so a pickle of any content,
also a hostile one, takes memory and time in proportion to its length.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import NamedTuple

_MARK = object()
_LITERALS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_SIZED_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CONTAINERS = {"EMPTY_DICT": "dict", "EMPTY_LIST": "list", "EMPTY_SET": "set"}
_NOTHING = frozenset({"PROTO", "FRAME"})
_GETS, _PUTS = frozenset({"GET", "BINGET", "LONG_BINGET"}), frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_VALUES = frozenset(
    {
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING",
        "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
        "BINUNICODE8", "FLOAT", "BINFLOAT",
    }
)  # fmt: skip


class Global(NamedTuple):
    """A class or function that the pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Persistent(NamedTuple):
    """A reference to what lies outside the pickle; torch refers to storages so."""

    identity: object


@dataclass(slots=True, eq=False)
class Node:
    """A dict, list or set, with its items; or an ``"object"``, which ``function`` would make of ``arguments``.

    ``items`` are pairs of key and value; the keys of lists and sets are 0, 1, … ``state`` is given to the object
    afterwards.
    """

    kind: str
    function: object = None
    arguments: object = ()
    items: list[tuple[object, object]] = field(default_factory=list)
    state: object = None

    def append(self, values: list[object]) -> None:
        """Add values with the next numbers as keys."""
        self.items += enumerate(values, len(self.items))


class Outline(NamedTuple):
    """The outline of the pickled object, and all that the pickle names, in order."""

    root: object
    globals: dict[Global, None]


def outline(data: bytes) -> Outline:
    """Return a pickle's outline. ValueError if it is no pickle."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            machine.step(opcode.name, argument)
        return Outline(machine.stack[-1], machine.globals)
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"its opcodes contradict each other ({type(error).__name__}: {error})") from None


class _Machine:
    def __init__(self) -> None:
        self.stack: list[object] = []
        self.memo: dict[int, object] = {}
        self.globals: dict[Global, None] = {}

    def step(self, name: str, argument: object) -> None:
        push, pop = self.stack.append, self.stack.pop
        if name in _VALUES:
            push(argument)
        elif name in _PUTS:
            self.memo[int(argument)] = self.stack[-1]  # type: ignore[call-overload]
        elif name in _GETS:
            push(self.memo[int(argument)])  # type: ignore[call-overload]
        elif name in _LITERALS:
            push(_LITERALS[name])
        elif name in _SIZED_TUPLES:
            push(tuple(reversed([pop() for _ in range(_SIZED_TUPLES[name])])))
        elif name in _CONTAINERS:
            push(Node(_CONTAINERS[name]))
        elif name not in _NOTHING:
            self._rare(name, argument)

    def _rare(self, name: str, argument: object) -> None:
        push, pop = self.stack.append, self.stack.pop
        match name:
            case "MARK":
                push(_MARK)
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "TUPLE":
                push(tuple(self._marked()))
            case "LIST" | "FROZENSET":
                node = Node("list" if name == "LIST" else "set")
                node.append(self._marked())
                push(node)
            case "DICT":
                push(Node("dict", items=_pairs(self._marked())))
            case "SETITEM":
                value, key = pop(), pop()
                self._node().items.append((key, value))
            case "SETITEMS":
                pairs = _pairs(self._marked())
                self._node().items += pairs
            case "APPEND":
                value = pop()
                self._node().append([value])
            case "APPENDS" | "ADDITEMS":
                values = self._marked()
                self._node().append(values)
            case "GLOBAL":
                push(self._global(*str(argument).split(" ", 1)))
            case "STACK_GLOBAL":
                attribute, module = pop(), pop()
                push(self._global(module, attribute))
            case "REDUCE" | "NEWOBJ":
                arguments, function = pop(), pop()
                push(Node("object", function, arguments))
            case "NEWOBJ_EX":
                named, arguments, function = pop(), pop(), pop()
                push(Node("object", function, (arguments, named)))
            case "OBJ":
                function, *given = self._marked()
                push(Node("object", function, tuple(given)))
            case "INST":
                function = self._global(*str(argument).split(" ", 1))
                push(Node("object", function, tuple(self._marked())))
            case "BUILD":
                state = pop()
                self._node().state = state
            case "PERSID":
                push(Persistent(argument))
            case "BINPERSID":
                push(Persistent(pop()))
            case "DUP":
                push(self.stack[-1])
            case "POP":
                pop()
            case "POP_MARK":
                self._marked()
            case "STOP":
                if _MARK in self.stack[-1:]:
                    raise ValueError("it ends at a mark")
            case _:
                raise ValueError(f"it has the opcode {name}, which no .pt file needs")

    def _node(self) -> Node:
        top = self.stack[-1]
        if not isinstance(top, Node):
            raise ValueError("it adds items to what holds none")
        return top

    def _marked(self) -> list[object]:
        """Take what is above the last mark, and the mark."""
        found = []
        while (top := self.stack.pop()) is not _MARK:
            found.append(top)
        return found[::-1]

    def _global(self, module: object, name: object) -> Global:
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("it names a class by what is no text")
        found = Global(module, name)
        self.globals[found] = None
        return found


def _pairs(values: list[object]) -> list[tuple[object, object]]:
    return list(zip(values[::2], values[1::2], strict=True))
