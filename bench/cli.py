"""`kvc bench`: public suites and the micro-suite. Heavy packages are imported inside the commands."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from kvc.arch import DEFAULT_ARCH
from kvc.cli_common import (
    NOT_VERIFIED,
    ArchOpt,
    ExecutorOpt,
    JobsOpt,
    JsonOpt,
    QuietOpt,
    SeedOpt,
    TargetOpt,
    console_for,
    guarded,
    print_json,
)

if TYPE_CHECKING:
    from kvc.console import Console

app = typer.Typer(help="Run public benchmark suites.", no_args_is_help=True, rich_markup_mode=None)


JournalOpt = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the journal and the table.")]
ModelTimeoutOpt = Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that one model may take.")]
RetryOpt = Annotated[bool, typer.Option("--retry", help="Run again only what did not pass before.")]


class BenchStage(StrEnum):
    plan = "plan"
    verify = "verify"
    time = "time"


@app.command()
@guarded
def micro(
    target: TargetOpt = "triton",
    cases: Annotated[str, typer.Option("--cases", help="Only cases whose name holds one of these, such as a,b.")] = "",
    settings: Annotated[int, typer.Option("--settings", min=1, help="Settings of each kernel to time.")] = 1,
    only_open: Annotated[bool, typer.Option("--open", help="Only cases whose bar is not known to be met.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the table.")] = None,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Time single kernels on a CUDA GPU, beside torch and the roofline.

    Kernels are compiled for that GPU from the emitters that write gfx code; what is measured is no evidence for a gfx
    kernel. Writes micro.json and micro.md.
    """
    import json

    from kvc.bench.micro import Request, markdown, run

    console = console_for(as_json, quiet)
    names = tuple(n for n in cases.split(",") if n)
    folder = out or Path("out") / f"micro-{target}"
    folder.mkdir(parents=True, exist_ok=True)

    def keep(result: dict[str, Any]) -> None:
        (folder / "micro.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        (folder / "micro.md").write_text(markdown(result), encoding="utf-8")

    result = run(Request(target, names, settings, only_open, seed=seed), console.note, keep)
    if as_json:
        print_json({"ok": True, **result})
    else:
        console.say(f"{len(result['rows'])} kernels timed; see {folder / 'micro.md'}")


@app.command()
@guarded
def cdna(
    targets: Annotated[str, typer.Option("--targets", help="Targets, such as hip,triton.")] = "hip,triton",
    archs: Annotated[str, typer.Option("--archs", help="GPUs (default: all CDNA ones of `kvc arch`).")] = "",
    cases: Annotated[str, typer.Option("--cases", help="Only cases whose name holds one of these, such as a,b.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the table.")] = None,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Judge the code for CDNA GPUs without one: from the compiled text and the simulator's counters.

    Spills, registers, LDS and occupancy are the compiler's; bytes and instructions are counted; cycles are estimates.
    Writes cdna.json and cdna.md. Exit code 0 also where bars are missed: the table says which.
    """
    import json

    from kvc.arch import CDNA
    from kvc.bench.cdna import Request, markdown, run

    console = console_for(as_json, quiet)
    chosen = tuple(a for a in archs.split(",") if a) or CDNA
    names = tuple(n for n in cases.split(",") if n)
    result = run(Request(tuple(t for t in targets.split(",") if t), chosen, names, seed=seed), console.note)
    folder = out or Path("out") / "cdna"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cdna.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (folder / "cdna.md").write_text(markdown(result), encoding="utf-8")
    if as_json:
        print_json({"ok": True, **result})
    else:
        console.say(f"{len(result['rows'])} kernels, {result['missed']} bars missed; see {folder / 'cdna.md'}")


@app.command()
@guarded
def kernelbench(
    root: Annotated[Path, typer.Option("--root", help="A checkout of ScalingIntelligence/KernelBench.")],
    level: Annotated[str, typer.Option("--level", help="Levels, such as 1,2,3.")] = "1,2,3",
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    stage: Annotated[
        BenchStage,
        typer.Option("--stage", help="plan: up to the kernels' specs; verify: all of it; time: on a CUDA GPU."),
    ] = BenchStage.verify,
    problems: Annotated[str | None, typer.Option("--problems", help="Numbers in the level, such as 1,5,7-9.")] = None,
    every: Annotated[int, typer.Option("--every", min=1, help="Only each so-many-th problem.")] = 1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many problems.")] = None,
    part: Annotated[
        str, typer.Option("--slice", metavar="I/N", help="The I-th of N slices; all may share one --out.")
    ] = "1/1",
    baselines: Annotated[
        str, typer.Option("--baselines", help="With --stage time: of eager, compile, max_autotune.")
    ] = "eager,compile,max_autotune",
    out: JournalOpt = None,
    full_size: Annotated[bool, typer.Option("--full-size", help="Do not reduce sizes (needs a GPU).")] = False,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of the suite's criterion.")] = 5,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that one problem may take.")] = 900.0,
    retry: RetryOpt = False,
    executor: ExecutorOpt = "auto",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Translate and verify KernelBench.

    Each problem runs in a process of its own; a killed run goes on where it was. Without a GPU, problems run at
    reduced sizes on the simulator. Writes results.jsonl, table.json and table.md. Exit code 0: all passed, problems
    whose reference proves nothing aside; 1: some did not.
    """
    from kvc.bench.kernelbench import Request, run, slice_of
    from kvc.bench.problems import numbers

    console = console_for(as_json, quiet)
    request = Request(
        root=root,
        levels=tuple(sorted(numbers(level))),
        out=out or Path("out") / f"kernelbench-{target}-{arch}-{stage.value}",
        target=target,
        arch=arch,
        stage=stage.value,
        executor=executor,
        numbers=numbers(problems) if problems else None,
        every=every,
        limit=limit,
        part=slice_of(part),
        baselines=tuple(b for b in baselines.split(",") if b),
        full_size=full_size,
        seed=seed,
        jobs=jobs,
        timeout_s=timeout,
        trials=trials,
        retry=retry,
    )
    summary = run(request, console.note, show_progress=not quiet)
    figures = summary["all"]
    if as_json:
        print_json({"ok": figures["failed"] == 0, **summary})
    else:
        console.say(
            f"{figures['passed']} of {figures['total']} passed, {figures['failed']} failed, {figures['reference']} "
            f"references prove nothing; {figures['kernels']} kernels, {figures['fallbacks']} fallbacks; "
            f"see {request.out / 'table.md'}"
        )
    if figures["failed"] or figures["passed"] + figures["reference"] < figures["total"]:
        raise typer.Exit(NOT_VERIFIED)


def _models_passed(summary: dict[str, Any], as_json: bool, console: Console, more: str) -> None:
    """Say how many models passed; exit code 1 where some did not."""
    figures = summary["all"]
    if as_json:
        print_json({"ok": figures["passed"] == figures["total"], **summary})
    else:
        console.say(f"{figures['passed']} of {figures['total']} models passed; {more}")
    if figures["passed"] < figures["total"]:
        raise typer.Exit(NOT_VERIFIED)


class ZooStage(StrEnum):
    plan = "plan"
    verify = "verify"


class ZooMode(StrEnum):
    eval = "eval"
    train = "train"


@app.command()
@guarded
def zoo(
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    stage: Annotated[
        ZooStage, typer.Option("--stage", help="plan: up to the kernels' specs; verify: all of it.")
    ] = ZooStage.plan,
    models: Annotated[str, typer.Option("--models", help="Only these rows of the zoo, such as a,b.")] = "",
    libraries: Annotated[str, typer.Option("--libraries", help="Only models of these, such as timm.")] = "",
    mode: Annotated[ZooMode, typer.Option("--mode", help="The mode that models are captured in.")] = ZooMode.eval,
    out: JournalOpt = None,
    timeout: ModelTimeoutOpt = 900.0,
    retry: RetryOpt = False,
    executor: ExecutorOpt = "auto",
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Translate architectures of transformers, timm and torchvision at small sizes.

    Takes the libraries that are installed. Each model runs in a process of its own; a killed run goes on where it was.
    Writes results.jsonl, table.json and table.md. Exit code 0: all passed; 1: some did not.
    """
    from kvc.bench.zoo import Request, run

    console = console_for(as_json, quiet)
    request = Request(
        out=out or Path("out") / f"zoo-{target}-{arch}-{stage.value}",
        target=target,
        arch=arch,
        stage=stage.value,
        executor=executor,
        models=frozenset(n for n in models.split(",") if n),
        libraries=frozenset(n for n in libraries.split(",") if n),
        mode=mode.value,
        seed=seed,
        jobs=jobs,
        timeout_s=timeout,
        retry=retry,
    )
    summary = run(request, console.note, show_progress=not quiet)
    counts = f"{summary['all']['kernels']} kernels, {summary['all']['fallbacks']} fallbacks"
    _models_passed(summary, as_json, console, f"{counts}; see {request.out / 'table.md'}")


class DynamoMode(StrEnum):
    all = "all"
    eval = "eval"
    train = "train"


class DynamoDevice(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


@app.command()
@guarded
def dynamo(
    target: TargetOpt = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    models: Annotated[str, typer.Option("--models", help="Only these models, such as mlp,lstm.")] = "",
    mode: Annotated[DynamoMode, typer.Option("--mode", help="Evaluation, three steps of training, or both.")] = (
        DynamoMode.all
    ),
    device: Annotated[
        DynamoDevice, typer.Option("--device", help="cpu: kernels run on the simulator; cuda: on the GPU, timed.")
    ] = DynamoDevice.cpu,
    out: JournalOpt = None,
    timeout: ModelTimeoutOpt = 900.0,
    retry: RetryOpt = False,
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Run small models through torch.compile(backend="kvc").

    Outputs, and three steps of training, are compared with float64 and with eager mode. With --device cuda each model
    is timed in turns with eager mode and Inductor. Writes results.jsonl, table.json and dynamo.md. Exit code 0: all
    passed.
    """
    from kvc.bench.dynamo import TABLE, Request, run

    console = console_for(as_json, quiet)
    request = Request(
        out=out or Path("out") / f"dynamo-{target}-{device.value}",
        target=target,
        arch=arch,
        device=device.value,
        models=frozenset(n for n in models.split(",") if n),
        mode=mode.value,
        seed=seed,
        jobs=jobs,
        timeout_s=timeout,
        retry=retry,
    )
    summary = run(request, console.note, show_progress=not quiet)
    _models_passed(summary, as_json, console, f"see {request.out / TABLE}")


@app.command()
@guarded
def ranking(
    table: Annotated[Path | None, typer.Option("--table", help="A study's ranking.json (default: kvc's own).")] = None,
    measured: Annotated[bool, typer.Option("--measure", help="Measure anew, on a CUDA GPU.")] = False,
    fit: Annotated[int, typer.Option("--fit", min=0, help="Fit the model's constants again, in so many steps.")] = 0,
    target: TargetOpt = "triton",
    cases: Annotated[str, typer.Option("--cases", help="Only specs whose name holds one of these, such as a,b.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder of ranking.json and ranking.md.")] = None,
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Compare the tuner's estimates with measured times.

    How well does the model that ranks kernels without a GPU order the variants of a kernel, and how good is its pick?
    Every other spec was held out of the fit of its constants.
    """
    import json
    from dataclasses import asdict

    from kvc.autotune.model import FITTED
    from kvc.bench import ranking as study

    console = console_for(as_json, quiet)
    if measured:
        request = study.Request(target, tuple(n for n in cases.split(",") if n), jobs=jobs, seed=seed)
        found = study.measure(request, console.note)
    else:
        found = json.loads(table.read_text(encoding="utf-8")) if table is not None else study.stored_table()
    constants = study.refit(found, fit, seed, console.note) if fit else FITTED
    result = {**study.compare(found, constants), "constants": asdict(constants)}
    if measured or out is not None:
        folder = out or Path("out") / "ranking"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ranking.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        (folder / "ranking.md").write_text(study.markdown(result), encoding="utf-8")
    if as_json:
        print_json({"ok": True, **result})
    else:
        console.say(study.markdown(result))
