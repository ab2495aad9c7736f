"""Reader of AMDGPU assembly as `clang -S` and Triton print it: instructions, labels, data sections, symbols, kernels.

The reader keeps operands as text; `decode` binds them to registers. An instruction occupies 8 bytes of the pretended
address space of code whatever its real encoding, which makes `s_getpc_b64` followed by `s_add_u32 sym@rel32@lo+4`
and `s_addc_u32 sym@rel32@hi+12` come out right (the compiler keeps the three adjacent).
"""

from __future__ import annotations

import ast
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from kvc.diagnostics import KvcError, Location

CODE_BASE = 0x1000_0000_0000
DATA_BASE = 0x1100_0000_0000
INSTRUCTION_BYTES = 8

_LABEL = re.compile(r"^\s*([A-Za-z_.$][\w.$@]*|\"[^\"]+\"):\s*(.*)$")
_MNEMONIC = re.compile(r"^[a-z][a-z0-9_]*$")
_SUFFIX = re.compile(r"_(e32|e64_dpp|e64|dpp|sdwa)$")
_MODIFIER = re.compile(r"^([a-z_][a-z0-9_]*)(?::(.+))?$")
_VALUE_MODIFIERS = frozenset(
    [
        "offset",
        "offset0",
        "offset1",
        "op_sel",
        "op_sel_hi",
        "neg_lo",
        "neg_hi",
        "mul",
        "div",
        "quad_perm",
        "row_shl",
        "row_shr",
        "row_ror",
        "wave_shl",
        "wave_shr",
        "wave_rol",
        "wave_ror",
        "row_bcast",
        "row_newbcast",
        "row_share",
        "row_mask",
        "bank_mask",
        "bound_ctrl",
        "dst_sel",
        "dst_unused",
        "src0_sel",
        "src1_sel",
        "cbsz",
        "abid",
        "blgp",
        "bitop3",
        "format",
        "neg",
        "byte_sel",
        "fi",
    ]
)
_FLAG_MODIFIERS = frozenset(
    [
        "clamp",
        "offen",
        "idxen",
        "glc",
        "slc",
        "dlc",
        "sc0",
        "sc1",
        "nt",
        "lds",
        "gds",
        "tfe",
        "lwe",
        "row_mirror",
        "row_half_mirror",
        "addr64",
        "scc",
    ]
)
_DATA_WIDTHS = {".byte": 1, ".short": 2, ".hword": 2, ".2byte": 2, ".long": 4, ".int": 4, ".word": 4, ".4byte": 4,
                ".quad": 8, ".8byte": 8}  # fmt: skip


@dataclass
class Instruction:
    """One line of code: `name` is the mnemonic without encoding suffix, `suffix` that suffix ("" where none)."""

    index: int
    line: int
    text: str
    mnemonic: str
    name: str
    suffix: str
    operands: tuple[str, ...]
    mods: dict[str, Any]


@dataclass
class Assembly:
    """What one assembly file holds. `labels` map to instruction indices, `data` symbols to offsets in `data_bytes`."""

    target: str = ""
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)
    data_bytes: bytearray = field(default_factory=bytearray)
    relocations: list[tuple[int, str]] = field(default_factory=list)  # (offset of a .quad in data, expression)
    sets: dict[str, str] = field(default_factory=dict)
    descriptors: dict[str, dict[str, str]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def address(self, symbol: str) -> int | None:
        """Pretended address of a code label or data symbol, or None."""
        if symbol in self.labels:
            return CODE_BASE + INSTRUCTION_BYTES * self.labels[symbol]
        if symbol in self.data:
            return DATA_BASE + self.data[symbol]
        return None

    def evaluate(self, text: str, at: int | None = None) -> int:
        """Value of an assembler expression over .set symbols and addresses; `at` is the address of `sym@rel32` uses.

        KVC0901 for a symbol that is not defined or a function that is not known.
        """
        text = re.sub(r"([\w.$]+)@(rel32|gotpcrel32|abs32)@(lo|hi)", lambda m: f"{m[2]}_{m[3]}({m[1]})", text)
        names: dict[str, str] = {}

        def protect(match: re.Match[str]) -> str:
            return names.setdefault(match[0], f"_n{len(names)}")

        safe = re.sub(r"\.?[A-Za-z_$][\w.$]*", protect, text)
        back = {value: key for key, value in names.items()}
        try:
            tree = ast.parse(safe.strip(), mode="eval").body
        except SyntaxError:
            raise KvcError("KVC0901", f"expression {text!r} cannot be read") from None
        return _evaluate(tree, back, self, at)


def _total_vgprs(agprs: int, vgprs: int) -> int:
    return (vgprs + 3) // 4 * 4 + agprs if agprs else vgprs


_FUNCTIONS: dict[str, Any] = {
    "max": max,
    "alignto": lambda value, align: (value + align - 1) // align * align,
    "totalnumvgprs": _total_vgprs,
    "or": lambda *values: int(any(values)),
    "extrasgprs": lambda vcc, flat, xnack: 6 if flat else 4 if xnack else 2 if vcc else 0,
    "instprefsize": lambda size: 0,
}
_BINARY: dict[type, Any] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Div: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << b, ast.RShift: lambda a, b: a >> b, ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b, ast.BitXor: lambda a, b: a ^ b,
}  # fmt: skip


