"""An interpreter of PTX in NumPy: what the compiled kernels of backends/rbd_cuda compute, where there is no GPU.

It knows the instructions that those kernels use and refuses all others. A program is read once, each line into a
function, and cut into passages that run from a label or a jump to the next. All threads of a launch run together, a
group of them for each passage they are at; a barrier waits for whole CUDA blocks. Memory outside the arrays of the
launch cannot be touched. `PtxBackend` is the backend `cuda` on this device: the suite holds the real PTX to the bits by

    PYTHONPATH=tests python -m rbd_ref.conformance --rbd-backend ptx_interpreter:PtxBackend --report report.json
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from rbd_cuda.backend import CudaBackend

TYPES = {
    **{f"{kind}{bits}": np.dtype(f"{letter}{bits // 8}") for kind, letter in ("uu", "bu", "si") for bits in (32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(bool),
}
REGISTERS = {"%r": "u32", "%rd": "u64", "%f": "f32", "%fd": "f64", "%p": "pred"}
SPECIAL = ("%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x")
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
COMPARISONS["ge"] = np.greater_equal
SHARED, GUARD = 1 << 40, 64  # where addresses of shared memory begin; unused words between arrays
PIECE = 32  # CUDA blocks that are interpreted together
Threads = Any  # indices of threads, or a slice of all
Values = dict[str, np.ndarray]  # of registers, for some threads; one number where it is the same for all of them
Step = Callable[["Launch", Threads, Values], None]
Source = Callable[["Launch", Threads, Values], np.ndarray]


class Jump(NamedTuple):
    """A branch, a barrier or a return: `@!%p1 bra $L__BB0_2;`."""

    name: str
    label: str
    predicate: str
    negated: bool


@dataclass
class Passage:
    """Instructions up to the next label or jump, and the registers that they need and that others need from them."""

    steps: list[Step] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    jump: Jump | None = None


def shift(left: bool, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """x shifted; by its width or more, everything goes, as it does in NumPy."""
    amount = np.minimum(amount, np.uint32(64)).astype(x.dtype)
    return x << amount if left else x >> amount


def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y, cut towards zero for integers."""
    if x.dtype.kind == "f":
        return x / y
    quotient = np.abs(x) // np.abs(y)
    return np.where((x < 0) != (y < 0), np.negative(quotient), quotient)


