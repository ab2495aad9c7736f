"""Every function of the index notation has a spelling that both kinds of target compile, and the right value."""

from __future__ import annotations

import math

import pytest
import torch
from kvc.arch import arch
from kvc.backends.triton import TritonTarget
from kvc.backends.triton.generic import GenericEmitter
from kvc.backends.triton.toolchain import compile_candidate
from kvc.dtypes import BOOL, F32, F64, I32, I64, DType, dtype
from kvc.emitter import Candidate, Task
from kvc.functions import FUNCTIONS, Function
from kvc.interpret import interpret
from kvc.kernel import Axis, Call, Cast, KernelSpec, Load, Operand, Size, Stmt
from kvc.text import parse_kernel

from tests.backends.triton.conftest import simulate

POINTS = 192
_INTEGER_ONLY = {"bitand", "bitor", "bitxor", "bitnot", "shl", "shr"}
_BOOL_ONLY = {"and", "or", "not"}
#: Where a float function is defined: (low, high) of its arguments.
_DOMAIN = {
    **dict.fromkeys(["log", "log2", "log10", "sqrt", "rsqrt"], (0.01, 50.0)),
    **dict.fromkeys(["asin", "acos", "atanh", "erfinv"], (-0.99, 0.99)),
    "lgamma": (0.1, 20.0), "digamma": (2.0, 30.0),  # away from their zeros
    "gelu": (-2.0, 6.0), "gelu_tanh": (-2.0, 6.0),  # further left, 1 + erf cancels
    "acosh": (1.0, 30.0), "log1p": (-0.9, 30.0), "pow": (0.1, 4.0), "exp": (-80.0, 80.0), "exp2": (-100.0, 100.0),
}  # fmt: skip


def functions_of(kind: DType) -> list[Function]:
    """The functions that torch defines on a type (and kvc writes)."""
    found = []
    for f in FUNCTIONS.values():
        if kind is BOOL:
            fits = f.name in _BOOL_ONLY | {"bitand", "bitor", "bitxor", "eq", "ne", "where", "maximum", "minimum"}
        elif kind.is_float:
            fits = f.name not in _INTEGER_ONLY | _BOOL_ONLY
        else:
            fits = f.name not in _BOOL_ONLY and f.result != "float"
        found += [f] if fits else []
    return found


def spec_of(functions: list[Function], kind: DType) -> KernelSpec:
    """One output a function, over shared arguments a and b; `lo` and `hi` are drawn in the function's domain."""
    at = (Axis("n"),)
    stmts, outputs, inputs = [], [], []
    for f in functions:
        names = [f"a_{f.name}", f"b_{f.name}"][: max(f.arity if f.result != "select" else 2, 1)]
        inputs += [Operand(name, kind, ("n",)) for name in names]
        loads = tuple(Load(name, at) for name in names)
        args = (Cast(BOOL, loads[0]), *loads) if f.result == "select" else loads[: f.arity]
        result = {"bool": BOOL, "float": kind if kind.is_float else F32}.get(f.result, kind)
        stmts.append(Stmt(f"y_{f.name}", result, ("n",), Call(f.name, args)))
        outputs.append(Operand(f"y_{f.name}", result, ("n",)))
    return KernelSpec("functions", (Size("n", POINTS),), tuple(inputs), tuple(outputs), tuple(stmts))


def arguments(spec: KernelSpec, kind: DType) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = {}
    for operand in spec.inputs:
        side, _, name = operand.name.partition("_")
        to = getattr(torch, kind.torch_name)
        if kind is BOOL:
            data = torch.rand(POINTS, generator=generator) < 0.5
        elif kind.is_float:
            low, high = _DOMAIN.get(name, (-6.0, 6.0))
            data = (torch.rand(POINTS, generator=generator, dtype=torch.float64) * (high - low) + low).to(to)
            if name not in _DOMAIN:  # the points where rounding and signs are decided
                edges = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1.0, -1.0, 3.0, -3.0]
                data[: len(edges)] = torch.tensor(edges if side == "a" else edges[::-1])
        else:
            data = torch.randint(-20, 20, (POINTS,), generator=generator).to(to)
            if name in ("shl", "shr", "pow") and side == "b":
                data = data.abs() % 5
            if name in ("floordiv", "mod", "fmod") and side == "b":
                data[data == 0] = 3
        inputs[operand.name] = data
    return inputs


