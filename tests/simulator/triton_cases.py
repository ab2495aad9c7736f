"""Triton kernels that the simulator's tests compile for the three chips, and their float64 references."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import triton
import triton.language as tl
from kvc.simulator import LaunchReport, Memory, Program, SimOptions, launch, load
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(out, x, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + c, mask=c < n, other=-float("inf"))
    v = v - tl.max(v, axis=0)
    e = tl.exp(v)
    tl.store(out + row * stride + c, e / tl.sum(e, axis=0), mask=c < n)


@triton.jit
def gelu(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, mask=m)
    tl.store(out + i, 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476)), mask=m)


@triton.jit
def gemm(c, a, b, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, IEEE: tl.constexpr):
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(
            a + rm[:, None] * K + (k + rk)[None, :], mask=(rm[:, None] < M) & ((k + rk)[None, :] < K), other=0.0
        )
        y = tl.load(
            b + (k + rk)[:, None] * N + rn[None, :], mask=((k + rk)[:, None] < K) & (rn[None, :] < N), other=0.0
        )
        acc = tl.dot(x, y, acc, input_precision="ieee" if IEEE else None)
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def flash(o, q, k, v, sm_scale, T, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    pm = tl.program_id(0)
    h = tl.program_id(1)
    base = h * T * D
    rm = pm * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    qv = tl.load(q + base + rm[:, None] * D + rd[None, :], mask=rm[:, None] < T, other=0.0)
    m = tl.full((BM,), -float("inf"), tl.float32)
    l = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    hi = tl.minimum((pm + 1) * BM, T) if CAUSAL else T
    for n in range(0, hi, BN):
        rn = n + tl.arange(0, BN)
        kv = tl.load(k + base + rn[None, :] * D + rd[:, None], mask=rn[None, :] < T, other=0.0)
        s = tl.dot(qv, kv) * sm_scale
        ok = rn[None, :] < T
        if CAUSAL:
            ok = ok & (rn[None, :] <= rm[:, None])
        s = tl.where(ok, s, -float("inf"))
        mn = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - mn[:, None])
        al = tl.exp(m - mn)
        l = l * al + tl.sum(p, 1)
        vv = tl.load(v + base + rn[:, None] * D + rd[None, :], mask=rn[:, None] < T, other=0.0)
        acc = acc * al[:, None] + tl.dot(p.to(vv.dtype), vv)
        m = mn
    tl.store(o + base + rm[:, None] * D + rd[None, :], acc / l[:, None], mask=rm[:, None] < T)


@triton.jit
def scan(out, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + c, mask=c < n, other=0.0)
    tl.store(out + row * n + c, tl.cumsum(v, 0), mask=c < n)


@triton.jit
def argmax(out, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + c, mask=c < n, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, 0))


@triton.jit
def hist(out, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    tl.atomic_add(out + v, 1.0, mask=i < n)


@triton.jit
def gather(out, idx, table, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    j = tl.load(idx + row)
    tl.store(out + row * D + c, tl.load(table + j * D + c, mask=c < D), mask=c < D)


@triton.jit
def layernorm(out, x, w, b, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + c, mask=c < n, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / n
    d = tl.where(c < n, v - mean, 0.0)
    var = tl.sum(d * d, 0) / n
    y = d * tl.rsqrt(var + eps) * tl.load(w + c, mask=c < n) + tl.load(b + c, mask=c < n)
    tl.store(out + row * n + c, y.to(out.dtype.element_ty), mask=c < n)


@triton.jit
def dot_scaled(
    c, a, sa, b, sb, K: tl.constexpr, KA: tl.constexpr, KB: tl.constexpr, FA: tl.constexpr, FB: tl.constexpr
):
    rm = tl.arange(0, 64)
    rs = rm[:, None] * (K // 32) + tl.arange(0, K // 32)[None, :]
    x = tl.load(a + rm[:, None] * KA + tl.arange(0, KA)[None, :])
    y = tl.load(b + tl.arange(0, KB)[:, None] * 64 + rm[None, :])
    acc = tl.dot_scaled(x, tl.load(sa + rs), FA, y, tl.load(sb + rs), FB)
    tl.store(c + rm[:, None] * 64 + rm[None, :], acc)


@dataclass(frozen=True)
class Compiled:
    text: str
    binary: bytes
    name: str
    lds: int
    warps: int

    def program(self, arch: str, text: str | None = None) -> Program:
        return load(text or self.text, arch, self.binary if text is None else None)


@cache
def compiled(case: str, arch: str) -> Compiled:
    item = CASES[case]
    names = item.kernel.arg_names
    signature = dict(zip(names, item.signature, strict=False)) | dict.fromkeys(item.constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(item.signature) if kind.startswith("*")}
    source = ASTSource(item.kernel, signature, constexprs=item.constants, attrs=attrs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = triton.compile(source, target=GPUTarget("hip", arch, 64), options={"num_warps": 4})
    return Compiled(out.asm["amdgcn"], out.asm["hsaco"], out.metadata.name, out.metadata.shared, 4)


@dataclass(frozen=True)
class Case:
    """`run(launcher, rng)` returns (output, float64 reference, absolute tolerance)."""

    kernel: Any
    signature: tuple[str, ...]
    constants: dict[str, Any]
    run: Callable[[Any, np.random.Generator], tuple[np.ndarray, np.ndarray, float]]
    lines: tuple[str, ...] = field(default=())


class Launcher:
    """Uploads arrays and launches one compiled case; keeps the last report."""

    def __init__(self, case: str, arch: str, text: str | None = None, **options: Any) -> None:
        self.code = compiled(case, arch)
        self.program = self.code.program(arch, text)
        self.mem = Memory(arch)
        self.options = SimOptions(**options)
        self.report: LaunchReport | None = None
        self.seed = 0

    def __call__(self, grid: tuple[int, ...], *args: Any) -> None:
        given = [self.mem.upload(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        full = (*grid, 1, 1)[:3]
        self.report = launch(
            self.program, self.code.name, full, (64 * self.code.warps, 1, 1), given, self.mem, self.code.lds, self.seed,
            options=self.options,
        )  # fmt: skip

    def out(self, nbytes: int) -> Any:
        return self.mem.alloc(nbytes, name="out")


def to_bf16(array: np.ndarray) -> np.ndarray:
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def run_softmax(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.standard_normal((5, 1000)).astype(np.float32)
    out = go.out(x.nbytes)
    go((5,), out, x, 1000, 1000)
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return out.view(np.float32, x.shape), e / e.sum(1, keepdims=True), 1e-6


def run_gelu(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    import torch

    x = (rng.standard_normal(5000) * 2).astype(np.float32)
    out = go.out(x.nbytes)
    go((5,), out, x, 5000)
    return out.view(np.float32), torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy(), 1e-6


def run_gemm(kind: str, m: int, n: int, k: int) -> Callable[..., tuple[np.ndarray, np.ndarray, float]]:
    def run(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        raw = [a, b]
        if kind == "f16":
            raw = [item.astype(np.float16) for item in raw]
            a, b = (item.astype(np.float32) for item in raw)
        elif kind == "bf16":
            raw = [to_bf16(item) for item in raw]
            a, b = (from_bf16(item) for item in raw)
        out = go.out(4 * m * n)
        go((-(-m // 64), -(-n // 64)), out, *raw, m, n, k)
        return out.view(np.float32, (m, n)), a.astype(float) @ b.astype(float), 1e-5 * k**0.5

    return run


def run_flash(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    heads, t, d = 2, 100, 64
    q, k, v = (rng.standard_normal((heads, t, d)).astype(np.float16) for _ in range(3))
    out = go.out(4 * q.size)
    go((2, heads), out, q, k, v, d**-0.5, t)
    s = np.where(np.tril(np.ones((t, t), bool)), q.astype(float) @ k.astype(float).swapaxes(1, 2) * d**-0.5, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return out.view(np.float32, q.shape), p / p.sum(-1, keepdims=True) @ v.astype(float), 2e-3


def run_scan(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.standard_normal((3, 1500)).astype(np.float32)
    out = go.out(x.nbytes)
    go((3,), out, x, 1500)
    return out.view(np.float32, x.shape), np.cumsum(x.astype(float), 1), 1e-4


def run_argmax(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.integers(0, 50, (20, 1000)).astype(np.float32)
    out = go.out(80)
    go((20,), out, x, 1000)
    return out.view(np.int32), x.argmax(1), 0


def run_hist(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.integers(0, 100, 5000).astype(np.int32)
    out = go.mem.upload(np.zeros(100, np.float32))
    go((5,), out, x, 5000)
    return out.view(np.float32), np.bincount(x, minlength=100), 0


def run_gather(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    index, table = rng.integers(0, 70, 30), rng.standard_normal((70, 200)).astype(np.float32)
    out = go.out(30 * 800)
    go((30,), out, index, table, 200)
    return out.view(np.float32, (30, 200)), table[index], 0


def run_layernorm(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    x = rng.standard_normal((6, 1000)).astype(np.float16)
    w, b = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    out = go.out(x.nbytes)
    go((6,), out, x, w, b, 1000, 1e-5)
    wide = x.astype(float)
    ref = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w + b
    return out.view(np.float16, x.shape), ref, 8e-3


_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def scaled_operand(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Raw bytes [64, 256 or 128] and values [64, 256] of one operand of dot_scaled."""
    import torch

    if kind == "e2m1":
        codes = rng.integers(0, 16, (64, 256)).astype(np.uint8)
        return codes[:, 0::2] | codes[:, 1::2] << 4, _FP4[codes]
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kind]
    values = torch.from_numpy(rng.standard_normal((64, 256))).to(dtype)
    return values.view(torch.uint8).numpy(), values.double().numpy()


