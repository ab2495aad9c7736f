"""What is done with one problem, in a process of its own: JSON in, JSON out.

    plan      reduce the sizes, capture, lower, cut into kernels
    verify    and write, verify and assemble the kernels, by kvc's verifier and by the suite's criterion
    time      on a CUDA device at full size: the suite's criterion, then times against eager and torch.compile

A record's status: "passed", "failed" (with the diagnostic's code and what it says), or "reference" where the original
proves nothing: it fails against itself, a constant passes for it, or its own rounding exceeds the suite's tolerance.
The last is never counted as a success.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.bench.criterion import Run, beyond_its_dtype, run_trials, self_test
from kvc.bench.measure import FAILURES
from kvc.bench.reduce import Budget
from kvc.bench.sizes import reduced_source
from kvc.diagnostics import KvcError

if TYPE_CHECKING:
    from kvc.frontends.fx.load import Loaded
    from kvc.plan import Plan

STAGES = ("plan", "verify", "time")


@dataclass
class Work:
    """A problem on its way through the stages, and what is known of it so far."""

    job: Mapping[str, Any]
    record: dict[str, Any]
    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        self.record["reached"] = stage
        try:
            yield
        finally:
            self.seconds[stage] = round(time.monotonic() - started, 2)


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a problem. The job: "file", "stage", "target", "arch", "executor", "seed", "full_size", "budget",
    "trials", "timeout_s"."""
    return recorded(job, _run)


def recorded(job: Mapping[str, Any], do: Callable[[Work], None]) -> dict[str, Any]:
    """The record that `do` makes of a job in a folder of its own; a KvcError is its failure."""
    record: dict[str, Any] = {"status": "failed"}
    with tempfile.TemporaryDirectory(prefix="kvc-bench-") as folder:
        work = Work(job, record, Path(folder))
        try:
            do(work)
        except KvcError as error:
            found = error.diagnostic
            record["failure"] = {"code": found.code, "message": found.message, "at": str(found.location or "")}
    record["seconds"] = work.seconds
    return record


def _run(work: Work) -> None:
    if work.job["stage"] == "time":
        from kvc.bench.cuda_module import device_row

        work.record["device"] = device_row().name
    loaded = _load(work)
    with work.timed("capture"):
        from kvc.frontends.fx.capture import capture_loaded

        captured = capture_loaded(loaded, mode="train")
        work.record["nodes"] = len(captured.graph.nodes)
    with work.timed("plan"):
        from kvc.emitter import composites
        from kvc.emitter import target as find_target
        from kvc.pipeline_graph import plan as plan_graph

        plan = plan_graph(captured.graph, composites(find_target(work.job["target"])))
        work.record |= described(plan)
    if work.job["stage"] == "plan":
        work.record["status"] = "failed" if plan.fallbacks else "passed"
        if plan.fallbacks:
            raise fallback_error(plan)
        return
    if work.job["stage"] == "verify":
        from kvc.bench.verifying import verify

        verify(work, captured, loaded, plan)
    else:
        from kvc.bench.timing import measure_on_cuda

        measure_on_cuda(work, captured, loaded, plan)


def _load(work: Work) -> Loaded:
    """The problem, at reduced sizes unless full ones are asked for."""
    from kvc.frontends.fx.load import load

    path = Path(work.job["file"])
    source = path.read_text(encoding="utf-8")
    if not work.job["full_size"]:
        with work.timed("reduce"):
            try:
                source, work.record["sizes"] = reduced_source(source, str(path), Budget(**work.job["budget"]))
            except (*FAILURES, ImportError) as error:
                raise KvcError(
                    "KVC0102", f"{path.name}: {type(error).__name__}: {error}",
                    hint="install what the suite needs (requirements.txt of the checkout)",
                ) from None  # fmt: skip
    file = work.folder / path.name
    file.write_text(source, encoding="utf-8")
    with work.timed("load"), where_it_runs(work.job):
        return load(str(file), int(work.job["seed"]))


def where_it_runs(job: Mapping[str, Any]) -> Any:
    """The device on which the problem's own code makes its tensors."""
    import torch

    return torch.device("cuda" if job["stage"] == "time" else "cpu")


def described(plan: Plan) -> dict[str, Any]:
    """A plan in figures: launches of generated kernels, distinct ones, fallbacks by operator."""
    return {
        "kernels": len(plan.launches),
        "once": len(plan.prologue),
        "distinct": len(plan.kernels),
        "fallbacks": [{"op": f.node.op, "reason": f.reason, "at": str(f.node.loc or "")} for f in plan.fallbacks],
    }


def fallback_error(plan: Plan) -> KvcError:
    """The diagnostic for a plan that runs operators eagerly."""
    ops = ", ".join(dict.fromkeys(f.node.op for f in plan.fallbacks))
    return KvcError("KVC0203", f"{len(plan.fallbacks)} eager fallbacks: {ops}", plan.fallbacks[0].node.loc)


def check_reference(work: Work, loaded: Loaded) -> bool:
    """Whether the original is a reference at all; says in the record why it is not."""
    with work.timed("reference"):
        trials, reason = self_test(loaded.module, inputs_of(work, loaded))
    work.record["reference"] = {"self": trials.to_json(), "degenerate": reason}
    if not trials.ok:
        work.record["reference"]["degenerate"] = f"fails against itself ({trials.reason})"
    return trials.ok and not reason


def inputs_of(work: Work, loaded: Loaded) -> Callable[[], list[Any]]:
    """The problem's get_inputs, on the device of the stage."""
    get_inputs = vars(sys.modules[type(loaded.module).__module__])["get_inputs"]

    def inputs() -> list[Any]:
        with where_it_runs(work.job):
            return list(get_inputs())

    return inputs


def conclude(work: Work, loaded: Loaded, candidate: Run, usable: bool) -> bool:
    """Run the suite's criterion and set the record's status; whether all trials passed. KVC0709 where the candidate is
    at fault."""
    get_inputs = inputs_of(work, loaded)

    def original(inputs: Any) -> Any:
        return loaded.module(*inputs)

    trials, _ = run_trials(original, candidate, get_inputs, work.job["trials"])
    work.record["criterion"] = trials.to_json()
    if usable and not trials.ok:
        reason = beyond_its_dtype(original, candidate, loaded.module, get_inputs)
        work.record["reference"]["degenerate"] = reason
        usable = not reason
    if not usable:
        work.record["status"] = "reference"
    elif trials.ok:
        work.record["status"] = "passed"
    else:
        raise KvcError(
            "KVC0709", f"{trials.passed} of {trials.total} trials pass the suite's criterion: {trials.reason}"
        )
    return trials.ok


def digest(path: Path) -> str:
    """Identity of a problem's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
