"""Every opcode of the table against the vendor's pseudo-code, or against the expectation that `errata` states."""

from __future__ import annotations

from typing import Any

import kvc.simulator.isa
import numpy as np
import pytest
from errata import ERRATA, ULPS
from harness import CHECKED, Case, plain, run_document, run_table
from kvc.simulator.isa.table import REGISTRY
from operands import SHAPES
from pcode import Unsupported, is_nan

assert kvc.simulator.isa.__all__
_FORMATS = ("sop1", "sop2", "sopk", "sopc", "vop1", "vop2", "vop3", "vopc", "vop3p")
NAMES = [name for name, op in REGISTRY.items() if op.fmt in _FORMATS]
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
        case = run_table(name, waves=1 if "k32" in name or "pk16" in name else 3, **variant)
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
    case = run_table(name, waves=8, seed=1, **variant)
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

    from operands import draw, to_array

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
