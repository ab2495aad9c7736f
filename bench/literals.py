"""Sizes of a problem: the integer literals of its file that say how large it is, and the file with others in place.

Literals are replaced in the text itself, span by span, so that lines stay where they are and diagnostics point into
the user's own file. Three kinds are told apart by where they stand:

    "given"    module-level constants, and literals in get_inputs and get_init_inputs
    "default"  defaults of the constructors' parameters
    "built"    other literals in class bodies, outside every method that takes part in forward

What forward does is never touched.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_FUNCTIONS = ("get_inputs", "get_init_inputs")
_CONSTRUCTORS = ("__init__",)


@dataclass(frozen=True)
class Literal:
    """An integer expression without names, `value` what it comes to: text[start:stop] in bytes. `name` is the constant
    it defines, "" where it stands inside a function."""

    value: int
    start: int
    stop: int
    kind: str
    name: str = ""


def find_literals(source: str) -> tuple[Literal, ...]:
    """Every positive integer literal that may be a size, in the order of the text."""
    tree = ast.parse(source)
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def literal(node: ast.expr, value: int, kind: str, name: str) -> Literal:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        return Literal(value, start, starts[node.end_lineno - 1] + node.end_col_offset, kind, name)

    found = [
        literal(node, value, kind, name)
        for root, kind, name in _roots(tree)
        for node, value in _integers(root)
        if value > 0
    ]
    return tuple(sorted(set(found), key=lambda x: x.start))


def rewrite(source: str, values: Mapping[Literal, int]) -> str:
    """The source with other values at the given literals."""
    text = source.encode()
    for literal, value in sorted(values.items(), key=lambda item: -item[0].start):
        if value != literal.value:
            text = text[: literal.start] + str(value).encode() + text[literal.stop :]
    return text.decode()


def _roots(tree: ast.Module) -> Iterator[tuple[ast.AST, str, str]]:
    for stmt in tree.body:
        if isinstance(stmt, ast.Assign):
            yield stmt.value, "given", _target(stmt.targets[0])
        elif isinstance(stmt, ast.AnnAssign) and stmt.value is not None:
            yield stmt.value, "given", _target(stmt.target)
        elif isinstance(stmt, ast.FunctionDef) and stmt.name in _FUNCTIONS:
            yield from ((s, "given", "") for s in stmt.body)
        elif isinstance(stmt, ast.ClassDef):
            yield from _class_roots(stmt)


def _class_roots(cls: ast.ClassDef) -> Iterator[tuple[ast.AST, str, str]]:
    methods = {s.name: s for s in cls.body if isinstance(s, ast.FunctionDef)}
    constructing = _reached(methods, _CONSTRUCTORS) - _reached(methods, ("forward",))
    for name in sorted(constructing):
        arguments = methods[name].args
        defaults = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
        yield from ((d, "default" if name in _CONSTRUCTORS else "built", "") for d in defaults)
        yield from ((s, "built", "") for s in methods[name].body)


def _reached(methods: Mapping[str, ast.FunctionDef], roots: tuple[str, ...]) -> set[str]:
    """Methods that the roots call by way of self, themselves included."""
    reached: set[str] = set()
    waiting = [r for r in roots if r in methods]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for node in ast.walk(methods[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                waiting += [node.attr] if node.attr in methods else []
    return reached


def _target(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _integers(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """The largest integer expressions without names below a node, with their values. What indexes or names a dimension
    (a subscript, dim=...) is no size."""
    if isinstance(node, ast.expr):
        value = _value(node)
        if value is not None:
            yield node, value
            return
    for name, child in ast.iter_fields(node):
        if isinstance(node, ast.Subscript) and name == "slice":
            continue
        if isinstance(node, ast.keyword) and node.arg in ("dim", "dims", "start_dim", "end_dim", "axis"):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.AST):
                yield from _integers(item)


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left), _value(node.right)
        if left is None or right is None or (isinstance(node.op, ast.FloorDiv) and right == 0):
            return None
        result = _OPERATIONS[type(node.op)](left, right)
        return result if isinstance(result, int) else None
    return None
