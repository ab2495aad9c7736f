"""Between tensors in logical shape and the flat buffers that kernels see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvc.dtypes import DType, dtype
from kvc.emitter import Candidate, Compiled
from kvc.executor import UNWRITTEN_BYTE, Argument, LaunchPlan
from kvc.kernel import KernelSpec

if TYPE_CHECKING:
    import numpy as np
    import torch


def storage_numel(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one that the layout reaches."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def pack(tensor: torch.Tensor, strides: tuple[int, ...]) -> np.ndarray:
    """The flat bytes of `tensor` laid out with `strides` (elements); gaps hold UNWRITTEN_BYTE."""
    import torch

    numel = storage_numel(tuple(tensor.shape), strides)
    flat = torch.empty(numel, dtype=tensor.dtype)
    flat.view(torch.uint8).fill_(UNWRITTEN_BYTE)
    if numel:
        flat.as_strided(tensor.shape, strides).copy_(tensor)
    return flat.view(torch.uint8).numpy()


def unpack(raw: np.ndarray, kind: DType, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The logical view of flat bytes."""
    import torch

    flat = torch.from_numpy(raw.reshape(-1)).view(getattr(torch, kind.torch_name))
    return flat.as_strided(shape, strides) if flat.numel() else flat.reshape(shape)


def buffer_of(spec: KernelSpec, name: str) -> str:
    """The buffer that an operand lives in: that of the input which an output aliases, else its own."""
    operand = spec.operand.get(name)
    return operand.alias if operand is not None and operand.alias else name


def bind(candidate: Candidate, inputs: Mapping[str, torch.Tensor]) -> tuple[dict[str, np.ndarray], set[str]]:
    """Buffers of one call by name, and which of them hold nothing yet (outputs and workspace)."""
    import numpy as np

    spec = candidate.task.spec
    buffers = {o.name: pack(inputs[o.name], spec.strides_of(o.name)) for o in spec.inputs}
    fresh: dict[str, int] = {}
    for out in spec.outputs:
        if buffer_of(spec, out.name) == out.name:
            numel = storage_numel(spec.shape_of(out.name), spec.strides_of(out.name))
            fresh[out.name] = numel * out.dtype.bytes
    for scratch in candidate.workspace:
        fresh[scratch.name] = scratch.numel * dtype(scratch.dtype).bytes
    for name, nbytes in fresh.items():
        buffers[name] = np.full(nbytes, UNWRITTEN_BYTE, np.uint8)
    return buffers, set(fresh)


def outputs_of(spec: KernelSpec, buffers: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Outputs in logical shape."""
    return {
        o.name: unpack(buffers[buffer_of(spec, o.name)], o.dtype, spec.shape_of(o.name), spec.strides_of(o.name))
        for o in spec.outputs
    }


def launch_plans(candidate: Candidate, compiled: Compiled) -> list[LaunchPlan]:
    """The launches of a compiled candidate; `#axis` arguments become the extent, pointers that the compiler appended
    are null."""
    spec = candidate.task.spec
    plans = []
    for launch in candidate.launches:
        obj = compiled.objects[launch.kernel]
        args: list[Argument] = []
        for name in launch.args:
            args.append(("i64", spec.extent(name[1:])) if name.startswith("#") else ("buffer", buffer_of(spec, name)))
        args += [("i64", 0)] * obj.extra_pointers
        lds = launch.dynamic_lds + obj.lds_bytes
        plans.append(LaunchPlan(obj.binary, obj.asm, launch.kernel, launch.grid, launch.block, lds, tuple(args)))
    return plans
