"""What the commands do, without their options: each function takes plain values and gives plain data."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch as arch_row
from kvc.console import Console
from kvc.diagnostics import KvcError, Location
from kvc.emitter import Candidate, Origin, Target, Task, targets
from kvc.emitter import target as find_target
from kvc.executors import choose
from kvc.header import parse_launches, parse_workspace
from kvc.pipeline import NotVerified, Options, Translation, check_arch, translate
from kvc.store import Store
from kvc.verify.judge import Bench, judge
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Rejected, Verified

if TYPE_CHECKING:
    from kvc.frontends.fx.capture import Captured
    from kvc.library import Contender

Init = tuple[tuple[Any, ...], dict[str, Any]] | None
DTYPE_NAMES = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class TranslateRequest:
    """The options of `kvc translate`."""

    model: str
    out: Path | None
    target: str
    arch: str
    dtype: str | None
    mode: str
    executor: str
    numerics: str
    strict: bool
    emitters: tuple[str, ...]
    seed: int
    jobs: int
    use_cache: bool
    budget: str = "0"
    library: bool = False


def check_dtype(name: str | None) -> str | None:
    """KVC0106 for a dtype that models cannot be cast to."""
    if name is not None and name not in DTYPE_NAMES:
        raise KvcError("KVC0106", f"dtype {name!r}", hint=f"one of: {', '.join(DTYPE_NAMES)}")
    return name


def with_dims(model: str, dims: list[str] | None) -> str:
    """The model with the dimensions of `--dim` fixed. KVC0106 for what is no such dimension or no .onnx file."""
    from kvc.frontends.onnx.load import with_dims as fixed

    return fixed(model, tuple(dims or ()))


def default_out(model: str) -> Path:
    """out/NAME for model.py, path.py:Name, package.module:factory and model.onnx."""
    path, _, name = model.partition(":")
    if path.endswith(".onnx"):
        return Path("out") / Path(path).stem
    stem = Path(path).stem if path.endswith(".py") else path.rpartition(".")[2]
    return Path("out") / (f"{stem}_{name}" if name else stem)


def captured_model(model: str, mode: str, dtype: str | None) -> tuple[Captured, Init]:
    """The captured model, and the arguments that it was constructed with, where kvc constructed it."""
    from kvc.frontends.fx.capture import capture_loaded
    from kvc.frontends.fx.load import load

    loaded = load(model)
    return capture_loaded(loaded, mode=mode, dtype=check_dtype(dtype)), loaded.init


def one_thread() -> None:
    """torch on one thread: the workers have the cores, and sums come out the same on every machine."""
    import torch

    torch.set_num_threads(1)


def run_translate(request: TranslateRequest, console: Console) -> dict[str, Any]:
    """Translate and write; gives the summary that `--json` prints."""
    from kvc.autotune.budget import Budget
    from kvc.interface import interface_of, stored_constants
    from kvc.library import choose_libraries, contender_for
    from kvc.package import check_destination, kernel_files, write
    from kvc.passes.memory import memory_plan
    from kvc.whole import model_reference

    started = time.monotonic()
    out = request.out or default_out(request.model)
    target, row = find_target(request.target), arch_row(request.arch)
    check_arch(row)
    check_dtype(request.dtype)
    check_destination(out)
    budget = Budget.parse(request.budget)
    executor = choose(request.executor, row)
    options = Options(
        executor, request.numerics, request.seed, request.strict, request.emitters, jobs=request.jobs,
        library=request.library,
    )  # fmt: skip
    store = Store() if request.use_cache else None
    one_thread()
    contender = contender_for(executor, row.name) if request.library else None
    with console.progress(), WorkerPool(request.jobs, options.timeout_s) as pool, _until_end(contender):
        console.listen("stage", {"name": "capture"})
        captured, init = captured_model(request.model, request.mode, request.dtype)
        bench = Bench(pool, executor, request.seed)
        done = translate(captured, target, row, options, bench=bench, store=store, listen=console.listen)
        if not budget.is_nothing:  # what `kvc tune` does, before anything is written
            from kvc.autotune.folder import tune_within

            done = tune_within(done, budget, bench, store, request.jobs, console.listen)
        if contender is not None:
            done = choose_libraries(done, [file.name for file in kernel_files(done)], contender, console.listen)
        interface = interface_of(captured, Path(request.model).name, request.dtype or "", init)
        references = [model_reference(captured, done.plan, request.seed)]
        done = write(out, done, interface, stored_constants(captured), references, bench, console.listen)
    summary = summary_of(done, out, time.monotonic() - started)
    summary["arena_bytes"] = memory_plan(done.plan).nbytes
    console.say(text_of(summary))
    return summary


def _until_end(contender: Contender | None) -> AbstractContextManager[Contender | None]:
    return closing(contender) if contender is not None else nullcontext()


def summary_of(done: Translation, out: Path, seconds: float) -> dict[str, Any]:
    """The translation in figures."""
    from kvc.verify.model import combined

    worst = max(
        (e for a in done.artifacts for e in a.verified.evidence.errors if e.tolerance),
        key=lambda e: e.error / e.tolerance,
        default=None,
    )
    whole = combined(done.evidence)
    return {
        "out": str(out),
        "target": done.target.name,
        "arch": done.arch.name,
        "executor": done.options.executor,
        "kernels": len(done.plan.launches),
        "once": len(done.plan.prologue),
        "distinct": len(done.plan.kernels),
        "launches": sum(e.launches for e in done.evidence[:1]),
        "cached": sum(a.cached for attempts in done.attempts for a in attempts),
        "schedules": [a.candidate.schedule for a in done.artifacts],
        "fallbacks": [{"op": f.node.op, "reason": f.reason, "at": str(f.node.loc or "")} for f in done.plan.fallbacks],
        "library": [
            {"kernel": n, "calls": list(c.form.calls), "library_us": c.library_us, "kernel_us": c.kernel_us}
            for n, c in done.library_calls.items()
            if c.form is not None
        ],
        "largest_kernel_error": {"error": worst.error, "tolerance": worst.tolerance} if worst else None,
        "model_error": {"error": whole.error, "tolerance": whole.tolerance, "eager_error": whole.working}
        if whole
        else None,
        "seconds": round(seconds, 2),
        "stages": {k: round(v, 2) for k, v in done.seconds.items()},
    }


def text_of(summary: dict[str, Any]) -> str:
    """The summary as a person reads it."""
    once = f" a call and {summary['once']} once" if summary["once"] else ""
    lines = [
        f"{summary['out']}: {summary['kernels']} kernels{once}, {summary['distinct']} distinct, in "
        f"{summary['target']} for {summary['arch']}; every one compiled and executed ({summary['executor']})"
    ]
    if summary["largest_kernel_error"]:
        worst = summary["largest_kernel_error"]
        lines.append(f"  largest kernel error  {worst['error']:.1e}  (tolerance {worst['tolerance']:.0e})")
    if summary["model_error"]:
        whole = summary["model_error"]
        lines.append(
            f"  whole model error     {whole['error']:.1e}  (tolerance {whole['tolerance']:.0e}, "
            f"eager's own {whole['eager_error']:.1e})"
        )
    for fallback in summary["fallbacks"]:
        where = f"{fallback['at']}: " if fallback["at"] else ""
        lines.append(f"  eager fallback        {where}{fallback['op']}: {fallback['reason']}")
    for call in summary["library"]:
        lines.append(
            f"  library call          {call['calls'][0]} in the place of kernel {call['kernel'] + 1}: "
            f"{call['library_us']:.1f} us, the kernel {call['kernel_us']:.1f} us"
        )
    cached = f", {summary['cached']} of them from the cache" if summary["cached"] else ""
    lines.append(f"  {summary['seconds']:.1f} s{cached}")
    lines.append(f"  read {Path(summary['out']) / 'report.html'}, or check again with: kvc verify {summary['out']}")
    return "\n".join(lines)


# ---------------------------------------------------------------- verify


def run_verify_folder(
    out: Path, model: str | None, executor: str, seed: int, jobs: int, console: Console
) -> dict[str, Any]:
    from kvc.reverify import verify_folder

    one_thread()
    with console.progress(), WorkerPool(jobs) as pool:
        result = verify_folder(out, model, executor, seed, jobs, pool, console.listen)
    for line in result["lines"]:
        console.say(line)
    return result


def target_of(source: Path) -> Target:
    """The target that a source file belongs to, by its suffix. KVC0105 when there is none."""
    for each in targets().values():
        if source.suffix == each.suffix:
            return each
    known = ", ".join(f"{t.suffix} ({t.name})" for t in targets().values())
    raise KvcError("KVC0105", f"no target writes {source.suffix or 'files without suffix'}", hint=f"one of: {known}")


def read_text(path: Path) -> str:
    """A user's file. KVC0101 where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise KvcError("KVC0101", f"{path}: {error.strerror}", hint="check the path") from None
    except UnicodeDecodeError:
        raise KvcError("KVC0101", f"{path} is no text", Location(str(path))) from None


