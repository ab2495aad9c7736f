"""`kvc vault`: build, inspect and export corpora of executed kernels. Heavy packages are imported in the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from kvc.arch import DEFAULT_ARCH
from kvc.cli_common import (
    NOT_VERIFIED,
    ArchOpt,
    JobsOpt,
    JsonOpt,
    Numerics,
    NumericsOpt,
    QuietOpt,
    SeedOpt,
    console_for,
    guarded,
    print_json,
)
from kvc.vault.cli_shards import AgainstOpt, LimitOpt
from kvc.vault.cli_shards import app as shard_commands

if TYPE_CHECKING:
    from kvc.vault.build import Progress

app = typer.Typer(
    help="Build and use corpora of kernels, each compiled, executed and verified.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

VariantsOpt = Annotated[int, typer.Option("--variants", "-k", min=1, help="Candidates judged for each spec.")]
app.add_typer(shard_commands)


@app.command()
@guarded
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the shards; a second run goes on where it was.")],
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", help="hip, triton or hip2hip.")] = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    specs: Annotated[int, typer.Option("--specs", "-n", min=1, help="Distinct specs to take up.")] = 100,
    variants: VariantsOpt = 4,
    sources: Annotated[
        str, typer.Option("--sources", help="Of nn, transformers, torchvision, timm, random: in this order.")
    ] = "random",
    folder: Annotated[
        list[Path] | None, typer.Option("--folder", help="Folder of reference files; repeatable.")
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="SPDX licence of the folders' files.")] = "unknown",
    harvest: Annotated[
        Path | None, typer.Option("--harvest", help="File of captured references to share between builds.")
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="hip2hip: vault whose HIP kernels to start from.")
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants", help="Also judge settings that change constants of the text alone.")
    ] = False,
    emitter: Annotated[
        list[str] | None,
        typer.Option("--emitter", help="Ask only this one: a rule, model[:PATH], openai:URL#MODEL; repeatable."),
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="Go on asking a model for faster kernels when one is verified.")
    ] = False,
    ray: Annotated[
        str | None, typer.Option("--ray", help="Address of a Ray cluster, or 'local': workers run there.")
    ] = None,
    numerics: NumericsOpt = Numerics.strict,
    executor: Annotated[str, typer.Option("--executor", "-e", help="What runs the kernels: sim or amdgpu.")] = "sim",
    jobs: JobsOpt = 2,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Write kernels for specs of PyTorch references, judge each, and keep all with their verdicts."""
    from kvc.diagnostics import KvcError
    from kvc.vault.build import PIPELINES, Request, Settings, improve
    from kvc.vault.build import build as run
    from kvc.vault.judging import asked_emitters
    from kvc.vault.service import service_text, spent, with_ledger
    from kvc.vault.sources.mix import references

    if pipeline not in PIPELINES:
        raise KvcError("KVC0106", f"pipeline {pipeline!r}", hint=f"one of: {', '.join(PIPELINES)}")
    console = console_for(as_json, quiet)
    settings = Settings(
        pipeline, arch, numerics.value, variants, seed, executor, constants,
        emitters=tuple(with_ledger(name, out) for name in emitter or ()), more=more,
    )  # fmt: skip
    tell = every_so_often(console.note)

    def listen(progress: Progress) -> None:
        tell(f"{progress.specs} specs, {progress.records} records, {progress.verified} verified")

    asked_emitters(settings)  # an unknown name or a bad address is known before a worker starts
    if pipeline == "hip2hip":
        if start is None:
            raise KvcError("KVC0106", "hip2hip starts from verified kernels", hint="name their vault with --from DIR")
        progress = improve(settings, start, out, specs, jobs, listen, ray or "")
    else:
        names = tuple(n for n in sources.split(",") if n)
        found = references(names, folder or (), licence)
        progress = run(Request(settings, out, found, specs, jobs, harvest, ray or ""), listen)
    if as_json:
        print_json({"ok": not progress.stopped, **progress.to_json(), "service": spent(out)})
    else:
        for text in (*_outcome(progress, out), service_text(spent(out), progress.unread)):
            console.say(text) if text else None
    if progress.stopped:
        raise typer.Exit(NOT_VERIFIED)


def _outcome(progress: Progress, out: Path) -> Iterator[str]:
    """What a build came to, a line for each thing worth one."""
    yield (
        f"{progress.records} records of {progress.specs} specs, {progress.verified} verified, {progress.wall_s:.0f} s"
    )
    if progress.crashes or progress.failures or progress.uncaptured:
        yield (
            f"{progress.crashes} emitter faults, {progress.failures} lost tasks, {progress.uncaptured} references that "
            f"cannot be captured: see {out / 'problems.jsonl'}"
        )
    if progress.stopped:
        yield f"stopped early: {progress.stopped}"


