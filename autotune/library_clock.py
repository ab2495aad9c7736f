"""Runs and times vendor-library calls beside verified kernels: `python -m kvc.autotune.library_clock`, and the side
that drives it. One process holds both, since only then can they take turns."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvc.autotune.timer import BUDGET_S, ROUNDS, TIMEOUT_S, WARMUP, DeviceClock, main
from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan
from kvc.library_forms import LibraryForm
from kvc.records import diagnostic_from_json
from kvc.timing import interleave
from kvc.verify.frames import Frame
from kvc.verify.worker import body_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from kvc.kernel import KernelSpec

FLUSH_BYTES = 256 << 20
LIBRARY, KERNEL = "library", "kernel"


class LibraryClock(DeviceClock):
    """Library calls on the device of an executor. KVC0604 when the process dies, KVC0603 when a call fails."""

    program = "kvc.autotune.library_clock"

    def __init__(self, executor: str, arch: str, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(executor, arch, timeout_s)
        self._facts: dict[str, str] = {}

    def facts(self) -> dict[str, str]:
        if not self._facts:
            self._facts = self._answered(Frame({"ask": "facts"})).body["facts"]
        return self._facts

    def outputs(self, form: LibraryForm, spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        from kvc.verify.buffers import pack, unpack

        arrays = {name: pack(inputs[name], spec.strides_of(name)) for name in form.inputs}
        out = spec.outputs[0]
        answer = self._answered(Frame({"ask": "run", **_body(form, spec)}, arrays))
        return unpack(answer.arrays["out"], out.dtype, spec.shape_of(out.name), spec.strides_of(out.name))

    def contest(  # type: ignore[override]
        self,
        form: LibraryForm,
        spec: KernelSpec,
        plans: Sequence[LaunchPlan],
        buffers: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> tuple[float, float]:
        body: dict[str, Any] = {"ask": "time", "executor": self.executor, "arch": self.arch, "outputs": sorted(outputs)}
        body |= _body(form, spec)
        body["plans"] = [{**body_of(plan, 0), "object": f"o{n}"} for n, plan in enumerate(plans)]
        blobs = {f"o{n}": plan.binary for n, plan in enumerate(plans)}
        samples = self._answered(Frame(body, buffers, blobs)).body["samples"]
        return statistics.median(samples[LIBRARY]), statistics.median(samples[KERNEL])

    def _answered(self, frame: Frame) -> Frame:
        answer = self._ask(frame)
        if "error" in answer.body:
            found = diagnostic_from_json(answer.body["error"])
            raise KvcError(found.code, found.message, found.location, found.hint, **found.details)
        return answer


def _body(form: LibraryForm, spec: KernelSpec) -> dict[str, Any]:
    kinds = {name: spec.operand[name].dtype.torch_name for name in form.inputs}
    return {"name": form.name, "source": form.source, "inputs": list(form.inputs), "dtypes": kinds}


# ---------------------------------------------------------------- in the process


def answer(frame: Frame) -> Frame:
    """Facts, one run, or a contest."""
    body = frame.body
    try:
        if body["ask"] == "facts":
            return Frame({"facts": device_facts()})
        if body["ask"] == "run":
            return Frame({}, {"out": _bytes(_call(body, frame.arrays, device())())})
        return Frame({"samples": _contest(frame)})
    except KvcError as error:
        return Frame({"error": error.diagnostic.to_json()})
    except (RuntimeError, ValueError) as error:  # what torch raises for a call that the device or the library refuses
        return Frame({"error": KvcError("KVC0603", f"{body.get('name', 'torch')}: {error}").diagnostic.to_json()})


def device() -> str:
    """torch's name of the device. KVC0601 where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        raise KvcError("KVC0601", "this torch sees no GPU", hint="install the build of torch for this machine's GPU")
    return "cuda"


def device_facts() -> dict[str, str]:
    """What decides how fast a library is: the device, and the versions of torch and of what it calls."""
    import torch

    facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name(device())}
    dnn = torch.backends.cudnn.version()
    if torch.version.hip is not None:
        return facts | {"hip": str(torch.version.hip), "miopen": str(dnn)}
    return facts | {"cuda": str(torch.version.cuda), "cudnn": str(dnn)}


def _call(body: Mapping[str, Any], arrays: Mapping[str, np.ndarray], on: str) -> Any:
    """The library call on tensors of the device, as a function of nothing."""
    import torch
    from kvc.library import function_of

    form = LibraryForm(body["name"], "", (), tuple(body["inputs"]), body["source"])
    function = function_of(form)
    given = [torch.from_numpy(arrays[n]).to(on).view(getattr(torch, body["dtypes"][n])) for n in form.inputs]

    def run() -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = function(*given)
        return result

    return run


def _bytes(result: torch.Tensor) -> np.ndarray:
    """The memory of a result, strides and all: its elements lie densely in it, or the gaps hold nothing."""
    from kvc.verify.buffers import pack

    return pack(result.cpu(), tuple(result.stride()))


def _contest(frame: Frame) -> dict[str, list[float]]:
    """Milliseconds of both sides by turns, caches emptied before each."""
    from kvc.executors import executor

    body = frame.body
    plans = [
        LaunchPlan(
            frame.blobs[item["object"]], "", item["kernel"], tuple(item["grid"]), tuple(item["block"]),
            item["dynamic_lds"], tuple((kind, value) for kind, value in item["args"]),
        )
        for item in body["plans"]
    ]  # fmt: skip
    runner: Any = executor(body["executor"], body["arch"])
    buffers, outputs = frame.arrays, body["outputs"]
    with (
        runner,
        runner.contestants({KERNEL: plans}, buffers, outputs=outputs) as kernel,
        _timed_calls(frame) as library,
    ):
        sides = {LIBRARY: lambda: library(), KERNEL: lambda: kernel(KERNEL)}
        for _ in range(WARMUP):
            for run in sides.values():
                run()
        return interleave(list(sides), lambda side: sides[side](), *ROUNDS, BUDGET_S)


@contextmanager
def _timed_calls(frame: Frame) -> Iterator[Any]:
    """A call that runs the library once and gives the device's milliseconds."""
    import torch

    call = _call(frame.body, frame.arrays, device())
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device())
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        scratch.fill_(255)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop))

    yield sample


if __name__ == "__main__":
    main(answer)
