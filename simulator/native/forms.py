"""The meaning of ALU opcodes as C expressions: the second tier's counterpart of the NumPy functions in `isa`.

Operand types are not repeated here: they come from the opcode's `Op`. In an expression `a`, `b`, `c`, `e` are the
typed sources in the order of `Op.src` (halves as float, lane masks as 0 or 1), `A`, `B`, `C`, `E` their raw bits, and
`r`, `q` the results. Packed operands are taken element by element, or named `a0`, `a1` where the result is not packed.
A form that starts with "raw " gives the bits of a float result, one that starts with "pair " the two elements of a
packed one. Names with " clamp" at their end are the saturating forms. Functions called here stand in `ops.h`.

Every form is compared with the NumPy function of its opcode on random and special operands (tests/simulator/native).
"""

from __future__ import annotations

from functools import cache

from kvc.simulator.isa.table import REGISTRY

_FLOAT_COMPARE = {
    "f": "0", "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "lg": "a < b || a > b", "ge": "a >= b",
    "o": "a == a && b == b", "u": "a != a || b != b", "nge": "!(a >= b)", "nlg": "!(a < b || a > b)",
    "ngt": "!(a > b)", "nle": "!(a <= b)", "neq": "a != b", "nlt": "!(a < b)", "tru": "1",
}  # fmt: skip
_INT_COMPARE = {
    "f": "0", "lt": "a < b", "eq": "a == b", "le": "a <= b", "gt": "a > b", "ne": "a != b", "ge": "a >= b", "t": "1",
}  # fmt: skip
_SCALAR_COMPARE = {"eq": "==", "lg": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}

_LOGIC = {
    "and": "a & b", "or": "a | b", "xor": "a ^ b", "andn2": "a & ~b", "orn2": "a | ~b", "nand": "~(a & b)",
    "nor": "~(a | b)", "xnor": "~(a ^ b)",
}  # fmt: skip

_FLOAT = {
    "v_add_{}": "a + b", "v_sub_{}": "a - b", "v_subrev_{}": "b - a", "v_mul_{}": "a * b",
}  # fmt: skip

