"""`kvc --help` starts without the heavy packages: what it imports, not how long it takes."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch",
    "triton",
    "numpy",
    "optuna",
    "clang",
    "onnx",
    "onnxruntime",
    "lark",
    "jinja2",
    "transformers",
    "pyarrow",
)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom kvc.cli import app\nimport typer\n"
        "typer.main.get_command(app).main(['--help'], standalone_mode=False)\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
