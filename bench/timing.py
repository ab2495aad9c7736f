"""The time stage: full size on a CUDA device. The suite's criterion first, then the translation against eager and
torch.compile, interleaved in one process on the same inputs, and the outputs compared once more at the end. Several
problems may be at work: they compile beside each other, and take times alone (kvc.bench.turns)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kvc.bench.criterion import compare
from kvc.bench.cuda_module import device_row, module_on_cuda, translation
from kvc.bench.stages import Work, check_reference, conclude, inputs_of
from kvc.bench.turns import alone, beside
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


def device_of(job: Mapping[str, Any]) -> Device:
    """What takes the times of a job."""
    return CudaDevice()


def measure_on_cuda(work: Work, captured: Captured, loaded: Loaded, plan: Plan) -> None:
    """Adds "criterion", "launches" and "times" to the record. The problem was loaded and captured on the GPU."""
    import torch

    row = device_row()
    work.record["baseline"] = plain_precision()
    with beside():
        usable = check_reference(work, loaded)
    with work.timed("kernels"):
        done = translation(captured, plan, find_target(work.job["target"]), row, work.job["seed"])
        work.record["schedules"] = [a.candidate.schedule for a in done.artifacts]
    with module_on_cuda(work.folder / "out", done, loaded) as ours, torch.no_grad():
        with work.timed("criterion"), beside():
            passed = conclude(work, loaded, lambda inputs: ours(*inputs), usable)
        if not passed:
            return
        with work.timed("time"):
            work.record["times"] = times(
                loaded.module, ours, inputs_of(work, loaded)(), device_of(work.job), tuple(work.job["baselines"]),
                generated={launch.kernel for a in done.artifacts for launch in a.candidate.launches},
            )  # fmt: skip
    if plan.fallbacks:
        work.record["status"] = "failed"
        raise KvcError("KVC0203", f"{len(plan.fallbacks)} eager fallbacks")


#: What torch.compile is asked for, by the baseline's name.
MODES: dict[str, dict[str, str]] = {"compile": {}, "max_autotune": {"mode": "max-autotune"}}
BASELINES = ("eager", *MODES)


class Device(Protocol):
    """What times calls. `sample` runs one once and gives milliseconds; `kernels` names what one call launches, copies
    and fills of memory aside."""

    def sample(self, call: Call) -> float: ...

    def kernels(self, call: Call) -> list[str]: ...


def compiled(original: torch.nn.Module, baseline: str) -> Call:
    """The original by torch.compile, as a baseline is compiled."""
    import torch

    options: dict[str, Any] = dict(MODES[baseline])
    made: Call = torch.compile(original, **options)
    return made


def times(
    original: torch.nn.Module,
    ours: Call,
    inputs: Sequence[Any],
    device: Device,
    baselines: Sequence[str] = BASELINES,
    compile_as: Callable[[torch.nn.Module, str], Call] = compiled,
    generated: Collection[str] = (),
) -> dict[str, Any]:
    """{"kvc" and each baseline: {"median_ms", "rounds", "launches", "generated", "external", ...}}. Baselines that do
    not compile are named in "not_compiled", with what torch said. `generated` are the names of kvc's own kernels."""
    import torch

    calls: dict[str, Call] = {"kvc": lambda: ours(*inputs)}
    failed: dict[str, str] = {}
    torch._dynamo.config.allow_rnn = True
    torch._dynamo.reset()
    for name in baselines:
        function = original if name == "eager" else compile_as(original, name)
        try:
            function(*inputs)
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            calls[name] = partial(function, *inputs)
    samples = interleaved(calls, device)
    found: dict[str, Any] = {name: summary(ms) for name, ms in samples.items()}
    for name, call in calls.items():
        found[name] |= launches(device.kernels(call), generated if name == "kvc" else ())
    if failed:
        found["not_compiled"] = failed
    found["again"] = compare(original(*inputs), ours(*inputs))[1] or "equal"
    return found


def launches(names: Sequence[str], generated: Collection[str] = ()) -> dict[str, int]:
    """How many kernels a call launches, and how many of them a compiler wrote: those named in `generated`, and
    Inductor's, which begin with "triton_". All others belong to a library or to torch."""
    own = sum(name in generated or name.startswith("triton_") for name in names)
    return {"launches": len(names), "generated": own, "external": len(names) - own}


def interleaved(calls: Mapping[str, Call], device: Device | None = None) -> dict[str, list[float]]:
    """Milliseconds of each call: one of each in turn, alone on the CUDA device where no other is given."""
    device = device or CudaDevice()
    with alone():
        for _ in range(WARMUP):
            for call in calls.values():
                call()
        samples = interleave(list(calls), lambda name: device.sample(calls[name]), *ROUNDS, BUDGET_S)
    gc.collect()
    return samples


class CudaDevice:
    """Times between events of the current CUDA device, caches emptied before each call."""

    def __init__(self) -> None:
        import torch

        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def sample(self, call: Call) -> float:
        import torch

        self._flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = call()
        stop.record()
        torch.cuda.synchronize()
        del result
        return float(start.elapsed_time(stop))

    def kernels(self, call: Call) -> list[str]:
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            call()
            torch.cuda.synchronize()
        names = [e.name for e in seen.events() or () if e.device_type == torch.autograd.DeviceType.CUDA]
        return [name for name in names if not name.startswith(("Memcpy", "Memset"))]
