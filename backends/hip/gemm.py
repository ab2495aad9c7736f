"""The tiled contraction kernel: LDS tiles, register prefetch of the next tile, matrix cores or FMA, fused epilogue.

Matrix cores: one instruction multiplies MI_M x MI_K by MI_K x MI_N. Lane l holds row (A) or column (B) l % MI_M and,
within a step, the FRAGMENT consecutive depths that begin at FRAGMENT * (l / MI_M): one 16-byte LDS read. The order in
which depths meet the instruction's own k does not matter, as long as it is the same for A and B. Of the result a lane
holds column l % MI_M and, in register r, row 4 * GROUPS * (r / 4) + 4 * (l / MI_M) + r % 4, GROUPS = 64 / MI_M
(AMD matrix instruction calculator, and the CDNA ISA documents' register layouts).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.arch import ArchSpec, MatrixShape
from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import COMPUTE_TYPE, Val, from_storage, rounded
from kvc.backends.hip.lanes import Lanes, Stores
from kvc.backends.hip.source import (
    File,
    Knobs,
    buffer_of,
    domain_count,
    domain_size,
    known_size,
    needs_wide,
    operand_buffers,
)
from kvc.backends.hip.tiles import LANES, SWIZZLED, Block, Names, Side, Tile, access_of, declare_batch, operand_dtype
from kvc.backends.hip.unit import Buffer, Kernel, Unit
from kvc.dtypes import BF16, F16, F32, DType
from kvc.emitter import Candidate, Knob, Scratch, Task, integer
from kvc.kernel import Axis, Expr, KernelSpec, Load, Stmt
from kvc.packing import Packing
from kvc.patterns import Contraction, batch_is_finest

FRAGMENT_BYTES = 16  # one LDS read a lane
LDS_PAD_BYTES = 16  # between depths of a tile for FMA, so that they start in different banks
GROUP_M = 8  # rows of tiles that are walked together, so that neighbours share operands in L2


@dataclass(frozen=True)
class Problem:
    """What a contraction costs: extents, element types, and how its operands move. `unknown`: which of "batch", "m",
    "n" and "k" are arguments of the kernel; their extents here are typical ones."""

    batch: int
    m: int
    n: int
    k: int
    tile: DType  # element type of both tiles
    accumulator: DType
    a: Side
    b: Side
    unknown: frozenset[str] = frozenset()

    def even(self, part: str, block: int) -> bool:
        """Whether blocks cover an extent without a rest."""
        return part not in self.unknown and getattr(self, part) % block == 0

    @staticmethod
    def of(spec: KernelSpec, pattern: Contraction) -> Problem:
        a = Side("a", pattern.a, pattern.m, pattern.batch, pattern.k)
        b = Side("b", pattern.b, pattern.n, pattern.batch, pattern.k)
        accumulator = pattern.stmt.dtype.compute
        kinds = {operand_dtype(spec, a.expr), operand_dtype(spec, b.expr)}
        # 16-bit tiles only where both operands hold nothing finer; mixed ones meet in the accumulator's type.
        narrow = accumulator is F32 and len(kinds) == 1 and kinds <= {F16, BF16}
        parts = {"batch": pattern.batch, "m": pattern.m, "n": pattern.n, "k": pattern.k}
        batch, m, n, k = (domain_size(spec, axes) for axes in parts.values())
        unknown = frozenset(part for part, axes in parts.items() if known_size(spec, axes) is None)
        return Problem(batch, m, n, k, kinds.pop() if narrow else accumulator, accumulator, a, b, unknown)


@dataclass(frozen=True)
class Tiling:
    """Knob values, and what follows from them. `shape` None: FMA, each thread MICRO_M x MICRO_N results."""

    block_m: int
    block_n: int
    block_k: int
    waves_m: int
    waves_n: int
    shape: MatrixShape | None
    split_k: int = 1  # workgroups that share the depth of one tile
    stages: int = 1  # tiles of an operand in LDS: with two, one is filled while the other is used
    direct: bool = False  # memory to LDS without registers between (two stages, where the GPU and the layout allow it)

    @staticmethod
    def of(knobs: Knobs, arch: ArchSpec, tile: DType) -> Tiling:
        given = dict(knobs)
        m = integer(given["MI_M"])
        shape = next((s for s in arch.matrix_for(tile.name) if s.m == m), None) if m else None
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "WAVES_M", "WAVES_N")
        block_m, block_n, block_k, waves_m, waves_n = (integer(given[name]) for name in names)
        stages, direct = integer(given.get("STAGES", 1)), bool(integer(given.get("DIRECT", 0)))
        return Tiling(block_m, block_n, block_k, waves_m, waves_n, shape, integer(given["SPLIT_K"]), stages, direct)

    @property
    def threads(self) -> int:
        return self.waves_m * self.waves_n * LANES

    def knobs(self) -> tuple[tuple[str, Knob], ...]:
        return (
            ("BLOCK_M", self.block_m), ("BLOCK_N", self.block_n), ("BLOCK_K", self.block_k),
            ("WAVES_M", self.waves_m), ("WAVES_N", self.waves_n), ("MI_M", self.shape.m if self.shape else 0),
            ("SPLIT_K", self.split_k), ("STAGES", self.stages), ("DIRECT", int(self.direct)),
        )  # fmt: skip

    def split_depth(self, k: int) -> int:
        """Depth of one workgroup: whole tiles."""
        tiles = -(-k // self.block_k)
        return -(-tiles // self.split_k) * self.block_k

    def lds_bytes(self, tile: DType) -> int:
        if self.shape is not None:
            return (self.block_m + self.block_n) * self.block_k * tile.bytes * self.stages
        return self.block_k * ((self.block_m + self.block_n) * tile.bytes + 2 * LDS_PAD_BYTES)

    def registers(self, tile: DType, accumulator: DType) -> int:
        """Estimate of 32-bit registers a lane: accumulators, staged tiles, fragments, addresses."""
        words = accumulator.bytes // 4
        results = self.block_m * self.block_n // self.threads * words
        staged = (self.block_m + self.block_n) * self.block_k * tile.bytes // 4 // self.threads * (not self.direct)
        if self.shape is None:
            return results + staged + (self.block_m // 16 + self.block_n // 16) * words + 32
        tiles = self.block_m // self.waves_m // self.shape.m + self.block_n // self.waves_n // self.shape.m
        # Two tiles in LDS let the compiler read ahead of the staged one: fragments of two steps are alive at once.
        ahead = tiles * FRAGMENT_BYTES // 4 if self.stages > 1 and not self.direct else 0
        return results + staged + tiles * FRAGMENT_BYTES // 4 + ahead + 48


class GemmKernel:
    """Writes one tiled contraction."""

    def __init__(self, task: Task, pattern: Contraction, knobs: Knobs, packing: Packing | None = None) -> None:
        self.task, self.packing = task, packing
        self.spec = packing.spec if packing is not None else task.spec
        self.pattern = pattern = packing.pattern if packing is not None else pattern
        self.problem = Problem.of(self.spec, pattern)
        self.tiling = Tiling.of(knobs, task.arch, self.problem.tile)
        self.file = File(task, Unit(self.spec))
        buffers = operand_buffers(self.spec)
        copies = [t for packed in packing.ahead for t in packed.targets] if packing is not None else []
        buffers |= {t: buffer_of(self.spec, t, scratch=t) for t in copies}
        wide = needs_wide(self.spec, buffers, self.problem.m * self.problem.n * self.problem.batch)
        self.partial = partial_buffer(self.file, self.problem, self.tiling.split_k) if self.tiling.split_k > 1 else None
        if self.partial is not None:
            buffers[PARTIAL] = self.partial
        self.kernel = Kernel(self.file.unit, buffers, wide, (*(o.name for o in self.spec.inputs), *copies))
        self.kernel.names.taken |= {"i", "j", "r"}
        declare_batch(self.kernel, pattern.batch)
        self.a, self.b = (self._tile(s) for s in (self.problem.a, self.problem.b))

    def _tile(self, side: Side) -> Tile:
        tile = self.problem.tile
        access = access_of(self.spec, self.kernel, side, tile)
        made = Tile(self.kernel, side, access, tile, self._block(side), self.tiling.shape is not None)
        made.buffers = self.tiling.stages
        return made

    @property
    def tiles(self) -> tuple[Tile, ...]:
        """All tiles of LDS."""
        return (self.a, self.b)

    def _block(self, side: Side) -> Block:
        t, p = self.tiling, self.problem
        rows, part = (t.block_m, "m") if side.name == "a" else (t.block_n, "n")
        names = Names("BLOCK_M", "m0", "M") if side.name == "a" else Names("BLOCK_N", "n0", "N")
        return Block(rows, t.block_k, t.threads, p.even(part, rows), p.even("k", t.block_k), names)

    @property
    def grid(self) -> int:
        """Workgroups."""
        t, p = self.tiling, self.problem
        return -(-p.m // t.block_m) * -(-p.n // t.block_n) * p.batch * t.split_k

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        self._write()
        t, name = self.tiling, self.spec.name
        if self.partial is not None:
            self.file.add(self.kernel, f"{name}_partial", (self.grid,), t.threads, [PARTIAL], "THREADS")
            add_finish(self.file, self.pattern, self.partial)
        else:
            outputs = [o.name for o in self.spec.outputs]
            self.file.add(self.kernel, name, (self.grid,), t.threads, outputs, "THREADS")
        return self.file.candidate(emitter, schedule, knobs)

    def _write(self) -> None:
        """The body of the kernel."""
        self._constants()
        if not self.problem.unknown:
            self._tile_body()
            return
        # As many tiles as arguments say: any grid walks them all.
        kind, total = self.kernel.index_type, "TILES_M * TILES_N" + (" * BATCH" if self.pattern.batch else "")
        writer = self.kernel.writer
        with writer.block(f"for ({kind} work = blockIdx.x; work < {total}; work += gridDim.x)"):
            self._tile_body()

    def _tile_body(self) -> None:
        """What a workgroup does for one tile of results."""
        self._place()
        writer = self.kernel.writer
        for tile in self.tiles:
            for name in self._buffers(tile):
                writer.line(f"alignas(16) __shared__ {tile.element} {name}[{tile.lds_elements()}];")
        for tile in self.tiles:
            if self.tiling.direct:
                tile.write_direct_load()
                continue
            tile.write_load()
            tile.write_store()
        self._accumulators()
        self._main_loop()
        self._epilogue()

    # ------------------------------------------------------------ constants
    def _constants(self) -> None:
        t, p = self.tiling, self.problem
        kind = self.kernel.index_type
        extents = {"M": ("m", self.pattern.m), "N": ("n", self.pattern.n), "K": ("k", self.pattern.k)}
        if p.unknown and self.pattern.batch:
            extents["BATCH"] = ("batch", self.pattern.batch)
        lines = [
            f"constexpr {kind} {name} = {getattr(p, part)};  // {', '.join(axes) or 'no axis'}"
            for name, (part, axes) in extents.items()
            if part not in p.unknown
        ]
        lines += [
            f"constexpr int BLOCK_M = {t.block_m};  // results a workgroup: BLOCK_M x BLOCK_N",
            f"constexpr int BLOCK_N = {t.block_n};",
            f"constexpr int BLOCK_K = {t.block_k};  // depth of a tile in LDS",
        ]
        for name, (part, axes) in extents.items():
            if part in p.unknown:
                self.kernel.writer.line(f"const {kind} {name} = {domain_count(self.kernel, axes)};")
        for name in ("M", "N"):
            tiles = f"TILES_{name} = ({name} + BLOCK_{name} - 1) / BLOCK_{name};"
            if name.lower() in p.unknown:
                self.kernel.writer.line(f"const int {tiles}")
            else:
                lines.append(f"constexpr int {tiles}")
        if t.split_k > 1:
            lines += [
                f"constexpr int SPLIT_K = {t.split_k};  // workgroups that share the depth of one tile",
                f"constexpr {kind} SPLIT_DEPTH = {t.split_depth(p.k)};  // depth of each of them",
                f"constexpr {kind} RESULTS_ALL = {p.batch * p.m * p.n};  // of the whole problem",
            ]
        lines += self._matrix_constants(t.shape) if t.shape is not None else self._fma_constants()
        lines += [*self.a.constants(), *self.b.constants()]
        pad = f"{LDS_PAD_BYTES} / sizeof({self.a.element})"
        for tile in (self.a, self.b):
            if not tile.k_major:
                lines.append(
                    f"constexpr int {tile.big}_STRIDE = {tile.block} + {pad};  // of {tile.big}'s tile, padded"
                )
        if self.a.k_major:
            lines.append(f"constexpr int CHUNK = {FRAGMENT_BYTES // self.problem.tile.bytes};  // 16 bytes of a tile")
            self.kernel.helpers.add("swizzled", SWIZZLED)
        self.file.head += lines

    def _matrix_constants(self, shape: MatrixShape) -> list[str]:
        t, fragment = self.tiling, FRAGMENT_BYTES // self.problem.tile.bytes
        return [
            f"constexpr int WAVES_M = {t.waves_m};  // waves of a workgroup: WAVES_M x WAVES_N",
            f"constexpr int WAVES_N = {t.waves_n};",
            f"constexpr int LANES = {LANES};",
            "constexpr int THREADS = WAVES_M * WAVES_N * LANES;",
            f"constexpr int MI = {shape.m};  // rows and columns of one matrix instruction",
            "constexpr int GROUPS = LANES / MI;  // of lanes that hold different depths",
            f"constexpr int FRAGMENT = {fragment};  // consecutive depths a lane reads at once",
            "constexpr int FRAGMENTS_M = BLOCK_M / (WAVES_M * MI);  // results a wave, in instructions",
            "constexpr int FRAGMENTS_N = BLOCK_N / (WAVES_N * MI);",
            "constexpr int RESULTS = MI * MI / LANES;  // a lane and instruction",
        ]

    def _fma_constants(self) -> list[str]:
        t = self.tiling
        return [
            f"constexpr int THREADS_M = {t.waves_m * 8};  // threads of a workgroup: THREADS_M x THREADS_N",
            f"constexpr int THREADS_N = {t.waves_n * 8};",
            "constexpr int THREADS = THREADS_M * THREADS_N;",
            "constexpr int MICRO_M = BLOCK_M / THREADS_M;  // results a thread: MICRO_M x MICRO_N",
            "constexpr int MICRO_N = BLOCK_N / THREADS_N;",
        ]

    # ------------------------------------------------------------ the body
    def _place(self) -> None:
        """Which tile of which batch this workgroup owns, and where a thread stands in it."""
        kind = self.kernel.index_type
        lines = ["const int thread = threadIdx.x;", *self._owned(kind)]
        if self.tiling.shape is not None:
            lines += [
                "const int lane = thread % LANES;",
                "const int wave_m = thread / LANES / WAVES_N * (BLOCK_M / WAVES_M);  // first row of this wave",
                "const int wave_n = thread / LANES % WAVES_N * (BLOCK_N / WAVES_N);  // and column",
            ]
        else:
            lines += ["const int thread_m = thread / THREADS_N;", "const int thread_n = thread % THREADS_N;"]
        self.kernel.writer.extend(lines)

    def _owned(self, kind: str) -> list[str]:
        """Lines that say which tile a workgroup owns: m0, n0, the batch, its share of the depth."""
        t, p = self.tiling, self.problem
        lines = []
        tile = work = "work" if p.unknown else "blockIdx.x"
        if t.split_k == 1 and "batch" not in p.unknown and batch_is_finest(self.spec, self.pattern):
            lines.append(f"const {kind} batch = {work} % {p.batch};  // whose results lie between each other's")
            tile = f"({work} / {p.batch})"
        if min(-(-p.m // t.block_m), -(-p.n // t.block_n)) > 1 or p.unknown & {"m", "n"}:
            lines += [
                f"const int item = {tile} % (TILES_M * TILES_N);  // GROUP_M rows of tiles at a time",
                "const int first = item / (GROUP_M * TILES_N) * GROUP_M;",
                "const int rest = TILES_M - first < GROUP_M ? TILES_M - first : GROUP_M;",
                f"const {kind} m0 = (first + item % (GROUP_M * TILES_N) % rest) * BLOCK_M;",
                f"const {kind} n0 = item % (GROUP_M * TILES_N) / rest * BLOCK_N;",
            ]
            group = f"constexpr int GROUP_M = {GROUP_M};"
            self.file.head += [group] if group not in self.file.head else []
        else:
            lines += [
                f"const {kind} m0 = {tile} / TILES_N % TILES_M * BLOCK_M;",
                f"const {kind} n0 = {tile} % TILES_N * BLOCK_N;",
            ]
        batches = f" % {self.problem.batch}" if self.tiling.split_k > 1 else ""
        if self.pattern.batch and tile == work:
            lines.append(f"const {kind} batch = {work} / (TILES_M * TILES_N){batches};")
        if self.tiling.split_k > 1:
            lines.append(f"const {kind} split = blockIdx.x / (TILES_M * TILES_N * {self.problem.batch});")
            lines.append(f"const {kind} k_first = split * SPLIT_DEPTH;")
            lines.append(f"const {kind} k_last = K < k_first + SPLIT_DEPTH ? K : k_first + SPLIT_DEPTH;")
        return lines

    def _accumulators(self) -> None:
        writer, kind = self.kernel.writer, COMPUTE_TYPE[self.problem.accumulator.name]
        if self.tiling.shape is None:
            writer.line(f"{kind} acc[MICRO_M][MICRO_N] = {{}};")
            return
        self.kernel.helpers.add("Fragment", matrix_types(self.tiling.shape, self.problem.tile))
        writer.line("Results acc[FRAGMENTS_M][FRAGMENTS_N] = {};")

    def _buffers(self, tile: Tile) -> list[str]:
        """Names of the tile's places in LDS. They are arrays of their own: the compiler then knows that a load into one
        is nothing to wait for before the other is read."""
        one = f"{tile.small}_tile"
        return [one] if self.tiling.stages == 1 else [f"{one}_{n}" for n in range(self.tiling.stages)]

    def _main_loop(self) -> None:
        first, last = ("k_first", "k_last") if self.tiling.split_k > 1 else ("0", "K")
        if self.tiling.stages > 1:
            return self._double_buffered(first, last)
        writer = self.kernel.writer
        for tile in self.tiles:
            writer.line(f"load_{tile.small}({first});")
        with writer.block(f"for ({self.kernel.index_type} k0 = {first}; k0 < {last}; k0 += BLOCK_K)"):
            for tile in self.tiles:
                writer.line(f"store_{tile.small}();")
            writer.line("__syncthreads();")
            with writer.block(f"if (k0 + BLOCK_K < {last})"):
                for n, tile in enumerate(self.tiles):
                    remark = "" if n else "  // the next tile is on its way while this one is used"
                    writer.line(f"load_{tile.small}(k0 + BLOCK_K);{remark}")
            self._products()
            writer.line("__syncthreads();")

    def _double_buffered(self, first: str, last: str) -> None:
        """One barrier a tile: what is filled is not what is used."""
        writer, direct = self.kernel.writer, self.tiling.direct
        near, far = ([self._buffers(tile)[n] for tile in self.tiles] for n in range(2))
        wait = ["wait_for_loads();"] if direct else []
        for tile, place in zip(self.tiles, near, strict=True):
            lines = [f"load_{tile.small}({first}, {place});"] if direct else []
            writer.extend(lines or [f"load_{tile.small}({first});", f"store_{tile.small}({place});"])
        writer.extend([*wait, "__syncthreads();"])
        kind = self.kernel.index_type
        takes = [f"{tile.element}* {tile.small}_{what}" for what in ("tile", "next") for tile in self.tiles]
        with writer.block(f"auto step = [&]({kind} k0, {', '.join(takes)}) __attribute__((always_inline))", "};"):
            with writer.block(f"if (k0 + BLOCK_K < {last})"):
                for tile in self.tiles:
                    writer.line(f"load_{tile.small}(k0 + BLOCK_K{f', {tile.small}_next' if direct else ''});")
            writer.extend(["loads_first();"] if direct else [])
            self._products()
            if not direct:
                with writer.block(f"if (k0 + BLOCK_K < {last})"):
                    writer.extend([f"store_{tile.small}({tile.small}_next);" for tile in self.tiles])
            writer.extend([*wait, "__syncthreads();"])
        with writer.block(f"for ({kind} k0 = {first}; k0 < {last}; k0 += 2 * BLOCK_K)"):
            writer.line(f"step(k0, {', '.join([*near, *far])});")
            writer.line(f"if (k0 + BLOCK_K < {last}) step(k0 + BLOCK_K, {', '.join([*far, *near])});")

    def _products(self) -> None:
        """The products of one tile of the depth."""
        writer = self.kernel.writer
        self._fill()
        if self.tiling.shape is None:
            self._fma_step()
        else:
            writer.line("#if KVC_HAS_MFMA")
            self._matrix_step(self.tiling.shape)
            writer.line("#else")
            self._plain_step()
            writer.line("#endif")
        self._drain()

    def _fill(self) -> None:
        """What comes before the products of a tile."""

    def _drain(self) -> None:
        """What comes after them."""

    def _matrix_step(self, shape: MatrixShape) -> None:
        writer = self.kernel.writer
        writer.line("#pragma unroll")
        with writer.block("for (int k = 0; k < BLOCK_K; k += GROUPS * FRAGMENT)"):
            writer.line("const int depth = k + lane / MI * FRAGMENT;")
            for tile, count, first in ((self.a, "FRAGMENTS_M", "wave_m"), (self.b, "FRAGMENTS_N", "wave_n")):
                self._fragments(tile, count, first)
            self._multiply(shape, "a", "b", "acc")

    def _fragments(self, tile: Tile, count: str, first: str) -> None:
        """A wave's fragments of a tile at `depth`."""
        writer = self.kernel.writer
        at = tile.lds_index(f"({first} + i * MI + lane % MI)", "depth")
        writer.line(f"Fragment {tile.small}_part[{count}];")
        writer.line("#pragma unroll")
        writer.line(f"for (int i = 0; i < {count}; ++i)")
        writer.line(f"  {tile.small}_part[i] = *reinterpret_cast<const Fragment*>(&{tile.small}_tile[{at}]);")

    def _multiply(self, shape: MatrixShape, a: str, b: str, into: str) -> None:
        """The products of all fragments of `a` and `b`, added to `into`."""
        writer = self.kernel.writer
        writer.line("#pragma unroll")
        writer.line("for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)")
        writer.line("  #pragma unroll")
        writer.line("  for (int i = 0; i < FRAGMENTS_M; ++i)")
        writer.line("    #pragma unroll")
        writer.line("    for (int j = 0; j < FRAGMENTS_N; ++j)")
        writer.line(f"      {into}[i][j] = {shape.builtin}(")
        writer.line(f"          {a}_part[i].step[step], {b}_part[j].step[step], {into}[i][j], 0, 0, 0);")

    def _plain_step(self) -> None:
        """The same results in the same lanes without matrix instructions."""
        writer = self.kernel.writer
        kind = COMPUTE_TYPE[self.problem.accumulator.name]
        with writer.block("for (int k = 0; k < BLOCK_K; ++k)"), writer.block("for (int i = 0; i < FRAGMENTS_M; ++i)"):
            writer.line("#pragma unroll")
            with writer.block("for (int r = 0; r < RESULTS; ++r)"):
                at = self.a.lds_index("(wave_m + i * MI + result_row(lane, r))", "k")
                writer.line(f"const {kind} a_value = {from_storage(f'a_tile[{at}]', self.problem.tile).text};")
                with writer.block("for (int j = 0; j < FRAGMENTS_N; ++j)"):
                    at = self.b.lds_index("(wave_n + j * MI + lane % MI)", "k")
                    writer.line(f"acc[i][j][r] += a_value * {from_storage(f'b_tile[{at}]', self.problem.tile).text};")

    def _fma_step(self) -> None:
        writer, kind = self.kernel.writer, COMPUTE_TYPE[self.problem.accumulator.name]
        writer.line("#pragma unroll 4")
        with writer.block("for (int k = 0; k < BLOCK_K; ++k)"):
            for tile, count, at in (
                (self.a, "MICRO_M", "thread_m + i * THREADS_M"), (self.b, "MICRO_N", "thread_n + i * THREADS_N")
            ):  # fmt: skip
                element = from_storage(f"{tile.small}_tile[{tile.lds_index(at, 'k')}]", self.problem.tile)
                writer.line(f"{kind} {tile.small}_part[{count}];")
                writer.line("#pragma unroll")
                writer.line(f"for (int i = 0; i < {count}; ++i) {tile.small}_part[i] = {element.text};")
            writer.line("#pragma unroll")
            writer.line("for (int i = 0; i < MICRO_M; ++i)")
            writer.line("  #pragma unroll")
            writer.line("  for (int j = 0; j < MICRO_N; ++j) acc[i][j] += a_part[i] * b_part[j];")

    # ------------------------------------------------------------ the epilogue
    def _epilogue(self) -> None:
        """Every pointwise statement on the results, in registers, then the stores."""
        kernel, writer, kind = self.kernel, self.kernel.writer, self.kernel.index_type
        row, column = (
            kernel.axis(n, known_size(self.spec, a)) for n, a in (("m", self.pattern.m), ("n", self.pattern.n))
        )
        m, n = kernel.axis_text[row.name], kernel.axis_text[column.name]
        matrix = self.tiling.shape is not None
        counts = ("FRAGMENTS_M", "FRAGMENTS_N") if matrix else ("MICRO_M", "MICRO_N")
        at_n = "wave_n + j * MI + lane % MI" if matrix else "thread_n + j * THREADS_N"
        at_m = "wave_m + i * MI + result_row(lane, r)" if matrix else "thread_m + i * THREADS_M"
        writer.line("#pragma unroll")
        with writer.block(f"for (int j = 0; j < {counts[1]}; ++j)"):
            writer.line(f"const {kind} {n} = n0 + {at_n};")
            if not self.problem.even("n", self.tiling.block_n):
                writer.line(f"if ({n} >= N) continue;")
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {counts[0]}; ++i)"):
                if matrix:
                    writer.line("#pragma unroll")
                    with writer.block("for (int r = 0; r < RESULTS; ++r)"):
                        self._result(f"m0 + {at_m}", m, row, column, "acc[i][j][r]")
                else:
                    self._result(f"m0 + {at_m}", m, row, column, "acc[i][j]")

    def _result(self, at_m: str, m: str, row: Axis, column: Axis, result: str) -> None:
        kernel, pattern = self.kernel, self.pattern
        kernel.writer.line(f"const {kernel.index_type} {m} = {at_m};")
        if not self.problem.even("m", self.tiling.block_m):
            kernel.writer.line(f"if ({m} >= M) continue;")
        if self.partial is not None:
            at = f"{'batch * (M * N) + ' if pattern.batch else ''}{m} * N + {kernel.axis_text[column.name]}"
            kernel.writer.line(f"{self.partial.pointer}[split * RESULTS_ALL + {at}] = {result};")
            return
        point: dict[str, Expr] = kernel.split(row, pattern.m) | kernel.split(column, pattern.n)
        if pattern.batch:
            point |= kernel.split(Axis("batch#"), pattern.batch)
        store_results(Scope(kernel, point), pattern.stmt, Val(result, self.problem.accumulator))


