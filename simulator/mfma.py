"""Matrix instructions: v_mfma_* of the three chips, scaled forms of gfx950, and moves to accumulation registers.

Layouts (AMD matrix instruction calculator, CDNA3/CDNA4 ISA section 7), for D[M,N] += A[M,K] B[K,N], `blocks` of them:
lane l holds P elements of row (A) or column (B) l mod M, block (l div M) mod blocks, k = P ((l div M) div blocks) + j.
D register r of lane l: column l mod N; for M = 32 and 16 row 4 g (q div 4) + 4 (l div N) + q mod 4 of block r div R,
where g = 64 / N, R = M N / 64 registers per block and q = r mod R; for M = 4 row r of block l div 4; in fp64 row
4 r + l div 16 (16x16x4) and row l div 16 of block (l div 4) mod 4 (4x4x4). EXEC is ignored. Products are exact in the
accumulator's type; the order of the sum is NumPy's, which hardware does not share. The 8-bit operands of f8f6f4
and the lanes of its scales follow Triton's lowering of dot_scaled, against which they are tested (fp8, bf8, fp4); that
fp6 and bf6 lie as fp4 does is an assumption.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from kvc.arch import arch as arch_row
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.operands import Operand, constant_bits, parse_operand, refuse, set_bits
from kvc.simulator.poison import ONES
from kvc.simulator.state import LANES, U32, U64, Group
from kvc.simulator.step import Step, full

_NAME = re.compile(
    r"^v_mfma_(?:(scale)_)?(f32|f64|i32)_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?"
    r"(f32|f64|f16|bf16_1k|bf16|i8|xf32|f8f6f4|(?:fp8|bf8)_(?:fp8|bf8))$"
)
_BITS = {"f32": 32, "xf32": 32, "f64": 64, "f16": 16, "bf16": 16, "bf16_1k": 16, "i8": 8, "fp8": 8, "bf8": 8,
         "fp6": 6, "bf6": 6, "fp4": 4}  # fmt: skip
_F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")

Decode = Callable[[np.ndarray], np.ndarray]


class Shape(NamedTuple):
    m: int
    n: int
    k: int
    blocks: int
    per_lane: int


def is_mfma(name: str) -> bool:
    return name.startswith(("v_mfma_", "v_smfmac_", "v_accvgpr_"))


def decode(ins: Instruction, assembly: Assembly, arch: str) -> Step:
    """A matrix instruction or a move between register files. KVC0902 for shapes and modifiers that are not known."""
    if ins.name.startswith("v_accvgpr_"):
        return _move(ins)
    match = _NAME.match(ins.name)
    if match is None:
        raise refuse(ins, f"opcode {ins.name!r}")
    _check_arch(ins, match, arch)
    scaled, result, m, n, k, kind = match.groups()
    operands = [parse_operand(text, ins) for text in ins.operands]
    if any(operand.neg or operand.absolute for operand in operands):
        raise refuse(ins, "operand modifier")
    allowed = {"cbsz", "abid", "blgp"} | ({"op_sel", "op_sel_hi"} if scaled else set())
    if any(name not in allowed for name in ins.mods) or (result == "f64" and ins.mods):
        raise refuse(ins, "modifier")
    kinds = _kinds(ins, kind)
    per_lane = operands[1].count * 32 // _BITS[kinds[0]]
    shape = Shape(int(m), int(n), int(k), LANES * per_lane // (int(m) * int(k)), per_lane)
    if operands[2].count * 32 // _BITS[kinds[1]] != per_lane or shape.blocks < 1:
        raise refuse(ins, "operand widths")
    return _matrix(ins, operands, shape, kinds, result, bool(scaled), arch)


def _check_arch(ins: Instruction, match: re.Match[str], arch: str) -> None:
    """Refuse what the chip lacks, by the flavour of its 8-bit formats (none, fnuz, ocp: CDNA 2, 3, 4)."""
    generation = ("none", "fnuz", "ocp").index(arch_row(arch).fp8)
    scaled, _, m, _, k, kind = match.groups()
    volume = int(m), int(k)
    newest = scaled or kind == "f8f6f4" or (kind in ("f16", "bf16") and volume in ((16, 32), (32, 16)))
    newest = newest or (kind == "i8" and volume in ((16, 64), (32, 32)))
    if newest and generation < 2:
        raise refuse(ins, f"opcode does not exist on {arch}:")
    if (kind.startswith(("fp8", "bf8")) and generation < 1) or (kind == "xf32" and generation != 1):
        raise refuse(ins, f"opcode does not exist on {arch}:")


def _kinds(ins: Instruction, kind: str) -> tuple[str, str]:
    if kind == "f8f6f4":
        codes = int(ins.mods.get("cbsz", 0)), int(ins.mods.get("blgp", 0))
        if max(codes) >= len(_F8F6F4):
            raise refuse(ins, "matrix format")
        return _F8F6F4[codes[0]], _F8F6F4[codes[1]]
    parts = kind.split("_")
    return (parts[0], parts[1]) if len(parts) == 2 and parts[1] != "1k" else (kind, kind)


# ---- element formats


@cache
def _half_table() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def small_float_table(exponent: int, mantissa: int, bias: int, special: str) -> np.ndarray:
    """All values of a small float format as float32. `special`: "ieee" (inf, nan), "fn" (all ones is nan), "fnuz"
    (negative zero is nan), "none" (finite only).
    """
    bits = 1 + exponent + mantissa
    codes = np.arange(1 << bits)
    sign = np.where(codes >> (bits - 1), -1.0, 1.0)
    power = codes >> mantissa & ((1 << exponent) - 1)
    fraction = codes & ((1 << mantissa) - 1)
    scale = 1 << mantissa
    normal = (1 + fraction / scale) * 2.0 ** (power - bias)
    value = sign * np.where(power == 0, fraction / scale * 2.0 ** (1 - bias), normal)
    top = (1 << exponent) - 1
    if special == "ieee":
        value = np.where(power == top, np.where(fraction == 0, sign * np.inf, np.nan), value)
    elif special == "fn":
        value = np.where((power == top) & (fraction == scale - 1), np.nan, value)
    elif special == "fnuz":
        value = np.where(codes == 1 << (bits - 1), np.nan, value)
    return value.astype(np.float32)


@cache
def _small_table(kind: str, flavour: str) -> np.ndarray:
    fnuz = flavour == "fnuz"
    return {
        "fp8": lambda: small_float_table(4, 3, 8 if fnuz else 7, "fnuz" if fnuz else "fn"),
        "bf8": lambda: small_float_table(5, 2, 16 if fnuz else 15, "fnuz" if fnuz else "ieee"),
        "fp6": lambda: small_float_table(2, 3, 1, "none"),
        "bf6": lambda: small_float_table(3, 2, 3, "none"),
        "fp4": lambda: small_float_table(2, 1, 1, "none"),
    }[kind]()


def _round_xf32(values: np.ndarray) -> np.ndarray:
    """Nearest even at 10 bits of mantissa; infinities and NaN as they are."""
    bits = values.view(U32)
    rounded = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFF_E000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def _elements(words: np.ndarray, kind: str) -> np.ndarray:
    """Dwords [W, 64, count] to raw elements [W, 64, P]: unsigned integers, or the float type itself."""
    if kind in ("fp4", "fp6", "bf6"):
        width = _BITS[kind]
        raw = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        groups = raw.reshape(*words.shape[:2], -1, width)
        return (groups << np.arange(width, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    if kind in ("f32", "xf32"):
        return words.view(np.float32)
    return words.view(np.float64 if kind == "f64" else np.dtype(f"u{_BITS[kind] // 8}"))


def _to_number(kind: str, flavour: str) -> Decode:
    if kind == "f16":
        return _half_table().take
    if kind.startswith("bf16"):
        return lambda raw: (raw.astype(U32) << np.uint32(16)).view(np.float32)
    if kind == "i8":
        return lambda raw: raw.view(np.int8).astype(np.float32)
    if kind == "xf32":
        return _round_xf32
    if kind in ("f32", "f64"):
        return lambda raw: raw
    return _small_table(kind, flavour).take


# ---- index tables


@cache
def _row_order(shape: Shape, fp64: bool) -> np.ndarray:
    """Order of the rows of A that makes the product come out register by register."""
    rows = np.arange(shape.m)
    if fp64 or shape.m < 16:
        return rows
    groups = LANES // shape.n
    return rows.reshape(-1, groups, 4).transpose(0, 2, 1).reshape(-1)


@cache
def _operand_index(
    shape: Shape, size: int, order: tuple[int, ...], broadcast: tuple[int, int], halves: bool = False
) -> np.ndarray:
    """[blocks, size, K] indices into the flattened [64 P] elements of a lane-major operand.

    `halves`: the 8-bit operands of f8f6f4, whose lanes hold 16 elements of the lower half of K, then 16 of the upper.
    """
    block = np.arange(shape.blocks)
    if broadcast[0]:
        block = (block & ~((1 << broadcast[0]) - 1)) | broadcast[1]
    k = np.arange(shape.k)
    group, element = k // shape.per_lane, k % shape.per_lane
    if halves:
        group, element = k % (shape.k // 2) // 16, k // (shape.k // 2) * 16 + k % 16
    lane = (group[None, None, :] * shape.blocks + block[:, None, None]) * size
    lane = lane + np.array(order)[None, :, None]
    return lane * shape.per_lane + element[None, None, :]


@cache
def _scale_index(shape: Shape, size: int, order: tuple[int, ...]) -> np.ndarray:
    """[1, size, K] lanes that hold the scale: block k div 32 of a row belongs to lane group k div 32."""
    return (np.arange(shape.k)[None, None, :] // 32) * size + np.array(order)[None, :, None]


@cache
def _blgp_lanes(code: int) -> np.ndarray:
    lane = np.arange(LANES)
    if code in (1, 2):
        return lane % 32 + 32 * (code - 1)
    return (lane + 16) % LANES if code == 3 else lane % 16 + 16 * (code - 4)


# ---- the instruction


def _fragment(g: Group, operand: Operand, tag: Any, build: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The operand's matrix, cached while its registers stay the same."""
    register, count = operand.register, operand.count
    arrays = g.R[register : register + count]
    known = g.fragments.get((register, tag))
    if known is not None and all(map(is_, known[0], arrays)):
        return known[1]
    wide = g.fragments.get((register, "b128")) if count == 4 else None
    if wide is not None and all(map(is_, wide[0], arrays)):
        words = wide[1][..., None].view(U32)
    elif count == 2:
        pair = g.pair(register)
        words = np.broadcast_to(pair, (g.W, LANES))[..., None].copy().view(U32)
    else:
        words = np.empty((g.W, LANES, count), U32)
        for i in range(count):
            words[..., i] = g.vector(register + i)
    value = build(words)
    g.fragments[register, tag] = (arrays, value)
    return value


