"""Every opcode of the table against the vendor's pseudo-code, or against the expectation that `errata` states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kvc.simulator.isa import ALU
from kvc.simulator.isa.table import REGISTRY

from tests.simulator.isa.errata import ERRATA, ULPS
from tests.simulator.isa.isa_harness import CHECKED, Case, plain, run_document, run_table
from tests.simulator.isa.isa_operands import SHAPES
from tests.simulator.isa.pcode_values import Unsupported, is_nan

NAMES = sorted(ALU)
_FLOAT_DTYPES = (np.float16, np.float32, np.float64)


def _ordered(width: int, bits: int) -> int:
    """Floats as integers in their order, so that neighbours differ by one."""
    return (1 << (width - 1)) - bits if bits >> (width - 1) else bits


def _element_matches(width: int, got: int, want: int, ulps: int) -> bool:
    if got == want:
        return True
    if is_nan(width, got) or is_nan(width, want):
        return is_nan(width, got) and is_nan(width, want)  # the payload of a NaN is not specified
    return ulps > 0 and abs(_ordered(width, got) - _ordered(width, want)) <= ulps


def _matches(name: str, kind: str, got: int, want: int) -> bool:
    if got == want or (kind not in SHAPES and plain(kind) not in SHAPES):
        return got == want
    bits, count, dtype = SHAPES["f16" if kind == "b16.keep" and name.endswith("_f16") else plain(kind)]
    if dtype not in _FLOAT_DTYPES:
        return False
    mask = (1 << bits) - 1
    pairs = (((got >> bits * i) & mask, (want >> bits * i) & mask) for i in range(count))
    return all(_element_matches(bits, g, w, ULPS.get(name, 0)) for g, w in pairs)


def _check(case: Case, expected: Any) -> None:
    wrong = []
    for lane in range(case.lanes()):
        got = [column[lane] for column in case.results]
        want = expected(lane)
        if not all(_matches(case.op.name, k, g, w) for k, g, w in zip(case.op.dst, got, want, strict=True)):
            operands = ", ".join(f"{v:#x}" for v in case.inputs(lane))
            wrong.append(f"{case.op.name}({operands}) = {[hex(v) for v in got]}, expected {[hex(v) for v in want]}")
    assert not wrong, f"{len(wrong)} of {case.lanes()} lanes:\n" + "\n".join(wrong[:8])


def _variants(name: str) -> list[dict[str, Any]]:
    """The settings of an opcode that has more than its operands: fp8 formats, truth tables."""
    src = REGISTRY[name].src
    if "fp8" in src:
        return [{"fp8": "fnuz"}, {"fp8": "ocp"}]
    return [{"bitop3": t} for t in (0x96, 0xCA, 0x01, 0x3F)] if "bitop3" in src else [{}]


@pytest.mark.parametrize("name", NAMES)
def test_opcode(name: str) -> None:
    for variant in _variants(name):
        flavour, table = variant.get("fp8", "ocp"), variant.get("bitop3", 0)
        case = run_table(name, waves=1 if "k32" in name or "pk16" in name else 2, **variant)
        erratum = ERRATA.get(name)
        if erratum is None:
            try:
                _check(case, lambda lane, c=case, f=flavour, t=table: run_document(c, lane, f, t))
            except Unsupported as missing:
                pytest.fail(f"{name} has no oracle: the document does not define {missing}; add it to errata.py")
            CHECKED["document"].add(name)
            continue
        options = {"flavour": flavour} if "fp8" in case.op.src else {}
        _check(case, lambda lane, c=case, e=erratum, o=options: e.expected(*c.inputs(lane), **o))
        CHECKED["errata"].add(name)


@pytest.mark.parametrize("name", [n for n in sorted(ERRATA) if n in REGISTRY])
def test_erratum_is_still_needed(name: str) -> None:
    """The document differs somewhere, or cannot be run: an entry that it satisfies should go."""
    if name in ULPS:
        pytest.skip("the document bounds the result, so agreement on a sample proves nothing")
    variant = _variants(name)[0]
    case = run_table(name, waves=6, seed=1, **variant)
    flavour = variant.get("fp8", "ocp")
    try:
        with pytest.raises(AssertionError):
            _check(case, lambda lane: run_document(case, lane, flavour))
    except Unsupported:
        return


def test_errata_name_registered_opcodes_only() -> None:
    assert set(ERRATA) <= set(REGISTRY)
    assert set(ULPS) <= set(REGISTRY)


def _broadcastable(array: Any, how: int) -> Any:
    """An operand as the engine passes it: whole, one value per wave (SGPR), one value (immediate)."""
    return (array, array[:, :1], array[:1, :1])[how]


@pytest.mark.parametrize("fmt", ["vop1", "vop2", "vop3", "vopc", "vop3p"])
def test_operands_broadcast(fmt: str) -> None:
    """An SGPR or an immediate gives what the same value in every lane gives."""
    import random

    from tests.simulator.isa.isa_operands import draw, to_array

    rng = random.Random(7)
    for op in (REGISTRY[n] for n in NAMES if REGISTRY[n].fmt == fmt):
        whole, narrow = [], []
        for i, kind in enumerate(op.src):
            if kind in ("fp8", "bitop3"):
                whole.append({"fp8": "ocp", "bitop3": 0x96}[kind])
                narrow.append(whole[-1])
                continue
            if kind in ("mask", "vcc", "scc"):
                array = np.array([rng.getrandbits(1) for _ in range(128)], np.bool_).reshape(2, 64)
                whole.append(array)
                narrow.append(array)
                continue
            array = to_array(draw(rng, plain(kind), 2), plain(kind))
            part = _broadcastable(array, (i + len(op.name)) % 3)
            narrow.append(part)
            whole.append(np.ascontiguousarray(np.broadcast_to(part, array.shape)))
        with np.errstate(all="ignore"):
            want, got = op.fn(*whole), op.fn(*narrow)
        wants, gots = (want, got) if isinstance(want, tuple) else ((want,), (got,))
        for w, g in zip(wants, gots, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(g, np.shape(w)), w, err_msg=op.name)


# ---- clamp ----------------------------------------------------------------------------------------------------------


def _signed(value: int, bits: int) -> int:
    return value - (value >> (bits - 1) << bits)


def _numbers(raw: int, kind: str, field: int) -> list[int]:
    """The integers in an operand: fields of `field` bits, signed as its type says."""
    bits, count, dtype = SHAPES[kind]
    parts = [raw >> i & ((1 << field) - 1) for i in range(0, bits * count, field)]
    return [_signed(p, field) for p in parts] if np.issubdtype(dtype, np.signedinteger) else parts


def _exact(name: str, values: list[list[int]]) -> list[int]:
    """The unbounded results of an instruction that has `clamp`, from its name."""
    if "dot" in name:
        return [sum(x * y for x, y in zip(values[0], values[1], strict=True)) + values[2][0]]
    verb = name.split("_")[2 if "_pk_" in name else 1]
    table = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "subrev": lambda a, b: b - a}
    table |= {"mad": lambda a, b, c: a * b + c}  # type: ignore[dict-item, misc]
    return [table[verb](*lane) for lane in zip(*values, strict=True)]


@pytest.mark.parametrize("name", sorted(n for n in ALU if REGISTRY[n].clamp_fn))
def test_clamp_saturates(name: str) -> None:
    op = REGISTRY[name]
    case = run_table(name, waves=4, clamp=True)
    dot = {"v_dot4": 8, "v_dot8": 4}.get(name[:6])
    result = plain(op.dst[0]) if op.dst[0] != "b16.keep" else op.src[0]
    bits, count, dtype = SHAPES[result]
    info = np.iinfo(dtype)
    for lane in range(case.lanes()):
        values = []
        for kind, raw in zip(op.src, case.inputs(lane), strict=True):
            if dot and kind == "b32":
                signed = "i32" if "_i32_" in name else "u32"
                values.append(_numbers(raw, signed, dot))
            elif name.endswith("24") and len(values) < 2:
                values.append(_numbers(raw & 0xFFFFFF, kind, 24)[:1])
            else:
                values.append(_numbers(raw, kind, SHAPES[kind][0]))
        want = [min(max(v, info.min), info.max) & ((1 << bits) - 1) for v in _exact(name, values)]
        assert case.results[0][lane] == sum(v << bits * i for i, v in enumerate(want[:count])), case.inputs(lane)