def parse_replay(text: str, seed: int) -> tuple[int, str]:
    """(seed, input set) of `SEED/SET`, as a rejection prints it. KVC0106 for anything else."""
    if not text:
        return seed, ""
    number, slash, name = text.partition("/")
    if not slash or not name or not number.isdigit():
        raise KvcError("KVC0106", f"--replay {text!r}", hint="a seed and an input set, e.g. 0/large")
    return int(number), name


def run_verify_source(
    spec_path: Path, source_path: Path, arch: str, executor: str, seed: int, console: Console, replay: str = ""
) -> dict[str, Any]:
    """Judge one kernel that somebody wrote by hand; `replay` ("SEED/SET") runs one input set alone."""
    from kvc.text import parse_kernel
    from kvc.verify.rules import explain, rules_of

    seed, only = parse_replay(replay, seed)

    spec = parse_kernel(read_text(spec_path), str(spec_path))
    source = read_text(source_path)
    target, row = target_of(source_path), arch_row(arch)
    candidate = Candidate(
        Task(spec, row), target.name, "by_hand", source, parse_launches(source, str(source_path)),
        parse_workspace(source), (), Origin("hand", ""),
    )  # fmt: skip
    with console.progress(), WorkerPool(1) as pool:
        console.listen("stage", {"name": f"judging {source_path.name}"})
        verdict = judge(candidate, Bench(pool, choose(executor, row), seed), only=only)
    if isinstance(verdict, Rejected):
        again = f"kvc verify --spec {spec_path} --source {source_path} --arch {row.name}"
        console.say(f"{source_path}: " + "\n".join(explain(verdict, seed, again)))
        return {
            "ok": False,
            "stage": verdict.stage,
            "diagnostic": verdict.diagnostic.to_json(),
            "rules": [rule.key for rule in rules_of(verdict)],
            "seed": seed,
        }
    if only:
        console.say(f"{source_path}: nothing wrong on the input set {only} of seed {seed}; this alone verifies nothing")
        return {"ok": True, "replayed": only, "evidence": verdict.evidence.to_json()}
    console.say(verified_text(str(source_path), verdict))
    return {"ok": True, "evidence": verdict.evidence.to_json()}


