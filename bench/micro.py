"""`kvc bench micro`: single kernels on the CUDA device, each beside what torch runs in its place and the roofline.

Kernels are compiled for the device by the same emitters that write for gfx targets. Times are medians between device
events, kernel and baseline in turn, caches emptied before each. The floor is the least work of the spec over the peak
rates of the device's row (kvc.estimate): a bound by datasheet, not a measurement. Errors are of the whole output
against the baseline in float64, relative in the Euclidean norm.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec
from kvc.bench.cuda_module import Driven, compiled_for, device_row
from kvc.bench.micro_cases import CASES, Case
from kvc.bench.timing import interleaved, plain_precision
from kvc.cost import bytes_moved, flops
from kvc.diagnostics import KvcError
from kvc.dtypes import dtype
from kvc.emitter import Candidate, Compiled, Target, Task
from kvc.emitter import target as find_target
from kvc.estimate import estimate
from kvc.text import parse_kernel

if TYPE_CHECKING:
    import torch

COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench micro`. `names`: only cases whose name holds one of these; `settings`: how many
    settings of each kernel's space to time, the default one first (the best is reported beside it); `open`: only cases
    whose bar is not known to be met."""

    target: str = "triton"
    names: tuple[str, ...] = ()
    settings: int = 1
    open: bool = False
    numerics: str = "strict"
    seed: int = 0


def chosen_cases(request: Request) -> list[Case]:
    """The cases of a request, in order. KVC0102 where there is none."""
    chosen = [c for c in CASES if not request.names or any(n in c.name for n in request.names)]
    chosen = [c for c in chosen if c.open or not request.open]
    if not chosen:
        raise KvcError("KVC0102", "no such case", hint=f"one of: {', '.join(c.name for c in CASES)}")
    return chosen


def run(
    request: Request, say: Callable[[str], Any], keep: Callable[[dict[str, Any]], Any] = lambda result: None
) -> dict[str, Any]:
    """Times every case; KVC0601 without a CUDA device. Gives {"device", "baseline", "copy_gbps", "rows"}; `keep` gets
    that after each row, so that a run that is cut off leaves what it measured."""
    row = device_row()
    chosen = chosen_cases(request)
    baseline = plain_precision()
    bandwidth = copy_bandwidth()
    result: dict[str, Any] = {"device": row.name, "baseline": baseline, "copy_gbps": round(bandwidth, 1), "rows": []}
    say(f"a copy of {COPY_BYTES >> 20} MiB: {bandwidth:,.0f} GB/s, read and written")
    for case in chosen:
        record = _row(case, request, row, bandwidth)
        result["rows"].append(record)
        say(_line(record))
        keep(result)
    return result


