"""`torch.compile(model, backend="kvc", options={...})`: the graphs of a program as verified kernels.

torch finds the backend through the entry-point group "torch_dynamo_backends". AOTAutograd hands over functional forward
and backward graphs, having taken mutation and aliasing of inputs upon itself; each becomes the same written module that
`kvc translate` writes, kept in the cache. What cannot be translated runs eagerly, with the reason in the log. Options:
kvc.dynamo_options.DynamoOptions; dynamic shapes: kvc.dynamic_shapes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError
from kvc.dynamic_shapes import ByShape, Family, is_symbolic
from kvc.dynamo_options import DynamoOptions, resolved
from kvc.logs import tell, topic

if TYPE_CHECKING:
    from torch.fx import GraphModule

Run = Callable[..., Any]
_lock = threading.RLock()


@dataclass(frozen=True)
class GraphReport:
    """What became of a graph: `kind` "forward", "backward" or "inference", its size in FX nodes, launches of generated
    kernels a call, operators that run eagerly inside it, `reason` why it runs eagerly as a whole ("" where it does
    not), seconds that it took, and whether the cache had it."""

    kind: str
    nodes: int
    kernels: int = 0
    fallbacks: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    cached: bool = False


#: Called with a report of each graph, once it is compiled.
observers: list[Callable[[GraphReport], None]] = []


def _new_lock() -> None:
    """In a forked child: the thread that held the lock does not exist there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_new_lock)


def _let_recurrent_layers_in() -> None:
    """Dynamo breaks its graphs at nn.LSTM, nn.GRU and nn.RNN, since they take long to trace; kvc has kernels for them.
    torch imports this module when the backend is first named, before anything is traced."""
    import torch

    torch._dynamo.config.allow_rnn = True


_let_recurrent_layers_in()


def kvc(module: GraphModule, inputs: list[Any], *, options: Mapping[str, Any] | None = None, mode: str = "") -> Run:
    """The backend: torch.compile calls it with each graph that Dynamo captured. KVC0105, KVC0106 for options that mean
    nothing."""
    from kvc.frontends.fx.decompose import decompositions_for_tracing
    from kvc.frontends.fx.fast_paths import fast_paths
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if mode not in ("", "default", "reduce-overhead", None):
        raise KvcError("KVC0106", f"mode {mode!r}", hint='leave out mode=; options={"budget": "10m"} tunes kernels')
    chosen = DynamoOptions.of({**(options or {}), **({"graphs": True} if mode == "reduce-overhead" else {})})
    backend = aot_autograd(
        fw_compiler=_compiler("forward", chosen),
        bw_compiler=_compiler("backward", chosen),
        inference_compiler=_compiler("inference", chosen),
        decompositions=lambda: {**decompositions_for_tracing(), **fast_paths()},
    )
    # Attention and recurrent layers by their definition: the fused operators that torch would pick in training have
    # gradients that only torch knows.
    with sdpa_kernel(SDPBackend.MATH), _without_mkldnn():
        run: Run = backend(module, inputs)
    return run


@contextmanager
def _without_mkldnn() -> Iterator[None]:
    """What is traced within takes no operator that only the CPU has."""
    import torch

    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _compiler(kind: str, options: DynamoOptions) -> Callable[[GraphModule, Sequence[Any]], Run]:
    """A compiler of one kind of graph, as AOTAutograd wants it."""

    def compile_graph(module: GraphModule, inputs: Sequence[Any]) -> Run:
        from functorch.compile import make_boxed_func

        static = _parameters(kind)
        if is_symbolic(module, inputs):
            run: Run = ByShape(
                kind,
                module,
                options.strict,
                lambda graph, fakes, family: _compiled(kind, graph, fakes, options, family, static),
                lambda graph, args, family: _learned(kind, graph, args, options, family),
                _compiling,
            )
        else:
            run = _compiled(kind, module, inputs, options, None, static)
        boxed: Run = make_boxed_func(run)
        return boxed

    return compile_graph


def _parameters(kind: str) -> tuple[int, ...]:
    """The positions of a graph's inputs that are parameters and buffers, as AOTAutograd knows them while it compiles.
    Of a backward graph it says nothing."""
    import torch

    context = torch._guards.TracingContext.try_get()
    metadata = getattr(context, "fw_metadata", None)
    return tuple(getattr(metadata, "static_input_indices", ())) if kind != "backward" else ()


@contextmanager
def _compiling() -> Iterator[None]:
    """One compilation at a time, outside of torch's own tracing: AOTAutograd compiles under its fake tensors, which
    would make fakes of the tensors that kvc computes with."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _lock, _disable_current_modes():
        yield


def _compiled(
    kind: str,
    module: GraphModule,
    inputs: Sequence[Any],
    options: DynamoOptions,
    family: Family | None = None,
    static: Sequence[int] = (),
) -> Run:
    """The graph as a callable: kernels, or, unless `strict`, the graph itself with a logged reason. `static`: the
    positions of parameters among its inputs."""
    from kvc.compiled_graph import compiled_graph
    from kvc.replay import replayed

    nodes, started = len(module.graph.nodes), time.monotonic()

    def report(**details: Any) -> None:
        for observer in observers:
            observer(GraphReport(kind, nodes, seconds=time.monotonic() - started, **details))

    try:
        with _compiling():
            tell("dynamo", lambda: f"{kind} graph:\n{module.print_readable(print_output=False)}")
            made = compiled_graph(kind, module, inputs, resolved(options, inputs), family)
    except KvcError as error:
        if options.strict:
            raise
        topic("dynamo").warning("a %s graph of %d nodes runs eagerly: %s", kind, nodes, error)
        report(reason=str(error))
        run: Run = module.forward
        return run
    report(kernels=made.kernels, fallbacks=made.fallbacks, cached=made.known)
    for reason in made.fallbacks:
        topic("dynamo").info("in a %s graph, eagerly: %s", kind, reason)
    for reason in family.news() if family is not None else ():
        topic("dynamo").info("in a %s graph, a kernel for each set of sizes: %s", kind, reason)
    if options.graphs:
        return replayed(made.model, kind, [reason.partition(": ")[0] for reason in made.fallbacks], inputs, static)
    return made


def _learned(kind: str, module: GraphModule, args: Sequence[Any], options: DynamoOptions, family: Family) -> None:
    """Find the kernels with symbolic sizes of a graph that is first called with `args`. Where the graph cannot be
    translated at all, its translation at these sizes says so."""
    from kvc.dynamic_shapes import plans_of
    from kvc.emitter import target

    try:
        place = resolved(options, args)
        plans = plans_of(kind, module, args, target(place.target))
    except KvcError as error:
        plans = str(error)
    if isinstance(plans, str):
        family.reasons["all"] = plans
    else:
        family.learn(*plans)


__all__ = ["DynamoOptions", "GraphReport", "kvc", "observers"]
