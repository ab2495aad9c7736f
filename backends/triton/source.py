"""Assembles a kernel file: header, knob constants, helper functions, kernels."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvc.dtypes import DType
from kvc.emitter import Candidate, Knob, Launch, Origin, Scratch, Task
from kvc.functions import FUNCTIONS
from kvc.kernel import KernelSpec, contiguous
from kvc.text import print_kernel

from .lint import FORBIDDEN
from .spelling import HELPERS

Knobs = tuple[tuple[str, Knob], ...]

#: Knobs that go to the compiler with a launch; all others are constants of the source.
OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
WIDTH = 120  # of a line, where it can be broken
_TAIL = re.compile(r"(\.to\([\w.]+\))*[,:]?")  # what may follow the call that is broken
_RESERVED = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | frozenset(HELPERS) | {
    "tl", "triton", "libdevice", "range", "float", "int", "bool", "min", "max", "abs", "sum", "print", "len",
}  # fmt: skip


class SourceFile:
    """A kernel file being written. `constants` are the knobs that stand at its top."""

    def __init__(self, task: Task, knobs: Knobs) -> None:
        self.task = task
        self.spec = task.spec
        self.knobs = knobs
        self.constants = {k: v for k, v in knobs if k not in OPTIONS}
        self.options: Knobs = tuple((k, v) for k, v in knobs if k in OPTIONS)
        self.workspace: dict[str, Scratch] = {}
        self.launches: list[Launch] = []
        self.names = {*_RESERVED, *FORBIDDEN}
        self._helpers: dict[str, str] = {}
        self._kernels: list[str] = []
        self._libdevice = False

    # ------------------------------------------------------------ parts
    def constant(self, name: str) -> int:
        """The value of a numeric knob."""
        value = self.constants[name]
        assert isinstance(value, int)
        return value

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return int(dict(self.options)["num_warps"]) * self.task.arch.wave_size

    def use_libdevice(self) -> None:
        self._libdevice = True

    def helper(self, name: str) -> str:
        """Make sure that a helper of the spelling table is in the file."""
        if name not in self._helpers:
            helper = HELPERS[name]
            for needed in helper.helpers:
                self.helper(needed)
            self._helpers[name] = helper.text
            self._libdevice |= helper.libdevice
        return name

    def define_helper(self, name: str, text: str) -> str:
        """Add a helper function made for this file, and give its name."""
        self._helpers[name] = text
        self.names.add(name)
        return name

    def has_helper(self, name: str) -> bool:
        return name in self._helpers

    def scratch(self, tensor: str, dtype: DType, shape: Iterable[int]) -> None:
        """Reserve a workspace buffer for a temporary."""
        numel = 1
        for extent in shape:
            numel *= extent
        self.workspace[tensor] = Scratch(tensor, dtype.name, max(numel, 1))

    def add(self, kernel: KernelText, programs: int, ahead: bool = False) -> None:
        """Add a finished kernel, launched with that many programs (`ahead` as in Launch)."""
        if is_far(kernel.spec) and programs > 1:
            # Triton's range analysis takes program ids for arbitrary; the byte offsets of a far operand then overflow
            # in the analysis itself, which ends up cutting them to 32 bits (3.9: convert-to-buffer-ops).
            kernel.lines.insert(0, f"tl.assume(tl.program_id(0) < {programs})")
        self._kernels.append(kernel.text())
        grid = (max(programs, 1), 1, 1)
        block = (self.threads, 1, 1)
        self.launches.append(Launch(kernel.name, grid, block, kernel.arguments(), 0, self.options, ahead))

    # ------------------------------------------------------------ the whole
    def text(self, origin: Origin) -> str:
        imports = ["import triton", "import triton.language as tl"]
        if self._libdevice:
            imports.append("from triton.language.extra import libdevice")
        constants = [f"{k}: tl.constexpr = tl.constexpr({v!r})" for k, v in self.constants.items()]
        head = [*self._header(origin), "", *imports]
        if constants:
            head += ["", *constants]
        return "\n\n\n".join(["\n".join(head), *self._helpers.values(), *self._kernels]) + "\n"

    def _header(self, origin: Origin) -> list[str]:
        task = self.task
        lines = [
            f"{self.spec.name} for {task.arch.name}, {task.numerics} numerics, by {origin.emitter} {origin.version}"
        ]
        lines += ["", *("  " + line for line in print_kernel(self.spec).splitlines()), ""]
        for launch in self.launches:
            options = ", ".join(f"{k}={v}" for k, v in launch.options)
            call = f"{launch.kernel}({', '.join(launch.args)})"
            word = "Launch ahead" if launch.ahead else "Launch"
            text = f"{word}: {call} on {launch.grid[0]} programs of {self.threads} threads, {options}"
            lines += textwrap.wrap(text, WIDTH - 2, subsequent_indent="  ", break_long_words=False)
        lines += [f"Scratch: {s.name} {s.dtype}[{s.numel}]" for s in self.workspace.values()]
        return [f"# {line}".rstrip() for line in lines]

    def candidate(self, schedule: str, origin: Origin, target: str = "triton") -> Candidate:
        """The finished candidate."""
        return Candidate(
            task=self.task,
            target=target,
            schedule=schedule,
            source=self.text(origin),
            launches=tuple(self.launches),
            workspace=tuple(self.workspace.values()),
            knobs=self.knobs,
            origin=origin,
        )


def is_far(spec: KernelSpec) -> bool:
    """Whether some tensor of static sizes spans 2^31 elements or more."""
    if not spec.is_static:
        return False
    tensors = [*(o.name for o in (*spec.inputs, *spec.outputs)), *(s.target for s in spec.temps)]
    reach = (zip(spec.shape_of(t), spec.strides_of(t), strict=True) for t in tensors)
    return any(sum((n - 1) * s for n, s in dims) >= 2**31 for dims in reach)


@dataclass
class KernelText:
    """One @triton.jit function being written. `memory`: the tensors that exist in memory when it runs."""

    file: SourceFile
    name: str
    spec: KernelSpec
    memory: frozenset[str]
    comment: str = ""
    lines: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # launch arguments
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names |= self.file.names | set(self.file.constants) | {self.name}
        spec = self.spec
        arguments = [*(o.name for o in (*spec.inputs, *spec.outputs)), *(s.target for s in spec.temps)]
        self._buffers = tuple(name for name in self.file.workspace if name not in arguments)  # of no tensor of the spec
        self._parameter = {a: self.fresh(f"{a}_ptr") for a in (*arguments, *self._buffers)}
        self._parameter |= {f"#{s.name}": self.fresh(f"{s.name}_size") for s in spec.sizes if s.size is None}

    def fresh_axis(self, stem: str) -> str:
        """A local name for a physical axis that no axis of the spec has either."""
        while stem in self.names or stem in self.spec.size:
            stem += "_"
        return self.fresh(stem)

    def fresh(self, stem: str) -> str:
        """A local name that is not taken."""
        name, n = stem, 0
        while name in self.names:
            n += 1
            name = f"{stem}_{n}"
        self.names.add(name)
        return name

    def pointer(self, tensor: str) -> str:
        """The parameter that points to an operand or a scratch buffer."""
        self.used.add(tensor)
        return self._parameter[tensor]

    def extent(self, axis: str) -> str:
        """The parameter that holds a symbolic extent."""
        self.used.add(f"#{axis}")
        return self._parameter[f"#{axis}"]

    def strides(self, tensor: str) -> tuple[int, ...]:
        """Static strides, in elements, of an operand or a (contiguous) scratch buffer."""
        if tensor in self.spec.operand:
            return self.spec.strides_of(tensor)
        return contiguous(self.spec.shape_of(tensor))

    def arguments(self) -> tuple[str, ...]:
        """Launch arguments, in parameter order: the spec's inputs, scratch, outputs, extents."""
        spec = self.spec
        outputs = [o.name for o in spec.outputs]
        order = [*(o.name for o in spec.inputs), *(s.target for s in spec.temps), *self._buffers, *outputs]
        return tuple(a for a in (*order, *(f"#{s.name}" for s in spec.sizes)) if a in self.used)

    def text(self) -> str:
        parameters = ", ".join(self._parameter[a] for a in self.arguments())
        note = [f"    # {self.comment}"] if self.comment else []
        body = [part for line in self.lines for part in wrapped("    " + line)]
        return "\n".join(["@triton.jit", *wrapped(f"def {self.name}({parameters}):"), *note, *body])


