"""Commands of `kvc vault` that read what was built. Heavy packages are imported in the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from kvc.cli_common import NOT_VERIFIED, JobsOpt, JsonOpt, QuietOpt, SeedOpt, console_for, guarded, print_json

app = typer.Typer()

AgainstOpt = Annotated[
    list[Path] | None, typer.Option("--against", help="Folder whose files no reference may match; repeatable.")
]
LimitOpt = Annotated[
    int | None, typer.Option("--limit", min=1, help="Keep so many records, spread evenly over classes and specs.")
]
VaultArg = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of shards.")]


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
    against: AgainstOpt = None,
    threshold: Annotated[
        float, typer.Option("--threshold", min=0.5, max=1.0, help="Jaccard similarity that counts as the same.")
    ] = 0.9,
    rejected: Annotated[bool, typer.Option("--rejected/--no-rejected", help="Keep rejected candidates.")] = True,
    limit: LimitOpt = None,
    as_json: JsonOpt = False,
) -> None:
    """Copy a vault without near-duplicates (within a spec and target) and without references found in other suites."""
    from kvc.vault.quality import clean as run

    report: dict[str, Any] = run([folder], out, against or (), threshold=threshold, keep_rejected=rejected, limit=limit)
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
