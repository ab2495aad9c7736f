"""Contractions over packed operands: copies in scratch that the main loop reads 16 bytes at a time (kvc.packing), and
fp32 products as six products of bf16 terms, which the matrix cores multiply faster than fp32 itself.

An fp32 number is the sum of three bf16 numbers, so a product is nine products of bf16, each exact in fp32; the three
below 2^-24 of the result are left out, the others are added smallest first. Each tile of the depth gets a fresh
accumulator, which an ordinary addition joins to the running sum, since matrix cores need not round as they add; the
three smallest products, 2^-16 of the result, have one accumulator for all of the depth.

The terms of an infinity, a NaN or a number beyond the range of bf16 are not finite, and neither is any result that they
take part in. A workgroup that finds such a result says so, and a last launch computes its tile again with plain
products. A term below 2^-126 may be flushed to zero: the error is below 2^-126 times the other operand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvc.arch import ArchSpec, MatrixShape
from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.contraction import (
    ContractionEmitter,
    accesses,
    cycles_of,
    moves_directly,
    problem_of,
    tilings_of,
)
from kvc.backends.hip.cxx import from_storage
from kvc.backends.hip.gemm import GemmKernel, Problem, Tiling
from kvc.backends.hip.lanes import Lanes, Stores, for_each_lane
from kvc.backends.hip.source import VERSION, Knobs, buffer_of, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.tiles import LANES, Side, Tile, declare_batch
from kvc.backends.hip.unit import Buffer, Kernel, Unit
from kvc.dtypes import F32, I32
from kvc.emitter import Candidate, Scratch, Space, Support, Task, integer
from kvc.kernel import Axis, Expr, KernelSpec, loads
from kvc.packing import LAUNCH_US, TERMS, Packed, Packing, copies_us, gather_us, pack, products
from kvc.patterns import Contraction

PACK_BYTES = 16
COPY_THREADS = 256
MIN_SPLIT = 64  # of a result's sides and of the depth: below it the terms cost more than they save
MAX_CONFIGURATIONS = 32
SPECIAL = "special tiles"  # key of the flags' buffer: no tensor has a space in its name


@dataclass(frozen=True)
class Way:
    """How a contraction is packed: which sides, and whether as terms."""

    packing: Packing
    split: bool


def narrow_sides(spec: KernelSpec, pattern: Contraction, copies: Sequence[str] = ()) -> str:
    """The operands that do not move in packs of 16 bytes as they lie in memory; `copies` lie in scratch."""
    problem = Problem.of(spec, pattern)
    found = zip("ab", accesses(spec, problem, copies), strict=True)
    return "".join(name for name, access in found if access.width * problem.tile.bytes < PACK_BYTES)


def ways(task: Task) -> list[Way]:
    """The packings that the task allows and that promise to be faster than none, best first."""
    spec = task.spec
    pattern, problem = problem_of(spec)
    if problem.tile.name not in ("f32", "f16", "bf16") or not task.arch.matrix_for(problem.tile.name):
        return []
    plain = _products_us(task.arch, problem, problem.tile.name)
    plain += _gathers_us(task.arch, problem, narrow_sides(spec, pattern))
    found: list[tuple[float, Way]] = []
    for split in (False, True):
        cost, way = _way(task, pattern, problem, split)
        if way is not None and cost < plain:
            found.append((cost, way))
    return [way for _, way in sorted(found, key=lambda pair: pair[0])]


def _way(task: Task, pattern: Contraction, problem: Problem, split: bool) -> tuple[float, Way | None]:
    """Microseconds of a packing by the table's peaks, and the packing; None where it does not apply."""
    spec, arch = task.spec, task.arch
    if split and (
        problem.tile is not F32
        or task.numerics != "strict"
        or min(problem.m, problem.n, problem.k) < MIN_SPLIT
        or not {o.dtype.name for o in spec.inputs if o.name in _read(pattern)} <= {"f32", "f16", "bf16"}
        or not arch.matrix_for("bf16")
    ):
        return math.inf, None
    sides = "ab" if split else narrow_sides(spec, pattern)
    width = PACK_BYTES // (2 if split else problem.tile.bytes)
    packing = pack(spec, pattern, sides, split, width) if sides else "nothing to pack"
    if len(sides) == 1 and (isinstance(packing, str) or _narrow(packing)):
        packing = pack(spec, pattern, "ab", False, width)  # the order of the depth is another for both
    if isinstance(packing, str):
        return math.inf, None
    cost = copies_us(arch, packing)
    if split:
        pairs = len(products(len(packing.a), len(packing.b)))
        cost += pairs * _products_us(arch, problem, "bf16") + LAUNCH_US  # of the launch that repairs
    else:
        cost += _products_us(arch, problem, problem.tile.name)
    return cost, Way(packing, split)


