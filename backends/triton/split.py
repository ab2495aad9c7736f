"""fp32 sums of products on bf16 matrix cores, with the accuracy of fp32.

An fp32 number is the sum of three bf16 numbers (8 + 8 + 8 bits of significand), so a product is nine products of bf16,
each exact in fp32. The three that lie below 2^-24 of the result are left out; the other six are added smallest first.
Matrix cores may truncate where they add, so each block of k gets an accumulator of its own, which ordinary (rounded)
additions join to the running sum. The three smallest products are 2^-16 of the result: what truncation does to a
running sum of theirs does not show, so they have one accumulator for all of k, added at the end.

Operands that are plain reads are split by a launch of their own, into scratch, when each of them is read by many tiles:
the main loop then only loads and multiplies. That launch also chooses the layout: a convolution gets its channels
last, so that a tile's depth is contiguous in memory. What is computed on the way in is split in registers.

The terms of an infinity, a NaN, or a number that rounds to infinity in bf16 are not finite, and neither is any result
that such a term takes part in. A tile with a result that is not finite is computed again with plain products, so
that specials come out as the index notation says. A term below 2^-126 may be flushed to zero by the matrix cores; the
error that this leaves is below 2^-126 times the other operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvc.arch import ArchSpec
from kvc.dtypes import BF16, F32
from kvc.emitter import Knob, Task
from kvc.kernel import Axis, Cast, Const, Expr, KernelSpec, Load, Stmt
from kvc.packing import LAUNCH_US, TERMS, Packed, products
from kvc.patterns import Contraction, match_contraction

from .codegen import Physical, Scope
from .contraction import ContractionEmitter, Shape, Tile, best_tile, fits, product_type, storage_type
from .emitter import RuleEmitter, grid_of, power_of_two
from .pointwise import bounds, points_of, unflatten
from .source import KernelText, Knobs, SourceFile, kernel_name

MIN_SIDE = 64  # of a result's tile, and of k: below it the split costs more than it saves
SPLIT_OPS = 24  # plain operations that split one element in registers: two roundings and two differences
_RANGES = {"bf16": 1, "f16": 2, "f8e4m3fn": 1, "f8e5m2": 1, "f8e4m3fnuz": 1, "f8e5m2fnuz": 1}


class SplitContractionEmitter(RuleEmitter):
    """Knobs: those of the contraction, and SPLIT ("ahead": in a launch of its own where possible; "registers")."""

    schedule = "contraction_split"

    def refusal(self, task: Task) -> str:
        reason = "it has symbolic sizes" if not task.spec.is_static else ContractionEmitter().refusal(task)
        if reason:
            return reason
        if task.numerics != "strict":
            return "fast numerics have shorter products"
        spec, pattern = task.spec, _pattern(task.spec)
        if product_type(spec, pattern) is not F32:
            return "its products are no fp32 products"
        shape = Shape.of(spec, pattern)
        if min(shape.m, shape.n, shape.k) < MIN_SIDE:
            return f"a side is shorter than {MIN_SIDE}"
        if task.arch.peak("bf16") <= 4 * task.arch.peak("f32"):
            return f"{task.arch.name} multiplies bf16 too slowly for it"
        if min(_cost(task, pattern, split) for split in _choices(spec, pattern)) >= _plain_cost(task, shape):
            return "plain fp32 products are cheaper"
        return ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        spec, pattern = task.spec, _pattern(task.spec)
        shape = Shape.of(spec, pattern)
        splits = sorted(_choices(spec, pattern), key=lambda split: _cost(task, pattern, split))
        nvidia = task.arch.vendor == "nvidia"
        best = dict(best_tile(task, shape, F32)) | {"EXACT_K": 16}
        # Six products a tile keep a deep pipeline busy; the terms of one stage take 12 bytes an element pair.
        best |= {"BLOCK_K": 32, "num_stages": 4 if nvidia else 2}
        if nvidia and len(pattern.k) > 1 and _contiguous_depth(spec, pattern) is None:
            # Elements that are gathered one by one need an address each: with four warps those alone spill.
            best |= {"num_warps": 8}
        best |= {"SPLIT": splits[0], "SPLIT_BLOCK": 8 * int(best["num_warps"]) * task.arch.wave_size}
        choices: dict[str, list[Knob]] = {
            "BLOCK_M": [s for s in (32, 64, 128, 256) if s <= power_of_two(shape.m)],
            "BLOCK_N": [s for s in (32, 64, 128, 256) if s <= power_of_two(shape.n)],
            "BLOCK_K": [16, 32, 64],
            "num_warps": [4, 8],
            "num_stages": [2, 3, 4] if nvidia else [2],
            "SPLIT": list(splits),
        }
        for setting in grid_of(best, choices):
            chosen = dict(setting) | {"SPLIT_BLOCK": 8 * int(dict(setting)["num_warps"]) * task.arch.wave_size}
            terms = chosen | {"BLOCK_K": 3 * int(chosen["BLOCK_K"])}
            # Three accumulators: the running sum, the fresh one, and that of the smallest products.
            if fits(task, terms, BF16) and int(chosen["BLOCK_M"]) * int(chosen["BLOCK_N"]) <= 64 * _lanes(task, chosen):
                yield tuple(chosen.items())

    def write(self, file: SourceFile) -> None:
        pattern = _pattern(file.spec)
        plan = _Plan.of(file.spec, pattern, file.constants["SPLIT"] == "ahead")
        for terms in plan.ahead:
            copy_kernel(file, plan.spec, terms)
        SplitTile(file, plan).write()


def _lanes(task: Task, chosen: dict[str, Knob]) -> int:
    return int(chosen["num_warps"]) * task.arch.wave_size


def _pattern(spec: KernelSpec) -> Contraction:
    pattern = match_contraction(spec)
    assert isinstance(pattern, Contraction)
    return pattern


# ---------------------------------------------------------------- costs


def _count(spec: KernelSpec, expr: Expr) -> int:
    """How many bf16 terms hold an operand exactly."""
    storage = storage_type(spec, expr)
    return _RANGES.get(storage.name, len(TERMS)) if storage is not None else len(TERMS)


def _choices(spec: KernelSpec, pattern: Contraction) -> list[str]:
    plain = [e for e in (pattern.a, pattern.b) if _count(spec, e) > 1 and _is_plain(spec, e)]
    return ["ahead", "registers"] if plain else ["registers"]


def _plain_cost(task: Task, shape: Shape) -> float:
    """Microseconds of the products on fp32 units, at the table's peak."""
    return 2e-6 * shape.batch * shape.m * shape.n * shape.k / task.arch.peak("f32")


