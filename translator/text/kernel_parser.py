"""Text -> KernelSpec, by the Lark grammar in kernel.lark."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from kvc.diagnostics import KvcError, Location
from kvc.dtypes import DType, dtype
from kvc.functions import FUNCTIONS, INFIX
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
    Operand,
    Order,
    Reduce,
    Scan,
    Scatter,
    Size,
    Stmt,
)
from lark import Lark, Token, Transformer, UnexpectedInput, v_args
from lark.exceptions import VisitError

#: Levels of an expression that the passes, which recurse, are sure to bear.
DEEPEST = 150


@cache
def _grammar() -> Lark:
    text = resources.files("kvc.text").joinpath("kernel.lark").read_text()
    return Lark(text, parser="lalr", maybe_placeholders=True)


@v_args(inline=True)
class _Build(Transformer):
    """Bottom-up construction; `sizes` collects the axes that one kernel declares."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, Size] = {}

    # literals and expressions
    def float_literal(self, token: Token) -> Const:
        return Const(float(token))

    def int_literal(self, token: Token) -> Const:
        return Const(int(token))

    def bool_literal(self, token: Token) -> Const:
        return Const(token == "true")

    def negate(self, arg: Expr) -> Expr:
        is_number = isinstance(arg, Const) and not isinstance(arg.value, bool)
        return Const(-arg.value) if is_number else Call("neg", (arg,))  # type: ignore[attr-defined]

    def fold_infix(self, first: Expr, *rest: Any) -> Expr:
        for operator, right in zip(rest[::2], rest[1::2], strict=True):
            first = Call(INFIX[str(operator)], (first, right))
        return first

    def fold_compare(self, left: Expr, operator: Token | None = None, right: Expr | None = None) -> Expr:
        return left if operator is None or right is None else Call(INFIX[str(operator)], (left, right))

    def fold_or(self, first: Expr, *rest: Expr) -> Expr:
        for right in rest:
            first = Call("or", (first, right))
        return first

    def fold_and(self, first: Expr, *rest: Expr) -> Expr:
        for right in rest:
            first = Call("and", (first, right))
        return first

    def extent(self, name: Token) -> Expr:
        return Extent(str(name))

    def cast(self, to: DType, arg: Expr) -> Expr:
        return Cast(to, arg)

    def call(self, name: Token, args: list[Expr] | None) -> Expr:
        function = FUNCTIONS.get(str(name))
        if function is None:
            raise _error(name, f"no function '{name}'")
        if function.arity != len(args or []):
            raise _error(name, f"{name} takes {function.arity} arguments, not {len(args or [])}")
        return Call(str(name), tuple(args or []))

    def load(self, name: Token, index: list[Expr] | None, other: Expr | None) -> Expr:
        return Load(str(name), tuple(index or []), other)

    def axis(self, name: Token) -> Expr:
        return Axis(str(name))

    def exprs(self, *items: Expr) -> list[Expr]:
        return list(items)

    def dtype(self, token: Token) -> DType:
        return dtype(str(token))

    # declarations
    def dim(self, name: Token, size: Token | None) -> str:
        known = self.sizes.get(str(name))
        if size is not None and known is not None and known.size != int(size):
            raise _error(name, f"axis {name} was declared with size {known.size}")
        if known is None:
            if size is None:
                raise _error(name, f"the first mention of axis {name} must give its size, {name}=N")
            self.sizes[str(name)] = Size(str(name), int(size))
        return str(name)

    def dims(self, *names: str) -> tuple[str, ...]:
        return names

    def symbolic(self, name: Token, low: Token, high: Token, hint: Token | None, multiple: Token | None) -> None:
        self.sizes[str(name)] = Size(str(name), None, int(low), int(high), int(hint or 0), int(multiple or 1))

    def ints(self, *items: Token) -> tuple[int, ...]:
        return tuple(int(i) for i in items)

    def strides(self, values: tuple[int, ...] | None) -> tuple[str, Any]:
        return "strides", values or ()

    def align(self, value: Token) -> tuple[str, Any]:
        return "align", int(value)

    def alias(self, name: Token) -> tuple[str, Any]:
        return "alias", str(name)

    def operand(self, name: Token, of: DType, dims: tuple[str, ...] | None, *attrs: tuple[str, Any]) -> Operand:
        return Operand(str(name), of, dims or (), **dict(attrs))

    def operands(self, *items: Operand) -> tuple[Operand, ...]:
        return items

    # statements
    def reduce_where(self, cond: Expr) -> Expr:
        return cond

    def reduce(self, op: Token, axes: tuple[str, ...], where: Expr | None) -> Reduce:
        return Reduce(str(op), axes, where)

    def scan(self, op: Token, axis: Token, reverse: Token | None, exclusive: Token | None) -> Scan:
        return Scan(str(op), str(axis), reverse is not None, exclusive is not None)

    def scatter(self, op: Token, axes: tuple[str, ...] | None, index: list[Expr] | None, base: Expr) -> Scatter:
        return Scatter(str(op), axes or (), tuple(index or []), base)

    def order(self, kind: Token, axis: Token, descending: Token | None) -> Order:
        return Order(str(kind), str(axis), descending is not None)

    def stmt(self, target: Token, of: DType | None, axes: tuple[str, ...] | None, over: Any, expr: Expr) -> Any:
        return target, of, axes or (), over, expr, None

    def loop(self, axis: str, reverse: Token | None, *stmts: Any) -> Any:
        loop = Loop(axis, reverse is not None)
        return [(*stmt[:-1], loop) for stmt in stmts]

    def kernel(self, name: Token, _symbolics: Any, inputs: Any, outputs: Any, *parts: Any) -> KernelSpec:
        dtypes = {o.name: o.dtype for o in outputs}
        body = []
        for target, of, axes, over, expr, loop in (
            s for part in parts for s in (part if isinstance(part, list) else [part])
        ):
            if of is None and str(target) not in dtypes:
                raise _error(target, f"{target} is no output, so it must declare its dtype, {target}: f32[...]")
            body.append(Stmt(str(target), of or dtypes[str(target)], axes, expr, over, loop))
        sizes, self.sizes = tuple(self.sizes.values()), {}
        return KernelSpec(str(name), sizes, inputs or (), outputs, tuple(body))

    def start(self, *kernels: KernelSpec) -> list[KernelSpec]:
        return list(kernels)


