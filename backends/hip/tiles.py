"""Operand tiles of a contraction: global memory -> registers -> LDS.

An operand is an expression over a row (its m or n axes, and the batch) and a depth (the k axes). How it moves follows
from its access: packs of 16 bytes along the depth, packs along the rows, or element by element with its guards and
whatever pointwise work the spec puts in front (implicit-GEMM convolution reads its padded input that way).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import STORAGE_TYPE, literal, to_storage
from kvc.backends.hip.lanes import MAX_PACK_BYTES, Lanes, pack_type
from kvc.backends.hip.source import domain_size
from kvc.backends.hip.unit import Kernel
from kvc.dtypes import DType
from kvc.kernel import Axis, Cast, Expr, KernelSpec, Load, Size, loads


def operand_dtype(spec: KernelSpec, expr: Expr) -> DType:
    """The narrowest dtype that holds every value of an operand exactly: a 16-bit float, or its compute type."""
    match expr:
        case Load(tensor, _, _):
            return spec.dtype_of(tensor)
        case Cast(dtype, _):
            return dtype
    return spec.type_of(expr)


@dataclass(frozen=True)
class Side:
    """One operand of a contraction: "a" (rows are m) or "b" (rows are n)."""

    name: str
    expr: Expr
    rows: tuple[str, ...]
    batch: tuple[str, ...]
    k: tuple[str, ...]


@dataclass(frozen=True)
class Access:
    """How a side moves: `along` "k" or "rows" in packs of `width`, or element by element (width 1), where `along` is
    the direction in which neighbouring threads go."""

    along: str
    width: int


def access_of(spec: KernelSpec, kernel: Kernel, side: Side, tile: DType) -> Access:
    """The widest access that layout, alignment and extents allow."""
    widths = [w for w in (8, 4, 2) if w * tile.bytes <= MAX_PACK_BYTES]
    for along in ("k", "rows"):
        for width in widths:
            if _moves_packs(spec, kernel, side, tile, along, width):
                return Access(along, width)
    return Access(_unit_direction(spec, kernel, side), 1)


def _moves_packs(spec: KernelSpec, kernel: Kernel, side: Side, tile: DType, along: str, width: int) -> bool:
    expr = side.expr
    if not isinstance(expr, Load) or expr.tensor not in kernel.readable or spec.dtype_of(expr.tensor) is not tile:
        return False
    extent = domain_size(spec, side.k if along == "k" else side.rows)
    if extent % width or not extent:
        return False
    with kernel.dry():
        scope, lanes, *_ = side_scope(kernel, side, along, width)
        load = scope.resolve(expr)
        assert isinstance(load, Load)
        return load.other is None and lanes.is_pack(kernel, load.tensor, scope.offset(load.tensor, load.index))


def side_scope(kernel: Kernel, side: Side, along: str, width: int) -> tuple[Scope, Lanes, str, str]:
    """A scope whose point is (batch, row, depth) of a side, its lanes, and the C++ variables of row and depth (counted
    in packs in the direction `along`)."""
    spec = kernel.spec
    rows, depth = domain_size(spec, side.rows), domain_size(spec, side.k)
    lanes = Lanes(kernel.axis("v", width) if width > 1 else None, width)

    def flat(stem: str, extent: int, packed: bool) -> tuple[str, Expr]:
        if packed and lanes.axis is not None:
            axis = kernel.axis(stem, extent // width)
            return kernel.axis_text[axis.name], lanes.flat(axis)
        axis = kernel.axis(stem, extent)
        return kernel.axis_text[axis.name], axis

    row_name, row = flat("row", rows, along == "rows")
    k_name, k = flat("k", depth, along == "k")
    point = kernel.split(row, side.rows) | kernel.split(k, side.k)
    if side.batch:
        batch = Axis("batch#")
        point |= kernel.split(batch, side.batch)
    return Scope(kernel, point), lanes, row_name, k_name


def declare_batch(kernel: Kernel, batch: tuple[str, ...]) -> None:
    """Make the batch index known to the index algebra, under the C++ name `batch`."""
    kernel.names.taken.add("batch")
    kernel.sizes["batch#"] = Size("batch#", domain_size(kernel.spec, batch))
    kernel.axis_text["batch#"] = "batch"


def _unit_direction(spec: KernelSpec, kernel: Kernel, side: Side) -> str:
    """Whether neighbours in memory are neighbours in the depth or in the rows: the direction whose innermost axis runs
    further before it leaves a cache line."""
    best, along = 0.0, "k"
    for load in loads(side.expr):
        if load.tensor not in kernel.readable:
            continue
        offset = kernel.algebra.linear(Scope(kernel, {}).offset(load.tensor, load.index))
        for name, axes in (("k", side.k), ("rows", side.rows)):
            longer = [a for a in axes if spec.extent(a) > 1]
            step = abs(offset.coefficients.get(Axis(longer[-1]), 0)) if longer else 0
            if step and spec.extent(longer[-1]) / step > best:
                best, along = spec.extent(longer[-1]) / step, name
    return along


LANES = 64  # of a wave, as the matrix instructions count them

WAVE_UNIFORM = """\
// A value that all lanes of a wave have in common, moved to a scalar register.
__device__ __forceinline__ int wave_uniform(int value) {
#if KVC_HAS_MFMA
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}
"""


class Tile:
    """Writes the code that moves one side's tile. Constants carry the side's name: A_ROWS x BLOCK_K elements."""

    def __init__(self, kernel: Kernel, side: Side, access: Access, dtype: DType, rows: int, k_major: bool) -> None:
        self.kernel, self.side, self.access, self.dtype = kernel, side, access, dtype
        self.rows = rows  # of the tile
        self.k_major = k_major  # LDS rows are rows of the operand (depth contiguous), else columns
        self.big, self.small = side.name.upper(), side.name
        self.block = "BLOCK_M" if side.name == "a" else "BLOCK_N"
        self.first = "m0" if side.name == "a" else "n0"
        self.limit = "M" if side.name == "a" else "N"

    @property
    def element(self) -> str:
        return STORAGE_TYPE[self.dtype.name]

    @property
    def slot_type(self) -> str:
        """What one load moves."""
        if self.access.width == 1:
            return self.element
        assert isinstance(self.side.expr, Load)
        return pack_type(self.kernel, self.side.expr.tensor, self.access.width)

    def constants(self) -> list[str]:
        width = f" / {self.access.width}" if self.access.width > 1 else ""
        what = f"packs of {self.access.width} along the {'depth' if self.access.along == 'k' else 'rows'}"
        return [
            f"constexpr int {self.big}_SLOTS = {self.block} * BLOCK_K{width};  // "
            f"{what if width else 'elements'} in a tile of {self.big}",
            f"constexpr int {self.big}_LOADS = ({self.big}_SLOTS + THREADS - 1) / THREADS;  // of them a thread",
        ]

    def write_load(self) -> None:
        """`load_a(k0)`: the tile at depth k0 into registers, zero outside the operand."""
        kernel, writer = self.kernel, self.kernel.writer
        writer.line(f"{self.slot_type} {self.small}_stage[{self.big}_LOADS];")
        with kernel.local_names(), writer.block(f"auto load_{self.small} = [&](int k0)", "};"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {self.big}_LOADS; ++i)"):
                writer.line("const int slot = i * THREADS + thread;")
                scope, lanes, *names = side_scope(kernel, self.side, self.access.along, self.access.width)
                self._position(*names)
                with writer.block(f"if ({self._inside(*names)})", "} else {"):
                    value = self._value(scope, lanes)
                    into = f"{self.small}_stage[i]"
                    writer.line(f"{into} = {value};" if self.access.width == 1 else f"{into}.set({value});")
                writer.line(f"  {self.small}_stage[i] = {self._zero()};")
                writer.line("}")

    def _split(self) -> tuple[str, str]:
        """Row and depth of a slot within the tile, in units of the access."""
        if self.access.along == "k":
            per_row = f"(BLOCK_K / {self.access.width})" if self.access.width > 1 else "BLOCK_K"
            return f"slot / {per_row}", f"slot % {per_row}"
        per_k = f"({self.block} / {self.access.width})" if self.access.width > 1 else self.block
        return f"slot % {per_k}", f"slot / {per_k}"

    def _position(self, row: str, k: str) -> None:
        kind, width = self.kernel.index_type, self.access.width
        row_at, k_at = self._split()
        first, k0 = self.first, "k0"
        if width > 1 and self.access.along == "k":
            k0 = f"k0 / {width}"
        elif width > 1:
            first = f"{self.first} / {width}"
        self.kernel.writer.line(f"const {kind} {row} = {first} + {row_at};")
        # Where a wave's lanes go along the rows, all of them have one depth: scalar registers and the scalar ALU.
        if width == 1 and self.access.along == "rows" and self.rows % LANES == 0:
            k_at = f"{self.kernel.helpers.add('wave_uniform', WAVE_UNIFORM)}({k_at})"
        self.kernel.writer.line(f"const {kind} {k} = {k0} + {k_at};")

    def _inside(self, row: str, k: str) -> str:
        width = self.access.width
        per = f" / {width}" if width > 1 else ""
        return " && ".join(
            (
                f"({self.big}_SLOTS % THREADS == 0 || slot < {self.big}_SLOTS)",
                f"{row} < {self.limit}{per if self.access.along == 'rows' else ''}",
                f"{k} < K{per if self.access.along == 'k' else ''}",
            )
        )

    def _value(self, scope: Scope, lanes: Lanes) -> str:
        expr = scope.resolve(self.side.expr)
        if self.access.width == 1:
            return to_storage(scope.value(expr, self.dtype.compute), self.dtype).text
        assert isinstance(expr, Load)
        buffer = self.kernel.buffers[expr.tensor]
        self.kernel.used[expr.tensor] = None
        start = scope.index(lanes.base(self.kernel, scope.offset(expr.tensor, expr.index)))
        return f"*reinterpret_cast<const {self.slot_type}*>({buffer.pointer} + {start.text})"

    def _zero(self) -> str:
        if self.access.width > 1:
            return f"{self.slot_type}{{}}"
        return to_storage(literal(0, self.dtype.compute), self.dtype).text

    def write_store(self) -> None:
        """`store_a()`: the staged tile into LDS."""
        writer, width = self.kernel.writer, self.access.width
        tile, stage = f"{self.small}_tile", f"{self.small}_stage[i]"
        with writer.block(f"auto store_{self.small} = [&]()", "};"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {self.big}_LOADS; ++i)"):
                writer.line("const int slot = i * THREADS + thread;")
                writer.line(f"if ({self.big}_SLOTS % THREADS != 0 && slot >= {self.big}_SLOTS) continue;")
                row, k = self._split()
                writer.line(f"const int row = {row};")
                writer.line(f"const int k = {k};")
                if width == 1:
                    writer.line(f"{tile}[{self.lds_index('row', 'k')}] = {stage};")
                elif self.k_major and self.access.along == "k":
                    at = self.lds_index("row", f"k * {width}")
                    writer.line(f"*reinterpret_cast<{self.slot_type}*>(&{tile}[{at}]) = {stage};")
                elif not self.k_major and self.access.along == "rows":
                    at = self.lds_index(f"row * {width}", "k")
                    writer.line(f"*reinterpret_cast<{self.slot_type}*>(&{tile}[{at}]) = {stage};")
                else:
                    at = self._lane_index(width)
                    writer.line("#pragma unroll")
                    writer.line(f"for (int v = 0; v < {width}; ++v) {tile}[{at}] = {stage}.lane[v];")

    def _lane_index(self, width: int) -> str:
        if self.access.along == "k":
            return self.lds_index("row", f"(k * {width} + v)")
        return self.lds_index(f"(row * {width} + v)", "k")

    def lds_index(self, row: str, k: str) -> str:
        """Where element (row, k) of the tile lies in LDS."""
        return f"{row} * {self.big}_STRIDE + {k}" if self.k_major else f"{k} * {self.big}_STRIDE + {row}"

    def lds_elements(self) -> str:
        return f"{self.block} * {self.big}_STRIDE" if self.k_major else f"BLOCK_K * {self.big}_STRIDE"
