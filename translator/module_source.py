"""The text of `module.py`: the drop-in module of an output folder, from a plan and its verified kernels."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kvc
from kvc.dtypes import DType, dtype
from kvc.graph import Arg, Attr, Graph, Input, Ref, TensorType
from kvc.kernel import contiguous
from kvc.library_forms import LibraryForm
from kvc.passes.memory import MemoryPlan
from kvc.plan import Fallback, Invoke, Plan, Step
from kvc.verify.buffers import buffer_of
from kvc.verify.verdict import Artifact
from kvc.workspace import ALIGN, launches_ahead, workspace_layout

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StateEntry:
    """A tensor of the original module. kind: "parameter", "buffer", "volatile" (a buffer outside the state_dict) or
    "constant" (a tensor that is no buffer at all)."""

    name: str
    type: TensorType
    kind: str


@dataclass(frozen=True)
class Interface:
    """How the written module is called and what it holds; everything that is not in the plan.

    `signature` is the text after `self` in `def forward(self, ...)`, `inputs` gives for each user input of the graph
    the Python expression that reads it from the arguments, `result` the expression of the return value, in which
    `{n}` stands for output n.
    """

    title: str
    mode: str
    signature: str
    inputs: Mapping[str, str]
    result: str
    state: tuple[StateEntry, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    init_record: tuple[str, str] | None = None
    init_arguments: str = "..."
    dtype: str = ""  # that the model was cast to
    call: Mapping[str, Any] = field(default_factory=dict)  # the example call (kvc.interface.rebuild)
    checks: tuple[tuple[str, str], ...] = ()  # (expression, literal) of arguments that the capture fixed


@dataclass(frozen=True)
class KernelFile:
    """Names of one distinct kernel in the output folder."""

    name: str
    source: str  # relative path of the source
    objects: Mapping[str, str]  # kernel symbol -> relative path of its code object


def identifier(name: str, taken: set[str]) -> str:
    """`name` as a Python identifier not in `taken`, to which it is added."""
    stem = re.sub(r"\W", "_", name).strip("_") or "value"
    if stem[0].isdigit() or keyword.iskeyword(stem):
        stem = f"v_{stem}"
    chosen, n = stem, 1
    while chosen in taken:
        n += 1
        chosen = f"{stem}_{n}"
    taken.add(chosen)
    return chosen


class _Writer:
    """Collects the tables and the body of `forward`."""

    def __init__(
        self,
        plan: Plan,
        memory: MemoryPlan,
        artifacts: Sequence[Artifact],
        files: Sequence[KernelFile],
        interface: Interface,
        library: Mapping[int, LibraryForm],
    ) -> None:
        self.library = library
        self.plan = plan
        self.memory = memory
        self.artifacts = artifacts
        self.files = files
        self.interface = interface
        self.names: set[str] = {"self", "call", "w", "d", "torch", "nn", "math", "args", "kwargs"}
        self.constant_names: set[str] = {"R"}
        self.expr: dict[str, str] = {}  # value -> Python expression
        self.regions: dict[str, dict[str, Any]] = {}
        self.kernels: list[dict[str, Any]] = []
        self.constants: dict[tuple[int, int], str] = {}
        self.region_dtypes: dict[str, list[str | None]] = {}
        self.used: list[str] = []
        self.body: list[str] = []
        self.prologue: list[str] = []  # of `forward`: checks of the arguments
        self.preparation: list[str] = []
        self.derived: list[dict[str, Any]] = []
        self.kept: set[str] = set()  # what the step being written must leave for `forward`
        self.settled: frozenset[str] = frozenset()  # values that `prepare` leaves alone once it has written them
        self.held: dict[tuple[int, int, tuple[str, ...]], dict[str, str]] = {}  # scratch that `prepare` fills
        self.arena = memory.nbytes
        self.live_out = plan.graph.live_out

    # ------------------------------------------------------------ values
    def inputs(self) -> str:
        """Bind the graph's inputs; gives the expression of the device."""
        device = ""
        for expression, literal in self.interface.checks:
            self.prologue.append(f'_fixed({expression}, "{_quoted(expression)}", {literal})')
        for i in self.plan.graph.inputs:
            if i.kind != "user":
                self.expr[i.name] = f"w[{len(self.used)}]"
                self.used.append(state_name(i))
                continue
            name = identifier(i.name, self.names)
            t = i.type
            source = self.interface.inputs[i.name]
            self.prologue.append(
                f'{name} = _input({source}, "{_quoted(source)}", {t.shape}, {t.strides}, torch.{t.dtype.torch_name})'
            )
            self.expr[i.name] = name
            device = device or f"{name}.device"
        return device or self.home

    @property
    def home(self) -> str:
        """The expression of the device on which the weights are."""
        return "self._slots[0][0][self._slots[0][1]].device" if self.used else 'torch.device("cuda")'

    def type_of(self, value: str) -> TensorType:
        known = self.plan.buffers.get(value)
        return known if known is not None else self.plan.graph.types[value]

    def is_region(self, value: str) -> bool:
        return value in self.memory.offsets and value not in self.live_out

    def region(self, value: str) -> str:
        """The name of the arena region of an intermediate value."""
        if value not in self.regions:
            t = self.type_of(value)
            self.regions[value] = {
                "name": "_R_" + identifier(value, self.names),
                "offset": self.memory.offsets[value],
                "nbytes": t.numel * t.dtype.bytes,
                "comment": f"{value}: {t.dtype}[{','.join(map(str, t.shape))}]",
            }
        return str(self.regions[value]["name"])

    def make_output(self, value: str) -> None:
        """Make room for a value that a kernel is about to write."""
        if value in self.expr:
            return
        if self.is_region(value):
            self.expr[value] = self.region(value)
            return
        t = self.type_of(value)
        if value in self.kept:
            self.expr[value] = f"d[{len(self.derived)}]"
            self.derived.append({"shape": t.shape, "dtype": t.dtype.torch_name, "comment": value})
            return
        name = identifier(value, self.names)
        make = f"torch.empty({t.shape}, " if t.is_contiguous else f"torch.empty_strided({t.shape}, {t.strides}, "
        self.body.append(f"{name} = {make}dtype=torch.{t.dtype.torch_name}, device=call.device)")
        self.expr[value] = name

    def tensor(self, value: str) -> str:
        """A tensor expression of a value, for torch operators."""
        if value not in self.regions:
            return self.expr[value]
        t = self.plan.graph.types.get(value, self.type_of(value))
        return f"_at(call, {self.expr[value]}, {t.shape}, torch.{t.dtype.torch_name})"

    # ------------------------------------------------------------ steps
    def steps(self) -> None:
        """Write what `prepare` does, then what `forward` does."""
        prologue = [self.plan.steps[n] for n in sorted(self.plan.prologue)]
        read = {v for s in self.plan.calls for v in (s.inputs if isinstance(s, Invoke) else s.node.refs)}
        self.kept = {v for s in prologue if isinstance(s, Invoke) for v in s.outputs if v in read}
        for step in prologue:
            self.step(step)
        self.preparation, self.body, self.kept = self.body, [], set()
        self.settled = self.plan.settled
        for value in self.plan.empties:
            self.make_output(value)
        for step in self.plan.calls:
            self.step(step)

    def sources(self) -> list[int]:
        """Where in `w` what the prologue reads stands."""
        read = {v for n in self.plan.prologue for v in getattr(self.plan.steps[n], "inputs", ())}
        read |= {v for _, _, values in self.held for v in values}
        state = [i.name for i in self.plan.graph.inputs if i.kind != "user"]
        return [n for n, name in enumerate(state) if name in read]

    def step(self, step: Step) -> None:
        if isinstance(step, Invoke):
            if step.kernel in self.library:
                self.library_call(step, self.library[step.kernel])
            else:
                self.invoke(step)
        else:
            self.fallback(step)

    def library_call(self, step: Invoke, form: LibraryForm) -> None:
        """A step that torch does: declared in the lock, chosen because it was measured to be faster."""
        origin = ", ".join(dict.fromkeys(str(loc) for loc in step.origin))
        self.body.append(
            f"# library call in the place of {self.files[step.kernel].name}" + (f": {origin}" if origin else "")
        )
        (value,) = step.outputs
        name, t = identifier(value, self.names), self.type_of(value)
        spec = self.plan.kernels[step.kernel]
        bound = dict(zip((o.name for o in spec.inputs), step.inputs, strict=True))
        text = f"{form.name}({', '.join(self.tensor(bound[operand]) for operand in form.inputs)})"
        out = spec.outputs[0].name
        if (t.shape, t.strides) != (spec.shape_of(out), spec.strides_of(out)):
            text += f".as_strided({t.shape}, {t.strides})"
        self.body.append(f"{name} = {text}")
        self.expr[value] = name

    def invoke(self, step: Invoke) -> None:
        artifact, file = self.artifacts[step.kernel], self.files[step.kernel]
        candidate = artifact.candidate
        spec = candidate.task.spec
        bound = dict(zip((o.name for o in spec.inputs), step.inputs, strict=True))
        outputs = dict(zip((o.name for o in spec.outputs), step.outputs, strict=True))
        origin = ", ".join(dict.fromkeys(str(loc) for loc in step.origin))
        self.body.append(f"# {file.name}" + (f": {origin}" if origin else ""))
        for operand, value in outputs.items():
            target = buffer_of(spec, operand)
            if target == operand:
                self.make_output(value)
            else:
                self.expr[value] = self.expr[bound[target]]
        bound |= outputs
        ahead = launches_ahead(candidate, {operand for operand, value in bound.items() if value in self.settled})
        places: dict[str, str] = {}
        for number in ahead:
            places |= self.run_ahead(step, number, bound)
        scratch, end = workspace_layout(candidate, self.memory.nbytes, places)
        self.arena = max(self.arena, end)
        places |= {name: self.scratch_region(*place) for name, place in scratch.items()}
        for number in (n for n in range(len(candidate.launches)) if n not in ahead):
            self.body += self.launch(step.kernel, number, bound, places)

    def launch(self, kernel: int, number: int, bound: Mapping[str, str], scratch: Mapping[str, str]) -> list[str]:
        """The lines of a launch, on values by operand and on scratch buffers, which `scratch` gives as expressions."""
        candidate = self.artifacts[kernel].candidate
        args = []
        for name in candidate.launches[number].args:
            if name.startswith("#"):
                args.append(str(candidate.task.spec.extent(name[1:])))
            else:
                args.append(scratch[name] if name in scratch else self.expr[bound[name]])
        return _call_lines(self.kernel(kernel, number), args)

    def run_ahead(self, step: Invoke, number: int, bound: Mapping[str, str]) -> dict[str, str]:
        """Have `prepare` run a launch of a step, once for all steps that would do the same; gives the expressions of
        the scratch that it fills."""
        candidate, file = self.artifacts[step.kernel].candidate, self.files[step.kernel]
        args = candidate.launches[number].args
        key = (step.kernel, number, tuple(bound[name] for name in args if name in bound))
        if key not in self.held:
            places = self.held[key] = {}
            for scratch in (s for s in candidate.workspace if s.name in args):
                places[scratch.name] = f"d[{len(self.derived)}]"
                comment = f"{scratch.name} of {file.name}"
                kind = dtype(scratch.dtype).torch_name
                self.derived.append({"shape": (scratch.numel,), "dtype": kind, "comment": comment})
            self.preparation += [f"# for {file.name}", *self.launch(step.kernel, number, bound, places)]
        return self.held[key]

    def scratch_region(self, offset: int, nbytes: int) -> str:
        key = f"#{offset}+{nbytes}"
        if key not in self.regions:
            name = "_R_" + identifier(f"workspace_{offset - self.memory.nbytes}_{nbytes}", self.names)
            self.regions[key] = {"name": name, "offset": offset, "nbytes": nbytes, "comment": "workspace"}
        return str(self.regions[key]["name"])

    def kernel(self, index: int, number: int) -> str:
        """The name of the table row of launch `number` of kernel `index`."""
        if (index, number) in self.constants:
            return self.constants[index, number]
        artifact, file = self.artifacts[index], self.files[index]
        candidate, launch = artifact.candidate, artifact.candidate.launches[number]
        spec = candidate.task.spec
        obj = artifact.verified.compiled.objects[launch.kernel]
        scratch = {s.name: s.dtype for s in candidate.workspace}
        written = {buffer_of(spec, o.name) for o in spec.outputs} - {o.name for o in spec.inputs}
        # An output written by several launches is whole only after the last one.
        writers = [n for n, each in enumerate(candidate.launches) if written & set(each.args)]
        modes, kinds = "", []
        for name in launch.args:
            alone = name in written and len([n for n in writers if name in candidate.launches[n].args]) == 1
            is_integer = name.startswith("#")
            modes += "i" if is_integer else "s" if name in scratch else "w" if alone else "r"
            kind = None if is_integer else dtype(scratch[name]) if name in scratch else spec.dtype_of(name)
            kinds.append(kind.torch_name if kind is not None else None)
        several = len(candidate.launches) > 1
        constant = "_" + identifier(file.name.upper() + (f"_{number + 1}" if several else ""), self.constant_names)
        self.region_dtypes[launch.kernel] = kinds
        self.kernels.append(
            {
                "constant": constant,
                "file": file.objects[launch.kernel],
                "symbol": launch.kernel,
                "grid": launch.grid,
                "block": launch.block,
                "lds": launch.dynamic_lds + obj.lds_bytes,
                "modes": modes,
                "padding": obj.extra_pointers,
                "options": dict(launch.options),
                "source": file.source,
            }
        )
        self.constants[index, number] = constant
        return constant

    def fallback(self, step: Fallback) -> None:
        node = step.node
        self.body.append(f"# eager fallback: {step.reason}" + (f" ({node.loc})" if node.loc else ""))
        args = [self.argument(a) for a in node.args]
        args += [f"{name}={self.attribute(value)}" for name, value in node.attrs]
        made = [identifier(o, self.names) for o in node.outputs]
        self.body.append(f"{', '.join(made)} = {aten_function(node.op)}({', '.join(args)})")
        for value, name, t in zip(node.outputs, made, node.types, strict=True):
            # Kernels were written for the layout that capture saw.
            if value in self.live_out or self.plan.graph.users.get(value):
                self.body.append(f'{name} = _input({name}, "{name}", {t.shape}, {t.strides}, {name}.dtype)')
            self.expr[value] = name

    def argument(self, arg: Arg) -> str:
        if isinstance(arg, Ref):
            return self.tensor(arg.name)
        if isinstance(arg, tuple):
            return "[" + ", ".join(self.argument(a) for a in arg) + "]"
        return self.attribute(arg)

    def attribute(self, value: Attr) -> str:
        if isinstance(value, DType):
            return f"torch.{value.torch_name}"
        if isinstance(value, tuple):
            return "[" + ", ".join(self.attribute(v) for v in value) + "]"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f'float("{value}")'
        return repr(value)

    def finish(self) -> str:
        """Write back changed buffers; gives the expression of the result."""
        graph = self.plan.graph
        for target, value in graph.mutations:
            self.body.append(f"{self.expr[target]}.copy_({self.tensor(value)})")
        return self.interface.result.format(*(self.tensor(value) for value in graph.outputs))


