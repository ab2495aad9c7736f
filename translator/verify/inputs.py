"""Input sets of a spec: seeded, of several distributions, valid for how each operand is used.

Integer operands that index a tensor stay inside it; float operands are made positive (or kept inside the unit
interval) where the oracle is mostly non-finite otherwise, as variances and logarithms demand.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvc.dtypes import DType
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load, Reduce, Scan, Scatter, walk
from kvc.verify.index_ranges import float_indices, narrowed
from kvc.verify.peaks import peaked, reduced_by_maximum

if TYPE_CHECKING:
    import torch

#: Names of the input sets, in the order in which they are tried.
INPUT_SETS = ("normal", "special", "offset", "large", "rows", "small", "negative", "spread")

#: Non-finite results that a plain draw may give before its operands are drawn again from another domain.
MAX_NONFINITE = 0.1

_COMPARES = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Domain:
    """Which operands must be drawn from a restricted set: "positive" (0.1 and up) or "unit" (-0.9 .. 0.9)."""

    restricted: tuple[tuple[str, str], ...] = ()

    def of(self, operand: str) -> str:
        return dict(self.restricted).get(operand, "any")


def integer_ranges(spec: KernelSpec) -> dict[str, tuple[int, int]]:
    """[low, high) for each integer operand, and for each float operand whose values become an index: [0, extent) of the
    smallest axis that it indexes or is compared with, less what arithmetic on the way to the index adds."""
    limits: dict[str, int] = {}
    sources = _integer_sources(spec)

    def limit(expr: Expr, extent: int) -> None:
        for load in (e for e in walk(expr) if isinstance(e, Load)):
            for operand in sources.get(load.tensor, ()):
                limits[operand] = min(limits.get(operand, extent), extent)

    for stmt in spec.body:
        for root in stmt.roots:
            for node in walk(root):
                if isinstance(node, Load):
                    for index, dim in zip(node.index, spec.dims_of(node.tensor), strict=True):
                        limit(index, spec.extent(dim))
                elif isinstance(node, Call) and node.fn in _COMPARES:
                    for one, other in (node.args, node.args[::-1]):
                        if isinstance(other, Axis):
                            limit(one, spec.extent(other.name))
        if isinstance(stmt.over, Scatter):
            for index, axis in zip(stmt.over.index, stmt.axes, strict=True):
                limit(index, spec.extent(axis))
    ranges = {o.name: _range(o.dtype, limits.get(o.name)) for o in spec.inputs if o.dtype.is_integer}
    return narrowed(spec, {**ranges, **{name: (0, extent) for name, extent in float_indices(spec).items()}})


def _range(dtype: DType, limit: int | None) -> tuple[int, int]:
    if limit is not None:
        return 0, max(min(limit, 2 ** (dtype.bits - (dtype.kind == "int"))), 1)
    return (0, 9) if dtype.kind == "uint" else (-9, 10)


def _integer_sources(spec: KernelSpec) -> dict[str, tuple[str, ...]]:
    """For each integer tensor, the integer operands that its values come from."""
    sources: dict[str, tuple[str, ...]] = {o.name: (o.name,) for o in spec.inputs if o.dtype.is_integer}
    for stmt in spec.body:
        if stmt.dtype.is_integer:
            read = [operand for load in stmt.loads() for operand in sources.get(load.tensor, ())]
            sources[stmt.target] = tuple(dict.fromkeys(read))
    return sources


def draw(spec: KernelSpec, name: str, seed: int, domain: Domain = Domain()) -> dict[str, torch.Tensor]:
    """Inputs of set `name`, one contiguous tensor an operand in its logical shape and dtype. The draw depends on the
    spec's identity, the set, the seed and the operand's position, and on nothing else."""
    import torch

    ranges = integer_ranges(spec)
    near = thresholds(spec)
    peaks = _takes_a_maximum(spec)
    maxima = {} if _sums_products(spec) else reduced_by_maximum(spec)
    inputs = {}
    for position, operand in enumerate(spec.inputs):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{spec.hash}/{name}/{seed}/{position}".encode()))
        shape = spec.shape_of(operand.name)
        to = getattr(torch, operand.dtype.torch_name)
        if operand.dtype.kind == "bool":
            inputs[operand.name] = torch.rand(shape, generator=generator) < 0.5
        elif operand.name in ranges:
            low, high = ranges[operand.name]
            inputs[operand.name] = torch.randint(low, high, shape, generator=generator).to(to)
        else:
            x = _floats(shape, operand.dtype, name, domain.of(operand.name), generator, near)
            if name == "large" and operand.dtype.bits < 32 and peaks:
                # Peaks beyond the range of exp: softmax without the true maximum must overflow.
                x = torch.where(torch.rand(shape, generator=generator) < 1 / 16, 16.0 * x, x)
            if name in ("large", "negative") and operand.dtype.bits >= 16 and domain.of(operand.name) == "any":
                # In turn: the second set goes on where the rows of the first end.
                for dim, op in maxima.get(operand.name, ()):
                    x = peaked(x, dim, op, turn=int(name == "negative"), generator=generator)
            inputs[operand.name] = x.to(to)
    return inputs


def _takes_a_maximum(spec: KernelSpec) -> bool:
    """Whether a spec reduces by a maximum, and sums no products: those of peaks would leave the range of 16 bits."""
    over = [s.over.op for s in spec.body if isinstance(s.over, Reduce | Scan)]
    return "max" in over and not _sums_products(spec)


def _sums_products(spec: KernelSpec) -> bool:
    over = [(s.over.op, len(list(s.loads()))) for s in spec.body if isinstance(s.over, Reduce | Scan)]
    return any(op == "sum" and loads > 1 for op, loads in over)


def thresholds(spec: KernelSpec) -> tuple[float, ...]:
    """Floating-point constants that a spec compares with: a value beside one tells a wrong constant, or < from <=."""
    found: dict[float, None] = {}
    for stmt in spec.body:
        for node in (n for root in stmt.roots for n in walk(root)):
            if isinstance(node, Call) and node.fn in (*_COMPARES, "maximum", "minimum"):
                for arg in node.args:
                    if isinstance(arg, Const) and isinstance(arg.value, float) and math.isfinite(arg.value):
                        found[arg.value] = None
    return tuple(found)


def _floats(
    shape: tuple[int, ...],
    dtype: DType,
    name: str,
    domain: str,
    generator: torch.Generator,
    near: tuple[float, ...] = (),
) -> torch.Tensor:
    """float64 values of a distribution; the caller rounds them. `near`: constants that the spec compares with."""
    import torch

    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if domain == "unit":
        x = torch.rand(shape, generator=generator, dtype=torch.float64) * 1.8 - 0.9
    elif domain == "positive":
        x = x.abs() + 0.1
    if name == "large":
        x = x if domain == "unit" else x * (32.0 if dtype.bits < 32 else 1024.0)
    elif name == "small":
        x = x * 2.0**-10
    elif name == "offset" and domain != "unit":
        x = x + (16.0 if dtype.bits < 32 else 256.0)
    elif name == "negative" and domain == "any":
        # A maximum that starts at 0 and not at -inf, a softmax that does not subtract it: only here do they show.
        x = x - (16.0 if dtype.bits < 32 else 256.0)
    elif name == "spread":
        # Every magnitude as often as any other: functions switch between branches at powers of two.
        low, high = (-8.0, 5.0) if dtype.bits < 32 else (-20.0, 8.0)
        scale = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        x = torch.where(x < 0, -1.0, 1.0) * torch.exp2(scale if domain != "unit" else scale - high - 0.1)
        x = _scatter(x, _beside(near), 4, generator) if domain == "any" else x
    elif name == "rows" and x.ndim:
        x = x[..., :1].expand(shape).clone()
    elif name == "special":
        x = _sprinkle(x, dtype, domain, generator, near)
    return x


def _sprinkle(
    x: torch.Tensor, dtype: DType, domain: str, generator: torch.Generator, near: tuple[float, ...]
) -> torch.Tensor:
    """A few infinities, NaNs, zeros, subnormals and neighbours of the spec's own constants among normal values (formats
    without infinity saturate)."""
    import torch

    smallest = torch.finfo(getattr(torch, dtype.torch_name)).tiny
    values = [0.0, smallest / 4] if domain != "any" else [0.0, -0.0, smallest / 4, -smallest / 2]
    if dtype.bits >= 16:
        values += [float("inf")] + ([float("-inf")] if domain == "any" else [])
    if domain == "any":
        values += _beside(near)
    # A NaN in the smallest tensor too: what becomes of one is what goes wrong most often.
    first = [float("nan")] if dtype.bits >= 16 else []
    return _scatter(x, values, 8, generator, first)


def _beside(near: tuple[float, ...]) -> list[float]:
    """Each of a spec's own constants, and a value on either side of it."""
    return [c * (1.0 + side * 2.0**-8) for c in near if c for side in (-1, 0, 1)]


