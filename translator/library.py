"""The choice between a generated kernel and a call of a vendor library, step by step of a translation.

`--library` allows it. A library call takes a kernel's place only when, on the device that kernels are verified on, it
passes the verifier's own comparisons on the same input sets, gives the same bits twice, and is measurably faster than
the verified kernel. The kernel stays in the folder beside it, verified as ever. What was chosen is declared in the lock
and the report and is never counted as generated. `--no-library`, the default, is a guarantee: the written module
computes with generated kernels alone, and the lock says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kvc.diagnostics import Diagnostic, KvcError
from kvc.executor import LaunchPlan
from kvc.kernel import KernelSpec
from kvc.library_forms import LibraryForm, library_form
from kvc.plan import Invoke, Plan
from kvc.verify.buffers import bind, launch_plans
from kvc.verify.judge import compare_outputs, input_sets
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Artifact, OutputError, Rejected, worst_errors

if TYPE_CHECKING:
    import numpy as np
    import torch
    from kvc.pipeline import Listener, Translation

FASTER = 0.97  # of the kernel's time: a smaller gain is not worth a step that nobody can read
CHECKS = ("outputs written", "structure", "non-finite parity", "tolerance", "working error", "bias", "deterministic")


class Contender(Protocol):
    """Runs and times library calls on a device. `facts`: what decided (device, torch, the libraries' versions)."""

    def facts(self) -> dict[str, str]: ...

    def outputs(self, form: LibraryForm, spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The result on the device, as a CPU tensor of the operand's shape. KVC0603 where the call fails."""
        ...

    def contest(
        self,
        form: LibraryForm,
        spec: KernelSpec,
        plans: Sequence[LaunchPlan],
        buffers: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> tuple[float, float]:
        """Median milliseconds of the library call and of the kernel's launches, run by turns with emptied caches."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LibraryChoice:
    """What became of a kernel's library form. `reason` says why it was not chosen, "" where it was."""

    form: LibraryForm | None
    reason: str
    library_us: float | None = None
    kernel_us: float | None = None
    errors: tuple[OutputError, ...] = ()
    sets: tuple[str, ...] = ()
    executor: str = ""
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def chosen(self) -> bool:
        return self.form is not None and not self.reason

    def record(self) -> dict[str, Any]:
        """The lock's entry of a chosen call: deterministic, so without times."""
        assert self.form is not None
        return {
            "family": self.form.family,
            "calls": list(self.form.calls),
            "sha256": digest(self.form),
            "executor": self.executor,
            "checks": list(CHECKS),
            "input_sets": list(self.sets),
            "errors": [_error_json(e) for e in self.errors],
            "facts": dict(self.facts),
        }

    def measured(self) -> dict[str, Any]:
        """The entry of measurements.json: times, or the reason why there are none."""
        times = {"library_us": self.library_us, "kernel_us": self.kernel_us}
        known = {k: round(v, 3) for k, v in times.items() if v is not None}
        return {
            "chosen": self.chosen,
            "calls": list(self.form.calls) if self.form else [],
            "reason": self.reason,
        } | known

    @staticmethod
    def from_record(form: LibraryForm, record: Mapping[str, Any]) -> LibraryChoice:
        """The choice that a lock declares. KVC0804 where its call is not the form that this kvc writes."""
        if record["sha256"] != digest(form):
            raise KvcError(
                "KVC0804", f"the library call {form.name} is not what this kvc writes", hint="translate again"
            )
        errors = tuple(
            OutputError(e["output"], e["error"], e["tolerance"], e["working_error"], e["allowed"], e["input_set"],
                        tuple(e["where"]))
            for e in record["errors"]
        )  # fmt: skip
        facts = tuple(sorted(record["facts"].items()))
        return LibraryChoice(form, "", None, None, errors, tuple(record["input_sets"]), record["executor"], facts)


def _error_json(error: OutputError) -> dict[str, Any]:
    return {"output": error.output, "error": error.error, "tolerance": error.tolerance, "working_error": error.working,
            "allowed": error.allowed, "input_set": error.input_set, "where": list(error.where)}  # fmt: skip


def digest(form: LibraryForm) -> str:
    """Identity of a call: its source."""
    return hashlib.sha256(form.source.encode()).hexdigest()


def contender_for(executor: str, arch: str) -> Contender:
    """What runs and times library calls beside `executor`. KVC0601 where there is no device to decide on."""
    if executor == "sim":
        raise KvcError(
            "KVC0601",
            "--library chooses by measured times, and there is no device here",
            hint="leave out --library (then no library is called), or translate on a machine with the GPU",
        )
    from kvc.autotune.library_clock import LibraryClock

    return LibraryClock(executor, arch)


def called(plan: Plan) -> frozenset[int]:
    """Kernels that run at each call and never in the prologue: those whose place a library may take."""
    prologue = {s.kernel for n, s in enumerate(plan.steps) if n in plan.prologue and isinstance(s, Invoke)}
    return frozenset(s.kernel for s in plan.launches) - prologue


def choose_libraries(done: Translation, names: Sequence[str], contender: Contender, listen: Listener) -> Translation:
    """The translation with a choice for each kernel that has a form; `names` are the kernels' file names."""
    listen("stage", {"name": "library"})
    choices: list[LibraryChoice] = []
    possible = called(done.plan)
    for index, (name, artifact) in enumerate(zip(names, done.artifacts, strict=True)):
        task = artifact.candidate.task
        form = library_form(task.spec, f"_library_{name}", task.numerics)
        if isinstance(form, str):
            choices.append(LibraryChoice(None, form))
        elif index not in possible:
            choices.append(LibraryChoice(None, "it runs when parameters change, not at each call"))
        else:
            choices.append(consider(form, artifact, done.options.executor, done.options.seed, contender))
    return replace(done, library=tuple(choices))


def consider(form: LibraryForm, artifact: Artifact, executor: str, seed: int, contender: Contender) -> LibraryChoice:
    """Verify a form, then time it against the verified kernel."""
    spec = artifact.candidate.task.spec
    examiner = Examiner(spec, seed)
    sets = input_sets(spec, examiner, seed)
    try:
        verdict = verified(form, spec, examiner, sets, contender)
        if isinstance(verdict, Rejected):
            found = verdict.diagnostic
            return LibraryChoice(form, f"{verdict.stage}: {found.code}: {found.message}")
        inputs = examiner.reference(sets[0]).inputs
        buffers, fresh = bind(artifact.candidate, inputs)
        plans = launch_plans(artifact.candidate, artifact.verified.compiled)
        library_ms, kernel_ms = contender.contest(form, spec, plans, buffers, fresh)
    except KvcError as error:
        if not error.code.startswith("KVC06") or error.code in ("KVC0601", "KVC0602"):
            raise
        return LibraryChoice(form, f"{error.code}: {error.diagnostic.message}")
    slower = library_ms > FASTER * kernel_ms
    reason = f"{library_ms / kernel_ms:.2f} of the kernel's time" if slower else ""
    return LibraryChoice(
        form,
        reason,
        1e3 * library_ms,
        1e3 * kernel_ms,
        verdict,
        sets,
        executor,
        tuple(sorted(contender.facts().items())),
    )


def verified(
    form: LibraryForm, spec: KernelSpec, examiner: Examiner, sets: Sequence[str], contender: Contender
) -> tuple[OutputError, ...] | Rejected:
    """The errors of a form on the verifier's input sets, or what objects to it."""
    out = spec.outputs[0].name
    errors: list[OutputError] = []
    first: torch.Tensor | None = None
    for name in sets:
        reference = examiner.reference(name)
        result = contender.outputs(form, spec, reference.inputs)
        if tuple(result.shape) != spec.shape_of(out):
            return Rejected("compare", Diagnostic("KVC0708", f"{form.name} gives the shape {tuple(result.shape)}"))
        found = compare_outputs(spec, {out: result}, reference, examiner)
        if isinstance(found, Rejected):
            return found
        errors += found
        first = result if first is None else first
    again = contender.outputs(form, spec, examiner.reference(sets[0]).inputs)
    if first is not None and not _same_bits(first, again):
        return Rejected("determinism", Diagnostic("KVC0705", f"{form.calls[0]} gives other bits each time"))
    return worst_errors(errors)


def _same_bits(first: torch.Tensor, again: torch.Tensor) -> bool:
    import torch

    return torch.equal(first.contiguous().view(torch.uint8), again.contiguous().view(torch.uint8))


# ---------------------------------------------------------------- running a form


class Fp32:
    """While it is entered, products of fp32 are fp32: no TF32 in cuBLAS and cuDNN."""

    def __enter__(self) -> None:
        self.before = [(place, getattr(place, name), name) for place, name in _precisions()]
        for place, _, name in self.before:
            setattr(place, name, "ieee" if name == "fp32_precision" else False)

    def __exit__(self, *_: object) -> None:
        for place, value, name in self.before:
            setattr(place, name, value)


def _precisions() -> list[tuple[Any, str]]:
    from torch import backends

    matmul: Any = backends.cuda.matmul
    cudnn: Any = backends.cudnn
    if hasattr(matmul, "fp32_precision"):
        return [(matmul, "fp32_precision"), (cudnn.conv, "fp32_precision")]
    return [(matmul, "allow_tf32"), (cudnn, "allow_tf32")]


def function_of(form: LibraryForm) -> Any:
    """The form as a callable. Its source is kvc's own text, from the spec alone."""
    import torch
    from torch import nn

    space: dict[str, Any] = {"torch": torch, "nn": nn, "_Fp32": Fp32}
    exec(compile(form.source, f"<{form.name}>", "exec"), space)
    return space[form.name]


def run_on_host(form: LibraryForm, inputs: Mapping[str, torch.Tensor], spec: KernelSpec) -> torch.Tensor:
    """The form by torch on this machine's CPU: shows that it states the spec, and nothing about any GPU's library."""
    import torch

    given = []
    for name in form.inputs:
        o = spec.operand[name]
        flat = torch.empty_strided(spec.shape_of(name), spec.strides_of(name), dtype=getattr(torch, o.dtype.torch_name))
        given.append(flat.copy_(inputs[name]))
    result: torch.Tensor = function_of(form)(*given)
    return result


class Host:
    """A contender that only runs: torch on the CPU, for `kvc verify` where there is no device."""

    def facts(self) -> dict[str, str]:
        import torch

        return {"device": "CPU", "torch": torch.__version__}

    def outputs(self, form: LibraryForm, spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return run_on_host(form, inputs, spec)

    def contest(self, *_: Any) -> tuple[float, float]:
        raise KvcError("KVC0601", "the CPU's times decide nothing about a GPU", hint="choose on the GPU itself")

    def close(self) -> None:
        """Nothing to end."""


__all__ = ["Contender", "Host", "LibraryChoice", "choose_libraries", "contender_for", "function_of"]
