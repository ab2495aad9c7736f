"""Runs a launch in the second tier, or says why the NumPy tier has to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from kvc.simulator.abi import KernelInfo
from kvc.simulator.machine import SimOptions
from kvc.simulator.memory import Buffer, Memory
from kvc.simulator.native.build import Unavailable, library
from kvc.simulator.native.encode import Encoder
from kvc.simulator.native.records import DPP, INS, OPS, SET_WORDS
from kvc.simulator.program import Program
from kvc.simulator.state import LANES, N_SCALAR

_MOST_WAVES = 16  # of a workgroup: 1,024 threads
_NOT_MARKED = 1 << 30  # `dirty_low` of an epoch without LDS accesses
_FINDINGS = {
    11: "an access outside of the buffers",
    12: "a misaligned access",
    13: "a value never written",
    14: "a missing wait",
    15: "an LDS race",
    16: "a barrier that not all waves reach",
    17: "an endless loop",
    18: "a jump to no code",
}

_BUFFER = np.dtype(
    [("start", "u8"), ("size", "u8"), ("data", "u8"), ("written", "u8"), ("kept", "u8"), ("kept_written", "u8"),
     ("padded", "u8"), ("read_only", "i4"), ("saved", "i4")]
)  # fmt: skip
_MATRIX = np.dtype(
    [("numbers", "i4", 8), ("left_index", "u8"), ("right_index", "u8"), ("left_table", "u8"), ("right_table", "u8")]
)
_STATS = np.dtype(
    [("bytes", "u8"), ("more_bytes", "u8")]
    + [(name, "f8") for name in ("lines", "line_samples", "conflicts", "conflict_samples")]
    + [("executions", "u8")]
)
_POINTERS = ("code", "sources", "source_bits", "target_list", "constants", "dpp", "matrices", "buffers", "stats",
             "counts", "waves", "lds", "lds_valid", "lds_writers", "lds_readers", "lds_flights")  # fmt: skip
_NUMBERS = ("code_count", "buffer_count", "vector_rows", "accumulators_at", "waves_per_group", "lds_bytes", "granule",
            "banks", "check_races", "check_waits", "check_unwritten", "last_buffer", "where", "dirty_low", "dirty_high",
            "seed", "flights", "found", "entry")  # fmt: skip


class _Machine(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_void_p) for name in _POINTERS]
        + [("limit", ctypes.c_uint64)]
        + [(name, ctypes.c_int32) for name in _NUMBERS]
    )


@dataclass(frozen=True)
class Start:
    """What waves begin with: scalar registers [W, 128], v0 [W, 64], EXEC [W], the set of registers never written."""

    scalars: np.ndarray
    ids: np.ndarray
    exec: np.ndarray
    stale: int


@dataclass(frozen=True)
class Task:
    """A launch: `chunks` gives the starting states of some workgroups at a time."""

    kernel: KernelInfo
    memory: Memory
    options: SimOptions
    waves_per_group: int
    lds_bytes: int
    lds_banks: int
    seed: int
    chunks: Callable[[], Iterable[Start]]


class Native:
    """The records of one program, and why it is not run in this tier (`refused`, "" while it may be)."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.library = library()
        self.encoded = Encoder(program).encode()
        self.refused = ""
        self.matrices = np.zeros(max(len(self.encoded.matrices), 1), _MATRIX)
        for row, form in zip(self.matrices, self.encoded.matrices, strict=False):
            row["numbers"] = form.numbers
            for side in ("left", "right"):
                table = getattr(form, f"{side}_table")
                row[f"{side}_index"] = getattr(form, f"{side}_index").ctypes.data
                row[f"{side}_table"] = 0 if table is None else table.ctypes.data
        for which, kind in enumerate((INS, _BUFFER, _MATRIX, DPP, _STATS)):
            assert self.library.kvc_sizes(which) == kind.itemsize, kind
        assert self.library.kvc_sizes(5) == ctypes.sizeof(_Machine)

    def run(self, task: Task) -> str:
        """Run a launch: "" when it is done, else why not, with memory as it was."""
        if self.refused:
            return self.refused
        return _Run(self, task).run()


