"""Every function of the notation has a spelling in HIP, and the spelling means what the interpreter says."""

from __future__ import annotations

import pytest
import torch
from kvc.arch import arch
from kvc.backends.hip.generic import GenericEmitter
from kvc.backends.hip.spelling import SPELLINGS
from kvc.dtypes import DTYPES, DType
from kvc.emitter import Task
from kvc.functions import FUNCTIONS
from kvc.interpret import interpret
from kvc.kernel import Axis, Call, Cast, Expr, KernelSpec, Load, Operand, Size, Stmt, lift

from tests.backends.hip.running import run

N = 96
GFX = "gfx942"
#: Arguments at which a function is defined; the others take anything.
POSITIVE = frozenset({"log", "log2", "log10", "sqrt", "rsqrt", "lgamma"})
UNIT = frozenset({"asin", "acos", "atanh", "erfinv"})
FLOATS = ("f32", "f64")
BITWISE = frozenset({"bitand", "bitor", "bitxor", "bitnot"})
SHIFTS = frozenset({"shl", "shr"})
INTEGERS = (
    "add", "sub", "mul", "floordiv", "mod", "fmod", "neg", "abs", "sign", "minimum", "maximum", "pow", "floor", "round",
    "isnan", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "where", "div", *sorted(BITWISE | SHIFTS),
)  # fmt: skip


def _load(name: str) -> Load:
    return Load(name, (Axis("n"),))


def _argument(fn: str, name: str, of: DType) -> Expr:
    """An operand, moved into the function's domain."""
    x = _load(name)
    if fn == "log1p" or (of.is_float and fn == "pow" and name == "x"):
        return Call("abs", (x,)) + 0.25
    if fn in POSITIVE:
        return Call("abs", (x,)) + 0.125
    if fn == "acosh":
        return Call("abs", (x,)) + 1.0
    if fn in UNIT:
        return x * 0.1
    if name == "z" and fn in ("floordiv", "mod", "fmod") and not of.is_float:
        return Call("where", (Call("eq", (x, lift(0))), lift(3), x))
    return x


def _spec(names: list[str], of: DType) -> KernelSpec:
    """One output a function, over vectors x, z and a mask c."""
    size = Size("n", N)
    inputs = (Operand("x", of, ("n",)), Operand("z", of, ("n",)), Operand("c", DTYPES["bool"], ("n",)))
    spec = KernelSpec("functions", (size,), inputs, (), ())
    stmts = []
    for fn in names:
        arity = FUNCTIONS[fn].arity
        args = [_argument(fn, name, of) for name in ("x", "z")[: min(arity, 2)]]
        if fn == "where":
            args = [_load("c"), *args]
        expr = Call(fn, tuple(args))
        stmts.append(Stmt(f"y_{fn}", spec.type_of(expr), ("n",), expr))
    outputs = tuple(Operand(s.target, s.dtype, ("n",)) for s in stmts)
    return KernelSpec("functions", (size,), inputs, outputs, tuple(stmts))


def _inputs(of: DType) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    to = getattr(torch, of.torch_name)
    if of.is_float:
        x, z = (torch.randn(N, generator=generator, dtype=torch.float64).mul(3.0).to(to) for _ in range(2))
        x[:4] = torch.tensor([0.0, -0.0, 2.5, -2.5])
        z[:4] = torch.tensor([1.5, -1.5, 0.5, 2.0])
    else:
        x, z = (torch.randint(-9, 10, (N,), generator=generator).to(to) for _ in range(2))
    return {"x": x, "z": z, "c": torch.rand(N, generator=generator) < 0.5}


