"""An interpreter of PTX in NumPy: what the compiled kernels of backends/rbd_cuda compute, where there is no GPU.

It knows the instructions that those kernels use and refuses all others. All threads of a launch run together, a group
of them for each place in the program; a barrier waits for whole CUDA blocks. Memory outside the arrays of the launch
cannot be touched. `PtxBackend` is the backend `cuda` on this device: with it the suite holds the real PTX to the bits.

    cd tests && PYTHONPATH=../backends python -m rbd_ref.conformance --rbd-backend ptx_interpreter:PtxBackend
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rbd_cuda.backend import CudaBackend

TYPES = {
    **{f"{kind}{bits}": np.dtype(f"{letter}{bits // 8}") for kind, letter in ("uu", "bu", "si") for bits in (32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(bool),
}
REGISTERS = {"r": "u32", "rd": "u64", "f": "f32", "fd": "f64", "p": "pred"}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
COMPARISONS["ge"] = np.greater_equal
SHARED, GUARD = 1 << 40, 64  # where addresses of shared memory begin; unused words between arrays
PIECE = 64  # CUDA blocks that are interpreted together
Threads = Any  # indices of threads, or a slice of all


class Instruction(NamedTuple):
    """One line: `@!%p1 add.rn.f32 %f1, %f2, %f3;`."""

    predicate: str
    negated: bool
    parts: tuple[str, ...]
    operands: tuple[str, ...]


class Program:
    """A kernel's PTX, read: its parameters, shared arrays, instructions, and where the labels are."""

    def __init__(self, text: str) -> None:
        entry = text[text.index(".visible .entry") :]
        head, body = entry[: entry.index("{")], entry[entry.index("{") + 1 : entry.rindex("}")]
        self.parameters = re.findall(r"\.param \.(\w+) (\w+)", head)
        self.shared: dict[str, int] = {}
        self.shared_size = 0
        for name, size in re.findall(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\]", text):
            self.shared[name] = SHARED + self.shared_size
            self.shared_size += -(-int(size) // 8) * 8
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        for line in body.splitlines():
            self._read(line.split("//")[0].strip())

    def _read(self, line: str) -> None:
        """One line of the body."""
        if not line or line.startswith("."):
            return
        if line.endswith(":"):
            self.labels[line[:-1]] = len(self.instructions)
            return
        found = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([\w.]+)\s*(.*);", line)
        if found is None:
            raise NotImplementedError(line)
        operands = tuple(part.strip() for part in found[4].split(",")) if found[4] else ()
        self.instructions.append(Instruction(found[2] or "", found[1] == "!", tuple(found[3].split(".")), operands))


def shift(left: bool, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """x shifted; by its width or more, everything goes."""
    width = 8 * x.dtype.itemsize
    if not left and x.dtype.kind == "i":
        return x >> np.minimum(amount, width - 1).astype(x.dtype)
    inside = np.minimum(amount, width - 1).astype(x.dtype)
    return np.where(amount < width, x << inside if left else x >> inside, x.dtype.type(0))


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y, cut towards zero for integers."""
    if x.dtype.kind == "f":
        return x / y
    quotient = np.abs(x) // np.abs(y)
    return np.where((x < 0) != (y < 0), np.negative(quotient), quotient)


def funnel(low: np.ndarray, high: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """The upper word of (high, low) shifted left by amount mod 32."""
    double = high.astype(np.uint64) << np.uint64(32) | low
    return (double << (amount & np.uint32(31)).astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


# Instructions whose operands and result have the type in their name, by that name without the type.
PLAIN: dict[tuple[str, ...], Callable[..., np.ndarray]] = {
    ("add",): np.add,
    ("add", "rn"): np.add,
    ("sub",): np.subtract,
    ("sub", "rn"): np.subtract,
    ("mul", "lo"): np.multiply,
    ("mul", "rn"): np.multiply,
    ("div",): divide,
    ("div", "rn"): divide,
    ("sqrt", "rn"): np.sqrt,
    ("neg",): np.negative,
    ("min",): np.minimum,
    ("max",): np.maximum,
    ("and",): np.bitwise_and,
    ("or",): np.bitwise_or,
    ("xor",): np.bitwise_xor,
    ("not",): np.invert,
    ("mov",): lambda x: x,
    ("cvta", "to", "global"): lambda x: x,
    ("popc",): lambda x: np.bitwise_count(x).astype(np.uint32),
    ("shf", "l", "wrap"): funnel,
}


class Launch:
    """Some CUDA blocks of a launch: registers and places of all their threads, and the memory they share."""

    def __init__(self, program: Program, blocks: range, threads: int, values: list[int], memory: Memory) -> None:
        self.program, self.memory, self.count, self.threads = program, memory, len(blocks) * threads, threads
        self.parameters = {
            name: np.array(value).astype(TYPES[kind])
            for (kind, name), value in zip(program.parameters, values, strict=True)
        }
        number = np.arange(self.count, dtype=np.uint32)
        self.block = number // np.uint32(threads)
        self.registers: dict[str, np.ndarray] = {
            "%tid.x": number % np.uint32(threads),
            "%ctaid.x": self.block + np.uint32(blocks.start),
            "%ntid.x": np.full(self.count, threads, np.uint32),
        }
        self.shared = np.zeros((len(blocks), program.shared_size // 8), np.uint64)
        self.groups: dict[int, np.ndarray] = {0: np.arange(self.count)}
        self.waiting: dict[int, np.ndarray] = {}

    def run(self) -> None:
        """Until every thread has returned: always the group that is least far, so that groups meet again."""
        with np.errstate(all="ignore"):
            while self.groups or self.waiting:
                if not self.groups:
                    self._release()
                place = min(self.groups)
                self._advance(place, self.groups.pop(place))

    def _advance(self, place: int, who: np.ndarray) -> None:
        """One group from `place` on, until it splits, waits, ends or meets another."""
        while True:
            item = self.program.instructions[place]
            if item.parts[0] in ("bra", "ret", "bar"):
                self._go(item, place, who)
                return
            self._execute(item, slice(None) if who.size == self.count else who)
            place += 1
            if place in self.groups:
                self._join(self.groups, place, who)
                return

    def _go(self, item: Instruction, place: int, who: np.ndarray) -> None:
        """A branch, a barrier or the end."""
        if item.parts[0] == "bar":
            self._join(self.waiting, place + 1, who)
        elif item.parts[0] == "bra":
            taken = np.ones(who.size, bool)
            if item.predicate:
                taken = self.registers[item.predicate][who] != item.negated
            self._join(self.groups, self.program.labels[item.operands[0]], who[taken])
            self._join(self.groups, place + 1, who[~taken])
        elif item.predicate:
            raise NotImplementedError("a return under a condition")

    def _join(self, groups: dict[int, np.ndarray], place: int, who: np.ndarray) -> None:
        """Add threads to those at a place."""
        if who.size:
            groups[place] = np.sort(np.concatenate([groups[place], who])) if place in groups else who

    def _release(self) -> None:
        """All threads wait: let them go on, if those of a CUDA block are all at the same barrier."""
        for place, who in self.waiting.items():
            if set(np.bincount(self.block[who]).tolist()) - {0, self.threads}:
                raise RuntimeError(f"threads of a CUDA block wait at different barriers, one before line {place}")
        self.groups, self.waiting = self.waiting, {}

    def _execute(self, item: Instruction, who: Threads) -> None:
        """One instruction that only computes."""
        if item.predicate:
            raise NotImplementedError(f"{'.'.join(item.parts)} under a condition")
        kind, parts = item.parts[-1], item.parts
        if parts[0] in ("ld", "st"):
            self._move(item, who)
        elif parts[:-1] in PLAIN:
            self._put(item.operands[0], who, PLAIN[parts[:-1]](*(self._get(x, kind, who) for x in item.operands[1:])))
        else:
            self._put(item.operands[0], who, self._convert(item, who))

    def _convert(self, item: Instruction, who: Threads) -> np.ndarray:
        """Instructions whose operands are of several types."""
        name, kind, (_, *operands) = item.parts[0], item.parts[-1], item.operands
        if name == "cvt":
            return self._get(operands[0], kind, who).astype(TYPES[item.parts[-2]])
        if name == "selp":
            chosen = self._get(operands[2], "pred", who)
            return np.where(chosen, self._get(operands[0], kind, who), self._get(operands[1], kind, who))
        if name == "setp" and len(item.parts) == 3:
            return COMPARISONS[item.parts[1]](self._get(operands[0], kind, who), self._get(operands[1], kind, who))
        if name in ("shl", "shr"):
            return shift(name == "shl", self._get(operands[0], kind, who), self._get(operands[1], "u32", who))
        if item.parts[:2] == ("mul", "wide"):
            wide = TYPES[kind[0] + "64"]
            return self._get(operands[0], kind, who).astype(wide) * self._get(operands[1], kind, who).astype(wide)
        raise NotImplementedError(".".join(item.parts))

    def _move(self, item: Instruction, who: Threads) -> None:
        """Loads and stores."""
        (name, space, kind), operands = item.parts, item.operands
        address = operands[1] if name == "ld" else operands[0]
        found = re.fullmatch(r"\[([%\w]+)(?:\+(-?\d+))?\]", address)
        if found is None or space not in ("param", "shared", "global"):
            raise NotImplementedError(f"{'.'.join(item.parts)} {address}")
        if space == "param":
            value = self.parameters[found[1]].astype(TYPES[kind])
            self._put(operands[0], who, np.broadcast_to(value, self.block[who].shape))
            return
        cells, places = self._cells(space, self._get(found[1], "s64", who) + int(found[2] or 0), TYPES[kind], who)
        if name == "ld":
            self._put(operands[0], who, cells[places])
        else:
            cells[places] = self._get(operands[1], kind, who)

    def _cells(self, space: str, address: np.ndarray, dtype: np.dtype, who: Threads) -> tuple[np.ndarray, Any]:
        """The memory of a space as an array of this type, and where in it the addresses are."""
        if space == "global":
            return self.memory.cells(address, dtype)
        cells = self.shared.view(dtype)
        places, odd = np.divmod(address - SHARED, dtype.itemsize)
        if np.any(odd) or places.min() < 0 or places.max() >= cells.shape[1]:
            raise RuntimeError("an address outside shared memory")
        return cells, (self.block[who], places)

    def _get(self, operand: str, kind: str, who: Threads) -> np.ndarray:
        """A register, a constant or the address of a shared array, as this type."""
        dtype = TYPES[kind]
        if operand.startswith("%"):
            value = self.registers[operand][who]
            return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value.astype(dtype)
        if operand[:2] in ("0f", "0d"):
            return np.array(int(operand[2:], 16), f"u{len(operand) // 2 - 1}").view(dtype)
        number = self.program.shared[operand] if operand in self.program.shared else int(operand)
        return np.array(number % 2 ** (8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)

    def _put(self, register: str, who: Threads, value: np.ndarray) -> None:
        """Into a register, widened as its sign asks where it is narrower."""
        dtype = TYPES[REGISTERS[register.rstrip("0123456789")[1:]]]
        if register not in self.registers:
            self.registers[register] = np.empty(self.count, dtype)
        same = value.dtype.itemsize == dtype.itemsize
        self.registers[register][who] = value.view(dtype) if same else value.astype(dtype)


class Memory:
    """The arrays of a launch in one space of addresses, with gaps between them that must not be touched."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        sizes = [-(-array.nbytes // 8) + GUARD for array in arrays]
        self.first = [GUARD + sum(sizes[:i]) for i in range(len(arrays))]
        self.data = np.zeros(GUARD + sum(sizes), np.uint64)
        self.usable = np.zeros(self.data.nbytes // 4, bool)
        for first, array in zip(self.first, arrays, strict=True):
            self.data.view(np.uint8)[8 * first : 8 * first + array.nbytes] = array.reshape(-1).view(np.uint8)
            self.usable[2 * first : 2 * first + array.nbytes // 4] = True

    def cells(self, address: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """All memory as one type, and the places of addresses."""
        words = address // 4
        if np.any(address % dtype.itemsize) or words.min() < 0 or words.max() >= self.usable.size:
            raise RuntimeError("an address that is no place of memory")
        if not (self.usable[words].all() and self.usable[words + dtype.itemsize // 4 - 1].all()):
            raise RuntimeError("an address outside the arrays of the launch")
        return self.data.view(dtype), address // dtype.itemsize

    def values(self, i: int, array: np.ndarray) -> list[int]:
        """Array i as Numba hands it to a kernel: two pointers of its own, items, their size, data, shape, strides."""
        return [0, 0, array.size, array.itemsize, 8 * self.first[i], *array.shape, *array.strides]

    def read(self, i: int, array: np.ndarray) -> None:
        """What array i has become."""
        here = self.data.view(np.uint8)[8 * self.first[i] : 8 * self.first[i] + array.nbytes]
        array.reshape(-1).view(np.uint8)[:] = here


def interpret(program: Program, blocks: int, threads: int, *arguments: Any) -> None:
    """Run a kernel on NumPy arrays and integers, some CUDA blocks at a time, so that their registers have room."""
    arrays = [x for x in arguments if isinstance(x, np.ndarray)]
    memory, values, i = Memory(arrays), [], 0
    for x in arguments:
        values += memory.values(i, x) if isinstance(x, np.ndarray) else [int(x)]
        i += isinstance(x, np.ndarray)
    for first in range(0, blocks, PIECE):
        Launch(program, range(first, min(blocks, first + PIECE)), threads, values, memory).run()
    for i, array in enumerate(arrays):
        memory.read(i, array)


@cache
def ptx(name: str, capability: tuple[int, int] = (8, 0)) -> str:
    """The PTX of a kernel for a compute capability."""
    from numba import cuda

    from rbd_cuda.kernels import KERNELS

    kernel = KERNELS[name]
    text: str = cuda.compile(kernel.function, kernel.signature, device=False, abi="numba", cc=capability)[0]
    return text


@cache
def program(name: str) -> Program:
    """A kernel, read once."""
    return Program(ptx(name))


class PtxDevice:
    """A device whose arrays are NumPy's and whose launches are interpreted; it counts what it is asked to hold."""

    def __init__(self) -> None:
        from rbd_cuda.kernels import SPAN, THREADS

        self.threads, self.span, self.bytes = THREADS, SPAN, 0
        self.launches: dict[str, int] = {}

    def array(self, x: np.ndarray) -> np.ndarray:
        """A copy."""
        self.bytes += x.nbytes
        return np.array(x, order="C")

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Room, filled with ones in every bit: what a kernel forgets to write shows."""
        room = np.empty(shape, dtype)
        room.reshape(-1).view(np.uint8)[:] = 255
        self.bytes += room.nbytes
        return room

    def launch(self, name: str, blocks: int, *arguments: Any) -> None:
        """Interpret the kernel's PTX."""
        self.launches[name] = self.launches.get(name, 0) + blocks
        interpret(program(name), blocks, self.threads, *arguments)

    def host(self, x: np.ndarray) -> np.ndarray:
        """A copy."""
        return x.copy()


class PtxBackend(CudaBackend):
    """The backend `cuda` with its real PTX, interpreted."""

    name: ClassVar[str] = "cuda-ptx"

    def open_device(self) -> PtxDevice:
        """No GPU."""
        return PtxDevice()
