"""`kvc vault`: build, inspect and export corpora of executed kernels. Heavy packages are imported in the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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

app = typer.Typer(
    help="Build and use corpora of kernels, each compiled, executed and verified.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

VaultArg = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of shards.")]


@app.command()
@guarded
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the shards; a second run goes on where it was.")],
    pipeline: Annotated[str, typer.Option("--pipeline", "-p", help="hip, triton or hip2hip.")] = "hip",
    arch: ArchOpt = DEFAULT_ARCH,
    specs: Annotated[int, typer.Option("--specs", "-n", min=1, help="Distinct specs to take up.")] = 100,
    variants: Annotated[int, typer.Option("--variants", "-k", min=1, help="Candidates judged for each spec.")] = 4,
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
    from kvc.vault.build import PIPELINES, Progress, Request, Settings, improve
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
    told = 0.0

    def listen(progress: Progress) -> None:
        nonlocal told
        if progress.wall_s - told >= 10.0:
            told = progress.wall_s
            console.note(
                f"{progress.specs} specs, {progress.records} records, {progress.verified} verified, {told:.0f} s"
            )

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
        if progress.stopped:
            raise typer.Exit(NOT_VERIFIED)
        return
    console.say(
        f"{progress.records} records of {progress.specs} specs, {progress.verified} verified, {progress.wall_s:.0f} s"
    )
    if progress.crashes or progress.failures or progress.uncaptured:
        console.say(
            f"{progress.crashes} emitter faults, {progress.failures} lost tasks, {progress.uncaptured} references that "
            f"cannot be captured: see {out / 'problems.jsonl'}"
        )
    for text in (service_text(spent(out), progress.unread), progress.stopped and f"stopped early: {progress.stopped}"):
        if text:
            console.say(text)
    if progress.stopped:
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
    licence: Annotated[str, typer.Option("--licence", help="SPDX licence, instead of that of its licence file.")] = "",
    commit: Annotated[
        str, typer.Option("--commit", help="Revision to cite, where the folder is no git checkout.")
    ] = "",
    as_json: JsonOpt = False,
) -> None:
    """Write question-answer records from a ROCm library's headers, samples and documentation."""
    from kvc.vault.qa import REPORT, make

    result = make(source, out, include or (), licence, commit)
    if as_json:
        print_json({"ok": True, **result})
        return
    kinds = ", ".join(f"{number} {kind}" for kind, number in result["kinds"].items())
    console_for(False, False).say(
        f"{result['pairs']} pairs of {result['library']} ({result['licence']}): {kinds}\n"
        f"{sum(result['dropped'].values())} left out: {out.parent / REPORT}"
    )


