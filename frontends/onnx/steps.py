"""An ONNX graph -> a flat list of steps. Functions are inlined, branches whose condition is known are taken, loops
whose length is known are unrolled, and what follows from sizes and constants is computed once and for all.

The walk executes every node on fake tensors (shapes without values), so that sizes are known as it goes on. A value is
*static* where it follows from constants, integer initializers and shapes. What follows from float initializers stays a
computation, since weights may be exchanged; only where an operator must know such a value now (`peek`) is it read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from kvc.diagnostics import KvcError, Location
from kvc.frontends.onnx.pointwise import Op
from kvc.frontends.onnx.table import CONTROL, TABLE
from kvc.frontends.onnx.values import ENUM_OF, Call, Static, Value, from_proto
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    import onnx

#: Loops of more iterations than that are not written out.
MAX_ITERATIONS = 512
_FAILURES = (RuntimeError, TypeError, ValueError, LookupError, AssertionError, ArithmeticError)
_OWN_DOMAINS = ("", "ai.onnx")
Enter = Callable[[Op, Call], Any]
Outer = Mapping[str, "onnx.AttributeProto"]  # attributes of the function around


@dataclass(frozen=True, eq=False)
class Step:
    """One operator to execute: names of values in and out, "" for an input that is left out."""

    op: str
    run: Op
    attrs: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    where: Location
    opset: int
    enter: Enter


@dataclass(eq=False)
class Program:
    """The steps of a model, the values that are known, and those that were read out of weights."""

    steps: list[Step]
    static: dict[str, Value]
    peeked: dict[str, Static | None]
    outputs: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self  # never changed once it is made, and large


def entry(where: Location) -> Enter:
    """`run(call)` as if a `forward` at that place of the model did it: torch.export notes the place with each operator
    that the call traces."""
    text = "\n" * max(where.line - 1, 0) + "def forward(run, call): return run(call)"
    scope: dict[str, Any] = {}
    exec(compile(text, where.file, "exec"), scope)
    made: Enter = scope["forward"]
    return made


def execute(step: Step, call: Call) -> tuple[Value | None, ...]:
    """The outputs of a step, trailing ones that are not wanted left out."""
    result = step.enter(step.run, call)
    values: tuple[Value | None, ...] = result if isinstance(result, tuple) else (result,)
    return values[: max(len(step.outputs), 1)]


def resolved(node: onnx.NodeProto, outer: Outer) -> onnx.NodeProto:
    """A node whose attributes are values: those that name one of the function around replaced by it, or left out."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    made = type(node)()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        source = outer.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is not None:
            made.attribute.append(source)
            made.attribute[-1].name = attribute.name
    return made


def is_known(value: Value | None) -> bool:
    """Whether a value is static, all of a sequence included (so is an input that is left out)."""
    return value is None or isinstance(value, Static) or (isinstance(value, list) and all(map(is_known, value)))


def _frozen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Static.of(value)
    return [_frozen(v) for v in value] if isinstance(value, list) else value


