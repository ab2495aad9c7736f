"""The product's main job: each example, to each target, in each dtype, for each architecture, on the simulator.

The default run takes a third of the matrix, in which every example, target, dtype and architecture occurs; the rest is
`pytest -m long tests/test_examples.py`.
"""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from kvc.arch import CDNA

EXAMPLES = Path(__file__).parent.parent / "examples"
AXES = (("mlp", "convnet", "decoder"), ("hip", "triton"), ("f32", "bf16"), CDNA)


def _matrix() -> list:
    cases = []
    for indices in product(*(range(len(axis)) for axis in AXES)):
        names = [axis[i] for axis, i in zip(AXES, indices, strict=True)]
        marks = [] if sum(indices) % 3 == 0 else [pytest.mark.long]
        cases.append(pytest.param(*names, marks=marks, id="-".join(names)))
    return cases


@pytest.mark.parametrize(("example", "target", "dtype", "arch"), _matrix())
def test_example_translates_without_fallback(example: str, target: str, dtype: str, arch: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "kvc", "translate", str(EXAMPLES / f"{example}.py"), "--json", "--strict"]
    command += [
        "--target",
        target,
        "--arch",
        arch,
        "--dtype",
        dtype,
        "--jobs",
        "1",
        "--executor",
        "sim",
        "-o",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["fallbacks"] == [] and summary["executor"] == "sim"
    assert summary["model_error"]["error"] <= summary["model_error"]["tolerance"]
    lock = json.loads((out / "kvc.lock").read_text())
    assert len(lock["kernels"]) == summary["distinct"]
    for kernel in lock["kernels"]:
        assert kernel["arch"] == arch and kernel["target"] == target and kernel["executor"] == "sim"
        assert all((out / path).is_file() for path in [kernel["file"], *kernel["code_objects"]])
