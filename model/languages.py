"""What each target's kernel file has that is mechanical: header, includes, imports, helper functions, constants.

A learned kernel leaves these out and the frame puts them back. One row a language; nothing else in the package knows
how a file of a target looks.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvc.diagnostics import KvcError

HELPERS_FILE = Path(__file__).parent / "helpers.json"


@dataclass(frozen=True)
class Language:
    """`options`: knobs that go to the compiler with every launch. `kernel`: what begins a kernel. `gap`: what stands
    between the parts of a file. `head(code)`: includes or imports that the code needs. `knob_lines`: whether all other
    knobs stand as constants at the top, by `constant`."""

    name: str
    comment: str
    gap: str
    kernel: re.Pattern[str]
    head: Callable[[str], str]
    head_lines: re.Pattern[str]
    constant: Callable[[str, object], str] | None = None
    constant_lines: re.Pattern[str] | None = None
    options: tuple[str, ...] = ()
    float_text: Callable[[float], str] = repr

    @property
    def helpers(self) -> dict[str, str]:
        """Helper functions by name, as the rules of the target write them."""
        return _helpers().get(self.name, {})

    @property
    def helper_names(self) -> dict[str, str]:
        return {text: name for name, text in self.helpers.items()}


@cache
def _helpers() -> dict[str, dict[str, str]]:
    return json.loads(HELPERS_FILE.read_text()) if HELPERS_FILE.exists() else {}


def _hip_head(code: str) -> str:
    from kvc.backends.hip.toolchain import PROLOGUE

    lines = (PROLOGUE.rstrip("\n") if "KVC_" in code else "#include <hip/hip_runtime.h>").split("\n")
    pairs = (("bf16", "bfloat16"), ("fp16", "half"))
    extra = [f"#include <hip/hip_{kind}.h>" for kind, word in pairs if word in code]
    return "\n".join([lines[0], *extra, *lines[1:]])


def _triton_head(code: str) -> str:
    lines = ["import triton", "import triton.language as tl"]
    if "libdevice." in code:
        lines.append("from triton.language.extra import libdevice")
    return "\n".join(lines)


def shortest_f32(value: float) -> str:
    """The shortest decimal that reads back as the same float32, as C spells it ("0.5f")."""
    if not math.isfinite(value) or abs(value) > 3.4028234e38:
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    bits = struct.pack("f", value)
    (value,) = struct.unpack("f", bits)
    digits = next(t for t in (f"{value:.{p}g}" for p in range(1, 18)) if struct.pack("f", float(t)) == bits)
    return (digits if any(c in digits for c in ".e") else digits + ".0") + "f"


LANGUAGES: dict[str, Language] = {
    row.name: row
    for row in (
        Language(
            name="hip",
            comment="//",
            gap="\n\n",
            kernel=re.compile(r'extern "C" __global__'),
            head=_hip_head,
            head_lines=re.compile(r"#include <hip/hip_\w+\.h>\n|#ifndef KVC_WAVE_SIZE\n.*?#endif\n#endif\n", re.DOTALL),
            float_text=shortest_f32,
        ),
        Language(
            name="triton",
            comment="#",
            gap="\n\n\n",
            kernel=re.compile(r"@triton\.jit\ndef fused"),
            head=_triton_head,
            head_lines=re.compile(r"(?:import triton|from triton)[^\n]*\n"),
            constant=lambda name, value: f"{name}: tl.constexpr = tl.constexpr({value!r})",
            constant_lines=re.compile(r"^\w+: tl\.constexpr = tl\.constexpr\([^\n]*\)\n", re.MULTILINE),
            options=("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim"),
        ),
    )
}


def language(target: str) -> Language:
    """The row of a target; KVC0105 for one that no model writes yet."""
    if target not in LANGUAGES:
        raise KvcError("KVC0105", f"no learned kernels for target {target!r}", hint=f"one of: {', '.join(LANGUAGES)}")
    return LANGUAGES[target]


def without_header(source: str, comment: str) -> str:
    """A source from its first line that is no comment on."""
    lines = source.split("\n")
    first = next((n for n, line in enumerate(lines) if line and not line.startswith(comment)), len(lines))
    return "\n".join(lines[first:])


def paragraphs(text: str) -> list[str]:
    """The parts of a text between blank lines."""
    return [p.strip("\n") for p in re.split(r"\n\s*\n", text) if p.strip()]


_DEFINED = {
    "hip": re.compile(r"__device__[^\n(]*?\b(\w+)\(|^struct (?:alignas\([^\n]*\) )?(\w+) \{", re.MULTILINE),
    "triton": re.compile(r"@triton\.jit\ndef (\w+)\("),
}


def helper_name(paragraph: str, target: str) -> str:
    """The function or type that a paragraph defines, "" for none or a kernel."""
    if LANGUAGES[target].kernel.search(paragraph):
        return ""
    found = _DEFINED[target].search(paragraph)
    return next((g for g in found.groups() if g), "") if found else ""


def mine_helpers(sources: Iterable[tuple[str, str]], least: int = 2) -> dict[str, dict[str, str]]:
    """Helper functions that occur word for word in at least `least` of the (target, source) pairs, whose kernels have
    the name that a model gives them; variants of a name are numbered, the most frequent first."""
    counts: dict[str, dict[str, dict[str, int]]] = {t: {} for t in LANGUAGES}
    for target, source in sources:
        for paragraph in dict.fromkeys(paragraphs(without_header(source, LANGUAGES[target].comment))):
            name = helper_name(paragraph, target)
            if name:
                texts = counts[target].setdefault(name, {})
                texts[paragraph] = texts.get(paragraph, 0) + 1
    mined: dict[str, dict[str, str]] = {}
    for target, names in counts.items():
        rows = mined.setdefault(target, {})
        for name, texts in sorted(names.items()):
            kept = [t for t, n in sorted(texts.items(), key=lambda item: (-item[1], item[0])) if n >= least]
            rows.update({name if n == 0 else f"{name}_v{n + 1}": text for n, text in enumerate(kept)})
    return mined


def table_helpers() -> dict[str, dict[str, str]]:
    """The helper functions of each target's own table of spellings, by name."""
    from importlib import import_module

    found = {}
    for target in LANGUAGES:
        table = import_module(f"kvc.backends.{target}.spelling").HELPERS
        found[target] = {name: helper.text.strip("\n") for name, helper in table.items()}
    return found


def merged(*tables: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Tables of helpers as one: equal texts once, another text of a name under a numbered one."""
    found: dict[str, dict[str, str]] = {t: {} for t in LANGUAGES}
    for table in tables:
        for target, rows in table.items():
            for name, text in rows.items():
                if text in found[target].values():
                    continue
                stem = name.partition("_v")[0]
                free = (n for n in (stem, *(f"{stem}_v{i}" for i in range(2, 100))) if n not in found[target])
                found[target][next(free)] = text
    return found
