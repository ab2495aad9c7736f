"""Commands that read written folders: diff, check, explain, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from kvc.cli_common import NOT_VERIFIED, ExecutorOpt, JobsOpt, JsonOpt, QuietOpt, console_for, guarded, print_json
from kvc.diagnostics import KvcError

if TYPE_CHECKING:
    from kvc.findings import Finding

SarifOpt = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write SARIF 2.1.0 for code scanning (- for stdout).")
]
GithubOpt = Annotated[bool, typer.Option("--github", help="Print GitHub annotations before the text.")]


def _for_machines(findings: Sequence[Finding], sarif: Path | None, github: bool) -> None:
    """The findings in the formats that were asked for."""
    from kvc import findings as formats

    if sarif is not None:
        text = json.dumps(formats.sarif(findings), indent=2) + "\n"
        if str(sarif) == "-":
            sys.stdout.write(text)
        else:
            try:
                sarif.write_text(text, encoding="utf-8")
            except OSError as error:
                raise KvcError("KVC0801", f"{sarif}: {error.strerror}", hint="choose another file") from None
    if github and findings:
        print(formats.github(findings))


@guarded
def diff(
    old: Annotated[str, typer.Argument(help="A folder that `kvc translate` wrote, or REVISION:FOLDER of git.")],
    new: Annotated[str, typer.Argument(help="The other one.")],
    full: Annotated[bool, typer.Option("--full", help="Show every figure of every kernel.")] = False,
    sarif: SarifOpt = None,
    github: GithubOpt = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Compare two translations.

    Kernels added, removed and changed: specs, sources, resources, errors, estimates. Exit code 0: the same; 1: they
    differ; 2: cannot be compared. Measurements and versions are shown and make no difference by themselves.
    """
    from kvc import diff as differ
    from kvc.folder import read_folder

    found = differ.diff(read_folder(old), read_folder(new))
    _for_machines(differ.findings(found), sarif, github)
    if as_json:
        print_json(found.to_json())
    elif not quiet and str(sarif) != "-":
        print(differ.render(found, full))
    if not found.same:
        raise typer.Exit(NOT_VERIFIED)


@guarded
def check(
    out: Annotated[list[Path], typer.Argument(help="Folders that `kvc translate` wrote.")],
    model: Annotated[str | None, typer.Option("--model", help="Translate this model again and compare.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Compare hashes only; compile and run nothing.")] = False,
    files: Annotated[
        bool, typer.Option("--files", help="The arguments are changed files: check the folders they belong to.")
    ] = False,
    executor: ExecutorOpt = "auto",
    jobs: JobsOpt = 2,
    sarif: SarifOpt = None,
    github: GithubOpt = False,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Check translations that are checked in.

    Are the files what was verified, do this model and this kvc write the same kernels (--model), and are they still
    verified? Exit code 0: yes; 1: no; 2: cannot be checked.
    """
    from kvc.checked_in import check as check_one
    from kvc.checked_in import folders_of, render

    folders = folders_of(out) if files else out
    if model is not None and len(folders) != 1:
        raise KvcError("KVC0106", f"--model with {len(folders)} folders", hint="check one folder at a time")
    console = console_for(as_json, quiet)
    checked = [check_one(folder, model, executor, jobs, quick, console) for folder in folders]
    _for_machines([f for c in checked for f in c.findings], sarif, github)
    ok = all(c.ok for c in checked)
    if as_json:
        print_json({"ok": ok, "folders": [c.to_json() for c in checked]})
    elif not quiet and str(sarif) != "-":
        for each in checked:
            print(render(each))
    if not ok:
        raise typer.Exit(NOT_VERIFIED)


@guarded
def explain(
    out: Annotated[str, typer.Argument(help="A folder that `kvc translate` wrote, or REVISION:FOLDER of git.")],
    kernel: Annotated[str | None, typer.Argument(help="A kernel of it (default: list all).")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Folder of the model's sources.")] = None,
    lines: Annotated[int, typer.Option("--lines", min=0, help="Lines of code to show, from the hottest loop.")] = 40,
    as_json: JsonOpt = False,
) -> None:
    """Explain a kernel.

    Back to the lines of the model and forward to the instructions: why it is one kernel, why it has this schedule, and
    what limits it (an estimate).
    """
    from kvc.explain_kernel import explain_kernel, render
    from kvc.folder import read_folder

    folder = read_folder(out)
    if kernel is None:
        rows = [{"name": n, "schedule": r["schedule"], "origin": r["origin"]} for n, r in folder.kernels.items()]
        if as_json:
            print_json({"kernels": rows})
        for row in [] if as_json else rows:
            print(f"{row['name']:<40} {row['schedule']:<16} {', '.join(row['origin'])}")
        return
    why = explain_kernel(folder, kernel, root)
    if as_json:
        print_json(why.to_json())
    else:
        print(render(why, lines))


@guarded
def report(
    out: Annotated[str, typer.Argument(help="A folder that `kvc translate` wrote, or REVISION:FOLDER of git.")],
    file: Annotated[Path | None, typer.Option("--out", "-o", help="File to write (default: OUT/report.html).")] = None,
) -> None:
    """Write the HTML report of a translation.

    One self-contained page: graph, kernels, errors, roofline, sources.
    """
    from kvc.folder import read_folder
    from kvc.report.build import report_html

    folder = read_folder(out)
    path = file or (Path(out) / "report.html" if Path(out).is_dir() else Path("report.html"))
    text = report_html(folder)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise KvcError("KVC0801", f"{path}: {error.strerror}", hint="choose another file with -o") from None
    print(path)


def register(app: typer.Typer) -> None:
    """Add the commands to kvc's command line."""
    app.command()(diff)
    app.command()(check)
    app.command()(explain)
    app.command()(report)
