"""Whole-model verification: the written module.py is imported as it stands, with its launch function replaced by one
that hands each launch to an executor, and its results are compared with the original's."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import Diagnostic, KvcError
from kvc.dtypes import from_torch
from kvc.emitter import Compiled
from kvc.executor import Argument, LaunchPlan
from kvc.interpret import nudged
from kvc.verify.compare import compare
from kvc.verify.judge import Bench
from kvc.verify.oracle import perturbed
from kvc.verify.verdict import OutputError
from kvc.verify.widened import own_dtype, to_double, widened

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ModelReference:
    """What a model gives on `args` and `kwargs`: in float64, in its working dtype (eager), and in float64 with inputs,
    parameters and the result of every operator moved by one fp32 ulp. Values are leaves of the result by path ("out0",
    ...) and changed buffers by their state_dict names. `source` says where the oracle comes from. `captured`: strides
    of results as torch.export states them, by path; for some operators on a mix of layouts eager gives others."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, torch.Tensor]
    oracle: Outputs
    working: Outputs
    probe: Outputs
    source: str
    growth: float = 2.0
    input_set: str = "example inputs"
    captured: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelEvidence:
    """The whole model's errors, output by output (units as in OutputError)."""

    executor: str
    oracle: str
    input_set: str
    launches: int
    errors: tuple[OutputError, ...]

    @property
    def worst(self) -> OutputError | None:
        return max(self.errors, key=lambda e: e.error / e.tolerance if e.tolerance else 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "executor": self.executor,
            "oracle": self.oracle,
            "input_set": self.input_set,
            "launches": self.launches,
            "errors": [e.to_json() for e in self.errors],
        }