class _Run:
    """One launch: the arrays that the machine works on live here."""

    def __init__(self, native: Native, task: Task) -> None:
        self.native, self.task = native, task
        encoded, registers = native.encoded, native.program.registers
        rows = max(registers.vgprs, 1) + registers.agprs
        count, lds = task.waves_per_group, max(task.lds_bytes, 1) + 64
        self.stats = np.zeros(len(encoded.code), _STATS)
        self.counts = np.zeros(len(encoded.code), np.uint64)
        self.vectors = np.zeros((2, count, rows * LANES + 16), np.uint32)
        self.waves = np.zeros((count, native.library.kvc_wave_bytes() // 8), np.uint64)
        for i in range(count):
            self.waves[i, 0], self.waves[i, 1] = (_aligned(self.vectors[side, i]) for side in (0, 1))
        self.lds = np.zeros((2, lds), np.uint8)
        self.marks = np.zeros((3, lds), np.uint32)
        self.buffers, self.kept = _buffer_table(task.memory)
        arrays: dict[str, Any] = {
            "code": encoded.code, "sources": encoded.sources, "source_bits": encoded.source_bits,
            "target_list": encoded.targets, "constants": encoded.constants, "dpp": encoded.dpp,
            "matrices": native.matrices, "buffers": self.buffers, "stats": self.stats, "counts": self.counts,
            "waves": self.waves, "lds": self.lds[0], "lds_valid": self.lds[1], "lds_writers": self.marks[0],
            "lds_readers": self.marks[1], "lds_flights": self.marks[2],
        }  # fmt: skip
        options = task.options
        self.machine = _Machine(
            **{name: array.ctypes.data for name, array in arrays.items()}, limit=options.max_instructions,
            code_count=len(encoded.code), buffer_count=len(self.buffers), vector_rows=rows,
            accumulators_at=max(registers.vgprs, 1), waves_per_group=count, lds_bytes=task.lds_bytes,
            granule=native.program.lds_granule, banks=task.lds_banks, check_races=options.race and count > 1,
            check_waits=options.waits, check_unwritten=options.uninit, dirty_low=_NOT_MARKED, seed=task.seed % count,
            entry=task.kernel.entry,
        )  # fmt: skip

    def run(self) -> str:
        call, machine = self.native.library.kvc_run, ctypes.byref(self.machine)
        each = self.task.waves_per_group
        for start in self.task.chunks():
            stale = np.array([start.stale >> 64 * i & 0xFFFF_FFFF_FFFF_FFFF for i in range(SET_WORDS)], np.uint64)
            scalars, ids, exec_ = (np.ascontiguousarray(array) for array in (start.scalars, start.ids, start.exec))
            for at in range(0, len(exec_), each):
                code = call(
                    machine, ctypes.c_void_p(scalars.ctypes.data + at * scalars.strides[0]),
                    ctypes.c_void_p(ids.ctypes.data + at * ids.strides[0]),
                    ctypes.c_void_p(exec_.ctypes.data + at * 8), ctypes.c_void_p(stale.ctypes.data),
                )  # fmt: skip
                if code:
                    self._put_back()
                    return self._why(code)
        self._count()
        return ""

    def _why(self, code: int) -> str:
        where = self.machine.where
        text = self.native.program.assembly.code[where].text if 0 <= where < len(self.stats) else ""
        if code in _FINDINGS:
            self.native.refused = f"the compiled tier stopped at what may be {_FINDINGS[code]} (`{text}`)"
        else:
            self.native.refused = f"no compiled form of {self.native.encoded.reasons.get(where, f'`{text}`')}"
        return self.native.refused

    def _put_back(self) -> None:
        for buffer, row, (data, written) in zip(self.task.memory.buffers, self.buffers, self.kept, strict=True):
            if row["saved"] and data is not None:
                buffer.bytes[:] = data
                if buffer.written is not None:
                    buffer.written[:] = written

    def _count(self) -> None:
        """Hand what was counted to the blocks and steps of the program, as the NumPy tier does."""
        program = self.native.program
        for pc in np.flatnonzero(self.counts).tolist():
            block = program.block(pc)
            block.waves += int(self.counts[pc])
            for step in block.steps:
                row = self.stats[step.ins.index]
                kind = int(self.native.encoded.code[step.ins.index]["op"])
                key = _BYTES.get(kind)
                if key is None:
                    continue
                step.count(key, int(row["bytes"]))
                if kind == OPS["load_lds"]:
                    step.count("lds_bytes", int(row["more_bytes"]))
                for name in ("line", "conflict"):
                    if row[f"{name}_samples"]:
                        step.count(f"{name}s", float(row[f"{name}s"]))
                        step.count(f"{name}_samples", float(row[f"{name}_samples"]))


_BYTES = {
    OPS["load"]: "read", OPS["store"]: "written", OPS["smem"]: "read", OPS["lds_read"]: "lds_bytes",
    OPS["lds_write"]: "lds_bytes", OPS["load_lds"]: "read",
}  # fmt: skip


def _aligned(row: np.ndarray) -> int:
    return (int(row.ctypes.data) + 63) // 64 * 64


def _buffer_table(memory: Memory) -> tuple[np.ndarray, list[tuple[np.ndarray | None, np.ndarray | None]]]:
    """The allocations as the machine sees them, and room to keep their contents when they are first written."""
    table = np.zeros(len(memory.buffers), _BUFFER)
    kept: list[tuple[np.ndarray | None, np.ndarray | None]] = []
    for row, buffer in zip(table, memory.buffers, strict=True):
        row["start"], row["size"], row["padded"] = buffer.addr, buffer.nbytes, len(buffer.bytes)
        row["data"], row["read_only"] = buffer.bytes.ctypes.data, buffer.read_only
        if buffer.written is not None:
            row["written"] = buffer.written.ctypes.data
        kept.append(_room(buffer))
        for name, array in zip(("kept", "kept_written"), kept[-1], strict=True):
            row[name] = 0 if array is None else array.ctypes.data
    return table, kept


def _room(buffer: Buffer) -> tuple[np.ndarray | None, np.ndarray | None]:
    if buffer.read_only:
        return None, None
    return np.empty_like(buffer.bytes), None if buffer.written is None else np.empty_like(buffer.written)


def attempt(program: Program, task: Task) -> str:
    """Run a launch in the second tier: "" when it is done, else why not, with memory as it was."""
    if task.waves_per_group > _MOST_WAVES:
        return f"{task.waves_per_group} waves in a workgroup"
    if program.native is None:
        try:
            program.native = Native(program)
        except Unavailable as problem:
            return str(problem)
    outcome: str = program.native.run(task)
    return outcome


assert N_SCALAR == 128
