"""Triton's own CPU interpreter runs the emitted source: a check that shares nothing with LLVM or the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kvc.arch import arch
from kvc.emitter import Task

from tests.backends.triton.cases import SPECS, first, spec

#: The interpreter multiplies bf16 tiles as integers, and truncates when it rounds to bf16 (a recurrence amplifies it).
#: Its loop variables are plain numbers, which have no `.to`.
_WRONG_IN_THE_INTERPRETER = {"linear_gelu", "prologue", "rnn_norm", "inverse"}


def test_interpreter_agrees_with_the_oracle() -> None:
    names = [n for n in SPECS if n not in _WRONG_IN_THE_INTERPRETER]
    tasks = {n: Task(spec(n), arch("gfx942")) for n in names}
    requests = [json.dumps({"spec": SPECS[n], "arch": "gfx942", "emitter": first(tasks[n]).name}) for n in names]
    program = Path(__file__).parent / "interpreter.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        input="\n".join(requests),
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))
    for name, answer in answers.items():
        narrow = any(o.dtype.name in ("bf16", "f16") for o in spec(name).outputs)
        for output, error in answer["errors"].items():
            assert error <= (2e-2 if narrow else 1e-6 + 4 * answer["yardstick"][output]), (name, output)