def chunks(kind: DType) -> list[list[Function]]:
    all_of_them = functions_of(kind)
    return [all_of_them[n : n + 12] for n in range(0, len(all_of_them), 12)]


def candidate(spec: KernelSpec, chip: str) -> Candidate:
    return next(GenericEmitter().propose(Task(spec, arch(chip)), (), (), 0))


CASES = [(kind.name, n) for kind in (F32, F64, I32, I64, BOOL) for n in range(len(chunks(kind)))]


@pytest.mark.parametrize(("kind_name", "chunk"), CASES)
def test_value(kind_name: str, chunk: int) -> None:
    kind = dtype(kind_name)
    spec = spec_of(chunks(kind)[chunk], kind)
    inputs = arguments(spec, kind)
    oracle, working = interpret(spec, inputs), interpret(spec, inputs, "working")
    got = simulate(candidate(spec, "gfx942"), inputs)
    for name, want in oracle.items():
        if not want.dtype.is_floating_point:
            assert torch.equal(got[name], want.to(got[name].dtype)), name
            continue
        assert torch.equal(got[name].isnan(), want.isnan()), name
        scale = want.abs().clamp_min(1e-30)
        error = ((got[name].double() - want).abs() / scale).nan_to_num()
        yardstick = ((working[name].double() - want).abs() / scale).nan_to_num()
        # The f64 oracle is itself f64, with the rounding errors of its own order of evaluation.
        allowed = (32 if kind is F64 else 4) * kind.eps + 2 * yardstick.max()
        # Near a zero of the function (sin at pi) the error is that of the argument's own rounding.
        near_zero = want.abs() < 1e-3
        assert float(error[~near_zero].max()) <= allowed, name


@pytest.mark.parametrize(("kind_name", "chunk"), CASES)
def test_compiles_for_nvidia(kind_name: str, chunk: int) -> None:
    kind = dtype(kind_name)
    compile_candidate(candidate(spec_of(chunks(kind)[chunk], kind), "sm_90"))


def test_nan_propagates() -> None:
    functions = [FUNCTIONS[name] for name in ("maximum", "minimum", "relu", "hardswish", "isnan", "isinf", "sign")]
    spec = spec_of(functions, F32)
    inputs = arguments(spec, F32)
    for data in inputs.values():
        data[3] = math.nan
        data[5], data[6] = math.inf, -math.inf
    inputs["a_maximum"][3] = 1.0
    got = simulate(candidate(spec, "gfx942"), inputs)
    want = interpret(spec, inputs)
    for name in got:
        assert torch.allclose(got[name].double(), want[name].double(), rtol=1e-6, atol=0.0, equal_nan=True), name


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_gelu_of_a_16_bit_result_is_as_good_as_its_rounding(kind: str) -> None:
    """Over every number of the type: within 0.6 of a unit in the last place (correct rounding is 0.5), or 2e-7 of the
    largest values where the result nearly vanishes; NaN and infinities as erf gives them."""
    text = f"kernel g(x: {kind}[n=65536]) -> (y: {kind}[n]) {{ y[n] = gelu(x[n]) }}"
    task = Task(parse_kernel(text), arch("gfx942"))
    emitter = next(e for e in TritonTarget().emitters() if e.supports(task).ok)
    candidate = next(emitter.propose(task, (), (), 0))
    assert "gelu_16(" in candidate.source and "erf" not in candidate.source
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    got = simulate(candidate, {"x": x})["y"]
    want = interpret(task.spec, {"x": x})["y"]
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())
    finite = want.isfinite() & got.isfinite()
    bits = 8 if kind == "bf16" else 11
    unit = 2.0 ** (want[finite].abs().clamp_min(2.0**-14).log2().floor() + 1 - bits)
    off = (got[finite].double() - want[finite]).abs()
    assert bool((off <= 0.6 * unit + 2e-7).all()), float((off / unit).max())
