"""The documentation does what it says: its commands exist and run, its code runs, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from kvc.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^ *```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
#: Commands that compile or execute kernels; `pytest -m long` runs them.
DEAR = ("translate", "verify", "check", "bench", "selftest", "explain", "diff", "report", "tune", "vault", "doctor")


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """(language, title, text) of the code blocks of a page."""
    yield from (m.groups("") for m in _BLOCK.finditer(page.read_text(encoding="utf-8")))  # type: ignore[misc]


def console(page: Path) -> list[str]:
    """The commands that the page shows as run."""
    lines = [line.strip() for kind, _, text in blocks(page) if kind == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def shown(page: Path) -> list[str]:
    """Every `kvc ...` command that stands in a code block."""
    found = [line.strip().removeprefix("$ ") for _, _, text in blocks(page) for line in text.splitlines()]
    return [line.partition(" #")[0] for line in found if line.startswith("kvc ")]


def named(page: Path) -> list[list[str]]:
    """The words of every command that running text or a table names: `kvc verify OUT [--model model.py]`."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        m.replace("\\|", "|").replace("[", " ").replace("]", " ").split() for m in re.findall(r"`kvc ([^`]+)`", text)
    ]


def is_dear(command: str) -> bool:
    return command.split()[1] in DEAR


def command_of(words: list[str]) -> Any:
    """The click command that the words name."""
    found: Any = typer.main.get_command(app)
    for word in words:
        children = getattr(found, "commands", None)
        if not children or word.startswith("-"):
            break
        assert word in children, f"no command {word!r}"
        found = children[word]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page: Path) -> None:
    for line in shown(page):
        words = shlex.split(line)[1:]
        options = {o for p in command_of(words).params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
        given = [w.partition("=")[0] for w in words if re.match(r"--?[a-zA-Z]", w)]
        assert set(given) <= options, line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_that_the_text_names_exist(page: Path) -> None:
    for words in named(page):
        if re.fullmatch(r"[a-z]+", words[0]):
            known = {o for p in command_of(words).params for o in (*p.opts, *p.secondary_opts)} | {"-h", "--help"}
            given = {w.rstrip(",.;:").partition("=")[0] for w in words if w.startswith("--")}
            assert given <= known, " ".join(words)


def test_the_readme_names_every_command() -> None:
    groups = {words[0] for words in named(ROOT / "README.md")}
    assert set(getattr(typer.main.get_command(app), "commands", {})) <= groups


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [p.name for p in PAGES[1:] if f"- {p.name}\n" not in menu] == []


def run(command: str, folder: Path) -> None:
    words = shlex.split(command)
    assert words[0] == "kvc", command
    done = subprocess.run([sys.executable, "-m", "kvc", *words[1:]], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize(
    "command", sorted({c for page in PAGES for c in console(page) if not is_dear(c)}), ids=lambda c: c[:60]
)
def test_cheap_commands_run(command: str, checkout: Path) -> None:
    run(command, checkout)


@pytest.mark.long
@pytest.mark.parametrize("page", [p for p in PAGES if any(map(is_dear, console(p)))], ids=lambda p: p.name)
def test_all_commands_of_a_page_run_in_order(page: Path, checkout: Path) -> None:
    for command in console(page):
        run(command, checkout)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http", "reference/")):
            assert (page.parent / target).exists(), target


# ---------------------------------------------------------------- docs/extending.md


def extension(title: str) -> str:
    return next(text for _, t, text in blocks(ROOT / "docs" / "extending.md") if t == title)


def test_the_operator_of_the_guide_means_what_it_says() -> None:
    from kvc.ops import OPS, op_table

    from tests.optable.harness import run as compared

    op_table()
    assert "logaddexp" not in OPS, "the guide needs an operator that is not there yet"
    try:
        exec(extension("translator/optable/arithmetic.py"), {})
        got, expected, _ = compared(OPS["logaddexp"], OPS["logaddexp"].samples[0], 0)
    finally:
        OPS.pop("logaddexp", None)
    assert torch.allclose(got[0].double(), expected[0].double(), rtol=1e-5)


def test_the_onnx_row_of_the_guide_runs() -> None:
    from kvc.diagnostics import Location
    from kvc.frontends.onnx.values import Call, Static

    scope: dict[str, Any] = {}
    exec(extension("frontends/onnx/table.py"), scope)
    x = torch.tensor([0.25, 0.5])
    call = Call(
        "Logit", Location("m.onnx"), {"eps": 1e-6}, [x], ("x",), 1, 17, Static.tensor, lambda n: None, lambda d: d
    )
    assert torch.allclose(scope["ROW"]["Logit"](call), torch.logit(x, 1e-6))


def test_the_gpu_of_the_guide_is_one_row() -> None:
    import kvc.arch as module
    from kvc.backends.hip import HipTarget
    from kvc.emitter import Task
    from kvc.text import parse_kernel

    row = eval(extension("translator/arch.py"), dict(vars(module)))
    assert row.name not in module.ARCHS and row.peak("bf16") == 92.3
    task = Task(parse_kernel("kernel double(x: f32[n=100]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}"), row)
    emitter = HipTarget().emitters()[-1]
    candidate = next(iter(emitter.propose(task, emitter.space(task).default, [], 0)))
    assert "double" in candidate.source


def test_the_backend_of_the_guide_proposes_kernels() -> None:
    from kvc.arch import arch
    from kvc.emitter import Task
    from kvc.text import parse_kernel

    scope: dict[str, Any] = {}
    exec(extension("yours/plain.py"), scope)
    target = scope["PlainHip"]()
    task = Task(parse_kernel("kernel double(x: f32[n=100]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0\n}"), arch("gfx942"))
    emitter = target.emitters()[-1]
    assert next(iter(emitter.propose(task, emitter.space(task).default, [], 0))).target
    entry = tomllib.loads(extension("pyproject.toml"))["project"]["entry-points"]["kvc.targets"]
    assert entry == {"plain-hip": "yours.plain:PlainHip"}


# ---------------------------------------------------------------- generated pages


def test_reference_pages_list_every_row_and_code() -> None:
    import importlib.util

    from kvc.diagnostics import CODES
    from kvc.frontends.onnx.table import TABLE
    from kvc.ops import op_table

    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "ci" / "docs_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    pages = {name: page() for name, page in hooks.PAGES.items()}
    assert all(f"`{code}`" in pages["reference/diagnostics.md"] for code in CODES)
    assert all(f"| `{name}` |" in pages["reference/operators.md"] for name in op_table())
    assert all(f"| `{name}` |" in pages["reference/onnx.md"] for name in TABLE)
    assert "## kvc translate" in pages["reference/commands.md"]
