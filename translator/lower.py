"""Graph -> one KernelSpec that states the whole model: every node by its op's meaning, values keeping their names.

Nodes without a meaning are fallbacks: they run eagerly, so what they read is an output of the spec and what they give
is an input of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvc.builder import Builder, Tensor
from kvc.check import RESERVED, check_kernel
from kvc.diagnostics import KvcError
from kvc.graph import Arg, Attr, Graph, Node, Ref, TensorType
from kvc.kernel import Expr, KernelSpec, Load, Operand, Stmt, needed, transform
from kvc.ops import OpDef, op_table
from kvc.simplify import simplify_indices

Provenance = dict[str, tuple[Node, ...]]
_NO_MEANING = "no definition in the op table"


def lower(graph: Graph) -> tuple[KernelSpec, Provenance]:
    """The whole model as one spec, and the nodes that each statement came from.

    Inputs are the graph's inputs that are read, then what fallbacks give; outputs are the graph's outputs and buffer
    updates that are computed, then what fallbacks read. KVC0302 where an op's meaning disagrees with the captured
    shape or dtype.
    """
    lowering = _Lowering(graph)
    for node in graph.nodes:
        lowering.node(node)
    spec = simplify_indices(lowering.spec())
    check_kernel(spec)
    return spec, {s.target: lowering.provenance[s.target] for s in spec.body}


def fallbacks(graph: Graph) -> dict[str, str]:
    """The nodes that have no meaning, by name, with the reason."""
    lowering = _Lowering(graph)
    for node in graph.nodes:
        lowering.node(node)
    return lowering.reasons


def meaning_of(k: Builder, node: Node, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Write the node's statements; `values` are the tensors that it may read. KVC0203 where it has no meaning."""
    definition: OpDef | None = op_table().get(node.op)
    if definition is None:
        raise KvcError("KVC0203", f"{node.op}: {_NO_MEANING}", node.loc)
    args = [_argument(arg, values) for arg in node.args]
    # An ATen argument named k would clash with the builder's.
    attrs = {"k_" if name == "k" else name: value for name, value in node.attrs}
    result = definition.meaning(k, *args, **attrs)
    return result if isinstance(result, tuple) else (result,)


