"""The frame of an answer: a short head that declares what a kernel needs, a blank line, the kernel's own text.

    row_reduction
    set BLOCK=256 ROW_THREADS=8 WIDTH=1
    run fused(a0,a1,y0) $cdiv(d0*d1,32) block 256
    use row_reduce

    constexpr int BLOCK = 256;
    ...

Numbers that follow from the sizes are expressions (kvc.model.sizes). Helper functions are found by their names in the
text; a `use` line is for another variant of one. `assemble` makes a Candidate of a frame: it works
them out, puts back header, includes, constants and helper functions, and gives operands the names of the task. Whatever
a model writes gives a Candidate or NotAFrame.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvc.dtypes import DTYPES
from kvc.emitter import Candidate, Knob, Launch, Origin, Scratch
from kvc.kernel import KernelSpec
from kvc.model.languages import Language, language, paragraphs
from kvc.model.prompt import KERNEL, Asked
from kvc.model.sizes import NotAFrame, evaluate, substitute

#: No kernel of the vault is near these; a text beyond them is not worth compiling.
MAX_TEXT, MAX_LAUNCHES, MAX_SCRATCH_ELEMENTS = 1 << 16, 64, 1 << 34
#: `use nothing`: the text names something that is called like a helper and is none.
NO_HELPERS = ("nothing",)
_INTEGER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True)
class Run:
    """A launch as it is written: sizes are texts. `block` "" follows from num_warps."""

    kernel: str
    args: tuple[str, ...]
    grid: tuple[str, ...]
    block: str = ""
    lds: str = ""
    options: tuple[tuple[str, Knob], ...] = ()


@dataclass(frozen=True)
class Frame:
    schedule: str
    knobs: tuple[tuple[str, Knob], ...] = ()
    scratch: tuple[tuple[str, str, str], ...] = ()  # name, dtype, elements
    runs: tuple[Run, ...] = ()
    uses: tuple[str, ...] = ()
    body: str = ""

    def text(self) -> str:
        """The answer, which `parse` reads back."""
        lines = [self.schedule]
        if self.knobs:
            lines.append(" ".join(["set", *(f"{k}={v}" for k, v in self.knobs)]))
        lines += [f"scratch {name} {dtype} {size}" for name, dtype, size in self.scratch]
        for run in self.runs:
            parts = [f"run {run.kernel}({','.join(run.args)})", *run.grid]
            parts += [f"block {run.block}"] if run.block else []
            parts += [f"lds {run.lds}"] if run.lds else []
            lines.append(" ".join([*parts, *(f"{k}={v}" for k, v in run.options)]))
        if self.uses:
            lines.append(" ".join(["use", *self.uses]))
        return "\n".join(lines) + "\n\n" + self.body.strip("\n") + "\n"


@cache
def _parser() -> Any:
    from lark import Lark

    return Lark((Path(__file__).parent / "frame.lark").read_text(), parser="lalr", maybe_placeholders=False)


def _value(text: str) -> Knob:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if _INTEGER.fullmatch(text) else text


@dataclass
class _Head:
    schedule: str = ""
    knobs: list[tuple[str, Knob]] = field(default_factory=list)
    scratch: list[tuple[str, str, str]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)

    def add(self, line: Any) -> None:
        kind, parts = str(line.data), line.children
        trees = [p for p in parts if hasattr(p, "data")]
        pairs = tuple((str(p.children[0]), _value(str(p.children[1]))) for p in trees if p.data == "pair")
        words = [p for p in parts if not hasattr(p, "data")]
        if kind == "schedule":
            self.schedule = str(words[0])
        elif kind == "set":
            self.knobs += pairs
        elif kind == "scratch":
            self.scratch.append((str(words[0]), str(words[1]), str(words[2])))
        elif kind == "use":
            self.uses += map(str, words)
        else:
            sizes = {str(p.data): str(p.children[0]) for p in trees if p.data != "pair"}
            self.runs.append(_run(words, sizes, pairs))


def _run(words: list[Any], sizes: dict[str, str], pairs: tuple[tuple[str, Knob], ...]) -> Run:
    args = tuple(a.strip() for w in words if w.type == "NAMES" for a in str(w).split(",") if a.strip())
    grid = tuple(str(w) for w in words if w.type == "SIZE")
    return Run(str(words[0]), args, grid, sizes.get("block", ""), sizes.get("lds", ""), pairs)


def parse(text: str) -> Frame:
    """The frame that a text states. NotAFrame for anything else."""
    from lark.exceptions import LarkError

    if len(text) > MAX_TEXT:
        raise NotAFrame(f"{len(text):,} characters")
    head, blank, body = text.lstrip("\n").partition("\n\n")
    if not blank or not body.strip():
        raise NotAFrame("no kernel follows the head")
    try:
        tree = _parser().parse(head)
    except LarkError as error:
        raise NotAFrame(f"head does not parse: {str(error).splitlines()[0][:120]}") from None
    found = _Head()
    for line in tree.children:
        if hasattr(line, "data"):
            found.add(line)
    if not found.runs or len(found.runs) > MAX_LAUNCHES:
        raise NotAFrame(f"{len(found.runs)} launches")
    return Frame(
        found.schedule, tuple(found.knobs), tuple(found.scratch), tuple(found.runs), tuple(found.uses), body
    )  # fmt: skip


def size(text: str, names: Mapping[str, int], what: str, least: int = 0, most: int = 1 << 40) -> int:
    value = evaluate(text.removeprefix("$"), names)
    if not least <= value <= most:
        raise NotAFrame(f"{what} is {value}")
    return value


def assemble(frame: Frame, asked: Asked, target: str, origin: Origin) -> Candidate:
    """The candidate of a frame for a task. NotAFrame where a size, a name or a helper is unknown."""
    lang = language(target)
    knobs = dict(frame.knobs)
    names = {k: v for k, v in knobs.items() if isinstance(v, int) and not isinstance(v, bool)} | asked.sizes
    constants = {name: lang.float_text(value) for name, value in asked.constants.items()}
    workspace = tuple(_scratch(asked, names, *s) for s in frame.scratch)
    renamed = _scratch_names(asked, workspace)
    launches = tuple(_launch(run, frame, asked, lang, names, renamed) for run in frame.runs)
    code = substitute(_code(frame, lang), names, constants)
    name = _kernel_name(asked.task.spec.name, code)
    launches = tuple(replace(launch, kernel=_renamed(launch.kernel, name)) for launch in launches)
    workspace = tuple(replace(s, name=renamed[s.name]) for s in workspace)
    code = re.sub(rf"\b{KERNEL}(?=_|\b)", name, code) if name != KERNEL else code
    header = _header(frame, asked.task.spec, asked, launches, workspace, origin)
    source = f"\n{lang.comment} ".join([f"{lang.comment} {header[0]}", *header[1:]]).replace(" \n", "\n")
    source += "\n\n" + code.strip("\n") + "\n"
    return Candidate(asked.task, target, frame.schedule, source, launches, workspace, frame.knobs, origin)


def _code(frame: Frame, lang: Language) -> str:
    """Includes or imports, constants, helpers and the kernel's own text, in the order of the target's files."""
    helpers = []
    for name in () if frame.uses == NO_HELPERS else frame.uses or needed(frame.body, lang):
        if name not in lang.helpers:
            raise NotAFrame(f"no helper {name[:40]!r}")
        helpers.append(lang.helpers[name])
    parts = paragraphs(frame.body)
    first = next((n for n, part in enumerate(parts) if lang.kernel.search(part)), None)
    if first is None:
        raise NotAFrame("the text holds no kernel")
    constants = []
    if lang.constant is not None:
        constants = [lang.constant(k, v) for k, v in frame.knobs if k not in lang.options]
    parts = [*parts[:first], *helpers, *parts[first:]]
    head = [lang.head("\n".join(parts)), *(["\n".join(constants)] if constants else [])]
    return lang.gap.join(["\n\n".join(head), *parts])


_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # no member, no function of a module
_DEFINES = re.compile(r"\bdef (\w+)\(|__device__[^\n(]*?\b(\w+)\(")


def needed(body: str, lang: Language) -> tuple[str, ...]:
    """The helper functions that a text names, each after those that it needs itself; otherwise in the order in which
    their calls end, so that an argument comes before what it is given to. What a text defines is no helper."""
    found: dict[str, None] = {}
    entered = {name for pair in _DEFINES.findall(body) for name in pair if name}

    def visit(text: str) -> None:
        for name in _in_order(text, lang.helpers):
            if name not in entered:
                entered.add(name)
                visit(lang.helpers[name])
                found[name] = None

    visit(body)
    return tuple(found)


def _in_order(text: str, names: Mapping[str, str]) -> list[str]:
    ends: dict[str, int] = {}
    for word in _WORD.finditer(text):
        if word[0] in names:
            end = _closes(text, word.end()) if text[word.end() : word.end() + 1] == "(" else word.start()
            ends[word[0]] = min(ends.get(word[0], end), end)
    return sorted(ends, key=ends.__getitem__)


def _closes(text: str, at: int) -> int:
    """Where the parenthesis that opens at `at` is closed."""
    depth = 0
    for n in range(at, len(text)):
        depth += (text[n] == "(") - (text[n] == ")")
        if depth == 0:
            return n
    return len(text)


def _scratch(asked: Asked, names: Mapping[str, int], name: str, dtype: str, elements: str) -> Scratch:
    if dtype not in DTYPES:
        raise NotAFrame(f"scratch {name} of type {dtype[:20]!r}")
    return Scratch(name, dtype, size(elements, names, f"scratch {name}", 1, MAX_SCRATCH_ELEMENTS))


def _scratch_names(asked: Asked, workspace: tuple[Scratch, ...]) -> dict[str, str]:
    """A name for each scratch buffer that no operand of the task has."""
    taken = set(asked.task.spec.operand)
    found: dict[str, str] = {}
    for scratch in workspace:
        name = scratch.name
        while name in taken:
            name += "_"
        taken.add(name)
        found[scratch.name] = name
    return found


def _launch(
    run: Run, frame: Frame, asked: Asked, lang: Language, names: Mapping[str, int], scratch: Mapping[str, str]
) -> Launch:
    if not run.kernel.startswith(KERNEL):
        raise NotAFrame(f"kernel {run.kernel[:40]!r} is not named {KERNEL}")
    unknown = [a for a in run.args if a not in asked.tensors and a not in scratch]
    if unknown:
        raise NotAFrame(f"{run.kernel} takes {unknown[0][:40]!r}, which is neither operand nor scratch")
    if not 1 <= len(run.grid) <= 3:
        raise NotAFrame(f"{len(run.grid)} sizes of the grid of {run.kernel}")
    grid = [*(size(g, names, f"grid of {run.kernel}", 1, 1 << 31) for g in run.grid), 1, 1]
    own = dict(run.options)
    options = tuple((k, own.get(k, v)) for k, v in frame.knobs if k in lang.options)
    options += tuple((k, v) for k, v in run.options if k not in dict(options))
    block = _block(run, dict(options), asked.task.arch.wave_size, names)
    lds = size(run.lds, names, f"LDS of {run.kernel}", 0, 1 << 20) if run.lds else 0
    args = tuple(asked.tensors.get(a) or scratch[a] for a in run.args)
    return Launch(run.kernel, (grid[0], grid[1], grid[2]), (block, 1, 1), args, lds, options)


def _block(run: Run, options: Mapping[str, Knob], wave: int, names: Mapping[str, int]) -> int:
    if run.block:
        return size(run.block, names, f"block of {run.kernel}", 1, 1 << 16)
    warps = options.get("num_warps")
    if not isinstance(warps, int) or isinstance(warps, bool) or not 1 <= warps <= 64:
        raise NotAFrame(f"{run.kernel} states no block")
    return warps * wave


def _renamed(kernel: str, name: str) -> str:
    return name + kernel.removeprefix(KERNEL)


def _kernel_name(wanted: str, code: str) -> str:
    """The spec's own name where nothing in the code has it yet."""
    free = wanted.isidentifier() and not keyword.iskeyword(wanted) and not re.search(rf"\b{re.escape(wanted)}", code)
    return wanted if free else KERNEL


