"""The interface between the opcode tables and the engine: one `Op` per mnemonic, collected in `REGISTRY`.

An `Op` says what an instruction computes and nothing about how operands are read: registers, immediates, DPP, SDWA,
`op_sel`, `neg`/`abs`, `clamp`, `omod`, EXEC and the write-back belong to the engine. `fn` is pure NumPy, elementwise
over any shape: scalar instructions call it on arrays [W] (one element per wave), vector ones on [W, 64], and either
may be broadcast against [W, 1] (an SGPR operand) or [1, 1] (an immediate). It must not write to its arguments.

Operand types
    "f64" "f32" "f16" "u64" "i64" "b64" "u32" "i32" "b32" "u16" "i16" "b16" "u8" "i8"
                  NumPy float64, float32, float16, uint64, int64, uint64, uint32, int32, uint32, uint16, ...
    "b96" "b128" "b192" "b512" "b1024"    arrays of dwords with one more axis at the end
    "bf16"        uint16, the raw bits
    "pk_f16" "pk_i16" "pk_u16" "pk_b16" "pk_bf16"     two halves: one more axis of length 2 at the end, low first
    "pk_f32" "pk_b32"                                 two dwords of a register pair: the same, as float32, uint32
    "mix_f32"     float32 read from f32, or from a half as `op_sel_hi`/`op_sel` of the v_*_mix_* family says
    "mask"        lane mask (SGPR pair or VCC written in the text) as a boolean array
    "vcc" "scc" "exec"  read or written implicitly, not written in the text ("vcc" as destination may be written or
                  not): lane masks as boolean arrays; "scc" as a boolean array [W]
    "D.<type>"    source only: the previous value of the first destination (v_fmac_f32, s_mulk_i32), not in the text
    "fp8"         implicit: the chip's 8-bit formats, the string `ArchSpec.fp8` ("fnuz" or "ocp")
    "bitop3"      the integer of the modifier `bitop3:` (0 where it is not written)
    "simm16"      SOPK immediate, int32 after sign extension;  "uimm16" the same, zero-extended
Destination types, also
    "b16.keep"    16-bit result that goes to the half `op_sel[3]` names, the other half kept
    "b8.keep"     8-bit result that goes to the byte `op_sel[3:2]` names, the others kept
    "b16.lo" "b16.hi" (and "f16.lo", "f16.hi")        result goes to that half, the other half kept
A plain 16-bit destination zeroes the high half, as gfx9 does (unless `op_sel[3]` picks the high half: then kept).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FORMATS = frozenset(
    {"sop1", "sop2", "sopk", "sopc", "vop1", "vop2", "vop3", "vopc", "vop3p"}
    | {"sopp", "smem", "ds", "mubuf", "global", "flat", "scratch", "mfma"}
)


@dataclass(frozen=True)
class Op:
    """One mnemonic: operand types in the order of the text, and its meaning as a NumPy function.

    `name` is the mnemonic as LLVM prints it for gfx9, without the suffixes _e32, _e64, _dpp, _sdwa. `clamp_fn`, where
    given, is called in place of `fn` when the instruction carries `clamp` (integer saturation); float results are
    clamped to [0, 1] by the engine. `section` is the section of the public ISA document; `archs` None means all.
    """

    name: str
    fmt: str
    dst: tuple[str, ...]
    src: tuple[str, ...]
    fn: Callable[..., Any]
    section: str
    archs: tuple[str, ...] | None = None
    clamp_fn: Callable[..., Any] | None = None


REGISTRY: dict[str, Op] = {}


def op(
    name: str,
    fmt: str,
    dst: str | tuple[str, ...],
    src: str | tuple[str, ...],
    fn: Callable[..., Any],
    section: str,
    archs: tuple[str, ...] | None = None,
    clamp_fn: Callable[..., Any] | None = None,
) -> Op:
    """Register one opcode; `dst` and `src` may be space-separated strings. ValueError on a name used twice."""
    if fmt not in FORMATS:
        raise ValueError(f"{name}: unknown format {fmt!r}")
    if name in REGISTRY:
        raise ValueError(f"{name} is registered twice")
    dst_types = tuple(dst.split()) if isinstance(dst, str) else dst
    src_types = tuple(src.split()) if isinstance(src, str) else src
    REGISTRY[name] = Op(name, fmt, dst_types, src_types, fn, section, archs, clamp_fn)
    return REGISTRY[name]
