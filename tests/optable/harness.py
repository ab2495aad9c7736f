"""Runs one sample of an op twice: its meaning through the interpreter, and eagerly in float64."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from kvc.dtypes import DTYPES, DType, from_torch
from kvc.graph import Graph, Input, Node, Ref, TensorType
from kvc.interpret import interpret
from kvc.lower import lower
from kvc.ops import OpDef, Sample


def is_tensor(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) >= 2 and isinstance(entry[0], str) and isinstance(entry[1], tuple)


def make(entry: Any, gen: torch.Generator) -> Any:
    """A tensor for a tensor entry of a sample; lists become lists; literals stay."""
    if is_tensor(entry):
        name, shape, *limit = entry
        dtype = getattr(torch, DTYPES[name].torch_name)
        if name == "bool":
            return torch.rand(shape, generator=gen) > 0.5
        if DTYPES[name].is_float:
            values = torch.randn(shape, generator=gen)
            values = values.abs().clamp(0.05, 0.95) if limit else values
            return values.to(dtype)
        values = torch.randint(0, limit[0], shape, generator=gen, dtype=dtype)
        if limit[1:] == ["offsets"]:
            values = values.sort(-1).values
            values -= values[..., :1].clone()
        return values
    if isinstance(entry, tuple) and any(is_tensor(e) for e in entry):
        return [make(e, gen) for e in entry]
    if isinstance(entry, DType):
        return getattr(torch, entry.torch_name)
    return list(entry) if isinstance(entry, tuple) else entry


def wide(value: Any) -> Any:
    """The same arguments with every float in float64."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, list):
        return [wide(v) for v in value]
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value


def eager(definition: OpDef, args: list[Any], attrs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The overload of the op that takes these arguments."""
    name, _, overload = definition.aten[0].partition(".")
    packet = packet_of(name)
    result = getattr(packet, overload)(*args, **attrs) if overload == "stable" else packet(*args, **attrs)
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def packet_of(name: str) -> Any:
    """The overloads "mm" of ATen, or "library::mm" of a library that registers operators of its own."""
    library, _, own = name.rpartition("::")
    if library == "transformers":
        import transformers.integrations.moe  # noqa: F401  its import registers them
    return getattr(getattr(torch.ops, library or "aten"), own)


def type_of(x: torch.Tensor) -> TensorType:
    return TensorType(from_torch(x.dtype), tuple(x.shape), tuple(x.stride()))


def graph_of(definition: OpDef, sample: Sample, args: list[Any], outs: tuple[torch.Tensor, ...]) -> Graph:
    """A graph of one node."""
    inputs: list[Input] = []

    def reference(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            name = f"x{len(inputs)}"
            inputs.append(Input(name, type_of(value), "user"))
            return Ref(name)
        if isinstance(value, torch.dtype):
            return from_torch(value)
        return tuple(reference(v) for v in value) if isinstance(value, list) else value

    refs = tuple(reference(a) for a in args)
    names = tuple(f"out{i}" for i in range(len(outs)))
    node = Node(names, definition.name, refs, sample.attrs, tuple(type_of(o) for o in outs))
    return Graph("one_op", tuple(inputs), (node,), names)


def tensors_of(args: list[Any]) -> list[torch.Tensor]:
    return [x for a in args for x in (a if isinstance(a, list) else [a]) if isinstance(x, torch.Tensor)]


def run(definition: OpDef, sample: Sample, number: int) -> tuple[list[torch.Tensor], list[torch.Tensor], Graph]:
    """(what the meaning gives in float64, what eager gives in float64, the graph). Lowering has checked shapes and
    dtypes against eager's in the sample's own dtypes."""
    gen = torch.Generator().manual_seed(zlib.crc32(definition.name.encode()) + number)
    args = [make(a, gen) for a in sample.tensors]
    attrs = {k: make(v, gen) for k, v in sample.attrs}
    graph = graph_of(definition, sample, args, eager(definition, args, attrs))
    spec, _ = lower(graph)
    wide_args = [wide(a) for a in args]
    torch.set_default_dtype(torch.float64)
    try:
        reference = eager(definition, wide_args, {k: wide(v) for k, v in attrs.items()})
    finally:
        torch.set_default_dtype(torch.float32)
    given = dict(zip((i.name for i in graph.inputs), tensors_of(wide_args), strict=True))
    got = interpret(spec, {o.name: given[o.name] for o in spec.inputs}) if spec.outputs else {}
    results = [got[name] if name in got else given["x0"] for name in graph.outputs]
    return results, list(reference), graph