_FIXED = {
    # f32
    "v_fma_f32": "fma32(a, b, c)", "v_fmac_f32": "fma32(a, b, c)", "v_fmamk_f32": "fma32(a, b, c)",
    "v_fmaak_f32": "fma32(a, b, c)", "v_mad_f32": "a * b + c", "v_mac_f32": "a * b + c",
    "v_madmk_f32": "a * b + c", "v_madak_f32": "a * b + c",
    "v_mul_legacy_f32": "a == 0 || b == 0 ? 0.0f : a * b",
    "v_min_f32": "min32(a, b)", "v_max_f32": "max32(a, b)", "v_min3_f32": "min32(min32(a, b), c)",
    "v_max3_f32": "max32(max32(a, b), c)", "v_med3_f32": "med32(a, b, c)",
    "v_trunc_f32": "__builtin_truncf(a)", "v_ceil_f32": "__builtin_ceilf(a)", "v_floor_f32": "__builtin_floorf(a)",
    "v_rndne_f32": "__builtin_rintf(a)", "v_fract_f32": "fract32(a)",
    "v_frexp_mant_f32": "frexp_mantissa32(a)", "v_frexp_exp_i32_f32": "frexp_exponent32(a)",
    "v_ldexp_f32": "(float)scale2((double)a, b)",
    "v_exp_f32": "flush((float)exp2_64((double)flush(a)))", "v_log_f32": "flush((float)log2_64((double)flush(a)))",
    "v_exp_legacy_f32": "flush((float)exp2_64((double)flush(a)))",
    "v_log_legacy_f32": "flush((float)log2_64((double)flush(a)))",
    "v_rcp_f32": "flush(1.0f / flush(a))", "v_rcp_iflag_f32": "flush(1.0f / flush(a))",
    "v_rsq_f32": "flush((float)(1.0 / __builtin_sqrt((double)flush(a))))",
    "v_sqrt_f32": "flush(__builtin_sqrtf(flush(a)))",
    "v_sin_f32": "flush((float)sin_turns((double)flush(a)))", "v_cos_f32": "flush((float)cos_turns((double)flush(a)))",
    # f64
    "v_add_f64": "a + b", "v_mul_f64": "a * b", "v_fma_f64": "__builtin_fma(a, b, c)",
    "v_fmac_f64": "__builtin_fma(a, b, c)", "v_min_f64": "min64(a, b)", "v_max_f64": "max64(a, b)",
    "v_trunc_f64": "__builtin_trunc(a)", "v_ceil_f64": "__builtin_ceil(a)", "v_floor_f64": "__builtin_floor(a)",
    "v_rndne_f64": "__builtin_rint(a)", "v_rcp_f64": "1.0 / a", "v_sqrt_f64": "__builtin_sqrt(a)",
    # f16
    "v_fma_f16": "half(fma16(a, b, c))", "v_fma_legacy_f16": "fma16(a, b, c)",
    "v_min_f16": "raw min16(A, B)", "v_max_f16": "raw max16(A, B)", "v_min3_f16": "raw min16(min16(A, B), C)",
    "v_max3_f16": "raw max16(max16(A, B), C)",
    "v_trunc_f16": "__builtin_truncf(a)", "v_ceil_f16": "__builtin_ceilf(a)", "v_floor_f16": "__builtin_floorf(a)",
    "v_rndne_f16": "__builtin_rintf(a)", "v_rcp_f16": "raw half64(1.0 / (double)a)",
    "v_rsq_f16": "raw half64(1.0 / __builtin_sqrt((double)a))", "v_sqrt_f16": "raw half64(__builtin_sqrt((double)a))",
    "v_exp_f16": "raw half64(exp2_64((double)a))", "v_log_f16": "raw half64(log2_64((double)a))",
    "v_ldexp_f16": "raw half64(scale2((double)a, b))",
    # conversions
    "v_cvt_i32_f64": "(i32)truncated(a, -2147483648.0, 2147483647.0)",
    "v_cvt_u32_f64": "(u32)(i64)truncated(a, 0.0, 4294967295.0)",
    "v_cvt_i32_f32": "(i32)truncated((double)a, -2147483648.0, 2147483647.0)",
    "v_cvt_u32_f32": "(u32)(i64)truncated((double)a, 0.0, 4294967295.0)",
    "v_cvt_i16_f16": "(i16)(i32)truncated((double)a, -32768.0, 32767.0)",
    "v_cvt_u16_f16": "(u16)(i32)truncated((double)a, 0.0, 65535.0)",
    "v_cvt_f64_i32": "(double)a", "v_cvt_f64_u32": "(double)a", "v_cvt_f32_i32": "(float)a",
    "v_cvt_f32_u32": "(float)a", "v_cvt_f16_i16": "(float)a", "v_cvt_f16_u16": "(float)a", "v_cvt_f16_f32": "a",
    "v_cvt_f32_f16": "a", "v_cvt_f32_f64": "(float)a", "v_cvt_f64_f32": "(double)a",
    "v_cvt_f32_bf16": "float_of(A << 16)",
    "v_cvt_rpi_i32_f32": "(i32)truncated((double)__builtin_floorf(a + 0.5f), -2147483648.0, 2147483647.0)",
    "v_cvt_flr_i32_f32": "(i32)truncated((double)__builtin_floorf(a), -2147483648.0, 2147483647.0)",
    "v_cvt_pkrtz_f16_f32": "half_toward_zero(a) | half_toward_zero(b) << 16",
    "v_cvt_pk_f16_f32": "half(a) | half(b) << 16", "v_cvt_pk_bf16_f32": "bf16(a) | bf16(b) << 16",
    "v_cvt_pk_u16_u32": "(a > 65535 ? 65535 : a) | (b > 65535 ? 65535 : b) << 16",
    "v_cvt_pk_i16_i32": "(clamped(a, -32768, 32767) & 0xffff) | (u32)clamped(b, -32768, 32767) << 16",
    "v_pack_b32_f16": "A | B << 16",
    "v_cvt_pk_f32_fp8": "raw pair small_fp8[imm][A & 255], small_fp8[imm][A >> 8]",
    "v_cvt_pk_f32_bf8": "raw pair small_bf8[imm][A & 255], small_bf8[imm][A >> 8]",
    "v_cvt_f32_fp8": "raw small_fp8[imm][A]", "v_cvt_f32_bf8": "raw small_bf8[imm][A]",
    "v_cvt_pk_fp8_f32": "encoded(&format_fp8[imm], a, -1) | encoded(&format_fp8[imm], b, -1) << 8",
    "v_cvt_pk_bf8_f32": "encoded(&format_bf8[imm], a, -1) | encoded(&format_bf8[imm], b, -1) << 8",
    "v_cvt_sr_fp8_f32": "encoded(&format_fp8[imm], a, noise_of(b, 20))",
    "v_cvt_sr_bf8_f32": "encoded(&format_bf8[imm], a, noise_of(b, 21))",
    # division
    "v_div_scale_f32": "div_scale32(a, b, c, &q)", "v_div_fmas_f32": "div_fmas32(a, b, c, e)",
    "v_div_fixup_f32": "div_fixup32(a, b, c)",
    # carries and selection
    "v_add_co_u32": "a + b; q = r < a", "v_sub_co_u32": "a - b; q = b > a", "v_subrev_co_u32": "b - a; q = a > b",
    "v_addc_co_u32": "a + b; q = r < a; r += c; q |= r < c", "v_subb_co_u32": "a - b; q = (b > a) | (r < c); r -= c",
    "v_subbrev_co_u32": "b - a; q = (a > b) | (r < c); r -= c",
    "v_cndmask_b32": "c ? b : a", "v_mad_u64_u32": "(u64)a * b + c; q = r < c",
    "v_mad_i64_i32": "(i64)((u64)((i64)a * b) + (u64)c); q = (r < 0) ^ (((((i64)a * b) ^ r) & (c ^ r)) < 0)",
    # integers
    "v_add_u32": "a + b", "v_sub_u32": "a - b", "v_subrev_u32": "b - a", "v_add_u16": "a + b", "v_sub_u16": "a - b",
    "v_subrev_u16": "b - a", "v_add_i32": "(u32)a + (u32)b", "v_sub_i32": "(u32)a - (u32)b", "v_add_i16": "a + b",
    "v_sub_i16": "a - b", "v_not_b32": "~a", "v_mov_b32": "a", "v_mov_b64": "a", "v_and_or_b32": "(a & b) | c",
    "v_or3_b32": "a | b | c", "v_bfi_b32": "c ^ (a & (b ^ c))", "v_xad_u32": "(a ^ b) + c", "v_add3_u32": "a + b + c",
    "v_lshl_add_u32": "(a << (b & 31)) + c", "v_add_lshl_u32": "(a + b) << (c & 31)",
    "v_lshl_or_b32": "(a << (b & 31)) | c", "v_lshl_add_u64": "(a << (b & 7)) + c",
    "v_lshlrev_b32": "b << (a & 31)", "v_lshrrev_b32": "b >> (a & 31)", "v_ashrrev_i32": "b >> (a & 31)",
    "v_lshlrev_b16": "b << (a & 15)", "v_lshrrev_b16": "b >> (a & 15)", "v_ashrrev_i16": "b >> (a & 15)",
    "v_lshlrev_b64": "b << (a & 63)", "v_lshrrev_b64": "b >> (a & 63)", "v_ashrrev_i64": "b >> (a & 63)",
    "v_bfe_u32": "(a >> (b & 31)) & ((1u << (c & 31)) - 1)", "v_bfe_i32": "bfe_signed(a, b & 31, c & 31)",
    "v_bfm_b32": "((1u << (a & 31)) - 1) << (b & 31)", "v_bfrev_b32": "__builtin_bitreverse32(a)",
    "v_ffbh_u32": "a ? __builtin_clz(a) : -1", "v_ffbl_b32": "a ? __builtin_ctz(a) : -1",
    "v_bcnt_u32_b32": "__builtin_popcount(a) + b",
    "v_mbcnt_lo_u32_b32": "__builtin_popcount(a & below(l)) + b",
    "v_mbcnt_hi_u32_b32": "__builtin_popcount(a & below(l - 32)) + b",
    "v_bitop3_b32": "bitop3(a, b, c, imm)", "v_bitop3_b16": "bitop3(a, b, c, imm)",
    "v_mul_lo_u32": "a * b", "v_mul_lo_i32": "(u32)a * (u32)b", "v_mul_hi_u32": "(u32)((u64)a * b >> 32)",
    "v_mul_hi_i32": "(i32)((i64)a * b >> 32)", "v_mul_lo_u16": "(u32)a * b",
    "v_mul_u32_u24": "(a & 0xffffff) * (b & 0xffffff)", "v_mul_i32_i24": "(u32)signed24(a) * (u32)signed24(b)",
    "v_mul_hi_u32_u24": "(u32)((u64)(a & 0xffffff) * (b & 0xffffff) >> 32)",
    "v_mad_u32_u24": "(a & 0xffffff) * (b & 0xffffff) + c",
    "v_mad_i32_i24": "(u32)signed24(a) * (u32)signed24(b) + (u32)c", "v_mad_u32_u16": "(u32)a * b + c",
    "v_mad_i32_i16": "(u32)((i32)a * b) + (u32)c", "v_mad_u16": "(u32)a * b + c", "v_mad_legacy_u16": "(u32)a * b + c",
    "v_alignbit_b32": "(u32)(((u64)a << 32 | b) >> (c & 31))",
    "v_alignbyte_b32": "(u32)(((u64)a << 32 | b) >> ((c & 3) * 8))", "v_perm_b32": "perm(a, b, c)",
    # packed
    "v_pk_add_i16": "a + b", "v_pk_sub_i16": "a - b", "v_pk_max_i16": "a > b ? a : b", "v_pk_min_i16": "a < b ? a : b",
    "v_pk_ashrrev_i16": "b >> (a & 15)", "v_pk_add_u16": "a + b", "v_pk_sub_u16": "a - b",
    "v_pk_max_u16": "a > b ? a : b", "v_pk_min_u16": "a < b ? a : b", "v_pk_mul_lo_u16": "(u32)a * b",
    "v_pk_lshlrev_b16": "b << (a & 15)", "v_pk_lshrrev_b16": "b >> (a & 15)", "v_pk_mad_u16": "(u32)a * b + c",
    "v_pk_mad_i16": "(i32)a * b + c",
    "v_pk_add_f16": "a + b", "v_pk_mul_f16": "a * b", "v_pk_fma_f16": "fma16(a, b, c)",
    "v_pk_fmac_f16": "fma16(a, b, c)", "v_pk_min_f16": "raw min16(A, B)", "v_pk_max_f16": "raw max16(A, B)",
    "v_pk_fma_f32": "fma32(a, b, c)", "v_pk_mul_f32": "a * b", "v_pk_add_f32": "a + b",
    "v_fma_mix_f32": "fma32(a, b, c)", "v_fma_mixlo_f16": "fma32(a, b, c)", "v_fma_mixhi_f16": "fma32(a, b, c)",
    "v_dot2_f32_f16": "(c + a0 * b0) + a1 * b1", "v_dot2c_f32_f16": "(c + a0 * b0) + a1 * b1",
    "v_dot2_i32_i16": "(u32)((i32)a0 * b0) + (u32)((i32)a1 * b1) + (u32)c",
    "v_dot4_i32_i8": "dot4_signed(A, B) + (u32)c", "v_dot4c_i32_i8": "dot4_signed(A, B) + (u32)c",
    "v_pk_mov_b32": "pair A0, B0",
    # scalar
    "s_add_u32": "a + b; q = r < a", "s_sub_u32": "a - b; q = b > a",
    "s_add_i32": "(i32)((u32)a + (u32)b); q = ((a ^ r) & (b ^ r)) < 0",
    "s_sub_i32": "(i32)((u32)a - (u32)b); q = ((a ^ b) & (a ^ r)) < 0",
    "s_addc_u32": "a + b + c; q = ((u64)a + b + c) >> 32 != 0", "s_subb_u32": "a - b - c; q = (u64)a < (u64)b + c",
    "s_min_i32": "a < b ? a : b; q = a < b", "s_min_u32": "a < b ? a : b; q = a < b",
    "s_max_i32": "a > b ? a : b; q = a >= b", "s_max_u32": "a > b ? a : b; q = a >= b",
    "s_cselect_b32": "c ? a : b", "s_cselect_b64": "c ? a : b",
    "s_lshl_b32": "a << (b & 31); q = r != 0", "s_lshl_b64": "a << (b & 63); q = r != 0",
    "s_lshr_b32": "a >> (b & 31); q = r != 0", "s_lshr_b64": "a >> (b & 63); q = r != 0",
    "s_ashr_i32": "a >> (b & 31); q = r != 0", "s_ashr_i64": "a >> (b & 63); q = r != 0",
    "s_bfm_b32": "((1u << (a & 31)) - 1) << (b & 31)", "s_bfm_b64": "((1ull << (a & 63)) - 1) << (b & 63)",
    "s_mul_i32": "a * b", "s_mul_hi_u32": "(u32)((u64)a * b >> 32)", "s_mul_hi_i32": "(i32)((i64)a * b >> 32)",
    "s_bfe_u32": "(a >> (b & 31)) & field_mask(b >> 16 & 127); q = r != 0",
    "s_bfe_i32": "scalar_bfe_signed(a, b); q = r != 0",
    "s_absdiff_i32": "(i32)((u32)a - (u32)b); r = r < 0 ? (i32)(0 - (u32)r) : r; q = r != 0",
    "s_pack_ll_b32_b16": "(a & 0xffff) | b << 16", "s_pack_lh_b32_b16": "(a & 0xffff) | (b & 0xffff0000)",
    "s_pack_hh_b32_b16": "a >> 16 | (b & 0xffff0000)", "s_mov_b32": "a", "s_mov_b64": "a", "s_cmov_b32": "c ? a : b",
    "s_cmov_b64": "c ? a : b", "s_not_b32": "~a; q = r != 0", "s_not_b64": "~a; q = r != 0",
    "s_brev_b32": "__builtin_bitreverse32(a)", "s_brev_b64": "__builtin_bitreverse64(a)",
    "s_bcnt0_i32_b32": "__builtin_popcount(~a); q = r != 0", "s_bcnt1_i32_b32": "__builtin_popcount(a); q = r != 0",
    "s_bcnt0_i32_b64": "__builtin_popcountll(~a); q = r != 0",
    "s_bcnt1_i32_b64": "__builtin_popcountll(a); q = r != 0",
    "s_ff0_i32_b32": "~a ? __builtin_ctz(~a) : -1", "s_ff1_i32_b32": "a ? __builtin_ctz(a) : -1",
    "s_ff0_i32_b64": "~a ? __builtin_ctzll(~a) : -1", "s_ff1_i32_b64": "a ? __builtin_ctzll(a) : -1",
    "s_flbit_i32_b32": "a ? __builtin_clz(a) : -1", "s_flbit_i32_b64": "a ? __builtin_clzll(a) : -1",
    "s_bitset0_b32": "b & ~(1u << (a & 31))", "s_bitset1_b32": "b | 1u << (a & 31)",
    "s_bitset0_b64": "b & ~(1ull << (a & 63))", "s_bitset1_b64": "b | 1ull << (a & 63)",
    "s_sext_i32_i8": "(i8)a", "s_sext_i32_i16": "(i16)a",
    "s_abs_i32": "a < 0 ? (i32)(0 - (u32)a) : a; q = r != 0",
    "s_cmp_eq_u64": "a == b", "s_cmp_lg_u64": "a != b",
    "s_bitcmp0_b32": "!(a >> (b & 31) & 1)", "s_bitcmp1_b32": "a >> (b & 31) & 1",
    "s_bitcmp0_b64": "!(a >> (b & 63) & 1)", "s_bitcmp1_b64": "a >> (b & 63) & 1",
    "s_movk_i32": "a", "s_cmovk_i32": "c ? (u32)a : b",
    "s_addk_i32": "(i32)((u32)a + (u32)b); q = ((a ^ r) & (b ^ r)) < 0", "s_mulk_i32": "(u32)a * (u32)b",
}  # fmt: skip