def _header(
    frame: Frame, spec: KernelSpec, asked: Asked, launches: tuple[Launch, ...], workspace: tuple[Scratch, ...],
    origin: Origin,
) -> list[str]:  # fmt: skip
    """Lines of the header comment, which kvc.header reads."""
    from kvc.text import print_kernel

    settings = ", ".join(f"{name}={value}" for name, value in frame.knobs)
    arch = asked.task.arch.name
    lines = [f"{spec.name}: {frame.schedule.replace('_', ' ')} for {arch}, {asked.task.numerics} numerics", ""]
    lines += [f"  {line}" for line in print_kernel(spec).splitlines()]
    lines += ["", f"Written by kvc, emitter {origin.emitter} {origin.version}{'; ' + settings if settings else ''}."]
    if origin.weights:
        lines.append(f"Weights {origin.weights}, seed {origin.seed}.")
    for launch in launches:
        grid, block = (" x ".join(map(str, d)) for d in (launch.grid, launch.block))
        options = "".join(f", {k}={v}" for k, v in launch.options)
        lds = f", {launch.dynamic_lds} bytes of LDS" if launch.dynamic_lds else ""
        lines.append(f"Launch: {launch.kernel}({', '.join(launch.args)}), grid {grid}, block {block}{lds}{options}")
    return [*lines, *(f"Scratch: {s.name}, {s.numel} elements of {s.dtype}" for s in workspace)]