def _narrow(packing: Packing) -> str:
    return narrow_sides(packing.spec, packing.pattern, [t for packed in packing.ahead for t in packed.targets])


def _read(pattern: Contraction) -> set[str]:
    return {load.tensor for e in (pattern.a, pattern.b) for load in loads(e)}


def _products_us(arch: ArchSpec, problem: Problem, kind: str) -> float:
    return 2e-6 * problem.batch * problem.m * problem.n * problem.k / arch.peak(kind)


def _gathers_us(arch: ArchSpec, problem: Problem, sides: str) -> float:
    """Microseconds to load the narrow operands element by element."""
    rows = {"a": (problem.m, problem.n), "b": (problem.n, problem.m)}
    return sum(gather_us(arch, problem.batch, rows[s][0], problem.k, rows[s][1]) for s in sides)


class PackedContractionEmitter:
    """Knobs: those of the contraction, and TERMS, the bf16 terms of an fp32 operand (1: it is copied as it is)."""

    name = "hip.contraction_packed"
    version = VERSION
    schedule = "contraction_packed"

    def supports(self, task: Task) -> Support:
        if not task.spec.is_static:
            return Support(False, "sizes are symbolic")
        plain = ContractionEmitter().supports(task)
        if not plain.ok:
            return plain
        return Support(True) if self.space(task).configurations else Support(False, "its operands are read as they lie")

    def space(self, task: Task) -> Space:
        found: list[tuple[float, Knobs]] = []
        for rank, way in enumerate(ways(task)):
            problem = Problem.of(way.packing.spec, way.packing.pattern)
            terms = max(len(way.packing.a), len(way.packing.b))
            copies = [t for packed in way.packing.ahead for t in packed.targets]
            direct = not way.split and moves_directly(way.packing.spec, problem, task.arch, copies)
            for tiling in tilings_of(problem, task.arch, direct):
                if tiling.shape is None or (way.split and not _holds(tiling, way, task.arch)):
                    continue
                cost = cycles_of(tiling, problem, task.arch)
                if way.split:
                    cost *= 1.0 + 0.25 * (_waves_a_simd(tiling, way, task.arch) < 2)
                found.append((rank * 1e12 + cost, (*tiling.knobs(), ("TERMS", terms if way.split else 1))))
        found.sort(key=lambda pair: pair[0])
        return Space(tuple(knobs for _, knobs in found[:MAX_CONFIGURATIONS]))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        pattern, _ = problem_of(task.spec)
        split = integer(dict(knobs)["TERMS"]) > 1
        way = next(way for way in ways(task) if way.split == split)
        made = SplitKernel if split else PackedKernel
        yield made(task, pattern, knobs, way.packing).candidate(self.name, self.schedule, knobs)


def _terms(way: Way) -> int:
    return len(way.packing.a) + len(way.packing.b)


def _registers(t: Tiling, way: Way) -> int:
    """Estimate of a lane's registers: three accumulators, fragments of every term, staged tiles, addresses."""
    assert t.shape is not None
    results = 3 * t.block_m * t.block_n // t.threads
    rows = len(way.packing.a) * t.block_m // t.waves_m + len(way.packing.b) * t.block_n // t.waves_n
    staged = (len(way.packing.a) * t.block_m + len(way.packing.b) * t.block_n) * t.block_k // 2 // t.threads
    return results + rows // t.shape.m * 4 + staged + 56