def _evaluate(node: ast.expr, names: dict[str, str], assembly: Assembly, at: int | None) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return _symbol(names.get(node.id, node.id), assembly)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = _evaluate(node.left, names, assembly, at), _evaluate(node.right, names, assembly, at)
        return int(_BINARY[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Invert, ast.Not)):
        value = _evaluate(node.operand, names, assembly, at)
        return (
            -value if isinstance(node.op, ast.USub) else ~value if isinstance(node.op, ast.Invert) else int(not value)
        )
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _evaluate(node.left, names, assembly, at), _evaluate(node.comparators[0], names, assembly, at)
        test = {ast.Gt: left > right, ast.Lt: left < right, ast.Eq: left == right, ast.NotEq: left != right,
                ast.GtE: left >= right, ast.LtE: left <= right}  # fmt: skip
        return int(test[type(node.ops[0])])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = names.get(node.func.id, node.func.id)
        if name.endswith(("_lo", "_hi")) and name not in _FUNCTIONS:
            assert at is not None and isinstance(node.args[0], ast.Name)
            return _relocated(name, names[node.args[0].id], assembly, at)
        if name in _FUNCTIONS:
            return int(_FUNCTIONS[name](*(_evaluate(arg, names, assembly, at) for arg in node.args)))
        raise KvcError("KVC0901", f"assembler function {name!r} is not known")
    raise KvcError("KVC0901", f"assembler expression {ast.dump(node)} is not known")


def _symbol(name: str, assembly: Assembly) -> int:
    if name in assembly.sets:
        return assembly.evaluate(assembly.sets[name])
    address = assembly.address(name)
    if address is None:
        raise KvcError("KVC0901", f"symbol {name!r} is not defined in this file")
    return address


def _relocated(kind: str, symbol: str, assembly: Assembly, at: int) -> int:
    """The value of symbol@rel32 less its addend's share: the caller's `+4`/`+12` and `at` (the literal) cancel."""
    target = _symbol(symbol, assembly)
    if kind.startswith("gotpcrel32"):
        slot = f"GOT:{symbol}"
        if slot not in assembly.data:
            assembly.data[slot] = len(assembly.data_bytes) + (-len(assembly.data_bytes)) % 8
            assembly.data_bytes.extend(b"\0" * (assembly.data[slot] + 8 - len(assembly.data_bytes)))
            struct.pack_into("<Q", assembly.data_bytes, assembly.data[slot], target)
        target = DATA_BASE + assembly.data[slot]
    return target - at if not kind.startswith("abs32") else target