def verified_text(name: str, verdict: Verified) -> str:
    evidence = verdict.evidence
    lines = [f"{name}: verified on {evidence.executor} for {evidence.arch}, {len(evidence.input_sets)} input sets"]
    for error in evidence.errors:
        lines.append(
            f"  {error.output}: error {error.error:.1e} (tolerance {error.tolerance:.0e}, allowed by the working dtype "
            f"{error.allowed:.1e}), inputs {error.input_set}"
        )
    lines += [f"  warning: {w}" for w in evidence.warnings]
    return "\n".join(lines)


# ---------------------------------------------------------------- the others


def run_ir(model: str, level: str, dtype: str | None, mode: str) -> str:
    from kvc.text import print_graph, print_kernel

    captured, _ = captured_model(model, mode, dtype)
    if level == "graph":
        return print_graph(captured.graph)
    from kvc.pipeline_graph import plan

    return "\n\n".join(print_kernel(spec) for spec in plan(captured.graph).kernels)


def _triple(text: str, what: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise KvcError("KVC0106", f"{what} {text!r}", hint="up to three positive numbers, e.g. 16 or 4,4,1")
    x, y, z = (*map(int, parts), 1, 1)[:3]
    return x, y, z


def run_sim(
    assembly: Path, args: tuple[str, ...], kernel: str | None, grid: str, block: str, lds: int, arch: str, seed: int,
    sample: int,
) -> dict[str, Any]:  # fmt: skip
    """Run one kernel on the simulator: counters, hazards and what it wrote, as data and as text."""
    from dataclasses import asdict

    from kvc.simulator.cli import render, run_file

    row = arch_row(arch)
    read_text(assembly)
    report, outputs = run_file(
        assembly, row.name, args, _triple(grid, "--grid"), _triple(block, "--block"), kernel,
        dynamic_lds=lds, seed=seed, sample=sample,
    )  # fmt: skip
    return {
        "kernel": report.kernel,
        "seconds": report.seconds,
        "counters": report.counters.to_json(),
        "hazards": [asdict(hazard) for hazard in report.hazards],
        "outputs": [asdict(output) for output in outputs],
        "text": render(report, outputs),
    }


def run_selftest(executor: str, arch: str, corrections: Path | None, console: Console) -> dict[str, Any]:
    """Run the self-tests that are registered (entry-point group "kvc.selftests")."""
    from importlib.metadata import entry_points

    row = arch_row(arch)
    name = choose(executor, row)
    results = [e.load()(name, row, corrections, console.say) for e in entry_points(group="kvc.selftests")]
    if not results:
        raise KvcError("KVC0601", "no self-test is registered", hint="reinstall kvc")
    return {"ok": all(r["ok"] for r in results), "results": results}


def run_arch(name: str | None) -> tuple[str, Any]:
    """The hardware table as text and as data."""
    from dataclasses import asdict

    from kvc.arch import ARCHS

    rows = [arch_row(name)] if name else list(ARCHS.values())
    data = [asdict(row) for row in rows]
    if name:
        width = max(len(k) for k in data[0])
        lines = [f"{key:<{width}}  {value}" for key, value in data[0].items() if key not in ("matrix", "peak_tflops")]
        lines += [f"{'peak ' + kind:<{width}}  {peak} TFLOP/s" for kind, peak in rows[0].peak_tflops]
        lines += [f"{'matrix ' + m.dtype:<{width}}  {m.m} x {m.n} x {m.k}  {m.builtin}" for m in rows[0].matrix]
        return "\n".join(lines), data[0]
    head = f"{'name':<8} {'wave':>4} {'LDS KiB':>8} {'CUs':>5} {'GHz':>5} {'HBM GB/s':>9} {'bf16 TF':>8}  products"
    lines = [
        f"{r.name:<8} {r.wave_size:>4} {r.lds_bytes // 1024:>8} {r.cu_count:>5} {r.clock_ghz:>5} {r.hbm_gbps:>9.0f} "
        f"{r.peak('bf16'):>8.0f}  {r.products}"
        for r in rows
    ]
    return "\n".join([head, *lines]), data


__all__ = ["NotVerified", "TranslateRequest", "run_translate"]
