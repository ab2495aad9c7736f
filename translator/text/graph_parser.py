"""Text -> Graph, by the Lark grammar in graph.lark."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

from kvc.diagnostics import KvcError, Location
from kvc.dtypes import DType, dtype
from kvc.graph import Arg, Graph, Input, Node, Ref, TensorType
from lark import Lark, Token, Transformer, UnexpectedInput, v_args
from lark.exceptions import VisitError

_PLACE = re.compile(r"#\s*(\S+?)(?::(\d+))?\s*$")


@cache
def _grammar() -> Lark:
    text = resources.files("kvc.text").joinpath("graph.lark").read_text()
    return Lark(text, parser="lalr", maybe_placeholders=True)


def _name(ref: Token) -> str:
    return str(ref)[1:]


@v_args(inline=True)
class _Build(Transformer):
    """Bottom-up construction."""

    # values
    def ref(self, token: Token) -> Ref:
        return Ref(_name(token))

    def string(self, token: Token) -> str:
        return str(json.loads(token))

    def float_literal(self, token: Token) -> float:
        return float(token)

    def int_literal(self, token: Token) -> int:
        return int(token)

    def bool_literal(self, token: Token) -> bool:
        return token == "true"

    def none(self) -> None:
        return None

    def dtype_literal(self, token: Token) -> DType:
        return dtype(str(token))

    def values(self, *items: Arg) -> tuple[Arg, ...]:
        return items

    def tuple(self, items: Any) -> Any:
        return items or ()

    def keyword(self, name: Token, value: Any) -> _Keyword:
        return _Keyword(str(name), value)

    def args(self, *items: Any) -> list[Any]:
        return list(items)

    # types
    def ints(self, *items: Token) -> Any:
        return [int(i) for i in items]

    def strides(self, values: list[int] | None) -> Any:
        return values or []

    def type(self, of: Token, shape: list[int] | None, strides: list[int] | None) -> TensorType:
        plain = TensorType.of(dtype(str(of)), (*(shape or ()),))
        return plain if strides is None else TensorType(plain.dtype, plain.shape, (*strides,))

    # declarations
    def source(self, token: Token) -> str:
        return str(json.loads(token))

    def input(self, name: Token, type_: TensorType, kind: Token | None, source: str | None) -> Input:
        default = "user" if source is None else "param"
        return Input(_name(name), type_, str(kind) if kind is not None else default, source or "")

    def inputs(self, *items: Input) -> Any:
        return items

    def refs(self, *items: Token) -> Any:
        return [_name(i) for i in items]

    def update(self, buffer: Token, value: Token) -> _Update:
        return _Update(_name(buffer), _name(value))

    def node(self, *parts: Any) -> Node:
        outputs = [_name(p) for p in parts if isinstance(p, Token) and p.type == "REF"]
        op = next(p for p in parts if isinstance(p, Token) and p.type == "OP")
        args: list[Any] = next((p for p in parts if isinstance(p, list)), [])
        place = parts[-1] if isinstance(parts[-1], Token) and parts[-1].type == "PLACE" else None
        return Node(
            (*outputs,),
            str(op),
            (*(a for a in args if not isinstance(a, _Keyword)),),
            (*((a.name, a.value) for a in args if isinstance(a, _Keyword)),),
            (*(p for p in parts if isinstance(p, TensorType)),),
            _location(place),
        )

    def graph(self, name: Token, inputs: Any, *parts: Any) -> Graph:
        nodes = [p for p in parts if isinstance(p, Node)]
        updates = [(p.buffer, p.value) for p in parts if isinstance(p, _Update)]
        return Graph(str(name), (*(inputs or ()),), (*nodes,), (*(parts[-1] or ()),), (*updates,))

    def start(self, graph: Graph) -> Graph:
        return graph


class _Keyword:
    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value


class _Update:
    def __init__(self, buffer: str, value: str) -> None:
        self.buffer, self.value = buffer, value


def _location(place: Token | None) -> Location | None:
    """`# model.py:12`; any other comment says nothing."""
    found = _PLACE.match(str(place)) if place is not None else None
    return Location(found[1], int(found[2] or 0)) if found else None


def parse_graph(text: str, file: str = "<text>") -> Graph:
    """The graph of a .kir text. KVC0301 with the line where it does not parse, KVC0302 where an invariant is broken."""
    from kvc.check import check_graph

    try:
        graph: Graph = _Build().transform(_grammar().parse(text))
    except UnexpectedInput as e:
        context = e.get_context(text, 30).rstrip()
        raise KvcError("KVC0301", f"unexpected input\n{context}", Location(file, max(e.line, 0))) from None
    except VisitError as e:
        if not isinstance(e.orig_exc, ValueError):
            raise
        raise KvcError("KVC0301", str(e.orig_exc), Location(file)) from None
    except RecursionError:
        raise KvcError("KVC0301", "nested too deeply", Location(file)) from None
    return check_graph(graph)
