"""Pages of the documentation that are made from kvc's own tables, so that they cannot fall behind (mkdocs hooks)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANGES = {
    "01": "Input", "02": "Capture", "03": "IR", "04": "Emission", "05": "Toolchain", "06": "Execution",
    "07": "Verification", "08": "Output and store", "09": "Simulator",
}  # fmt: skip


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


def operators() -> str:
    """The op table, the functions of the expression language, and the dtypes."""
    from kvc.dtypes import DTYPES
    from kvc.functions import FUNCTIONS
    from kvc.ops import op_table

    known = sorted(op_table().values(), key=lambda op: op.name)
    ops = [
        [f"`{op.name}`", ", ".join(f"`{a}`" for a in op.aten), f"`{_module(op.meaning)}`", _first(op.meaning)]
        for op in known
    ]
    functions = [[f"`{f.name}`", str(f.arity), f.result] for f in FUNCTIONS.values()]
    dtypes = [
        [
            f"`{d.name}`",
            str(d.bits),
            f"`{d.compute_name}`",
            f"{d.rtol:g}" if d.rtol else "exact",
            f"{d.atol:g}" if d.atol else "exact",
        ]
        for d in DTYPES.values()
    ]
    return "\n\n".join([
        "# The IR",
        "[Architecture](../architecture.md) tells how the two levels of IR fit together. `kvc ir MODEL` prints both.",
        f"## Operators of a graph\n\n{len(known)} operators. An ATen overload that is not listed is decomposed by "
        "torch into others, or runs eagerly as a fallback that names its reason.",
        table(["operator", "ATen overloads", "defined in", "meaning"], ops),
        f"## Functions of a kernel\n\nPointwise functions that expressions call, {len(functions)} of them. `same`: the "
        "result has the joined type of the arguments; `float`: a float type.",
        table(["function", "arguments", "result"], functions),
        "## Dtypes\n\n`compute` is the type in which arithmetic on a value happens. Tolerances are the verifier's; the "
        "absolute one is a fraction of the reference's magnitude.",
        table(["dtype", "bits", "compute", "relative", "absolute"], dtypes),
    ])  # fmt: skip


def _first(meaning: Callable[..., Any]) -> str:
    text = inspect.getdoc(meaning) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def _module(meaning: Callable[..., Any]) -> str:
    return f"translator/optable/{meaning.__module__.rpartition('.')[2]}.py"


def diagnostics() -> str:
    """Every code, and which part of kvc says it."""
    import kvc
    from kvc.diagnostics import CODES

    said: dict[str, set[str]] = {}
    top = Path(kvc.__file__).resolve().parent.parent
    for room in ("translator", "frontends", "backends", "simulator", "autotune", "bench", "vault", "model"):
        for file in sorted((top / room).rglob("*.py")):
            if file.name != "diagnostics.py":
                for code in re.findall(r"KVC0\d{3}", file.read_text(encoding="utf-8")):
                    said.setdefault(code, set()).add(file.relative_to(top).as_posix())
    parts = [
        "# Diagnostics",
        "Every failure that a user can meet has a stable code, a location and a way out. A code is never reused and "
        "its meaning never changes. Commands end with 0: done and verified, 1: not verified, 2: cannot be done. "
        "`--json` prints `{code, title, message, location, hint, details}`.",
    ]
    for prefix, title in RANGES.items():
        rows = [
            [f"`{code}`", meaning, ", ".join(f"`{f}`" for f in sorted(said.get(code, ()))[:3])]
            for code, meaning in CODES.items()
            if code.startswith(f"KVC{prefix}")
        ]
        parts += [f"## {title}: KVC{prefix}xx", table(["code", "meaning", "said by"], rows)]
    return "\n\n".join(parts)


def commands() -> str:
    """`--help` of every command."""
    import typer
    from kvc.cli import app

    parts = ["# Commands", "What `--help` says, for every command."]
    todo: list[tuple[str, Any]] = [("kvc", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop(0)
        children = getattr(command, "commands", {})
        with command.make_context(name, [], resilient_parsing=True) as context:
            parts.append(
                f"{'##' if name.count(' ') < 2 else '###'} {name}\n\n```text\n{command.get_help(context).strip()}\n```"
            )
        todo = [(f"{name} {child}", sub) for child, sub in sorted(children.items())] + todo
    return "\n\n".join(parts)


def onnx_operators() -> str:
    """Rows of the ONNX table."""
    from kvc.frontends.onnx.table import CONTROL, TABLE

    rows = [
        [f"`{name}`", f"`frontends/onnx/{row.__module__.rpartition('.')[2]}.py`"] for name, row in sorted(TABLE.items())
    ]
    return "\n\n".join([
        "# ONNX operators",
        f"{len(TABLE)} operators have a row in `frontends/onnx/table.py`; {', '.join(f'`{c}`' for c in CONTROL)} are "
        "written out. An operator that ONNX itself defines as a function of these works without a row. How models are "
        "read is told in [ONNX models](../onnx.md).",
        table(["operator", "written in"], rows),
    ])  # fmt: skip


def gpus() -> str:
    """The hardware table."""
    from kvc.arch import ARCHS

    rows = [
        [f"`{a.name}`", a.products, str(a.wave_size), f"{a.lds_bytes // 1024}", str(a.cu_count), f"{a.clock_ghz:g}",
         f"{a.hbm_gbps:g}", a.fp8, ", ".join(f"{k} {v:g}" for k, v in a.peak_tflops)]
        for a in ARCHS.values()
    ]  # fmt: skip
    return "\n\n".join([
        "# GPUs",
        "Every hardware fact that kvc uses stands in one row of `translator/arch.py` (sources there). `kvc arch NAME` "
        "prints a row in full.",
        table(["name", "products", "wave", "LDS KiB", "CUs", "GHz", "HBM GB/s", "fp8", "peak TFLOP/s"], rows),
    ])  # fmt: skip


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/operators.md": operators,
    "reference/onnx.md": onnx_operators,
    "reference/gpus.md": gpus,
    "reference/diagnostics.md": diagnostics,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page() + "\n"))
    return files