def funnel(low: np.ndarray, high: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """The upper word of (high, low) shifted left by amount mod 32."""
    amount = amount & np.uint32(31)
    return high << amount | low >> np.uint32(32) - amount


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


def register_type(name: str) -> np.dtype:
    """What a register holds."""
    return TYPES["u32" if name in SPECIAL else REGISTERS[name.rstrip("0123456789")]]


class Program:
    """A kernel's PTX, read: its parameters, shared arrays, passages, where labels are, and registers that last."""

    def __init__(self, text: str) -> None:
        entry = text[text.index(".visible .entry") :]
        head, body = entry[: entry.index("{")], entry[entry.index("{") + 1 : entry.rindex("}")]
        self.parameters = re.findall(r"\.param \.(\w+) (\w+)", head)
        self.shared: dict[str, int] = {}
        self.shared_size = 0
        for name, size in re.findall(r"\.shared \.align \d+ \.b8 (\w+)\[(\d+)\]", text):
            self.shared[name] = SHARED + self.shared_size
            self.shared_size += -(-int(size) // 8) * 8
        self.passages = [Passage()]
        self.labels: dict[str, int] = {}
        for line in body.splitlines():
            self._read(line.split("//")[0].strip())
        predicates = {passage.jump.predicate for passage in self.passages if passage.jump} - {""}
        self.registers = predicates.union(*(passage.reads for passage in self.passages))
        for passage in self.passages:
            passage.writes &= self.registers

    def _read(self, line: str) -> None:
        """One line of the body: a label, a jump, or `add.rn.f32 %f1, %f2, %f3;`."""
        if not line or line.startswith("."):
            return
        if line.endswith(":"):
            self.labels[line[:-1]] = len(self.passages)
            self.passages.append(Passage())
            return
        found = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([\w.]+)\s*(.*);", line)
        if found is None or (found[2] and found[3] != "bra"):
            raise NotImplementedError(line)
        parts, operands = found[3].split("."), [part.strip() for part in found[4].split(",")]
        if parts[0] in ("bra", "bar", "ret"):
            self.passages[-1].jump = Jump(parts[0], operands[0], found[2] or "", found[1] == "!")
            self.passages.append(Passage())
        else:
            self.passages[-1].steps.append(self._step(parts, operands))

    def _step(self, parts: list[str], operands: list[str]) -> Step:
        """What an instruction does that only computes or moves."""
        if parts[0] == "ld":
            return self._into(operands[0], self._load(parts, operands[1]))
        if parts[0] == "st":
            return self._store(parts, *operands)
        function, kinds = self._function(parts, len(operands) - 1)
        sources = [self._source(operand, kind) for operand, kind in zip(operands[1:], kinds, strict=True)]
        return self._into(operands[0], lambda *here: function(*[source(*here) for source in sources]))

    def _function(self, parts: list[str], count: int) -> tuple[Callable[..., np.ndarray], list[str]]:
        """What an instruction computes, and the types of its operands."""
        name, kind = parts[0], parts[-1]
        if tuple(parts[:-1]) in PLAIN:
            return PLAIN[tuple(parts[:-1])], [kind] * count
        if name == "cvt":
            result = TYPES[parts[-2]]
            return lambda x: x.astype(result), [kind]
        if name == "selp":
            return lambda x, y, chosen: np.where(chosen, x, y), [kind, kind, "pred"]
        if name == "setp" and len(parts) == 3:
            return COMPARISONS[parts[1]], [kind, kind]
        if name in ("shl", "shr"):
            return lambda x, amount: shift(name == "shl", x, amount), [kind, "u32"]
        if parts[:2] == ["mul", "wide"]:
            wide = TYPES[kind[0] + "64"]
            return lambda x, y: x.astype(wide) * y.astype(wide), [kind, kind]
        raise NotImplementedError(".".join(parts))

    def _source(self, operand: str, kind: str) -> Source:
        """A register, a constant or the address of a shared array, as this type."""
        dtype = TYPES[kind]
        if operand.startswith("%"):
            self.passages[-1].reads |= {operand} - self.passages[-1].writes
            if register_type(operand) == dtype:
                return lambda launch, who, values: values[operand]
            if register_type(operand).itemsize == dtype.itemsize:
                return lambda launch, who, values: values[operand].view(dtype)
            return lambda launch, who, values: values[operand].astype(dtype)
        if operand[:2] in ("0f", "0d"):
            constant = np.array(int(operand[2:], 16), f"u{len(operand) // 2 - 1}").view(dtype)
        else:
            number = self.shared[operand] if operand in self.shared else int(operand)
            constant = np.array(number % 2 ** (8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)
        return lambda launch, who, values: constant

    def _into(self, register: str, source: Source) -> Step:
        """Put a value into a register, widened as its sign asks where it is narrower."""
        dtype = register_type(register)
        self.passages[-1].writes.add(register)

        def step(launch: Launch, who: Threads, values: Values) -> None:
            value = source(launch, who, values)
            same = value.dtype.itemsize == dtype.itemsize
            values[register] = value.view(dtype) if same else value.astype(dtype)

        return step

    def _address(self, operand: str) -> tuple[str, int]:
        """`[%rd4+8]` as the register, or the parameter, and the number."""
        found = re.fullmatch(r"\[([%\w]+)(?:\+(-?\d+))?\]", operand)
        if found is None:
            raise NotImplementedError(f"an address {operand}")
        return found[1], int(found[2] or 0)

    def _load(self, parts: list[str], operand: str) -> Source:
        """A parameter, or what lies at an address."""
        base, offset = self._address(operand)
        if parts[1] == "param":
            return lambda launch, who, values: launch.parameters[base]
        cells = self._cells(parts, base, offset)

        def source(*here: Any) -> np.ndarray:
            memory, places = cells(*here)
            return memory[places]

        return source

    def _store(self, parts: list[str], operand: str, value: str) -> Step:
        """Write to an address."""
        cells, source = self._cells(parts, *self._address(operand)), self._source(value, parts[-1])

        def step(*here: Any) -> None:
            memory, places = cells(*here)
            memory[places] = source(*here)

        return step

    def _cells(self, parts: list[str], base: str, offset: int) -> Callable[..., tuple[np.ndarray, Any]]:
        """The memory that a load or store works on, and the places in it."""
        (_, space, kind), address = parts, self._source(base, "s64")
        if space not in ("shared", "global"):
            raise NotImplementedError(".".join(parts))
        return lambda launch, who, values: launch.cells(space, address(launch, who, values) + offset, TYPES[kind], who)


class Launch:
    """Some CUDA blocks of a launch: registers and places of all their threads, and the memory they share."""

    def __init__(self, program: Program, blocks: range, grid: tuple[int, int], values: list[int], memory: Memory):
        self.program, self.memory, (of_all, self.threads) = program, memory, grid
        self.count = len(blocks) * self.threads
        self.parameters = {
            name: np.array(value).astype(TYPES[kind])
            for (kind, name), value in zip(program.parameters, values, strict=True)
        }
        number = np.arange(self.count, dtype=np.uint32)
        self.block = number // np.uint32(self.threads)
        self.registers = {name: np.empty(self.count, register_type(name)) for name in program.registers}
        special = (number % np.uint32(self.threads), self.block + np.uint32(blocks.start))
        sizes = (np.full(self.count, size, np.uint32) for size in (self.threads, of_all))
        self.registers.update(zip(SPECIAL, (*special, *sizes), strict=True))
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
        """One group through the passage at `place`."""
        passage = self.program.passages[place]
        every = who.size == self.count
        chosen = slice(None) if every else who
        values = {name: self.registers[name].copy() if every else self.registers[name][who] for name in passage.reads}
        for step in passage.steps:
            step(self, chosen, values)
        for name in passage.writes:
            self.registers[name][chosen] = values[name]
        if passage.jump is None:
            self._join(self.groups, place + 1, who)
        else:
            self._go(passage.jump, place, who)

    def _go(self, jump: Jump, place: int, who: np.ndarray) -> None:
        """A branch, a barrier or the end."""
        if jump.name == "bar":
            self._join(self.waiting, place + 1, who)
        elif jump.name == "bra":
            taken = np.ones(who.size, bool)
            if jump.predicate:
                taken = self.registers[jump.predicate][who] != jump.negated
            self._join(self.groups, self.program.labels[jump.label], who[taken])
            self._join(self.groups, place + 1, who[~taken])

    def _join(self, groups: dict[int, np.ndarray], place: int, who: np.ndarray) -> None:
        """Add threads to those at a place."""
        if who.size:
            groups[place] = np.sort(np.concatenate([groups[place], who])) if place in groups else who

    def _release(self) -> None:
        """All threads wait: let them go on, if those of a CUDA block are all at the same barrier."""
        for place, who in self.waiting.items():
            if set(np.bincount(self.block[who]).tolist()) - {0, self.threads}:
                raise RuntimeError(f"threads of a CUDA block wait at different barriers, one before passage {place}")
        self.groups, self.waiting = self.waiting, {}

    def cells(self, space: str, address: np.ndarray, dtype: np.dtype, who: Threads) -> tuple[np.ndarray, Any]:
        """The memory of a space as an array of this type, and where in it the addresses are."""
        if space == "global":
            return self.memory.cells(address, dtype)
        cells, address = self.shared.view(dtype), address - SHARED
        places = address // dtype.itemsize
        if np.any(address & (dtype.itemsize - 1)) or places.min() < 0 or places.max() >= cells.shape[1]:
            raise RuntimeError("an address outside shared memory")
        return cells, (self.block[who], places)


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
        words = address >> 2
        if np.any(address & (dtype.itemsize - 1)) or words.min() < 0 or words.max() >= self.usable.size:
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
        Launch(program, range(first, min(blocks, first + PIECE)), (blocks, threads), values, memory).run()
    for i, array in enumerate(arrays):
        memory.read(i, array)


@cache
def ptx(name: str, capability: str = "80") -> str:
    """The PTX of a kernel for sm_80 or another."""
    from numba import cuda

    from rbd_cuda.kernels import KERNELS

    kernel = KERNELS[name]
    major, minor = divmod(int(capability), 10)
    text: str = cuda.compile(kernel.function, kernel.signature, device=False, abi="numba", cc=(major, minor))[0]
    return text


@cache
def program(name: str) -> Program:
    """A kernel, read once."""
    return Program(ptx(name))


class PtxDevice:
    """A device whose arrays are NumPy's and whose launches are interpreted; it counts what it is asked to hold."""

    def __init__(self) -> None:
        from rbd_cuda.kernels import MOST_BLOCKS, PARTS, SPAN, THREADS

        self.threads, self.span, self.parts, self.most_blocks = THREADS, SPAN, PARTS, MOST_BLOCKS
        self.simulated, self.bytes = False, 0

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
        interpret(program(name), blocks, self.threads, *arguments)

    def host(self, x: np.ndarray) -> np.ndarray:
        """A copy."""
        return x.copy()


class PtxBackend(CudaBackend):
    """The backend `cuda` with its real PTX, interpreted."""

    name = "cuda-ptx"

    def open_device(self) -> PtxDevice:
        """No GPU."""
        return PtxDevice()
