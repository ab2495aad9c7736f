"""Judges kernels that are known to be right, many of them, and counts the rejections: there must be none.

    python -m tests.adversarial.false_alarms --target hip --seeds 3 examples/mlp.py examples/decoder.py zoo specs ops

What is judged: the kernels of the plan of each model file, for each dtype; `zoo`, the models of tests.models; `specs`,
the specs that the emitters' own tests use; `ops`, the samples of the op table. Each kernel by the first emitter that
supports it, or by all that do (--every-emitter), with every seed. "Right" is no circular claim: another seed draws
other inputs and another order of the waves, other emitters write the same kernel in other ways, and a rejection of one
of them is either an error of the emitter or a false alarm; both want a reader. Exit code 1 where there is any.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator

import torch
from kvc.arch import arch
from kvc.commands import captured_model
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Emitter, Target, Task, composites, target
from kvc.frontends.fx.capture import capture
from kvc.graph import Graph
from kvc.kernel import KernelSpec
from kvc.pipeline_graph import plan
from kvc.text import parse_kernel, print_kernel
from kvc.verify.judge import Bench, judge
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Rejected

from tests.adversarial.local import LocalPool
from tests.adversarial.subjects import keys
from tests.models import MODELS

DTYPES = ("f32", "bf16")


def specs_of(what: str, language: Target, dtypes: tuple[str, ...]) -> Iterator[tuple[str, KernelSpec]]:
    """(name, spec) of each kernel that an argument stands for."""
    if what == "specs":
        for name in ("hip", "triton"):
            for key in {k.text: k for k in keys(name)}.values():
                yield f"{name}/{key.name}", parse_kernel(key.text)
        return
    if what == "ops":
        from tests.adversarial.op_kernels import op_kernels

        yield from op_kernels(language)
        return
    graphs: dict[str, Graph] = {}
    if what == "zoo":
        for name, make in MODELS.items():
            model, inputs = make()
            graphs[name] = capture(model, inputs).graph
    else:
        for dtype in dtypes:
            graphs[f"{what}/{dtype}"] = captured_model(what, "eval", dtype)[0].graph
    for name, graph in graphs.items():
        for spec in plan(graph, composites(language)).kernels:
            yield f"{name}/{spec.name}", spec


def candidates(task: Task, language: Target, every: bool) -> Iterator[Candidate]:
    """The first setting of the first emitter that supports the task, or of every one."""
    for emitter in language.emitters():
        if emitter.supports(task).ok:
            found = _first(emitter, task)
            if found is not None:
                yield found
                if not every:
                    return


def _first(emitter: Emitter, task: Task) -> Candidate | None:
    return next(iter(emitter.propose(task, emitter.space(task).default, (), 0)), None)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", nargs="+", help="model files, zoo, specs, ops")
    options.add_argument("--target", choices=("hip", "triton"), action="append")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--arch", default="gfx942")
    options.add_argument("--dtype", choices=DTYPES, action="append", help="of the model files; both by default")
    options.add_argument("--every-emitter", action="store_true")
    options.add_argument("--only", default="", help="kernels whose name or text contains this, as in: = max(")
    given = options.parse_args()
    torch.set_num_threads(1)
    started, counts, codes = time.monotonic(), Counter[str](), Counter[str]()
    seen: set[str] = set()
    for name in given.target or ["hip", "triton"]:
        language = target(name)
        for what in given.what:
            for label, spec in specs_of(what, language, tuple(given.dtype or DTYPES)):
                identity = f"{name} {spec.hash}"
                if identity in seen or given.only not in f"{label}\n{print_kernel(spec)}":
                    continue
                seen.add(identity)
                for candidate in candidates(Task(spec, arch(given.arch)), language, given.every_emitter):
                    counts[f"{name} kernels"] += 1
                    for code, text in _verdicts(candidate, given.seeds):
                        counts[f"{name} verdicts"] += 1
                        if code:
                            codes[code] += 1
                            print(f"{name} {candidate.schedule} {label}: {text}\n", flush=True)
    print(dict(counts), "rejections:", dict(codes) or "none", f"{time.monotonic() - started:.0f} s")
    return int(bool(codes))


def _verdicts(candidate: Candidate, seeds: int) -> Iterator[tuple[str, str]]:
    """(code, text) of each seed, "" where the candidate passed."""
    prepared = LocalPool().prepare(candidate)
    if isinstance(prepared, Rejected):
        yield prepared.diagnostic.code, f"{prepared.stage}: {prepared.diagnostic}"
        return
    for seed in range(seeds):
        bench = Bench(LocalPool(prepared, patient=True), "sim", seed)  # type: ignore[arg-type]
        try:
            verdict = judge(candidate, bench, Examiner(candidate.task.spec, seed))
        except KvcError as error:
            yield error.code, f"seed {seed}: {error}"
            continue
        if isinstance(verdict, Rejected):
            yield verdict.diagnostic.code, f"seed {seed}, {verdict.stage}: {verdict.diagnostic}"
        else:
            yield "", ""


if __name__ == "__main__":
    sys.exit(main())
