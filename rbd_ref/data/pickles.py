"""A reader of the pickles in which CIFAR-10's python batches are handed round, and of nothing else a pickle can be.

A pickle is a program, and Python's machine for it runs any code and takes as much memory as a few bytes ask for. This
one knows the opcodes of dictionaries, lists, tuples, numbers, text and arrays of NumPy. The names that arrays need mean
stand-ins which only keep what they are given: nothing from the file is ever called. Every opcode is read before
anything is made of it, no opcode makes more than the bytes it has, and there are only so many of them.
Tests: tests/test_data.py.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator
from typing import Any

NAMES = frozenset({"numpy.core.multiarray _reconstruct", "numpy ndarray", "numpy dtype"})


class Refused(Exception):
    """What a pickle has that the batches do not have."""


class Name:
    """Stands for a function or a type of NumPy, of which nothing is wanted."""


class Kept:
    """Stands for an array or a type of NumPy: keeps what it is made of and does nothing."""

    def __init__(self, made_of: tuple[Any, ...]) -> None:
        self.made_of = made_of
        self.state: Any = ()


class Machine:
    """The stack of what is being made, those that wait below a mark, and what was made before, by number."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        """Everything above the last mark, which goes away with it."""
        items = self.stack
        self.stack = self.below.pop()
        return items

    def last(self, count: int) -> list[Any]:
        """The last things on the stack, which leave it; in the order in which they were made."""
        return [self.stack.pop() for _ in range(count)][::-1]


def _push(machine: Machine, value: Any) -> None:
    machine.stack.append(value)


def _push_bytes(machine: Machine, text: str) -> None:
    """A string of Python 2 is bytes."""
    machine.stack.append(text.encode("latin-1"))


def _mark(machine: Machine, _: Any) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


def _name(machine: Machine, name: str) -> None:
    if name not in NAMES:
        raise Refused(f"it asks for {name.replace(' ', '.', 1)}")
    machine.stack.append(Name())


def _name_on_stack(machine: Machine, _: Any) -> None:
    module, name = machine.last(2)
    _name(machine, f"{module} {name}" if isinstance(module, str) and isinstance(name, str) else "something unnamed")


def _call(machine: Machine, _: Any) -> None:
    """What would be a call of NumPy keeps its arguments."""
    function, arguments = machine.last(2)
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise Refused(f"it calls a {type(function).__name__}")
    machine.stack.append(Kept(arguments))


def _set_state(machine: Machine, _: Any) -> None:
    made, state = machine.last(2)
    if not isinstance(made, Kept):
        raise Refused(f"it changes a {type(made).__name__}")
    made.state = state
    machine.stack.append(made)


def _extend(machine: Machine, items: list[Any]) -> None:
    if not isinstance(machine.stack[-1], list):
        raise Refused(f"it appends to a {type(machine.stack[-1]).__name__}")
    machine.stack[-1].extend(items)


def _update(machine: Machine, items: list[Any]) -> None:
    """Keys are text: of nested tuples the hash alone could take for ever."""
    target = machine.stack[-1]
    keys = items[::2]
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, bytes | str) for key in keys):
        raise Refused("it has entries of a dictionary that are not a text and a value")
    target.update(zip(keys, items[1::2], strict=True))


def _dictionary(machine: Machine, _: Any) -> None:
    items = machine.since_mark()
    machine.stack.append({})
    _update(machine, items)


def _put(machine: Machine, number: int) -> None:
    machine.memo[number] = machine.stack[-1]


def _ignore(machine: Machine, _: Any) -> None:
    """The version and the length of a frame: whatever they say, every opcode is looked at."""


OPCODES: dict[str, Callable[[Machine, Any], None]] = {
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1"), _push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"), _push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _push_bytes),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _ignore),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, number: _push(machine, machine.memo[number])),
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "NONE": lambda machine, _: _push(machine, None),
    "NEWTRUE": lambda machine, _: _push(machine, True),
    "NEWFALSE": lambda machine, _: _push(machine, False),
    "EMPTY_DICT": lambda machine, _: _push(machine, {}),
    "EMPTY_LIST": lambda machine, _: _push(machine, []),
    "EMPTY_TUPLE": lambda machine, _: _push(machine, ()),
    "MARK": _mark,
    "DICT": _dictionary,
    "LIST": lambda machine, _: _push(machine, machine.since_mark()),
    "TUPLE": lambda machine, _: _push(machine, tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: _push(machine, tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: _push(machine, tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: _push(machine, tuple(machine.last(3))),
    "APPEND": lambda machine, _: _extend(machine, machine.last(1)),
    "APPENDS": lambda machine, _: _extend(machine, machine.since_mark()),
    "SETITEM": lambda machine, _: _update(machine, machine.last(2)),
    "SETITEMS": lambda machine, _: _update(machine, machine.since_mark()),
    "GLOBAL": _name,
    "STACK_GLOBAL": _name_on_stack,
    "REDUCE": _call,
    "BUILD": _set_state,
}


def _opcodes(content: bytes, most: int) -> Iterator[tuple[str, Any]]:
    """Names and arguments of the opcodes, which must be known and no more than `most`."""
    for number, (opcode, argument, place) in enumerate(pickletools.genops(content)):
        if number == most:
            raise Refused(f"it has more than {most} opcodes")
        if opcode.name not in OPCODES:
            raise Refused(f"it has the opcode {opcode.name} at byte {place}")
        yield opcode.name, argument


def load(content: bytes, most: int) -> Any:
    """What a pickle of at most so many opcodes holds; arrays are `Kept`. Anything wrong raises some exception."""
    machine = Machine()
    for name, argument in _opcodes(content, most):
        OPCODES[name](machine, argument)
    (found,) = machine.stack
    return found