def leaves(result: Any) -> Outputs:
    """Tensor leaves of a (nested) result, in order."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return {f"out{n}": t.detach() for n, t in enumerate(tensors)}


def _nudging(seed: int) -> Any:
    """While it is entered, the result of every ATen operator that computes (no view, nothing in place) is moved by up
    to one fp32 ulp an element: what another order of the same roundings may give (Monte Carlo arithmetic)."""
    import torch
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    generator = torch.Generator().manual_seed(seed)

    class Nudging(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if any(r.alias_info is not None for r in func._schema.returns):
                return result
            return pytree.tree_map(
                lambda x: nudged(x, generator) if isinstance(x, torch.Tensor) and x.dtype == torch.float64 else x,
                result,
            )

    return Nudging()


def reference_of_module(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int = 0, growth: float = 2.0
) -> ModelReference:
    """The reference by running the original module: once as it is, twice in float64 (kvc.verify.widened). Modules that
    cannot run in float64 raise RuntimeError or TypeError from torch."""
    import copy

    import torch

    own = own_dtype(module, (args, dict(kwargs)))

    def run(double: bool, moving: bool = False) -> Outputs:
        twin = copy.deepcopy(module)
        given, named = (args, dict(kwargs))
        if double:
            twin = twin.double()
            given, named = to_double(given), to_double(named)
        if moving:
            with torch.no_grad():
                moved = perturbed(dict(twin.named_parameters()), seed)
                for name, parameter in twin.named_parameters():
                    parameter.copy_(moved[name])
            flat = {f"{n}": x for n, x in enumerate(given) if isinstance(x, torch.Tensor)}
            moved = perturbed(flat, seed + 1)
            given = tuple(moved.get(f"{n}", x) for n, x in enumerate(given))
        before = {name: b.clone() for name, b in twin.named_buffers()}
        wide, nudging = widened(own) if double else nullcontext(), _nudging(seed + 2) if moving else nullcontext()
        with torch.no_grad(), nudging, wide:
            result = leaves(twin(*given, **named))
        changed = {n: b for n, b in twin.named_buffers() if not torch.equal(b, before[n])}
        # A deep copy keeps the strides of a view; `clone` makes some views dense.
        return {**{k: copy.deepcopy(v) for k, v in result.items()}, **{n: b.detach() for n, b in changed.items()}}

    state = {name: t.detach().clone() for name, t in module.state_dict().items()}
    return ModelReference(
        tuple(args), dict(kwargs), state, run(True), run(False), run(True, moving=True),
        "original module in float64", growth,
    )  # fmt: skip


@contextmanager
def written_module(folder: Path) -> Iterator[ModuleType]:
    """Import `module.py` of an output folder under a private name. KVC0802 when the folder holds none."""
    path = folder / "module.py"
    if not path.is_file():
        raise KvcError("KVC0802", f"{folder} holds no module.py", hint="give the folder that `kvc translate -o` wrote")
    name = f"kvc_written_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and NamedTuple look their module up
    # A written folder stays as it was written: no __pycache__ beside the kernels.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = before
        sys.modules.pop(name, None)


class Launcher:
    """Stands in for `_launch` of a written module: the same arguments, run by an executor in a worker. `compiled` maps
    code object files of `folder` to what was verified. KVC0804 where a file is not that."""

    def __init__(self, folder: Path, compiled: Mapping[str, Compiled], bench: Bench, arch: str) -> None:
        self.folder = folder
        self.objects = {file: c.objects for file, c in compiled.items()}
        self.bench = bench
        self.arch = arch
        self.count = 0

    def __call__(self, kernel: Any, call: Any, args: tuple[Any, ...]) -> None:
        import torch

        obj = self.objects[kernel.file][kernel.symbol]
        if (self.folder / kernel.file).read_bytes() != obj.binary:
            raise KvcError("KVC0804", f"{kernel.file} is not the code object that was verified")
        views: dict[str, torch.Tensor] = {}
        plan_args: list[Argument] = []
        fresh = set()
        for arg, mode in zip(args, kernel.modes, strict=True):
            if isinstance(arg, int):
                plan_args.append(("i64", arg))
                continue
            raw = _bytes_of(arg, call.arena)
            name = f"b{raw.data_ptr():x}"
            views[name] = raw
            plan_args.append(("buffer", name))
            if mode == "w":
                fresh.add(name)
        plan_args += [("i64", 0)] * kernel.padding
        plan = LaunchPlan(obj.binary, obj.asm, kernel.symbol, kernel.grid, kernel.block, kernel.lds, tuple(plan_args))
        # Buffers go by position, not by address: the run must not depend on where torch allocates.
        names = {name: f"arg{n}" for n, name in enumerate(views)}
        plan = replace(plan, args=tuple(("buffer", names[a[1]]) if a[0] == "buffer" else a for a in plan.args))
        arrays: dict[str, np.ndarray] = {names[n]: v.numpy() for n, v in views.items()}
        done = self.bench.pool.execute(
            [plan], arrays, outputs={names[n] for n in fresh}, executor=self.bench.executor, arch=self.arch,
            seed=self.bench.seed,
        )  # fmt: skip
        for name, view in views.items():
            view.copy_(torch.from_numpy(done.buffers[names[name]]))
        self.count += 1


def _bytes_of(arg: Any, arena: torch.Tensor) -> torch.Tensor:
    """The bytes that a launch argument reaches, as a view."""
    import torch

    if not isinstance(arg, torch.Tensor):  # a region of the arena
        return arena[arg.offset : arg.offset + arg.nbytes]
    reach = 1 + sum((n - 1) * s for n, s in zip(arg.shape, arg.stride(), strict=True)) if arg.numel() else 0
    return arg.detach().as_strided((reach,), (1,)).view(torch.uint8)


_SPOILED = 0xFF  # every byte of what was derived and must be derived again


@contextmanager
def _poisoned_memory() -> Iterator[None]:
    """torch fills fresh memory with NaN and all-ones, so that a value that no kernel wrote shows."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


def run_written(
    folder: Path, compiled: Mapping[str, Compiled], reference: ModelReference, bench: Bench, arch: str
) -> tuple[Outputs, int]:
    """Results of a written folder on the reference's inputs and weights (outputs by path, and every buffer), and the
    number of launches of a call. `compiled` maps code object files to what was verified."""
    launcher = Launcher(folder, compiled, bench, arch)
    with written_module(folder) as written, _poisoned_memory():
        launch: Callable[..., None] = launcher
        written._launch = launch  # type: ignore[attr-defined]
        model = written.Model()
        model.load_state_dict(reference.state)
        aside, prepared = _exercise_prologue(written, model, launcher)
        model.load_state_dict(reference.state)
        result = leaves(model(*reference.args, **reference.kwargs))
        check_prepared(prepared, getattr(model, "_derived", []))
        buffers = {name: b.detach() for name, b in model.named_buffers()}
    return {**buffers, **result}, launcher.count - aside


