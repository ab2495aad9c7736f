"""From a captured graph to a plan: the ordered passes, as data, with the invariants checked after each."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from kvc.check import RESERVED, check_graph
from kvc.cost import arithmetic
from kvc.emitter import Composite
from kvc.graph import Graph, TensorType
from kvc.kernel import KernelSpec, Stmt
from kvc.lower import Provenance, fallbacks, lower
from kvc.passes.canonicalize import canonicalize
from kvc.passes.dedupe import dedupe
from kvc.passes.empty import empty
from kvc.passes.fold import fold
from kvc.passes.fold_norm import fold_norms
from kvc.passes.fuse import Barrier, Fusion
from kvc.passes.partition import Cut, grouped, partition
from kvc.passes.pools import compose_pools
from kvc.plan import Fallback, Invoke, Plan, Step, fixed_inputs

GRAPH_PASSES: tuple[Callable[[Graph], Graph], ...] = (
    empty, canonicalize, fold, fold_norms, compose_pools, canonicalize,
)  # fmt: skip

MAX_NAME = 48  # characters of a kernel's name


def plan(graph: Graph, composites: Sequence[Composite] = ()) -> Plan:
    """The kernels of a graph and the order in which they run. Nodes that the op table cannot express are fallback
    steps; `composites`: what the target writes as one kernel. KVC0302 where a pass breaks an invariant."""
    check_graph(graph)
    for run in GRAPH_PASSES:
        graph = check_graph(run(graph))
    whole, provenance = lower(graph)
    whole = _plain_intermediates(graph, whole)
    reasons = fallbacks(graph)
    pieces = partition(
        whole,
        _barriers(graph, reasons),
        lambda targets: kernel_name([whole.stmt[t] for t in targets], provenance),
        composites,
        fixed_inputs(graph),
    )
    every = [p for p in pieces if isinstance(p, Cut)]
    pieces = [p for p in pieces if not (isinstance(p, Cut) and _is_empty(p.spec))]
    cuts = [p for p in pieces if isinstance(p, Cut)]
    kernels, which = dedupe([c.spec for c in cuts])
    numbers = iter(which)
    steps: list[Step] = []
    for piece in pieces:
        if isinstance(piece, Cut):
            steps.append(_invoke(piece, next(numbers), provenance))
        else:
            steps.append(Fallback(graph.producer[piece.name], reasons[piece.name]))
    made = Plan(graph, kernels, tuple(steps), _buffers(graph, whole, every))
    return replace(made, steps=(*(steps[n] for n in sorted(made.prologue)), *made.calls))


def fusion(graph: Graph, composites: Sequence[Composite] = ()) -> Fusion:
    """How the statements of a graph that has been through the passes (a plan's) are grouped into kernels."""
    whole, _ = lower(graph)
    barriers = _barriers(graph, fallbacks(graph))
    return grouped(_plain_intermediates(graph, whole), barriers, composites, fixed_inputs(graph))


def _barriers(graph: Graph, reasons: Collection[str]) -> list[Barrier]:
    return [Barrier(n.name, n.outputs, tuple(dict.fromkeys(n.refs))) for n in graph.nodes if n.name in reasons]


def _invoke(cut: Cut, kernel: int, provenance: Provenance) -> Invoke:
    nodes = list(dict.fromkeys(n for t in cut.targets for n in provenance[t]))
    return Invoke(
        kernel,
        tuple(o.name for o in cut.spec.inputs),
        tuple(o.name for o in cut.spec.outputs),
        tuple(dict.fromkeys(n.loc for n in nodes if n.loc is not None)),
        tuple(n.name for n in nodes),
    )


def _is_empty(spec: KernelSpec) -> bool:
    """Whether a kernel would write no element."""
    return all(0 in spec.shape_of(o.name) for o in spec.outputs)


def _buffers(graph: Graph, whole: KernelSpec, cuts: Sequence[Cut]) -> dict[str, TensorType]:
    """Types of what kernels write: outputs of the whole spec have the captured shape and the strides that the kernel
    writes; every other tensor is contiguous, in the shape of the kernel that writes it."""
    strided = {o.name for o in whole.outputs if o.strides is not None}
    outputs = {o.name for o in whole.outputs}
    buffers: dict[str, TensorType] = {}
    for cut in cuts:
        for operand in cut.spec.outputs:
            shape = graph.types[operand.name].shape if operand.name in outputs else cut.spec.shape_of(operand.name)
            own = TensorType.of(operand.dtype, shape)
            buffers[operand.name] = graph.types[operand.name] if operand.name in strided else own
    return buffers


def _plain_intermediates(graph: Graph, whole: KernelSpec) -> KernelSpec:
    """The spec in which what only fallbacks read is contiguous: torch takes any strides, and the arena has none."""
    return replace(
        whole, outputs=tuple(o if o.name in graph.live_out else replace(o, strides=None) for o in whole.outputs)
    )


def kernel_name(stmts: Sequence[Stmt], provenance: Provenance) -> str:
    """A kernel's name from the operators it contains, in order: linear_gelu, rms_norm. Operators that only move,
    select or convert are left out where others compute."""
    computing = [s for s in stmts if s.over is not None or s.loop is not None or arithmetic(s.expr)]
    ops = dict.fromkeys(re.sub(r"\W", "_", n.op) for s in computing or stmts for n in provenance[s.target])
    name = ""
    for op in ops:
        if name and len(name) + len(op) >= MAX_NAME:
            break
        name = f"{name}_{op}" if name else op
    return f"{name}_kernel" if name in RESERVED else name


__all__ = ["plan"]
