"""Reference interpreter: runs a KernelSpec with torch on the CPU.

mode "oracle": every float is float64 and roundings are the identity: what the spec means.
mode "working": each statement computes in its compute type and rounds to its dtype: what a careful eager
implementation gives; its error against the oracle is the yardstick for a kernel's error.

Values carry their axes by name and hold only the axes they depend on, so a convolution never materialises its whole
iteration domain: a sum of products goes through einsum, everything else is evaluated in slices of the first axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce as fold
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from kvc.dtypes import BOOL, DType
from kvc.functions import COMBINES, FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Loop,
    Order,
    Reduce,
    Scan,
    Scatter,
    Stmt,
    axes_of,
    lift,
)

if TYPE_CHECKING:
    import torch

MAX_POINTS = 1 << 24  # largest intermediate that is evaluated at once
#: What a function of an infinity is, where torch on a CPU multiplies infinity by zero and says NaN.
_AT_INFINITY = {"bessel_i0": "abs", "bessel_i1": "positive"}


@dataclass(frozen=True)
class Value:
    """`data` has one dimension per name in `axes`."""

    data: torch.Tensor
    axes: tuple[str, ...]


#: Relative size of a nudge: one unit in the last place of fp32.
NUDGE = 2.0**-23


#: What stands for a float that does not fit an integer type: see `interpret`.
UNDEFINED = ("lowest", "highest", "0", "1")


def nudged(x: torch.Tensor, generator: torch.Generator, eps: float = NUDGE) -> torch.Tensor:
    """A float tensor with each element moved by a random relative amount of at most `eps`."""
    import torch

    moves = torch.rand(x.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return x * (1 + eps * moves)


def interpret(
    spec: KernelSpec,
    inputs: Mapping[str, torch.Tensor],
    mode: str = "oracle",
    nudge: int | None = None,
    overflow: bool = False,
    undefined: str = "",
) -> dict[str, torch.Tensor]:
    """Outputs by name. Inputs have their operands' logical shapes (any strides) and are not changed. Symbolic axes
    take their extents from the inputs. Float outputs are float64 in mode "oracle", else of the operand's dtype.

    With `nudge` (a seed) the result of every float statement is moved by up to one fp32 ulp an element, as if each
    operation had rounded differently (Monte Carlo arithmetic): how far results of a sound fp32 implementation spread.

    With `overflow` a sum whose positive and whose negative terms both overflow in the compute type is NaN: whether a
    machine gives an infinity, NaN or something finite depends on the order in which it adds. `undefined` (one of
    UNDEFINED) is what becomes of a float that does not fit the integer type it is converted to; by default, what torch
    makes of it on this machine.
    """
    run = _Run(spec, inputs, mode, nudge, overflow, undefined)
    for loop, stmts in groupby(spec.body, key=lambda s: s.loop):
        if loop is not None:
            run.loop(loop, list(stmts))
            continue
        for stmt in stmts:
            run.tensors[stmt.target] = run.statement(stmt)
    return {o.name: run.tensors[o.name] for o in spec.outputs}


class _Run:
    def __init__(
        self,
        spec: KernelSpec,
        inputs: Mapping[str, torch.Tensor],
        mode: str,
        nudge: int | None = None,
        overflow: bool = False,
        undefined: str = "",
    ) -> None:
        import torch

        if mode not in ("oracle", "working"):
            raise ValueError(f"no mode {mode!r}")
        self.generator = torch.Generator().manual_seed(nudge) if nudge is not None else None
        self.marks_overflow = overflow
        self.undefined = undefined
        self.spec = spec
        self.oracle = mode == "oracle"
        self.extent = {s.name: s.typical for s in spec.sizes}
        self.range: dict[str, tuple[int, int]] = {}
        self.memo: dict[Expr, Value] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for operand in spec.inputs:
            tensor = inputs[operand.name].detach()
            for axis, n in zip(operand.dims, tensor.shape, strict=True):
                if spec.size[axis].size is None:
                    self.extent[axis] = n
                elif self.extent[axis] != n:
                    raise ValueError(
                        f"{operand.name} has shape {tuple(tensor.shape)}, not {spec.shape_of(operand.name)}"
                    )
            self.tensors[operand.name] = tensor.to(self.stored(operand.dtype))

    # ------------------------------------------------------------ types
    def stored(self, dtype: DType) -> torch.dtype:
        import torch

        return torch.float64 if self.oracle and dtype.is_float else getattr(torch, dtype.torch_name)

    def compute(self, dtype: DType) -> torch.dtype:
        return self.stored(dtype.compute)

    # ------------------------------------------------------------ statements
    def loop(self, loop: Loop, stmts: list[Stmt]) -> None:
        """Step by step, each statement into its slice of the whole tensor."""
        import torch

        for stmt in stmts:
            shape = [self.extent[a] for a in stmt.axes]
            self.tensors[stmt.target] = torch.zeros(shape, dtype=self.stored(stmt.dtype))
        order = range(self.extent[loop.axis])
        for step in reversed(order) if loop.reverse else order:
            self.range[loop.axis] = (step, step + 1)
            for stmt in stmts:
                self.tensors[stmt.target].narrow(stmt.axes.index(loop.axis), step, 1).copy_(self.statement(stmt))
        self.range.pop(loop.axis, None)

    def statement(self, stmt: Stmt) -> torch.Tensor:
        value = self.exact(stmt)
        if (
            self.marks_overflow
            and stmt.dtype.is_float
            and isinstance(stmt.over, Reduce | Scan)
            and stmt.over.op == "sum"
        ):
            value = value.masked_fill(self.overflows(stmt), float("nan"))
        if self.generator is None or not value.is_floating_point():
            return value
        return nudged(value, self.generator).to(value.dtype)

    def overflows(self, stmt: Stmt) -> torch.Tensor:
        """Where both the positive and the negative terms of a sum add up to an infinity in the compute type."""
        both = []
        for side in ("maximum", "minimum"):
            part = replace(stmt, dtype=stmt.dtype.compute, expr=Call(side, (stmt.expr, Const(0.0))))
            both.append(self.exact(part).isinf())
        return both[0] & both[1]

    def exact(self, stmt: Stmt) -> torch.Tensor:
        over = stmt.over
        if isinstance(over, Scatter):
            return self.scatter(stmt, over)
        split = self.split_axis(stmt)
        if split is None:
            self.memo = {}
            return self.slice(stmt)
        import torch

        axis, step = split
        parts = []
        for start in range(0, self.extent[axis], step):
            self.range[axis] = (start, min(start + step, self.extent[axis]))
            self.memo = {}
            parts.append(self.slice(stmt))
        del self.range[axis]
        return torch.cat(parts, dim=stmt.axes.index(axis))

    def split_axis(self, stmt: Stmt) -> tuple[str, int] | None:
        """The axis to evaluate in slices, and the slice's length, where the domain is too large for one go."""
        fixed = stmt.over.axis if isinstance(stmt.over, Scan | Order) else None
        names = [a for a in stmt.axes if a != fixed and a not in self.range]
        inner = [] if self.factors(stmt) else list(stmt.inner_axes)
        points = fold(lambda a, b: a * b, (self.length(a) for a in (*stmt.axes, *inner)), 1)
        if points <= MAX_POINTS or not names:
            return None
        axis = max(names, key=lambda a: self.extent[a])
        return axis, max(1, MAX_POINTS * self.extent[axis] // points)

    def slice(self, stmt: Stmt) -> torch.Tensor:
        """The statement over the current ranges, in its own dtype."""
        over = stmt.over
        if isinstance(over, Reduce):
            value = self.contract(stmt) or self.reduce(stmt, over)
            return self.full(value, stmt.axes).to(self.stored(stmt.dtype))
        data = self.full(self.eval(stmt.expr), stmt.axes)
        if isinstance(over, Scan):
            data = self.scan(data.to(self.compute(stmt.dtype)), stmt.axes.index(over.axis), over)
        elif isinstance(over, Order):
            values, order = data.sort(dim=stmt.axes.index(over.axis), descending=over.descending, stable=True)
            data = values if over.kind == "sort" else order
        return data.to(self.stored(stmt.dtype)).contiguous()

    def length(self, axis: str) -> int:
        start, stop = self.range.get(axis, (0, self.extent[axis]))
        return stop - start

    def full(self, value: Value, axes: tuple[str, ...]) -> torch.Tensor:
        """Expanded to exactly `axes`."""
        return self.aligned(value, axes).expand([self.length(a) for a in axes])

    def aligned(self, value: Value, axes: tuple[str, ...]) -> torch.Tensor:
        """Permuted to `axes`, with size 1 where the value does not depend on one."""
        data = value.data.permute([value.axes.index(a) for a in axes if a in value.axes])
        for n, a in enumerate(axes):
            if a not in value.axes:
                data = data.unsqueeze(n)
        return data

    # ------------------------------------------------------------ reductions
    def factors(self, stmt: Stmt) -> list[Expr]:
        """The factors of a sum of products, [] where the statement is none."""
        over = stmt.over
        if not isinstance(over, Reduce) or over.op != "sum" or over.where is not None or not stmt.dtype.is_float:
            return []
        factors: list[Expr] = []
        queue = [stmt.expr]
        while queue:
            expr = queue.pop(0)
            if isinstance(expr, Call) and expr.fn == "mul":
                queue[:0] = expr.args
            else:
                factors.append(expr)
        readers = [f for f in factors if axes_of(f)]
        return factors if len(readers) >= 2 and all(self.spec.type_of(f).is_float for f in factors) else []

    def contract(self, stmt: Stmt) -> Value | None:
        """A sum of products by einsum, pair by pair; the accumulator has the statement's compute type."""
        import torch

        factors = self.factors(stmt)
        if not factors:
            return None
        to = self.compute(stmt.dtype)
        values = [self.eval(f) for f in factors]
        used = dict.fromkeys(a for v in values for a in v.axes)
        letter = {a: chr(ord("a") + n) if n < 26 else chr(ord("A") + n - 26) for n, a in enumerate(used)}
        result = Value(values[0].data.to(to), values[0].axes)
        for n, value in enumerate(values[1:], 2):
            later = {a for v in values[n:] for a in v.axes} | set(stmt.axes)
            keep = tuple(a for a in dict.fromkeys((*result.axes, *value.axes)) if a in later)
            names = ["".join(letter[a] for a in axes) for axes in (result.axes, value.axes, keep)]
            data = torch.einsum(f"{names[0]},{names[1]}->{names[2]}", result.data, value.data.to(to))
            result = Value(data, keep)
        repeat = fold(lambda a, b: a * b, (self.length(a) for a in stmt.inner_axes if a not in used), 1)
        return Value(result.data * repeat, result.axes) if repeat != 1 else result

    def reduce(self, stmt: Stmt, over: Reduce) -> Value:
        import torch

        axes = (*stmt.axes, *over.axes)
        is_arg = over.op in ("argmax", "argmin")
        data = self.full(self.eval(stmt.expr), axes)
        if not is_arg:
            data = data.to(self.compute(stmt.dtype))
        if over.where is not None:
            data = torch.where(self.full(self.eval(over.where), axes), data, self.identity(over.op, data.dtype))
        dims = tuple(range(len(stmt.axes), len(axes)))
        if is_arg:
            best = (torch.amax if over.op == "argmax" else torch.amin)(data, dims, keepdim=True)
            at = torch.arange(data.shape[-1]).expand(data.shape)
            first = torch.where((data == best) | data.isnan(), at, data.shape[-1])
            return Value(first.amin(-1), stmt.axes)
        if data.numel() == 0:
            shape = data.shape[: len(stmt.axes)]
            return Value(self.identity(over.op, data.dtype).expand(shape), stmt.axes)
        if over.op == "prod":
            return Value(data.reshape(*data.shape[: len(stmt.axes)], -1).prod(-1), stmt.axes)
        if over.op in ("any", "all"):
            flat = data.to(torch.bool).reshape(*data.shape[: len(stmt.axes)], -1)
            return Value(getattr(flat, over.op)(-1), stmt.axes)
        return Value(getattr(torch, COMBINES[over.op].torch)(data, dims), stmt.axes)

    @staticmethod
    def identity(op: str, dtype: torch.dtype) -> torch.Tensor:
        import torch

        value = COMBINES[op].identity
        if isinstance(value, str):
            if dtype.is_floating_point:
                value = float("-inf") if value == "lowest" else float("inf")
            elif dtype == torch.bool:
                value = value == "highest"
            else:
                info = torch.iinfo(dtype)
                value = info.min if value == "lowest" else info.max
        return torch.tensor(value, dtype=dtype)

    def scan(self, data: torch.Tensor, dim: int, over: Scan) -> torch.Tensor:
        import torch

        if over.reverse:
            data = data.flip(dim)
        if over.op in ("sum", "prod"):
            data_out = (torch.cumsum if over.op == "sum" else torch.cumprod)(data, dim, dtype=data.dtype)
        elif over.op in ("max", "min"):
            data_out = (torch.cummax if over.op == "max" else torch.cummin)(data, dim).values
        else:
            as_int = data.to(torch.int8)
            data_out = (torch.cummax if over.op == "any" else torch.cummin)(as_int, dim).values.to(data.dtype)
        if over.exclusive:
            start = self.identity(over.op, data.dtype).expand_as(data.narrow(dim, 0, 1))
            data_out = torch.cat([start, data_out.narrow(dim, 0, data.shape[dim] - 1)], dim)
        return data_out.flip(dim) if over.reverse else data_out

    def scatter(self, stmt: Stmt, over: Scatter) -> torch.Tensor:
        import torch

        self.memo = {}
        target = self.full(self.eval(over.base), stmt.axes).to(self.compute(stmt.dtype)).contiguous()
        source = self.full(self.eval(stmt.expr), over.axes).to(target.dtype).reshape(-1)
        flat = torch.zeros(source.shape, dtype=torch.int64)
        for axis, index in zip(stmt.axes, over.index, strict=True):
            flat = flat * self.extent[axis] + self.full(self.eval(index), over.axes).reshape(-1)
        out = target.reshape(-1).clone()
        if over.op == "set":
            # The last writer in row-major order wins: keep, for each target, its highest source position.
            last = torch.full((out.numel(),), -1).scatter_reduce(0, flat, torch.arange(flat.numel()), "amax")
            written = last >= 0
            out[written] = source[last[written]]
        else:
            how = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}[over.op]
            out = out.scatter_reduce(0, flat, source, how)
        return out.reshape(target.shape).to(self.stored(stmt.dtype))

    # ------------------------------------------------------------ expressions
    def eval(self, expr: Expr) -> Value:
        if expr not in self.memo:
            self.memo[expr] = self._eval(expr)
        return self.memo[expr]

    def _eval(self, expr: Expr) -> Value:
        import torch

        match expr:
            case Const(value):
                return Value(torch.tensor(value, dtype=self.compute(self.spec.type_of(expr))), ())
            case Axis(name):
                start, stop = self.range.get(name, (0, self.extent[name]))
                return Value(torch.arange(start, stop), (name,))
            case Extent(name):
                return Value(torch.tensor(self.extent[name]), ())
            case Cast(dtype, arg):
                return self.cast(self.eval(arg), dtype)
            case Load(tensor, index, other):
                return self.load(self.tensors[tensor], self.spec.dtype_of(tensor), index, other)
            case Call(fn, args):
                expand = FUNCTIONS[fn].expand
                return self.eval(lift(expand(*args))) if expand else self.call(fn, args)
        raise TypeError(f"not an expression: {expr!r}")

    def cast(self, value: Value, dtype: DType) -> Value:
        data = value.data
        if dtype is BOOL:
            return Value(data != 0, value.axes)
        if self.undefined and dtype.is_integer and data.is_floating_point():
            return Value(self.filled(data, self.stored(dtype)).to(self.compute(dtype)), value.axes)
        return Value(data.to(self.stored(dtype)).to(self.compute(dtype)), value.axes)

    def filled(self, data: torch.Tensor, to: torch.dtype) -> torch.Tensor:
        """Floats as integers; those that do not fit become the value that `undefined` names."""
        import torch

        info = torch.iinfo(to)
        whole = data.double().trunc()
        fits = (whole >= info.min) & (whole < 2.0**info.bits / (2 if info.min else 1))  # float(info.max) rounds up
        fill = {"lowest": info.min, "highest": info.max}.get(self.undefined)
        return torch.where(fits, data, 0.0).to(to).masked_fill(~fits, int(self.undefined) if fill is None else fill)

    def call(self, fn: str, args: tuple[Expr, ...]) -> Value:
        import torch

        function = FUNCTIONS[fn]
        spec = self.spec
        operands = args[1:] if fn == "where" else args
        kinds = spec._join([spec._type(a) for a in operands])
        joined = kinds if isinstance(kinds, DType) else spec.type_of(operands[0])
        if not isinstance(kinds, DType):  # literals only
            joined = max((spec.type_of(a) for a in operands), key=lambda d: ("bool", "i64", "f32").index(d.name))
        if function.result == "float" and not joined.is_float:
            joined = spec.type_of(Call(fn, args))
        if function.torch.startswith("logical"):
            joined = BOOL
        to = self.compute(joined)
        values = [self.literal(a, to) if isinstance(a, Const) else self.eval(a) for a in args]
        axes = tuple(dict.fromkeys(a for v in values for a in v.axes))
        data = [self.aligned(v, axes) for v in values]
        cast = [d if fn == "where" and n == 0 else d.to(to) for n, d in enumerate(data)]
        if fn == "where":
            cast[0] = cast[0].to(torch.bool)
        result = attrgetter(function.torch)(torch)(*cast)
        if fn in _AT_INFINITY:
            result = torch.where(cast[0].isinf(), getattr(torch, _AT_INFINITY[fn])(cast[0]), result)
        return Value(result, axes)

    @staticmethod
    def literal(const: Const, to: torch.dtype) -> Value:
        import torch

        return Value(torch.tensor(const.value, dtype=to), ())

    def load(self, tensor: torch.Tensor, dtype: DType, index: tuple[Expr, ...], other: Expr | None) -> Value:
        data = tensor
        if other is not None and not isinstance(other, Const):
            return self.carried(data, dtype, index, other)
        fast = self.separable(data, index, other)
        value = fast if fast is not None else self.gather(data, index, other)
        return Value(value.data.to(self.compute(dtype)), value.axes)

    def carried(self, data: torch.Tensor, dtype: DType, index: tuple[Expr, ...], first: Expr) -> Value:
        """The step before in a loop, which is either wholly inside or wholly before the first step."""
        for i, n in zip(index, data.shape, strict=True):
            at = self.eval(i).data
            if bool(((at < 0) | (at >= n)).any()):
                value = self.eval(first)
                return Value(value.data.to(self.compute(dtype)), value.axes)
        return self.load(data, dtype, index, None)

    def separable(self, data: torch.Tensor, index: tuple[Expr, ...], other: Const | None) -> Value | None:
        """Index expressions that share no axis select one dimension after the other, without an index tensor over
        the whole domain."""
        import torch

        names = [axes_of(i) for i in index]
        flat = [a for group in names for a in group]
        if len(set(flat)) != len(flat):
            return None
        axes: list[str] = []
        outside: list[Value] = []
        for i in index:
            dim = len(axes)
            if isinstance(i, Axis) and i.name not in self.range and self.extent[i.name] == data.shape[dim]:
                axes.append(i.name)
                continue
            at = self.eval(i)
            extent = data.shape[dim]
            if other is not None:
                outside.append(Value((at.data < 0) | (at.data >= extent), at.axes))
            if extent == 0:
                shape = (*data.shape[:dim], *at.data.shape, *data.shape[dim + 1 :])
                data = torch.zeros(shape, dtype=data.dtype)
            else:
                picked = at.data.clamp(0, extent - 1) if other is not None else at.data
                data = data.index_select(dim, picked.reshape(-1))
                data = data.reshape((*data.shape[:dim], *at.data.shape, *data.shape[dim + 1 :]))
            axes.extend(at.axes)
        for mask in outside:
            data = data.masked_fill(self.aligned(mask, tuple(axes)), other.value)  # type: ignore[union-attr]
        return Value(data, tuple(axes))

    def gather(self, data: torch.Tensor, index: tuple[Expr, ...], other: Const | None) -> Value:
        """The general access, by advanced indexing."""
        import torch

        values = [self.eval(i) for i in index]
        axes = tuple(dict.fromkeys(a for v in values for a in v.axes))
        at = torch.broadcast_tensors(*[self.aligned(v, axes) for v in values])
        if other is None:
            return Value(data[tuple(at)], axes)
        inside = fold(torch.logical_and, [(i >= 0) & (i < n) for i, n in zip(at, data.shape, strict=True)])
        if data.numel() == 0:
            return Value(torch.full(inside.shape, other.value, dtype=data.dtype), axes)
        picked = data[tuple(i.clamp(0, n - 1) for i, n in zip(at, data.shape, strict=True))]
        return Value(torch.where(inside, picked, torch.tensor(other.value, dtype=data.dtype)), axes)
