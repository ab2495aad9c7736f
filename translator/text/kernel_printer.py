"""KernelSpec -> text. The output parses back to an equal spec."""

from __future__ import annotations

import math
from itertools import groupby

from kvc.functions import FUNCTIONS
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Operand,
    Order,
    Over,
    Reduce,
    Scan,
    Scatter,
    Size,
    Stmt,
)

# Binding strength of infix operators; an operand binding less is put in parentheses.
_LEVEL = {
    "or": 1, "and": 2, "eq": 3, "ne": 3, "lt": 3, "le": 3, "gt": 3, "ge": 3,
    "add": 4, "sub": 4, "mul": 5, "div": 5, "floordiv": 5, "mod": 5,
}  # fmt: skip
_UNARY, _ATOM = 6, 7


def literal(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "nan"
    text = repr(value)
    return text if any(c in text for c in ".en") else text + ".0"


def print_expr(expr: Expr) -> str:
    return _expr(expr)[0]


def _expr(expr: Expr) -> tuple[str, int]:
    """Text and binding strength."""
    match expr:
        case Const(value):
            text = literal(value)
            return text, _UNARY if text.startswith("-") else _ATOM
        case Axis(name):
            return name, _ATOM
        case Extent(name):
            return f"#{name}", _ATOM
        case Cast(dtype, arg):
            return f"{dtype}({print_expr(arg)})", _ATOM
        case Load(tensor, index, other):
            guard = f" | {print_expr(other)}" if other is not None else ""
            return f"{tensor}[{','.join(map(print_expr, index))}{guard}]", _ATOM
        case Call("neg", (arg,)) if not isinstance(arg, Const):
            return "-" + _at_least(arg, _UNARY), _UNARY
        case Call(fn, args) if FUNCTIONS[fn].infix:
            level = _LEVEL[fn]
            # Comparisons do not chain; everything else associates to the left.
            left = _at_least(args[0], level + 1 if level == 3 else level)
            return f"{left} {FUNCTIONS[fn].infix} {_at_least(args[1], level + 1)}", level
        case Call(fn, args):
            return f"{fn}({', '.join(map(print_expr, args))})", _ATOM
    raise TypeError(f"not an expression: {expr!r}")


def _at_least(expr: Expr, level: int) -> str:
    text, binds = _expr(expr)
    return text if binds >= level else f"({text})"


class _Dims:
    """Prints axis lists; the first mention of a static axis carries its size."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec = spec
        self.seen: set[str] = set()

    def __call__(self, names: tuple[str, ...]) -> str:
        return ",".join(self._one(name) for name in names)

    def _one(self, name: str) -> str:
        size = self.spec.size[name].size
        if name in self.seen or size is None:
            return name
        self.seen.add(name)
        return f"{name}={size}"


def _symbolic(size: Size) -> str:
    hint = f" hint {size.hint}" if size.hint else ""
    multiple = f" multiple {size.multiple}" if size.multiple != 1 else ""
    return f"{size.name} in {size.low}..{size.high}{hint}{multiple}"


def _operand(operand: Operand, dims: _Dims) -> str:
    text = f"{operand.name}: {operand.dtype}[{dims(operand.dims)}]"
    if operand.strides is not None:
        text += f" strides({','.join(map(str, operand.strides))})"
    if operand.align != 16:
        text += f" align({operand.align})"
    if operand.alias is not None:
        text += f" alias({operand.alias})"
    return text


def _over(over: Over, dims: _Dims) -> str:
    match over:
        case Reduce(op, axes, where):
            return f"{op}({dims(axes)}{f' where {print_expr(where)}' if where is not None else ''}) "
        case Scan(op, axis, reverse, exclusive):
            return f"scan {op}({axis}{' reverse' if reverse else ''}{' exclusive' if exclusive else ''}) "
        case Order(kind, axis, descending):
            return f"{kind}({axis}{' descending' if descending else ''}) "
        case Scatter(op, axes, index, base):
            return f"scatter {op}({dims(axes)} -> {','.join(map(print_expr, index))} ; {print_expr(base)}) "


def _stmt(stmt: Stmt, spec: KernelSpec, dims: _Dims) -> str:
    declared = "" if stmt.target in spec.operand else f": {stmt.dtype}"
    axes = dims(stmt.axes)
    over = _over(stmt.over, dims) if stmt.over is not None else ""
    return f"  {stmt.target}{declared}[{axes}] = {over}{print_expr(stmt.expr)}"


def _body(spec: KernelSpec, dims: _Dims) -> list[str]:
    """The lines of all statements; those of a loop stand in its block."""
    lines: list[str] = []
    for loop, group in groupby(spec.body, key=lambda s: s.loop):
        stmts = [_stmt(s, spec, dims) for s in group] if loop is None else []
        if loop is not None:
            head = f"  loop {dims((loop.axis,))}{' reverse' if loop.reverse else ''} {{"
            stmts = [head, *(f"  {_stmt(s, spec, dims)}" for s in group), "  }"]
        lines += stmts
    return lines


def print_kernel(spec: KernelSpec) -> str:
    """The text of a spec, without a trailing newline."""
    dims = _Dims(spec)
    symbolic = [_symbolic(s) for s in spec.sizes if s.size is None]
    head = f"kernel {spec.name}{'<' + ', '.join(symbolic) + '>' if symbolic else ''}"
    inputs = ", ".join(_operand(o, dims) for o in spec.inputs)
    outputs = ", ".join(_operand(o, dims) for o in spec.outputs)
    body = "\n".join(_body(spec, dims))
    return f"{head}({inputs}) -> ({outputs}) {{\n{body}\n}}"