def _exercise_prologue(written: Any, model: Any, launcher: Launcher) -> tuple[int, list[torch.Tensor]]:
    """Run what a written module derives from its weights and spoil the result, so that it must be derived again after
    the next `load_state_dict`. Gives the number of launches that this takes beside those of a call, and the bytes that
    were derived. What follows from no weight at all is derived once."""
    if not hasattr(model, "prepare"):
        return 0, []
    model.prepare("cpu")
    views = [_bytes_of(t, t) for t in model._derived]
    prepared = [view.clone() for view in views]
    if not written._SOURCES:
        return launcher.count, prepared
    for view in views:
        view.fill_(_SPOILED)
    return 2 * launcher.count, prepared


def check_prepared(prepared: Sequence[torch.Tensor], derived: Sequence[torch.Tensor]) -> None:
    """KVC0709 where a call left in what `prepare` wrote anything else than that: the next call would read it."""
    for n, (before, t) in enumerate(zip(prepared, derived, strict=True)):
        now = _bytes_of(t, t)
        if bool(((now != before) & (now != _SPOILED)).any()):  # what nobody writes is still spoiled
            raise KvcError("KVC0709", f"a call changes what `prepare` wrote (tensor {n} of `_DERIVED`)")


def _layout(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Size and stride of each dim along which there is a step: that of a dim of size 1 means nothing."""
    return [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a layout puts two elements at one place."""
    return _overlaps(_layout(shape, strides))


def _overlaps(steps: list[tuple[int, int]]) -> bool:
    """Whether a layout puts two elements at one place, as an expanded dim or overlapping windows do."""
    reach = 0
    for extent, stride in sorted(steps, key=lambda step: step[1]):
        if stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def compare_model(got: Outputs, reference: ModelReference, bench: Bench, launches: int) -> ModelEvidence:
    """Evidence that the results are those of the model; KVC0709 for the first output that is not."""
    produced = [name for name in got if name.startswith("out") and name[3:].isdigit()]
    expected = [name for name in reference.working if name.startswith("out") and name[3:].isdigit()]
    if produced != expected:
        raise KvcError("KVC0709", f"{len(produced)} outputs, the original gives {len(expected)}")
    errors = []
    for name, working in reference.working.items():
        if name not in got:
            raise KvcError("KVC0709", f"buffer {name} is not updated")
        # A result that repeats elements in place (expanded, unfolded) may come back as a tensor of its own.
        steps = _layout(working.shape, working.stride())
        known = (steps, _layout(working.shape, reference.captured.get(name, working.stride())))
        mine = _layout(got[name].shape, got[name].stride())
        if name in expected and not _overlaps(steps) and mine not in known and working.numel():
            raise KvcError("KVC0709", f"{name} has strides {got[name].stride()}, the original {working.stride()}")
        result = compare(
            name, from_torch(working.dtype), got[name], reference.oracle[name], working, reference.probe.get(name),
            growth=reference.growth, input_set=reference.input_set,
        )  # fmt: skip
        if result.diagnostic is not None:
            found: Diagnostic = result.diagnostic
            raise KvcError("KVC0709", found.message, hint=found.hint, cause=found.code)
        errors.append(result.error)
    return ModelEvidence(bench.executor, reference.source, reference.input_set, launches, tuple(errors))


def verify_written(
    folder: Path, compiled: Mapping[str, Compiled], reference: ModelReference, bench: Bench, arch: str
) -> ModelEvidence:
    """Run a written folder and compare. KVC0709 when it differs, KVC0804 when a code object is not the verified one,
    and whatever an execution raises."""
    got, launches = run_written(folder, compiled, reference, bench, arch)
    return compare_model(got, reference, bench, launches)


def combined(evidence: Sequence[ModelEvidence]) -> OutputError | None:
    """The worst error of several."""
    worst = [e.worst for e in evidence]
    return max((w for w in worst if w), key=lambda e: e.error / e.tolerance if e.tolerance else 0.0, default=None)