class _Misuse(Exception):
    """A semantic error at a token; becomes KVC0301 with the token's line."""

    def __init__(self, token: Token, message: str) -> None:
        super().__init__(message)
        self.line = token.line or 0


def _error(token: Token, message: str) -> _Misuse:
    return _Misuse(token, message)


def parse_kernels(text: str, file: str = "<text>") -> list[KernelSpec]:
    """All kernels of a .kir text. KVC0301 with the line where one does not parse, KVC0302 where an invariant breaks."""
    from kvc.check import check_kernel

    return [check_kernel(kernel) for kernel in parse_unchecked(text, file)]


def parse_unchecked(text: str, file: str = "<text>") -> list[KernelSpec]:
    """All kernels of a .kir text, whatever their meaning."""
    try:
        kernels: list[KernelSpec] = _Build().transform(_grammar().parse(text))
    except UnexpectedInput as e:
        context = e.get_context(text, 30).rstrip()
        raise KvcError("KVC0301", f"unexpected input\n{context}", Location(file, max(e.line, 0))) from None
    except VisitError as e:
        if isinstance(e.orig_exc, ValueError):  # a number of thousands of digits
            raise KvcError("KVC0301", str(e.orig_exc), Location(file)) from None
        if not isinstance(e.orig_exc, _Misuse):
            raise
        raise KvcError("KVC0301", str(e.orig_exc), Location(file, e.orig_exc.line)) from None
    except RecursionError:
        raise KvcError("KVC0301", "nested too deeply", Location(file)) from None
    for kernel in kernels:
        for stmt in kernel.body:
            if any(depth_of(part) > DEEPEST for part in stmt.roots):
                raise KvcError("KVC0301", f"{stmt.target}: an expression deeper than {DEEPEST} levels", Location(file))
    return kernels


def depth_of(expr: Expr) -> int:
    """Levels of an expression's tree, counted without recursion."""
    deepest, pending = 0, [(expr, 1)]
    while pending:
        node, depth = pending.pop()
        deepest = max(deepest, depth)
        pending += [(child, depth + 1) for child in node.children]
    return deepest


def parse_kernel(text: str, file: str = "<text>") -> KernelSpec:
    """The one kernel of a text."""
    kernels = parse_kernels(text, file)
    if len(kernels) != 1:
        raise KvcError("KVC0301", f"{len(kernels)} kernels where one is expected", Location(file))
    return kernels[0]