class _Reader:
    """Line by line; `section` decides whether a directive makes data."""

    def __init__(self, file: str) -> None:
        self.out = Assembly()
        self.file = file
        self.section = "text"
        self.stack: list[str] = []
        self.kernel: str | None = None
        self.yaml: list[str] | None = None
        self.pending: list[str] = []

    def fail(self, line: int, message: str) -> KvcError:
        return KvcError("KVC0901", message, Location(self.file, line))

    def line(self, number: int, raw: str) -> None:
        if self.yaml is not None:
            if raw.strip() == ".end_amdgpu_metadata":
                self.out.metadata = parse_metadata(self.yaml)
                self.yaml = None
            else:
                self.yaml.append(raw.rstrip("\n"))
            return
        text = _strip_comment(raw)
        label = _LABEL.match(text)
        if label:
            self.label(label[1].strip('"'))
            text = label[2]
        text = text.strip()
        if not text:
            return
        if text.startswith("."):
            self.directive(number, text)
        elif self.section == "text":
            self.instruction(number, text)

    def label(self, name: str) -> None:
        if self.section == "text":
            self.out.labels[name] = len(self.out.code)
        elif self.section == "data":
            self.pending.append(name)
            self.out.data[name] = len(self.out.data_bytes)

    def directive(self, number: int, text: str) -> None:
        word, _, rest = text.partition(" ") if "\t" not in text else text.partition("\t")
        rest = rest.strip()
        if self.kernel is not None:
            if word == ".end_amdhsa_kernel":
                self.kernel = None
            else:
                self.out.descriptors[self.kernel][word.removeprefix(".amdhsa_")] = rest
        elif word == ".amdhsa_kernel":
            self.kernel = rest
            self.out.descriptors[rest] = {}
        elif word == ".amdgpu_metadata":
            self.yaml = []
        elif word == ".amdgcn_target":
            self.out.target = rest.strip('"')
        elif word in (".set", ".equ"):
            name, _, value = rest.partition(",")
            self.out.sets[name.strip()] = value.strip()
        elif word in (".text", ".data", ".bss"):
            self.section = "text" if word == ".text" else "data"
        elif word in (".section", ".pushsection"):
            if word == ".pushsection":
                self.stack.append(self.section)
            self.section = _section_kind(rest)
        elif word == ".popsection":
            self.section = self.stack.pop()
        elif self.section == "data":
            self.datum(number, word, rest)

    def datum(self, number: int, word: str, rest: str) -> None:
        data = self.out.data_bytes
        if word in (".p2align", ".align", ".balign"):
            amount = int(rest.split(",")[0], 0)
            align = 1 << amount if word == ".p2align" else amount
            data.extend(b"\0" * (-len(data) % align))
            for name in self.pending:
                self.out.data[name] = len(data)
        elif word in _DATA_WIDTHS:
            self.numbers(number, _DATA_WIDTHS[word], rest)
        elif word in (".zero", ".skip", ".space"):
            count, _, fill = rest.partition(",")
            data.extend(bytes([int(fill or "0", 0) & 255]) * self.out.evaluate(count))
        elif word == ".fill":
            given = [part.strip() for part in rest.split(",")]
            count, size, value = (*given, *("1", "1", "0")[len(given) :])
            data.extend(int(value, 0).to_bytes(8, "little", signed=False)[: int(size, 0)] * int(count, 0))
        elif word in (".ascii", ".asciz", ".string"):
            data.extend(ast.literal_eval("b" + rest) + (b"" if word == ".ascii" else b"\0"))
        else:
            return
        if word not in (".p2align", ".align", ".balign"):
            self.pending.clear()

    def numbers(self, number: int, width: int, rest: str) -> None:
        data = self.out.data_bytes
        for part in rest.split(","):
            part = part.strip()
            try:
                value = int(part, 0)
            except ValueError:
                if width < 4:
                    raise self.fail(number, f"datum {part!r} cannot be read") from None
                self.out.relocations.append((len(data) | (width << 48), part))
                value = 0
            data.extend((value & ((1 << 8 * width) - 1)).to_bytes(width, "little"))

    def instruction(self, number: int, text: str) -> None:
        mnemonic, _, rest = text.partition(" ")
        if not _MNEMONIC.match(mnemonic):
            raise self.fail(number, f"{text!r} is no instruction")
        suffix = _SUFFIX.search(mnemonic)
        name = mnemonic[: suffix.start()] if suffix else mnemonic
        operands, mods = _operands(rest)
        index = len(self.out.code)
        self.out.code.append(
            Instruction(index, number, text, mnemonic, name, suffix[1] if suffix else "", operands, mods)
        )


