"""Comparison of a result with the float64 oracle.

A float element passes when its error is within the dtype's tolerance scaled by the magnitude of the reference. The
tensor passes when, beyond that, its largest error is at most twice that of the spec interpreted in its working dtype,
plus a floor: one unit in the last place of the result, and what moving the inputs by fp32's last bit does to the
oracle, times the growth of rounding errors in long sums. A lowered precision (bf16 inside an fp32 kernel) is
thousands of times that and fails, however lenient the tolerance. Where a draw is so ill-conditioned that eager misses
the tolerance itself, the second bound decides alone, for about as many elements as that happens to (`_excused`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvc.diagnostics import Diagnostic
from kvc.dtypes import F32, DType
from kvc.verify.verdict import OutputError

if TYPE_CHECKING:
    import torch

ERROR_FACTOR = 2.0  # largest error, in errors of the working-dtype interpretation
FLOOR_ULPS = 1.0  # of the result's dtype
FLOOR_COMPUTE_ULPS = 4.0  # of fp32, in which narrow types compute
BIAS_ULPS = 0.25  # mean signed error of a narrow float beyond the working interpretation's
BIAS_MIN_COUNT = 256
EXCUSED_FACTOR = 4  # elements beyond the tolerance, in those that eager or the probe moves there; luck differs
EXCUSED_SHARE = 0.01  # and this share of all elements,
EXCUSED_COUNT = 2  # and so many, since small tensors have few
RMS_MIN_COUNT = 64
RMS_FACTOR = 1.2  # root mean square error of a narrow float, in that of the working interpretation
CONSTANT_SHARE = 0.02  # a constant "passes" when it misses no more than this share of the elements


@dataclass(frozen=True)
class Comparison:
    """`diagnostic` is None when the result passes."""

    error: OutputError
    diagnostic: Diagnostic | None = None


def scale_of(reference: torch.Tensor) -> float:
    """Magnitude of a tensor: the root mean square of its finite elements."""
    finite = reference[reference.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


def limits(reference: torch.Tensor, dtype: DType, factor: float = 1.0) -> torch.Tensor:
    """Largest permitted error of each element."""
    return factor * (dtype.rtol * reference.abs() + dtype.atol * scale_of(reference))


def tells_constants_apart(reference: torch.Tensor, dtype: DType) -> bool:
    """Whether a tensor of zeros and one of the mean both fail against this reference."""
    import torch

    if reference.numel() == 0 or not dtype.is_float:
        return True
    finite = reference[reference.isfinite()]
    if finite.numel() == 0:
        return False
    if finite.numel() == 1:
        return bool(finite.abs() > 0)  # one number: its mean is itself
    allowed = limits(finite, dtype)
    wrong = [((finite - c).abs() > allowed).double().mean() for c in (torch.zeros(()), finite.mean())]
    return all(float(share) > CONSTANT_SHARE for share in wrong)


def compare(
    name: str,
    dtype: DType,
    got: torch.Tensor,
    oracle: torch.Tensor,
    working: torch.Tensor,
    probe: torch.Tensor | None = None,
    *,
    growth: float = 2.0,
    factor: float = 1.0,
    input_set: str = "",
    overflowing: Callable[[], torch.Tensor] | None = None,
) -> Comparison:
    """Compare `got` (of `dtype`, logical shape) with the oracle.

    `factor` scales the tolerance; `growth` and `probe` are those of kvc.verify.oracle. `overflowing`, asked only where
    non-finite values differ, gives NaN where a sum's result depends on the order of its terms. Diagnostics: KVC0708
    shape or dtype, KVC0706 non-finite values, KVC0702 poison left in place, KVC0701 error or bias.
    """
    blank = OutputError(name, 0.0, factor * dtype.rtol, 0.0, 0.0, input_set)
    structure = _structure(name, dtype, got, oracle)
    if structure is not None:
        return Comparison(blank, structure)
    if got.numel() == 0:
        return Comparison(blank)
    if not dtype.is_float:
        return _exact(blank, got, oracle, working)
    return _close(blank, dtype, got, oracle, working, probe, growth, factor, overflowing)


def _structure(name: str, dtype: DType, got: torch.Tensor, oracle: torch.Tensor) -> Diagnostic | None:
    if tuple(got.shape) != tuple(oracle.shape):
        return Diagnostic("KVC0708", f"{name} has shape {tuple(got.shape)}, not {tuple(oracle.shape)}")
    if str(got.dtype) != f"torch.{dtype.torch_name}":
        return Diagnostic(
            "KVC0708", f"{name} has dtype {str(got.dtype).removeprefix('torch.')}, not {dtype.torch_name}"
        )
    return None


def _position(shape: tuple[int, ...], flat: int) -> tuple[int, ...]:
    where = []
    for extent in reversed(shape):
        where.append(flat % extent)
        flat //= extent
    return tuple(reversed(where))


def _is_poison(got: torch.Tensor) -> torch.Tensor:
    """Elements whose every byte is UNWRITTEN_BYTE (kvc.executor)."""
    import torch

    raw = got.contiguous().reshape(-1).view(torch.uint8).reshape(-1, got.element_size())
    return (raw == 0xFF).all(dim=1).reshape(got.shape)


def _unwritten(name: str, got: torch.Tensor, bad: torch.Tensor) -> Diagnostic | None:
    """KVC0702 where every wrong element still holds the poison that the output was filled with."""
    if got.dtype.is_floating_point or got.element_size() > 1:
        poison = _is_poison(got) & bad
        if bool(poison.any()) and bool((poison == bad).all()):
            where = _position(tuple(got.shape), int(poison.reshape(-1).int().argmax()))
            count = int(poison.sum())
            hint = "an output must be written whole; check the bounds of the store"
            return Diagnostic(
                "KVC0702", f"{count:,} of {got.numel():,} elements of {name}, first at {where}", hint=hint
            )
    return None


def _exact(blank: OutputError, got: torch.Tensor, oracle: torch.Tensor, working: torch.Tensor) -> Comparison:
    """Integers and bools equal the oracle, or what the working dtype makes of them (comparisons of rounded values)."""
    import torch

    bad = (got != oracle.to(got.dtype)) & (got != working.to(got.dtype))
    if not bool(bad.any()):
        return Comparison(blank)
    unwritten = _unwritten(blank.output, got, bad) if got.dtype != torch.bool else None
    flat = int(bad.reshape(-1).int().argmax())
    where = _position(tuple(got.shape), flat)
    message = (
        f"{blank.output}{list(where)} is {got.reshape(-1)[flat].item()}, not {oracle.reshape(-1)[flat].item()} "
        f"({int(bad.sum()):,} of {got.numel():,} elements differ; inputs: {blank.input_set})"
    )
    error = replace(blank, error=float(bad.double().mean()), where=where)
    return Comparison(error, unwritten or Diagnostic("KVC0701", message))


def _classes(x: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    import torch

    kinds = x.isnan().to(torch.int8)
    return kinds + 2 * x.isposinf().to(torch.int8) + 3 * x.isneginf().to(torch.int8)


def _close(
    blank: OutputError,
    dtype: DType,
    got: torch.Tensor,
    oracle: torch.Tensor,
    working: torch.Tensor,
    probe: torch.Tensor | None,
    growth: float,
    factor: float,
    overflowing: Callable[[], torch.Tensor] | None = None,
) -> Comparison:
    import torch

    rounded = oracle.to(got.dtype)
    kind, expected, also = _classes(got), _classes(rounded), _classes(working)
    # Where a temporary overflows in the working dtype alone, either answer is right.
    bad_kind = (kind != expected) & (kind != also)
    if bool(bad_kind.any()) and overflowing is not None:
        bad_kind &= (kind == 0) | ~overflowing().isnan() | oracle.isnan()
    if bool(bad_kind.any()):
        return Comparison(blank, _nonfinite(blank, got, oracle, bad_kind))
    finite = (kind == 0) & (expected == 0) & (also == 0)
    if not bool(finite.any()):
        return Comparison(blank)
    reference = oracle.double().masked_fill(~finite, 0.0)
    result = got.double().masked_fill(~finite, 0.0)
    yardstick = working.double().masked_fill(~finite, 0.0)
    moved = (probe.double() - oracle.double()).abs() if probe is not None else torch.zeros_like(reference)
    moved = moved.masked_fill(~finite | ~moved.isfinite(), 0.0)
    # A reference smaller than what its inputs' last bits do to it is noise around zero: measure in units of that.
    scale = max(scale_of(oracle.double()[finite]), float(moved.max()))
    unit = reference.abs().clamp(min=max(scale, 1e-300))
    missed = (result - reference).abs()
    error, working_error = missed / unit, (yardstick - reference).abs() / unit
    flat = int(error.argmax())
    sensitivity = float((moved / unit).max())
    floor = FLOOR_ULPS * dtype.eps + growth * max(sensitivity, _compute_eps(dtype))
    allowed = ERROR_FACTOR * float(working_error.max()) + floor
    bounds = limits(reference, dtype, factor)
    within = missed <= bounds
    if allowed > factor * dtype.rtol or bool(((yardstick - reference).abs() > bounds).any()):
        stray = torch.maximum((yardstick - reference).abs(), growth * moved)
        within |= _excused(missed > bounds, error <= allowed, stray > bounds)
    report = replace(
        blank,
        error=_digits(float(error.reshape(-1)[flat])),
        working=_digits(float(working_error.max())),
        allowed=_digits(allowed),
        where=_position(tuple(got.shape), flat),
    )
    # Least error the format itself forces: an element may be subnormal, its last place absolute.
    absolute = missed <= _tiny(got)
    if bool((within | absolute).all()) and (float(error.max()) <= allowed or bool(absolute.all())):
        bias = _bias(blank.output, dtype, result[finite], reference[finite], yardstick[finite], blank.input_set)
        return Comparison(report, bias)
    unwritten = _unwritten(blank.output, got, ~within)
    return Comparison(report, unwritten or _too_far(report, got, oracle, flat))


def _excused(outside: torch.Tensor, allowed: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Elements beyond the tolerance that an ill-conditioned draw excuses.

    Where cancellation makes the last bits of the inputs, or the working dtype itself, move an element beyond the
    tolerance, a fixed tolerance would turn every implementation down, eager too; there twice eager's largest error
    decides (`allowed`). That excuse is for the elements that are ill-conditioned, whose number is known: those that the
    working interpretation or the probe moves out (`expected`). A result that needs it for many more is wrong in
    well-conditioned places, whatever one bad element permits.
    """
    import torch

    excused = outside & allowed
    most = EXCUSED_FACTOR * int(expected.sum()) + EXCUSED_SHARE * outside.numel() + EXCUSED_COUNT
    return excused if int(excused.sum()) <= most else torch.zeros_like(excused)


