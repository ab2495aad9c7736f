"""The ranking study: does the tuner's model order the variants of a kernel as a CUDA device does?

For each spec of the study a seeded sample of its search space is compiled, compared with the other variants, and timed,
all variants in turn. What the model reads from the compiled code (kvc.autotune.listing) is kept with the times, so that
the comparison can be made again anywhere, and the model's constants can be fitted on a part of the specs.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import arch as arch_row
from kvc.autotune.features import features
from kvc.autotune.model import FITTED, Constants
from kvc.bench import ranking_fit
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Compiled, Target, Task
from kvc.emitter import target as find_target
from kvc.kernel import KernelSpec
from kvc.text import parse_kernel

if TYPE_CHECKING:
    import torch

SAMPLE = 13  # variants drawn from a space; some do not compile
WANTED = 10  # variants timed
EMITTERS = 2  # the emitters that a spec's pattern prefers; the others lie far behind
ROUNDS = (5, 30)  # at least, at most
SLOW_MS = 60.0  # a variant that takes longer is timed twice, not in every round
#: Two variants of one spec may differ by so much (relative, Euclidean norm), by the type of the output.
SAME = {"f32": 1e-3, "f16": 1e-2, "bf16": 3e-2}


@dataclass(frozen=True)
class Request:
    """The options of `kvc bench ranking`. `spec_s` is the time for the timed rounds of one spec."""

    target: str = "triton"
    names: tuple[str, ...] = ()
    sample: int = SAMPLE
    jobs: int = 2
    seed: int = 0
    spec_s: float = 1.5


def sample_of(task: Task, target: Target, count: int, seed: int) -> list[Candidate]:
    """The default of the preferred emitter, and a uniform sample of the spaces of the preferred emitters."""
    emitters = [e for e in target.emitters() if e.supports(task).ok]
    chosen = emitters[:-1][:EMITTERS] or emitters
    space = [(emitter, knobs) for emitter in chosen for knobs in emitter.space(task).configurations]
    drawn = random.Random(f"{seed}:{task.spec.name}").sample(space[1:], min(count - 1, len(space) - 1))
    return [next(iter(e.propose(task, knobs, [], seed))) for e, knobs in (space[0], *drawn)]


def compiled_all(candidates: Sequence[Candidate], jobs: int, say: Callable[[str], Any]) -> list[Compiled | None]:
    """Each candidate's code, compiled in worker processes; None for one that does not compile."""
    from kvc.verify.pool import WorkerPool
    from kvc.verify.verdict import Rejected

    def one(candidate: Candidate) -> Compiled | None:
        try:
            made = pool.prepare(candidate)
        except KvcError as error:
            if error.code != "KVC0604":
                raise
            say(f"{candidate.task.spec.name} {dict(candidate.knobs)}: {error.diagnostic.message}")
            return None
        return None if isinstance(made, Rejected) else made

    with WorkerPool(jobs) as pool, ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(one, candidates))


# ---------------------------------------------------------------- measuring


def measure(request: Request, say: Callable[[str], Any], keep: Path | None = None) -> dict[str, Any]:
    """Compile and time the sampled variants of every spec, and read what the model needs from their code. KVC0601
    without a CUDA device. `keep`: a folder for the compiled code of every variant (NAME.json.gz)."""
    from kvc.bench.cuda_module import device_row
    from kvc.bench.ranking_cases import STUDY
    from kvc.bench.timing import plain_precision

    row = device_row()
    target = find_target(request.target)
    specs = [parse_kernel(text) for text in STUDY]
    specs = [s for s in specs if not request.names or any(n in s.name for n in request.names)]
    result: dict[str, Any] = {"device": row.name, "baseline": plain_precision(), "seed": request.seed, "specs": []}
    samples = [sample_of(Task(spec, row), target, request.sample, request.seed) for spec in specs]
    started = time.monotonic()
    flat = compiled_all([c for sample in samples for c in sample], request.jobs, say)
    say(f"{len(flat)} variants compiled in {time.monotonic() - started:.0f} s")
    at = 0
    for spec, sample in zip(specs, samples, strict=True):
        compiled = flat[at : at + len(sample)]
        at += len(sample)
        usable = [(c, code) for c, code in zip(sample, compiled, strict=True) if code is not None]
        variants = _timed(spec, usable, request)
        result["specs"].append({"name": spec.name, "spec": _text(spec), "variants": variants})
        say(_line(spec, variants))
        if keep is not None:
            _keep(keep, spec, usable)
    return result


def _text(spec: KernelSpec) -> str:
    from kvc.text import print_kernel

    return print_kernel(spec)


def _line(spec: KernelSpec, variants: Sequence[Mapping[str, Any]]) -> str:
    times = [v["ms"] for v in variants if v["ms"] is not None]
    spread = f"{min(times):.4f} to {max(times):.4f} ms" if times else "nothing"
    return f"{spec.name}: {len(times)} of {len(variants)} variants, {spread}"