@app.command()
@guarded
def stats(
    folder: VaultArg,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with plots.")] = None,
    near: Annotated[bool, typer.Option("--near", help="Also count near-duplicates (needs datasketch).")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Counts: verified, specs, structures, by class of operation, dtype and source, pass rates of the stages."""
    from kvc.vault.stats import page, statistics, text

    found = statistics(folder, near=near)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(found), encoding="utf-8")
    if as_json:
        print_json(found)
    else:
        console_for(False, False).say(text(found))


@app.command()
@guarded
def show(
    folder: VaultArg,
    which: Annotated[str, typer.Argument(metavar="ID", help="Start of a record's id or of a spec's hash.")] = "",
    as_json: JsonOpt = False,
) -> None:
    """Print one record: its spec, source, launches and verdict (the first one without ID)."""
    from kvc.diagnostics import KvcError
    from kvc.vault.shards import rows
    from kvc.vault.stats import record_text

    for row in rows(folder):
        if row["id"].startswith(which) or row["spec_hash"].startswith(which):
            if as_json:
                print_json(row)
            else:
                console_for(False, False).say(record_text(row))
            return
    raise KvcError("KVC0105", f"no record {which!r} in {folder}")


@app.command()
@guarded
def export(
    folder: VaultArg,
    out: Annotated[Path, typer.Option("--out", "-o", help="File of JSON lines.")],
    kind: Annotated[str, typer.Option("--format", "-f", help="sft, rl or preference.")] = "sft",
    split: Annotated[str, typer.Option("--split", help="train, heldout, or both.")] = "train",
    as_json: JsonOpt = False,
) -> None:
    """Write what trainers read: chat messages, RL rows or preference pairs."""
    from kvc.vault.export import export as run
    from kvc.vault.shards import records

    chosen = (r for r in records(folder) if split in (r.split, "both"))
    count = run(chosen, kind, out)
    if as_json:
        print_json({"ok": True, "rows": count, "format": kind})
    else:
        console_for(False, False).say(f"{count} rows in {out}")


@app.command()
@guarded
def validate(
    folder: VaultArg,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Records to check.")] = 100,
    seed: SeedOpt = 0,
    jobs: JobsOpt = 2,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Verify a random sample of the verified records again, from the files alone. Exit code 1 where one fails."""
    from kvc.vault.validate import validate as run

    console = console_for(as_json, quiet)
    result = run(folder, count, seed, jobs, lambda done: console.note(f"{done} checked") if done % 20 == 0 else None)
    findings = [{"id": f.id, "problem": f.problem} for f in result.findings]
    if as_json:
        print_json({"ok": result.ok, "checked": result.checked, "findings": findings})
    else:
        for finding in findings:
            console.say(f"{finding['id']}: {finding['problem']}")
        console.say(f"{result.checked - len(findings)} of {result.checked} hold")
    if not result.ok:
        raise typer.Exit(NOT_VERIFIED)


@app.command()
@guarded
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Vaults to read.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Vault that new shards are added to.")],
    as_json: JsonOpt = False,
) -> None:
    """Bring vaults together, each record once."""
    from kvc.vault.validate import merge as run

    added, left_out = run(folders, out)
    if as_json:
        print_json({"ok": True, "added": added, "duplicates": left_out})
    else:
        console_for(False, False).say(f"{added} records added, {left_out} duplicates left out")


@app.command()
@guarded
def clean(
    folder: VaultArg,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the new shards.")],
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="Folder whose files no reference may match; repeatable.")
    ] = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.5, max=1.0, help="Jaccard similarity that counts as the same.")
    ] = 0.9,
    rejected: Annotated[bool, typer.Option("--rejected/--no-rejected", help="Keep rejected candidates.")] = True,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Keep so many records, spread evenly over classes and specs.")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Copy a vault without near-duplicates (within a spec and target) and without references found in other suites."""
    from kvc.vault.quality import clean as run

    report: dict[str, Any] = run(folder, out, against or (), threshold=threshold, keep_rejected=rejected, limit=limit)
    if as_json:
        print_json({"ok": True, **report})
    else:
        console_for(False, False).say("\n".join(f"{key}: {value}" for key, value in report.items()))


@app.command()
@guarded
def card(
    folder: VaultArg,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; README.md in DIR without it.")] = None,
) -> None:
    """Write the dataset card: counts, columns, licences, how it was made and how to load it."""
    from kvc.vault.card import card as text
    from kvc.vault.stats import statistics

    path = out or folder / "README.md"
    path.write_text(text(statistics(folder)), encoding="utf-8")
    console_for(False, False).say(f"{path}")


@app.command()
@guarded
def time(
    folder: VaultArg,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Records to time.")] = 1000,
    seed: SeedOpt = 0,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Time verified Triton records on this machine's CUDA GPU, into measured.parquet beside the shards.

    What ran on an NVIDIA GPU is no evidence for a gfx kernel: the table names the device.
    """
    from kvc.vault.timing import time_records

    console = console_for(as_json, quiet)
    result = time_records(folder, count, seed, console.note)
    if as_json:
        print_json({"ok": True, **result})
    else:
        console.say(f"{result['timed']} records timed on {result['device']}, {result['failed']} failed")
