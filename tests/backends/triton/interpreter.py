"""Runs Triton candidates on Triton's own CPU interpreter: an independent check of the emitted source.

It needs TRITON_INTERPRET=1 before Triton is imported, so it is a program of its own: it reads cases from standard
input (one JSON object a line: spec, emitter, knobs, numerics, arch), and prints a JSON object a case, with the worst
error of each output against the float64 oracle, relative to the reference's magnitude.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import torch
from kvc.arch import arch
from kvc.backends.triton import TritonTarget
from kvc.emitter import Candidate, Task
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel


def random_inputs(spec: KernelSpec, seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs that keep indirect accesses in range: integers are small and not negative."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    bound = min((s.typical for s in spec.sizes), default=2)
    for operand in spec.inputs:
        shape = spec.shape_of(operand.name)
        kind = getattr(torch, operand.dtype.torch_name)
        if operand.dtype.is_float:
            data = torch.randn(shape, generator=generator).to(kind)
        elif operand.dtype.kind == "bool":
            data = torch.rand(shape, generator=generator) < 0.5
        else:
            data = torch.randint(0, max(bound, 1), shape, generator=generator).to(kind)
        if operand.strides is not None:
            data = strided(data, operand.strides)
        inputs[operand.name] = data
    return inputs


def strided(data: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The same values in a buffer of its own with these strides."""
    reach = 1 + sum((n - 1) * s for n, s in zip(data.shape, strides, strict=True))
    view = torch.as_strided(torch.zeros(reach, dtype=data.dtype), data.shape, strides)
    view.copy_(data)
    return view


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference relative to the reference's largest value; inf where non-finite positions differ."""
    if not want.dtype.is_floating_point:
        return 0.0 if torch.equal(got, want.to(got.dtype)) else math.inf
    got = got.double()
    if not torch.equal(got.isnan(), want.isnan()) or not torch.equal(got.isinf(), want.isinf()):
        return math.inf
    finite = want.isfinite()
    if not finite.any():
        return 0.0
    return float((got[finite] - want[finite]).abs().max() / want[finite].abs().max().clamp_min(1e-30))


def run(candidate: Candidate, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs of a candidate whose source is executed by Triton's interpreter."""
    import importlib.util
    import tempfile
    from pathlib import Path

    spec = candidate.task.spec
    buffers = dict(inputs)
    for operand in spec.outputs:
        kind = getattr(torch, operand.dtype.torch_name)
        shape = spec.shape_of(operand.name)
        empty = torch.zeros(shape, dtype=kind)
        buffers[operand.name] = strided(empty, operand.strides) if operand.strides is not None else empty
        if operand.dtype.is_float:
            buffers[operand.name].fill_(math.nan)
    for scratch in candidate.workspace:
        from kvc.dtypes import dtype

        buffers[scratch.name] = torch.zeros(scratch.numel, dtype=getattr(torch, dtype(scratch.dtype).torch_name))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(candidate.source)
        found = importlib.util.spec_from_file_location("kernel", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        for launch in candidate.launches:
            arguments = [spec.extent(a[1:]) if a.startswith("#") else buffers[a] for a in launch.args]
            getattr(module, launch.kernel)[launch.grid](*arguments)
    return {o.name: buffers[o.name] for o in spec.outputs}


def install_libdevice() -> None:
    """The interpreter has no libdevice; NumPy and torch stand in for it."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def wrap(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            first = next(a for a in arguments if isinstance(a, tl.tensor))
            arrays = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a) for a in arguments]
            kind = first.handle.data.dtype
            result = function(*(torch.from_numpy(np.array(a, dtype=kind)) for a in np.broadcast_arrays(*arrays)))
            shape = max(
                (a.type for a in arguments if isinstance(a, tl.tensor)), key=lambda t: len(getattr(t, "shape", ()))
            )
            return tl.tensor(TensorHandle(result.numpy(), first.dtype.scalar), shape)

        return call

    special = {"nearbyint": torch.round, "pow": torch.pow, "fmod": torch.fmod, "atan2": torch.atan2}
    names = [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "trunc",
    ]
    for name in names:
        setattr(libdevice, name, wrap(getattr(torch, name)))
    for name, function in special.items():
        setattr(libdevice, name, wrap(function))


def case(request: dict[str, Any]) -> dict[str, Any]:
    spec = parse_kernel(request["spec"])
    task = Task(spec, arch(request["arch"]), request.get("numerics", "strict"))
    emitter = next(e for e in TritonTarget().emitters() if e.name == request["emitter"])
    knobs = tuple((k, v) for k, v in request.get("knobs", {}).items())
    candidate = next(emitter.propose(task, knobs, (), 0))
    inputs = random_inputs(spec)
    got = run(candidate, inputs)
    want = interpret(spec, inputs, "oracle")
    working = interpret(spec, inputs, "working")
    return {
        "errors": {name: error(got[name], want[name]) for name in want},
        "yardstick": {name: error(working[name], want[name]) for name in want},
    }


def main() -> None:
    install_libdevice()
    for line in sys.stdin:
        print(json.dumps(case(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
