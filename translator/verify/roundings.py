"""Roundings of a spec that a kernel leaves out.

A rounding that eager does is a typed temporary or a cast of the spec; a kernel that keeps the wide value is closer to
the float64 oracle and passes every bound, and still differs from eager where a later step amplifies it (a comparison,
a gate, a subtraction). So each rounding is asked for by name: the spec is interpreted in its working dtype as it
stands, and again with that one temporary kept in fp32. Where the two differ, a kernel that rounds agrees with the
first, one that does not with the second. No tolerance is involved, only a majority over many elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvc.diagnostics import Diagnostic
from kvc.dtypes import F32, DType
from kvc.interpret import interpret
from kvc.kernel import Cast, Expr, KernelSpec, Load, Stmt, transform

if TYPE_CHECKING:
    import torch

#: Elements on which the two interpretations must differ before they tell anything.
LEAST = 64
#: Share of them that must agree with the interpretation without the rounding for a kernel to be turned down. Other
#: roundings of the spec scatter the rest, and a flash-style softmax rounds the same values at another scale.
SHARE = 0.9
#: Temporaries asked for; a spec with more has them asked for in its first ones.
MOST = 8


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def candidates(spec: KernelSpec) -> dict[str, KernelSpec]:
    """For each narrow rounding inside the spec, by name, the spec without it."""
    outputs = {o.name for o in spec.outputs}
    read = {load.tensor for stmt in spec.body for load in stmt.loads()}
    found: dict[str, KernelSpec] = {}
    for stmt in spec.body:
        if not _is_narrow(stmt.dtype) or stmt.target not in read or stmt.loop is not None:
            continue
        wide = replace(stmt, dtype=F32)
        if stmt.target in outputs:
            found[stmt.target] = _beside(spec, stmt, replace(wide, target=f"kvc_wide_{stmt.target}"))
        else:
            found[stmt.target] = replace(spec, body=tuple(wide if s is stmt else s for s in spec.body))
    without_casts = replace(spec, body=tuple(s.map(_uncast) for s in spec.body))
    if without_casts != spec:
        found["a cast"] = without_casts
    return dict(list(found.items())[:MOST])


def _beside(spec: KernelSpec, stmt: Stmt, wide: Stmt) -> KernelSpec:
    """The output keeps its rounding; its readers read the wide copy."""

    def reader(expr: Expr) -> Expr:
        return transform(
            expr, lambda e: replace(e, tensor=wide.target) if isinstance(e, Load) and e.tensor == stmt.target else e
        )

    body: list[Stmt] = []
    for each in spec.body:
        body += [each, wide] if each is stmt else [each.map(reader)]
    return replace(spec, body=tuple(body))


def _uncast(expr: Expr) -> Expr:
    return transform(expr, lambda e: Cast(F32, e.arg) if isinstance(e, Cast) and _is_narrow(e.dtype) else e)


def alternatives(spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Outputs in the working dtype without each rounding, by its name."""
    return {name: interpret(other, inputs, "working") for name, other in candidates(spec).items()}


def left_out(
    got: Mapping[str, torch.Tensor],
    working: Mapping[str, torch.Tensor],
    without: Mapping[str, Mapping[str, torch.Tensor]],
    input_set: str = "",
) -> Diagnostic | None:
    """KVC0710 where the outputs `got` agree with an interpretation that leaves a rounding out (`alternatives`)."""
    for name, other in without.items():
        for output, result in got.items():
            counted = _agreement(result, working[output], other[output])
            if counted is None:
                continue
            differ, closer = counted
            if differ >= LEAST and closer >= SHARE * differ:
                text = (
                    f"{output} agrees with a spec in which {name} is not rounded, at {closer:,} of the {differ:,} "
                    f"elements where that shows (inputs: {input_set})"
                )
                hint = f"round {name} to the type that the spec gives it before it is used again"
                return Diagnostic("KVC0710", text, hint=hint, details={"output": output, "rounding": name})
    return None


def _agreement(got: torch.Tensor, rounded: torch.Tensor, wide: torch.Tensor) -> tuple[int, int] | None:
    """(elements where the interpretations differ beyond the noise of fp32 sums, those where `got` is closer to the
    one without the rounding)."""
    if not got.is_floating_point() or got.numel() == 0:
        return None
    a, r, w = got.double(), rounded.double(), wide.double()
    usable = a.isfinite() & r.isfinite() & w.isfinite()
    scale = float(r[usable].square().mean().sqrt()) if bool(usable.any()) else 0.0
    noise = 64.0 * F32.eps * r.abs().clamp(min=scale)
    differ = usable & ((r - w).abs() > noise)
    closer = differ & ((a - w).abs() < (a - r).abs())
    return int(differ.sum()), int(closer.sum())
