"""`kvc sim K.s`: run a kernel from its assembly with arguments written on the command line.

Arguments, in the order of the kernel's parameters:
    f32[1024]:randn      a buffer of 1,024 fp32 drawn from a normal distribution (also rand, zeros, ones, arange, nan)
    f32[64,64]:out       an output: its contents are summarised after the run; reads before writes fault
    i32[8]=1,2,3         a buffer with the given values, repeated
    i32=5  f32=0.5       a number
    null                 a null pointer
Types: f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64 b8.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from kvc.diagnostics import KvcError
from kvc.simulator.launch import LaunchReport, launch, sample_workgroups
from kvc.simulator.machine import SimOptions
from kvc.simulator.memory import Buffer, Memory
from kvc.simulator.program import load

_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8,
        "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64,
        "b8": np.uint8,
    }.items()
}  # fmt: skip
_BUFFER = re.compile(r"^(\w+)\[([\d,\s]+)\](?::(\w+)|=(.+))?$")
_NUMBER = re.compile(r"^(\w+)=(.+)$")
_FILLS = ("randn", "rand", "zeros", "ones", "arange", "nan", "out")


@dataclass(frozen=True)
class ArgSpec:
    """One argument: a buffer when `shape` is not None, else a number; `fill` is a word of the module's docstring."""

    dtype: str
    shape: tuple[int, ...] | None = None
    fill: str = ""
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class OutputSummary:
    """What an output holds: elements written, non-finite ones, extremes and mean of the finite ones."""

    argument: int
    text: str
    written: int
    elements: int
    nonfinite: int
    low: float
    high: float
    mean: float

    def __str__(self) -> str:
        share = "all" if self.written == self.elements else f"{self.written} of {self.elements}"
        return (
            f"argument {self.argument} ({self.text}): {share} written, {self.nonfinite} not finite,"
            f" min {self.low:.6g}, max {self.high:.6g}, mean {self.mean:.6g}"
        )


def parse_arg(text: str) -> ArgSpec:
    """Read one argument. KVC0106 when it does not follow the grammar."""
    if text == "null":
        return ArgSpec("u64", None, "null")
    buffer, number = _BUFFER.match(text), _NUMBER.match(text)
    if buffer and buffer[1] in _TYPES:
        shape = tuple(int(part) for part in buffer[2].split(","))
        values = tuple(_number(part, text) for part in buffer[4].split(",")) if buffer[4] else ()
        fill = buffer[3] or ("values" if values else "zeros")
        if fill in (*_FILLS, "values") and prod(shape) > 0:
            return ArgSpec(buffer[1], shape, fill, values)
    if number and number[1] in _TYPES:
        return ArgSpec(number[1], None, "value", (_number(number[2], text),))
    raise KvcError(
        "KVC0106", f"argument {text!r} cannot be read", hint="for example f32[1024]:randn, f32[64,64]:out, i32=5"
    )


def _number(text: str, whole: str) -> float:
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise KvcError("KVC0106", f"{text!r} in {whole!r} is no number") from None