def _waves_a_simd(t: Tiling, way: Way, arch: ArchSpec) -> int:
    lds = _terms(way) * t.lds_bytes(Problem.of(way.packing.spec, way.packing.pattern).tile) // 2
    groups = max(arch.lds_bytes // lds, 1)
    return min(arch.register_file // _registers(t, way), groups * t.threads // LANES // arch.simds_per_cu or 1)


def _holds(t: Tiling, way: Way, arch: ArchSpec) -> bool:
    """Whether the tiles of all terms fit into LDS, and everything else into registers."""
    tile = Problem.of(way.packing.spec, way.packing.pattern).tile
    lds = (len(way.packing.a) * t.block_m + len(way.packing.b) * t.block_n) * t.block_k * tile.bytes
    # Deeper tiles let the compiler read fragments so far ahead that registers spill.
    return (
        t.split_k == t.stages == 1 and t.block_k <= 64 and lds <= arch.lds_bytes - LANES and _registers(t, way) <= 240
    )


class PackedKernel(GemmKernel):
    """A tiled contraction behind the launches that copy its operands."""

    def __init__(self, task: Task, pattern: Contraction, knobs: Knobs, packing: Packing) -> None:
        super().__init__(task, pattern, knobs, packing)
        self.packed = packing
        self.file.head.append(f"constexpr int COPY_THREADS = {COPY_THREADS};  // of the launches that copy operands")
        for packed in packing.ahead:
            self._copy(packed)

    def _copy(self, packed: Packed) -> None:
        """One input into scratch: a thread moves 16 bytes of each copy. Where the order changes, neighbouring lanes
        take a few neighbouring packs of neighbouring rows, so that both sides use whole cache lines."""
        spec = self.spec
        stmts = [spec.stmt[t] for t in packed.targets]
        *others, last = packed.axes
        width = PACK_BYTES // stmts[0].dtype.bytes
        chunks, rows = spec.extent(last) // width, domain_size(spec, others)
        buffers = {packed.tensor: buffer_of(spec, packed.tensor)}
        for target in packed.targets:
            buffers[target] = buffer_of(spec, target, scratch=target)
            self.file.workspace.append(Scratch(target, spec.stmt[target].dtype.name, chunks * rows * width))
        wide = needs_wide(spec, buffers, chunks * rows)
        kernel = Kernel(self.file.unit, buffers, wide, [packed.tensor])
        kind, writer = kernel.index_type, kernel.writer
        near = math.gcd(8, chunks) if packed.moved else chunks
        chunk, row = kernel.axis("chunk", chunks), kernel.axis("row", rows)
        at_chunk, at_row = kernel.axis_text[chunk.name], kernel.axis_text[row.name]
        start = f"({kind})blockIdx.x" if kernel.wide else "blockIdx.x"
        across, along = f"thread % {near}", f"thread / {near}"
        if near == 1:
            across, along = f"thread / {rows}", f"thread % {rows}"
        elif near < chunks:
            across, along = f"{across} + thread / {near * rows} * {near}", f"{along} % {rows}"
        writer.extend([
            f"const {kind} thread = {start} * COPY_THREADS + threadIdx.x;",
            f"if (thread >= {chunks * rows}) return;",
            f"const {kind} {at_chunk} = {across};  // of {width} elements along {last}",
            f"const {kind} {at_row} = {along};",
        ])  # fmt: skip
        lanes = Lanes(kernel.axis("v", width), width)
        scope = Scope(kernel, kernel.split(row, tuple(others)) | {last: lanes.flat(chunk)})
        stores = Stores(scope, lanes, stmts)
        stores.declare()

        def body(inner: Scope) -> None:
            for stmt in stmts:
                stores.put(inner, stmt, inner.at(stmt))

        for_each_lane(scope, lanes, body)
        stores.flush()
        blocks = -(-chunks * rows // COPY_THREADS)
        name = f"{self.task.spec.name}_pack_{packed.tensor}"
        self.file.add(kernel, name, (blocks,), COPY_THREADS, list(packed.targets), "COPY_THREADS", ahead=True)


class SplitKernel(PackedKernel):
    """A contraction whose tiles are multiplied term by term, and the launch that repairs tiles with specials."""

    def __init__(self, task: Task, pattern: Contraction, knobs: Knobs, packing: Packing) -> None:
        super().__init__(task, pattern, knobs, packing)
        self.original = pattern
        self.terms = {
            side.name: [self._term(side, n, read) for n, read in enumerate(reads)]
            for side, reads in ((self.problem.a, packing.a), (self.problem.b, packing.b))
        }
        self.blocks = self.grid
        self.file.workspace.append(Scratch("special", "i32", self.blocks))
        self.kernel.buffers[SPECIAL] = self._flags()

    def _flags(self) -> Buffer:
        return Buffer("special", I32, (), (), self.blocks, "special")

    def _term(self, side: Side, number: int, read: Expr) -> Tile:
        tile = self._tile(replace(side, expr=read))
        tile.small = f"{side.name}_{TERMS[number]}"
        return tile

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (*self.terms["a"], *self.terms["b"])

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        self._write()
        outputs = [*(o.name for o in self.spec.outputs), SPECIAL]
        self.file.add(self.kernel, self.spec.name, (self.blocks,), self.tiling.threads, outputs, "THREADS")
        self._repair()
        return self.file.candidate(emitter, schedule, knobs)

    # ------------------------------------------------------------ the main loop
    def _accumulators(self) -> None:
        super()._accumulators()
        self.kernel.writer.line("Results small[FRAGMENTS_M][FRAGMENTS_N] = {};  // the products below 2^-16 of the sum")

    def _fill(self) -> None:
        self.kernel.writer.line("Results part[FRAGMENTS_M][FRAGMENTS_N] = {};  // of this tile of the depth")

    def _drain(self) -> None:
        self._each_result("acc[i][j][r] += part[i][j][r];")

    def _each_result(self, line: str) -> None:
        writer = self.kernel.writer
        for loop in (
            "int i = 0; i < FRAGMENTS_M; ++i",
            "int j = 0; j < FRAGMENTS_N; ++j",
            "int r = 0; r < RESULTS; ++r",
        ):
            writer.line("#pragma unroll")
            writer.line(f"for ({loop})")
        writer.line(f"  {line}")

    def _pairs(self) -> Iterator[tuple[int, int, str]]:
        for i, j in products(len(self.terms["a"]), len(self.terms["b"])):
            yield i, j, "small" if i + j == len(TERMS) - 1 else "part"

    def _matrix_step(self, shape: MatrixShape) -> None:
        writer = self.kernel.writer
        writer.line("#pragma unroll")
        with writer.block("for (int k = 0; k < BLOCK_K; k += GROUPS * FRAGMENT)"):
            writer.line("const int depth = k + lane / MI * FRAGMENT;")
            for side, count, first in (("a", "FRAGMENTS_M", "wave_m"), ("b", "FRAGMENTS_N", "wave_n")):
                for tile in self.terms[side]:
                    self._fragments(tile, count, first)
            for i, j, into in self._pairs():
                self._multiply(shape, self.terms["a"][i].small, self.terms["b"][j].small, into)

    def _plain_step(self) -> None:
        """The same results in the same lanes without matrix instructions."""
        writer, tile = self.kernel.writer, self.problem.tile
        with writer.block("for (int k = 0; k < BLOCK_K; ++k)"), writer.block("for (int i = 0; i < FRAGMENTS_M; ++i)"):
            writer.line("#pragma unroll")
            with writer.block("for (int r = 0; r < RESULTS; ++r)"):
                for a in self.terms["a"]:
                    at = a.lds_index("(wave_m + i * MI + result_row(lane, r))", "k")
                    writer.line(f"const float {a.small}_value = {from_storage(f'{a.small}_tile[{at}]', tile).text};")
                with writer.block("for (int j = 0; j < FRAGMENTS_N; ++j)"):
                    for b in self.terms["b"]:
                        at = b.lds_index("(wave_n + j * MI + lane % MI)", "k")
                        value = from_storage(f"{b.small}_tile[{at}]", tile).text
                        writer.line(f"const float {b.small}_value = {value};")
                    for i, j, into in self._pairs():
                        one, two = self.terms["a"][i].small, self.terms["b"][j].small
                        writer.line(f"{into}[i][j][r] += {one}_value * {two}_value;")

    # ------------------------------------------------------------ specials
    def _epilogue(self) -> None:
        writer = self.kernel.writer
        writer.line("bool finite = true;")
        for loop in ("int i = 0; i < FRAGMENTS_M; ++i", "int j = 0; j < FRAGMENTS_N; ++j"):
            writer.line("#pragma unroll")
            writer.line(f"for ({loop})")
        writer.line("  #pragma unroll")
        with writer.block("  for (int r = 0; r < RESULTS; ++r)"):
            writer.line("acc[i][j][r] += small[i][j][r];")
            writer.line("finite = finite && fabsf(acc[i][j][r]) < INFINITY;")
        writer.extend([
            "__shared__ int wave_special[WAVES_M * WAVES_N];",
            "const int any_special = __any(!finite);",
            "if (lane == 0) wave_special[thread / LANES] = any_special;",
            "__syncthreads();",
        ])  # fmt: skip
        with writer.block("if (thread == 0)"):
            writer.line("int found = 0;")
            writer.line("for (int wave = 0; wave < WAVES_M * WAVES_N; ++wave) found |= wave_special[wave];")
            writer.line("special[blockIdx.x] = found;")
        self.kernel.used[SPECIAL] = None
        super()._epilogue()

    def _repair(self) -> None:
        """The last launch: tiles with a result that is not finite, again with plain products."""
        spec, pattern = self.task.spec, self.original
        buffers = operand_buffers(spec) | {SPECIAL: self._flags()}
        unit = Unit(spec, self.file.unit.helpers, self.file.unit.constants)
        kernel = Kernel(unit, buffers, self.kernel.wide, (o.name for o in spec.inputs))
        declare_batch(kernel, pattern.batch)
        writer, kind = kernel.writer, kernel.index_type
        kernel.used[SPECIAL] = None
        kernel.names.taken |= {"at", "m0", "n0", "item", "first", "rest"}
        row, column = kernel.axis("m", self.problem.m), kernel.axis("n", self.problem.n)
        m, n = kernel.axis_text[row.name], kernel.axis_text[column.name]
        writer.line("if (!special[blockIdx.x]) return;")
        writer.extend(self._owned(kind))
        with writer.block("for (int at = threadIdx.x; at < BLOCK_M * BLOCK_N; at += THREADS)"):
            writer.line(f"const {kind} {m} = m0 + at / BLOCK_N;")
            writer.line(f"const {kind} {n} = n0 + at % BLOCK_N;")
            writer.line(f"if ({m} >= M || {n} >= N) continue;")
            point: dict[str, Expr] = kernel.split(row, pattern.m) | kernel.split(column, pattern.n)
            if pattern.batch:
                point |= kernel.split(Axis("batch#"), pattern.batch)
            scope = Scope(kernel, point)
            outputs = [spec.stmt[o.name] for o in spec.outputs]
            stores = Stores(scope, Lanes(None, 1), outputs)
            for s, value in [(s, scope.final(s)) for s in outputs]:
                stores.put(scope, s, value)
        name = f"{spec.name}_repair"
        outputs_of = [o.name for o in spec.outputs]
        self.file.add(kernel, name, (self.blocks,), self.tiling.threads, outputs_of, "THREADS")


__all__ = ["PackedContractionEmitter"]
