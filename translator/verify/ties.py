"""Ties: argmax, argmin and argsort may answer with any index whose value ties with the best one.

The candidate's own index is fed back: the spec is replayed with the index as an input, its value compared with the
best, and everything downstream judged against what that index implies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvc.diagnostics import Diagnostic
from kvc.dtypes import F32, F64, I64
from kvc.interpret import interpret
from kvc.kernel import Axis, KernelSpec, Load, Operand, Order, Reduce, Stmt, substitute
from kvc.verify.compare import scale_of

if TYPE_CHECKING:
    import torch

_CHOSEN, _PICKED, _BEST = "kvc_chosen_", "kvc_picked_", "kvc_best_"
TIE_ULPS = 8.0  # of fp32


@dataclass(frozen=True)
class Replay:
    """The oracle and the working interpretation given the candidate's indices, or why those cannot stand."""

    oracle: dict[str, torch.Tensor]
    working: dict[str, torch.Tensor]
    diagnostic: Diagnostic | None = None


def tie_statements(spec: KernelSpec) -> list[Stmt]:
    """Outputs that are positions found by comparing values."""
    outputs = {o.name for o in spec.outputs}
    return [s for s in spec.body if s.target in outputs and s.dtype is I64 and _axis_of(s)]


def _axis_of(stmt: Stmt) -> str:
    over = stmt.over
    if isinstance(over, Reduce) and over.op in ("argmax", "argmin") and over.where is None:
        return over.axes[0]
    if isinstance(over, Order) and over.kind == "argsort":
        return over.axis
    return ""


def _replayed(spec: KernelSpec, stmts: list[Stmt]) -> KernelSpec:
    """The spec in which each index is an input, with the value it picks and the best value as further outputs."""
    chosen = {s.target: s for s in stmts}
    body: list[Stmt] = []
    outputs = list(spec.outputs)
    for stmt in spec.body:
        if stmt.target not in chosen:
            body.append(stmt)
            continue
        name, at = stmt.target, tuple(Axis(a) for a in stmt.axes)
        index = Load(_CHOSEN + name, at)
        kind = F64 if spec.type_of(stmt.expr).is_float else I64
        if isinstance(stmt.over, Order):
            best = replace(stmt, target=_BEST + name, dtype=kind, over=replace(stmt.over, kind="sort"))
        else:
            assert isinstance(stmt.over, Reduce)
            over = replace(stmt.over, op=stmt.over.op.removeprefix("arg"))
            best = replace(stmt, target=_BEST + name, dtype=kind, over=over)
        body += [
            replace(stmt, expr=index, over=None),
            best,
            Stmt(_PICKED + name, kind, stmt.axes, substitute(stmt.expr, {_axis_of(stmt): index})),
        ]
        outputs += [Operand(prefix + name, kind, stmt.axes) for prefix in (_BEST, _PICKED)]
    inputs = tuple(Operand(_CHOSEN + s.target, I64, s.axes) for s in stmts)
    return replace(spec, inputs=(*spec.inputs, *inputs), outputs=tuple(outputs), body=tuple(body))


def replay(spec: KernelSpec, inputs: Mapping[str, torch.Tensor], got: Mapping[str, torch.Tensor]) -> Replay:
    """Replay the spec with the candidate's indices `got`. KVC0701 where an index is out of range, no permutation, or
    picks a value that does not tie with the best."""
    stmts = tie_statements(spec)
    for stmt in stmts:
        problem = _invalid(spec, stmt, got[stmt.target])
        if problem:
            return Replay({}, {}, Diagnostic("KVC0701", problem))
    again = _replayed(spec, stmts)
    given = {**inputs, **{_CHOSEN + s.target: got[s.target] for s in stmts}}
    oracle, working = interpret(again, given), interpret(again, given, "working")
    for stmt in stmts:
        problem = _no_tie(stmt.target, oracle, working, _underflow(spec))
        if problem:
            return Replay({}, {}, Diagnostic("KVC0701", problem))
    names = [o.name for o in spec.outputs]
    return Replay({n: oracle[n] for n in names}, {n: working[n] for n in names})


def _invalid(spec: KernelSpec, stmt: Stmt, index: torch.Tensor) -> str:
    import torch

    extent = spec.extent(_axis_of(stmt))
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < extent:
        return f"{stmt.target} holds an index outside [0, {extent})"
    if isinstance(stmt.over, Order):
        dim = stmt.axes.index(stmt.over.axis)
        steps = torch.arange(extent).reshape([-1 if d == dim else 1 for d in range(index.ndim)])
        if not bool((index.sort(dim=dim).values == steps).all()):
            return f"{stmt.target} is no permutation along {stmt.over.axis}"
    return ""


def _underflow(spec: KernelSpec) -> float:
    """The difference below which numbers of the coarsest float dtype in a spec cannot be told apart: the oracle, in
    float64, still orders what became zero or a subnormal number there."""
    import torch

    found = {o.dtype for o in spec.inputs} | {s.dtype for s in spec.body}
    kinds = [torch.finfo(getattr(torch, d.torch_name)) for d in found if d.is_float]
    # Numbers of fp32's range may be flushed to zero; those of fp16 are kept down to the last bit.
    return max((k.tiny if k.tiny < 1e-30 else TIE_ULPS * k.tiny * k.eps for k in kinds), default=0.0)


def _no_tie(
    name: str, oracle: Mapping[str, torch.Tensor], working: Mapping[str, torch.Tensor], underflow: float
) -> str:
    best, picked = oracle[_BEST + name], oracle[_PICKED + name]
    if not best.is_floating_point():
        return "" if bool((best == picked).all()) else f"{name} picks a value that is not the best"
    same = (best == picked) | (best.isnan() & picked.isnan())
    unit = best.abs().clamp(min=max(scale_of(best), 1e-300))
    stray = (working[_BEST + name].double() - best).abs() / unit
    allowed = 2.0 * float(stray[stray.isfinite()].max() if bool(stray.isfinite().any()) else 0.0) + TIE_ULPS * F32.eps
    far = ~same & ~((best - picked).abs() <= allowed * unit + underflow)
    return f"{name} picks a value that is not the best at {int(far.sum()):,} places" if bool(far.any()) else ""