def wrapped(line: str) -> list[str]:
    """A line of at most WIDTH characters as it is; a longer call or signature with one argument a line. The meaning
    stays: what stands in parentheses for grouping gets no comma, which would make a tuple of it."""
    open_at = line.find("(")
    if len(line) <= WIDTH or open_at < 0:
        return [line]
    depth, start, close_at = 0, open_at + 1, open_at
    pieces = []
    for at in range(open_at, len(line)):
        depth += (line[at] in "([{") - (line[at] in ")]}")
        if (depth == 1 and line[at] == ",") or depth == 0:
            pieces.append(line[start:at].strip())
            start, close_at = at + 1, at
        if depth == 0:
            break
    if not _TAIL.fullmatch(line, close_at + 1):
        return [line]  # more than one call
    indent = line[: len(line) - len(line.lstrip())]
    is_call = open_at > 0 and (line[open_at - 1].isalnum() or line[open_at - 1] in "_])")
    comma = "," if is_call or len(pieces) > 1 else ""
    inner = (part for piece in pieces for part in wrapped(f"{indent}    {piece}{comma}"))
    return [line[: open_at + 1], *inner, indent + line[close_at:]]


def kernel_name(stem: str) -> str:
    """A function name made of a spec's name; helper functions have the names of kvc.functions."""
    name = stem if stem not in _RESERVED and stem not in FUNCTIONS else f"{stem}_kernel"
    return name