def _matrix(
    ins: Instruction,
    operands: list[Operand],
    shape: Shape,
    kinds: tuple[str, str],
    result: str,
    scaled: bool,
    arch: str,
) -> Step:
    target, a, b, c = operands[:4]
    fp64 = result == "f64"
    flavour = arch_row(arch).fp8
    small = kinds[0] in _F8F6F4 and "f8f6f4" in ins.name
    broadcast = (0, 0) if small else (int(ins.mods.get("cbsz", 0)), int(ins.mods.get("abid", 0)))
    lanes = None if small or not ins.mods.get("blgp") else _blgp_lanes(int(ins.mods["blgp"]))
    order = tuple(_row_order(shape, fp64))
    halves = [small and _BITS[kind] == 8 for kind in kinds]
    columns = tuple(range(shape.n))
    index_a = _operand_index(shape, shape.m, order, broadcast, halves[0])
    index_b = _operand_index(shape, shape.n, columns, (0, 0), halves[1])
    number_a, number_b = (_to_number(kind, flavour) for kind in kinds)
    scales = [_scale(ins, operands[4 + i], i) for i in range(2)] if scaled else []

    def build(words: np.ndarray, kind: str, number: Decode, index: np.ndarray) -> np.ndarray:
        return number(_elements(words, kind).reshape(len(words), -1).take(index, axis=1))

    def matrices(g: Group) -> tuple[np.ndarray, np.ndarray]:
        left = _fragment(g, a, (kinds[0], shape, broadcast), lambda w: build(w, kinds[0], number_a, index_a))
        if lanes is not None:
            moved = np.stack([g.vector(b.register + i)[:, lanes] for i in range(b.count)], axis=-1)
            return left, build(moved, kinds[1], number_b, index_b)
        right = _fragment(g, b, (kinds[1], shape, "b"), lambda w: build(w, kinds[1], number_b, index_b))
        if scales:
            left = left * scales[0](g).take(_scale_index(shape, shape.m, order), axis=1)
            right = right * scales[1](g).take(_scale_index(shape, shape.n, columns), axis=1)
        return left, right

    registers = shape.m * shape.n * shape.blocks // LANES
    read_c = _accumulator(ins, c, registers, result)

    def run(g: Group) -> None:
        left, right = matrices(g)
        product = np.matmul(left, right.swapaxes(-1, -2))
        total = _to_registers(product, shape, registers, fp64)
        addend = read_c(g)
        if result == "i32":
            total = total.astype(np.int32)
        if addend is not None:
            total = total + addend
        _write_result(g, target.register, total, fp64)

    size = registers * (2 if fp64 else 1)
    targets, sources = list(range(target.register, target.register + size)), [a, b, *operands[4:]]
    reads = full([bit for operand in sources for bit in set_bits(operand, operand.count)] + set_bits(c, size))
    step = Step(ins, "mfma", run, reads, targets, _taint(sources, c, target, size))
    step.stats["flops"] = 2 * shape.m * shape.n * shape.k * shape.blocks
    return step