def _compute_eps(dtype: DType) -> float:
    return FLOOR_COMPUTE_ULPS * (dtype.eps if dtype.bits >= 32 else F32.eps)


def _tiny(got: torch.Tensor) -> float:
    """The smallest normal number of a tensor's dtype: below it errors are absolute."""
    import torch

    return float(torch.finfo(got.dtype).tiny)


def _digits(x: float) -> float:
    """Three significant digits: what a reader needs, and the same on every machine."""
    return float(f"{x:.2e}")


def _nonfinite(blank: OutputError, got: torch.Tensor, oracle: torch.Tensor, bad: torch.Tensor) -> Diagnostic:
    unwritten = _unwritten(blank.output, got, bad)
    if unwritten is not None:
        return unwritten
    flat = int(bad.reshape(-1).int().argmax())
    where = _position(tuple(got.shape), flat)
    mine, theirs = got.reshape(-1)[flat].item(), oracle.reshape(-1)[flat].item()
    message = f"{blank.output}{list(where)} is {mine}, the oracle {theirs} ({int(bad.sum()):,} elements; inputs: "
    # JSON has no NaN: the values as text.
    details = {"output": blank.output, "where": list(where), "got": str(mine), "expected": str(theirs)}
    return Diagnostic("KVC0706", f"{message}{blank.input_set})", details=details)


