"""`kvc bench dynamo`: small models through `torch.compile(backend="kvc")`, each in a process of its own.

Outputs in evaluation, and losses, gradients and parameters over three steps of training, are compared with float64: a
result passes within TOLERANCE of its magnitude, or within twice eager's own error. On a machine without a GPU kernels
run on the simulator; on one with a GPU a model is timed as well, in turns with eager mode and Inductor.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.bench import dynamo_models
from kvc.bench.dynamo_models import Row, rows
from kvc.bench.runner import Item, Runner, written
from kvc.bench.stages import Work, recorded
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target

if TYPE_CHECKING:
    import torch
    from kvc.dynamo import GraphReport

STEPS = 3
RATE = 0.05
TOLERANCE = 1e-4  # of the largest magnitude of the reference, per tensor
FLOOR = 1e-3  # of the largest magnitude of all: a gradient that is zero but for rounding has no digits to compare
TABLE = "dynamo.md"

Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench dynamo`. `models` empty: all; `device` "cpu" (the simulator) or "cuda"."""

    out: Path
    target: str
    arch: str
    device: str = "cpu"
    models: frozenset[str] = frozenset()
    mode: str = "all"  # "eval", "train", "all"
    seed: int = 0
    jobs: int = 2
    timeout_s: float = 900.0
    retry: bool = False


def run(request: Request, say: Any, show_progress: bool) -> dict[str, Any]:
    """Run what is not in the journal yet; writes results.jsonl, table.json, table.md and dynamo.md to `request.out`,
    and gives the table. KVC0106 where nothing is left to run, KVC0601 for a device that is not here."""
    import torch

    find_target(request.target)
    if request.device == "cuda" and not torch.cuda.is_available():
        raise KvcError("KVC0601", "no GPU for --device cuda", hint="leave --device out to run on the simulator")
    settings = {"target": request.target, "arch": request.arch, "device": request.device, "seed": request.seed}
    items = [
        Item(f"{row.name}/{mode}", mode, row.name, digest(row), {"row": row.name, "mode": mode})
        for mode in ("eval", "train")
        for row in rows(request.models)
        if request.mode in (mode, "all") and (mode == "eval" or row.train) and find_spec(row.entry.library) is not None
    ]
    if not items:
        raise KvcError("KVC0106", "no model to run", hint="install transformers, or choose other models")
    # A GPU's context does not survive a fork.
    runner = Runner("kvc.bench.dynamo:one", settings, request.out, request.timeout_s, request.device == "cpu", "models")
    records = runner.run(items, request.jobs, request.retry, say, show_progress)
    title = f"torch.compile, {request.target} for {request.arch}, on {request.device}"
    summary = written(request.out, title, records, len(items), group="mode")
    (request.out / TABLE).write_text(markdown(title, records), encoding="utf-8")
    return summary


def digest(row: Row) -> str:
    """Identity of a row: its library's version and the text of the table."""
    from importlib.metadata import version

    text = f"{row.name} {version(row.entry.library)} {inspect.getsource(dynamo_models)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- one model, in its process