def _strip_comment(raw: str) -> str:
    quoted = False
    for position, char in enumerate(raw):
        if char == '"':
            quoted = not quoted
        elif not quoted and (char == ";" or raw.startswith("//", position)):
            return raw[:position].replace("\t", " ")
    return raw.rstrip("\n").replace("\t", " ")


def _section_kind(rest: str) -> str:
    name = rest.split(",")[0].strip()
    if name.startswith(".text"):
        return "text"
    return "data" if name.startswith((".rodata", ".data", ".bss", ".relro")) else "other"


def _split(text: str) -> list[str]:
    """Split at commas and at spaces outside brackets and bars; commas bind operands, spaces open modifiers."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += char in "[(" or 0
        depth -= char in "])" or 0
        if depth == 0 and char in ", ":
            if current:
                parts.append(current)
            current = ""
            continue
        current += char
    return [*parts, current] if current else parts


def _operands(rest: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    operands: list[str] = []
    mods: dict[str, Any] = {}
    for part in _split(rest):
        match = _MODIFIER.match(part)
        if match and match[2] is not None and match[1] in _VALUE_MODIFIERS:
            mods[match[1]] = _modifier_value(match[2])
        elif match and match[2] is None and match[1] in _FLAG_MODIFIERS:
            mods[match[1]] = True
        else:
            operands.append(part)
    return tuple(operands), mods


def _modifier_value(text: str) -> Any:
    if text.startswith("["):
        return tuple(int(item, 0) for item in text[1:-1].split(","))
    try:
        return int(text, 0)
    except ValueError:
        return text


def parse(text: str, file: str = "<assembly>") -> Assembly:
    """Read one assembly file. KVC0901, with file and line, for what is not understood."""
    reader = _Reader(file)
    for number, raw in enumerate(text.splitlines(), 1):
        reader.line(number, raw)
    out = reader.out
    for tagged, expression in out.relocations:
        offset, width = tagged & ((1 << 48) - 1), tagged >> 48
        value = out.evaluate(expression) & ((1 << 8 * width) - 1)
        out.data_bytes[offset : offset + width] = value.to_bytes(width, "little")
    return out


def parse_metadata(lines: list[str]) -> dict[str, Any]:
    """The YAML subset of `.amdgpu_metadata`: block maps and lists of maps or scalars, plain scalars."""
    rows = [(len(row) - len(row.lstrip()), row.strip()) for row in lines if row.strip() not in ("", "---", "...")]
    value, _ = _block(rows, 0, rows[0][0]) if rows else ({}, 0)
    return value


def _scalar(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        return text.strip("'\"")


def _block(rows: list[tuple[int, str]], at: int, indent: int) -> tuple[Any, int]:
    if rows[at][1].startswith("- ") or rows[at][1] == "-":
        items: list[Any] = []
        while at < len(rows) and rows[at][0] == indent and rows[at][1].startswith("-"):
            content = rows[at][1][1:].lstrip()
            inner = indent + len(rows[at][1]) - len(content)
            if re.match(r"^[\w.]+:(\s|$)", content):
                rows[at] = (inner, content)
                item, at = _block(rows, at, inner)
            elif not content:
                item, at = _block(rows, at + 1, rows[at + 1][0])
            else:
                item, at = _scalar(content), at + 1
            items.append(item)
        return items, at
    out: dict[str, Any] = {}
    while at < len(rows) and rows[at][0] == indent and not rows[at][1].startswith("- "):
        key, _, rest = rows[at][1].partition(":")
        if rest.strip():
            out[key] = _scalar(rest) if rest.strip() not in ("[]", "{}") else ([] if "[" in rest else {})
            at += 1
        elif at + 1 < len(rows) and (
            rows[at + 1][0] > indent or (rows[at + 1][0] == indent and rows[at + 1][1].startswith("- "))
        ):
            out[key], at = _block(rows, at + 1, rows[at + 1][0])
        else:
            out[key], at = None, at + 1
    return out, at
