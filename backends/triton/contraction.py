"""Sums of products on the matrix cores: linear layers, matmuls, einsums, convolutions (implicit GEMM).

A program owns a tile of BLOCK_M x BLOCK_N results of one batch entry. The axes of m, n and k are flattened and taken
apart by the index algebra, so a convolution's gather with its padding guard is an ordinary masked load of a tile.
Everything pointwise that follows runs on the tile before it is stored.

Operands keep their storage type where the product is exact in the accumulator: f16, bf16 and i8 tiles go to the matrix
cores as they are, 8-bit floats as bf16 (which holds them exactly), all else in the statement's compute type. Every
product says its precision: "ieee", or in fast numerics, for f32, three bf16 products (AMD) or tf32 (NVIDIA). f64 and
wide integers, for which Triton has no matrix product on every chip, multiply outer products of the tile in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvc.arch import ArchSpec
from kvc.dtypes import BF16, BOOL, F32, I8, I32, DType
from kvc.emitter import Knob, Task
from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load
from kvc.patterns import Contraction, batch_is_finest, match_contraction, vanishing

from .codegen import Physical, Scope, V
from .emitter import RuleEmitter, grid_of, power_of_two
from .pointwise import bounds, close_flat, extent_product, is_wide, points_of, unflatten
from .source import KernelText, Knobs, SourceFile, kernel_name
from .spelling import ATOM, TL

LDS_BYTES_A_CLOCK = 128
MIN_TILE = 16  # smallest side of tl.dot on every target


class ContractionEmitter(RuleEmitter):
    """Knobs: BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M (rows of tiles walked together, for L2), num_warps, num_stages, and on
    AMD waves_per_eu and matrix_instr_nonkdim."""

    schedule = "contraction"

    def refusal(self, task: Task) -> str:
        spec = task.spec
        pattern = match_contraction(spec)
        if isinstance(pattern, str):
            return pattern
        if points_of(spec, pattern.m) <= 1 or points_of(spec, pattern.n) <= 1:
            return "it is a matrix-vector product, which reads each weight once: a row reduction"
        if points_of(spec, (*pattern.batch, *pattern.m, *pattern.n, *pattern.k)) == 0:
            return "it is empty"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = match_contraction(task.spec)
        assert isinstance(pattern, Contraction)
        shape = Shape.of(task.spec, pattern)
        kind = product_type(task.spec, pattern)
        best = best_tile(task, shape, kind)
        sides = lambda points, most: [s for s in (16, 32, 64, 128, 256) if s <= min(power_of_two(points), most)] or [16]  # noqa: E731
        amd = task.arch.vendor == "amd"
        choices: dict[str, list[Knob]] = {
            "BLOCK_M": list(sides(shape.m, 256)),
            "BLOCK_N": list(sides(shape.n, 256)),
            "BLOCK_K": list(sides(shape.k, 128)),
            "num_warps": [1, 2, 4, 8],
            "num_stages": [2] if amd else [2, 3, 4],
        }
        if amd and kind.bits <= 32:
            choices["matrix_instr_nonkdim"] = [16, 32]
        for setting in grid_of(best, choices):
            if fits(task, dict(setting), kind):
                yield setting

    def write(self, file: SourceFile) -> None:
        pattern = match_contraction(file.spec)
        assert isinstance(pattern, Contraction)
        Tile(file, pattern).write()


@dataclass(frozen=True)
class Shape:
    """Extents of the flattened axes."""

    batch: int
    m: int
    n: int
    k: int

    @staticmethod
    def of(spec: KernelSpec, pattern: Contraction) -> Shape:
        return Shape(*(points_of(spec, axes) for axes in (pattern.batch, pattern.m, pattern.n, pattern.k)))


def best_tile(task: Task, shape: Shape, kind: DType) -> dict[str, Knob]:
    """The largest square-ish tile that still gives every compute unit one."""
    nvidia = task.arch.vendor == "nvidia"
    largest = 256 if kind.bits == 16 and _starves_on_lds(task.arch) else 128
    m = max(MIN_TILE, min(largest, power_of_two(shape.m)))
    # Two warp groups of Hopper share a tile of 128 x 256; on CDNA that many accumulators leave one wave a SIMD.
    n = max(MIN_TILE, min(256 if nvidia and kind.bits == 16 else largest, power_of_two(shape.n)))
    if not _on_matrix_cores(kind):
        m, n = min(m, 32), min(n, 32)
    while m * n > 32 * 32 and shape.batch * -(-shape.m // m) * -(-shape.n // n) < task.arch.cu_count:
        if m >= n:
            m //= 2
        else:
            n //= 2
    k = max(MIN_TILE, min(128 * 8 // kind.bits if kind.bits < 32 else 32, power_of_two(shape.k)))
    if not _on_matrix_cores(kind):
        k = min(k, 16)
    warps = 8 if m * n >= 128 * 128 else 4 if m * n >= 64 * 64 else 2 if m * n >= 32 * 32 else 1
    best: dict[str, Knob] = {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "BLOCK_K": k,
        "GROUP_M": 8,
        "num_warps": warps,
        "num_stages": 3 if nvidia and kind.bits == 16 else 2,
    }
    if task.arch.vendor == "amd" and _on_matrix_cores(kind):
        best |= {"waves_per_eu": 0, "matrix_instr_nonkdim": 16}
    return best


def _starves_on_lds(arch: ArchSpec) -> bool:
    """Whether tiles of 128 x 128 leave the matrix cores waiting for LDS: each of its bytes must serve more products
    than there are in a row of such a tile, and LDS is large enough for larger ones."""
    per_clock = arch.peak("bf16") * 1e3 / (arch.cu_count * arch.clock_ghz)  # operations of a compute unit
    return arch.vendor == "amd" and per_clock / LDS_BYTES_A_CLOCK > 16 and arch.lds_bytes >= 128 << 10


def fits(task: Task, chosen: dict[str, Knob], kind: DType) -> bool:
    """LDS for the stages, and at most 128 accumulators a lane."""
    m, n, k = (int(chosen[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    lanes = int(chosen["num_warps"]) * task.arch.wave_size
    if not _on_matrix_cores(kind) and m * n * k > 64 * lanes:
        return m * n <= 32 * 32 and k <= 16 and m * n * k <= 256 * lanes
    staged = (m + n) * k * kind.bytes * max(int(chosen["num_stages"]) - 1, 1)
    return (
        staged <= task.arch.lds_bytes
        and lanes <= task.arch.max_threads
        and m * n <= 128 * lanes * (kind.bytes <= 4)
        and m * n >= lanes
    )


# ---------------------------------------------------------------- types


def storage_type(spec: KernelSpec, expr: Expr) -> DType | None:
    """The narrowest type that holds every value of an operand's expression; None for literals."""
    match expr:
        case Const():
            return None
        case Load(tensor, _, _):
            return spec.dtype_of(tensor)
        case Cast(dtype, _):
            return dtype
        case Call("where", (_, a, b)):
            left, right = storage_type(spec, a), storage_type(spec, b)
            return left if right is None else right if left is None or left is right else spec.type_of(expr)
        case Call("relu" | "neg" | "abs", (a,)):
            return storage_type(spec, a)
    return spec.type_of(expr)


