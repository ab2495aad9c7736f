"""Specs that a vendor library computes: exactly a matrix product, a convolution or an attention, and what follows it
point by point, as the source of a function that calls torch (which calls cuBLAS and cuDNN, or rocBLAS, hipBLASLt and
MIOpen).

A form is read off the spec's patterns, never off operator names, and is no kernel: it is only a *candidate* for a step
of the written module. kvc.library decides whether it takes the kernel's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from kvc.attention import Attention, causal_reach, masked, match_attention
from kvc.dtypes import DType
from kvc.functions import FUNCTIONS
from kvc.kernel import Axis, Call, Cast, Const, Expr, KernelSpec, Load, Stmt, axes_of, contiguous, loads
from kvc.patterns import Contraction, match_contraction
from kvc.simplify import IndexAlgebra

DTYPES = frozenset({"f32", "f16", "bf16"})

#: Functions of one argument that torch has as one operator; composites without an entry are expanded.
_SPELLED = {
    "gelu": 'nn.functional.gelu({})', "gelu_tanh": 'nn.functional.gelu({}, approximate="tanh")',
    "relu": "torch.relu({})", "silu": "nn.functional.silu({})", "sigmoid": "torch.sigmoid({})",
    "softplus": "nn.functional.softplus({})", "mish": "nn.functional.mish({})",
    "hardswish": "nn.functional.hardswish({})", "hardsigmoid": "nn.functional.hardsigmoid({})",
    "reciprocal": "torch.reciprocal({})",
}  # fmt: skip


@dataclass(frozen=True)
class LibraryForm:
    """`family`: "matmul", "convolution" or "attention"; `calls`: the torch functions that it calls, the library's
    first; `source`: the text of a function of that name, from a tensor for each of `inputs` (operands of the spec, in
    its order; any layout that holds the operand's elements) to a new tensor of the output's shape and strides."""

    name: str
    family: str
    calls: tuple[str, ...]
    inputs: tuple[str, ...]
    source: str


class _NoForm(Exception):
    """The reason why a spec has no form."""


def library_form(spec: KernelSpec, name: str, numerics: str = "strict") -> LibraryForm | str:
    """The form of a spec as a function called `name`, or the reason why it has none. Under "strict" fp32 products are
    fp32: TF32 is off while the function runs."""
    try:
        _check(spec)
        attention = match_attention(spec)
        if isinstance(attention, Attention):
            return _Writer(spec, name, numerics).attention(attention)
        pattern = match_contraction(spec)
        if isinstance(pattern, str):
            return pattern
        return _Writer(spec, name, numerics).contraction(pattern)
    except _NoForm as reason:
        return str(reason)


def _check(spec: KernelSpec) -> None:
    if not spec.is_static:
        raise _NoForm("it has symbolic sizes")
    if len(spec.outputs) != 1 or spec.outputs[0].alias is not None:
        raise _NoForm("it has several outputs, or writes one in place")
    floats = {o.dtype.name for o in (*spec.inputs, *spec.outputs)}
    if len(floats) != 1 or not floats <= DTYPES:
        raise _NoForm("its operands are not all of one float type that libraries multiply")


# ---------------------------------------------------------------- shapes


def _plain(expr: Expr, spec: KernelSpec) -> tuple[Load, tuple[str, ...]]:
    """An operand that is read at distinct whole axes, and those."""
    while isinstance(expr, Cast) and spec.type_of(expr.arg) is expr.dtype.compute:
        expr = expr.arg
    if not isinstance(expr, Load) or expr.tensor not in {o.name for o in spec.inputs}:
        raise _NoForm("an operand is more than a read of an input")
    axes = tuple(e.name for e in expr.index if isinstance(e, Axis))
    if len(axes) != len(expr.index) or len(set(axes)) != len(axes) or not axes:
        raise _NoForm(f"{expr.tensor} is read at other indices than axes")
    if tuple(map(spec.extent, axes)) != spec.shape_of(expr.tensor):
        raise _NoForm(f"{expr.tensor} is read in part")
    return expr, axes


def _mergeable(extents: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether neighbouring dims are one dim of a view."""
    real = [(n, s) for n, s in zip(extents, strides, strict=True) if n > 1]
    return all(s == n2 * s2 for (_, s), (n2, s2) in pairwise(real))


def _permuted(text: str, order: Sequence[int]) -> str:
    return text if list(order) == list(range(len(order))) else f"{text}.permute({', '.join(map(str, order))})"


def _reshaped(text: str, given: Sequence[int], wanted: Sequence[int]) -> str:
    return text if tuple(given) == tuple(wanted) else f"{text}.reshape({', '.join(map(str, wanted))})"


def _sizes(sizes: Iterable[int]) -> str:
    found = tuple(sizes)
    return f"({', '.join(map(str, found))}{',' if len(found) == 1 else ''})"


class _Writer:
    """Writes one function; every tensor in it is a local named like the spec's."""

    def __init__(self, spec: KernelSpec, name: str, numerics: str) -> None:
        self.spec, self.name = spec, name
        self.precise = numerics == "strict" and spec.outputs[0].dtype.name == "f32"
        self.local = {o.name: f"x{n}" for n, o in enumerate(spec.inputs)}
        self.calls: list[str] = []
        self.product: list[str] = []
        self.after: list[str] = []

    # ------------------------------------------------------------ matrix products
    def contraction(self, pattern: Contraction) -> LibraryForm:
        conv = self._convolution(pattern)
        family = "convolution" if conv else "matmul"
        if conv is None:
            self._matmul(pattern)
        return self._finish(family, pattern.stmt, pattern.epilogue)

    def _matmul(self, p: Contraction) -> None:
        """`t` = sum over k of a * b as [batch..., m, n]. Rows that are no one dim of a view are batches of the other
        side's: a copy is dearer than another product."""
        spec = self.spec
        (a, a_axes), (b, b_axes) = _plain(p.a, spec), _plain(p.b, spec)
        out = p.stmt.axes
        order = {axis: n for n, axis in enumerate(out)}
        m, n = (sorted(axes, key=order.__getitem__) for axes in (p.m, p.n))
        spread_m = self._spread(m, a, a_axes, out)
        spread_n = self._spread(n, b, b_axes, out)
        m, n = m[len(spread_m) :], n[len(spread_n) :]
        batch = [*p.batch, *spread_m, *spread_n]
        left = self._side(a, a_axes, batch, [m, list(p.k)])
        right = self._side(b, b_axes, batch, [list(p.k), n])
        bias = self._bias(p.stmt, tuple(n)) if not batch and len(n) == len(p.n) else None
        if batch:
            self.calls.append("torch.matmul")
            text = f"torch.matmul({left}, {right})"
        elif bias is not None:
            self.calls.append("torch.addmm")
            text = f"torch.addmm({self.local[bias]}{'.reshape(-1)' if len(n) > 1 else ''}, {left}, {right})"
        else:
            self.calls.append("torch.mm")
            text = f"torch.mm({left}, {right})"
        self.product.append(f"t = {text}")
        self._arrange([*batch, *m, *n], [spec.extent(x) for x in batch] + [self._size(m), self._size(n)], out)

    def _size(self, axes: Sequence[str]) -> int:
        return prod(self.spec.extent(a) for a in axes)

    def _spread(self, rows: list[str], load: Load, axes: tuple[str, ...], out: tuple[str, ...]) -> list[str]:
        """The leading axes of `rows` without which the rest is one dim of the operand and of the result."""
        strides = self.spec.strides_of(load.tensor)
        for first in range(len(rows)):
            rest = rows[first:]
            places = [out.index(a) for a in rest]
            together = places == list(range(places[0], places[0] + len(rest)))
            if together and _mergeable([self.spec.extent(a) for a in rest], [strides[axes.index(a)] for a in rest]):
                return rows[:first]
        return []

    def _side(self, load: Load, axes: tuple[str, ...], batch: list[str], groups: list[list[str]]) -> str:
        """An operand as [batch dims (1 where it has none), one dim a group]."""
        has = [a for a in batch if a in axes]
        wanted = [*has, *groups[0], *groups[1]]
        text = _permuted(self.local[load.tensor], [axes.index(a) for a in wanted])
        shape = [self.spec.extent(a) if a in axes else 1 for a in batch] + [self._size(g) for g in groups]
        return _reshaped(text, [self.spec.extent(a) for a in wanted], shape)

    def _bias(self, stmt: Stmt, wanted: tuple[str, ...]) -> str | None:
        """The operand that the first statement after the sum adds, read at exactly `wanted`; the statement is then
        done, and stands for the sum."""
        readers = [s for s in self.spec.body if any(r.tensor == stmt.target for r in s.loads())]
        if len(readers) != 1 or readers[0].axes != stmt.axes:
            return None
        match readers[0].expr:
            case Call("add", (Load(first), Load(operand) as load)) if first == stmt.target:
                pass
            case Call("add", (Load(operand) as load, Load(first))) if first == stmt.target:
                pass
            case _:
                return None
        if operand not in self.local or load.other is not None or load.index != tuple(Axis(a) for a in wanted):
            return None
        self.done = readers[0].target
        return operand

    done = ""  # the statement that `t` stands for, where that is not the sum itself

    def _arrange(self, axes: list[str], shape: Sequence[int], out: tuple[str, ...]) -> None:
        """`t` from `shape` over `axes` to the axes of the result."""
        sizes = [self.spec.extent(a) for a in axes]
        text = _reshaped("t", shape, sizes)
        text = _permuted(text, [axes.index(a) for a in out])
        if text != "t":
            self.product.append(f"t = {text}")

    # ------------------------------------------------------------ convolutions
    def _convolution(self, p: Contraction) -> bool | None:
        """The product as a convolution; None where it is none. Channels, groups and batches may be several axes each,
        or none."""
        spec, algebra = self.spec, IndexAlgebra(self.spec.size)
        sides = [e for e in (p.a, p.b) if isinstance(e, Load)]
        slid = [e for e in sides if any(not isinstance(algebra.linear(i).expr(), Axis) for i in e.index)]
        if len(sides) != 2 or len(slid) != 1:
            return None
        x = slid[0]
        w, w_axes = _plain(p.b if x is p.a else p.a, spec)
        return self._written(p, x, w, w_axes, algebra)

    def _written(self, p: Contraction, x: Load, w: Load, w_axes: tuple[str, ...], algebra: IndexAlgebra) -> bool:
        spec, out = self.spec, p.stmt.axes
        if x.tensor not in self.local or (x.other is not None and x.other != Const(0.0)):
            raise _NoForm("its input is more than a padded read")
        kinds = [_Dim.of(i, p, w_axes, algebra) for i in x.index]
        channel_at = [n for n, d in enumerate(kinds) if d.kind in "gc"]
        first = channel_at[0] if channel_at else len(kinds)
        kinds = [_Dim("b", d.out) if d.kind == "s" and d.plain and n < first else d for n, d in enumerate(kinds)]
        by = {k: [n for n, d in enumerate(kinds) if d.kind == k] for k in "bgcs"}
        shape = spec.shape_of(x.tensor)
        for n in (*by["b"], *by["g"], *by["c"]):
            if spec.extent(kinds[n].out or kinds[n].inner) != shape[n]:
                raise _NoForm(f"{x.tensor} is read in part")
        spatial = [kinds[n] for n in by["s"]]
        if not 1 <= len(spatial) <= 3:
            raise _NoForm(f"it slides along {len(spatial)} dims")
        for dim, n in zip(spatial, by["s"], strict=True):
            self._check_window(dim, shape[n], x.other is not None)
        groups = [kinds[n].out for n in by["g"]]
        channels = [kinds[n].inner for n in by["c"]]
        filters = [a for a in w_axes if a in out and a not in groups]
        taps = [d.inner for d in spatial]
        if {*groups, *filters, *channels, *filter(None, taps)} != set(w_axes):
            raise _NoForm(f"{w.tensor} has dims that no convolution's weight has")
        sides = (groups, channels, filters)
        batches = [kinds[n].out for n in by["b"]]
        self._input(x, by, shape, batches, sides)
        self._weight(w, w_axes, sides, taps)
        self._call(p, spatial, batches, sides)
        return True

    @staticmethod
    def _window_size(dim: _Dim, spec: KernelSpec) -> int:
        return spec.extent(dim.inner) if dim.inner else 1

    def _check_window(self, dim: _Dim, size: int, guarded: bool) -> None:
        reach = dim.dilation * (self._window_size(dim, self.spec) - 1)
        padding = -dim.constant
        if padding < 0 or (padding and not guarded):
            raise _NoForm("its window starts inside the input")
        if (size + 2 * padding - reach - 1) // dim.stride + 1 != self.spec.extent(dim.out):
            raise _NoForm("its padding differs from side to side")

    def _input(
        self, x: Load, by: dict[str, list[int]], shape: Sequence[int], batches: list[str], sides: tuple[list[str], ...]
    ) -> None:
        order = [*by["b"], *by["g"], *by["c"], *by["s"]]
        wanted = [self._size(batches), self._size([*sides[0], *sides[1]]), *(shape[n] for n in by["s"])]
        text = _reshaped(_permuted(self.local[x.tensor], order), [shape[n] for n in order], wanted)
        self.product.append(f"x = {text}")

    def _weight(self, w: Load, axes: tuple[str, ...], sides: tuple[list[str], ...], taps: list[str]) -> None:
        groups, channels, filters = sides
        order = [*groups, *filters, *channels, *filter(None, taps)]
        text = _permuted(self.local[w.tensor], [axes.index(a) for a in order])
        wanted = [self._size([*groups, *filters]), self._size(channels)]
        wanted += [self.spec.extent(a) if a else 1 for a in taps]
        self.product.append(f"w = {_reshaped(text, [self.spec.extent(a) for a in order], wanted)}")

    def _call(self, p: Contraction, spatial: list[_Dim], batches: list[str], sides: tuple[list[str], ...]) -> None:
        groups, _, filters = sides
        bias = self._bias(p.stmt, (*groups, *filters))
        called = f"nn.functional.conv{len(spatial)}d"
        self.calls.append(f"torch.{called}")
        given = "None" if bias is None else self.local[bias]
        if bias is not None and len([*groups, *filters]) != 1:
            given += ".reshape(-1)"
        stride, padding = _sizes(d.stride for d in spatial), _sizes(-d.constant for d in spatial)
        rest = f"{stride}, {padding}, {_sizes(d.dilation for d in spatial)}, {self._size(groups)}"
        self.product.append(f"t = {called}(x, w, {given}, {rest})")
        shape = [self._size(batches), self._size([*groups, *filters]), *(self.spec.extent(d.out) for d in spatial)]
        self._arrange([*batches, *groups, *filters, *(d.out for d in spatial)], shape, p.stmt.axes)

    # ------------------------------------------------------------ attention
    def attention(self, p: Attention) -> LibraryForm:
        spec = self.spec
        if len(p.m) != 1 or len(p.n) != 1 or len(p.d) != 1 or len(p.e) != 1 or not 1 <= len(p.batch) <= 2:
            raise _NoForm("its attention has other axes than batch, head, row and channel")
        scale, causal = self._score(p)
        sides = []
        grouped = False
        for expr, row, column in ((p.q, p.m[0], p.d[0]), (p.k, p.n[0], p.d[0]), (p.v, p.n[0], p.e[0])):
            text, shares = self._attended(expr, p.batch, row, column)
            sides.append(text)
            grouped |= shares
        self.calls.append("torch.nn.functional.scaled_dot_product_attention")
        options = ["None", "0.0", str(causal), f"scale={scale!r}"] + (["enable_gqa=True"] if grouped else [])
        self.product.append(f"t = nn.functional.scaled_dot_product_attention({', '.join([*sides, *options])})")
        if len(p.batch) == 1:
            self.product.append("t = t.squeeze(0)")
        axes = [*p.batch, p.m[0], p.e[0]]
        self._arrange(axes, [spec.extent(a) for a in axes], p.output.axes)
        epilogue = p.epilogue
        if not p.normalised:
            epilogue = self._divided(p)
        return self._finish("attention", p.output, epilogue)

    def _divided(self, p: Attention) -> tuple[Stmt, ...]:
        """The epilogue without the division by the weights' sum, which the library has done."""
        first, *rest = p.epilogue or (None,)
        at = tuple(Axis(a) for a in p.total.axes)
        own = tuple(Axis(a) for a in p.output.axes)
        expected = Call("div", (Load(p.output.target, own), Load(p.total.target, at)))
        if first is None or first.expr != expected:
            raise _NoForm("its weights are not divided by their sum first")
        if any(r.tensor in (p.output.target, p.total.target, p.top.target) for s in rest for r in s.loads()):
            raise _NoForm("its parts are used again")
        self.done = first.target
        return tuple(rest)

    def _score(self, p: Attention) -> tuple[float, bool]:
        """Scale and whether the mask is the causal one."""
        plain = masked(p.score)
        causal = False
        algebra = IndexAlgebra(self.spec.size)
        for condition in plain.conditions:
            if causal_reach(algebra, condition, p.m[0], p.n[0]) != 0:
                raise _NoForm("its mask is not the causal one")
            causal = True
        at = tuple(Axis(a) for a in p.scores.axes)
        match plain.value:
            case Load(tensor, index) if tensor == p.scores.target and index == at:
                return 1.0, causal
            case Call("mul", (Load(tensor, index), Const(scale))) if tensor == p.scores.target and index == at:
                return float(scale), causal
            case Call("div", (Load(tensor, index), Const(divisor))) if tensor == p.scores.target and index == at:
                return 1.0 / float(divisor), causal
        raise _NoForm("its scores are more than scaled")

    def _attended(self, expr: Expr, batch: tuple[str, ...], row: str, column: str) -> tuple[str, bool]:
        """An operand as [batch, head, row, channel], and whether heads share it."""
        if not isinstance(expr, Load) or expr.tensor not in self.local or expr.other is not None:
            raise _NoForm("an operand is more than a read of an input")
        shared, at = False, []
        for axis in (*batch, row, column):
            own = [n for n, i in enumerate(expr.index) if i == Axis(axis)]
            parts = [n for n, i in enumerate(expr.index) if _shared_head(i, axis)]
            if axis == batch[-1] and len(parts) == 1 and not own:
                own, shared = parts, True
            if len(own) != 1:
                raise _NoForm(f"{expr.tensor} is read at other indices than axes")
            at += own
        if len(at) != len(expr.index):
            raise _NoForm(f"{expr.tensor} has other dims than attention's")
        text = _permuted(self.local[expr.tensor], at)
        return (f"{text}.unsqueeze(0)" if len(batch) == 1 else text), shared

    # ------------------------------------------------------------ what follows
    def _finish(self, family: str, stmt: Stmt, epilogue: Sequence[Stmt]) -> LibraryForm:
        spec = self.spec
        known = {self.done or stmt.target: "t"}
        for s in epilogue:
            if s.target == self.done:
                continue
            text = self._text(s.expr, stmt.axes, known)
            known[s.target] = f"y{len(known)}"
            cast = f".to(torch.{s.dtype.torch_name})" if s.dtype.is_float and s.dtype is not self._kind else ""
            self.after.append(f"{known[s.target]} = ({text}){cast}" if cast else f"{known[s.target]} = {text}")
        out = spec.outputs[0]
        if out.name not in known:
            raise _NoForm("its output is not what follows from the sum")
        self._output(known[out.name], stmt.axes)
        parameters = ", ".join(self.local.values())
        lines = [f"def {self.name}({', '.join(f'{v}: torch.Tensor' for v in self.local.values())}) -> torch.Tensor:"]
        lines.append(f'    """{family} by {self.calls[0]}."""' if parameters else "")
        for o in spec.inputs:
            lines.append(f"    {self.local[o.name]} = {self.local[o.name]}.as_strided({_sizes(spec.shape_of(o.name))}, "
                         f"{_sizes(spec.strides_of(o.name))})")  # fmt: skip
        if self.precise:
            lines.append("    with _Fp32():")
        indent = "        " if self.precise else "    "
        lines += [indent + line for line in self.product]
        lines += ["    " + line for line in self.after]
        calls = tuple(dict.fromkeys(self.calls))
        return LibraryForm(self.name, family, calls, tuple(self.local), "\n".join(lines) + "\n")

    @property
    def _kind(self) -> DType:
        return self.spec.outputs[0].dtype

    def _output(self, value: str, axes: tuple[str, ...]) -> None:
        spec, out = self.spec, self.spec.outputs[0]
        dims = spec.dims_of(out.name)
        text = _permuted(value, [axes.index(a) for a in dims])
        strides = spec.strides_of(out.name)
        if strides == contiguous(spec.shape_of(out.name)):
            self.after.append(f"return {text}.contiguous()")
            return
        shape = _sizes(spec.shape_of(out.name))
        self.after.append(f"y = torch.empty_strided({shape}, {_sizes(strides)}, dtype=t.dtype, device=t.device)")
        self.after.append(f"return y.copy_({text})")

    def _text(self, expr: Expr, axes: tuple[str, ...], known: dict[str, str]) -> str:
        """A pointwise expression over `axes` as torch, in the operands' own dtype."""
        match expr:
            case Const(value) if isinstance(value, float) and not math.isfinite(value):
                return f'float("{value}")'
            case Const(value):
                return repr(value)
            case Load():
                return self._read(expr, axes, known)
            case Cast(dtype, arg) if dtype.is_float:
                return self._text(arg, axes, known)
            case Call(fn, args) if FUNCTIONS[fn].expand is None or fn in _SPELLED:
                return self._called(fn, [self._text(a, axes, known) for a in args])
            case Call(fn, args):
                expand = FUNCTIONS[fn].expand
                assert expand is not None
                return self._text(expand(*args), axes, known)
        raise _NoForm("what follows it computes with indices")

    def _called(self, fn: str, args: list[str]) -> str:
        function = FUNCTIONS[fn]
        if fn in _SPELLED:
            self.calls.append("torch." + _SPELLED[fn].partition("(")[0].removeprefix("torch."))
            return _SPELLED[fn].format(*args)
        if function.infix in ("+", "-", "*", "/"):
            return f"({args[0]} {function.infix} {args[1]})"
        if fn == "neg":
            return f"(-{args[0]})"
        if fn in ("minimum", "maximum"):  # one of them may be a number
            bound = {"minimum": "max", "maximum": "min"}[fn]
            numbers = [n for n, a in enumerate(args) if _is_number(a)]
            if numbers:
                return f"torch.clamp({args[1 - numbers[0]]}, {bound}={args[numbers[0]]})"
        if function.result == "bool" or fn == "where" or not function.torch:
            raise _NoForm(f"what follows it has {fn}")
        return f"torch.{function.torch}({', '.join(args)})"

    def _read(self, load: Load, axes: tuple[str, ...], known: dict[str, str]) -> str:
        spec = self.spec
        if load.other is not None or not all(isinstance(i, Axis) for i in load.index):
            raise _NoForm(f"what follows it reads {load.tensor} at other indices than axes")
        at = [i.name for i in load.index if isinstance(i, Axis)]
        if load.tensor in known:
            return known[load.tensor]
        if load.tensor in spec.stmt:
            stmt = spec.stmt[load.tensor]
            if stmt.over is not None or tuple(at) != stmt.axes:
                raise _NoForm(f"what follows it reads {load.tensor}")
            return self._text(stmt.expr, axes, known)
        if len(set(at)) != len(at) or not set(at) <= set(axes):
            raise _NoForm(f"what follows it reads {load.tensor} at other indices than axes")
        ordered = [a for a in axes if a in at]
        text = _permuted(self.local[load.tensor], [at.index(a) for a in ordered])
        lead = axes[axes.index(ordered[0]) :] if ordered else ()
        places = [":" if a in at else "None" for a in lead]
        return text if "None" not in places else f"{text}[{', '.join(places)}]"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shared_head(index: Expr, axis: str) -> bool:
    match index:
        case Call("floordiv", (Axis(name), Const())):
            return name == axis
    return False


@dataclass(frozen=True)
class _Dim:
    """A dim of a convolution's input: batch, group, channel or slid along. `out` is its axis of the result, `inner` of
    the weight ("" where it has none); a slid dim is at stride * out + dilation * inner + constant."""

    kind: str
    out: str = ""
    inner: str = ""
    stride: int = 1
    dilation: int = 1
    constant: int = 0

    @property
    def plain(self) -> bool:
        return not self.inner and self.stride == 1 and self.constant == 0

    @staticmethod
    def of(index: Expr, p: Contraction, w_axes: tuple[str, ...], algebra: IndexAlgebra) -> _Dim:
        if loads(index) or not algebra.is_index(index):
            raise _NoForm("its input is read at computed places")
        linear = algebra.linear(index)
        if not all(isinstance(a, Axis) for a in linear.coefficients):
            raise _NoForm("its input is read at computed places")
        found = {a.name: c for a, c in linear.coefficients.items() if isinstance(a, Axis)}
        outer = [a for a in axes_of(index) if a in p.stmt.axes and a in found]
        inner = [a for a in axes_of(index) if a in p.stmt.inner_axes and a in found]
        if len(outer) > 1 or len(inner) > 1 or min(found.values(), default=1) < 1:
            raise _NoForm("its window is not that of a convolution")
        alone = len(found) == 1 and linear.constant == 0 and set(found.values()) == {1}
        if alone and inner:
            return _Dim("c", inner=inner[0])
        if alone and outer[0] in w_axes:
            return _Dim("g", outer[0])
        if not outer or outer[0] in w_axes:
            raise _NoForm("its window is not that of a convolution")
        out, tap = outer[0], (inner[0] if inner else "")
        return _Dim("s", out, tap, found[out], found[tap] if tap else 1, linear.constant)


__all__ = ["LibraryForm", "library_form"]
