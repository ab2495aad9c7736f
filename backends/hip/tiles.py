"""Operand tiles of a contraction: global memory -> registers -> LDS.

An operand is an expression over a row (its m or n axes, and the batch) and a depth (the k axes). How it moves follows
from its access: packs of 16 bytes along the depth, packs along the rows, or element by element with its guards and
whatever pointwise work the spec puts in front (implicit-GEMM convolution reads its padded input that way).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvc.backends.hip.codegen import Scope
from kvc.backends.hip.cxx import STORAGE_TYPE, literal, to_storage
from kvc.backends.hip.lanes import MAX_PACK_BYTES, Lanes, pack_type
from kvc.backends.hip.source import PACK, known_divisor, known_size
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
    extent = known_divisor(spec, side.k if along == "k" else side.rows)
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
    rows, depth = known_size(spec, side.rows), known_size(spec, side.k)
    lanes = Lanes(kernel.axis("v", width) if width > 1 else None, width)

    def flat(stem: str, extent: int | None, packed: bool) -> tuple[str, Expr]:
        if packed and lanes.axis is not None:
            axis = kernel.axis(stem, extent // width if extent is not None else None)
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
    size = known_size(kernel.spec, batch)
    kernel.sizes["batch#"] = Size("batch#", size) if size is not None else Size("batch#", None, 0, 2**62)
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


SWIZZLED = """\
// Where (row, depth) of a tile lies. Chunks of 16 bytes change places so that neither a wave's reads (one chunk of
// neighbouring rows) nor its transposing writes (rows some apart) meet in a bank.
template <int DEPTH>
__device__ __forceinline__ int swizzled(int row, int depth) {
  constexpr int ROW_CHUNKS = DEPTH / CHUNK;
  constexpr int TURNS = ROW_CHUNKS < 8 ? ROW_CHUNKS : 8;
  const int far = ROW_CHUNKS < 8 ? (row & 8) >> 1 | (row & 16) >> 3 : (row >> 3 & 3) << 1;
  const int turn = (row / (8 / TURNS) & (TURNS - 1)) ^ far;
  return ((row * ROW_CHUNKS + depth / CHUNK) ^ turn) * CHUNK + depth % CHUNK;
}
"""
CHUNK_BYTES = 16

DIRECT = """\
// Which chunk of its row a place of LDS holds: `swizzled` read backwards. Rows have at least 8 chunks.
template <int DEPTH>
__device__ __forceinline__ int chunk_at(int place) {
  constexpr int ROW_CHUNKS = DEPTH / CHUNK;
  const int row = place / ROW_CHUNKS;
  return place % ROW_CHUNKS ^ ((row & 7) ^ (row >> 3 & 3) << 1);
}

#if KVC_HAS_MFMA
// 16 bytes a lane from memory straight into LDS: the lanes of a wave fill neighbouring chunks from `to` on.
__device__ __forceinline__ void load_to_lds(const void* from, void* to) {
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)from,
                                   (__attribute__((address_space(3))) void*)to, 16, 0, 0);
}
#else
__device__ __forceinline__ void load_to_lds(const void* from, void* to) {
  struct alignas(16) Chunk {
    int word[4];
  };
  reinterpret_cast<Chunk*>(to)[threadIdx.x % LANES] = *reinterpret_cast<const Chunk*>(from);
}
#endif

