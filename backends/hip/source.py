"""A source file and its candidate: header, includes, constants, helpers, kernels, launches.

The header of a file says what the kernel computes (the spec), who wrote it, how it is launched and under which knobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvc.backends.hip.cxx import RESERVED, STORAGE_TYPE, identifier, symbol
from kvc.backends.hip.toolchain import PROLOGUE
from kvc.backends.hip.unit import Buffer, Kernel, Unit, extent_parameter
from kvc.dtypes import DType
from kvc.emitter import Candidate, Knob, Launch, Origin, Scratch, Task
from kvc.kernel import Call, Const, Expr, Extent, KernelSpec, Load
from kvc.text import print_kernel

#: Versions of all HIP emitters move together: they share the code that writes expressions.
VERSION = "1"

#: Index arithmetic is 32-bit where no offset or thread index can come near 2^31.
NARROW_LIMIT = 2**31 - 2**24

#: HIP launches fewer than 2^32 threads; larger domains are walked with a stride.
MAX_THREADS = 2**31

Knobs = tuple[tuple[str, Knob], ...]

PACK = """\
// COUNT elements that move in accesses of up to 16 bytes.
template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT < 16 ? sizeof(T) * COUNT : 16) Pack {
  T lane[COUNT];
  // Lane by lane: an array of packs then stays in registers, which copies of whole structs do not always.
  __device__ __forceinline__ void set(Pack other) {
    #pragma unroll
    for (int v = 0; v < COUNT; ++v) lane[v] = other.lane[v];
  }
};
"""


def dense_strides(spec: KernelSpec, dims: tuple[str, ...]) -> tuple[Expr, ...]:
    """Row-major strides in elements; products of extents where sizes are symbolic."""
    strides: list[Expr] = []
    step: Expr = Const(1)
    for dim in reversed(dims):
        strides.append(step)
        size = spec.size[dim].size
        extent: Expr = Const(max(size, 1)) if size is not None else Extent(dim)
        match step, extent:
            case Const(a), Const(b):
                step = Const(a * b)
            case _:
                step = Call("mul", (step, extent)) if step != Const(1) else extent
    return tuple(reversed(strides))


def buffer_of(spec: KernelSpec, tensor: str, dtype: DType | None = None, scratch: str = "") -> Buffer:
    """The buffer of an operand, or a dense scratch buffer named `scratch` of the shape of a tensor."""
    dims = spec.dims_of(tensor)
    operand = spec.operand.get(tensor)
    given = operand.strides if operand is not None and not scratch else None
    strides = tuple(Const(s) for s in given) if given is not None else dense_strides(spec, dims)
    span = 1
    for dim, stride in zip(dims, strides, strict=True):
        step = stride.value if isinstance(stride, Const) else 1
        span += max(spec.extent(dim) - 1, 0) * int(step)
    name = scratch or tensor
    pointer = identifier(name)
    if pointer in RESERVED:
        pointer += "_"
    return Buffer(pointer, dtype or spec.dtype_of(tensor), dims, strides, span, name)


def operand_buffers(spec: KernelSpec) -> dict[str, Buffer]:
    return {name: buffer_of(spec, name) for name in spec.operand}


def needs_wide(spec: KernelSpec, buffers: dict[str, Buffer], domain: int) -> bool:
    """Whether offsets or thread indices may pass 32 bits."""
    return not spec.is_static or domain >= NARROW_LIMIT or any(b.span >= NARROW_LIMIT for b in buffers.values())


@dataclass
class File:
    """A source file in the making: kernels with their launches, in launch order."""

    task: Task
    unit: Unit
    head: list[str] = field(default_factory=list)  # knobs and other named constants
    kernels: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    workspace: list[Scratch] = field(default_factory=list)

    def add(
        self, kernel: Kernel, name: str, grid: Sequence[int], block: int, outputs: Sequence[str], bounds: str,
        ahead: bool = False,
    ) -> None:  # fmt: skip
        """Finish a kernel: its signature from the buffers it touched, and its launch (`ahead` as in Launch)."""
        name = symbol(name)
        tensors = [t for t in kernel.buffers if t in kernel.used or t in outputs]
        params = [self._parameter(kernel.buffers[t], t in outputs) for t in tensors]
        symbolic = [s.name for s in self.task.spec.sizes if s.size is None]
        params += [f"long long {extent_parameter(s)}" for s in symbolic]
        head = f'extern "C" __global__ void __launch_bounds__({bounds})\n{name}('
        joined = ", ".join(params)
        if len(name) + len(joined) > 116:
            joined = (",\n" + " " * (len(name) + 1)).join(params)
        self.kernels.append(f"{head}{joined}) {{\n{kernel.writer.text}}}\n")
        args = tuple(kernel.buffers[t].argument for t in tensors) + tuple(f"#{s}" for s in symbolic)
        x, y, z = (*grid, 1, 1)[:3]
        self.launches.append(Launch(name, (x, y, z), (block, 1, 1), args, ahead=ahead))

    def _parameter(self, buffer: Buffer, written: bool) -> str:
        spec = self.task.spec
        aliased = {o.alias for o in spec.outputs if o.alias} | {o.name for o in spec.outputs if o.alias}
        restrict = "" if buffer.argument in aliased else " __restrict__"
        return f"{'' if written else 'const '}{STORAGE_TYPE[buffer.dtype.name]}*{restrict} {buffer.pointer}"

    def candidate(self, emitter: str, schedule: str, knobs: Knobs) -> Candidate:
        """The finished candidate."""
        origin = Origin(emitter, VERSION)
        source = self._text(origin, schedule, knobs)
        launches, workspace = tuple(self.launches), tuple(self.workspace)
        return Candidate(self.task, "hip", schedule, source, launches, workspace, knobs, origin)

    def _text(self, origin: Origin, schedule: str, knobs: Knobs) -> str:
        body = "\n".join(self.kernels)
        for name in ("f8_to_float", "float_to_f8"):  # element conversions are spelled without a kernel at hand
            if f"{name}<" in body:
                self.unit.helpers.use(name)
        helpers = "\n".join(self.unit.helpers.used.values())
        constants = "\n".join([*self.head, *self.unit.constants.values()])
        parts = [self._comment(origin, schedule, knobs), self._includes(body + helpers + constants)]
        parts += [text.rstrip("\n") for text in (constants, helpers, body) if text]
        return "\n\n".join(parts) + "\n"

    def _comment(self, origin: Origin, schedule: str, knobs: Knobs) -> str:
        spec = self.task.spec
        lines = [f"{spec.name}: {schedule.replace('_', ' ')} for {self.task.arch.name}", ""]
        lines += print_kernel(spec).splitlines()
        settings = ", ".join(f"{name}={value}" for name, value in knobs)
        lines += [
            "",
            f"Written by kvc, emitter {origin.emitter} {origin.version}{'; ' + settings if settings else ''}.",
        ]
        for launch in self.launches:
            grid, block = (" x ".join(map(str, d)) for d in (launch.grid, launch.block))
            word = "Launch ahead" if launch.ahead else "Launch"
            lines.append(f"{word}: {launch.kernel}({', '.join(launch.args)}), grid {grid}, block {block}.")
        lines += [f"Scratch: {s.name}, {s.numel} elements of {s.dtype}." for s in self.workspace]
        return "\n".join(f"// {line}".rstrip() for line in lines)

    @staticmethod
    def _includes(code: str) -> str:
        lines = [PROLOGUE.rstrip("\n") if "KVC_" in code else "#include <hip/hip_runtime.h>"]
        extra = [
            f"#include <hip/hip_{kind}.h>" for kind, word in (("bf16", "bfloat16"), ("fp16", "half")) if word in code
        ]
        first, *rest = lines[0].split("\n")
        return "\n".join([first, *extra, *rest])


def symbolic_problem(spec: KernelSpec, axes: Sequence[str]) -> str:
    """Why a schedule that walks a row-major domain over `axes` cannot take the symbolic sizes of a spec, "" where it
    can: where only the outermost axis has one, no index has to divide by it."""
    symbolic = [s.name for s in spec.sizes if s.size is None]
    if not symbolic or symbolic == list(axes[:1]):
        return ""
    return "sizes beside that of its outermost axis are symbolic"


def known_size(spec: KernelSpec, axes: Sequence[str]) -> int | None:
    """The points of a domain, None where a size is symbolic."""
    return domain_size(spec, axes) if all(spec.size[a].size is not None for a in axes) else None


def known_divisor(spec: KernelSpec, axes: Sequence[str]) -> int:
    """What divides the points of a domain at every size."""
    return domain_size(spec, [a for a in axes if spec.size[a].size is not None])


def domain_count(kernel: Kernel, axes: Sequence[str], width: int = 1) -> str:
    """The points of a domain whose outermost size is symbolic, in groups of `width` (which divides the rest): C++."""
    rest = domain_size(kernel.spec, axes[1:]) // width
    return f"{extent_parameter(axes[0])} * {rest}" if rest != 1 else extent_parameter(axes[0])


def domain_size(spec: KernelSpec, axes: Sequence[str]) -> int:
    return math.prod(spec.extent(a) for a in axes)


def reads_of(spec: KernelSpec, roots: Sequence[str]) -> list[Load]:
    """Every access of an operand or temporary on the way to these tensors, as written."""
    found: list[Load] = []
    queue, seen = list(roots), set(roots)
    while queue:
        stmt = spec.stmt.get(queue.pop())
        if stmt is None:
            continue
        for load in stmt.loads():
            found.append(load)
            if load.tensor not in seen:
                seen.add(load.tensor)
                queue.append(load.tensor)
    return found


def alias_problem(spec: KernelSpec) -> str:
    """Why outputs cannot be written straight into the inputs they alias, "" where they can.

    Safe is: every read of such an input, on the way to any output, is at the very element that the thread writes.
    """
    for out in spec.outputs:
        if out.alias is None:
            continue
        source = spec.operand[out.alias]
        if spec.strides_of(out.name) != spec.strides_of(source.name) or source.dtype is not out.dtype:
            return f"{out.name} lies in {source.name} with another layout"
        axes = spec.stmt[out.name].axes
        for load in reads_of(spec, [o.name for o in spec.outputs]):
            plain = tuple(getattr(i, "name", None) for i in load.index)
            if load.tensor == source.name and (plain != axes or load.other is not None):
                return f"{source.name} is read at other elements than {out.name} writes"
    return ""