class Flattener:
    """Walks a model. `weights` are its initializers that stay tensors, as they are fed (fake), `known` their values."""

    def __init__(
        self,
        model: onnx.ModelProto,
        file: str,
        fake: Any,
        materialise: Callable[[Static], torch.Tensor],
        known: Mapping[str, Static],
    ) -> None:
        self.file, self.fake, self.materialise = file, fake, materialise
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.opsets = {o.domain if o.domain != "ai.onnx" else "": o.version for o in model.opset_import}
        self.values: dict[str, Value | None] = {}
        self.steps: list[Step] = []
        self.source: dict[str, Step] = {}
        self.peeked: dict[str, Static | None] = dict(known)
        self.count = 0

    # ------------------------------------------------------------ graphs
    def graph(self, graph: onnx.GraphProto, scope: dict[str, str], prefix: str, outer: Outer) -> None:
        """Walk the nodes of a graph; `scope` maps its names to values and grows."""
        for proto in graph.initializer:
            if prefix or proto.name not in self.values:
                name = f"{prefix}{proto.name}"
                self.values[name] = from_proto(proto)
                scope[proto.name] = name
        for n, node in enumerate(graph.node):
            self.node(node, scope, prefix, outer, self.place(node, n) if not prefix else None)

    def place(self, node: onnx.NodeProto, n: int) -> Location:
        """`model.onnx#name:17` for the 17th node."""
        name = node.name or (node.output[0] if node.output else node.op_type)
        plain = "".join(ch if ch.isalnum() or ch in "._-" else "." for ch in name).strip(".") or node.op_type
        return Location(f"{self.file}#{plain}", n + 1)

    def node(
        self, node: onnx.NodeProto, scope: dict[str, str], prefix: str, outer: Outer, where: Location | None
    ) -> None:
        if where is not None:
            self.here = where
        node = resolved(node, outer)
        attrs = self.attributes(node)
        inputs = tuple(scope[name] if name else "" for name in node.input)
        for name in node.output:
            if name:
                scope[name] = f"{prefix}{name}"
        outputs = tuple(scope[name] if name else "" for name in node.output)
        domain = "" if node.domain in _OWN_DOMAINS else node.domain
        function = self.functions.get((domain, node.op_type, node.overload))
        if function is not None:
            self.inline(function, node, inputs, outputs)
        elif domain:
            raise self.outside(f"{domain}.{node.op_type}", "export the model with ONNX's own operators")
        elif node.op_type in CONTROL:
            write_out = {"If": self.branch, "Loop": self.loop, "Scan": self.scan}[node.op_type]
            write_out(attrs, inputs, outputs, scope, outer)
        else:
            self.operator(node, attrs, inputs, outputs)

    def attributes(self, node: onnx.NodeProto) -> dict[str, Any]:
        """Attribute values, tensors decoded."""
        import onnx

        found = {}
        for attribute in node.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            found[attribute.name] = from_proto(value, self.here) if isinstance(value, onnx.TensorProto) else value
        return found

    def outside(self, what: str, hint: str) -> KvcError:
        return KvcError("KVC0204", what, self.here, hint=hint)

    # ------------------------------------------------------------ operators
    def operator(
        self, node: onnx.NodeProto, attrs: dict[str, Any], inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> None:
        row, opset = TABLE.get(node.op_type), self.opsets.get("", 1)
        if row is not None:
            step = Step(node.op_type, row, attrs, inputs, outputs, self.here, opset, entry(self.here))
            if self.perform(step):
                return
        body = self.body(node, inputs, opset)
        if body is None:
            raise self.outside(
                f"{node.op_type} (opset {opset})" + (" in this form" if row else ""),
                "`kvc onnx ops` lists what is supported; rewrite this part of the model or run it outside",
            )
        self.inline(body, node, inputs, outputs)

    def perform(self, step: Step) -> bool:
        """Execute a step on what is known of its inputs; False where its row leaves it to ONNX's definition."""
        given = [self.values[name] if name else None for name in step.inputs]
        static = all(map(is_known, given))
        call = self.call(step, given, static)
        try:
            if static:
                results = execute(step, call)
            else:
                with self.fake:
                    results = execute(step, call)
        except _FAILURES as error:
            raise KvcError(
                "KVC0204", f"{step.op}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
                step.where, hint="check the sizes of its inputs (`--dim`), and that the model runs in onnxruntime",
            ) from error  # fmt: skip
        if results == (None,):
            return False
        if static:
            results = tuple(_frozen(r) for r in results)
        if len(results) < len([o for o in step.outputs if o]):
            raise call.fail(f"{len(step.outputs)} outputs are wanted")
        for name, value in zip(step.outputs, results, strict=False):
            if name:
                self.values[name] = value
                self.source[name] = step
        if not all(is_known(v) for v in results):
            self.steps.append(step)
        return True

    def call(self, step: Step, given: list[Value | None], static: bool) -> Call:
        return Call(
            step.op, step.where, dict(step.attrs), given, step.inputs, len(step.outputs), step.opset,
            Static.tensor if static else self.materialise, self.peek, lambda dtype: dtype,
        )  # fmt: skip

    def peek(self, name: str) -> Static | None:
        """The value of what follows from weights alone; None where it depends on an input of the model."""
        value = self.values.get(name)
        if isinstance(value, Static):
            return value
        if name not in self.peeked:
            step = self.source.get(name)
            found: dict[str, Any] = {name: None}
            if step is not None:
                given: list[Value | None] = [self.peek(i) if i else None for i in step.inputs]
                if not any(v is None and i for v, i in zip(given, step.inputs, strict=True)):
                    with _disable_current_modes():  # values, not only sizes
                        results = execute(step, self.call(step, given, True))
                    found = dict(zip(step.outputs, (_frozen(r) for r in results), strict=False))
            self.peeked.update({k: v for k, v in found.items() if v is None or isinstance(v, Static)})
        return self.peeked.get(name)

    # ------------------------------------------------------------ functions
    def body(self, node: onnx.NodeProto, inputs: tuple[str, ...], opset: int) -> onnx.FunctionProto | None:
        """ONNX's own definition of an operator by others, for the types that it has here."""
        import onnx

        try:
            schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
        except onnx.defs.SchemaError:
            return None
        function = onnx.FunctionProto()
        if schema.has_function:
            text = schema.get_function_with_opset_version(max(v for v in schema.function_opset_versions if v <= opset))
        elif schema.has_context_dependent_function:
            versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
            types = [self.type_of(name).SerializeToString() for name in inputs]
            text = schema.get_context_dependent_function_with_opset_version(
                max(versions), node.SerializeToString(), types
            )
        else:
            return None
        if not text:
            return None
        function.ParseFromString(text)
        defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
        function.attribute_proto.extend(defaults)
        return function

    def type_of(self, name: str) -> onnx.TypeProto:
        import onnx

        value = self.values[name] if name else None
        if not isinstance(value, torch.Tensor | Static):
            return onnx.TypeProto()
        return onnx.helper.make_tensor_type_proto(ENUM_OF[value.dtype], tuple(value.shape))

    def inline(
        self, function: onnx.FunctionProto, node: onnx.NodeProto, inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        prefix = self.fresh(function.name)
        scope = dict.fromkeys(function.input, "") | dict(zip(function.input, inputs, strict=False))
        given = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
        before = dict(self.opsets)
        self.opsets |= {o.domain if o.domain != "ai.onnx" else "": o.version for o in function.opset_import}
        for inner in function.node:
            self.node(inner, scope, prefix, given, None)
        self.opsets = before
        self.rename(function.output, scope, outputs)

    def rename(self, inner: Sequence[str], scope: Mapping[str, str], outputs: Sequence[str]) -> None:
        """The results of an inlined graph under the names that the outer one gives them."""
        for name, outer in zip(inner, outputs, strict=False):
            if outer:
                self.alias(scope[name], outer)

    def alias(self, source: str, name: str) -> None:
        step = Step("Identity", TABLE["Identity"], {}, (source,), (name,), self.here, 0, entry(self.here))
        self.perform(step)

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}.{self.count}/"

    # ------------------------------------------------------------ control flow
    def number(self, name: str, what: str) -> Any:
        found = self.peek(name)
        if found is None:
            raise KvcError("KVC0202", f"{what} depends on the inputs of the model", self.here,
                           hint="make it a constant: kernels are written for one path through the graph",
                           needed=name)  # fmt: skip
        return found.array.reshape(-1)[0].item()

    def branch(
        self, attrs: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], scope: Mapping[str, str],
        outer: Outer,
    ) -> None:  # fmt: skip
        graph = attrs["then_branch" if self.number(inputs[0], "the condition of If") else "else_branch"]
        inner = dict(scope)
        self.graph(graph, inner, self.fresh("If"), outer)
        self.rename([o.name for o in graph.output], inner, outputs)

    def loop(
        self, attrs: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], scope: Mapping[str, str],
        outer: Outer,
    ) -> None:  # fmt: skip
        """Unrolled: its trip count and condition must be known. Carried values go from one copy of the body to the
        next, scan outputs are stacked."""
        body: onnx.GraphProto = attrs["body"]
        trips = int(self.number(inputs[0], "the trip count of Loop")) if inputs[0] else MAX_ITERATIONS + 1
        going = bool(self.number(inputs[1], "the condition of Loop")) if len(inputs) > 1 and inputs[1] else True
        carried, scans = list(inputs[2:]), [[] for _ in body.output[1 + len(inputs[2:]) :]]  # type: list[str], list[list[str]]
        done = 0
        while going and done < trips:
            if done == MAX_ITERATIONS:
                raise self.outside(f"Loop runs more than {MAX_ITERATIONS} times", "shorten it or run it outside")
            prefix = self.fresh("Loop")
            counter, still = f"{prefix}trip", f"{prefix}cond"
            self.values[counter], self.values[still] = Static.ints(done), Static(np.array(True), torch.bool)
            names = [i.name for i in body.input]
            inner = dict(scope) | dict(zip(names, (counter, still, *carried), strict=True))
            self.graph(body, inner, prefix, outer)
            results = [inner[o.name] for o in body.output]
            going = bool(self.number(results[0], "the condition of Loop"))
            carried = results[1 : 1 + len(carried)]
            for rows, name in zip(scans, results[1 + len(carried) :], strict=True):
                rows.append(name)
            done += 1
        if not done and any(outputs[len(carried) :]):
            raise self.outside("Loop that never runs has scan outputs", "remove it")
        for source, name in zip(carried, outputs, strict=False):
            if name:
                self.alias(source, name)
        for rows, name in zip(scans, outputs[len(carried) :], strict=False):
            if name:
                self.make("Loop", _stack(0), rows, name)

    def make(self, op: str, run: Op, inputs: Sequence[str], output: str) -> None:
        """A step that no node of the file states."""
        self.perform(Step(op, run, {}, tuple(inputs), (output,), self.here, 0, entry(self.here)))

    def scan(
        self, attrs: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str], scope: Mapping[str, str],
        outer: Outer,
    ) -> None:  # fmt: skip
        """Unrolled along the scanned axes, whose extent is known."""
        body: onnx.GraphProto = attrs["body"]
        count = int(attrs["num_scan_inputs"])
        carried, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
        results_count = len(body.output) - len(carried)
        axes, back = attrs.get("scan_input_axes", [0] * count), attrs.get("scan_input_directions", [0] * count)
        out_axes = attrs.get("scan_output_axes", [0] * results_count)
        out_back = attrs.get("scan_output_directions", [0] * results_count)
        first = self.values[scanned[0]]
        assert isinstance(first, torch.Tensor | Static)
        length = int(first.shape[axes[0]])
        if length > MAX_ITERATIONS:
            raise self.outside(f"Scan runs more than {MAX_ITERATIONS} times", "shorten it or run it outside")
        rows: list[list[str]] = [[] for _ in range(results_count)]
        for step in range(length):
            prefix = self.fresh("Scan")
            slices = [f"{prefix}slice{n}" for n in range(count)]
            for name, source, axis, reverse in zip(slices, scanned, axes, back, strict=True):
                self.make("Scan", _select(axis, length - 1 - step if reverse else step), [source], name)
            inner = dict(scope) | dict(zip([i.name for i in body.input], (*carried, *slices), strict=True))
            self.graph(body, inner, prefix, outer)
            results = [inner[o.name] for o in body.output]
            carried = results[: len(carried)]
            for row, name in zip(rows, results[len(carried) :], strict=True):
                row.append(name)
        self.rename(carried, {name: name for name in carried}, outputs)
        for row, axis, reverse, name in zip(rows, out_axes, out_back, outputs[len(carried) :], strict=False):
            if name:
                self.make("Scan", _stack(axis), row[::-1] if reverse else row, name)


def _stack(axis: int) -> Op:
    return lambda call: torch.stack(call.xs(), axis)


def _select(axis: int, index: int) -> Op:
    return lambda call: call.x().select(axis, index)