def _too_far(error: OutputError, got: torch.Tensor, oracle: torch.Tensor, flat: int) -> Diagnostic:
    message = (
        f"{error.output}{list(error.where)} is {got.reshape(-1)[flat].item():.9g}, the oracle "
        f"{oracle.reshape(-1)[flat].item():.9g}: error {error.error:.2e} of the reference's magnitude, tolerance "
        f"{error.tolerance:.1e}, allowed by the working dtype's own error {error.allowed:.2e} "
        f"(inputs: {error.input_set})"
    )
    values = {"got": got.reshape(-1)[flat].item(), "expected": oracle.reshape(-1)[flat].item()}
    return Diagnostic("KVC0701", message, details={**error.to_json(), **values})


def _bias(
    name: str, dtype: DType, got: torch.Tensor, oracle: torch.Tensor, working: torch.Tensor, input_set: str
) -> Diagnostic | None:
    """Narrow floats must round to nearest: truncation shows as a mean error towards zero of half a unit."""
    import torch

    used = oracle.abs() > float(torch.finfo(getattr(torch, dtype.torch_name)).tiny)
    count = int(used.sum())
    if dtype.bits >= 32 or count < RMS_MIN_COUNT or input_set == "rows":
        return None  # on "rows" all errors of a row are one error: a mean over them says nothing
    ulp = dtype.eps * torch.exp2(oracle[used].abs().log2().floor())
    away = oracle[used].sign()
    mine = (got[used] - oracle[used]) * away / ulp
    theirs = (working[used] - oracle[used]) * away / ulp
    # Errors of neighbours are correlated (a row shares its maximum, its sum), hence the generous band.
    spread = max(float(theirs.std()), 0.3)
    allowed = abs(float(theirs.mean())) + max(BIAS_ULPS * max(spread, 1.0), 6.0 * spread / count**0.5)
    bias = float(mine.mean())
    if abs(bias) <= allowed or count < BIAS_MIN_COUNT:
        return _spread(name, mine, theirs, input_set)
    side = "towards zero" if bias < 0 else "away from zero"
    message = f"{name} is biased {side} by {abs(bias):.2f} ulp on average (allowed {allowed:.2f}; inputs: {input_set})"
    return Diagnostic("KVC0701", message, hint="narrow floats round to nearest even; do not truncate")


def _spread(name: str, mine: torch.Tensor, theirs: torch.Tensor, input_set: str) -> Diagnostic | None:
    """A narrow result hides a lowered precision inside from the largest error (one more rounding moves few elements
    beyond a unit), not from the mean square over many: one more rounding adds its own variance to every element."""
    # Elements that cancellation makes large errors of, in units of their own last place, are many units off in both.
    got, known = (float(e.clamp(-2.0, 2.0).square().mean().sqrt()) for e in (mine, theirs))
    allowed = RMS_FACTOR * known + 0.01 + 1.5 / mine.numel() ** 0.5
    if got <= allowed:
        return None
    message = f"{name} is {got:.2f} ulp off in the mean square (allowed {allowed:.2f}; inputs: {input_set})"
    return Diagnostic("KVC0701", message, hint="compute in the type that the spec gives each step")
