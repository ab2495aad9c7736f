"""A graph that torch has traced already (AOTAutograd's forward and backward) -> the same Captured as an export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvc.check import check_graph
from kvc.diagnostics import KvcError
from kvc.frontends.fx.capture import Captured, random_buffer
from kvc.frontends.fx.importer import Importer, pruned
from kvc.graph import Graph, Ref

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode


def capture_traced(module: GraphModule, args: Sequence[Any], name: str) -> Captured:
    """Import a functional ATen graph whose nodes carry fake values, as called on `args` (fake or real). Numbers among
    the arguments are taken as fixed. KVC0201 for what is no such graph, KVC0202 where a shape depends on data."""
    import torch

    importer = Importer("")
    state: dict[str, torch.Tensor] = {}
    leaves: list[Any] = []
    given = iter(args)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            arg = next(given)
            if isinstance(arg, torch.Tensor):
                importer.input(node, "user", "")
            else:
                importer.env[node] = importer.value(arg)
            leaves.append(importer.env[node])
        elif node.op == "get_attr" and isinstance(value := getattr(module, str(node.target), None), torch.Tensor):
            _constant(importer, node, value, state)
    returned = importer.run(module)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    mutations: tuple[tuple[str, str], ...] = ()
    random = importer.advance()
    if random is not None:
        mutations = (random,)
        state[random[0]] = random_buffer(module)
    tensors = tuple(v.name for v in outputs if isinstance(v, Ref))
    if not tensors:
        raise KvcError("KVC0201", "the graph computes no tensor")
    graph = pruned(Graph(importer.name(name), tuple(importer.inputs), tuple(importer.nodes), tensors, mutations))
    check_graph(graph)
    kept = {i.name for i in graph.inputs}
    return Captured(
        graph, module, tuple(args), {}, {n: x for n, x in state.items() if n in kept}, tuple(leaves), tuple(outputs),
        None, None, {}, "eval", False,
    )  # fmt: skip


def _constant(importer: Importer, node: FxNode, value: torch.Tensor, state: dict[str, torch.Tensor]) -> None:
    """A tensor that the trace holds: a literal where it is a number, else an input that the written module keeps."""
    if value.dim() == 0:
        node.meta.setdefault("val", value)
        importer.literal(node, value.item())
        return
    node.meta.setdefault("val", value)
    importer.input(node, "const", str(node.target))
    state[importer.env[node].name] = value.detach().clone()