def _check(names: list[str], of: DType) -> None:
    spec = _spec(names, of)
    candidate = next(GenericEmitter().propose(Task(spec, arch(GFX)), (), [], 0))
    inputs = _inputs(of)
    got = run(candidate, inputs)
    for fn in names:
        want = interpret(spec, inputs)[f"y_{fn}"]
        have = got[f"y_{fn}"]
        if not have.dtype.is_floating_point:
            assert torch.equal(have, want.to(have.dtype)), f"{fn} on {of}"
            continue
        # The device library's published bounds are a few ulp; pow and the gamma-like ones up to 16.
        rtol = 32 * torch.finfo(have.dtype).eps
        close = torch.isclose(have.double(), want.double(), rtol=rtol, atol=rtol, equal_nan=True)
        assert bool(close.all()), f"{fn} on {of}: {have[~close]} instead of {want[~close]}"


def test_every_primitive_is_spelled() -> None:
    assert {f.name for f in FUNCTIONS.values() if f.expand is None} == set(SPELLINGS)


@pytest.mark.parametrize("of", FLOATS)
def test_functions_on_floats(of: str) -> None:
    _check([name for name in FUNCTIONS if name not in BITWISE | SHIFTS], DTYPES[of])


@pytest.mark.parametrize("of", ["i32", "i64"])
def test_functions_on_integers(of: str) -> None:
    _check(list(INTEGERS), DTYPES[of])


CASTS = [n for n in DTYPES if not n.startswith("f8")]


@pytest.mark.parametrize("source", ["f32", "f64", "i64", "i32", "bool", "f16", "bf16", "i8", "u8"])
def test_casts(source: str) -> None:
    """Every dtype to every dtype, as a cast and as the rounding of a typed temporary."""
    of = DTYPES[source]
    size = Size("n", N)
    stmts = [Stmt(f"t_{to}", DTYPES[to], ("n",), Cast(DTYPES[to], _load("x"))) for to in CASTS]
    outputs = tuple(Operand(s.target, s.dtype, ("n",)) for s in stmts)
    spec = KernelSpec("casts", (size,), (Operand("x", of, ("n",)),), outputs, tuple(stmts))
    x = torch.linspace(-7.7, 11.3, N, dtype=torch.float64) * (1 if of.kind != "uint" else 0.5)
    x = (x.abs() if of.kind == "uint" else x).to(getattr(torch, of.torch_name))
    candidate = next(GenericEmitter().propose(Task(spec, arch(GFX)), (), [], 0))
    got = run(candidate, {"x": x})
    for to in CASTS:
        want = x.to(getattr(torch, DTYPES[to].torch_name))
        if DTYPES[to].kind == "uint" and of.kind != "uint":
            want = x.to(torch.int64).to(torch.uint8)  # torch's own result for negative floats is undefined
        assert torch.equal(got[f"t_{to}"], want), f"{source} -> {to}"


@pytest.mark.parametrize("name", [n for n in DTYPES if n.startswith("f8")])
def test_small_floats(name: str) -> None:
    """Every code decodes, and floats round, as torch has it."""
    of, to = DTYPES[name], getattr(torch, DTYPES[name].torch_name)
    codes = torch.arange(256, dtype=torch.uint8).view(to)
    generator = torch.Generator().manual_seed(3)
    values = torch.cat([torch.randn(300, generator=generator) * s for s in (1e-4, 1e-2, 1.0, 60.0, 3e4)])
    dims = {"n": 256, "m": len(values)}
    spec = KernelSpec(
        "small",
        tuple(Size(a, n) for a, n in dims.items()),
        (Operand("x", of, ("n",)), Operand("v", DTYPES["f32"], ("m",))),
        (Operand("y", DTYPES["f32"], ("n",)), Operand("w", of, ("m",))),
        (
            Stmt("y", DTYPES["f32"], ("n",), Load("x", (Axis("n"),))),
            Stmt("w", of, ("m",), Load("v", (Axis("m"),))),
        ),
    )
    candidate = next(GenericEmitter().propose(Task(spec, arch(GFX)), (), [], 0))
    got = run(candidate, {"x": codes, "v": values})
    torch.testing.assert_close(got["y"], codes.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(got["w"].float(), values.to(to).float(), rtol=0, atol=0, equal_nan=True)
