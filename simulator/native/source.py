"""C source of the ALU: one function for each opcode that has a form, and a table of them.

A function takes pointers to dwords, `n` lanes each (64, or 1 for scalar instructions): `d` the words of the results,
`s` those of the sources, in the order of the opcode's operand types. Lane masks and SCC are 0 or 1 in a dword a lane.
Every lane reads only its own place before it writes it, so a result may lie on a source.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from kvc.simulator.isa.minifloat import BY_FLAVOUR, decode
from kvc.simulator.isa.table import REGISTRY, Op
from kvc.simulator.native.forms import forms

_NAMES = "abce"
_C_TYPES = {
    "f32": "float", "f64": "double", "f16": "float", "mix_f32": "float", "u64": "u64", "i64": "i64", "b64": "u64",
    "u32": "u32", "i32": "i32", "b32": "u32", "u16": "u16", "i16": "i16", "b16": "u16", "bf16": "u16", "u8": "u8",
    "i8": "i8", "b8": "u8", "simm16": "i32", "uimm16": "u32", "mask": "u32", "vcc": "u32", "scc": "u32", "exec": "u32",
}  # fmt: skip
_EIGHT_BYTES = frozenset({"f64", "u64", "i64", "b64"})
_IMMEDIATE = frozenset({"fp8", "bitop3"})  # sources that are one number of the instruction
MASKS = frozenset({"mask", "vcc", "scc", "exec"})


def plain(kind: str) -> str:
    """The storage type: without "D.", ".keep", ".lo", ".hi"."""
    return kind.removeprefix("D.").split(".")[0]


def words(kind: str) -> int:
    """Dwords of an operand of this type as the functions see it."""
    kind = plain(kind)
    return 2 if kind in _EIGHT_BYTES or kind in ("pk_f32", "pk_b32") else 1


def _element(kind: str) -> str:
    return plain(kind).removeprefix("pk_")


def _decoded(kind: str, raw: str) -> str:
    """A typed value from its raw bits."""
    kind = _element(kind)
    if kind in ("f32", "mix_f32"):
        return f"float_of({raw})"
    if kind == "f64":
        return f"double_of({raw})"
    return f"from_half({raw})" if kind == "f16" else f"({_C_TYPES[kind]})({raw})"


def _encoded(kind: str, value: str, raw: bool) -> str:
    """Raw bits of a result."""
    kind = _element(kind)
    if raw or kind not in ("f32", "mix_f32", "f64", "f16"):
        if kind in MASKS:
            return f"(u32)({value} != 0)"
        return f"(u64)({value})" if kind in _EIGHT_BYTES else f"(u32)({_unsigned(kind)})({value})"
    if kind == "f64":
        return f"bits64_of({value})"
    return f"half({value})" if kind == "f16" else f"bits_of({value})"


def _unsigned(kind: str) -> str:
    return {"1": "u8", "2": "u16"}.get({"16": "2", "8": "1"}.get(kind.lstrip("ubif"), ""), "u32")


def _raw_type(kind: str) -> str:
    return "u64" if _element(kind) in _EIGHT_BYTES else "u32"


def _is_packed(op: Op) -> bool:
    return all(plain(kind).startswith("pk_") for kind in op.dst)


def _name(form: str) -> str:
    return f"op_{form.replace(' ', '_')}"


def function(form: str, text: str) -> str:
    """The C function of one form."""
    op = REGISTRY[form.removesuffix(" clamp")]
    raw = text.startswith("raw ")
    text = text.removeprefix("raw ")
    texts = text.removeprefix("pair ").split(", ", 1) if text.startswith("pair ") else [text, text]
    lines, word = [], 0
    sources: list[tuple[str, str]] = []
    for kind in op.src:
        if kind in _IMMEDIATE:
            continue
        name = _NAMES[len(sources)]
        sources.append((name, kind))
        lines += _load(name, kind, word)
        word += words(kind)
    pieces = (0, 1) if _is_packed(op) else (None,)
    for piece in pieces:
        lines += _compute(op, sources, texts[piece or 0], raw, piece)
    lines += _store(op, raw)
    body = "\n    ".join(lines)
    return (
        f"static void {_name(form)}(u32 *const *d, const u32 *const *s, int n, u32 imm) {{\n"
        f'  _Pragma("clang loop vectorize(assume_safety)")\n  for (int l = 0; l < n; l++) {{\n    {body}\n  }}\n}}\n'
    )


def _load(name: str, kind: str, word: int) -> list[str]:
    big, upper = f"s[{word}][l]", name.upper()
    kind = plain(kind)
    if kind in ("pk_f32", "pk_b32"):
        return [f"u32 {upper}0 = {big}, {upper}1 = s[{word + 1}][l];"]
    if kind.startswith("pk_"):
        pair = f"u32 {upper} = {big}, {upper}0 = {upper} & 0xffff, {upper}1 = {upper} >> 16;"
        typed = ", ".join(f"{name}{i} = {_decoded(kind, f'{upper}{i}')}" for i in (0, 1))
        return [pair, f"{_C_TYPES[_element(kind)]} {typed}; (void){name}0; (void){name}1;"]
    if kind in _EIGHT_BYTES:
        return [f"u64 {upper} = {big} | (u64)s[{word + 1}][l] << 32;", _typed(name, kind, upper)]
    mask = " & 0xffff" if kind in ("f16", "b16", "u16", "i16", "bf16") else " & 255" if kind in ("u8", "i8") else ""
    return [f"u32 {upper} = {big}{mask};", _typed(name, kind, upper)]


def _typed(name: str, kind: str, raw: str) -> str:
    return f"{_C_TYPES[_element(kind)]} {name} = {_decoded(kind, raw)}; (void){name};"


def _compute(op: Op, sources: list[tuple[str, str]], text: str, raw: bool, piece: int | None) -> list[str]:
    """Declares the raw results `R` and `Q` (with the number of the element for packed ones)."""
    tail = "" if piece is None else str(piece)
    lines = []
    if piece is not None:
        for name, kind in sources:
            upper = name.upper()
            if plain(kind).startswith("pk_"):
                lines += [f"u32 {upper} = {upper}{piece}; (void){upper};", _typed(name, kind, upper)]
    result = op.dst[0]
    kind = "u32" if raw or result in MASKS else _C_TYPES[_element(result)]
    if ".keep" in result:
        kind = "u32"
    inner = [f"{kind} r = {text};"]
    if len(op.dst) > 1:
        inner = [f"u32 q; {kind} r = {text};"]
    outer = f"{_raw_type(result)} R{tail};" + (" u32 Q;" if len(op.dst) > 1 else "")
    inner.append(f"R{tail} = {_encoded(result, 'r', raw)};")
    if len(op.dst) > 1:
        inner.append("Q = q != 0;")
    return [outer, "{", *filter(None, [*lines, *inner]), "}"]


def _store(op: Op, raw: bool) -> list[str]:
    first = plain(op.dst[0])
    if first in ("pk_f32", "pk_b32"):
        out = ["d[0][l] = R0; d[1][l] = R1;"]
    elif first.startswith("pk_"):
        out = ["d[0][l] = R0 | R1 << 16;"]
    elif first in _EIGHT_BYTES:
        out = ["d[0][l] = (u32)R; d[1][l] = (u32)(R >> 32);"]
    else:
        out = ["d[0][l] = R;"]
    if len(op.dst) > 1:
        out.append(f"d[{words(first)}][l] = Q;")
    return out


@cache
def numbers() -> dict[str, int]:
    """Place of each opcode in the table of functions."""
    return {name: i for i, name in enumerate(sorted(forms()))}


FLAVOURS = ("fnuz", "ocp")  # of the 8-bit formats, as a form's immediate counts them


def _small_formats() -> str:
    """The 8-bit formats of both flavours: their values by code, and what the encoder needs."""
    out = []
    for kind in ("fp8", "bf8"):
        formats = [BY_FLAVOUR[kind, flavour] for flavour in FLAVOURS]
        values = [decode(item, np.arange(256)).view(np.uint32).tolist() for item in formats]
        rows = ", ".join("{" + ", ".join(f"{value:#x}" for value in row) + "}" for row in values)
        out.append(f"static const u32 small_{kind}[2][256] = {{{rows}}};")
        numbers_of = (
            (item.bits, item.mantissa, item.bias, item.largest, item.overflow, item.nan, int(item.fnuz))
            for item in formats
        )
        rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in numbers_of)
        out.append(f"static const Small format_{kind}[2] = {{{rows}}};")
    return "\n".join(out)


@cache
def alu_source() -> str:
    """All functions and `kvc_alu`, the table of them in the order of `numbers`."""
    names = sorted(forms())
    functions = [function(name, forms()[name]) for name in names]
    table = ",\n".join(f"  {_name(name)}" for name in names)
    signature = "typedef void (*Alu)(u32 *const *, const u32 *const *, int, u32);"
    return "\n".join([_small_formats(), signature, *functions, f"static const Alu kvc_alu[] = {{\n{table}\n}};\n"])
