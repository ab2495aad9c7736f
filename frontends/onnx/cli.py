"""`kvc onnx`: what of ONNX is supported, a model's weights, and ONNX's own tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from kvc.arch import DEFAULT_ARCH
from kvc.cli_common import NOT_VERIFIED, ArchOpt, ExecutorOpt, JsonOpt, QuietOpt, TargetOpt, console_for, guarded
from kvc.cli_common import print_json as show_json

app = typer.Typer(help="ONNX models: supported operators, weights, conformance.", no_args_is_help=True)


@app.command()
@guarded
def ops(as_json: JsonOpt = False) -> None:
    """List the operators that kvc reads.

    Operators that ONNX defines as a function of these need no row and work too.
    """
    from kvc.frontends.onnx.table import CONTROL, TABLE

    if as_json:
        show_json({"rows": sorted(TABLE), "control": list(CONTROL)})
        return
    print("\n".join(sorted([*TABLE, *CONTROL])))


@app.command()
@guarded
def weights(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The model whose initializers to write.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .safetensors file to write.")],
) -> None:
    """Write a model's weights as safetensors.

    The names are those that the `Model` of a translation has in its state_dict.
    """
    from kvc.frontends.onnx import state_dict
    from kvc.package import safetensors

    found = state_dict(model)
    out.write_bytes(safetensors(found))
    print(f"{out}: {len(found)} tensors")


@app.command()
@guarded
def conformance(
    pattern: Annotated[str, typer.Argument(help="Only cases whose name contains this.")] = "",
    level: Annotated[
        str, typer.Option("--level", "-l", help="table, interpreter (the captured graph), or simulator (kernels).")
    ] = "interpreter",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Run about that many, evenly chosen (0: all).")] = 0,
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    executor: ExecutorOpt = "auto",
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Run ONNX's own node tests.

    Exit code 1 when fewer than 90 % of those in scope pass.
    """
    from kvc.commands import one_thread
    from kvc.frontends.onnx import conformance as tests

    console = console_for(as_json, quiet)
    one_thread()
    simulate = tests.simulator(target, arch, executor) if level == "simulator" else None
    results = tests.run(pattern, level, simulate, limit, lambda r: console.note(f"{r.name}: {r.state}"))
    found = tests.summary(results, level)
    if as_json:
        show_json(found)
    else:
        print(tests.text_of(found))
    if found["share"] < tests.WANTED:
        raise typer.Exit(NOT_VERIFIED)
