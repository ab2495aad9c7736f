"""Work of a CDNA kernel from its assembly text: instructions by class, loops with their passes, bytes.

The text does not say how an access spreads over memory, nor the passes of a loop that depends on data; the simulator's
counters do, and replace what is read here wherever it ran the kernel (kvc.autotune.work.with_counters).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvc.arch import ArchSpec
from kvc.autotune.work import Work
from kvc.backends.hip.resources import parse
from kvc.disassembly import class_of, disassemble

UNKNOWN_PASSES = 8  # of a loop whose bound cannot be read
LDS_BYTES_A_PASS = 128  # CDNA ISA documents, "Local data share"

_LABEL = re.compile(r"^([\w.$]+):")
_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)\s*([^;]*)")
_SPECIAL = re.compile(r"^v_(exp|log|rcp|rsq|sqrt|sin|cos)_")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?_?(bf16|f16|f32|f64|xf32|fp8|bf8)?")
_STEP = re.compile(r"^s_addk?_(?:co_)?[iu](?:32|64)$")
_NUMBER = re.compile(r"^-?(0x[0-9a-f]+|\d+)$")
_WIDTHS = {"ubyte": 1, "sbyte": 1, "byte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4}


@dataclass(frozen=True)
class _Found:
    kind: str
    opcode: str
    block: int
    passes: float = 1.0
    lane_bytes: int = 0
    flops: float = 0.0


def work_of(asm: str, kernel: str, arch: ArchSpec, grid: Sequence[int], block: Sequence[int], dynamic_lds: int) -> Work:
    """The work of one launch; KVC0901 where the text lacks the kernel's metadata. `block` counts threads."""
    resources = parse(asm)[kernel]
    found = _read(disassemble(asm, kernel).lines)
    wave = arch.wave_size

    def count(*kinds: str) -> float:
        return sum(f.passes for f in found if f.kind in kinds)

    def moved(*kinds: str) -> float:
        return sum(f.passes * f.lane_bytes for f in found if f.kind in kinds) * wave

    exposed, flight = _waits(found, wave)
    matrix = [f for f in found if f.kind == "matrix"]
    return Work(
        workgroups=math.prod(grid),
        waves=-(-math.prod(block) // wave),
        registers=resources.vgprs_total,
        lds_bytes=resources.lds_bytes + dynamic_lds,
        scratch_bytes=resources.scratch_bytes,
        vector=count("vector"),
        special=count("special"),
        scalar=count("scalar", "scalar memory", "branch"),
        matrix=count("matrix"),
        matrix_flops=sum(f.passes * f.flops for f in matrix),
        matrix_type=_type_of(matrix[0].opcode, arch) if matrix else "f32",
        lds=count("LDS"),
        lds_cycles=moved("LDS") / LDS_BYTES_A_PASS,
        memory=count("load", "store"),
        read_bytes=moved("load"),
        write_bytes=moved("store"),
        moved_bytes=moved("load", "store"),
        access_cycles=max(moved("load", "store") / arch.cacheline_bytes, count("load", "store")),
        barriers=count("barrier"),
        exposed=exposed,
        flight_bytes=flight,
    )


def _type_of(opcode: str, arch: ArchSpec) -> str:
    shape = _SHAPE.search(opcode)
    name = (shape[5] if shape else "") or "f32"
    return name if name in dict(arch.peak_tflops) else "bf16"


def _read(lines: Sequence[str]) -> list[_Found]:
    """Instructions in the order of the text, with the passes of the loops around them."""
    found: list[_Found] = []
    starts: dict[str, tuple[int, int]] = {}
    block = 0
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        if label:
            starts[label[1]] = (len(found), number)
            block += 1
            continue
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        opcode, operands = match[1], [o.strip() for o in match[2].split(",")]
        if opcode.startswith(("s_cbranch", "s_branch")):
            if operands[0] in starts:
                first, start = starts[operands[0]]
                passes = _passes(lines[start:number], opcode)
                found[first:] = [replace(f, passes=f.passes * passes) for f in found[first:]]
            found.append(_Found("branch", opcode, block))
            block += 1
            continue
        found.append(_one(opcode, block))
    return found


def _one(opcode: str, block: int) -> _Found:
    kind = class_of(opcode)
    if kind == "memory":
        kind = "store" if "store" in opcode or "atomic" in opcode else "load"
        return _Found(kind, opcode, block, lane_bytes=_width(opcode))
    if kind == "LDS":
        return _Found(
            kind, opcode, block, lane_bytes=_width(opcode) * (2 if "read2" in opcode or "write2" in opcode else 1)
        )
    if kind == "matrix":
        shape = _SHAPE.search(opcode)
        m, n, k, blocks = (int(x or 1) for x in shape.groups()[:4]) if shape else (0, 0, 0, 1)
        return _Found(kind, opcode, block, flops=2.0 * m * n * k * blocks)
    return _Found("special" if _SPECIAL.match(opcode) else kind, opcode, block)


def _width(opcode: str) -> int:
    """Bytes a lane, from the suffix of an access."""
    bits = re.search(r"_[bui](\d+)(?:_|$)", opcode)
    if bits:
        return max(int(bits[1]) // 8, 1)
    unit = next((w for name, w in _WIDTHS.items() if f"_{name}" in opcode), 4)
    times = re.search(r"dwordx(\d)", opcode)
    return unit * (int(times[1]) if times else 1)


def _passes(body: Sequence[str], branch: str) -> float:
    """How often a counted loop runs: the constant that its counter is compared with over the constant it is raised by.
    A counter that starts elsewhere than at zero makes this an estimate."""
    step: int | None = None
    bound: int | None = None
    counter = ""
    for line in reversed(body):
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        opcode, operands = match[1], [o.strip() for o in match[2].split(",")]
        if bound is None and opcode.startswith("s_cmp") and len(operands) == 2 and _NUMBER.match(operands[1]):
            counter, bound = operands[0], int(operands[1], 0)
        elif bound is not None and _STEP.match(opcode) and operands[0] == counter and _NUMBER.match(operands[-1]):
            step = int(operands[-1], 0)
            break
    if not step or bound is None or not branch.startswith("s_cbranch_scc"):
        return UNKNOWN_PASSES
    return max(1.0, math.ceil(abs(bound / step))) if bound else UNKNOWN_PASSES


def _waits(found: Sequence[_Found], wave: int) -> tuple[float, float]:
    """How often a wave waits for global memory, and the bytes under way at an average wait: the loads of a basic block
    are asked for together."""
    blocks: dict[int, tuple[float, float]] = {}
    for f in found:
        if f.kind == "load":
            passes, read = blocks.get(f.block, (0.0, 0.0))
            blocks[f.block] = (max(passes, f.passes), read + f.lane_bytes * wave)
    waits = sum(passes for passes, _ in blocks.values())
    return waits, sum(passes * read for passes, read in blocks.values()) / waits if waits else 0.0
