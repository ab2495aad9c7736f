"""Faults in Triton source: changes of its syntax tree, one at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from tests.adversarial.faults import Fault, changed

_SWAPPED: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_TURNED: dict[type, type] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
_REDUCTIONS = {"sum": "max", "max": "min", "maximum": "minimum", "minimum": "maximum", "cumsum": "cumprod"}
_FLOAT_CALLS = {
    "load",
    "sum",
    "dot",
    "exp",
    "full",
    "where",
    "sqrt",
    "rsqrt",
    "erf",
    "tanh",
    "sigmoid",
    "log",
    "reduce",
}

Change = Callable[[ast.AST], None]


def normal(source: str) -> str:
    """The source without comments, as the changed copies are written: what they are compared with."""
    return ast.unparse(ast.parse(source))


def faults(source: str) -> Iterator[Fault]:
    """All faults of a Triton source, in order of the tree."""
    original = normal(source)
    tree = ast.parse(original)
    floats = _float_names(tree)
    for number, node in enumerate(_nodes(tree)):
        for kind, change in _changes(node, floats):
            new = copy.deepcopy(tree)
            change(_nodes(new)[number])
            text = ast.unparse(ast.fix_missing_locations(new))
            if text != original:
                yield changed(kind, original, text)


def _nodes(tree: ast.Module) -> list[ast.AST]:
    """Nodes of the bodies of functions; constants of the file are structure."""
    return [n for f in tree.body if isinstance(f, ast.FunctionDef) for s in f.body for n in ast.walk(s)]


def _name(node: ast.AST) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _float_names(tree: ast.Module) -> set[str]:
    """Names that hold floating-point values, as far as the text tells."""
    found: set[str] = set()
    for node in (n for n in ast.walk(tree) if isinstance(n, ast.Assign)):
        parts = list(ast.walk(node.value))
        calls = any(_name(p) in _FLOAT_CALLS for p in parts)
        integer = any(_name(p) in ("arange", "program_id") for p in parts) or isinstance(node.value, ast.Compare)
        if (calls or any(isinstance(p, ast.Name) and p.id in found for p in parts)) and not integer:
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return found


def _changes(node: ast.AST, floats: set[str]) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[op]):
            for kind, table in (("bound", _SWAPPED), ("comparison", _TURNED)):
                if type(op) in table:
                    yield kind, _setter("ops", [table[type(op)]()])
        case ast.BinOp():
            yield from _binary(node)
        case ast.Call():
            yield from _call(node)
        case ast.Assign(targets=[ast.Name(id=name)]) if name in floats and not isinstance(node.value, ast.Constant):
            yield "precision", _narrow
        case ast.Expr(value=ast.Call()) if _name(node.value) in ("store", "atomic_add", "atomic_max", "atomic_min"):
            yield "store", _setter("value", ast.Constant(0))
        case ast.Expr(value=ast.Call()) if _name(node.value) == "debug_barrier":
            yield "barrier", _setter("value", ast.Constant(0))
        case ast.Constant(value=float()):
            yield "constant", _setter("value", node.value * 1.01 or 0.01)


def _setter(field: str, value: object) -> Change:
    return lambda node: setattr(node, field, copy.deepcopy(value))


def _binary(node: ast.BinOp) -> Iterator[tuple[str, Change]]:
    right = node.right
    if isinstance(right, ast.Constant) and type(right.value) is int:
        kind = "stride" if isinstance(node.op, ast.Mult) else "index"
        yield kind, _setter("right", ast.Constant(right.value + 1))
    match node.op:
        case ast.Sub() | ast.Div():
            yield "operands", _exchange
        case ast.BitAnd():
            yield "guard", lambda n: setattr(n, "left", n.right)  # type: ignore[attr-defined]
            yield "guard", lambda n: setattr(n, "right", n.left)  # type: ignore[attr-defined]
        case ast.Add():
            yield "arithmetic", _setter("op", ast.Sub())
        case ast.Mult():
            yield "arithmetic", _setter("op", ast.Add())


def _exchange(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.left, node.right = node.right, node.left


def _narrow(node: ast.AST) -> None:
    """x = f  ->  x = (f).to(tl.float16).to(tl.float32)"""
    assert isinstance(node, ast.Assign)
    template = ast.parse("(0).to(tl.float16).to(tl.float32)", mode="eval").body
    assert isinstance(template, ast.Call) and isinstance(template.func, ast.Attribute)
    inner = template.func.value
    assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
    inner.func.value = node.value
    node.value = template


def _call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    name = _name(node)
    for at, keyword in enumerate(node.keywords):
        if keyword.arg == "mask" and name in ("load", "store"):
            yield "guard", _drop(("mask", "other"))
        elif keyword.arg == "other":
            yield "init", _keyword(at, "1.0" if "0.0" in ast.unparse(keyword.value) else "0.0")
        elif keyword.arg == "propagate_nan":
            yield "nan", _drop(("propagate_nan",))
    if name == "full" and len(node.args) > 1:
        inf = "inf" in ast.unparse(node.args[1])
        yield "init", _argument(1, "0.0" if inf else "1.0")
    elif name == "where" and len(node.args) == 3:
        yield "operands", lambda n: n.args.__setitem__(slice(1, 3), n.args[2:0:-1])  # type: ignore[attr-defined]
    elif name == "range" and len(node.args) == 3:
        yield "bound", _argument(0, ast.unparse(node.args[2]))
        yield "bound", _argument(1, f"{ast.unparse(node.args[1])} - {ast.unparse(node.args[2])}")
    elif name in _REDUCTIONS and isinstance(node.func, ast.Attribute):
        yield "arithmetic", lambda n: setattr(n.func, "attr", _REDUCTIONS[name])  # type: ignore[attr-defined]
    elif name == "to" and "float32" in ast.unparse(node) and _name(getattr(node.func, "value", node)) == "to":
        yield "rounding", _unrounded
    elif name == "atomic_add":
        yield "atomic", lambda n: setattr(n.func, "attr", "store")  # type: ignore[attr-defined]


def _unrounded(node: ast.AST) -> None:
    """(f).to(tl.bfloat16).to(tl.float32)  ->  (f).to(tl.float32)"""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    inner = node.func.value
    assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
    node.func.value = inner.func.value


def _drop(names: tuple[str, ...]) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.keywords = [k for k in node.keywords if k.arg not in names]

    return change


def _keyword(at: int, text: str) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.keywords[at].value = ast.parse(text, mode="eval").body

    return change


def _argument(at: int, text: str) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.args[at] = ast.parse(text, mode="eval").body

    return change