_SATURATING = {
    "v_add_{}": "(i64)a + (i64)b", "v_sub_{}": "(i64)a - (i64)b", "v_subrev_{}": "(i64)b - (i64)a",
    "v_mad_{}_u24": "(i64)(a & 0xffffff) * (b & 0xffffff) + c",
    "v_mad_{}_i24": "(i64)signed24(a) * signed24(b) + c", "v_pk_add_{}": "(i64)a + (i64)b",
    "v_pk_sub_{}": "(i64)a - (i64)b",
}  # fmt: skip
_LIMITS = {"u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1), "u16": (0, 2**16 - 1), "i16": (-(2**15), 2**15 - 1)}


@cache
def forms() -> dict[str, str]:
    """C form by opcode; opcodes without one run in the NumPy tier."""
    import kvc.simulator.isa  # noqa: F401  (fills the table)

    out = dict(_FIXED)
    for name, text in _FLOAT.items():
        out |= {name.format(kind): text for kind in ("f32", "f16")}
    for kind in ("i32", "u32", "i16", "u16"):
        low, high = "(a < b ? a : b)", "(a > b ? a : b)"
        out |= {f"v_min_{kind}": low, f"v_max_{kind}": high}
        out |= {f"v_min3_{kind}": f"{low}; r = r < c ? r : c", f"v_max3_{kind}": f"{high}; r = r > c ? r : c"}
        out[f"v_med3_{kind}"] = f"{high}; r = r < c ? r : c; r = r > {low} ? r : {low}"
    for name in ("and", "or", "xor", "xnor"):
        out[f"v_{name}_b32"] = _LOGIC[name]
    for name, text in _LOGIC.items():
        out |= {f"s_{name}_{kind}": f"{text}; q = r != 0" for kind in ("b32", "b64")}
    for n in (1, 2, 3, 4):
        out[f"s_lshl{n}_add_u32"] = f"(a << {n}) + b; q = (((u64)a << {n}) + b) >> 32 != 0"
    for i in range(4):
        out[f"v_cvt_f32_ubyte{i}"] = f"(float)(a >> {8 * i} & 255)"
    out |= _compares()
    for name, text in _SATURATING.items():
        for kind, (least, most) in _LIMITS.items():
            if name.format(kind) in REGISTRY and REGISTRY[name.format(kind)].clamp_fn:
                out[f"{name.format(kind)} clamp"] = f"clamped64({text}, {least}ll, {most}ll)"
    return {name: text for name, text in out.items() if name.removesuffix(" clamp") in REGISTRY}


def _compares() -> dict[str, str]:
    out: dict[str, str] = {}
    for prefix, tail in (("v_cmp_", ""), ("v_cmpx_", "; q = r")):
        for kinds, table in (
            (("i16", "u16", "i32", "u32", "i64", "u64"), _INT_COMPARE),
            (("f16", "f32", "f64"), _FLOAT_COMPARE),
        ):
            for name, text in table.items():
                out |= {f"{prefix}{name}_{kind}": f"{text}{tail}" for kind in kinds}
        out[f"{prefix}class_f32"] = f"classes32(A) >> 0 & b ? 1 : 0{tail}"
    for name, sign in _SCALAR_COMPARE.items():
        for kind in ("i32", "u32"):
            out[f"s_cmp_{name}_{kind}"] = out[f"s_cmpk_{name}_{kind}"] = f"a {sign} b"
    return out