def _argument(arg: Arg, values: dict[str, Tensor]) -> Tensor | Attr | tuple:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, tuple):
        return tuple(_argument(a, values) for a in arg)
    return arg


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.k = Builder(frozenset(graph.types) | RESERVED)
        self.values = {i.name: self.k.operand(i.name, i.type.dtype, i.type.shape) for i in graph.inputs}
        self.provenance: Provenance = {}
        self.reasons: dict[str, str] = {}
        self.given: list[str] = []  # values that fallbacks give
        self.wanted: dict[str, None] = {}  # values that fallbacks read
        self.read = graph.live_out | {r for n in graph.nodes for r in n.refs}

    # ------------------------------------------------------------ nodes
    def node(self, node: Node) -> None:
        start = len(self.k.stmts)
        self.k.prefix = f"{node.name}_t"
        try:
            results = meaning_of(self.k, node, self.values)
        except KvcError as e:
            if e.code != "KVC0203":
                raise
            self.fallback(node, start, e.diagnostic.message)
            return
        if len(results) != len(node.outputs):
            raise self.broken(node, f"gives {len(results)} values, captured {len(node.outputs)}")
        for value, tensor, type_ in zip(node.outputs, results, node.types, strict=True):
            if value not in self.read:
                # Saved statistics have another dtype on other devices; nothing reads them in a forward pass.
                continue
            if tensor.shape != type_.shape or tensor.dtype is not type_.dtype:
                own = f"{tensor.dtype}{list(tensor.shape)}"
                raise self.broken(node, f"means {own}, captured {type_.dtype}{list(type_.shape)}")
        self.values.update(self.named(node, results, start))
        for stmt in self.k.stmts[start:]:
            self.provenance[stmt.target] = (node,)

    def broken(self, node: Node, what: str) -> KvcError:
        return KvcError("KVC0302", f"{node.name} = {node.op}: {what}", node.loc)

    def named(self, node: Node, results: tuple[Tensor, ...], start: int) -> dict[str, Tensor]:
        """Give the statements that define the node's values their names. A value that is another tensor (an identity)
        stays that tensor."""
        own = {s.target for s in self.k.stmts[start:]}
        names: dict[str, str] = {}
        values: dict[str, Tensor] = {}
        for value, tensor in zip(node.outputs, results, strict=True):
            if tensor.name in own:
                names.setdefault(tensor.name, value)
            name = names.get(tensor.name, tensor.name)
            values[value] = replace(tensor, name=name)
        self.k.stmts[start:] = [_renamed(s, names) for s in self.k.stmts[start:]]
        for old, new in names.items():
            self.k.tensors[new] = replace(self.k.tensors.pop(old), name=new)
        return values

    def fallback(self, node: Node, start: int, reason: str) -> None:
        for stmt in self.k.stmts[start:]:
            del self.k.tensors[stmt.target]
        del self.k.stmts[start:]
        self.reasons[node.name] = reason
        self.wanted.update(dict.fromkeys(node.refs))
        for name, type_ in zip(node.outputs, node.types, strict=True):
            self.values[name] = self.k.operand(name, type_.dtype, type_.shape)
            self.given.append(name)

    # ------------------------------------------------------------ the spec
    def spec(self) -> KernelSpec:
        graph = self.graph
        written = dict.fromkeys((*graph.outputs, *(v for _, v in graph.mutations), *self.wanted))
        sources = {i.name for i in graph.inputs} | set(self.given)
        outputs = [self.output(name) for name in written if name not in sources]
        body = _live(self.k.stmts, {o.name for o in outputs})
        read = {load.tensor for stmt in body for load in stmt.loads()}
        types = graph.types
        inputs = [
            self.operand(name, types[name]) for name in (*(i.name for i in graph.inputs), *self.given) if name in read
        ]
        axes = {d for o in (*inputs, *outputs) for d in o.dims}
        axes.update(a for s in body for a in (*s.axes, *s.inner_axes))
        sizes = tuple(s for n, s in self.k.sizes.items() if n in axes)
        return KernelSpec(graph.name, sizes, tuple(inputs), tuple(outputs), tuple(body))

    def operand(self, name: str, type_: TensorType) -> Operand:
        strides = None if type_.is_contiguous or _overlaps(type_) else type_.strides
        return Operand(name, type_.dtype, self.k.tensors[name].dims, strides)

    def output(self, name: str) -> Operand:
        """The operand for a value that must exist in memory; a value that is only another name gets a copy."""
        tensor = self.values[name]
        if tensor.name != name:
            axes = self.k.axes_like(tensor)
            self.values[name] = self.k.define(tensor.dtype, axes, tensor[axes], name=name)
            self.provenance[name] = (self.graph.producer[name],)
        return self.operand(name, self.graph.types[name])


def _overlaps(type_: TensorType) -> bool:
    """Whether several elements share memory (an expanded tensor): such a buffer cannot be written as it is."""
    reach = 0
    for stride, extent in sorted((s, n) for s, n in zip(type_.strides, type_.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def _renamed(stmt: Stmt, names: dict[str, str]) -> Stmt:
    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.tensor in names:
            return Load(names[expr.tensor], expr.index, expr.other)
        return expr

    stmt = stmt.map(lambda root: transform(root, visit))
    return replace(stmt, target=names.get(stmt.target, stmt.target))


def _live(stmts: Iterable[Stmt], outputs: set[str]) -> list[Stmt]:
    """The statements that some output depends on, in order."""
    body = list(stmts)
    live = needed(body, outputs)
    return [s for s in body if s.target in live]


__all__ = ["Provenance", "fallbacks", "lower", "meaning_of"]