def _to_registers(product: np.ndarray, shape: Shape, registers: int, fp64: bool) -> np.ndarray:
    """[W, blocks, M, N] with rows in register order to [W, registers, 64]."""
    waves = len(product)
    if shape.m >= 16:
        return product.reshape(waves, registers, LANES)
    axes = (0, 2, 1, 3)  # [W, row, block, column]
    moved = np.ascontiguousarray(product.transpose(axes))
    return moved.reshape(waves, registers, LANES)


def _accumulator(ins: Instruction, c: Operand, registers: int, result: str) -> Callable[[Group], np.ndarray | None]:
    """C as [W, registers, 64] in the result's type, or None for a constant zero."""
    dtype = np.dtype({"f32": np.float32, "f64": np.float64, "i32": np.int32}[result])
    if c.kind in ("int", "float"):
        bits = constant_bits(c, {"f32": "f32", "f64": "f64", "i32": "i32"}[result], ins)
        constant = np.array([bits], U64 if result == "f64" else U32).view(dtype)
        return lambda g: constant if bits else None
    if c.kind != "v":
        raise refuse(ins, "accumulator operand")
    register = c.register
    words = registers * (2 if result == "f64" else 1)

    def read(g: Group) -> np.ndarray:
        known = g.fragments.get((register, "acc"))
        if known is not None and len(known[0]) == words and all(map(is_, known[0], g.R[register : register + words])):
            return known[1].view(dtype)
        out = np.empty((g.W, registers, LANES), dtype)
        for i in range(registers):
            out[:, i] = (
                g.pair(register + 2 * i).view(dtype) if words > registers else g.vector(register + i).view(dtype)
            )
        return out

    return read


