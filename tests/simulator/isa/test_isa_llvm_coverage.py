"""The table against LLVM's assembler: every mnemonic assembles with the operands the table states, on exactly the
chips it states, and no ALU mnemonic that LLVM accepts is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from kvc.arch import CDNA
from kvc.simulator.isa import ALU
from kvc.simulator.isa.table import REGISTRY, Op

_WIDTH = {"f64": 2, "u64": 2, "i64": 2, "b64": 2, "pk_f32": 2, "pk_b32": 2, "b96": 3, "b128": 4, "b192": 6}
_WIDTH |= {"b512": 16, "b1024": 32}
_IMPLICIT = ("scc", "exec", "vcc", "fp8", "bitop3")
# Text that stands for a literal constant; the key names which operand it is.
_LITERAL = {
    "v_fmamk_f32": 2, "v_madmk_f32": 2, "v_madmk_f16": 2,
    "v_fmaak_f32": 3, "v_madak_f32": 3, "v_madak_f16": 3,
}  # fmt: skip
# Instructions of the engine: control flow, EXEC, memory, cross-lane moves, matrix units, hardware registers.
_ENGINE = re.compile(
    r"s_(load|store|buffer|scratch|atomic|atc|dcache|icache|memtime|memrealtime)"
    r"|s_(c?branch|call|getpc|setpc|swappc|rfe|endpgm|barrier|nop|waitcnt|sleep|sendmsg|trap|wakeup|ttracedata)"
    r"|s_(set_gpr|sethalt|setkill|setprio|setvskip|getreg|setreg|movrel[sd]|incperf|decperf)"
    r"|s_\w+_(saveexec|wrexec)_b64"
    r"|v_(s?mfma|smfmac|accvgpr)_|v_(nop|clrexcp|readfirstlane|readlane|writelane|swap|permlane|screen_partition)"
)


def _operand(kind: str, scalar: bool) -> str:
    if kind == "mask":
        return "vcc"
    if kind in ("simm16", "uimm16"):
        return "0x123"
    width = _WIDTH.get(kind, 1)
    file = "s" if scalar else "v"
    return f"{file}4" if width == 1 else f"{file}[4:{3 + width}]"


def _line(op: Op) -> str:
    """One instruction with dummy operands, as the table describes it."""
    scalar = op.fmt.startswith("sop")
    kinds = [k for k in (*op.dst, *op.src) if k not in _IMPLICIT and not k.startswith("D.")]
    operands = [_operand(kind, scalar) for kind in kinds]
    if op.name in _LITERAL:
        operands[_LITERAL[op.name]] = "0x1234"
    tail = " bitop3:0x16" if "bitop3" in op.src else ""
    return f"{op.name} {', '.join(operands)}{tail}"


def _errors(lines: list[str], arch: str, where: Path) -> dict[int, str]:
    """Line number -> message for the lines that the assembler refuses."""
    source = where / f"{arch}.s"
    source.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ziglang", "clang", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c"]
    command += [str(source), "-o", str(where / f"{arch}.o"), "-ferror-limit=0", "-fno-caret-diagnostics"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"\.s:(\d+):\d+: error: (.*)", done.stderr)
    return {int(number) - 1: message for number, message in reversed(found)}


def _alu() -> list[Op]:
    return [REGISTRY[name] for name in sorted(ALU)]


@cache
def _candidates() -> list[str]:
    """Everything in the assembler's binary that looks like a scalar or vector mnemonic."""
    import ziglang

    binary = next(p for p in Path(ziglang.__file__).parent.iterdir() if p.name in ("zig", "zig.exe"))
    return sorted({m.decode() for m in re.findall(rb"[sv]_[a-z][a-z0-9_]{2,58}", binary.read_bytes())})


@pytest.mark.parametrize("arch", CDNA)
def test_every_opcode_assembles_on_its_chips_and_only_there(arch: str, tmp_path: Path) -> None:
    ops = _alu()
    refused = _errors([_line(op) for op in ops], arch, tmp_path)
    wrong = []
    for i, op in enumerate(ops):
        expected = op.archs is None or arch in op.archs
        if (i in refused) == expected:
            wrong.append(f"{_line(op)}: {refused.get(i, 'accepted, but the table says that the chip lacks it')}")
    assert not wrong, "\n".join(wrong)
    assert len(ops) - len(refused) > 500


@pytest.mark.parametrize("arch", CDNA)
def test_no_alu_mnemonic_of_the_assembler_is_missing(arch: str, tmp_path: Path) -> None:
    """The assembler's own string table supplies the candidates; what it then accepts must be in the table."""
    candidates = _candidates()
    refused = _errors(candidates, arch, tmp_path)
    accepted = [
        name
        for i, name in enumerate(candidates)
        if i not in refused or not re.search("invalid instruction|not supported", refused[i])
    ]
    plain = {re.sub(r"_(e32|e64|dpp|sdwa|e64_dpp)$", "", name) for name in accepted}
    missing = sorted(n for n in plain if n not in REGISTRY and not _ENGINE.match(n))
    assert len(plain) > 700
    assert not missing, missing
