"""Each C form of an ALU opcode against the opcode's NumPy function, on random and special operands."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from kvc.simulator.isa.table import REGISTRY
from kvc.simulator.native.build import library
from kvc.simulator.native.forms import forms
from kvc.simulator.native.source import FLAVOURS, MASKS, numbers, words

from tests.simulator.isa.isa_harness import Case, plain, run_table
from tests.simulator.isa.isa_operands import SHAPES
from tests.simulator.isa.pcode_values import is_nan

# Tiers may round these apart: NumPy's own functions are within a unit in the last place of a float64.
_ONE_ULP = {f"v_{name}_{kind}" for name in ("exp", "log", "sin", "cos") for kind in ("f32", "f16")}
_HALVES = {"v_cvt_pk_f16_f32", "v_cvt_pkrtz_f16_f32"}  # two halves in a dword: NaN payloads are not specified
_ONE_ULP |= {"v_exp_legacy_f32", "v_log_legacy_f32"}


def _dwords(kind: str, column: list[int]) -> list[np.ndarray]:
    return [np.array([value >> 32 * i & 0xFFFF_FFFF for value in column], np.uint32) for i in range(words(kind))]


def _pointers(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(array.ctypes.data for array in arrays))


def compiled_results(form: str, case: Case, immediate: int) -> list[list[int]]:
    """The raw results of the C form on the operands of a case."""
    op, lanes = case.op, case.lanes()
    table, entry = numbers(), library().kvc_call
    pairs = zip(op.src, case.sources, strict=True)
    sources = [word for kind, column in pairs if kind not in ("bitop3", "fp8") for word in _dwords(kind, column)]
    targets = [[np.zeros(lanes, np.uint32) for _ in range(words(kind))] for kind in op.dst]
    flat = [array for group in targets for array in group]
    for at in range(0, lanes, 64):
        pointers = [_pointers([array[at:] for array in arrays]) for arrays in (flat, sources)]
        entry(table[form], *pointers, 64, ctypes.c_uint32(immediate))
    out = []
    for kind, group in zip(op.dst, targets, strict=True):
        values = [sum(int(array[lane]) << 32 * i for i, array in enumerate(group)) for lane in range(lanes)]
        mask = 1 if kind in MASKS else (1 << SHAPES[plain(kind)][0] * SHAPES[plain(kind)][1]) - 1
        assert all(value <= mask for value in values), "a result has bits above its type"
        out.append(values)
    return out


def _ordered(width: int, bits: int) -> int:
    return (1 << (width - 1)) - bits if bits >> (width - 1) else bits


def _same(name: str, kind: str, got: int, want: int) -> bool:
    if got == want:
        return True
    kind = "f16" if kind == "b16.keep" and name.endswith("_f16") else "pk_f16" if name in _HALVES else plain(kind)
    if kind not in SHAPES or not np.issubdtype(SHAPES[kind][2], np.floating):
        return False
    bits, count, _ = SHAPES[kind]
    for i in range(count):
        g, w = (value >> bits * i & ((1 << bits) - 1) for value in (got, want))
        if g == w or (is_nan(bits, g) and is_nan(bits, w)):
            continue
        if name not in _ONE_ULP or abs(_ordered(bits, g) - _ordered(bits, w)) > 1:
            return False
    return True


def _variants(name: str) -> list[tuple[dict[str, Any], int]]:
    """Settings of an opcode beyond its operands, and the immediate that stands for each."""
    if "fp8" in REGISTRY[name].src:
        return [({"fp8": flavour}, i) for i, flavour in enumerate(FLAVOURS)]
    return [({"bitop3": t}, t) for t in (0x96, 0xCA, 0x01)] if "bitop3" in REGISTRY[name].src else [({}, 0)]


@pytest.mark.parametrize("form", sorted(forms()))
def test_form(form: str) -> None:
    name = form.removesuffix(" clamp")
    for fixed, immediate in _variants(name):
        case = run_table(name, waves=4, seed=11, clamp=form != name, **fixed)
        got = compiled_results(form, case, immediate)
        wrong = []
        for kind, have, want in zip(case.op.dst, got, case.results, strict=True):
            for lane, (g, w) in enumerate(zip(have, want, strict=True)):
                if not _same(name, kind, g, w):
                    operands = ", ".join(f"{value:#x}" for value in case.inputs(lane))
                    wrong.append(f"{form}({operands}) = {g:#x}, the NumPy function gives {w:#x}")
        assert not wrong, f"{len(wrong)} of {case.lanes()} lanes:\n" + "\n".join(wrong[:6])
