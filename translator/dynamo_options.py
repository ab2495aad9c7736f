"""The options of `torch.compile(backend="kvc")`, checked, and the place that they and the tensors' device come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvc.arch import CDNA, DEFAULT_ARCH, arch
from kvc.diagnostics import KvcError
from kvc.emitter import NUMERICS, targets
from kvc.emitter import target as find_target

if TYPE_CHECKING:
    import torch

EXECUTORS = ("auto", "sim")


@dataclass(frozen=True)
class DynamoOptions:
    """The options of the backend.

    `target` "": hip on ROCm and on the simulator, triton on CUDA. `arch` "": the GPU at hand. `budget`: what tuning may
    cost before a graph first runs (kvc.autotune.budget: "30s", "200t"; "0": nothing). `library`: whether a vendor
    library may take a kernel's place where it was measured to be faster. `graphs`: record graphs of the device and
    replay them. `strict`: raise in the place of running eagerly.
    """

    target: str = ""
    arch: str = ""
    emitter: tuple[str, ...] = ()
    numerics: str = "strict"
    budget: str = "0"
    library: bool = False
    graphs: bool = False
    strict: bool = False
    executor: str = "auto"
    seed: int = 0
    jobs: int = 2

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> DynamoOptions:
        """The options in a mapping. KVC0106 for an unknown option or a value out of range, KVC0105 for a target, GPU or
        emitter that there is none of."""
        values = dict(given or {})
        known = [f.name for f in fields(DynamoOptions)]
        for name in values:
            if name not in known:
                raise KvcError("KVC0106", f"backend kvc has no option {name!r}", hint=f"one of: {', '.join(known)}")
        values["emitter"] = _names("emitter", values.get("emitter", ()))
        for name, kind in (("target", str), ("arch", str), ("numerics", str), ("executor", str), ("budget", str),
                           ("strict", bool), ("library", bool), ("graphs", bool), ("seed", int),
                           ("jobs", int)):  # fmt: skip
            value = values.get(name)
            if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise KvcError("KVC0106", f"option {name}={value!r}", hint=f"{name} is a {kind.__name__}")
        options = DynamoOptions(**{name: value for name, value in values.items() if value is not None})
        options.check()
        return options

    def check(self) -> None:
        """KVC0105 and KVC0106 for values that mean nothing."""
        from kvc.autotune.budget import Budget

        if self.target:
            find_target(self.target)
        if self.arch:
            arch(self.arch)
        for name, value, choices in (
            ("numerics", self.numerics, NUMERICS),
            ("executor", self.executor, EXECUTORS),
        ):
            if value not in choices:
                raise KvcError("KVC0106", f"option {name}={value!r}", hint=f"one of: {', '.join(choices)}")
        if self.jobs < 1:
            raise KvcError("KVC0106", f"option jobs={self.jobs}", hint="at least 1")
        Budget.parse(self.budget)
        _check_emitters(self.emitter, self.target)


def _names(option: str, value: Any) -> tuple[str, ...]:
    """One name, or several. KVC0106 for anything else."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    if isinstance(value, Sequence | set | frozenset) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise KvcError("KVC0106", f"option {option}={value!r}", hint="a name, or a list of names")


def _check_emitters(names: Sequence[str], target: str) -> None:
    """KVC0105 for an emitter that no possible target has."""
    from kvc.pipeline import emitters_for

    if not names:
        return
    possible = [find_target(target)] if target else list(targets().values())
    wrong: list[KvcError] = []
    for each in possible:
        try:
            emitters_for(each, tuple(names))
        except KvcError as error:
            wrong.append(error)
    if len(wrong) == len(possible):
        raise wrong[0]


# ---------------------------------------------------------------- where to run


@dataclass(frozen=True)
class Place:
    """Options with nothing left open: what is written, for which GPU, what judges it and what runs it ("sim", or
    "native" for the GPU that the tensors are on)."""

    options: DynamoOptions
    target: str
    arch: str
    judge: str
    run: str


def resolved(options: DynamoOptions, inputs: Sequence[Any]) -> Place:
    """KVC0601 where kernels for the chosen GPU cannot run on the tensors' device, KVC0602 on a GPU that kernels are not
    written for."""
    import torch
    from kvc.executors import choose

    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if options.executor == "sim":
        if any(d.type != "cpu" for d in devices):
            raise KvcError("KVC0601", "executor sim runs models on the CPU", hint="leave it out on a GPU")
        row = arch(options.arch or DEFAULT_ARCH)
        return Place(options, options.target or "hip", row.name, choose("sim", row), "sim")
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise KvcError(
            "KVC0601", f"the tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}",
            hint='move model and inputs to one GPU, or try the simulator with options={"executor": "sim"}',
        )  # fmt: skip
    return _on_gpu(options, next(iter(devices)))


def _on_gpu(options: DynamoOptions, device: torch.device) -> Place:
    import torch
    from kvc.executors import choose

    if torch.version.hip is None:
        target = options.target or "triton"
        if target != "triton":
            raise KvcError(
                "KVC0601", f"{target} kernels do not run on this GPU", hint='use options={"target": "triton"}'
            )
        row = arch(options.arch or DEFAULT_ARCH)
    else:
        found = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        if found not in CDNA or options.arch not in ("", found):
            raise KvcError("KVC0602", f"{device} is a {found}", hint=f"kernels are written for: {', '.join(CDNA)}")
        target, row = options.target or "hip", arch(found)
    return Place(options, target, row.name, choose("auto", row), "native")