def _call_lines(constant: str, args: list[str]) -> list[str]:
    """A launch as source lines of at most 112 characters."""
    line = f"_launch({constant}, call, ({', '.join(args)}{',' if len(args) == 1 else ''}))"
    if len(line) <= 112:
        return [line]
    rows = textwrap.wrap(", ".join(args), 100, break_long_words=False, break_on_hyphens=False)
    return [f"_launch({constant}, call, (", *("    " + row for row in rows), "))"]


def _quoted(expression: str) -> str:
    return expression.replace('"', "'")


def aten_function(op: str) -> str:
    """The torch expression of a graph op: an ATen name ("aten.sort.stable"), or the first overload of a table entry."""
    if op.count(".") >= 2:
        return f"torch.ops.{op}"
    from kvc.ops import op_table

    known = op_table().get(op)
    overload = known.aten[0] if known is not None and known.aten else op
    return f"torch.ops.aten.{overload if '.' in overload else overload + '.default'}"


def state_name(i: Input) -> str:
    """Name under which a graph input is registered in the written module."""
    return i.target if i.kind != "const" else "kvc_constant_" + re.sub(r"\W", "_", i.target or i.name)


_SAFETENSORS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def safetensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The safetensors encoding of tensors, sorted by name: 8 bytes of header length, JSON, raw row-major data."""
    import json

    import torch

    names = {v: k for k, v in _SAFETENSORS.items()}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        raw = t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        kind = names[str(t.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(t.shape), "data_offsets": [offset, offset + len(raw)]}
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def module_source(
    plan: Plan,
    memory: MemoryPlan,
    artifacts: Sequence[Artifact],
    files: Sequence[KernelFile],
    interface: Interface,
    library: Mapping[int, LibraryForm] | None = None,
) -> str:
    """The text of module.py; `library` gives the calls that take kernels' places, by kernel."""
    from kvc.templates import render

    calls = dict(library or {})
    writer = _Writer(plan, memory, artifacts, files, interface, calls)
    device = writer.inputs()
    writer.steps()
    result = writer.finish()
    candidate = artifacts[0].candidate if artifacts else None
    row = candidate.task.arch.name if candidate else ""
    return render(
        "module.py.j2",
        title=interface.title,
        version=kvc.__version__,
        arch=row,
        target=candidate.target if candidate else "",
        native=bool(files) and all(f.source.endswith(".py") for f in files),
        mode=interface.mode,
        distinct=len(files),
        library=[form.source for form in calls.values()],
        fallbacks=len(plan.fallbacks) or "no",
        arena_bytes=max(writer.arena, ALIGN),
        kernels=writer.kernels,
        regions=list(writer.regions.values()),
        region_dtypes=list(writer.region_dtypes.items()),
        tensors=[
            {"name": repr(e.name), "shape": e.type.shape, "strides": e.type.strides, "dtype": e.type.dtype.torch_name,
             "kind": e.kind}
            for e in interface.state
        ],
        constants=any(e.kind in ("volatile", "constant") for e in interface.state),
        safetensors_dtypes=_SAFETENSORS,
        tied=dict(interface.tied),
        used=[repr(name) for name in writer.used],
        signature=interface.signature,
        prologue=writer.prologue,
        preparation=writer.preparation,
        derived=writer.derived,
        sources=writer.sources(),
        home=writer.home,
        body=writer.body,
        device=device,
        result=result,
        init_record=repr(interface.init_record),
        init_arguments=interface.init_arguments,
    )  # fmt: skip


def dense(shape: tuple[int, ...], kind: DType) -> TensorType:
    return TensorType(kind, shape, contiguous(shape))


def graph_state(graph: Graph) -> tuple[Input, ...]:
    """The inputs of a graph that are no arguments."""
    return tuple(i for i in graph.inputs if i.kind != "user")
