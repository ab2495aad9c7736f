"""Between tensors in logical shape and the flat buffers that kernels see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvc.diagnostics import KvcError
from kvc.dtypes import DType, dtype
from kvc.emitter import Candidate, Compiled
from kvc.executor import UNWRITTEN_BYTE, Argument, LaunchPlan
from kvc.kernel import KernelSpec, Operand

if TYPE_CHECKING:
    import numpy as np
    import torch

#: A buffer whose layout reaches further than this many bytes is held in segments, with nothing between them.
SPARSE_BYTES = 1 << 30
_SEGMENT_STRIDE = 1 << 22  # bytes from which on a dimension separates segments
_MOST_SEGMENTS = 1 << 12


def segments(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> list[tuple[int, tuple[int, ...]]] | None:
    """(offset in elements, index into the dimensions that are taken apart) of each segment of a layout with gaps too
    large to hold: (0, ()) alone for a layout of ordinary size, None for one that cannot be taken apart."""
    if storage_numel(shape, strides) * itemsize <= SPARSE_BYTES:
        return [(0, ())]
    far = far_dims(strides, itemsize)
    count = math.prod(shape[d] for d in far)
    near = storage_numel(*_rest(shape, strides, far)) * itemsize
    if not far or count > _MOST_SEGMENTS or near > SPARSE_BYTES:
        return None
    places = itertools.product(*(range(shape[d]) for d in far))
    return [(sum(i * strides[d] for i, d in zip(place, far, strict=True)), place) for place in places]


def far_dims(strides: tuple[int, ...], itemsize: int) -> list[int]:
    return [d for d, stride in enumerate(strides) if stride * itemsize >= _SEGMENT_STRIDE]


def _rest(shape: tuple[int, ...], strides: tuple[int, ...], far: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    near = [d for d in range(len(shape)) if d not in far]
    return tuple(shape[d] for d in near), tuple(strides[d] for d in near)


def segment_name(name: str, offset: int) -> str:
    """The key of the part of buffer `name` that starts `offset` bytes into it."""
    return f"{name}@{offset}" if offset else name


def base_name(key: str) -> str:
    """The buffer that a key belongs to."""
    return key.partition("@")[0]


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
    buffers: dict[str, np.ndarray] = {}
    for operand in spec.inputs:
        for offset, place, strides in _parts(spec, operand.name):
            part = inputs[operand.name][_select(spec, operand.name, place)]
            buffers[segment_name(operand.name, offset)] = pack(part, strides)
    fresh: dict[str, int] = {}
    for out in spec.outputs:
        if buffer_of(spec, out.name) == out.name:
            for offset, place, strides in _parts(spec, out.name):
                shape = tuple(n for n, i in zip(spec.shape_of(out.name), place, strict=True) if i is None)
                fresh[segment_name(out.name, offset)] = storage_numel(shape, strides) * out.dtype.bytes
    for scratch in candidate.workspace:
        fresh[scratch.name] = scratch.numel * dtype(scratch.dtype).bytes
    for name, nbytes in fresh.items():
        buffers[name] = np.full(nbytes, UNWRITTEN_BYTE, np.uint8)
    return buffers, set(fresh)


def _parts(spec: KernelSpec, name: str) -> list[tuple[int, tuple[int | None, ...], tuple[int, ...]]]:
    """(offset in bytes, index of each dimension or None where all of it is inside, strides inside) of each segment of
    an operand's buffer. KVC0302 for a layout of gigabytes that cannot be taken apart."""
    shape, strides, itemsize = spec.shape_of(name), spec.strides_of(name), spec.operand[name].dtype.bytes
    found = segments(shape, strides, itemsize)
    if found is None:
        raise KvcError("KVC0302", f"{name} spans {storage_numel(shape, strides) * itemsize:,} bytes, too many to run")
    if found == [(0, ())]:
        return [(0, (None,) * len(shape), strides)]
    far = far_dims(strides, itemsize)
    inner = _rest(shape, strides, far)[1]
    parts: list[tuple[int, tuple[int | None, ...], tuple[int, ...]]] = []
    for offset, place in found:
        at = dict(zip(far, place, strict=True))
        parts.append((offset * itemsize, tuple(at.get(d) for d in range(len(shape))), inner))
    return parts


def _select(spec: KernelSpec, name: str, place: tuple[int | None, ...]) -> tuple[int | slice, ...]:
    return tuple(slice(None) if i is None else i for i in place)


def outputs_of(spec: KernelSpec, buffers: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Outputs in logical shape."""
    return {o.name: _output(spec, o, buffers) for o in spec.outputs}


def _output(spec: KernelSpec, out: Operand, buffers: Mapping[str, np.ndarray]) -> torch.Tensor:
    import torch

    shape, parts = spec.shape_of(out.name), _parts(spec, out.name)
    buffer = buffer_of(spec, out.name)
    if len(parts) == 1:
        return unpack(buffers[buffer], out.dtype, shape, spec.strides_of(out.name))
    whole = torch.empty(shape, dtype=getattr(torch, out.dtype.torch_name))
    for offset, place, strides in parts:
        inner = tuple(n for n, i in zip(shape, place, strict=True) if i is None)
        raw = buffers[segment_name(buffer, offset)]
        whole[_select(spec, out.name, place)] = unpack(raw, out.dtype, inner, strides)
    return whole


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