def _encode(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bf16":
        return values.astype(_TYPES[dtype])
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(float)
    return raw.astype(float)


def build_arg(spec: ArgSpec, mem: Memory, rng: np.random.Generator, name: str) -> Any:
    """The value to launch with: a Buffer in `mem`, a NumPy scalar, or None for a null pointer."""
    if spec.shape is None:
        return None if spec.fill == "null" else _encode(np.array(spec.values[:1]), spec.dtype)[0]
    count = prod(spec.shape)
    if spec.fill == "out":
        return mem.alloc(count * _TYPES[spec.dtype].itemsize, name=name)
    if spec.fill == "rand" and np.issubdtype(_TYPES[spec.dtype], np.integer) and spec.dtype != "bf16":
        return mem.upload(rng.integers(0, 100, count).astype(_TYPES[spec.dtype]), name)
    values = {
        "randn": lambda: rng.standard_normal(count),
        "rand": lambda: rng.random(count),
        "zeros": lambda: np.zeros(count),
        "ones": lambda: np.ones(count),
        "arange": lambda: np.arange(count),
        "nan": lambda: np.full(count, np.nan),
        "values": lambda: np.tile(np.array(spec.values), -(-count // max(len(spec.values), 1)))[:count],
    }[spec.fill]()
    return mem.upload(_encode(values, spec.dtype), name)


def summarise(spec: ArgSpec, buffer: Buffer, argument: int) -> OutputSummary:
    """Statistics of an output buffer over the elements that were written."""
    dtype = _TYPES[spec.dtype]
    values = _decode(buffer.view(dtype), spec.dtype)
    written: np.ndarray = np.ones(values.size, bool)
    if buffer.written is not None:
        written = np.asarray(buffer.written[: buffer.nbytes].reshape(-1, dtype.itemsize).all(axis=1))
    finite = values[written & np.isfinite(values)]
    low, high, mean = (finite.min(), finite.max(), finite.mean()) if finite.size else (np.nan,) * 3
    text = f"{spec.dtype}[{','.join(map(str, spec.shape or ()))}]"
    bad = int((written & ~np.isfinite(values)).sum())
    return OutputSummary(argument, text, int(written.sum()), values.size, bad, float(low), float(high), float(mean))


def run_file(
    path: Path,
    arch: str,
    args: Sequence[str],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (64, 1, 1),
    kernel: str | None = None,
    code_object: Path | None = None,
    dynamic_lds: int = 0,
    seed: int = 0,
    sample: int = 0,
    options: SimOptions | None = None,
) -> tuple[LaunchReport, list[OutputSummary]]:
    """Run a kernel of an assembly file; `sample` > 0 restricts it to that many workgroups.

    KVC0101 when the file is not there, KVC0106 for arguments, KVC0603 and KVC09xx as `launch`.
    """
    if not path.is_file():
        raise KvcError("KVC0101", f"{path} is not there")
    binary = code_object.read_bytes() if code_object else None
    program = load(path.read_text(), arch, binary, file=str(path))
    if kernel is None:
        if len(program.kernels) != 1:
            raise KvcError("KVC0603", f"{path} holds {len(program.kernels)} kernels", hint=", ".join(program.kernels))
        kernel = next(iter(program.kernels))
    specs = [parse_arg(text) for text in args]
    mem, rng = Memory(arch), np.random.default_rng(seed)
    values = [build_arg(spec, mem, rng, f"argument {i}") for i, spec in enumerate(specs)]
    chosen = sample_workgroups(grid, seed, sample) if sample else None
    report = launch(program, kernel, grid, block, values, mem, dynamic_lds, seed, chosen, options)
    outputs = [summarise(spec, values[i], i) for i, spec in enumerate(specs) if spec.fill == "out"]
    return report, outputs


def render(report: LaunchReport, outputs: Sequence[OutputSummary]) -> str:
    """What `kvc sim` prints. Cycles are not predicted: counters only."""
    counters = report.counters
    lines = [
        f"{report.kernel}: {counters.workgroups} workgroups, {counters.waves} waves, {counters.instructions:,} wave"
        f" instructions in {report.seconds:.3f} s" + (" (a sample of the grid)" if report.sampled else "")
    ]
    lines.append("  " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(counters.by_class.items())))
    lines.append(
        f"  global: {counters.global_read_bytes:,} B read, {counters.global_write_bytes:,} B written, about"
        f" {counters.global_transactions_64b:,} lines of 64 B"
    )
    lines.append(f"  LDS: {counters.lds_bytes:,} B, about {counters.lds_conflict_cycles:,} conflict cycles")
    lines.append(
        f"  matrix: {counters.mfma_flops:,} flop; atomics: {counters.atomics:,}; barriers: {counters.barriers:,}"
    )
    lines += [f"  {hazard.code}: {hazard.message}" for hazard in report.hazards]
    lines += [f"  note: {note}" for note in report.notes]
    return "\n".join([*lines, *map(str, outputs)])
