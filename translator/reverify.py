"""Verifies a written folder again. The lock says what is claimed (files, launches, knobs); nothing in it is believed:
every source is compiled and judged anew, its code object must be the one in the folder, and the written module.py is
run against the graph, and against the original model where that is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.arch import ArchSpec, arch
from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Compiled, Origin, Scratch, Task, target
from kvc.executors import choose
from kvc.graph import Graph
from kvc.interface import rebuild
from kvc.kernel import KernelSpec
from kvc.lower import lower
from kvc.module_source import identifier, state_name
from kvc.package import read_lock
from kvc.pipeline import Listener
from kvc.records import launch_from_json
from kvc.text import parse_graph, parse_kernels
from kvc.verify.inputs import draw
from kvc.verify.judge import Bench, judge
from kvc.verify.model import ModelEvidence, ModelReference, verify_written, written_module
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Rejected

if TYPE_CHECKING:
    import torch

#: Failures that say "not verified"; everything else says "cannot be done".
_JUDGEMENTS = ("KVC03", "KVC04", "KVC06", "KVC07", "KVC0804", "KVC09")
_NOT_JUDGEMENTS = ("KVC0601", "KVC0602")


def _file(folder: Path, name: str) -> bytes:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise KvcError("KVC0804", f"{name} is missing from {folder}", hint="translate again")
    return path.read_bytes()


def verify_folder(
    folder: Path, model: str | None, executor: str, seed: int, jobs: int, pool: WorkerPool, listen: Listener
) -> dict[str, Any]:
    """{"ok", "kernels", "model", "lines"}; KVC0802 when the folder is no translation."""
    lock = read_lock(folder)
    row = arch(lock["arch"])
    bench = Bench(pool, choose(executor, row), seed)
    specs = _specs(folder)
    records = lock["kernels"]
    listen("stage", {"name": "kernels", "total": len(records)})
    with ThreadPoolExecutor(jobs) as threads:
        results = list(threads.map(lambda record: _kernel(folder, record, specs, row, bench), records))
    compiled: dict[str, Compiled] = {}
    kernels, lines, ok = [], [], True
    for record, (found, summary, code) in zip(records, results, strict=True):
        ok &= found is None
        kernels.append({"name": record["name"], "ok": found is None, **summary})
        lines.append(f"{record['name']}: {'verified' if found is None else found}{_error_text(summary)}")
        compiled |= dict.fromkeys(record["code_objects"], code) if code is not None else {}
    found_calls, fine = _library(folder, lock, specs, bench)
    lines += found_calls
    ok &= fine
    evidence: list[dict[str, Any]] = []
    if ok:
        listen("stage", {"name": "model"})
        ok = _whole(folder, lock, model, compiled, specs, bench, row, lines, evidence)
    lines.append(f"{folder}: {'verified' if ok else 'NOT verified'} on {bench.executor} for {row.name}")
    return {"ok": ok, "kernels": kernels, "model": evidence, "lines": lines}


def _error_text(summary: Mapping[str, Any]) -> str:
    errors = [e for e in summary.get("errors", ()) if e["tolerance"]]
    if not errors:
        return ""
    worst = max(errors, key=lambda e: e["error"] / e["tolerance"])
    return f", error {worst['error']:.1e} (tolerance {worst['tolerance']:.0e})"


def _specs(folder: Path) -> dict[str, KernelSpec]:
    """The specs of kernels.kir by the names of their files."""
    taken: set[str] = set()
    text = _file(folder, "kernels.kir").decode()
    return {identifier(s.name, taken): s for s in parse_kernels(text, "kernels.kir")} if text.strip() else {}


def _kernel(
    folder: Path, record: Mapping[str, Any], specs: Mapping[str, KernelSpec], row: ArchSpec, bench: Bench
) -> tuple[Diagnostic | None, dict[str, Any], Compiled | None]:
    """What is wrong with a kernel (None: nothing), figures, and its code."""
    try:
        if record["name"] not in specs:
            raise KvcError("KVC0804", f"kernels.kir has no kernel {record['name']}")
        source = _file(folder, record["file"]).decode()
        candidate = Candidate(
            Task(specs[record["name"]], row, record["numerics"]),
            record["target"],
            record["schedule"],
            source,
            tuple(launch_from_json(launch) for launch in record["launches"]),
            tuple(Scratch(**scratch) for scratch in record["workspace"]),
            tuple(sorted(record["knobs"].items())),
            Origin(**record["emitter"]),
        )
        target(record["target"])
        verdict = judge(candidate, bench)
        if isinstance(verdict, Rejected):
            return verdict.diagnostic, {"stage": verdict.stage}, None
        for symbol, path in record["symbols"].items():
            if verdict.compiled.objects[symbol].binary != _file(folder, path):
                raise KvcError(
                    "KVC0804",
                    f"{path} is not what {record['file']} compiles to",
                    hint="the source or the code object was changed, or another compiler made it: translate again",
                )
    except KvcError as error:
        if not _is_judgement(error.code):
            raise
        return error.diagnostic, {}, None
    return None, {"errors": [e.to_json() for e in verdict.evidence.errors]}, verdict.compiled


def _library(
    folder: Path, lock: Mapping[str, Any], specs: Mapping[str, KernelSpec], bench: Bench
) -> tuple[list[str], bool]:
    """The library calls that the lock declares, each held to the verifier's comparisons: on the device where there is
    one, else on the CPU, which shows that the call states the spec and no more. Calls that the lock does not declare,
    or that are not the ones this kvc writes, are KVC0804."""
    from contextlib import closing

    from kvc.library import Host, LibraryChoice, contender_for, verified
    from kvc.library_forms import library_form
    from kvc.verify.judge import input_sets
    from kvc.verify.oracle import Examiner

    declared = {r["name"]: r for r in lock["kernels"] if "library" in r}
    text = _file(folder, "module.py").decode()
    written = {
        line[len("def _library_") :].partition("(")[0] for line in text.splitlines() if line.startswith("def _library_")
    }
    lines, ok = [], True
    if written != set(declared) or (declared and lock.get("library") != "allowed"):
        wrong = ", ".join(sorted(written ^ set(declared))) or "libraries are forbidden"
        return [f"module.py: KVC0804: its library calls are not those that the lock declares: {wrong}"], False
    if not declared:
        return [], True
    made = Host() if bench.executor == "sim" else contender_for(bench.executor, lock["arch"])
    where = "torch on this CPU (its form only)" if bench.executor == "sim" else bench.executor
    with closing(made) as contender:
        for name, record in declared.items():
            spec = specs[name]
            form = library_form(spec, f"_library_{name}", record["numerics"])
            try:
                if isinstance(form, str) or form.source not in text:
                    raise KvcError("KVC0804", f"its library call is not what this kvc writes for {name}")
                LibraryChoice.from_record(form, record["library"])
                examiner = Examiner(spec, bench.seed)
                found = verified(form, spec, examiner, input_sets(spec, examiner, bench.seed), contender)
            except KvcError as error:
                if not _is_judgement(error.code):
                    raise
                found = Rejected("compare", error.diagnostic)
            ok &= not isinstance(found, Rejected)
            said = str(found.diagnostic) if isinstance(found, Rejected) else f"verified on {where}"
            lines.append(f"{name}: library call {record['library']['calls'][0]}: {said}")
    return lines, ok


def _is_judgement(code: str) -> bool:
    return code.startswith(_JUDGEMENTS) and code not in _NOT_JUDGEMENTS


def _whole(
    folder: Path,
    lock: Mapping[str, Any],
    model: str | None,
    compiled: Mapping[str, Compiled],
    specs: Mapping[str, KernelSpec],
    bench: Bench,
    row: ArchSpec,
    lines: list[str],
    evidence: list[dict[str, Any]],
) -> bool:
    """Run module.py against the graph, and against the original; whether all agree."""
    graph = parse_graph(_file(folder, "graph.kir").decode(), "graph.kir")
    try:
        references = [_graph_reference(folder, graph, lock, bench.seed)]
        if model is not None:
            references.append(_original_reference(model, lock, bench.seed))
        for reference in references:
            found: ModelEvidence = verify_written(folder, compiled, reference, bench, row.name)
            evidence.append(found.to_json())
            worst = found.worst
            error = f": error {worst.error:.1e} (tolerance {worst.tolerance:.0e})" if worst else ""
            lines.append(f"whole model against {reference.source}, {reference.input_set}{error}")
    except KvcError as error:
        if not _is_judgement(error.code):
            raise
        lines.append(str(error.diagnostic))
        return False
    return True


def _graph_reference(folder: Path, graph: Graph, lock: Mapping[str, Any], seed: int) -> ModelReference:
    """The graph on random inputs and weights."""
    from kvc.pipeline_graph import plan
    from kvc.whole import reference_of_graph

    with written_module(folder) as written:
        model = written.Model()
    own = {name: t.detach() for name, t in model.named_buffers()}
    saved = {name: t.detach() for name, t in model.state_dict().items()}
    feed, state = random_feed(graph, own, saved, seed)
    call = lock["model"]["call"]
    args, kwargs = rebuild(call["args"], feed), rebuild(call["kwargs"], feed)
    return reference_of_graph(plan(graph), feed, state, tuple(args), kwargs, seed, "random weights and inputs")


def random_feed(
    graph: Graph, own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], seed: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A tensor for each graph input, and the state_dict that goes with them. Weights are scaled so that activations
    keep their size, small float buffers are positive (variances). `own` holds the buffers of the written module, which
    brings its constants with it, `saved` its state_dict."""
    import torch

    whole, _ = lower(graph)
    drawn = draw(whole, "normal", seed)
    feed: dict[str, torch.Tensor] = {}
    state = dict(saved)
    for i in graph.inputs:
        name = state_name(i)
        if i.kind != "user" and name not in saved:
            feed[i.name] = own[name]
            continue
        x = drawn[i.name].reshape(i.type.shape) if i.name in drawn else torch.zeros(i.type.shape)
        x = x.to(getattr(torch, i.type.dtype.torch_name))
        if i.kind == "param" and x.ndim > 1:
            x = x / max(x[0].numel(), 1) ** 0.5
        elif i.kind == "buffer" and x.is_floating_point() and x.ndim <= 1:
            x = x.abs() + 0.1
        if i.kind != "user":
            state[name] = x
        feed[i.name] = x
    return feed, state


def _original_reference(model: str, lock: Mapping[str, Any], seed: int) -> ModelReference:
    from kvc.commands import captured_model
    from kvc.pipeline_graph import plan
    from kvc.whole import model_reference

    captured, _ = captured_model(model, lock["model"]["mode"], lock["model"]["dtype"] or None)
    return model_reference(captured, plan(captured.graph), seed)
