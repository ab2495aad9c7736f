"""A time estimate of a kernel: the roofline of its spec, and of the work that was counted when it ran on the simulator.

Never a measurement, and labelled so. The floor is peak rates of the ArchSpec over the least work of the spec
(kvc.cost); `counted` replaces least traffic by the bytes that the kernel really asked of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvc.arch import ArchSpec
from kvc.attention import Attention
from kvc.cost import bytes_moved, flops
from kvc.kernel import KernelSpec
from kvc.patterns import Contraction, match

#: Host and device time that any dependent launch costs, in microseconds.
LAUNCH_US = 3.0


def peak_flops(spec: KernelSpec, arch: ArchSpec) -> float:
    """Peak operations a second for the spec's main work: matrix cores where it is a contraction of a matrix dtype."""
    pattern = match(spec)
    if isinstance(pattern, Contraction | Attention):
        product = pattern.stmt if isinstance(pattern, Contraction) else pattern.scores
        kinds = {load.tensor: spec.dtype_of(load.tensor) for load in product.loads()}
        names = {kind.name for kind in kinds.values() if kind.is_float}
        if len(names) == 1 and (name := names.pop()) in dict(arch.peak_tflops):
            return arch.peak(name) * 1e12
    return arch.peak("f32_vector") * 1e12


def estimate(spec: KernelSpec, arch: ArchSpec, counters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Microseconds: `floor_us` no kernel for the spec can beat; `counted_us` from the traffic that was counted (absent
    without counters). `bound` says which rate decides the floor."""
    compute_us = flops(spec) / peak_flops(spec, arch) * 1e6
    memory_us = bytes_moved(spec) / (arch.hbm_gbps * 1e9) * 1e6
    result = {
        "kind": "estimate",
        "flops": flops(spec),
        "bytes": bytes_moved(spec),
        "bound": "compute" if compute_us > memory_us else "memory",
        "floor_us": round(max(compute_us, memory_us), 4),
    }
    traffic = counted_bytes(counters or {})
    if traffic:
        counted = max(compute_us, traffic / (arch.hbm_gbps * 1e9) * 1e6)
        launches = len((counters or {}).get("launches", ()))
        result["counted_bytes"] = traffic
        result["counted_us"] = round(counted + launches * LAUNCH_US, 4)
    return result


def counted_bytes(counters: Mapping[str, Any]) -> int:
    """Bytes that the launches of a run asked of global memory."""
    total = 0
    for launch in counters.get("launches", ()):
        counted = launch.get("counters", {})
        total += int(counted.get("global_read_bytes", 0)) + int(counted.get("global_write_bytes", 0))
    return total
