"""An ONNX model as a torch module, to be captured and to be the original that a translation is compared with.

Its state_dict has the names of the initializers. `model.to(dtype)`, and so `--dtype` and the float64 oracle, changes
every float type that the file names, casts and constants included: ONNX's operators want operands of one type.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from kvc.frontends.onnx.steps import Flattener, Program, execute, is_known
from kvc.frontends.onnx.values import REAL, Call, Static, Value, from_proto
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    import onnx

_CONSTANT = "_onnx_constant_"


class OnnxModel(nn.Module):
    """Executes the steps of a program. Made by `build`, which gives `forward` the names of the graph's inputs."""

    program: Program
    input_names: tuple[str, ...]

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, str] = {}  # initializer -> its name in the state_dict
        self._constants: dict[str, str] = {}  # key of a Static -> its buffer
        self._real: torch.dtype | None = None
        self._confirm: Callable[[], str] | None = None

    def confirmed(self) -> str:
        """Where the oracle of a translation comes from, and what else agrees with it; for the lock."""
        return self._confirm() if self._confirm is not None else "ONNX model in float64"

    # ------------------------------------------------------------ weights
    def place(self, name: str, tensor: torch.Tensor) -> None:
        """Register an initializer under its own name: dots make submodules, as in any state_dict."""
        *path, leaf = name.split(".")
        owner: nn.Module = self
        if not all([*path, leaf]) or self._taken(path, leaf):
            owner, leaf = self, re.sub(r"\W", "_", name) + "_"
            path = []
        for part in path:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        if tensor.is_floating_point():
            owner.register_parameter(leaf, nn.Parameter(tensor, requires_grad=False))
        else:
            owner.register_buffer(leaf, tensor)
        self._places[name] = ".".join([*path, leaf])

    def _taken(self, path: Sequence[str], leaf: str) -> bool:
        owner: nn.Module = self
        for part in path:
            if part not in owner._modules:
                return hasattr(owner, part)
            owner = owner.get_submodule(part)
        return hasattr(owner, leaf)

    def weight(self, name: str) -> torch.Tensor:
        owner, _, leaf = self._places[name].rpartition(".")
        found: torch.Tensor = getattr(self.get_submodule(owner), leaf)
        return found

    def constant(self, value: Static) -> torch.Tensor:
        """A known value as a tensor: the initializer that it is, a literal, or a buffer outside the state_dict."""
        to = self.real(value.dtype)
        if value.name:
            return self.weight(value.name)
        if value.uniform:
            return torch.full(value.shape, value.array.reshape(-1)[0].item(), dtype=to)
        if value.key not in self._constants:
            name = f"{_CONSTANT}{len(self._constants)}"
            with _disable_current_modes():  # a real tensor, also where sizes are being worked out
                self.register_buffer(name, value.tensor(to), persistent=False)
            self._constants[value.key] = name
        found: torch.Tensor = getattr(self, self._constants[value.key])
        return found

    def real(self, dtype: torch.dtype) -> torch.dtype:
        """What a type of the file is in this model."""
        return self._real if self._real is not None and dtype in REAL else dtype

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> OnnxModel:
        super()._apply(fn, recurse)
        made = {fn(torch.zeros((), dtype=d)).dtype for d in (torch.float32, torch.float16)}
        if len(made) == 1:
            self._real = made.pop()
        return self

    # ------------------------------------------------------------ execution
    def run(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        program = self.program
        values: dict[str, Value | None] = dict(program.static)
        values.update({name: self.weight(name) for name in self._places if name not in values})
        values.update(inputs)
        for step in program.steps:
            call = Call(
                step.op, step.where, dict(step.attrs), [values[n] if n else None for n in step.inputs], step.inputs,
                len(step.outputs), step.opset, self.constant, program.peeked.get, self.real,
            )  # fmt: skip
            for name, value in zip(step.outputs, execute(step, call), strict=False):
                values[name] = value
        results = tuple(self.result(values[name], name) for name in program.outputs)
        return results[0] if len(results) == 1 else results

    def result(self, value: Value | None, name: str) -> Any:
        if isinstance(value, list):
            return [self.result(v, name) for v in value]
        tensor = self.constant(value) if isinstance(value, Static) else value
        assert tensor is not None
        return tensor.contiguous()  # ONNX's tensors have no strides


def _forward(names: Sequence[str], inputs: Sequence[str]) -> Callable[..., Any]:
    """`forward(self, a, b)` for the inputs of the graph, whose ONNX names are `inputs`."""

    def forward(self: OnnxModel, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        given = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        return self.run({name: given[own] for name, own in zip(inputs, names, strict=True)})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", kind), *(inspect.Parameter(n, kind) for n in names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return forward


def argument_names(names: Sequence[str]) -> tuple[str, ...]:
    """Valid, distinct Python names for the inputs of a graph."""
    taken: dict[str, None] = {}
    for name in names:
        plain = re.sub(r"\W", "_", name)
        plain = f"x{plain}" if not plain or plain[0].isdigit() else plain
        plain = f"{plain}_" if keyword.iskeyword(plain) or plain in ("self", "kwargs", "args") else plain
        while plain in taken:
            plain += "_"
        taken[plain] = None
    return tuple(taken)


def is_weight(dtype: torch.dtype) -> bool:
    """Floats and 8-bit integers (quantised weights) are weights; wider integers are sizes, axes and indices."""
    return dtype.is_floating_point or dtype in (torch.int8, torch.uint8)


def build(model: onnx.ModelProto, file: str, inputs: Mapping[str, Any]) -> OnnxModel:
    """The module of a model for inputs of these shapes (`inputs`: example tensors, or lists of them, by name). `file`
    names it in locations. KVC0204 for what is outside the set, KVC0202 for control flow that depends on data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    names = argument_names(list(inputs))
    module: OnnxModel = type("OnnxModel", (OnnxModel,), {"forward": _forward(names, list(inputs))})()
    module.input_names = tuple(inputs)
    known: dict[str, Static] = {}
    static: dict[str, Static] = {}
    for proto in model.graph.initializer:
        value = from_proto(proto)
        module.place(proto.name, value.tensor().clone())
        (known if is_weight(value.dtype) else static)[proto.name] = Static(value.array, value.dtype, proto.name)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    walk = Flattener(model, file, fake, module.constant, known)
    walk.values.update(static)
    walk.values.update({name: fake.from_tensor(module.weight(name)) for name in known})
    walk.values.update({name: _fake(fake, value) for name, value in inputs.items()})
    walk.graph(model.graph, {name: name for name in walk.values}, "", {})
    outputs = tuple(o.name for o in model.graph.output)
    for name in outputs:
        result = walk.values[name]
        if isinstance(result, Static):
            module.constant(result)  # its buffer is there before anything is traced
    needed = {n for step in walk.steps for n in step.inputs} | set(outputs)
    kept = {n: v for n, v in walk.values.items() if n in needed and v is not None and is_known(v)}
    module.program = Program(walk.steps, kept, walk.peeked, outputs)
    return module.eval()


def _fake(mode: Any, value: Any) -> Any:
    return [_fake(mode, v) for v in value] if isinstance(value, list) else mode.from_tensor(value)
