"""`kvc store`: what the store of verdicts holds, its size, and whether all of it is as it was put there."""

from __future__ import annotations

from typing import Annotated

import typer
from kvc.cli_common import NOT_VERIFIED, JsonOpt, guarded, print_json
from kvc.settings import bytes_of, settings

app = typer.Typer(help="The store of verdicts: size, clean-up, checks.", no_args_is_help=True)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


@app.command("stats")
@guarded
def stats_command(as_json: JsonOpt = False) -> None:
    """Count verdicts and files, and say how large they are."""
    from kvc.store import Store
    from kvc.store_upkeep import stats

    found = stats(Store())
    if as_json:
        print_json({"ok": True, **found.to_json()})
        return
    limit = f"of {_size(found.limit)}" if found.limit is not None else "without a limit"
    print(f"{found.folder} (schema {found.schema})")
    print(f"  verdicts   {found.verified:,} verified, {found.rejected:,} rejected, of {found.by_task:,} kernels")
    print(f"  files      {found.files:,}, {_size(found.file_bytes)}; index {_size(found.index_bytes)}")
    print(
        f"  size       {_size(found.total)} {limit}" + (f"; oldest use {found.oldest_use}" if found.oldest_use else "")
    )


@app.command("gc")
@guarded
def gc_command(
    limit: Annotated[
        str | None, typer.Option("--limit", help="Keep at most this much, such as 2G (default: KVC_CACHE_LIMIT).")
    ] = None,
    as_json: JsonOpt = False,
) -> None:
    """Let go the least recently used verdicts beyond the limit, and files that nothing names."""
    from kvc.store import Store
    from kvc.store_upkeep import collect

    done = collect(Store(), settings().cache_limit if limit is None else bytes_of(limit))
    if as_json:
        print_json({"ok": True, **done.to_json()})
    else:
        print(
            f"{done.verdicts:,} verdicts and {done.files:,} files removed: {_size(done.before)} -> {_size(done.after)}"
        )


@app.command("verify")
@guarded
def verify_command(
    repair: Annotated[bool, typer.Option("--repair", help="Remove what is wrong; it is judged again.")] = False,
    as_json: JsonOpt = False,
) -> None:
    """Read everything and compare it with its digests. Exit code 1: something is not what was put there."""
    from kvc.store import Store
    from kvc.store_upkeep import verify

    problems = verify(Store(), repair)
    if as_json:
        print_json({"ok": not problems, "problems": [p.to_json() for p in problems], "repaired": repair})
    else:
        for problem in problems:
            print(f"{problem.what}: {problem.name}")
        print(f"{len(problems)} problems{', removed' if repair and problems else ''}" if problems else "all is well")
    if problems and not repair:
        raise typer.Exit(NOT_VERIFIED)
