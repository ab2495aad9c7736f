"""A traced graph as verified kernels in a written module that is kept in the cache and loaded by the next process."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvc
from kvc.arch import arch
from kvc.emitter import CodeObject, Compiled
from kvc.emitter import target as find_target
from kvc.package import LOCK, dump, kernel_files, lock_of, measurements_of, read_lock, staged, write_files
from kvc.pipeline import Options, Translation, silent, translate
from kvc.settings import settings
from kvc.store import Store, build_id
from kvc.text import print_graph
from kvc.verify.judge import Bench
from kvc.verify.model import Launcher, written_module
from kvc.verify.pool import WorkerPool

if TYPE_CHECKING:
    import torch
    from kvc.dynamic_shapes import Family
    from kvc.dynamo_options import Place
    from kvc.frontends.fx.capture import Captured
    from torch.fx import GraphModule


@dataclass(frozen=True)
class CompiledGraph:
    """A graph's callable. `fallbacks`: what runs eagerly inside, with reasons; `folder`: the translation, `known`
    whether it was there already; `kernels`: launches of generated kernels a call, and `distinct` ones."""

    model: torch.nn.Module
    folder: Path
    fallbacks: tuple[str, ...]
    known: bool = False
    kernels: int = 0
    distinct: int = 0

    def __call__(self, *args: Any) -> Any:
        return self.model(*args)


def compiled_graph(
    kind: str, module: GraphModule, inputs: Sequence[Any], place: Place, family: Family | None = None
) -> CompiledGraph:
    """Import, look up or translate, and load. `family`: kernels with symbolic sizes that may serve. Raises KvcError or
    NotVerified where the graph cannot be had."""
    from kvc.frontends.fx.traced import capture_traced

    captured = capture_traced(module, inputs, kind)
    symbolic = sorted(family.specs) if family is not None else []
    folder = settings().cache_dir / "graphs" / _key(captured, place, symbolic)
    known = (folder / LOCK).is_file()
    if not known:
        _write(folder, captured, place, family)
    return _loaded(folder, captured, place, known)


def _key(captured: Captured, place: Place, symbolic: Sequence[str]) -> str:
    """Everything that the written folder depends on."""
    constants = hashlib.sha256()
    for name, tensor in sorted(captured.state.items()):
        constants.update(name.encode())
        constants.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    options = place.options
    fields = {
        "graph": print_graph(captured.graph),
        "inputs": [repr(leaf) for leaf in captured.inputs],
        "output": repr(captured.output),
        "constants": constants.hexdigest(),
        "place": [place.target, place.arch, place.judge],
        "options": [options.emitter, options.numerics, options.strict, options.seed, options.budget, options.library],
        "symbolic": list(symbolic),
        "toolchain": find_target(place.target).toolchain(),
        "kvc": [kvc.__version__, build_id()],
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _pool(pid: int, jobs: int) -> WorkerPool:
    """The workers of this process; a forked one gets its own."""
    pool = WorkerPool(jobs)
    atexit.register(_close, pid, pool)
    return pool


def _close(pid: int, pool: WorkerPool) -> None:
    """A forked child inherits the registration, but the workers are its parent's."""
    if os.getpid() == pid:
        pool.close()


def _bench(place: Place) -> Bench:
    return Bench(_pool(os.getpid(), place.options.jobs), place.judge, place.options.seed)


def _write(folder: Path, captured: Captured, place: Place, family: Family | None) -> None:
    """Translate a graph; every kernel is verified, and the module that joins them is the one `kvc translate` writes."""
    from kvc.autotune.budget import Budget
    from kvc.interface import interface_of, stored_constants

    options = place.options
    chosen = Options(
        place.judge, options.numerics, options.seed, options.strict, options.emitter, jobs=options.jobs,
        library=options.library,
    )  # fmt: skip
    target, bench, store = find_target(place.target), _bench(place), Store()
    supply = None if family is None else lambda task: family.artifact(task, target, chosen, bench, store)
    done = translate(captured, target, arch(place.arch), chosen, bench=bench, store=store, supply=supply)
    if family is not None:
        family.took(a.candidate.task.spec for a in done.artifacts)
    budget = Budget.parse(options.budget)
    if not budget.is_nothing:
        from kvc.autotune.folder import tune_within

        done = tune_within(done, budget, bench, store, options.jobs)
    if options.library:
        from kvc.library import choose_libraries, contender_for

        with closing(contender_for(place.judge, place.arch)) as contender:
            done = choose_libraries(done, [file.name for file in kernel_files(done)], contender, silent)
    interface = interface_of(captured, "a graph of torch.compile")
    with staged(folder) as stage:
        write_files(stage, done, interface, stored_constants(captured))
        _write_assembly(stage, done)
        (stage / LOCK).write_text(dump(lock_of(done, interface, stage)), encoding="utf-8")
        (stage / "measurements.json").write_text(dump(measurements_of(done)), encoding="utf-8")


def _write_assembly(stage: Path, done: Translation) -> None:
    """What the simulator needs beside the code objects, so that a second process can run them."""
    (stage / "assembly").mkdir()
    for file, artifact in zip(kernel_files(done), done.artifacts, strict=True):
        for symbol in file.objects:
            (stage / "assembly" / f"{file.name}.{symbol}.s").write_text(artifact.verified.compiled.objects[symbol].asm)


def _loaded(folder: Path, captured: Captured, place: Place, known: bool) -> CompiledGraph:
    import torch
    from kvc.optable.random import BUFFER

    lock = read_lock(folder)
    with written_module(folder) as written:
        if place.run == "sim":
            written._launch = Launcher(folder, _compiled_of(folder, lock), _bench(place), place.arch)  # type: ignore[attr-defined]
        model = written.Model()
    drawn = dict(model.named_buffers()).get(BUFFER)
    if drawn is not None:
        drawn[0] = torch.initial_seed() % 2**63
    device = next((x.device for x in captured.args if isinstance(x, torch.Tensor)), torch.device("cpu"))
    fallbacks = tuple(f"{f['op']}: {f['reason']}" for f in lock["fallbacks"])
    launches = sum("kernel" in step and not step.get("once") for step in lock["steps"])
    return CompiledGraph(model.to(device), folder, fallbacks, known, launches, len(lock["kernels"]))


def _compiled_of(folder: Path, lock: Mapping[str, Any]) -> dict[str, Compiled]:
    """The code objects of a folder by their files, with the assembly that the simulator runs."""
    compiled: dict[str, Any] = {}
    for record in lock["kernels"]:
        objects = {
            symbol: CodeObject(
                (folder / "assembly" / f"{record['name']}.{symbol}.s").read_text(), (folder / path).read_bytes(), ()
            )
            for symbol, path in record["symbols"].items()
        }
        compiled |= dict.fromkeys(record["symbols"].values(), Compiled(objects))
    return compiled
