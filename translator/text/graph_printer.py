"""Graph -> text. The output parses back to an equal graph."""

from __future__ import annotations

import json

from kvc.dtypes import DType
from kvc.graph import Arg, Graph, Input, Node, Ref, TensorType
from kvc.kernel import contiguous
from kvc.text.kernel_printer import literal


def print_type(type_: TensorType) -> str:
    """f32[3,5], with its strides where they are not row-major."""
    text = f"{type_.dtype}[{','.join(map(str, type_.shape))}]"
    if type_.strides != contiguous(type_.shape):
        text += f" strides({','.join(map(str, type_.strides))})"
    return text


def print_arg(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return f"%{arg.name}"
    if isinstance(arg, tuple):
        return f"[{', '.join(map(print_arg, arg))}]"
    if isinstance(arg, DType):
        return arg.name
    if isinstance(arg, str):
        return json.dumps(arg, ensure_ascii=False)
    return "none" if arg is None else literal(arg)


def _input(i: Input) -> str:
    kind = f" {i.kind}" if i.kind in ("buffer", "const") else ""
    source = f" @{json.dumps(i.target, ensure_ascii=False)}" if i.kind != "user" else ""
    return f"%{i.name}: {print_type(i.type)}{kind}{source}"


def print_node(node: Node) -> str:
    """One line, without its indentation."""
    outputs = ", ".join(f"%{o}" for o in node.outputs)
    args = [*map(print_arg, node.args), *(f"{name}={print_arg(value)}" for name, value in node.attrs)]
    types = ", ".join(map(print_type, node.types))
    place = f"  # {node.loc}" if node.loc is not None else ""
    return f"{outputs} = {node.op}({', '.join(args)}) : {types}{place}"


def print_graph(graph: Graph) -> str:
    """The text of a graph, without a trailing newline. Input kinds: `@"name"` alone is a parameter."""
    lines = [f"graph {graph.name}({', '.join(map(_input, graph.inputs))}) {{"]
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    lines += [f"  update %{buffer} = %{value}" for buffer, value in graph.mutations]
    lines.append(f"  return {', '.join(f'%{o}' for o in graph.outputs)}".rstrip())
    lines.append("}")
    return "\n".join(lines)