def run_scaled(a_kind: str, b_kind: str) -> Callable[..., tuple[np.ndarray, np.ndarray, float]]:
    def run(go: Launcher, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
        (raw_a, a), (raw_b, b) = scaled_operand(a_kind, rng), scaled_operand(b_kind, rng)
        scale_a, scale_b = (rng.integers(120, 134, (64, 8)).astype(np.uint8) for _ in range(2))
        out = go.out(64 * 64 * 4)
        go((1,), out, raw_a, scale_a, np.ascontiguousarray(raw_b.T), scale_b)
        left = a * 2.0 ** (scale_a.repeat(32, 1) - 127.0)
        right = b * 2.0 ** (scale_b.repeat(32, 1) - 127.0)
        ref = left @ right.T
        return out.view(np.float32, (64, 64)), ref, float(1e-6 * np.abs(ref).max())

    return run


def _scaled(a_kind: str, b_kind: str) -> Case:
    pointer = {"e4m3": "*fp8e4nv", "e5m2": "*fp8e5", "e2m1": "*u8"}
    width = {"e2m1": 128}
    constants = {"K": 256, "KA": width.get(a_kind, 256), "KB": width.get(b_kind, 256), "FA": a_kind, "FB": b_kind}
    signature = ("*fp32", pointer[a_kind], "*u8", pointer[b_kind], "*u8")
    return Case(dot_scaled, signature, constants, run_scaled(a_kind, b_kind))


_TILE = {"BM": 64, "BN": 64, "BK": 32}
_PTR3 = ("i32", "i32", "i32")
CASES = {
    "softmax": Case(softmax, ("*fp32", "*fp32", "i32", "i32"), {"BLOCK": 1024}, run_softmax),
    "gelu": Case(gelu, ("*fp32", "*fp32", "i32"), {"BLOCK": 1024}, run_gelu),
    "gemm_f16": Case(gemm, ("*fp32", "*fp16", "*fp16", *_PTR3), {**_TILE, "IEEE": False}, run_gemm("f16", 100, 77, 51)),
    "gemm_bf16": Case(
        gemm, ("*fp32", "*bf16", "*bf16", *_PTR3), {**_TILE, "IEEE": False}, run_gemm("bf16", 64, 130, 96)
    ),
    "gemm_f32": Case(gemm, ("*fp32", "*fp32", "*fp32", *_PTR3), {**_TILE, "IEEE": True}, run_gemm("f32", 64, 64, 100)),
    "flash": Case(
        flash,
        ("*fp32", "*fp16", "*fp16", "*fp16", "fp32", "i32"),
        {"D": 64, "BM": 64, "BN": 64, "CAUSAL": True},
        run_flash,
    ),
    "scan": Case(scan, ("*fp32", "*fp32", "i32"), {"BLOCK": 2048}, run_scan),
    "argmax": Case(argmax, ("*i32", "*fp32", "i32"), {"BLOCK": 1024}, run_argmax),
    "hist": Case(hist, ("*fp32", "*i32", "i32"), {"BLOCK": 1024}, run_hist),
    "gather": Case(gather, ("*fp32", "*i64", "*fp32", "i32"), {"BLOCK": 256}, run_gather),
    "layernorm": Case(layernorm, ("*fp16", "*fp16", "*fp32", "*fp32", "i32", "fp32"), {"BLOCK": 1024}, run_layernorm),
}
SCALED = {f"scaled_{a}_{b}": _scaled(a, b) for a, b in (("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e2m1", "e2m1"))}
CASES |= SCALED