def one(job: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a model. The job: "row", "mode", "target", "arch", "device", "seed"."""
    return recorded(job, _one)


def _one(work: Work) -> None:
    import torch

    job = work.job
    row = next(r for r in dynamo_models.ROWS if r.name == job["row"])
    torch.manual_seed(job["seed"])
    module = row.entry.build().train(job["mode"] == "train").to(job["device"])
    kwargs = row.entry.inputs(module)
    args = tuple(x.to(job["device"]) for x in kwargs.pop("", ()))
    kwargs = {name: x.to(job["device"]) for name, x in kwargs.items()}
    with _graphs(work):
        compiled = _compiled_model(module, job)
        if job["mode"] == "eval":
            _evaluate(work, module, compiled, args, kwargs)
        else:
            _train(work, module, args, kwargs)
    eager = [g for g in work.record["graphs"] if g["reason"]]
    if eager:
        raise KvcError("KVC0203", f"{len(eager)} graphs run eagerly: {eager[0]['reason']}")
    if not work.record["kernels"]:
        operators = ", ".join(f["op"] for f in work.record["fallbacks"])
        raise KvcError("KVC0203", f"not a single kernel: {operators or 'torch.compile handed over no graph'}")
    work.record["status"] = "passed"


def _compiled_model(module: Any, job: Mapping[str, Any]) -> Any:
    import torch

    options = {"target": job["target"]} | ({"executor": "sim", "arch": job["arch"]} if job["device"] == "cpu" else {})
    return torch.compile(module, backend="kvc", options={**options, "jobs": 1})


@contextmanager
def _graphs(work: Work) -> Iterator[None]:
    """Writes down what becomes of each graph."""
    from dataclasses import asdict

    from kvc.dynamo import observers

    found: list[dict[str, Any]] = []

    def observe(report: GraphReport) -> None:
        found.append(asdict(report))

    observers.append(observe)
    try:
        yield
    finally:
        observers.remove(observe)
        work.record["graphs"] = found
        work.record["kernels"] = sum(g["kernels"] for g in found)
        work.record["fallbacks"] = [
            {"op": op, "reason": reason, "at": ""}
            for g in found
            for op, _, reason in (f.partition(": ") for f in g["fallbacks"])
        ]


def _evaluate(work: Work, module: Any, compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    import torch
    from kvc.verify.model import leaves
    from kvc.verify.widened import own_dtype, widened

    with torch.no_grad():
        expected = leaves(module(*args, **kwargs))
        twin, wide = _wide(module, args, kwargs)
        with widened(own_dtype(module, (args, kwargs))):
            oracle = leaves(twin(*wide[0], **wide[1]))
        with work.timed("first call"):
            got = leaves(compiled(*args, **kwargs))
        with work.timed("second call"):
            again = leaves(compiled(*args, **kwargs))
        _compare(work, oracle, expected, got)
        for name, value in again.items():
            if not torch.equal(value, got[name]):
                raise KvcError("KVC0705", f"{name} differs from call to call")
        if work.job["device"] == "cuda":
            work.record["times"] = _times(module, compiled, args, kwargs)


def _wide(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, tuple[list[Any], dict[str, Any]]]:
    """The module and its arguments in float64."""
    from kvc.verify.widened import to_double

    return copy.deepcopy(module).double(), to_double((list(args), dict(kwargs)))


def _train(work: Work, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Three steps of gradient descent, side by side in float64, in eager mode and through kvc."""
    twin, wide = _wide(module, args, kwargs)
    ours = copy.deepcopy(module)
    compiled = _compiled_model(ours, work.job)
    for step in range(STEPS):
        oracle = _step(twin, twin, wide[0], wide[1])
        expected = _step(module, module, args, kwargs)
        with work.timed(f"step {step + 1}"):
            got = _step(ours, compiled, args, kwargs)
        if len(got) != len(oracle) or len(got) < 2:
            raise KvcError("KVC0709", f"{len(got)} losses and gradients, {len(oracle)} in eager mode")
        _compare(work, oracle, expected, got, f"step {step + 1}: ")


def _step(owner: Any, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensors:
    """The loss, the gradients and the running statistics of one step, after which the parameters have moved."""
    import torch
    from torch.utils import _pytree as pytree

    owner.zero_grad()
    outputs = [x for x in pytree.tree_leaves(call(*args, **kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    loss = sum((x.square().mean() for x in outputs), torch.zeros((), device=outputs[0].device))
    loss.backward()
    found: Tensors = {"loss": loss.detach()}
    for name, parameter in owner.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.clone()
            with torch.no_grad():
                parameter -= RATE * parameter.grad
    found |= {f"buffer {n}": b.clone() for n, b in owner.named_buffers() if b.is_floating_point()}
    return found


def _compare(work: Work, oracle: Tensors, eager: Tensors, got: Tensors, where: str = "") -> None:
    """KVC0709 for the first result that is further off than it may be; keeps the largest error in the record."""
    largest = max((float(x.abs().max()) for x in oracle.values() if x.numel()), default=0.0)
    for name, reference in oracle.items():
        wide, mine, theirs = reference.double(), got[name].double(), eager[name].double()
        scale = max(float(wide.abs().max()), FLOOR * largest, 1e-30) if wide.numel() else 1.0
        error = float((mine - wide).abs().max()) / scale if wide.numel() else 0.0
        allowed = max(TOLERANCE, 2 * float((theirs - wide).abs().max()) / scale if wide.numel() else 0.0)
        if not error <= allowed or mine.shape != wide.shape:
            raise KvcError("KVC0709", f"{where}{name}: error {error:.2e} of {allowed:.2e} allowed")
        work.record["error"] = max(work.record.get("error", 0.0), error)


def _times(module: Any, compiled: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of eager mode, Inductor and kvc, in turns on a GPU."""
    import torch
    from kvc.bench.timing import interleaved, plain_precision
    from kvc.timing import summary

    facts = plain_precision()
    inductor = torch.compile(copy.deepcopy(module))
    calls = {
        "eager": lambda: module(*args, **kwargs),
        "compile": lambda: inductor(*args, **kwargs),
        "kvc": lambda: compiled(*args, **kwargs),
    }
    inductor(*args, **kwargs)
    return {name: summary(ms) for name, ms in interleaved(calls).items()} | {"baseline": facts}


# ---------------------------------------------------------------- the table


def markdown(title: str, records: Sequence[Mapping[str, Any]]) -> str:
    """One line a model: graphs, kernels, errors, seconds, and times where a GPU was there."""
    timed = any("times" in r for r in records)
    heads = ["model", "mode", "status", "graphs", "kernels", "eager operators", "largest error", "seconds"]
    heads += ["kvc ms", "against eager", "against Inductor"] if timed else []
    lines = [f"# {title}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for r in records:
        cells = [
            r["name"], r["level"], r["status"], len(r.get("graphs", ())), r.get("kernels", ""),
            len(r.get("fallbacks", ())), f"{r['error']:.1e}" if "error" in r else "",
            round(sum(r.get("seconds", {}).values()), 1),
        ]  # fmt: skip
        times = r.get("times")
        if timed and times:
            mine = times["kvc"]["median_ms"]
            cells += [f"{mine:.4f}", *(f"{times[b]['median_ms'] / mine:.2f}x" for b in ("eager", "compile"))]
        elif timed:
            cells += ["", "", ""]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    failed = [r for r in records if r["status"] == "failed"]
    if failed:
        lines += ["", "## What did not pass", ""]
        lines += [f"- {r['problem']}: {r['failure']['code']}: {r['failure']['message'][:300]}" for r in failed]
    return "\n".join(lines) + "\n"