def copy_bandwidth() -> float:
    """GB/s that a copy inside device memory moves, reads and writes together."""
    import torch

    source = torch.randn(COPY_BYTES // 4, device="cuda")
    to = torch.empty_like(source)
    times = interleaved({"copy": lambda: to.copy_(source)})["copy"]
    return 2 * COPY_BYTES / statistics.median(times) / 1e6


def _row(case: Case, request: Request, row: ArchSpec, bandwidth: float) -> dict[str, Any]:
    """Kernel and baseline of one case; {"error": ...} instead of times where no kernel can be had."""
    import torch

    spec = parse_kernel(case.text)
    task = Task(spec, row, request.numerics)
    floor = estimate(spec, row)
    record: dict[str, Any] = {"case": case.name, "group": case.group, "against": case.against, "bar": case.bar}
    record["roofline"] = {"bound": floor["bound"], "floor_ms": floor["floor_us"] / 1e3}
    inputs = _inputs(task, request.seed)
    found = _candidates(task, find_target(request.target), request)
    if not found:
        return record | {"error": "no emitter's kernel compiles"}
    baseline = _baseline(case, inputs)
    best: dict[str, Any] | None = None
    for candidate, compiled in found:
        call = KernelCall(candidate, compiled, inputs)
        times = interleaved({"baseline": baseline, "kvc": call})
        measured = _measured(case, candidate, times, bandwidth)
        if best is None:
            record |= measured | _errors(case, call, baseline, inputs)
        if best is None or measured["kvc_ms"] < best["kvc_ms"]:
            best = measured
        del call
    if best is not None and best["knobs"] != record["knobs"]:
        record["best_of"] = {"settings": len(found), **best}
    torch.cuda.empty_cache()
    return record


def _measured(case: Case, candidate: Candidate, times: dict[str, list[float]], bandwidth: float) -> dict[str, Any]:
    spec = candidate.task.spec
    mine, theirs = (statistics.median(times[name]) for name in ("kvc", "baseline"))
    rates = {"tflops": flops(spec) / mine / 1e9, "gbps": bytes_moved(spec) / mine / 1e6}
    of_copy = rates["gbps"] / bandwidth
    return {
        "schedule": candidate.schedule,
        "knobs": dict(candidate.knobs),
        "kvc_ms": mine,
        "baseline_ms": theirs,
        "spread_ms": [min(times["kvc"]), max(times["kvc"])],
        "speedup": theirs / mine,
        "of_copy": of_copy,
        "reached": of_copy if case.group == "memory" else theirs / mine,
        **rates,
    }


def _inputs(task: Task, seed: int) -> list[torch.Tensor]:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    spec = task.spec
    return [
        torch.randn(spec.shape_of(o.name), device="cuda", generator=generator).to(getattr(torch, o.dtype.torch_name))
        for o in spec.inputs
    ]


def _candidates(task: Task, target: Target, request: Request) -> list[tuple[Candidate, Compiled]]:
    """The first settings of the first emitter whose kernel compiles."""
    for emitter in target.emitters():
        if not emitter.supports(task).ok:
            continue
        found = []
        for knobs in emitter.space(task).configurations[: request.settings]:
            candidate = next(iter(emitter.propose(task, knobs, [], request.seed)))
            try:
                found.append((candidate, compiled_for(candidate, target, task.arch)))
            except KvcError as error:
                if error.code != "KVC0502":
                    raise
        if found:
            return found
    return []


def _baseline(case: Case, inputs: Sequence[torch.Tensor]) -> Callable[[], Any]:
    """The baseline as a call; of SDPA's backends the fastest."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not case.name.startswith("attention"):
        return lambda: case.baseline(*inputs)

    def with_backend(backend: SDPBackend) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return case.baseline(*inputs)

        return call

    usable: dict[str, Callable[[], Any]] = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        call = with_backend(backend)
        try:
            call()
        except RuntimeError:  # "No available kernel": this build or shape does not have it
            continue
        usable[str(backend)] = call
    torch.cuda.synchronize()
    times = interleaved(usable)
    return usable[min(times, key=lambda name: statistics.median(times[name]))]


def _errors(
    case: Case, call: KernelCall, baseline: Callable[[], Any], inputs: Sequence[torch.Tensor]
) -> dict[str, Any]:
    """Relative errors of kernel and baseline against the baseline in float64."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    call.poison()
    call()
    got, theirs = call.outputs[0], baseline()
    with sdpa_kernel(SDPBackend.MATH):
        parts = _batches(case, inputs)
        exact = torch.cat([case.baseline(*(x.double() for x in part)) for part in parts]) if parts else None
        if exact is None:
            exact = case.baseline(*(x.double() for x in inputs))
    norm = exact.norm()
    return {
        "error": float((got.double() - exact).norm() / norm),
        "baseline_error": float((theirs.double() - exact).norm() / norm),
    }


def _batches(case: Case, inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Attention batch by batch: its scores in float64 do not fit at once."""
    if not case.name.startswith("attention"):
        return []
    return [[x[i : i + 1] for x in inputs] for i in range(inputs[0].shape[0])]


class KernelCall:
    """A compiled candidate on CUDA tensors: calling it enqueues its launches on torch's current stream."""

    def __init__(self, candidate: Candidate, compiled: Compiled, inputs: Sequence[torch.Tensor]) -> None:
        import torch

        spec = candidate.task.spec
        kinds = {o.name: o.dtype for o in spec.outputs}
        buffers = {o.name: x for o, x in zip(spec.inputs, inputs, strict=True)}
        self.outputs = []
        for name, kind in kinds.items():
            self.outputs.append(torch.empty(spec.shape_of(name), dtype=getattr(torch, kind.torch_name), device="cuda"))
            buffers[name] = self.outputs[-1]
        for scratch in candidate.workspace:
            kind = getattr(torch, dtype(scratch.dtype).torch_name)
            buffers[scratch.name] = torch.empty(scratch.numel, dtype=kind, device="cuda")
        self._buffers = buffers
        self._driven = Driven()
        self._launches = [self._prepared(launch, compiled) for launch in candidate.launches]

    def _prepared(self, launch: Any, compiled: Compiled) -> tuple[Any, ...]:
        code = compiled.objects[launch.kernel]
        function = self._driven.function(code.binary, launch.kernel, launch.dynamic_lds + code.lds_bytes)
        addresses = [self._buffers[name].data_ptr() for name in launch.args] + [0] * code.extra_pointers
        values = (ctypes.c_uint64 * len(addresses))(*addresses)
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(addresses))(*range(start, start + 8 * len(addresses), 8))
        return function, launch.grid, launch.block, launch.dynamic_lds + code.lds_bytes, pointers, values

    def __call__(self) -> None:
        import torch

        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for function, grid, block, shared, pointers, _ in self._launches:
            self._driven.driver.call("cuLaunchKernel", function, *grid, *block, shared, stream, pointers, None)

    def poison(self) -> None:
        """Fill the outputs with NaN, so that what is not written shows."""
        for out in self.outputs:
            out.fill_(float("nan") if out.is_floating_point() else -1)


# ---------------------------------------------------------------- the table


def _line(record: dict[str, Any]) -> str:
    if "kvc_ms" not in record:
        return f"{record['case']}: {record['error']}"
    rate = f"{record['gbps']:,.0f} GB/s" if record["group"] == "memory" else f"{record['tflops']:,.1f} TFLOP/s"
    against = "of a copy" if record["group"] == "memory" else f"x {record['against']}"
    text = (
        f"{record['case']}: {record['kvc_ms']:.4f} ms, {rate}, {record['reached']:.3f} {against} (bar {record['bar']})"
    )
    text += f", error {record['error']:.2e} (baseline {record['baseline_error']:.2e})"
    if "best_of" in record:
        best = record["best_of"]
        text += f"; best of {best['settings']}: {best['kvc_ms']:.4f} ms, {best['reached']:.3f}, {best['knobs']}"
    return text


def markdown(result: dict[str, Any]) -> str:
    """The result as a table."""
    device = result["baseline"]["device"]
    lines = [
        f"Measured on one {device}, torch {result['baseline']['torch']}, TF32 off; a copy moves "
        f"{result['copy_gbps']:,.0f} GB/s (read and written).",
        "",
        "| kernel | schedule | ms | rate | baseline | baseline ms | speedup | of a copy | of the roofline | error "
        "| baseline's error | bar |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in result["rows"]:
        if "kvc_ms" not in r:
            lines.append(f"| {r['case']} | {r['error']} |" + " |" * 10)
            continue
        memory = r["group"] == "memory"
        rate = f"{r['gbps']:,.0f} GB/s" if memory else f"{r['tflops']:,.1f} TFLOP/s"
        share = r["roofline"]["floor_ms"] / r["kvc_ms"]
        met = "met" if r["reached"] >= r["bar"] else "missed"
        copied = f"{r['of_copy']:.2f}" if memory else ""
        lines.append(
            f"| {r['case']} | {r['schedule']} | {r['kvc_ms']:.4f} | {rate} | {r['against']} | {r['baseline_ms']:.4f} "
            f"| {r['speedup']:.2f} | {copied} | {share:.2f} | {r['error']:.1e} | {r['baseline_error']:.1e} "
            f"| {r['bar']:.2f} {met} |"
        )
    return "\n".join(lines) + "\n"


__all__ = ["KernelCall", "Request", "copy_bandwidth", "markdown", "run"]
