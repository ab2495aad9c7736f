"""The time stage: full size on a CUDA device. The suite's criterion first, then the translation against eager and
torch.compile, interleaved in one process on the same inputs, and the outputs compared once more at the end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvc.bench.criterion import compare
from kvc.bench.cuda_module import device_row, module_on_cuda, translation
from kvc.bench.stages import Work, check_reference, conclude, inputs_of
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target
from kvc.timing import interleave, summary

if TYPE_CHECKING:
    import torch
    from kvc.frontends.fx.capture import Captured
    from kvc.frontends.fx.load import Loaded
    from kvc.plan import Plan

WARMUP = 3
ROUNDS = (10, 100)  # at least, at most
BUDGET_S = 4.0  # of timed rounds
_FLUSH_BYTES = 256 << 20  # several times the largest last-level cache

Call = Callable[[], Any]


def plain_precision() -> dict[str, Any]:
    """Switch TF32 off for every baseline, and say so."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
    }


def measure_on_cuda(work: Work, captured: Captured, loaded: Loaded, plan: Plan) -> None:
    """Adds "criterion", "launches" and "times" to the record. The problem was loaded and captured on the GPU."""
    import torch

    row = device_row()
    work.record["baseline"] = plain_precision()
    usable = check_reference(work, loaded)
    with work.timed("kernels"):
        done = translation(captured, plan, find_target(work.job["target"]), row, work.job["seed"])
        work.record["schedules"] = [a.candidate.schedule for a in done.artifacts]
    with module_on_cuda(work.folder / "out", done, loaded) as ours, torch.no_grad():
        with work.timed("criterion"):
            passed = conclude(work, loaded, lambda inputs: ours(*inputs), usable)
        if not passed:
            return
        with work.timed("time"):
            work.record["times"] = _times(loaded.module, ours, inputs_of(work, loaded)())
    if plan.fallbacks:
        work.record["status"] = "failed"
        raise KvcError("KVC0203", f"{len(plan.fallbacks)} eager fallbacks")


def _times(original: torch.nn.Module, ours: torch.nn.Module, inputs: list[Any]) -> dict[str, Any]:
    """{"eager" | "compile" | "kvc": {"median_ms", "rounds", ...}}; a baseline that does not compile is left out."""
    import torch

    calls: dict[str, Call] = {"eager": lambda: original(*inputs), "kvc": lambda: ours(*inputs)}
    torch._dynamo.config.allow_rnn = True
    torch._dynamo.reset()
    compiled = torch.compile(original)
    try:
        compiled(*inputs)
    except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
        failed = f"{type(error).__name__}: {str(error)[:200]}"
    else:
        failed = ""
        calls["compile"] = lambda: compiled(*inputs)
    samples = interleaved(calls)
    times: dict[str, Any] = {name: summary(ms) for name, ms in samples.items()}
    for name, call in calls.items():
        times[name]["launches"] = launches(call)
    if failed:
        times["compile_failed"] = failed
    expected, got = original(*inputs), ours(*inputs)
    times["again"] = compare(expected, got)[1] or "equal"
    return times


def launches(call: Call) -> int:
    """Kernels that one call launches, as the profiler sees them: copies and fills of memory aside."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events() or () if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


def interleaved(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Milliseconds of each call between device events: one of each in turn, caches emptied before each."""
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(WARMUP):
        for call in calls.values():
            call()
    torch.cuda.synchronize()

    def sample(name: str) -> float:
        flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = calls[name]()
        stop.record()
        torch.cuda.synchronize()
        del result
        return float(start.elapsed_time(stop))

    samples = interleave(list(calls), sample, *ROUNDS, BUDGET_S)
    gc.collect()
    return samples