// No LDS read moves ahead of loads that are on their way into LDS: compilers take these for LDS instructions when they
// count what to wait for, so that a read which was issued before them would be waited for too little.
__device__ __forceinline__ void loads_first() {
#if KVC_HAS_MFMA
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// Waits until what this wave has on its way into LDS is there.
__device__ __forceinline__ void wait_for_loads() {
#if KVC_HAS_MFMA
  __builtin_amdgcn_s_waitcnt(0x0f70);  // vmcnt(0)
#endif
}
"""


@dataclass(frozen=True)
class Names:
    """The C++ names of a tile's extents: rows of it, its first row, rows of the operand; the same of the depth."""

    rows: str
    first: str
    limit: str
    depth: str = "BLOCK_K"
    depth_limit: str = "K"
    permuted: str = ""  # a function from a row of the tile to the one of LDS that holds it


@dataclass(frozen=True)
class Block:
    """The extents of a side's tile, and whether tiles cover the operand without a rest."""

    rows: int
    depth: int
    threads: int
    even_rows: bool
    even_depth: bool
    names: Names


class Tile:
    """Writes the code that moves one side's tile. Constants carry the side's name: A_ROWS x BLOCK_K elements.

    Where LDS rows are rows of the operand (`k_major`: a lane's fragment is contiguous) but memory runs along the rows,
    a thread loads `group` depths of its rows and writes them to LDS side by side: a transposition in registers.
    """

    def __init__(self, kernel: Kernel, side: Side, access: Access, dtype: DType, block: Block, k_major: bool) -> None:
        self.kernel, self.side, self.access, self.dtype, self.shape = kernel, side, access, dtype, block
        self.k_major = k_major  # LDS rows are rows of the operand (depth contiguous), else columns
        self.big, self.small = side.name.upper(), side.name
        self.names = block.names
        self.block, self.first, self.limit = block.names.rows, block.names.first, block.names.limit
        self.depth_start = "k0"
        self.buffers = 1  # tiles of it in LDS; with two, `store` and a direct load take the one that they write
        self.group = self._group() if k_major and access.along == "rows" else 1

    def _group(self) -> int:
        """Depths of a slot: a chunk; half of one where packs of 16-bit rows would stage too many registers."""
        chunk = CHUNK_BYTES // self.dtype.bytes
        return min(chunk, 4) if self.access.width > 1 else chunk

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
        if self.group > 1:
            width += f" / {self.group}"
            what = f"{self.group} depths of {what if self.access.width > 1 else 'a row'}"
        return [
            f"constexpr int {self.big}_SLOTS = {self.block} * {self.names.depth}{width};  // "
            f"{what if width else 'elements'} in a tile of {self.big}",
            f"constexpr int {self.big}_LOADS = ({self.big}_SLOTS + THREADS - 1) / THREADS;  // of them a thread",
        ]

    def write_load(self, depth: str = "k0") -> None:
        """`load_a(k0)`: the tile at depth k0 (or at row k0 where `depth` is another start) into registers, zero outside
        the operand."""
        self.depth_start = depth
        kernel, writer = self.kernel, self.kernel.writer
        inner = f"[{self.group}]" if self.group > 1 else ""
        writer.line(f"{self.slot_type} {self.small}_stage[{self.big}_LOADS]{inner};")
        with kernel.local_names(), writer.block(f"auto load_{self.small} = [&](int k0)", "};"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {self.big}_LOADS; ++i)"):
                writer.line("const int slot = i * THREADS + thread;")
                if self.group == 1:
                    self._load_slot(f"{self.small}_stage[i]")
                    return
                writer.line("#pragma unroll")
                with writer.block(f"for (int step = 0; step < {self.group}; ++step)"):
                    self._load_slot(f"{self.small}_stage[i][step]")

    @property
    def loads_directly(self) -> bool:
        """Whether memory holds the tile's chunks of 16 bytes as LDS does, so that they need not pass registers: whole
        packs along the depth, no rest of the depth, rows of at least 8 chunks, whole waves."""
        access, block = self.access, self.shape
        wide = access.along == "k" and access.width * self.dtype.bytes == CHUNK_BYTES
        chunks = block.depth * self.dtype.bytes // CHUNK_BYTES
        return wide and self.k_major and block.even_depth and chunks >= 8 and self._slots % LANES == 0

    def write_direct_load(self) -> None:
        """`load_a(k0, tile)`: the tile at depth k0 into LDS. Rows beyond the operand repeat its last one: what comes of
        them is not stored."""
        kernel, writer = self.kernel, self.kernel.writer
        kernel.helpers.add("chunk_at", DIRECT)
        uniform = kernel.helpers.add("wave_uniform", WAVE_UNIFORM)
        kind, width = kernel.index_type, self.access.width
        head = f"auto load_{self.small} = [&](int k0, {self.element}* {self.small}_tile) __attribute__((always_inline))"
        with kernel.local_names(), writer.block(head, "};"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {self.big}_LOADS; ++i)"):
                writer.line("const int slot = i * THREADS + thread;")
                if self._slots % self.shape.threads:
                    writer.line(f"if (slot >= {self.big}_SLOTS) continue;")
                scope, lanes, row, k = side_scope(kernel, self.side, "k", width)
                at = f"{self.first} + slot / ({self.names.depth} / {width})"
                if not self.shape.even_rows:
                    writer.line(f"const {kind} wanted = {at};")
                    at = f"wanted < {self.limit} ? wanted : {self.limit} - 1"
                writer.line(f"const {kind} {row} = {at};")
                writer.line(f"const {kind} {k} = k0 / {width} + chunk_at<{self.names.depth}>(slot);")
                expr = scope.resolve(self.side.expr)
                assert isinstance(expr, Load)
                kernel.used[expr.tensor] = None
                start = scope.index(lanes.base(kernel, scope.offset(expr.tensor, expr.index))).text
                to = f"{self.small}_tile + (i * THREADS + {uniform}(thread / LANES) * LANES) * CHUNK"
                writer.line(f"load_to_lds({kernel.buffers[expr.tensor].pointer} + {start}, {to});")

    def _load_slot(self, into: str) -> None:
        writer = self.kernel.writer
        scope, lanes, *names = side_scope(self.kernel, self.side, self.access.along, self.access.width)
        self._position(*names)
        put = f"{into} = {{}};" if self.access.width == 1 else f"{into}.set({{}});"
        inside = self._inside(*names)
        if not inside:
            writer.line(put.replace("{}", self._value(scope, lanes), 1))
            return
        with writer.block(f"if ({inside})", "} else {"):
            writer.line(put.replace("{}", self._value(scope, lanes), 1))
        writer.line(f"  {into} = {self._zero()};")
        writer.line("}")

    def _split(self) -> tuple[str, str]:
        """Row and depth of a slot within the tile, in units of the access."""
        if self.access.along == "k":
            depth = self.names.depth
            per_row = f"({depth} / {self.access.width})" if self.access.width > 1 else depth
            return f"slot / {per_row}", f"slot % {per_row}"
        packs = self.shape.rows // self.access.width
        per_k = f"({self.block} / {self.access.width})" if self.access.width > 1 else self.block
        if self.group == 1 or self.access.width == 1:
            return f"slot % {per_k}", f"slot / {per_k}"
        # Lanes that write to LDS together: a few packs by a few depths, which fall into different banks.
        near, deep = math.gcd(4, packs), math.gcd(4, self.shape.depth // self.group)
        row = f"slot % {near} + slot / {near * deep} % ({per_k} / {near}) * {near}"
        return row, f"slot / {near} % {deep} + slot / ({per_k} * {deep}) * {deep}"

    def _position(self, row: str, k: str) -> None:
        kind, width = self.kernel.index_type, self.access.width
        row_at, k_at = self._split()
        first, k0 = self.first, self.depth_start
        if width > 1 and self.access.along == "k":
            k0 = f"{k0} / {width}"
        elif width > 1:
            first = f"{first} / {width}"
        self.kernel.writer.line(f"const {kind} {row} = {first} + {row_at};")
        # Where a wave's lanes go along the rows, all of them have one depth: scalar registers and the scalar ALU.
        if width == 1 and self.access.along == "rows" and self.shape.rows % LANES == 0:
            k_at = f"{self.kernel.helpers.add('wave_uniform', WAVE_UNIFORM)}({k_at})"
        if self.group > 1:
            k_at = f"({k_at}) * {self.group} + step"
        self.kernel.writer.line(f"const {kind} {k} = {k0} + {k_at};")

    @property
    def _slots(self) -> int:
        return self.shape.rows * self.shape.depth // self.access.width // self.group

    def _inside(self, row: str, k: str) -> str:
        """The conditions under which a slot lies in the tile and in the operand, "" where it always does."""
        width, conditions = self.access.width, []
        per = f" / {width}" if width > 1 else ""
        if self._slots % self.shape.threads:
            conditions.append(f"slot < {self.big}_SLOTS")
        if not self.shape.even_rows:
            conditions.append(f"{row} < {self.limit}{per if self.access.along == 'rows' else ''}")
        if not self.shape.even_depth:
            conditions.append(f"{k} < {self.names.depth_limit}{per if self.access.along == 'k' else ''}")
        return " && ".join(conditions)

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
        into = f"{self.element}* {tile}" if self.buffers > 1 else ""
        inline = " __attribute__((always_inline))" if self.buffers > 1 else ""
        with writer.block(f"auto store_{self.small} = [&]({into}){inline}", "};"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int i = 0; i < {self.big}_LOADS; ++i)"):
                writer.line("const int slot = i * THREADS + thread;")
                if self._slots % self.shape.threads:
                    writer.line(f"if (slot >= {self.big}_SLOTS) continue;")
                row, k = self._split()
                writer.line(f"const int row = {row};")
                writer.line(f"const int k = {k};")
                if self.group > 1:
                    self._store_group(tile, stage)
                elif width == 1:
                    writer.line(f"{tile}[{self._stored_at('row', 'k')}] = {stage};")
                elif self.k_major and self.access.along == "k":
                    at = self._stored_at("row", f"k * {width}")
                    writer.line(f"*reinterpret_cast<{self.slot_type}*>(&{tile}[{at}]) = {stage};")
                elif not self.k_major and self.access.along == "rows":
                    at = self._stored_at(f"row * {width}", "k")
                    writer.line(f"*reinterpret_cast<{self.slot_type}*>(&{tile}[{at}]) = {stage};")
                else:
                    at = self._stored_at("row", f"(k * {width} + v)")
                    writer.line("#pragma unroll")
                    writer.line(f"for (int v = 0; v < {width}; ++v) {tile}[{at}] = {stage}.lane[v];")

    def _store_group(self, tile: str, stage: str) -> None:
        """The depths of each staged row side by side."""
        writer, width = self.kernel.writer, self.access.width
        self.kernel.helpers.add("Pack", PACK)
        chunk = f"Pack<{self.element}, {self.group}>"
        writer.line("#pragma unroll")
        with writer.block(f"for (int v = 0; v < {width}; ++v)"):
            writer.line(f"{chunk} chunk;")
            writer.line("#pragma unroll")
            part = f"{stage}[step].lane[v]" if width > 1 else f"{stage}[step]"
            writer.line(f"for (int step = 0; step < {self.group}; ++step) chunk.lane[step] = {part};")
            at = self._stored_at(f"row * {width} + v" if width > 1 else "row", f"k * {self.group}")
            writer.line(f"*reinterpret_cast<{chunk}*>(&{tile}[{at}]) = chunk;")

    def lds_index(self, row: str, k: str) -> str:
        """Where element (row, k) of the tile lies in LDS."""
        if not self.k_major:
            return f"{k} * {self.big}_STRIDE + {row}"
        return f"swizzled<{self.names.depth}>({row}, {k})"

    def _stored_at(self, row: str, k: str) -> str:
        return self.lds_index(f"{self.names.permuted}({row})" if self.names.permuted else row, k)

    def lds_elements(self) -> str:
        return f"{self.block} * {self.names.depth}" if self.k_major else f"BLOCK_K * {self.big}_STRIDE"