def _timed(spec: KernelSpec, usable: Sequence[tuple[Candidate, Compiled]], request: Request) -> list[dict[str, Any]]:
    """Each variant with its median time; None for one whose result is not that of the others."""
    import torch
    from kvc.bench.micro import KernelCall, _inputs

    inputs = _inputs(Task(spec, usable[0][0].task.arch), request.seed)
    calls = [KernelCall(candidate, code, inputs) for candidate, code in usable]
    wrong = _outliers(spec, calls)
    times = _rounds([c for n, c in enumerate(calls) if n not in wrong], request.spec_s)
    measured = iter(times)
    variants = []
    for n, (candidate, code) in enumerate(usable):
        ms = None if n in wrong else next(measured)
        variants.append(
            {
                "emitter": candidate.origin.emitter,
                "knobs": dict(candidate.knobs),
                "ms": None if ms is None else round(statistics.median(ms), 6),
                "rounds": 0 if ms is None else len(ms),
                "launches": [f.to_json() for f in features(candidate, code)],
            }
        )
    del calls, inputs
    torch.cuda.empty_cache()
    return variants


def _outliers(spec: KernelSpec, calls: Sequence[Any]) -> set[int]:
    """Variants whose first output is far from what most variants give: they are not timed."""
    import torch

    tolerance = SAME[spec.outputs[0].dtype.name]
    outputs: list[torch.Tensor] = []
    for call in calls:
        call.poison()
        call()
        outputs.append(call.outputs[0].double())
    torch.cuda.synchronize()
    wrong = set()
    for n, out in enumerate(outputs):
        norm = out.norm()
        near = sum(bool((out - other).norm() <= tolerance * norm) for other in outputs)
        if 2 * near <= len(outputs):
            wrong.add(n)
    return wrong


def _rounds(calls: Sequence[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Milliseconds of each call: one of each in turn, caches emptied before each; slow ones twice only."""
    import torch

    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    samples: list[list[float]] = [[] for _ in calls]
    started = time.monotonic()
    least, most = ROUNDS
    for n in range(most):
        if n >= least and time.monotonic() - started > seconds:
            break
        order = range(len(calls)) if n % 2 == 0 else reversed(range(len(calls)))
        for index in order:
            if n > 1 and min(samples[index]) > SLOW_MS:
                continue
            flush.zero_()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            calls[index]()
            stop.record()
            torch.cuda.synchronize()
            samples[index].append(start.elapsed_time(stop))
    return samples


def _keep(folder: Path, spec: KernelSpec, usable: Sequence[tuple[Candidate, Compiled]]) -> None:
    """The compiled code of a spec's variants, in one file."""
    kept = [
        {
            "emitter": candidate.origin.emitter,
            "knobs": dict(candidate.knobs),
            "launches": [asdict(launch) for launch in candidate.launches],
            "objects": {
                kernel: {"asm": obj.asm, "binary": obj.binary.hex(), "lds_bytes": obj.lds_bytes}
                for kernel, obj in code.objects.items()
            },
        }
        for candidate, code in usable
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{spec.name}.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode(), 6))


# ---------------------------------------------------------------- the comparison


def stored_table() -> dict[str, Any]:
    """The table that was measured on an H200 and comes with kvc."""
    text = (files("kvc.bench") / "ranking_sm_90.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def compare(table: Mapping[str, Any], constants: Constants = FITTED) -> dict[str, Any]:
    """{"fit", "held_out", "specs"}: the scores of the model on a study's table."""
    row = arch_row(table["device"])
    fitted, held = ranking_fit.halves(ranking_fit.read_table(table))
    scores = {half: [ranking_fit.score(s, row, constants) for s in specs]
              for half, specs in (("fit", fitted), ("held_out", held))}  # fmt: skip
    return {
        "device": table["device"],
        "baseline": table["baseline"],
        "fit": ranking_fit.summary(scores["fit"]),
        "held_out": ranking_fit.summary(scores["held_out"]),
        "specs": [{"half": half, **asdict(s)} for half, found in scores.items() for s in found],
    }


def refit(table: Mapping[str, Any], steps: int, seed: int, say: Callable[[str], Any]) -> Constants:
    """Constants fitted on the even half of a table, from the defaults."""
    fitted, _ = ranking_fit.halves(ranking_fit.read_table(table))
    return ranking_fit.fit(fitted, arch_row(table["device"]), Constants(), steps, seed, say)


def markdown(result: Mapping[str, Any]) -> str:
    """The comparison as a table."""
    lines = [
        f"Estimated against measured times, {result['device']}, {result['baseline']['device']}.",
        "",
        "| half | specs | median rank correlation | least | median pick / best | worst | picks within 1.25 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in ("fit", "held_out"):
        r = result[name]
        lines.append(
            f"| {name.replace('_', ' ')} | {r['specs']} | {r['median_rho']:.2f} | {r['least_rho']:.2f} "
            f"| {r['median_pick']:.2f} | {r['worst_pick']:.2f} | {r['picks_within_bar']} |"
        )
    lines += ["", "| spec | half | rank correlation | pick / best | estimate / time |", "|---|---|---:|---:|---:|"]
    for s in result["specs"]:
        half = s["half"].replace("_", " ")
        lines.append(f"| {s['name']} | {half} | {s['rho']:.2f} | {s['pick']:.2f} | {s['bias']:.2f} |")
    return "\n".join(lines) + "\n"