def store_results(scope: Scope, stmt: Stmt, total: Val) -> None:
    """The epilogue at one point: everything that follows from the finished sum, then the outputs."""
    spec = scope.spec
    value = rounded(total, stmt.dtype)
    key = Load(stmt.target, scope.index_of(stmt))
    scope.remember(key, value if value.text == total.text else scope.name(stmt.target, value))
    outputs = [spec.stmt[o.name] for o in spec.outputs]
    stores = Stores(scope, Lanes(None, 1), outputs)
    for s, v in [(s, scope.final(s)) for s in outputs]:
        stores.put(scope, s, v)


# ---------------------------------------------------------------- split-K

PARTIAL = "partial sums"  # key of the scratch buffer among a kernel's buffers; no tensor has a space in its name


def partial_buffer(file: File, problem: Problem, split_k: int) -> Buffer:
    """Scratch for the partial sums: [SPLIT_K, batch, M, N] in the accumulator's type."""
    total = split_k * problem.batch * problem.m * problem.n
    file.workspace.append(Scratch("partial", problem.accumulator.name, total))
    return Buffer("partial", problem.accumulator, (), (), total, "partial")


def add_finish(file: File, pattern: Contraction, partial: Buffer) -> None:
    """The second launch: add up the partial sums in a fixed order and run the epilogue, one thread a result."""
    spec = file.task.spec
    axes = (*pattern.batch, *pattern.m, *pattern.n)
    results = domain_size(spec, axes)
    buffers = operand_buffers(spec) | {PARTIAL: partial}
    kernel = Kernel(file.unit, buffers, needs_wide(spec, buffers, results), (o.name for o in spec.inputs))
    writer, kind = kernel.writer, kernel.index_type
    flat = kernel.axis("i", results)
    start = f"({kind})blockIdx.x" if kernel.wide else "blockIdx.x"
    writer.line(f"const {kind} i = {start} * FINISH_THREADS + threadIdx.x;")
    writer.line("if (i >= RESULTS_ALL) return;")
    kernel.used[PARTIAL] = None
    total = kernel.names.fresh("total")
    writer.line(f"{COMPUTE_TYPE[partial.dtype.name]} {total} = 0;")
    writer.line("#pragma unroll")
    writer.line(f"for (int split = 0; split < SPLIT_K; ++split) {total} += partial[split * RESULTS_ALL + i];")
    store_results(Scope(kernel, kernel.split(flat, axes)), pattern.stmt, Val(total, partial.dtype))
    file.head.append(f"constexpr int FINISH_THREADS = {FINISH_THREADS};")
    outputs = [o.name for o in spec.outputs]
    file.add(kernel, spec.name, (-(-results // FINISH_THREADS),), FINISH_THREADS, outputs, "FINISH_THREADS")


FINISH_THREADS = 256

_MATRIX_TYPES = """\
#if KVC_HAS_MFMA
constexpr int MI_DEPTH = {depth};  // depths a lane gives to one instruction
typedef {operand};
typedef float Results __attribute__((ext_vector_type({results})));
struct alignas(16) Fragment {{
  Operand step[FRAGMENT / MI_DEPTH];
}};
#else
typedef float Results[RESULTS];
#endif

// The row of a lane's r-th result within one instruction; its column is lane % MI.
__device__ __forceinline__ int result_row(int lane, int r) {{
  return r / 4 * (4 * GROUPS) + lane / MI * 4 + r % 4;
}}
"""


def matrix_types(shape: MatrixShape, tile: DType) -> str:
    """Register types of one matrix instruction. The first bfloat16 instructions take their operands as shorts."""
    depth = shape.m * shape.k // LANES
    scalar = {"f32": "float", "f16": "_Float16", "bf16": "short" if shape.builtin.endswith("_1k") else "__bf16"}[
        tile.name
    ]
    operand = f"{scalar} Operand" + (f" __attribute__((ext_vector_type({depth})))" if depth > 1 else "")
    return _MATRIX_TYPES.format(depth=depth, operand=operand, results=shape.m * shape.n // LANES)
