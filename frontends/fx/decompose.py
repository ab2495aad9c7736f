"""Torch's own decompositions, for just the operators that the op table does not define.

Composite operators that the table defines stay whole: a decomposed attention materialises its score matrix, and a
decomposed norm or softmax hides what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvc.ops import by_aten
from kvc.optable.complex import COMPLEX
from kvc.optable.random import RANDOM

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ROUNDS = 5  # a decomposition may produce operators that need one themselves

# Nodes that only assert what is already known of static shapes.
ASSERTIONS = frozenset(
    {"_assert_tensor_metadata.default", "_assert_scalar.default", "_assert_async.msg", "_assert_async.default",
     "sym_constrain_range.default", "sym_constrain_range_for_size.default"}
)  # fmt: skip


def overload_name(target: Any) -> str:
    """ "add.Tensor" for torch.ops.aten.add.Tensor, "library::add.Tensor" for an operator of another namespace, "" for
    what is no operator."""
    import torch

    if not isinstance(target, torch._ops.OpOverload):
        return ""
    name = str(target).removeprefix(f"{target.namespace}.")
    return name if target.namespace == "aten" else f"{target.namespace}::{name}"


def unknown_ops(program: ExportedProgram) -> set[Any]:
    """Overloads in the program (and in its subgraphs) that the op table does not define."""
    import torch

    known = {*by_aten(), *COMPLEX, *RANDOM, *ASSERTIONS}
    found = set()
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            name = overload_name(node.target)
            if name not in known:
                found.add(node.target)
    return found


def decompose_unknown(program: ExportedProgram) -> ExportedProgram:
    """The program with operators outside the table replaced by their decompositions, where torch has one."""
    tried: set[Any] = set()
    for _ in range(ROUNDS):
        wanted = unknown_ops(program) - tried
        table = _decompositions(wanted)
        if not table:
            return program
        tried |= wanted
        program = program.run_decompositions(table)
    return program


def _decompositions(wanted: set[Any]) -> dict[Any, Callable[..., Any]]:
    import torch
    from torch._decomp import decomposition_table

    table: dict[Any, Callable[..., Any]] = {}
    for target in wanted:
        if torch.Tag.nondeterministic_seeded in target.tags:
            # Run whole, it draws the numbers that eager draws.
            continue
        if target in decomposition_table:
            table[target] = decomposition_table[target]
        elif torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"):
            table[target] = _composite(target)
    return table


def decompositions_for_tracing() -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions of everything that the op table does not define, for a trace that is about to be made."""
    import torch
    from kvc.frontends.fx.conv_backward import convolution_backward
    from torch._decomp import decomposition_table

    known = {*by_aten(), *COMPLEX, *RANDOM}
    everything: dict[Any, Callable[..., Any]] = dict(decomposition_table)
    table: dict[Any, Callable[..., Any]] = {
        target: run
        for target, run in everything.items()
        if (name := overload_name(target))
        and "::" not in name
        and name not in known
        and torch.Tag.nondeterministic_seeded not in getattr(target, "tags", ())
    }
    table[torch.ops.aten.convolution_backward.default] = convolution_backward
    return table


def _composite(target: Any) -> Callable[..., Any]:
    """The operator's own composite kernel. `target.decompose` would look itself up in the table again."""
    import torch

    def run(*args: Any, **kwargs: Any) -> Any:
        return target._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return run
