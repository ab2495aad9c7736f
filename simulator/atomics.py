"""Read-modify-write: what each atomic computes, and how lanes that hit one address take turns.

Source: "AMD Instinct CDNA3 Instruction Set Architecture", sections 12.13 (DS) and 12.15-12.17 (MUBUF, FLAT, GLOBAL).
Lanes take turns in the order of their number; hardware leaves the order open.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Atomic:
    """`dtype` of memory and operand (`width` bytes); `fn(old, operand, compare)`; `ufunc` does it in place."""

    width: int
    dtype: Any
    fn: Callable[[Any, Any, Any], Any]
    ufunc: np.ufunc | None = None
    compares: bool = False


def _inc(old: Any, limit: Any, _: Any) -> Any:
    return np.where(old >= limit, 0, old + np.asarray(1, old.dtype)).astype(old.dtype)


def _dec(old: Any, limit: Any, _: Any) -> Any:
    return np.where((old == 0) | (old > limit), limit, old - np.asarray(1, old.dtype)).astype(old.dtype)


def _sub_clamp(old: Any, value: Any, _: Any) -> Any:
    return old - value


def _pk_f16(old: Any, value: Any, _: Any) -> Any:
    total = old[:, None].view(np.float16) + value[:, None].view(np.float16)
    return total.view(np.uint32)[:, 0]


def _pk_bf16(old: Any, value: Any, _: Any) -> Any:
    def widen(words: Any) -> Any:
        return (words[:, None].view(np.uint16).astype(np.uint32) << 16).view(np.float32)

    bits = (widen(old) + widen(value)).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    halves = np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)
    return halves.view(np.uint32)[:, 0]


def _integer(bits: int) -> dict[str, Atomic]:
    u, s, width = np.dtype(f"u{bits // 8}"), np.dtype(f"i{bits // 8}"), bits // 8
    return {
        "add": Atomic(width, u, lambda a, b, c: a + b, np.add),
        "sub": Atomic(width, u, lambda a, b, c: a - b, np.subtract),
        "rsub": Atomic(width, u, lambda a, b, c: b - a),
        "inc": Atomic(width, u, _inc),
        "dec": Atomic(width, u, _dec),
        "smin": Atomic(width, s, lambda a, b, c: np.minimum(a, b), np.minimum),
        "smax": Atomic(width, s, lambda a, b, c: np.maximum(a, b), np.maximum),
        "umin": Atomic(width, u, lambda a, b, c: np.minimum(a, b), np.minimum),
        "umax": Atomic(width, u, lambda a, b, c: np.maximum(a, b), np.maximum),
        "and": Atomic(width, u, lambda a, b, c: a & b, np.bitwise_and),
        "or": Atomic(width, u, lambda a, b, c: a | b, np.bitwise_or),
        "xor": Atomic(width, u, lambda a, b, c: a ^ b, np.bitwise_xor),
        "swap": Atomic(width, u, lambda a, b, c: b),
        "cmpswap": Atomic(width, u, lambda a, b, c: np.where(a == c, b, a), compares=True),
    }


_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
FLOAT = {
    "add_f32": Atomic(4, _F32, lambda a, b, c: a + b, np.add),
    "min_f32": Atomic(4, _F32, lambda a, b, c: np.fmin(a, b), np.fmin),
    "max_f32": Atomic(4, _F32, lambda a, b, c: np.fmax(a, b), np.fmax),
    "add_f64": Atomic(8, _F64, lambda a, b, c: a + b, np.add),
    "min_f64": Atomic(8, _F64, lambda a, b, c: np.fmin(a, b), np.fmin),
    "max_f64": Atomic(8, _F64, lambda a, b, c: np.fmax(a, b), np.fmax),
    "pk_add_f16": Atomic(4, np.dtype(np.uint32), _pk_f16),
    "pk_add_bf16": Atomic(4, np.dtype(np.uint32), _pk_bf16),
}

# Names after global_atomic_, flat_atomic_, buffer_atomic_.
GLOBAL: dict[str, Atomic] = {**_integer(32), **{f"{name}_x2": item for name, item in _integer(64).items()}, **FLOAT}
del GLOBAL["rsub"], GLOBAL["rsub_x2"]

_DS_NAMES = {"smin": "min_i", "smax": "max_i", "umin": "min_u", "umax": "max_u", "add": "add_u", "sub": "sub_u",
             "rsub": "rsub_u", "inc": "inc_u", "dec": "dec_u", "and": "and_b", "or": "or_b", "xor": "xor_b",
             "swap": "wrxchg_b", "cmpswap": "cmpst_b"}  # fmt: skip


def _ds_table() -> dict[str, Atomic]:
    """Mnemonics of the DS atomics, with and without return."""
    out: dict[str, Atomic] = {}
    for bits in (32, 64):
        for name, item in _integer(bits).items():
            word = f"{_DS_NAMES[name]}{bits}"
            out[f"ds_{word}"] = out[f"ds_{word.replace('_', '_rtn_', 1)}"] = item
    for name, item in FLOAT.items():
        rtn = name.replace("pk_add", "pk_add_rtn") if name.startswith("pk_") else name.replace("_", "_rtn_", 1)
        out[f"ds_{name}"] = out[f"ds_{rtn}"] = item
    # ds_min_f32 and its kin return the other operand's place in cmpst: compare first, then the new value.
    return out


DS = _ds_table()


def apply(
    memory: np.ndarray,
    index: np.ndarray,
    atomic: Atomic,
    operand: np.ndarray,
    compare: np.ndarray | None,
    returns: bool,
) -> np.ndarray | None:
    """Update `memory` (1-D, atomic.dtype) at `index` [n]; returns the values before, in lane order, if asked."""
    if not returns and atomic.ufunc is not None:
        atomic.ufunc.at(memory, index, operand)
        return None
    before = np.empty(len(index), memory.dtype)
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(first)
    turn = np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
    by_turn = np.argsort(turn, kind="stable")
    ends: list[int] = np.cumsum(np.bincount(turn)).tolist() if len(index) else []
    start = 0
    for end in ends:
        lanes = order[by_turn[start:end]]
        start = end
        where = index[lanes]
        old = memory[where]
        before[lanes] = old
        memory[where] = atomic.fn(old, operand[lanes], None if compare is None else compare[lanes])
    return before
