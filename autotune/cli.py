"""`kvc tune`: heavy packages are imported inside the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from kvc.cli_common import (
    ExecutorOpt,
    JobsOpt,
    JsonOpt,
    QuietOpt,
    SeedOpt,
    VerboseOpt,
    console_for,
    guarded,
    print_json,
)

BudgetOpt = Annotated[
    str, typer.Option("--budget", help="What tuning may cost: 0, seconds (30s), minutes (10m), hours or trials (200t).")
]
StorageOpt = Annotated[
    str,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where trials are kept and shared: a journal file, sqlite:///, postgresql://, mysql://, redis://, grpc://.",
    ),
]


@guarded
def tune(
    out: Annotated[Path, typer.Argument(help="A folder that `kvc translate` wrote.")],
    kernel: Annotated[list[str] | None, typer.Argument(help="Kernels of it (default: those that take most time).")] = (
        None
    ),
    every: Annotated[bool, typer.Option("--all", help="Tune every kernel.")] = False,
    budget: BudgetOpt = "10m",
    storage: StorageOpt = "",
    study: Annotated[
        str, typer.Option("--study", metavar="NAME", help="Keep the trials apart from those of other names.")
    ] = "",
    model: Annotated[str | None, typer.Option("--model", help="Compare with this original model too.")] = None,
    executor: ExecutorOpt = "auto",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Judge every kernel again.")] = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
    verbose: VerboseOpt = False,
) -> None:
    """Tune the kernels of a translation.

    Tries settings of every emitter, times only what is verified, verifies the winner again with another seed, and
    writes the folder anew. Without a GPU, times are estimates and called so. Interrupted, it keeps the best so far;
    started again, it goes on.
    """
    from kvc.autotune.budget import Budget
    from kvc.autotune.folder import Request, tune_folder
    from kvc.autotune.progress import Progress
    from kvc.commands import one_thread

    console = console_for(as_json, quiet, verbose)
    request = Request(
        out, tuple(kernel or ()), every, Budget.parse(budget), executor, jobs, storage, study, seed, model,
        use_cache=not no_cache,
    )  # fmt: skip
    one_thread()
    with Progress(console, verbose) as progress:
        summary: dict[str, Any] = tune_folder(request, progress.listen)
    if as_json:
        print_json({"ok": True, **summary})
        return
    from kvc.autotune.progress import summary_text

    console.say(summary_text(summary))
