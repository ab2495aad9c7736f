"""The command line, and nothing else: options, progress, exit codes.

0 done and verified, 1 not verified, 2 cannot be done. Heavy packages are imported inside the commands.
"""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from kvc import __version__, cli_folder
from kvc.arch import DEFAULT_ARCH
from kvc.cli_common import (
    CANNOT,
    NOT_VERIFIED,
    ArchOpt,
    DimOpt,
    DtypeOpt,
    ExecutorOpt,
    JobsOpt,
    JsonOpt,
    Mode,
    ModelArg,
    ModeOpt,
    Numerics,
    NumericsOpt,
    QuietOpt,
    SeedOpt,
    TargetOpt,
    VerboseOpt,
    console_for,
    guarded,
    print_json,
)
from kvc.diagnostics import KvcError
from kvc.settings import settings

app = typer.Typer(
    name="kvc",
    help="Translate PyTorch models to HIP or Triton kernels for AMD CDNA GPUs, each verified before it is written.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Level(StrEnum):
    graph = "graph"
    kernel = "kernel"


def _version(show: bool) -> None:
    if show:
        print(f"kvc {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
@guarded
def translate(
    model: ModelArg,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder to write (default: out/NAME).")] = None,
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    dtype: DtypeOpt = None,
    dim: DimOpt = None,
    mode: ModeOpt = Mode.eval,
    executor: ExecutorOpt = "auto",
    numerics: NumericsOpt = Numerics.strict,
    strict: Annotated[bool, typer.Option("--strict", help="Fail where an operator would run eagerly.")] = False,
    emitter: Annotated[
        list[str] | None, typer.Option("--emitter", help="Use only this emitter (may be repeated).")
    ] = None,
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Judge every kernel again.")] = False,
    budget: Annotated[
        str, typer.Option("--budget", help="What tuning may cost: 0, 30s, 10m, 2h or 200t (trials); see kvc tune.")
    ] = "0",
    library: Annotated[
        bool,
        typer.Option(
            "--library/--no-library",
            help="Let a vendor library's call replace a kernel where it is verified and measured to be faster (needs "
            "the GPU). --no-library: generated kernels alone.",
        ),
    ] = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    verbose: VerboseOpt = False,
) -> None:
    """Translate a model to verified kernels.

    Captures it, writes and verifies each distinct kernel, verifies the whole, and writes a folder. Exit code 0: all
    verified; 1: something did not verify, nothing was written; 2: cannot be done.
    """
    from kvc.commands import TranslateRequest, run_translate, with_dims

    request = TranslateRequest(
        model=with_dims(model, dim),
        out=out,
        target=target,
        arch=arch,
        dtype=dtype,
        mode=mode.value,
        executor=executor,
        numerics=numerics.value,
        strict=strict,
        emitters=tuple(emitter or ()),
        seed=seed,
        jobs=jobs,
        use_cache=not no_cache,
        budget=budget,
        library=library,
    )
    console = console_for(as_json, quiet, verbose)
    summary = run_translate(request, console)
    if as_json:
        print_json({"ok": True, **summary})


@app.command()
@guarded
def verify(
    out: Annotated[Path | None, typer.Argument(help="A folder that `kvc translate` wrote.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Compare with this original model too.")] = None,
    spec: Annotated[Path | None, typer.Option("--spec", help="Judge one kernel: its spec (.kir).")] = None,
    source: Annotated[Path | None, typer.Option("--source", help="Judge one kernel: its source.")] = None,
    replay: Annotated[
        str, typer.Option("--replay", metavar="SEED/SET", help="With --spec: one input set of one seed alone.")
    ] = "",
    arch: ArchOpt = DEFAULT_ARCH,
    executor: ExecutorOpt = "auto",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    verbose: VerboseOpt = False,
) -> None:
    """Verify a written folder, or one kernel.

    A folder is verified from its sources, trusting nothing in its lock. A kernel written by hand is judged with --spec
    and --source; its source says how it is launched in comment lines like those that kvc writes:
    "Launch: NAME(x, y), grid 4 x 1 x 1, block 256 x 1 x 1". A rejection says which check objected, at which element,
    by how much, and the --replay that shows it again.
    """
    from kvc.commands import run_verify_folder, run_verify_source

    console = console_for(as_json, quiet, verbose)
    if (spec is None) != (source is None) or (out is None) == (spec is None):
        raise KvcError(
            "KVC0106",
            "nothing to verify, or too much",
            hint="kvc verify OUT, or kvc verify --spec S.kir --source K.hip",
        )
    if out is not None:
        result = run_verify_folder(out, model, executor, seed, jobs, console)
    else:
        assert spec is not None and source is not None
        result = run_verify_source(spec, source, arch, executor, seed, console, replay)
    if as_json:
        print_json(result)
    if not result["ok"]:
        raise typer.Exit(NOT_VERIFIED)


@app.command()
@guarded
def ir(
    model: ModelArg,
    level: Annotated[Level, typer.Option("--level", "-l", help="graph: the captured model; kernel: its kernels.")] = (
        Level.graph
    ),
    dtype: DtypeOpt = None,
    dim: DimOpt = None,
    mode: ModeOpt = Mode.eval,
    as_json: JsonOpt = False,
) -> None:
    """Print a model as graph or kernels."""
    from kvc.commands import run_ir, with_dims

    text = run_ir(with_dims(model, dim), level.value, dtype, mode.value)
    if as_json:
        print_json({"ok": True, "level": level.value, "text": text})
    else:
        print(text)


@app.command()
@guarded
def sim(
    assembly: Annotated[Path, typer.Argument(metavar="K.s", help="Assembly text, as clang or Triton wrote it.")],
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="An argument, in order: f32[1024]:randn, f32[1024]:out, i32=5, ... (repeat)."),
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Which kernel of the file, if it has several.")] = None,
    grid: Annotated[str, typer.Option("--grid", help="Workgroups, X or X,Y,Z.")] = "1",
    block: Annotated[str, typer.Option("--block", help="Threads of a workgroup, X or X,Y,Z.")] = "64",
    lds: Annotated[int, typer.Option("--lds", min=0, help="Dynamic LDS in bytes.")] = 0,
    arch: ArchOpt = DEFAULT_ARCH,
    sample: Annotated[int, typer.Option("--sample", min=0, help="Run only that many workgroups (0: all).")] = 0,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Run one kernel on the simulator.

    Prints its counters and what it wrote.
    """
    from kvc.commands import run_sim

    result = run_sim(assembly, tuple(arg or ()), kernel, grid, block, lds, arch, seed, sample)
    if as_json:
        print_json({"ok": True, **result})
    else:
        print(result["text"])


@app.command()
@guarded
def selftest(
    executor: ExecutorOpt = "auto",
    arch: ArchOpt = DEFAULT_ARCH,
    corrections: Annotated[
        Path | None, typer.Option("--corrections", help="File that keeps what differs from the simulator.")
    ] = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Compare a device with the simulator.

    Runs every opcode and a set of kernels.
    """
    from kvc.commands import run_selftest

    result = run_selftest(executor, arch, corrections, console_for(as_json, quiet))
    if as_json:
        print_json(result)
    if not result["ok"]:
        raise typer.Exit(NOT_VERIFIED)


@app.command()
@guarded
def arch(
    name: Annotated[str | None, typer.Argument(help="One GPU, in full.")] = None,
    as_json: JsonOpt = False,
) -> None:
    """Print the hardware table."""
    from kvc.commands import run_arch

    text, data = run_arch(name)
    if as_json:
        print_json(data)
    else:
        print(text)


@app.command()
@guarded
def doctor(as_json: JsonOpt = False) -> None:
    """Say what is installed and what is missing.

    Toolchains, devices and versions, and for what is missing the command that installs it.
    """
    from kvc.doctor import examine, render

    found = examine()
    if as_json:
        print_json({"ok": all(f.ok or f.optional for f in found), "findings": [f.to_json() for f in found]})
    else:
        print(render(found))
    if not all(f.ok or f.optional for f in found):
        raise typer.Exit(CANNOT)


cli_folder.register(app)

for entry in sorted(entry_points(group="kvc.commands"), key=lambda e: e.name):
    command = entry.load()
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name)(command)


def _internal_error(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Last resort for what is a bug of kvc: no traceback unless asked for, and never the exit code of a verdict."""
    if settings().debug:
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"kvc: internal error: {kind.__name__}: {error}\n  hint: set KVC_DEBUG=1 to see where", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CANNOT)


def _terminated(number: int, frame: Any) -> NoReturn:
    """SIGTERM unwinds like an error, so that staging folders and workers go."""
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """Entry point of the `kvc` command."""
    sys.excepthook = _internal_error
    signal.signal(signal.SIGTERM, _terminated)
    command = typer.main.get_command(app)  # calling `app` itself would install typer's own hook
    try:
        command(prog_name="kvc")
    except BrokenPipeError:  # the reader of our output has gone
        os._exit(0)
    sys.exit(0)
