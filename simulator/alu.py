"""ALU instructions: an `Op` of the opcode tables bound to the operands of one line of assembly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.simulator import lanes, poison
from kvc.simulator.asm import Assembly, Instruction
from kvc.simulator.isa.table import Op
from kvc.simulator.operands import (
    DTYPES,
    FLOATS,
    WIDE,
    Operand,
    Reader,
    dwords,
    parse_operand,
    part_shift,
    raw_scalar,
    raw_vector,
    refuse,
    scalar_reader,
    set_bits,
    vector_reader,
)
from kvc.simulator.state import EXEC, SCALAR_BIT, SCC_BIT, U32, VCC, Group
from kvc.simulator.step import FULL, Step, full

Writer = Callable[[Group, np.ndarray], None]

_IMPLICIT = ("vcc", "scc", "exec", "fp8", "bitop3")
_HANDLED = {
    "": frozenset(["clamp", "mul", "div", "op_sel", "op_sel_hi", "neg_lo", "neg_hi", "bitop3", "byte_sel"]),
    "dpp": frozenset(
        [
            "quad_perm",
            "row_shl",
            "row_shr",
            "row_ror",
            "wave_shl",
            "wave_shr",
            "wave_rol",
            "wave_ror",
            "row_mirror",
            "row_half_mirror",
            "row_bcast",
            "row_newbcast",
            "row_share",
            "row_mask",
            "bank_mask",
            "bound_ctrl",
        ]
    ),
    "sdwa": frozenset(["clamp", "mul", "div", "dst_sel", "dst_unused", "src0_sel", "src1_sel"]),
}
_SCALAR_FORMATS = ("sop1", "sop2", "sopk", "sopc")

# Exact rules for stale bits: bitwise operations, and data movement with the operands that carry data.
_BITWISE = {"and": "and", "or": "or", "xor": "xor", "xnor": "xnor", "nand": "nand", "nor": "nor", "andn2": "andn2",
            "orn2": "orn2", "not": "not", "mov": "mov"}  # fmt: skip
_LINEAR = {
    "v_perm_b32": {0, 1}, "v_alignbit_b32": {0, 1}, "v_alignbyte_b32": {0, 1}, "v_lshlrev_b32": {1},
    "v_lshrrev_b32": {1}, "v_lshl_or_b32": {0, 2}, "v_or3_b32": {0, 1, 2}, "v_bfe_u32": {0}, "v_bfi_b32": {1, 2},
}  # fmt: skip


class _Bound:
    """Operands of one instruction sorted into targets and sources."""

    def __init__(self, ins: Instruction, op: Op) -> None:
        texts = list(ins.operands)
        needed = sum(kind not in _IMPLICIT for kind in op.dst)
        explicit = sum(kind not in _IMPLICIT and not kind.startswith("D.") for kind in op.src)
        spare = len(texts) - needed - explicit
        implicit_vcc = [i for i, kind in enumerate(op.dst) if kind == "vcc"]
        if spare not in (0, len(implicit_vcc)):
            raise refuse(ins, f"{len(texts)} operands where {needed + explicit} belong")
        self.targets: list[Operand] = []
        for kind in op.dst:
            if kind == "vcc":
                self.targets.append(parse_operand(texts.pop(0), ins) if spare else Operand("s", VCC, 2))
            elif kind == "scc":
                self.targets.append(Operand("special", name="scc"))
            elif kind == "exec":
                self.targets.append(Operand("s", EXEC, 2))
            else:
                self.targets.append(parse_operand(texts.pop(0), ins))
        self.sources: list[Operand] = []
        for kind in op.src:
            if kind.startswith("D."):
                self.sources.append(self.targets[0])
            elif kind in _IMPLICIT:
                self.sources.append(Operand("special", name=kind))
            else:
                self.sources.append(parse_operand(texts.pop(0), ins))


def decode(ins: Instruction, op: Op, assembly: Assembly, arch: str) -> Step:
    """Bind an ALU opcode. KVC0902 for operands, suffixes or modifiers that are not understood."""
    if op.archs is not None and arch not in op.archs:
        raise refuse(ins, f"{op.name} does not exist on {arch}:")
    kind = "dpp" if "dpp" in ins.suffix else "sdwa" if ins.suffix == "sdwa" else ""
    allowed = _HANDLED[kind] | (_HANDLED[""] if kind == "dpp" else frozenset())
    unknown = [name for name in ins.mods if name not in allowed]
    if unknown:
        raise refuse(ins, f"modifier {unknown[0]!r}")
    bound = _Bound(ins, op)
    if op.fmt in _SCALAR_FORMATS:
        return _scalar(ins, op, bound, assembly)
    return _vector(ins, op, bound, assembly, arch, kind)


# ---- scalar


def _scalar(ins: Instruction, op: Op, bound: _Bound, assembly: Assembly) -> Step:
    if ins.mods:
        raise refuse(ins, "modifier of a scalar instruction")
    readers: list[Reader] = []
    sources: list[int] = []
    for kind, operand in zip(op.src, bound.sources, strict=True):
        if kind == "scc":
            readers.append(lambda g: g.scc)
            sources.append(SCC_BIT)
            continue
        kind = kind.removeprefix("D.")
        readers.append(scalar_reader(operand, kind, ins, assembly))
        sources += set_bits(operand, 1 if "imm16" in kind else dwords(kind))
    writers = [_scalar_writer(kind, operand, ins) for kind, operand in zip(op.dst, bound.targets, strict=True)]
    targets = [
        register
        for kind, operand in zip(op.dst, bound.targets, strict=True)
        for register in ([SCC_BIT] if kind == "scc" else set_bits(operand, dwords(kind)))
    ]
    to_exec = any(target.kind == "s" and target.register >= EXEC for target in bound.targets)
    taint = poison.demand("EXEC") if to_exec else _scalar_taint(ins, op, bound, assembly)
    return Step(ins, "salu", _runner(op.fn, readers, writers), full(sources), targets, taint)


def _scalar_writer(kind: str, operand: Operand, ins: Instruction) -> Writer:
    if kind == "scc":

        def write_scc(g: Group, value: np.ndarray) -> None:
            g.scc = value if value.shape[0] == g.W else np.repeat(value, g.W)

        return write_scc
    if operand.kind != "s":
        raise refuse(ins, "scalar target")
    register, dtype = operand.register, DTYPES[kind]
    if dtype.itemsize == 8:
        return lambda g, value: g.swrite_pair(register, value if value.dtype.itemsize == 8 else value.astype(dtype))
    return lambda g, value: g.swrite(register, value if value.dtype.itemsize == 4 else value.astype(dtype))


def _bitwise_name(name: str) -> str | None:
    parts = name.split("_")
    return _BITWISE.get(parts[1]) if len(parts) == 3 and parts[2] in ("b32", "b64") else None


def _scalar_taint(ins: Instruction, op: Op, bound: _Bound, assembly: Assembly) -> poison.Rule:
    kind = _bitwise_name(ins.name)
    if kind is None or len(bound.sources) > 2:
        return poison.spread
    words = dwords(op.dst[0])
    readers = [[raw_scalar(source, op.src[0], ins, assembly, i) for i in range(words)] for source in bound.sources]
    registers = [
        [(set_bits(source, words) + [-1] * words)[i] for i in range(words)] if source.kind == "s" else [-1] * words
        for source in bound.sources
    ]
    return poison.word_rule(kind, readers, registers, vector=False, scc="scc" in op.dst)


def _runner(fn: Callable[..., Any], readers: list[Reader], writers: list[Writer]) -> Callable[[Group], None]:
    """The straight-line call, unrolled for the usual counts."""
    if len(writers) == 1:
        (write,) = writers
        if len(readers) == 1:
            (a,) = readers
            return lambda g: write(g, fn(a(g)))
        if len(readers) == 2:
            a, b = readers
            return lambda g: write(g, fn(a(g), b(g)))
        if len(readers) == 3:
            a, b, c = readers
            return lambda g: write(g, fn(a(g), b(g), c(g)))
        return lambda g: write(g, fn(*[read(g) for read in readers]))

    def run(g: Group) -> None:
        values = fn(*[read(g) for read in readers])
        for write, value in zip(writers, values, strict=True):
            write(g, value)

    return run


# ---- vector


def _vector(ins: Instruction, op: Op, bound: _Bound, assembly: Assembly, arch: str, kind: str) -> Step:
    control = lanes.dpp_control(ins) if kind == "dpp" else None
    readers: list[Reader] = []
    sources: list[tuple[int, int]] = []
    for position, (name, operand) in enumerate(zip(op.src, bound.sources, strict=True)):
        reader, read = _vector_source(ins, name, operand, assembly, arch, position, kind, control)
        readers.append(reader)
        sources += read
    fn = op.fn
    if ins.mods.get("clamp") and op.clamp_fn is not None:
        fn = op.clamp_fn
    writers, targets = [], []
    for name, operand in zip(op.dst, bound.targets, strict=True):
        writers.append(_vector_writer(ins, op, name, operand, kind))
        targets += set_bits(operand, _target_words(name))
        if _field(ins, op, name, kind) is not None:
            sources += [(register, 0) for register in set_bits(operand, 1)]  # kept bits: `poison.partial` sees to them
    run = _runner(fn, readers, writers)
    taint = _vector_taint(ins, op, bound, assembly, kind)
    if control is not None:
        run = lanes.dpp_run(control, run, [register for register in targets if register < SCALAR_BIT])
        if bound.sources[0].kind != "v":
            raise refuse(ins, "DPP source")
        taint = lanes.dpp_taint(control, bound.sources[0].register, poison.spread)
        sources += [(register, 0) for register in targets]  # lanes that DPP does not write keep what the target held
        if any(register >= SCALAR_BIT for register in targets) and not (control.zero_fill and control.write.all()):
            raise refuse(ins, "lane mask written under a DPP mask")
    return Step(ins, "valu", run, sources, targets, taint)


def _target_words(kind: str) -> int:
    return dwords(kind.split(".")[0]) if kind not in ("exec",) else 2


def _vector_source(
    ins: Instruction,
    kind: str,
    operand: Operand,
    assembly: Assembly,
    arch: str,
    position: int,
    encoding: str,
    control: lanes.Dpp | None,
) -> tuple[Reader, list[tuple[int, int]]]:
    if kind == "vcc":
        return (lambda g: g.mask(VCC)), full([SCALAR_BIT + VCC, SCALAR_BIT + VCC + 1])
    if kind == "exec":
        return (lambda g: g.execb), []
    if kind == "scc":
        return (lambda g: g.scc[:, None]), full([SCC_BIT])
    if kind in ("fp8", "bitop3"):
        value: Any = arch_row(arch).fp8 if kind == "fp8" else int(ins.mods.get("bitop3", 0))
        return (lambda g: value), []
    kind = kind.removeprefix("D.")
    reshape: Callable[[Group, np.ndarray], np.ndarray] | None = None
    bits = FULL
    if encoding == "dpp" and position == 0 and control is not None:
        reshape = lanes.dpp_source(control)
    elif encoding == "sdwa" and kind not in ("mask",):
        reshape = lanes.sdwa_source(ins, position, operand)
        bits = lanes.sdwa_bits(ins, position)
        if operand.sext:
            operand = replace(operand, sext=False)
    if operand.sext:
        raise refuse(ins, "sext()")
    size = 2 if kind == "mask" else dwords(kind)
    if kind == "mask" and operand.kind != "s":
        raise refuse(ins, "lane mask")
    if kind in DTYPES and DTYPES[kind].itemsize < 4 and not kind.startswith("pk_") and encoding == "":
        width = DTYPES[kind].itemsize
        bits = ((1 << 8 * width) - 1) << part_shift(ins, width, position)
    read = [(register, bits) for register in set_bits(operand, size)]
    return vector_reader(operand, kind, ins, assembly, position, reshape), read


def _vector_writer(ins: Instruction, op: Op, kind: str, operand: Operand, encoding: str) -> Writer:
    if kind in ("mask", "vcc", "exec"):
        if operand.kind != "s":
            raise refuse(ins, "lane mask target")
        register = operand.register
        return lambda g, value: g.write_mask(register, value)
    if operand.kind == "s" and op.fmt in ("vop1", "vop3") and kind == "b32":
        register = operand.register
        return lambda g, value: g.swrite(register, value[:, 0])
    if operand.kind != "v":
        raise refuse(ins, "vector target")
    register = operand.register
    if kind in WIDE:
        return lambda g, value: g.write_words(register, np.asarray(value).view(U32))
    base, _, part = kind.partition(".")
    finish = _finish(ins, op, base)
    if base in ("pk_f32", "pk_b32"):
        return lambda g, value: g.write_pair(register, _join_pair(finish(value)))
    if encoding == "sdwa":
        place = lanes.sdwa_target(ins, register)
        widen = _to_dword(base)
        if place is not None:
            return lambda g, value: g.write(register, place(g, widen(finish(value))))
        return lambda g, value: g.write(register, widen(finish(value)))
    if part:
        return _partial_writer(ins, base, part, register, finish)
    dtype = DTYPES[base]
    if dtype.itemsize == 8:
        return lambda g, value: g.write_pair(register, finish(value))
    if dtype.itemsize < 4:
        if _to_high_half(ins, op, base):
            return _partial_writer(ins, base, "hi", register, finish)
        widen = _to_dword(base)
        return lambda g, value: g.write(register, widen(finish(value)))
    if _plain(ins, base):

        def write(g: Group, value: np.ndarray) -> None:
            if value.dtype.itemsize != 4:
                value = value.astype(dtype)
            if g.full and value.shape[0] == g.W:
                g.R[register] = value
            else:
                g.write(register, value)

        return write
    return lambda g, value: g.write(register, finish(value))


def _join_pair(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(value).view(np.uint64)[..., 0]


def _to_dword(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    dtype = DTYPES[kind]
    if kind.startswith("pk_"):
        return lambda value: np.ascontiguousarray(value).view(U32)[..., 0]
    if dtype.itemsize == 4:
        return lambda value: value.view(U32)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return lambda value: value.view(unsigned).astype(U32)


def _plain(ins: Instruction, kind: str) -> bool:
    return not any(name in ins.mods for name in ("clamp", "mul", "div")) or kind not in FLOATS


def _finish(ins: Instruction, op: Op, kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """Output modifiers: omod (multiply by 2, 4 or 1/2), then clamp to [0, 1] with NaN to 0 (DX10_CLAMP)."""
    dtype = DTYPES[kind]
    factor = {2: 2.0, 4: 4.0}.get(ins.mods.get("mul", 0)) or (0.5 if ins.mods.get("div") == 2 else None)
    clamp = bool(ins.mods.get("clamp"))
    if ("mul" in ins.mods or "div" in ins.mods) and (factor is None or kind not in FLOATS):
        raise refuse(ins, "output modifier")
    if clamp and kind not in FLOATS and op.clamp_fn is None:
        raise refuse(ins, "clamp of an integer result")
    if (factor or clamp) and kind in ("bf16", "pk_bf16"):
        raise refuse(ins, "output modifier of bf16")

    def finish(value: np.ndarray) -> np.ndarray:
        if value.dtype.itemsize != dtype.itemsize:
            value = value.astype(dtype)
        if kind in FLOATS and (factor is not None or clamp):
            value = value.view(dtype)
            if factor is not None:
                value = value * dtype.type(factor)
            if clamp:
                value = np.where(value > 0, np.minimum(value, dtype.type(1)), dtype.type(0))
        return value

    return finish


def _part_shift(ins: Instruction, base: str, part: str) -> int:
    """Where a partial result starts: `part` is "lo", "hi", or "keep" for the half or byte that op_sel names."""
    chosen = ins.mods.get("op_sel", (0, 0, 0, 0))
    if part != "keep":
        return 16 if part == "hi" else 0
    if DTYPES[base].itemsize == 1:
        return 8 * int(ins.mods.get("byte_sel", chosen[2] + 2 * chosen[3] if len(chosen) == 4 else 0))
    return 16 * (chosen[-1] if len(chosen) > 1 else 0)


def _to_high_half(ins: Instruction, op: Op, kind: str) -> bool:
    """Whether op_sel sends a plain 16-bit result to the high half, which keeps the low one."""
    chosen = ins.mods.get("op_sel", ())
    narrow = kind in DTYPES and DTYPES[kind].itemsize < 4 and not kind.startswith("pk_")
    return narrow and len(chosen) == len(op.src) + 1 and bool(chosen[-1])


def _field(ins: Instruction, op: Op, kind: str, encoding: str) -> int | None:
    """The bits of the target that an instruction writes, None for all of them."""
    if encoding == "sdwa":
        keeps = ins.mods.get("dst_unused") == "UNUSED_PRESERVE" and ins.mods.get("dst_sel", "DWORD") != "DWORD"
        return lanes.sdwa_field(ins) if keeps else None
    base, _, part = kind.partition(".")
    if not part:
        return 0xFFFF_0000 if _to_high_half(ins, op, kind) else None
    return ((1 << 8 * DTYPES[base].itemsize) - 1) << _part_shift(ins, base, part)


def _partial_writer(
    ins: Instruction, base: str, part: str, register: int, finish: Callable[[np.ndarray], np.ndarray]
) -> Writer:
    """Results that go to one half or byte, the rest kept."""
    shift = _part_shift(ins, base, part)
    field = np.uint32(((1 << 8 * DTYPES[base].itemsize) - 1) << shift)
    widen = _to_dword(base)

    def write(g: Group, value: np.ndarray) -> None:
        moved = widen(finish(value)) << np.uint32(shift)
        g.write(register, moved | (g.R[register].view(U32) & ~field))

    return write


#: 64-bit sums: the low dword depends on no high one, and compilers leave that undefined where they want the low alone.
_LOW_FIRST = frozenset({"v_mad_u64_u32", "v_mad_i64_i32", "v_lshl_add_u64"})


def _vector_taint(ins: Instruction, op: Op, bound: _Bound, assembly: Assembly, kind: str) -> poison.Rule:
    if op.name in _LOW_FIRST:
        wide = [source.register + 1 for source, name in zip(bound.sources, op.src, strict=True) if name.endswith("64")]
        kinds = [source.kind for source, name in zip(bound.sources, op.src, strict=True) if name.endswith("64")]
        return poison.low_first(frozenset(r for r, kind in zip(wide, kinds, strict=True) if kind == "v"))
    if any(target in ("mask", "vcc") for target in op.dst):
        return poison.demand("EXEC") if "exec" in op.dst else poison.to_mask
    field = _field(ins, op, op.dst[0], kind)
    if field is not None:
        return poison.partial(field)
    if kind:
        return poison.spread
    if op.dst[0].startswith("pk_") and op.fmt == "vop3p" and bound.targets[0].kind == "v":
        return poison.parts_rule(_parts(ins, op, bound))
    if any(source.neg or source.absolute for source in bound.sources):
        return poison.spread
    registers = [operand.register if operand.kind == "v" else -1 for operand in bound.sources]
    registers = [
        SCALAR_BIT + operand.register if operand.kind == "s" and operand.register < EXEC else registers[i]
        for i, operand in enumerate(bound.sources)
    ]
    if op.name == "v_cndmask_b32" and bound.sources[2].kind == "s":
        register = bound.sources[2].register
        readers = [raw_vector(source, "b32", ins, assembly) for source in bound.sources[:2]]
        return poison.select_rule(readers, registers, lambda g: g.mask(register), SCALAR_BIT + register)
    if op.name in _LINEAR:
        readers = [raw_vector(source, "b32", ins, assembly) for source in bound.sources]
        return poison.linear_rule(op.fn, readers, registers, frozenset(_LINEAR[op.name]))
    bitwise = _bitwise_name(ins.name)
    if bitwise is not None and len(bound.sources) <= 2:
        words = dwords(op.dst[0])
        sources = [[raw_vector(source, "b32", ins, assembly, i) for i in range(words)] for source in bound.sources]
        numbers = [[register + i if register >= 0 else -1 for i in range(words)] for register in registers]
        return poison.word_rule(bitwise, sources, numbers, vector=True, scc=False)
    return poison.spread


def _parts(ins: Instruction, op: Op, bound: _Bound) -> list[poison.Part]:
    """What each half of a packed result reads: dwords of a pair, or halves of a dword."""
    target = bound.targets[0].register
    out: list[poison.Part] = []
    for part, (key, default) in enumerate((("op_sel", 0), ("op_sel_hi", 1))):
        chosen = ins.mods.get(key, ())
        sources: list[tuple[int, int]] = []
        for i, (kind, operand) in enumerate(zip(op.src, bound.sources, strict=True)):
            kind = kind.removeprefix("D.")
            which = chosen[i] if i < len(chosen) else default
            if op.name == "v_pk_mov_b32":  # result i is operand i, whose op_sel bit chooses the dword
                picks = ins.mods.get("op_sel", (0, 0))
                sources += full(set_bits(operand, 2)[picks[i] : picks[i] + 1]) if i == part else []
                continue
            if kind in ("pk_f32", "pk_b32"):
                sources += full(set_bits(operand, 2)[which : which + 1])
            elif kind.startswith("pk_"):
                sources += [(register, 0xFFFF << 16 * which) for register in set_bits(operand, 1)]
            else:
                sources += full(set_bits(operand, dwords(kind)))
        wide = op.dst[0] in ("pk_f32", "pk_b32")
        out.append((target + part, FULL, sources) if wide else (target, 0xFFFF << 16 * part, sources))
    return out
