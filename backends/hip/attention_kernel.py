"""Attention forward as one kernel: the scores live in registers, block by block of keys (online softmax).

A wave owns MI queries and computes scores^T = k q^T: a lane then holds one query (a column of the result), and of the
block's keys 4 consecutive ones in each group of registers. That is the operand layout of the second product, output^T
= v^T weights^T, whose column is the query again: weights go from one product to the next without leaving their lane,
and maximum, sum and decay are plain scalars of a lane. (Register layouts: see gemm.py.)

LDS row i of the keys' tile holds the key with bits 2 and 3 of i exchanged. The 8 scores of two register groups then
are of 8 consecutive keys, and the matching 8 values one 16-byte read of the transposed tile of v.

Blocks that a causal mask hides from all rows are not visited, and conditions are evaluated from the block on that the
mask cuts. A row whose keys are all masked shifts by zero, so that its sums are zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kvc.arch import ArchSpec, MatrixShape
from kvc.attention import Attention, causal_reach, masked
from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import STORAGE_TYPE, Val, from_storage, literal, rounded, to_storage
from kvc.backends.hip.gemm import matrix_types, store_results
from kvc.backends.hip.source import File, Knobs, domain_size, needs_wide, operand_buffers
from kvc.backends.hip.tiles import (
    LANES,
    SWIZZLED,
    Block,
    Names,
    Side,
    Tile,
    access_of,
    declare_batch,
    operand_dtype,
    side_scope,
)
from kvc.backends.hip.unit import Kernel, Unit
from kvc.dtypes import BOOL, F32, DType
from kvc.emitter import Candidate, Task, integer
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load
from kvc.patterns import points

FRAGMENT = 8  # 16-bit elements of one LDS read
MI = 32  # queries of a wave
STEP = 2 * FRAGMENT  # depth of one fragment of all lanes
LOG2_E = math.log2(math.e)


def shape_for(arch: ArchSpec, kind: DType) -> MatrixShape | None:
    """The instruction of MI rows that takes four depths a lane: its operands are laid out as its results are."""
    return next((s for s in arch.matrix_for(kind.name) if s.m == MI and s.m * s.k == 4 * LANES), None)


def _padded(extent: int) -> int:
    """Depth of a tile of keys: a power of two of chunks, as the swizzle wants it."""
    return max(STEP, 1 << (extent - 1).bit_length())


def _rows(extent: int) -> int:
    return -(-extent // MI) * MI


def lds_bytes(spec: KernelSpec, pattern: Attention, block_n: int) -> int:
    return 2 * block_n * (_padded(points(spec, pattern.d)) + _rows(points(spec, pattern.e)))


@dataclass(frozen=True)
class _Sizes:
    m: int
    n: int
    d: int
    e: int
    waves: int
    block_n: int

    @property
    def block_m(self) -> int:
        return self.waves * MI

    @property
    def threads(self) -> int:
        return self.waves * LANES


class AttentionKernel:
    """Writes one attention."""

    def __init__(self, task: Task, pattern: Attention, knobs: Knobs) -> None:
        self.task, self.spec, self.pattern = task, task.spec, pattern
        spec, given = task.spec, dict(knobs)
        m, n, d, e = (domain_size(spec, axes) for axes in (pattern.m, pattern.n, pattern.d, pattern.e))
        self.size = _Sizes(m, n, d, e, integer(given["WAVES"]), integer(given["BLOCK_N"]))
        self.kind = operand_dtype(spec, pattern.q)
        shape = shape_for(task.arch, self.kind)
        assert shape is not None
        self.shape = shape
        self.file = File(task, Unit(spec))
        buffers = operand_buffers(spec)
        wide = needs_wide(spec, buffers, domain_size(spec, pattern.scores.axes))
        self.kernel = Kernel(self.file.unit, buffers, wide, (o.name for o in spec.inputs))
        self.kernel.names.taken |= {"i", "j", "r"}
        declare_batch(self.kernel, pattern.batch)
        self.key = self._tile("key", pattern.k, pattern.n, pattern.d)
        self.value = self._tile("value", pattern.v, pattern.e, pattern.n)

    def _tile(self, name: str, expr: Expr, rows: tuple[str, ...], depth: tuple[str, ...]) -> Tile:
        side = Side(name, expr, rows, self.pattern.batch, depth)
        size = self.size
        if name == "key":
            names = Names("BLOCK_N", "k0", "N", "BLOCK_D", "D", "exchanged")
            padded = _padded(size.d)
            block = Block(size.block_n, padded, size.threads, size.n % size.block_n == 0, size.d == padded, names)
        else:
            names = Names("BLOCK_E", "0", "E", "BLOCK_N", "N")
            even = size.n % size.block_n == 0
            block = Block(_rows(size.e), size.block_n, size.threads, size.e % MI == 0, even, names)
        return Tile(self.kernel, side, access_of(self.spec, self.kernel, side, self.kind), self.kind, block, True)

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        writer, size = self.kernel.writer, self.size
        self._constants()
        self._place()
        for tile in (self.key, self.value):
            writer.line(f"alignas(16) __shared__ {tile.element} {tile.small}_tile[{tile.lds_elements()}];")
        self.key.write_load("0")
        self.value.write_load("k0")
        self.key.write_store()
        self.value.write_store()
        self._queries()
        writer.line("Results acc[E_PARTS] = {};")
        writer.line("float query_top = -INFINITY;  // of this query's scores so far, times log2(e)")
        writer.line("float query_total = 0;  // of its weights, of this lane's keys")
        self._main_loop()
        self._epilogue()
        blocks = -(-size.m // size.block_m) * domain_size(self.spec, self.pattern.batch)
        outputs = [o.name for o in self.spec.outputs]
        self.file.add(self.kernel, self.spec.name, (blocks,), size.threads, outputs, "THREADS")
        return self.file.candidate(emitter, schedule, knobs)

    def _constants(self) -> None:
        size, kind, pattern = self.size, self.kernel.index_type, self.pattern
        names = [", ".join(axes) for axes in (pattern.m, pattern.n, pattern.d, pattern.e)]
        self.file.head += [
            f"constexpr {kind} M = {size.m};  // queries: {names[0]}",
            f"constexpr {kind} N = {size.n};  // keys: {names[1]}",
            f"constexpr {kind} D = {size.d};  // of a query and a key: {names[2]}",
            f"constexpr {kind} E = {size.e};  // of a value: {names[3]}",
            f"constexpr int WAVES = {size.waves};",
            f"constexpr int LANES = {LANES};",
            "constexpr int THREADS = WAVES * LANES;",
            f"constexpr int MI = {MI};  // queries of a wave: rows and columns of one matrix instruction",
            "constexpr int BLOCK_M = WAVES * MI;  // queries of a workgroup",
            f"constexpr int BLOCK_N = {size.block_n};  // keys of a step",
            f"constexpr int BLOCK_D = {_padded(size.d)};",
            f"constexpr int BLOCK_E = {_rows(size.e)};",
            "constexpr int TILES_M = (M + BLOCK_M - 1) / BLOCK_M;",
            "constexpr int GROUPS = LANES / MI;  // of lanes that hold different depths",
            f"constexpr int FRAGMENT = {FRAGMENT};  // consecutive depths a lane reads at once",
            "constexpr int CHUNK = FRAGMENT;  // 16 bytes of a tile",
            "constexpr int STEP = GROUPS * FRAGMENT;  // depth of one fragment of all lanes",
            "constexpr int DEPTHS = (D + STEP - 1) / STEP;",
            "constexpr int KEYS = BLOCK_N / MI;",
            "constexpr int E_PARTS = BLOCK_E / MI;",
            "constexpr int RESULTS = MI * MI / LANES;  // a lane and instruction",
            *self.key.constants(),
            *self.value.constants(),
        ]
        self.kernel.helpers.add("swizzled", SWIZZLED)
        self.kernel.helpers.add("exchanged", _EXCHANGED)
        self.kernel.helpers.add("Fragment", matrix_types(self.shape, self.kind))

    def _place(self) -> None:
        kind = self.kernel.index_type
        nth = "blockIdx.x % TILES_M"
        # Rows with the most keys start first.
        tile = f"TILES_M - 1 - {nth}" if self._reach()[0] is not None else nth
        self.kernel.writer.extend(
            [
                "const int thread = threadIdx.x;",
                "const int lane = thread % LANES;",
                f"const {kind} m0 = ({tile}) * BLOCK_M;",
                *([f"const {kind} batch = blockIdx.x / TILES_M;"] if self.pattern.batch else []),
            ]
        )
        self.row = self.kernel.axis("m", self.size.m)
        self.m = self.kernel.axis_text[self.row.name]
        self.kernel.writer.line(f"const {kind} {self.m} = m0 + thread / LANES * MI + lane % MI;  // this lane's query")

    def _reach(self) -> tuple[int | None, tuple[Expr, ...]]:
        """How far a query sees beyond its own position, and the condition that says so."""
        pattern = self.pattern
        if len(pattern.m) == len(pattern.n) == 1:
            for condition in masked(pattern.score).conditions:
                reach = causal_reach(self.kernel.algebra, condition, pattern.m[0], pattern.n[0])
                if reach is not None:
                    return reach, (condition,)
        return None, ()

    # ------------------------------------------------------------ queries
    def _queries(self) -> None:
        """This lane's query in registers, as fragments along its depth; zero beyond it."""
        kernel, writer = self.kernel, self.kernel.writer
        side = Side("q", self.pattern.q, self.pattern.m, self.pattern.batch, self.pattern.d)
        access = access_of(self.spec, kernel, side, self.kind)
        writer.line("Fragment q_part[DEPTHS];")
        packs = access.along == "k" and access.width == FRAGMENT
        with kernel.local_names():
            scope, lanes, row, depth = side_scope(kernel, side, "k", FRAGMENT if packs else 1)
            writer.line("#pragma unroll")
            with writer.block("for (int i = 0; i < DEPTHS; ++i)"):
                writer.line(f"const {kernel.index_type} {row} = {self.m};")
                if packs:
                    self._query_pack(scope, lanes, depth)
                else:
                    self._query_elements(scope, depth)

    def _query_pack(self, scope: Scope, lanes: Any, depth: str) -> None:
        kernel, writer, expr = self.kernel, self.kernel.writer, scope.resolve(self.pattern.q)
        assert isinstance(expr, Load)
        buffer = kernel.buffers[expr.tensor]
        kernel.used[expr.tensor] = None
        start = scope.index(lanes.base(kernel, scope.offset(expr.tensor, expr.index)))
        writer.line(f"const {kernel.index_type} {depth} = i * GROUPS + lane / MI;")
        inside = self._query_inside(f"{depth} < D / FRAGMENT")
        read = f"*reinterpret_cast<const Fragment*>({buffer.pointer} + {start.text})"
        writer.line(f"if ({inside}) q_part[i] = {read};" if inside else f"q_part[i] = {read};")
        if inside:
            writer.line("else q_part[i] = Fragment{};")

    def _query_elements(self, scope: Scope, depth: str) -> None:
        kernel, writer = self.kernel, self.kernel.writer
        writer.line(f"{STORAGE_TYPE[self.kind.name]} item[FRAGMENT];")
        writer.line("#pragma unroll")
        with writer.block("for (int j = 0; j < FRAGMENT; ++j)"):
            writer.line(f"item[j] = {to_storage(literal(0, F32), self.kind).text};")
            writer.line(f"const {kernel.index_type} {depth} = i * STEP + lane / MI * FRAGMENT + j;")
            inside = self._query_inside(f"{depth} < D")
            with writer.block(f"if ({inside or 'true'})"):
                value = scope.value(scope.resolve(self.pattern.q), F32)
                writer.line(f"item[j] = {to_storage(value, self.kind).text};")
        writer.line("__builtin_memcpy(&q_part[i], item, sizeof(Fragment));")

    def _query_inside(self, depth: str) -> str:
        conditions = [] if self.size.m % self.size.block_m == 0 else [f"{self.m} < M"]
        conditions += [] if self.size.d % STEP == 0 else [depth]
        return " && ".join(conditions)

    # ------------------------------------------------------------ the main loop
    def _main_loop(self) -> None:
        writer, kind = self.kernel.writer, self.kernel.index_type
        reach, causal = self._reach()
        last = "N"
        if reach is not None:
            seen = f"m0 + BLOCK_M + {reach}" if reach >= 0 else f"m0 + BLOCK_M - {-reach}"
            writer.line(f"const {kind} last = N < {seen} ? N : {seen};  // no query here sees a key from there on")
            last = "last"
        with writer.block(f"if (0 < {last})"):
            writer.line("load_key(0);")
            writer.line("load_value(0);")
        with writer.block(f"for ({kind} n0 = 0; n0 < {last}; n0 += BLOCK_N)"):
            writer.line("store_key();")
            writer.line("store_value();")
            writer.line("__syncthreads();")
            with writer.block(f"if (n0 + BLOCK_N < {last})"):
                writer.line("load_key(n0 + BLOCK_N);  // the next block is on its way while this one is used")
                writer.line("load_value(n0 + BLOCK_N);")
            self._scores()
            self._softmax(reach, causal)
            self._add_values()
            writer.line("__syncthreads();")

    def _scores(self) -> None:
        writer = self.kernel.writer
        writer.line("Results item[KEYS] = {};  // scores of this query")
        writer.line("#if KVC_HAS_MFMA")
        writer.line("#pragma unroll")
        with writer.block("for (int depth = 0; depth < DEPTHS; ++depth)"):
            writer.line("#pragma unroll")
            with writer.block("for (int j = 0; j < KEYS; ++j)"):
                at = self.key.lds_index("j * MI + lane % MI", "depth * STEP + lane / MI * FRAGMENT")
                writer.line(f"const Fragment part = *reinterpret_cast<const Fragment*>(&key_tile[{at}]);")
                writer.line("#pragma unroll")
                writer.line("for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)")
                writer.line(f"  item[j] = {self.shape.builtin}(")
                writer.line("      part.step[step], q_part[depth].step[step], item[j], 0, 0, 0);")
        writer.line("#else")
        with writer.block("for (int j = 0; j < KEYS; ++j)"), writer.block("for (int depth = 0; depth < D; ++depth)"):
            element = STORAGE_TYPE[self.kind.name]
            writer.line(f"const {element}* mine = reinterpret_cast<const {element}*>(&q_part[depth / STEP]);")
            own = from_storage("mine[depth % FRAGMENT]", self.kind).text
            writer.line(f"const float q_value = __shfl({own}, lane % MI + depth % STEP / FRAGMENT * MI);")
            at = self.key.lds_index("j * MI + result_row(lane, r)", "depth")
            product = f"q_value * {from_storage(f'key_tile[{at}]', self.kind).text}"
            writer.line(f"for (int r = 0; r < RESULTS; ++r) item[j][r] += {product};")
        writer.line("#endif")

    def _softmax(self, reach: int | None, causal: tuple[Expr, ...]) -> None:
        """From scores to weights, and what was summed before scaled down."""
        writer, kernel = self.kernel.writer, self.kernel
        factor = self._score_values(reach, causal)
        writer.line("float block_top = -INFINITY;")
        self._each_score("block_top = fmaxf(block_top, item[j][r]);")
        writer.line("block_top = fmaxf(block_top, __shfl_xor(block_top, MI));")
        writer.line(f"const float new_top = fmaxf(query_top, block_top * {literal(factor, F32).text});")
        writer.line("const float shift = new_top == -INFINITY ? 0.0f : new_top;")
        power = _power(kernel)
        writer.line(f"const float decay = {power}(query_top - shift);")
        writer.line("query_top = new_top;")
        writer.line("float block_total = 0;")
        argument = f"fmaf(item[j][r], {literal(factor, F32).text}, -shift)"
        self._each_score(f"item[j][r] = {power}({argument});", "block_total += item[j][r];")
        writer.line("query_total = query_total * decay + block_total;")
        writer.line("#pragma unroll")
        writer.line("for (int i = 0; i < E_PARTS; ++i)")
        writer.line("  #pragma unroll")
        writer.line("  for (int r = 0; r < RESULTS; ++r) acc[i][r] *= decay;")

    def _each_score(self, *lines: str) -> None:
        writer = self.kernel.writer
        writer.line("#pragma unroll")
        writer.line("for (int j = 0; j < KEYS; ++j)")
        writer.line("  #pragma unroll")
        with writer.block("  for (int r = 0; r < RESULTS; ++r)"):
            writer.extend(list(lines))

    def _score_values(self, reach: int | None, causal: tuple[Expr, ...]) -> float:
        """Apply the score's function and masks; gives the factor (times log2 e) that is left for the exponent."""
        pattern, writer = self.pattern, self.kernel.writer
        form = masked(pattern.score)
        value, factor = form.value, LOG2_E
        while isinstance(value, Call) and value.fn == "mul" and isinstance(value.args[1], Const):
            number = value.args[1].value
            if not (isinstance(number, float | int) and number > 0):
                break
            factor *= float(number)
            value = value.args[0]
        others = tuple(c for c in form.conditions if c not in causal)
        plain = isinstance(value, Load) and value.tensor == pattern.scores.target and pattern.scores.dtype is F32
        uneven = self.size.n % self.size.block_n != 0
        if not plain or others:
            self._score_loop(None if plain else value, (*others, *causal), guarded=True)
        elif reach is not None:
            cut = f"n0 + BLOCK_N > m0 + {reach + 1}" if reach >= -1 else f"n0 + BLOCK_N > m0 - {-reach - 1}"
            with writer.block(f"if ({cut}{' || n0 + BLOCK_N > N' if uneven else ''})"):
                self._score_loop(None, causal, guarded=uneven)
        elif uneven:
            with writer.block("if (n0 + BLOCK_N > N)"):
                self._score_loop(None, (), guarded=True)
        return factor

    def _score_loop(self, value: Expr | None, conditions: tuple[Expr, ...], guarded: bool) -> None:
        """Scores at their points: their function where `value` is given, minus infinity where a condition fails."""
        kernel, writer, pattern = self.kernel, self.kernel.writer, self.pattern
        writer.line("#pragma unroll")
        with (
            kernel.local_names(),
            writer.block("for (int j = 0; j < KEYS; ++j)"),
            writer.block("for (int r = 0; r < RESULTS; ++r)"),
        ):
            column = kernel.axis("n", self.size.n)
            key = "n0 + j * MI + r / FRAGMENT * STEP + lane / MI * FRAGMENT + r % FRAGMENT"
            writer.line(f"const {kernel.index_type} {kernel.axis_text[column.name]} = {key};")
            writer.line("float score_value = -INFINITY;")
            inside = self._score_inside(kernel.axis_text[column.name]) if guarded else ""
            with writer.block(f"if ({inside or 'true'})"):
                point: dict[str, Expr] = kernel.split(self.row, pattern.m) | kernel.split(column, pattern.n)
                if pattern.batch:
                    point |= kernel.split(Axis("batch#"), pattern.batch)
                scope = Scope(kernel, point)
                score = rounded(Val("item[j][r]", F32), pattern.scores.dtype)
                named = score if value is None else scope.name(pattern.scores.target, score)
                scope.remember(Load(pattern.scores.target, scope.index_of(pattern.scores)), named)
                result = named if value is None else scope.value(scope.resolve(value), F32)
                seen = [scope.value(scope.resolve(c), BOOL).text for c in conditions]
                joined = " && ".join(f"({c})" for c in seen)
                writer.line(
                    f"if ({joined}) score_value = {result.text};" if joined else f"score_value = {result.text};"
                )
            writer.line("item[j][r] = score_value;")

    def _score_inside(self, column: str) -> str:
        conditions = [] if self.size.m % self.size.block_m == 0 else [f"{self.m} < M"]
        conditions += [] if self.size.n % self.size.block_n == 0 else [f"{column} < N"]
        return " && ".join(conditions)

    def _add_values(self) -> None:
        """output^T += v^T weights^T, the weights rounded as the spec says."""
        writer, element = self.kernel.writer, STORAGE_TYPE[self.kind.name]
        writer.line("#pragma unroll")
        with writer.block("for (int chunk = 0; chunk < BLOCK_N / STEP; ++chunk)"):
            writer.line(f"{element} block_weights[FRAGMENT];  // of 8 consecutive keys")
            writer.line("#pragma unroll")
            place = "item[chunk / (MI / STEP)][chunk % (MI / STEP) * FRAGMENT + r]"
            stored = to_storage(Val(place, F32), self.kind).text
            writer.line(f"for (int r = 0; r < FRAGMENT; ++r) block_weights[r] = {stored};")
            writer.line("#if KVC_HAS_MFMA")
            writer.line("Fragment weight;")
            writer.line("__builtin_memcpy(&weight, block_weights, sizeof(Fragment));")
            writer.line("#pragma unroll")
            with writer.block("for (int i = 0; i < E_PARTS; ++i)"):
                at = self.value.lds_index("i * MI + lane % MI", "chunk * STEP + lane / MI * FRAGMENT")
                writer.line(f"const Fragment part = *reinterpret_cast<const Fragment*>(&value_tile[{at}]);")
                writer.line("#pragma unroll")
                writer.line("for (int step = 0; step < FRAGMENT / MI_DEPTH; ++step)")
                writer.line(f"  acc[i] = {self.shape.builtin}(")
                writer.line("      part.step[step], weight.step[step], acc[i], 0, 0, 0);")
            writer.line("#else")
            with writer.block("for (int step = 0; step < STEP; ++step)"):
                own = from_storage("block_weights[step % FRAGMENT]", self.kind).text
                writer.line(f"const float weight = __shfl({own}, lane % MI + step / FRAGMENT * MI);")
                at = self.value.lds_index("i * MI + result_row(lane, r)", "chunk * STEP + step")
                product = f"weight * {from_storage(f'value_tile[{at}]', self.kind).text}"
                writer.line("for (int i = 0; i < E_PARTS; ++i)")
                writer.line(f"  for (int r = 0; r < RESULTS; ++r) acc[i][r] += {product};")
            writer.line("#endif")

    # ------------------------------------------------------------ the epilogue
    def _epilogue(self) -> None:
        kernel, writer, pattern, size = self.kernel, self.kernel.writer, self.pattern, self.size
        writer.line("query_total += __shfl_xor(query_total, MI);")
        if size.m % size.block_m:
            writer.line(f"if ({self.m} >= M) return;")
        lane = kernel.axis("e", size.e)
        text = kernel.axis_text[lane.name]
        writer.line("#pragma unroll")
        writer.line("for (int i = 0; i < E_PARTS; ++i)")
        writer.line("  #pragma unroll")
        with writer.block("  for (int r = 0; r < RESULTS; ++r)"):
            writer.line(f"const {kernel.index_type} {text} = i * MI + result_row(lane, r);")
            if size.e % MI:
                writer.line(f"if ({text} >= E) continue;")
            point: dict[str, Expr] = kernel.split(self.row, pattern.m) | kernel.split(lane, pattern.e)
            if pattern.batch:
                point |= kernel.split(Axis("batch#"), pattern.batch)
            scope = Scope(kernel, point)
            for stmt, name in (
                (pattern.total, "query_total"),
                (pattern.top, f"query_top * {literal(1 / LOG2_E, F32).text}"),
            ):
                key = Load(stmt.target, scope.index_of(stmt))
                if any(load.tensor == stmt.target for s in pattern.epilogue for load in s.loads()):
                    scope.remember(key, scope.name(stmt.target, rounded(Val(name, F32, 0), stmt.dtype)))
            result = "acc[i][r] / query_total" if pattern.normalised else "acc[i][r]"
            store_results(scope, pattern.output, Val(result, F32, 0 if pattern.normalised else 100))


_EXCHANGED = """\
// The row of the keys' tile in LDS that holds a key: bits 2 and 3 exchanged.
__device__ __forceinline__ int exchanged(int key) {
  return (key & ~12) | (key & 4) << 1 | (key & 8) >> 1;
}
"""

_POWER = """\
// 2^x for x <= 0: one instruction. Results below 2^-126 may become zero.
__device__ __forceinline__ float power_of_two(float x) {
#if KVC_HAS_MFMA
  return __builtin_amdgcn_exp2f(x);
#else
  return exp2f(x);
#endif
}
"""


def _power(kernel: Kernel) -> str:
    return kernel.helpers.add("power_of_two", _POWER)