def _scatter(
    x: torch.Tensor, values: list[float], every: int, generator: torch.Generator, first: Sequence[float] = ()
) -> torch.Tensor:
    """`x` with `first` and then `values`, from a random one on, at random places: at most one element in `every`, so
    that rows without any of them remain in small tensors too, and at least one."""
    import torch

    if not x.numel() or not (first or values):
        return x
    count = min(len(values) + len(first), max(x.numel() // every, 1))
    places = torch.randperm(x.numel(), generator=generator)[:count]
    turn = int(torch.randint(max(len(values), 1), (1,), generator=generator))
    chosen = [*first, *values[turn:], *values[:turn]][:count]
    flat = x.reshape(-1).clone()
    flat[places] = torch.tensor(chosen, dtype=torch.float64)
    return flat.reshape(x.shape)


def nonfinite(outputs: Mapping[str, torch.Tensor]) -> float:
    """The largest share of non-finite values among the float outputs."""
    import torch

    floats = [t for t in outputs.values() if t.is_floating_point() and t.numel()]
    return max((1.0 - float(torch.isfinite(t).double().mean()) for t in floats), default=0.0)


def domains(spec: KernelSpec) -> Iterator[Domain]:
    """Domains to try, least restricted first: none, each operand positive alone (a variance among others), all
    positive, all inside the unit interval."""
    floats = [o.name for o in spec.inputs if o.dtype.is_float]
    yield Domain()
    for name in floats:
        yield Domain(((name, "positive"),))
    for kind in ("positive", "unit"):
        yield Domain(tuple((name, kind) for name in floats))
