"""Work of a CUDA kernel from its PTX and its code object: instructions by class, loops with their passes, how accesses
spread over memory. A statement about the text, made without running it on a GPU.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from kvc.autotune.lanes import LANES, Registers, execute
from kvc.autotune.work import Work

SECTOR = 32  # bytes that L2 hands to L1 at once (CUDA programming guide, "Device memory accesses")
VECTOR = 16  # bytes of the widest access of a lane
LINE = 128  # bytes that L1 looks up at once
BANKS, BANK_BYTES = 32, 4
UNKNOWN_PASSES = 8  # of a loop whose bound cannot be read
#: Workgroups that are looked at, as fractions of the grid: multiples of the golden ratio spread evenly over any period.
PLACES = tuple((0.31 + n * 0.6180339887) % 1 for n in range(8))
_FIXED = frozenset({"matrix_type", "workgroups", "waves", "registers", "lds_bytes", "scratch_bytes"})

_INSTRUCTION = re.compile(r"^\s*(@!?%p\d+)?\s*([a-z][\w.:]*)\s*(.*?);")
_LABEL = re.compile(r"^(\$L\w+):")
_SPECIAL = frozenset({"ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div"})
_FREE = frozenset({"mov", "ld.param", "cvta", "ret", "bra", "fence", "nop"})
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)")
_WIDTH = re.compile(r"^[usbf](\d+)$")
#: Share of the dense matrix peak that warp-wide mma reaches on Hopper, whose peak is that of wgmma.
MMA_RATE = 0.62
#: Operand types by their names in matrix opcodes: the peak that counts, and the share of it. tf32 has half of bf16's.
_MATRIX_TYPES = {"bf16": ("bf16", 1.0), "f16": ("f16", 1.0), "tf32": ("bf16", 0.5), "f64": ("f64", 1.0)}


@dataclass(frozen=True)
class Line:
    """A line that does something: a label, or an instruction with its guard."""

    label: str
    guard: str = ""
    opcode: str = ""
    operands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """`passes` is how often a wave runs it; `bytes` a lane; `sectors` and `cycles` an average execution."""

    opcode: str
    kind: str
    passes: float = 1.0
    read: float = 0.0
    written: float = 0.0
    moved: float = 0.0
    cycles: float = 0.0
    flops: float = 0.0
    block: int = 0


def split_operands(text: str) -> list[str]:
    """Operands of an instruction; a `{...}` or `[...]` group is one."""
    found, depth, start = [], 0, 0
    for n, c in enumerate(text):
        if c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[start:n].strip())
            start = n + 1
    last = text[start:].strip()
    return [*found, last] if last else found


def body_of(ptx: str, kernel: str) -> list[Line]:
    """The code between the braces of an entry; [] where the text has no such kernel."""
    start = re.search(rf"\.entry\s+{re.escape(kernel)}\s*\(", ptx)
    if start is None:
        return []
    lines = ptx[start.end() :].splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("{")), len(lines))
    end = next((n for n in range(first, len(lines)) if lines[n].startswith("}")), len(lines))
    return [line for text in lines[first + 1 : end] if (line := _parsed(text)) is not None]


def _parsed(text: str) -> Line | None:
    label = _LABEL.match(text)
    if label:
        return Line(label[1])
    match = _INSTRUCTION.match(text)
    if match is None:
        return None
    return Line("", match[1] or "", match[2], tuple(split_operands(match[3])))


class _Reader:
    """Reads a kernel's text once, from top to bottom."""

    def __init__(self, lines: Sequence[Line], block: Sequence[int], grid: Sequence[int], where: float) -> None:
        tid = np.arange(LANES)
        special: dict[str, int | np.ndarray] = {f"%ntid.{a}": n for a, n in zip("xyz", block, strict=True)}
        special |= {f"%ctaid.{a}": int(n * where) for a, n in zip("xyz", grid, strict=True)}
        special |= {f"%nctaid.{a}": n for a, n in zip("xyz", grid, strict=True)}
        special |= {"%tid.x": tid, "%tid.y": 0, "%tid.z": 0, "%laneid": tid, "%warpid": 0}
        self.registers = Registers(special)
        self.lines = lines
        self.found: list[Instruction] = []
        self.starts: dict[str, tuple[int, int]] = {}  # label -> (instruction, line)
        self.depth = 1.0
        self.block = 0
        self.seen: set[int] = set()  # sectors that the block has asked for
        self.merged: dict[tuple[str, str, int], frozenset[int]] = {}  # words of LDS that one access will fetch
        self.pending: list[tuple[str, int]] = []  # forward branches on data: their labels, and where they stand
        self.optional: list[tuple[int, int]] = []  # what they may leave out
        for number, line in enumerate(lines):
            self._line(number, line)
        self._forget_repairs()

    def _forget_repairs(self) -> None:
        """Drop what is run for unusual data only: a part without matrix instructions that a branch on data leaves out,
        in a kernel that has some (the exact product of a tile that holds inf or NaN)."""
        for first, last in self.optional:
            outside = (*self.found[:first], *self.found[last:])
            if any(i.kind == "matrix" for i in outside) and all(i.kind != "matrix" for i in self.found[first:last]):
                self.found[first:last] = [_repeated(i, 0.0) for i in self.found[first:last]]

    def _line(self, number: int, line: Line) -> None:
        if line.label:
            self.starts[line.label] = (len(self.found), number)
            self.optional += [(first, len(self.found)) for label, first in self.pending if label == line.label]
            self._next_block()
            return
        if line.opcode.startswith("bra"):
            label = line.operands[-1]
            if label in self.starts:
                self._close(label, line.guard, number)
            elif not line.guard or self.registers.guard(line.guard) is None:
                self.pending.append((label, len(self.found)))
            self._next_block()
            return
        self._classify(line.guard, line.opcode, line.operands)
        execute(self.registers, line.opcode, line.operands)

    def _next_block(self) -> None:
        self.block += 1
        self.seen, self.merged = set(), {}

    # ------------------------------------------------------------ loops
    def _close(self, label: str, guard: str, number: int) -> None:
        """A backward branch: everything since its label runs as often as the loop does."""
        first, line = self.starts[label]
        passes = self._passes(self.lines[line:number], guard)
        self.found[first:] = [_repeated(i, passes) for i in self.found[first:]]

    def _passes(self, body: Sequence[Line], guard: str) -> float:
        wanted = guard.lstrip("@!")
        compare: Line | None = None
        steps: dict[str, int] = {}
        for line in body:
            if line.opcode.startswith("setp") and line.operands[0] == wanted:
                compare = line
            elif line.opcode.startswith("add.s") and re.fullmatch(r"-?\d+", line.operands[-1]):
                steps[line.operands[0]] = steps[line.operands[1]] = int(line.operands[-1])
        if compare is None:
            return UNKNOWN_PASSES
        opcode, (_, left, right) = compare.opcode, compare.operands
        a, b = self.registers.read(left), self.registers.read(right)
        step = steps.get(left)
        if a is None or b is None or step is None:
            return UNKNOWN_PASSES
        return 1 + _remaining(opcode.split(".")[1], int(a[0]), int(b[0]), step, guard.startswith("@!"))

    # ------------------------------------------------------------ instructions
    def _classify(self, guard: str, opcode: str, operands: Sequence[str]) -> None:
        root = opcode.split(".")[0]
        if opcode.startswith(("cp.async.wait_group", "wgmma.wait_group")):
            if opcode.startswith("cp.async"):
                groups = re.search(r"\d+", operands[-1]) if operands else None
                self.depth = max(self.depth, 1.0 + (int(groups[0]) / 2 if groups else 0.0))
            return
        mask = self.registers.guard(guard)
        if root in _FREE or opcode.startswith(("ld.param", "cp.async.commit", "wgmma.fence", "wgmma.commit")):
            return
        if ".global" in opcode and root in ("ld", "st", "cp", "atom", "red"):
            self.found.append(self._global(root, opcode, operands, mask))
        elif ".shared" in opcode or root in ("ldmatrix", "stmatrix"):
            self.found.append(self._shared(root, opcode, operands, mask))
        elif root in ("mma", "wgmma"):
            self.found.append(Instruction(opcode, "matrix", flops=_matrix_flops(opcode), block=self.block))
        elif root in ("bar", "barrier", "mbarrier"):
            self.found.append(Instruction(opcode, "barrier", block=self.block))
        elif root == "shfl":
            self.found.append(Instruction(opcode, "lds", cycles=1.0, block=self.block))
        else:
            self.found.append(Instruction(opcode, "special" if root in _SPECIAL else "vector", block=self.block))

    def _global(self, root: str, opcode: str, operands: Sequence[str], mask: np.ndarray | None) -> Instruction:
        width = _bytes(opcode)
        place = next((o for o in operands if o.startswith("[")), "")
        if root == "cp":
            place = operands[1]
            width = int(operands[2], 0)
            if len(operands) > 3 and mask is not None:
                size = self.registers.read(operands[3])
                mask = mask if size is None else mask & (size > 0)
        where = self.registers.address(place)
        active = LANES if mask is None else int(mask.sum())
        moved = float(active * width)
        cycles = max(moved / LINE, 1.0)
        if where is not None and mask is not None and active:
            lanes = where[mask]
            sectors = set((lanes // SECTOR).tolist()) | set(((lanes + width - 1) // SECTOR).tolist())
            cycles = float(len({sector * SECTOR // LINE for sector in sectors}))
            # L1 has what this block asked for before.
            moved = float(len(sectors - self.seen) * SECTOR)
            self.seen |= sectors
        kind = "atomic" if root in ("atom", "red") else "memory"
        amount = float(active * width)
        read, written = (0.0, amount) if root in ("st", "red", "atom") else (amount, 0.0)
        return Instruction(opcode, kind, read=read, written=written, moved=moved, cycles=cycles, block=self.block)

    def _shared(self, root: str, opcode: str, operands: Sequence[str], mask: np.ndarray | None) -> Instruction:
        if root in ("ldmatrix", "stmatrix"):
            count = next((int(p[1:]) for p in opcode.split(".") if re.fullmatch(r"x\d", p)), 1)
            return Instruction(opcode, "lds", cycles=float(count), block=self.block)
        width = _bytes(opcode)
        place = next((o for o in operands if o.startswith("[")), "")
        where = self.registers.address(place)
        if where is None or mask is None or not mask.any():
            return Instruction(opcode, "lds", cycles=max(1.0, width * LANES / (BANKS * BANK_BYTES)), block=self.block)
        # ptxas makes one access of neighbours in the same 16 bytes: what counts is what each adds.
        base = place.strip(" []").partition("+")[0].strip()
        key = (root, base, int(where[0]) // VECTOR)
        before = self.merged.get(key, frozenset())
        words = before | frozenset(
            range(int(where[0]) % VECTOR // BANK_BYTES, -(-(int(where[0]) % VECTOR + width) // 4))
        )
        self.merged[key] = words
        slot = where[mask] // VECTOR * VECTOR
        added = bank_cycles(slot, words) - (bank_cycles(slot, before) if before else 0)
        return Instruction(opcode, "merged" if before else "lds", cycles=float(max(added, 0)), block=self.block)


def bank_cycles(slots: np.ndarray, words: Collection[int]) -> int:
    """Cycles of an LDS access to these words of each lane's 16 bytes: distinct words of the fullest bank, since lanes
    that read the same word share it."""
    first = slots // BANK_BYTES
    touched = {int(slot) + word for slot in set(first.tolist()) for word in words}
    return max(Counter(word % BANKS for word in touched).values())


def _remaining(compare: str, a: int, b: int, step: int, negated: bool) -> float:
    """How often a loop goes on whose counter is `a` at its first test."""
    if negated:
        compare = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}.get(compare, compare)
    distance = (b - a) / step
    if compare in ("le", "ge", "ls", "hs"):
        distance += 1
    return max(0.0, float(math.ceil(distance))) if compare != "eq" else 0.0


def _repeated(i: Instruction, passes: float) -> Instruction:
    return Instruction(i.opcode, i.kind, i.passes * passes, i.read, i.written, i.moved, i.cycles, i.flops, i.block)


def _bytes(opcode: str) -> int:
    """Bytes a lane of an access, from its type and vector width."""
    parts = opcode.split(".")
    vector = next((int(p[1:]) for p in parts if re.fullmatch(r"v[248]", p)), 1)
    found = _WIDTH.match(parts[-1])
    return vector * (int(found[1]) // 8 if found else 4)


def _matrix_flops(opcode: str) -> float:
    """Operations a wave of a matrix instruction; wgmma's tile is shared by four waves."""
    shape = _SHAPE.search(opcode)
    if shape is None:
        return 0.0
    m, n, k = (int(x) for x in shape.groups())
    return 2.0 * m * n * k / (4 if opcode.startswith("wgmma") else 1)


def registers_of(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers a lane and bytes of stack (spills) of a kernel, from the code object's .nv.info; (0, 0) without."""
    registers = stack = 0
    for attribute, value in _infos(cubin):
        if attribute == 0x2F:  # EIATTR_REGCOUNT
            registers = max(registers, value)
        elif attribute == 0x11:  # EIATTR_FRAME_SIZE
            stack = max(stack, value)
    return registers, stack


def _infos(cubin: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, value) of the per-function entries of .nv.info in an ELF file."""
    if cubin[:4] != b"\x7fELF":
        return
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + n * size) for n in range(count)]
    strings = sections[names][4]
    for section in sections:
        start = strings + section[0]
        if cubin[start : cubin.index(b"\0", start)] != b".nv.info":
            continue
        data = cubin[section[4] : section[4] + section[5]]
        at = 0
        while at + 4 <= len(data):
            form, attribute, length = struct.unpack_from("<BBH", data, at)
            at += 4
            if form == 4:
                if length == 8:
                    yield attribute, struct.unpack_from("<I", data, at + 4)[0]
                at += length


def work_of(ptx: str, cubin: bytes, kernel: str, grid: Sequence[int], block: Sequence[int], lds_bytes: int) -> Work:
    """The work of one launch. `block` counts threads, `lds_bytes` what a workgroup takes. Where two workgroups differ
    (causal attention), the average of several."""
    lines = body_of(ptx, kernel)
    resources = registers_of(cubin, kernel)
    found = [_one(lines, resources, grid, block, lds_bytes, where) for where in PLACES[:2]]
    if found[0] == found[1]:
        return found[0]
    found += [_one(lines, resources, grid, block, lds_bytes, where) for where in PLACES[2:]]
    means = {f.name: sum(getattr(w, f.name) for w in found) / len(found) for f in fields(Work) if f.name not in _FIXED}
    return replace(found[0], **means)


def _one(
    lines: Sequence[Line],
    resources: tuple[int, int],
    grid: Sequence[int],
    block: Sequence[int],
    lds_bytes: int,
    where: float,
) -> Work:
    """The work of a wave of the workgroup at the fraction `where` of the grid."""
    reader = _Reader(lines, block, grid, where)
    registers, stack = resources
    total = _totals(reader.found)
    exposed, flight = _waits(reader.found, reader.depth)
    matrix = [i for i in reader.found if i.kind == "matrix"]
    flops = sum(i.passes * i.flops for i in matrix)
    kinds = [_MATRIX_TYPES.get(i.opcode.split(".")[-2], ("f16", 1.0)) for i in matrix]
    ideal = sum(
        i.passes * i.flops / share / (1.0 if i.opcode.startswith("wgmma") else MMA_RATE)
        for i, (_, share) in zip(matrix, kinds, strict=True)
    )
    return Work(
        workgroups=math.prod(grid),
        waves=-(-math.prod(block) // LANES),
        registers=registers,
        lds_bytes=lds_bytes,
        scratch_bytes=stack,
        matrix_flops=flops,
        matrix_type=kinds[0][0] if kinds else "f32",
        matrix_rate=flops / ideal if flops else 1.0,
        exposed=exposed,
        flight_bytes=flight,
        depth=reader.depth,
        **total,
    )


def _totals(found: Sequence[Instruction]) -> Mapping[str, float]:
    counts = dict.fromkeys(("vector", "special", "matrix", "lds", "memory"), 0.0)
    for i in found:
        if i.kind in counts:
            counts[i.kind] += i.passes
    return counts | {
        "barriers": sum(i.passes for i in found if i.kind == "barrier"),
        "atomics": sum(i.passes for i in found if i.kind == "atomic"),
        "read_bytes": sum(i.passes * i.read for i in found),
        "write_bytes": sum(i.passes * i.written for i in found),
        "moved_bytes": sum(i.passes * i.moved for i in found),
        "lds_cycles": sum(i.passes * i.cycles for i in found if i.kind in ("lds", "merged")),
        "access_cycles": sum(i.passes * i.cycles for i in found if i.kind in ("memory", "atomic")),
    }


def _waits(found: Sequence[Instruction], depth: float) -> tuple[float, float]:
    """How often a wave waits for global memory, and the bytes under way at an average wait. The loads of a basic block
    are asked for together; a pipelined loop overlaps `depth` of its passes."""
    blocks: dict[int, tuple[float, float]] = {}
    for i in found:
        if i.kind in ("memory", "atomic") and i.read:
            passes, read = blocks.get(i.block, (0.0, 0.0))
            blocks[i.block] = (max(passes, i.passes), read + i.read)
    waits = sum(passes for passes, _ in blocks.values())
    weighted = sum(passes * read for passes, read in blocks.values())
    return waits / depth, depth * weighted / waits if waits else 0.0