def _write_result(g: Group, register: int, total: np.ndarray, fp64: bool) -> None:
    count = total.shape[1]
    if fp64:
        for i in range(count):
            words = np.ascontiguousarray(total[:, i]).view(U32).reshape(g.W, LANES, 2)
            low, high = words[..., 0], words[..., 1]
            g.R[register + 2 * i], g.R[register + 2 * i + 1] = low, high
            g.pairs[register + 2 * i] = (low, high, words.view(U64)[..., 0])
        count *= 2
    else:
        g.R[register : register + count] = list(total.swapaxes(0, 1))
    g.fragments[register, "acc"] = (g.R[register : register + count], total)


def _scale(ins: Instruction, operand: Operand, position: int) -> Callable[[Group], np.ndarray]:
    """E8M0 scale of a lane's own elements: byte op_sel + 2 op_sel_hi of the scale register."""
    low, high = ins.mods.get("op_sel", (0, 0, 0)), ins.mods.get("op_sel_hi", (0, 0, 0))
    shift = np.uint32(8 * (low[position] + 2 * high[position]))
    if operand.kind != "v":
        raise refuse(ins, "scale operand")

    def read(g: Group) -> np.ndarray:
        byte = (g.vector(operand.register) >> shift & np.uint32(255)).astype(np.float64)
        return np.where(byte == 255, np.nan, 2.0 ** (byte - 127)).astype(np.float32)

    return read


def _taint(sources: list[Operand], c: Operand, target: Operand, size: int) -> Callable[[Group, Step], None]:
    def rule(g: Group, step: Step) -> None:
        spoiled: np.ndarray | None = None
        for operand in sources:
            for register in set_bits(operand, operand.count):
                bits = g.poison.get(register)
                if bits is not None:
                    waves = (bits != 0).any(axis=1)
                    spoiled = waves if spoiled is None else spoiled | waves
        kept = [g.poison.get(c.register + i) if c.kind == "v" else None for i in range(size)]
        for i in range(size):
            bits = kept[i]
            if spoiled is not None:
                own = spoiled[:, None] * ONES
                bits = own if bits is None else bits | own
            g.set_poison(target.register + i, bits)

    return rule


def _move(ins: Instruction) -> Step:
    """v_accvgpr_read_b32, v_accvgpr_write_b32, v_accvgpr_mov_b32: EXEC applies as for v_mov_b32."""
    target, source = (parse_operand(text, ins) for text in ins.operands)
    if ins.mods or source.kind not in ("v", "int", "float", "s"):
        raise refuse(ins, "operand")
    constant = None
    if source.kind in ("int", "float"):
        constant = np.array([[constant_bits(source, "b32", ins)]], U32)

    def run(g: Group) -> None:
        if constant is not None:
            g.write(target.register, constant)
        elif source.kind == "s":
            g.write(target.register, g.S[source.register][:, None])
        else:
            g.write(target.register, g.R[source.register])

    def rule(g: Group, step: Step) -> None:
        bits = g.poison.get(set_bits(source, 1)[0]) if set_bits(source, 1) else None
        g.set_vector_poison(target.register, bits[:, None] if bits is not None and bits.ndim == 1 else bits)

    return Step(ins, "valu", run, full(set_bits(source, 1)), [target.register], rule)