def every_so_often(say: Callable[[str], None], seconds: float = 10.0) -> Callable[[str], None]:
    """A listener that passes on at most one text in so many seconds, with the time since it was made."""
    started = told = monotonic()

    def listen(text: str) -> None:
        nonlocal told
        if monotonic() - told >= seconds:
            told = monotonic()
            say(f"{text}, {told - started:.0f} s")

    return listen


@app.command()
@guarded
def release(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; a second run goes on where it was.")],
    verified: Annotated[int, typer.Option("--verified", min=1, help="Records to reach in each pipeline.")] = 20_000,
    specs: Annotated[int, typer.Option("--specs", min=1, help="Distinct specs to reach in each pipeline.")] = 8_000,
    pipelines: Annotated[str, typer.Option("--pipelines", help="Of hip, triton.")] = "hip,triton",
    sources: Annotated[
        str, typer.Option("--sources", help="Of nn, transformers, torchvision, timm, random: in this order.")
    ] = "nn,transformers,random",
    variants: VariantsOpt = 4,
    against: AgainstOpt = None,
    limit: LimitOpt = None,
    check: Annotated[int, typer.Option("--check", min=1, help="Published records to verify again.")] = 500,
    arch: ArchOpt = DEFAULT_ARCH,
    jobs: JobsOpt = 2,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Build, clean, describe and check a corpus, from nothing. Exit code 1 where a published record does not hold."""
    from kvc.vault.release import Goal, settings_for
    from kvc.vault.release import release as run
    from kvc.vault.sources.mix import references

    console = console_for(as_json, quiet)
    names = tuple(n for n in sources.split(",") if n)
    references(names)  # an unknown name is known before anything starts
    chosen = list(settings_for((n for n in pipelines.split(",") if n), arch, variants, seed))
    done = run(
        out, Goal(verified, specs), lambda: references(names), chosen, jobs,
        against=against or (), limit=limit, check=check, listen=every_so_often(console.note),
    )  # fmt: skip
    if as_json:
        print_json({"ok": not done.findings, **done.counts, "findings": list(done.findings)})
    else:
        console.say("\n".join(f"{stage}: {found}" for stage, found in done.counts.items()))
        console.say("\n".join(done.findings))
    if done.findings:
        raise typer.Exit(NOT_VERIFIED)


@app.command("import")
@guarded
def import_(
    source: Annotated[Path, typer.Argument(help="Folder, .parquet, .jsonl or .json of someone else's kernels.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the shards and of import.jsonl.")],
    arch: ArchOpt = DEFAULT_ARCH,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Kernels to take, 0 for all.")] = 0,
    licence: Annotated[str, typer.Option("--licence", help="SPDX licence, where rows name none.")] = "unknown",
    numerics: NumericsOpt = Numerics.strict,
    jobs: JobsOpt = 2,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Judge the kernels of another corpus: each is verified, rejected, or said why it cannot be judged."""
    from itertools import islice

    from kvc.vault.foreign import read
    from kvc.vault.importing import REPORT, Settings, import_rows

    console = console_for(as_json, quiet)
    found = read(source, licence)
    result = import_rows(
        islice(found, count) if count else found, out, Settings("hip", arch, numerics.value, seed=seed), jobs,
        lambda r: console.note(f"{r.rows} kernels") if r.rows % 20 == 0 else None,
    )  # fmt: skip
    if as_json:
        print_json({"ok": True, **result.to_json()})
        return
    for outcome, number in result.outcomes.most_common():
        console.say(f"{number:6} {outcome}")
    for reason, number in result.reasons.most_common(12):
        console.say(f"{number:10} {reason}")
    console.say(f"each kernel's outcome: {out / REPORT}")


@app.command()
@guarded
def qa(
    source: Annotated[Path, typer.Option("--source", help="Checkout of a ROCm library.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of JSON lines.")],
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", "-I", help="Folder of headers that it includes (HIP's); repeatable."),
    ] = None,
    define: Annotated[
        list[str] | None, typer.Option("--define", "-D", help="Macro of its build, NAME or NAME=VALUE; repeatable.")
    ] = None,
    licence: Annotated[str, typer.Option("--licence", help="SPDX licence, instead of that of its licence file.")] = "",
    commit: Annotated[
        str, typer.Option("--commit", help="Revision to cite, where the folder is no git checkout.")
    ] = "",
    as_json: JsonOpt = False,
) -> None:
    """Write question-answer records from a ROCm library's headers, samples and documentation."""
    from kvc.vault.qa import REPORT, make

    result = make(source, out, include or (), licence, commit, define or ())
    if as_json:
        print_json({"ok": True, **result})
        return
    kinds = ", ".join(f"{number} {kind}" for kind, number in result["kinds"].items())
    console_for(False, False).say(
        f"{result['pairs']} pairs of {result['library']} ({result['licence']}): {kinds}\n"
        f"{sum(result['dropped'].values())} left out: {out.parent / REPORT}"
    )
