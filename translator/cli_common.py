"""What all commands of the command line share: options, exit codes, and how an error is said."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from kvc.diagnostics import Diagnostic, KvcError
from kvc.settings import settings

if TYPE_CHECKING:
    from kvc.console import Console

NOT_VERIFIED, CANNOT = 1, 2


class Mode(StrEnum):
    eval = "eval"
    train = "train"


class Numerics(StrEnum):
    strict = "strict"
    fast = "fast"


# Options that several commands share. Heavy registries are not asked here: names are checked when a command runs.
ModelArg = Annotated[
    str, typer.Argument(metavar="MODEL", help="model.py, path.py:Name, package.module:factory, or model.onnx.")
]
DimOpt = Annotated[
    list[str] | None, typer.Option("--dim", help="Fix a dimension of an .onnx model, NAME=VALUE (may be repeated).")
]
TargetOpt = Annotated[str, typer.Option("--target", "-t", help="Language to write: hip or triton.")]
ArchOpt = Annotated[str, typer.Option("--arch", "-a", help="GPU to write for, one of those that `kvc arch` lists.")]
ExecutorOpt = Annotated[
    str, typer.Option("--executor", "-e", help="What runs the kernels: auto, amdgpu, sim (auto: a GPU, else sim).")
]
DtypeOpt = Annotated[str | None, typer.Option("--dtype", help="Cast the model first: f32, f16 or bf16.")]
ModeOpt = Annotated[Mode, typer.Option("--mode", help="Capture the model in eval or train mode.")]
SeedOpt = Annotated[int, typer.Option("--seed", help="Seed of inputs, of wave order and of emitters.")]
JobsOpt = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Worker processes.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of text.")]
QuietOpt = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
VerboseOpt = Annotated[bool, typer.Option("--verbose", "-v", help="Print every attempt and what it cost.")]
NumericsOpt = Annotated[
    Numerics, typer.Option("--numerics", help="strict keeps fp32 accuracy; fast allows xf32 and bf16 products inside.")
]

P = ParamSpec("P")
R = TypeVar("R")


def _say(diagnostic: Diagnostic, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ok": False, "diagnostic": diagnostic.to_json()}, indent=2, sort_keys=True, default=str))
        return
    print(f"kvc: {diagnostic}", file=sys.stderr)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a KvcError into one printed diagnostic and an exit code. KVC_DEBUG=1 lets tracebacks through."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KvcError as error:
            if settings().debug:
                raise
            from kvc.pipeline import NotVerified

            _say(error.diagnostic, bool(kwargs.get("as_json")))
            raise typer.Exit(NOT_VERIFIED if isinstance(error, NotVerified) else CANNOT) from None

    return run


def console_for(as_json: bool, quiet: bool, verbose: bool = False) -> Console:
    from kvc.console import Console

    return Console(quiet=quiet or as_json, verbose=verbose)


def print_json(data: Any) -> None:
    from kvc.package import dump

    sys.stdout.write(dump(data))
