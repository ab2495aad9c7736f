"""Faults in assembly: an instruction deleted, or one of its operands changed. No compiler runs, so they are cheap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from tests.adversarial.faults import Fault

_IGNORED = ("s_nop", "s_endpgm", "s_setprio", "s_code_end", "s_sleep", "s_inst_prefetch")
_STORES = ("global_store", "buffer_store", "flat_store", "ds_write", "global_atomic", "ds_add")
_COMPARED = {"_lt_": "_le_", "_le_": "_lt_", "_gt_": "_ge_", "_ge_": "_gt_", "_eq_": "_ne_", "_ne_": "_eq_"}


def kind_of(text: str) -> str:
    """The class of a deletion."""
    name = text.split()[0]
    if name == "s_barrier":
        return "barrier"
    if name == "s_waitcnt":
        return "wait"
    if name.startswith(_STORES):
        return "store"
    if "saveexec" in name or re.match(r"\S+\s+exec\b", text):
        return "exec"
    return "branch" if name.startswith(("s_branch", "s_cbranch")) else "instruction"


def faults(asm: str, kernel: str, lines: Iterable[int]) -> Iterator[Fault]:
    """Faults at the given lines (those that ran) of an assembly text."""
    yield from _faults(asm, kernel, lines, lambda code: [(kind_of(code.strip()), ""), *_changes(code)])


def deletions(asm: str, kernel: str, lines: Iterable[int]) -> Iterator[Fault]:
    """The instructions at the given lines, each one gone."""
    yield from _faults(asm, kernel, lines, lambda code: [(kind_of(code.strip()), "")])


def _faults(
    asm: str, kernel: str, lines: Iterable[int], changes: Callable[[str], list[tuple[str, str]]]
) -> Iterator[Fault]:
    text = asm.split("\n")
    for number in sorted(lines):
        code = text[number - 1].split(";")[0].split("//")[0].rstrip()
        if not code.strip() or code.strip().startswith(_IGNORED):
            continue
        for kind, after in changes(code):
            new = text.copy()
            new[number - 1] = after
            yield Fault("assembly", kind, number, code.strip(), after.strip(), "\n".join(new), kernel)


def _changes(code: str) -> Iterator[tuple[str, str]]:
    """(class, changed instruction)"""
    name = code.split()[0]
    if name == "s_waitcnt":
        for match in re.finditer(r"(vmcnt|lgkmcnt)\((\d+)\)", code):
            yield "wait", f"{code[: match.start(2)]}{int(match[2]) + 1}{code[match.end(2) :]}"
    for old, new in _COMPARED.items():
        if name.startswith(("v_cmp", "s_cmp")) and old in name:
            yield ("bound" if old not in ("_eq_", "_ne_") else "comparison"), code.replace(old, new, 1)
            break
    match = re.search(r"\boffset:(\d+)", code)
    if match and name.startswith(("global_", "buffer_", "ds_", "flat_")):
        step = 1 if name.startswith("ds_") and "2" in name.split("_")[1] else 4
        yield "offset", f"{code[: match.start(1)]}{int(match[1]) + step}{code[match.end(1) :]}"
    match = re.search(r"\brow_(shr|shl|ror):(\d+)", code)
    if match and int(match[2]) > 1:
        yield "lanes", f"{code[: match.start(2)]}{int(match[2]) - 1}{code[match.end(2) :]}"
    match = re.search(r"\brow_bcast:31", code)
    if match:
        yield "lanes", code.replace("row_bcast:31", "row_bcast:15")
    match = re.match(r"^(\s*v_(?:sub|cndmask)_\w+(?:_e64|_e32)? v\d+, (?:vcc, )?)([^,]+), ([^,\s]+)(.*)$", code)
    if match and re.match(r"^[vs]\d+$", match[2]) and re.match(r"^v\d+$", match[3]):
        first, second = (match[3], match[2]) if match[2].startswith("v") else ("", "")
        if first:
            yield "operands", f"{match[1]}{first}, {second}{match[4]}"