def _cost(task: Task, pattern: Contraction, split: str) -> float:
    """Microseconds at the table's peaks: the products, and the split of each operand."""
    spec, arch = task.spec, task.arch
    shape = Shape.of(spec, pattern)
    tile = best_tile(task, shape, F32)
    pairs = products(_count(spec, pattern.a), _count(spec, pattern.b))
    total = 2e-6 * len(pairs) * shape.batch * shape.m * shape.n * shape.k / arch.peak("bf16")
    for expr, own, other, block in (
        (pattern.a, shape.m, shape.n, "BLOCK_N"),
        (pattern.b, shape.n, shape.m, "BLOCK_M"),
    ):
        if _count(spec, expr) == 1:
            continue
        if split == "ahead" and _is_plain(spec, expr):
            assert isinstance(expr, Load)
            total += LAUNCH_US + points_of(spec, spec.dims_of(expr.tensor)) * 10 / (arch.hbm_gbps * 1e3)
        else:
            tiles = -(-other // int(tile[block]))
            total += _register_split(arch, shape.batch * own * shape.k * tiles)
    return total


def _register_split(arch: ArchSpec, elements: int) -> float:
    """Microseconds to split so many elements in registers. Matrix cores that read their operands from LDS alone
    (NVIDIA's) get the terms by way of it, which takes as long again as the arithmetic."""
    ways = 2 if arch.vendor == "nvidia" else 1
    return 1e-6 * ways * SPLIT_OPS * elements / arch.peak("f32_vector")


# ---------------------------------------------------------------- what is split, and how it lies in scratch


def _is_plain(spec: KernelSpec, expr: Expr) -> bool:
    """Whether an operand is a read of an input whose terms can be read in its place."""
    if not isinstance(expr, Load) or expr.tensor not in {o.name for o in spec.inputs}:
        return False
    dims = spec.dims_of(expr.tensor)
    zero = expr.other is None or (isinstance(expr.other, Const) and expr.other.value == 0)
    return zero and bool(dims) and len(set(dims)) == len(dims)


@dataclass(frozen=True)
class _Terms:
    """The terms of one input, as temporaries over its dims in a chosen order (the last is fastest in memory)."""

    tensor: str
    axes: tuple[str, ...]
    targets: tuple[str, ...]
    moved: bool  # the order is not the input's own

    def reads(self, load: Load, dims: tuple[str, ...]) -> list[Expr]:
        """The same read from each of the terms."""
        index = tuple(load.index[dims.index(a)] for a in self.axes)
        return [Load(target, index, load.other) for target in self.targets]


@dataclass(frozen=True)
class _Plan:
    """`spec`: with the terms as temporaries; `pattern`: of that spec, k in the order of the walk. `a`, `b`: the reads
    of each term, or none where the operand is split in registers."""

    spec: KernelSpec
    pattern: Contraction
    ahead: tuple[_Terms, ...]
    a: tuple[Expr, ...]
    b: tuple[Expr, ...]

    @staticmethod
    def of(spec: KernelSpec, pattern: Contraction, ahead: bool) -> _Plan:
        depth = _contiguous_depth(spec, pattern) if ahead else None
        if depth is not None:
            pattern = replace(pattern, k=(*(a for a in pattern.k if a != depth), depth))
        found: dict[str, _Terms] = {}
        reads: list[tuple[Expr, ...]] = []
        for expr in (pattern.a, pattern.b):
            if not (ahead and _count(spec, expr) > 1 and _is_plain(spec, expr)):
                reads.append(())
                continue
            assert isinstance(expr, Load)
            dims = spec.dims_of(expr.tensor)
            if expr.tensor not in found:
                found[expr.tensor] = _terms(spec, expr, depth)
            reads.append(tuple(found[expr.tensor].reads(expr, dims)))
        stmts = [s for terms in found.values() for s in _statements(spec, terms)]
        whole = replace(spec, body=(*stmts, *spec.body))
        return _Plan(whole, pattern, tuple(found.values()), reads[0], reads[1])


def _contiguous_depth(spec: KernelSpec, pattern: Contraction) -> str | None:
    """Of several summed axes the one to walk fastest: the longest that both operands read by itself, when a tile's
    depth fits into it. None where k is one axis, which stays as it lies."""
    if len(pattern.k) < 2 or not all(isinstance(e, Load) and _is_plain(spec, e) for e in (pattern.a, pattern.b)):
        return None
    both = [e.index for e in (pattern.a, pattern.b) if isinstance(e, Load)]
    alone = [a for a in pattern.k if all(Axis(a) in index for index in both) and spec.extent(a) >= 16]
    return max(alone, key=spec.extent, default=None)


def _terms(spec: KernelSpec, load: Load, depth: str | None) -> _Terms:
    dims = spec.dims_of(load.tensor)
    axes = dims
    if depth is not None and Axis(depth) in load.index:
        last = dims[load.index.index(Axis(depth))]
        axes = (*(a for a in dims if a != last), last)
    taken = {*spec.operand, *spec.stmt}
    targets = []
    for term in TERMS[: _count(spec, load)]:
        name = f"{load.tensor}_{term}"
        while name in taken:
            name += "_"
        targets.append(name)
    return _Terms(load.tensor, axes, tuple(targets), axes != dims)


def _statements(spec: KernelSpec, terms: _Terms) -> Iterator[Stmt]:
    """Each term rounds what the ones before it leave of the number."""
    rest: Expr = Cast(F32, Load(terms.tensor, tuple(Axis(a) for a in spec.dims_of(terms.tensor))))
    for target in terms.targets:
        yield Stmt(target, BF16, terms.axes, rest)
        rest = rest - Load(target, tuple(Axis(a) for a in terms.axes))


def copy_kernel(file: SourceFile, spec: KernelSpec, terms: _Terms | Packed, verb: str = "split") -> None:
    """One pass over an input that writes all its copies: flat where it lies as they do, else in square blocks, so that
    reads and writes are both contiguous."""
    memory = frozenset(o.name for o in spec.inputs)
    kernel = KernelText(file, kernel_name(f"{spec.name}_{verb}_{terms.tensor}"), spec, memory)
    scope = Scope(kernel)
    blocks = _place_square(file, scope, terms) if terms.moved else _place_flat(file, scope, terms)
    for target in terms.targets:
        stmt = spec.stmt[target]
        file.scratch(target, stmt.dtype, spec.shape_of(target))
        scope.store(target, tuple(Axis(a) for a in stmt.axes), scope.result(stmt))
    file.add(kernel, blocks, ahead=True)


def _place_flat(file: SourceFile, scope: Scope, terms: _Terms | Packed) -> int:
    spec = scope.spec
    points, block = points_of(spec, terms.axes), file.constant("SPLIT_BLOCK")
    scope.wide = points + block >= 2**31
    name = scope.kernel.fresh_axis("p")
    program = "tl.program_id(0).to(tl.int64)" if scope.wide else "tl.program_id(0)"
    scope.emit(f"{name} = {program} * SPLIT_BLOCK + tl.arange(0, SPLIT_BLOCK)")
    mask = bounds(scope, name, str(points), points % block == 0, "SPLIT_BLOCK")
    axis = scope.bind(name, points, Physical(name, mask=mask, spans="SPLIT_BLOCK"))
    scope.shape = ("SPLIT_BLOCK",)
    scope.place(unflatten(spec, terms.axes, axis))
    return -(-points // block)


def _place_square(file: SourceFile, scope: Scope, terms: _Terms | Packed) -> int:
    spec = scope.spec
    *others, last = terms.axes
    side = 64
    count, depth = points_of(spec, others), spec.extent(last)
    scope.wide = count * depth + side * side >= 2**31
    cast = ".to(tl.int64)" if scope.wide else ""
    blocks = -(-depth // side)
    program, row, column = (scope.kernel.fresh_axis(n) for n in ("program", "row", "column"))
    scope.emit(f"SIDE: tl.constexpr = {side}")
    scope.kernel.names.add("SIDE")
    scope.emit(f"{program} = tl.program_id(0){cast}")
    for name, place, extent, axes, lane in (
        (row, f"{program} // {blocks}", count, tuple(others), "[:, None]"),
        (column, f"{program} % {blocks}", depth, (last,), "[None, :]"),
    ):
        scope.emit(f"{name} = {place} * SIDE + tl.arange(0, SIDE){lane}")
        mask = bounds(scope, name, str(extent), extent % side == 0, "SIDE")
        # Blocks of rows and of columns are told apart by what they span.
        axis = scope.bind(name, extent, Physical(name, mask=mask, spans=name))
        scope.place(unflatten(spec, axes, axis))
    scope.shape = (row, column)
    return blocks * -(-count // side)


# ---------------------------------------------------------------- the main kernel


class SplitTile(Tile):
    """A contraction whose tiles are multiplied term by term."""

    def __init__(self, file: SourceFile, plan: _Plan) -> None:
        memory = {o.name for o in plan.spec.inputs} | {t for terms in plan.ahead for t in terms.targets}
        super().__init__(file, plan.pattern, plan.spec, frozenset(memory))
        self.plan = plan

    def _main_loop(self, acc: str) -> None:
        scope, fresh = self.scope, self.kernel.fresh
        start, part, small = fresh("start"), fresh("part"), fresh("small")
        loop = scope.child()
        left = self._term_tiles(loop, self.pattern.a, self.plan.a, self.m, start, "a")
        right = self._term_tiles(loop, self.pattern.b, self.plan.b, self.n, start, "b")
        pairs = products(len(left), len(right))
        least = [pair for pair in pairs if sum(pair) == len(TERMS) - 1]
        into = ""
        for i, j in pairs[len(least) :]:
            loop.emit(f'{part} = tl.dot({left[i]}, {right[j]}{into}, input_precision="ieee")')
            into = f", {part}"
        if least:
            scope.emit(f"{small} = {scope.full(0, self.accumulator)}")
        for i, j in least:
            loop.emit(f'{small} = tl.dot({left[i]}, {right[j]}, {small}, input_precision="ieee")')
        loop.emit(f"{acc} += {part}")
        scope.close(f"for {start} in range(0, {self.shape.k}, BLOCK_K):", loop)
        if least:
            scope.emit(f"{acc} += {small}")
        finite = fresh("finite")
        scope.emit(f'{finite} = tl.min((tl.abs({acc}) < float("inf")).to(tl.int32))')
        again = scope.child()
        again.emit(f"{acc} = {scope.full(0, self.accumulator)}")
        self.block_k = "EXACT_K"
        self._loop_over_k(again, acc, f"tl.range(0, {self.shape.k}, EXACT_K, num_stages=1)")
        scope.close(f"if {finite} == 0:", again)

    def _term_tiles(
        self, loop: Scope, expr: Expr, reads: tuple[Expr, ...], side: str, start: str, stem: str
    ) -> list[str]:
        """Locals that hold a tile of each term of an operand."""
        place, depth = self._place_depth(loop, side, start)
        if reads:
            return [self._tile_in(place, read, side, depth, BF16, stem) for read in reads]
        count = _count(self.spec, expr)
        if count == 1:
            return [self._tile_in(place, expr, side, depth, BF16, stem)]
        rest = self._tile_in(place, expr, side, depth, F32, stem)
        names = []
        for number, term in enumerate(TERMS[:count]):
            name = self.kernel.fresh(f"{stem}_{term}")
            place.emit(f"{name} = {rest}.to(tl.bfloat16)")
            names.append(name)
            if number + 1 < count:
                left = self.kernel.fresh(f"{stem}_rest")
                place.emit(f"{left} = {rest} - {name}.to(tl.float32)")
                rest = left
        return names


__all__ = ["SplitContractionEmitter", "copy_kernel"]