def product_type(spec: KernelSpec, pattern: Contraction) -> DType:
    """The type in which tiles are multiplied: products are exact in the accumulator, or are in its own type."""
    accumulator = pattern.stmt.dtype.compute
    a, b = (storage_type(spec, e) or accumulator for e in (pattern.a, pattern.b))
    if accumulator is F32:
        if a is b and a.name in ("f16", "bf16"):
            return a
        if a.is_float and b.is_float and a.bits == b.bits == 8:
            return BF16
        if {a.bits, b.bits} == {8, 16} and BF16 in (a, b) and a.is_float and b.is_float:
            return BF16
        return F32
    if accumulator is I32 and a is I8 and b is I8:
        return I8
    return accumulator


def _known(points: str) -> int | None:
    """An extent, where it is a number."""
    return int(points) if points.isdigit() else None


def _on_matrix_cores(kind: DType) -> bool:
    return kind.name in ("f32", "f16", "bf16", "i8")


# ---------------------------------------------------------------- the kernel


class Tile:
    """Writes the kernel of one contraction. `spec` and `memory`: where the file's spec was rewritten, the spec to
    write and the tensors that exist in memory when the kernel runs."""

    block_k = "BLOCK_K"  # the constant that says how deep a tile is

    def __init__(
        self,
        file: SourceFile,
        pattern: Contraction,
        spec: KernelSpec | None = None,
        memory: frozenset[str] | None = None,
    ) -> None:
        self.file = file
        self.spec = spec or file.spec
        self.pattern = pattern
        self.shape = Shape.of(self.spec, pattern)
        self.kind = product_type(self.spec, pattern)
        self.accumulator = pattern.stmt.dtype.compute
        memory = frozenset(o.name for o in self.spec.inputs) if memory is None else memory
        self.kernel = KernelText(file, kernel_name(self.spec.name), self.spec, memory)
        self.scope = Scope(self.kernel)
        self.scope.wide = is_wide(self.spec, pattern.stmt.axes)
        self.scope.shape = ("BLOCK_M", "BLOCK_N")
        self.m, self.n = self.kernel.fresh_axis("row"), self.kernel.fresh_axis("column")

    def write(self) -> None:
        whole = self.scope
        self.extent = {
            part: self._extent(part, axes)
            for part, axes in (
                ("batch", self.pattern.batch), ("m", self.pattern.m), ("n", self.pattern.n), ("k", self.pattern.k)
            )
        }  # fmt: skip
        self._open_tile()
        scope = self.scope
        acc = self.kernel.fresh("acc")
        scope.emit(f"{acc} = {scope.full(0, self.accumulator)}")
        self._main_loop(acc)
        self._epilogue(acc)
        close_flat(whole, scope)
        tiles = -(-self.shape.m // self.file.constant("BLOCK_M")) * -(-self.shape.n // self.file.constant("BLOCK_N"))
        self.file.add(self.kernel, self.shape.batch * tiles)

    def _main_loop(self, acc: str) -> None:
        """Add the products of all tiles along k to the accumulator."""
        self._loop_over_k(self.scope, acc, f"range(0, {self._depth()}, {self.block_k})")

    def _depth(self) -> str:
        """Points of the depth; none in batch entries whose products are all zero."""
        condition = vanishing(self.spec, self.pattern)
        if condition is None:
            return str(self.extent["k"])
        name = self.kernel.fresh("depth")
        needed = self.scope.to(self.scope.value(condition), BOOL)
        self.scope.emit(f"{name} = tl.where({needed.text}, {self.extent['k']}, 0)")
        return name

    def _extent(self, part: str, axes: Sequence[str]) -> str:
        """The points of flattened axes: a number, or a local where one of them is symbolic."""
        if all(self.spec.size[a].size is not None for a in axes):
            return str(points_of(self.spec, axes))
        name = self.kernel.fresh(f"{part}_points")
        self.scope.emit(f"{name} = {self.scope.index(extent_product(axes)).text}")
        return name

    def _tiles(self, part: str, block: str) -> None:
        points = self.extent[part]
        kind = ": tl.constexpr" if points.isdigit() else ""
        self.scope.emit(f"tiles_{part}{kind} = ({points} + {block} - 1) // {block}")

    def _walk_tiles(self, program: str) -> None:
        """The rest of the kernel stands in a loop over tiles: as many as arguments say, and any grid covers them."""
        fresh, batch = self.kernel.fresh, self.extent["batch"]
        count, walk = fresh("tiles"), fresh("tile")
        self.scope.emit(f"{count} = tiles_m * tiles_n" + (f" * {batch}" if batch != "1" else ""))
        inner = self.scope.child()
        inner.emit(f"@{walk} in range(tl.program_id(0).to(tl.int64), {count}, tl.num_programs(0)):")
        inner.emit(f"{program} = {walk}")
        self.scope = inner

    def _loop_over_k(self, scope: Scope, acc: str, steps: str) -> None:
        start = self.kernel.fresh("start")
        loop = scope.child()
        left = self._operand(loop, self.pattern.a, self.m, start, "a")
        right = self._operand(loop, self.pattern.b, self.n, start, "b")
        loop.emit(self._product(acc, left, right))
        scope.close(f"for {start} in {steps}:", loop)

    def _open_tile(self) -> None:
        """Tiles in groups of GROUP_M rows, so that neighbours share operands in L2; batch entries outermost."""
        fresh = self.kernel.fresh
        program, tile_m, tile_n = fresh("program"), fresh("tile_m"), fresh("tile_n")
        self.kernel.names |= {"tiles_m", "tiles_n", "group", "height"}
        walked = not all(text.isdigit() for part, text in self.extent.items() if part != "k")
        if not walked:
            self.scope.emit(f"{program} = tl.program_id(0)")
        self._tiles("m", "BLOCK_M")
        self._tiles("n", "BLOCK_N")
        if walked:
            self._walk_tiles(program)
        scope = self.scope
        if self.extent["batch"] != "1":
            self._open_batch(program)
        scope.emit(f"group = {program} // (GROUP_M * tiles_n) * GROUP_M")
        scope.emit("height = tl.minimum(tiles_m - group, GROUP_M)")
        scope.emit(f"{tile_m} = group + {program} % (GROUP_M * tiles_n) % height")
        scope.emit(f"{tile_n} = {program} % (GROUP_M * tiles_n) // height")
        for name, tile, points, axes, block, lane in (
            (self.m, tile_m, self.extent["m"], self.pattern.m, "BLOCK_M", "[:, None]"),
            (self.n, tile_n, self.extent["n"], self.pattern.n, "BLOCK_N", "[None, :]"),
        ):
            cast = ".to(tl.int64)" if scope.wide else ""
            scope.emit(f"{name} = {tile}{cast} * {block} + tl.arange(0, {block}){lane}")
            mask = bounds(scope, name, points, self._divides(block, points), block)
            axis = scope.bind(name, _known(points), Physical(name, mask=mask, spans=block, i64=scope.wide))
            scope.place(unflatten(self.spec, axes, axis))

    def _divides(self, block: str, points: str) -> bool:
        """Whether a block divides an extent, as far as that is known."""
        return points.isdigit() and int(points) % self.file.constant(block) == 0

    def _open_batch(self, program: str) -> None:
        scope = self.scope
        batch = self.kernel.fresh_axis("batch")
        cast = ".to(tl.int64)" if scope.wide else ""
        if batch_is_finest(self.spec, self.pattern):
            scope.emit(f"{batch} = {program}{cast} % {self.extent['batch']}")
            scope.emit(f"{program} = {program} // {self.extent['batch']}")
        else:
            scope.emit(f"{batch} = {program}{cast} // (tiles_m * tiles_n)")
            scope.emit(f"{program} = {program} % (tiles_m * tiles_n)")
        axis = scope.bind(batch, _known(self.extent["batch"]), Physical(batch, i64=scope.wide))
        scope.place(unflatten(self.spec, self.pattern.batch, axis))

    # ------------------------------------------------------------ operands
    def _operand(self, loop: Scope, expr: Expr, side: str, start: str, stem: str) -> str:
        """A tile of one operand in the product's type: [BLOCK_M, BLOCK_K] or [BLOCK_K, BLOCK_N]; zero beyond k."""
        place, depth = self._place_depth(loop, side, start)
        return self._tile_in(place, expr, side, depth, self.kind, stem)

    def _place_depth(self, loop: Scope, side: str, start: str) -> tuple[Scope, str]:
        """A scope in which the axes of k run along a tile's depth, and the physical axis that they run along."""
        place = loop.child(inline=True)
        depth = self.kernel.fresh_axis("k_a" if side == self.m else "k_b")
        block = self.block_k
        lane = "[None, :]" if side == self.m else "[:, None]"
        cast = ".to(tl.int64)" if loop.wide else ""
        place.emit(f"{depth} = {start}{cast} + tl.arange(0, {block}){lane}")
        points = self.extent["k"]
        mask = bounds(place, depth, points, self._divides(block, points), block)
        axis = place.bind(depth, _known(points), Physical(depth, mask=mask, spans=block, i64=loop.wide))
        place.place(unflatten(self.spec, self.pattern.k, axis))
        place.shape = ("BLOCK_M", block) if side == self.m else (block, "BLOCK_N")
        return place, depth

    def _tile_in(self, place: Scope, expr: Expr, side: str, depth: str, kind: DType, stem: str) -> str:
        """The tile of an operand's expression in a type, in a local."""
        mask = place.binding(depth).mask
        value = self._tile_value(place, expr)
        if not (self._is_zero_outside(place, expr, depth) or not mask):
            zero = "0.0" if kind.is_float else "0"
            value = V(f"tl.where({mask}, {value.text}, {zero})", ATOM, value.type, value.axes | {depth})
        if value.type is not kind:
            value = V(f"{value.at(ATOM)}.to({TL[kind.name]})", ATOM, kind, value.axes)
        if not {side, depth} <= value.axes:
            value = V(place.broadcast(value), ATOM, kind, value.axes)
        return place._named(value, stem).text

    def _tile_value(self, place: Scope, expr: Expr) -> V:
        """The operand; a plain load stays in its storage type."""
        match expr:
            case Load(tensor, index, other) if tensor in self.kernel.memory:
                axes = place.physical_axes(index)
                home = place.home(axes)
                return home._named(
                    V(place.access(tensor, index, other, home), 0, self.spec.dtype_of(tensor), axes), tensor
                )
        return place.strong(place.value(expr), self.spec.type_of(expr))

    def _is_zero_outside(self, place: Scope, expr: Expr, depth: str) -> bool:
        match expr:
            case Load(tensor, index, other) if tensor in self.kernel.memory:
                zero = other is None or (isinstance(other, Const) and other.value == 0)
                return zero and depth in place.physical_axes(index)
        return False

    def _product(self, acc: str, a: str, b: str) -> str:
        if not _on_matrix_cores(self.kind):
            return f"{acc} += tl.sum({a}[:, :, None] * {b}[None, :, :], axis=1)"
        precision = "ieee"
        if self.kind is F32 and self.file.task.numerics == "fast":
            precision = "bf16x3" if self.file.task.arch.vendor == "amd" else "tf32"
        options = f', input_precision="{precision}"'
        if self.kind is I8:
            options += ", out_dtype=tl.int32"
        return f"{acc} = tl.dot({a}, {b}, {acc}{options})"

    # ------------------------------------------------------------ results
    def _epilogue(self, acc: str) -> None:
        scope, stmt = self.scope, self.pattern.stmt
        index = tuple(Axis(a) for a in stmt.axes)
        value = V(acc, ATOM, self.accumulator, frozenset({self.m, self.n}))
        key = scope.key(stmt.target, index)
        if scope.is_read(stmt.target) and stmt.dtype is not self.accumulator:
            scope.keep(key, stmt.target, scope.round(value, stmt.dtype))
        else:
            scope.memo[key] = value
        outputs = {o.name for o in self.spec.outputs}
        for s in (stmt, *self.pattern.epilogue):
            if s.target in outputs:
                result = scope.result(s)
                if result.literal is not None or not {self.m, self.n} <= result.axes:
                    result = V(scope.broadcast(result), ATOM, result.type, result.axes)
                scope.store(s.target, tuple(Axis(a) for a in s.axes), result)
