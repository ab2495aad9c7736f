"""Library calls in the place of kernels: which specs have a form, what decides, and that it is declared everywhere.
No GPU is asked: the contender is a stand-in that computes with torch on the CPU and has the times it is told."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kvc import library
from kvc.console import Console
from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.library import LibraryChoice, choose_libraries, contender_for, run_on_host, verified
from kvc.library_forms import LibraryForm, library_form
from kvc.text import parse_kernel
from kvc.verify.inputs import draw
from kvc.verify.judge import input_sets
from kvc.verify.oracle import Examiner
from kvc.verify.verdict import Rejected

from tests.verify.fakes import LINEAR

FORMS = {
    "linear": ("torch.addmm", "(x: f32[m=8,k=64], w: f32[n=96,k], b: f32[n]) -> (y: f32[m,n])",
               "t: f32[m,n] = sum(k) x[m,k] * w[n,k]\n u: f32[m,n] = t[m,n] + b[n]\n y[m,n] = gelu(u[m,n])"),
    "batched": ("torch.matmul", "(x: f32[b=3,m=8,k=16], w: f32[b,n=12,k]) -> (y: f32[b,m,n])",
                "y[b,m,n] = sum(k) x[b,m,k] * w[b,n,k]"),
    "pointwise_conv": ("torch.matmul", "(x: f32[b=2,c=16,p=25], w: f32[o=8,c], v: f32[o]) -> (y: f32[b,o,p])",
                       "t: f32[b,o,p] = sum(c) x[b,c,p] * w[o,c]\n y[b,o,p] = t[b,o,p] + v[o]"),
    "conv": ("torch.nn.functional.conv2d",
             "(x: f32[b=2,c=3,h=12,w=11], f: f32[o=8,c,r=3,s=3], v: f32[o]) -> (y: f32[b,o,i=6,j=11])",
             "t: f32[b,o,i,j] = sum(c,r,s) x[b,c,i*2+r-1,j+s*2-2 | 0.0] * f[o,c,r,s]\n"
             " u: f32[b,o,i,j] = t[b,o,i,j] + v[o]\n y[b,o,i,j] = relu(u[b,o,i,j]) * 0.5"),
    "grouped_conv": ("torch.nn.functional.conv2d",
                     "(x: f32[b=2,g=4,c=8,h=9,w=9], f: f32[g,o=6,c,r=3,s=3]) -> (y: f32[b,g,o,i=7,j=7])",
                     "y[b,g,o,i,j] = sum(c,r,s) x[b,g,c,i+r,j+s] * f[g,o,c,r,s]"),
    "residual": ("torch.mm", "(x: f32[m=9,k=33], w: f32[k,n=10], z: f32[n,m]) -> (y: f32[m,n])",
                 "t: f32[m,n] = sum(k) x[m,k] * w[k,n]\n y[m,n] = maximum(t[m,n] + z[n,m], 0.25)"),
}  # fmt: skip
ATTENTION = """kernel attention(q: f32[b=2,h=2,m=32,d=16], k: f32[b,h,n=32,d], v: f32[b,h,n,d]) -> (o: f32[b,h,m,d]) {
  s: f32[b,h,m,n] = sum(d) q[b,h,m,d] * k[b,h,n,d]
  u: f32[b,h,m,n] = where(n <= m, s[b,h,m,n] * 0.25, -inf)
  top: f32[b,h,m] = max(n) u[b,h,m,n]
  e: f32[b,h,m,n] = exp(u[b,h,m,n] - top[b,h,m])
  l: f32[b,h,m] = sum(n) e[b,h,m,n]
  w: f32[b,h,m,d] = sum(n) e[b,h,m,n] * v[b,h,n,d]
  o[b,h,m,d] = w[b,h,m,d] / l[b,h,m]
}"""


def form_of(spec: KernelSpec) -> LibraryForm:
    form = library_form(spec, "_library_it")
    assert isinstance(form, LibraryForm), form
    return form


@dataclass
class Contender:
    """Computes with torch on the CPU; `times` are the milliseconds of library and kernel."""

    times: tuple[float, float] = (1.0, 2.0)
    wrong: bool = False
    unsteady: bool = False
    runs: int = 0

    def facts(self) -> dict[str, str]:
        return {"device": "stand-in", "torch": "0"}

    def outputs(self, form: LibraryForm, spec: KernelSpec, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.runs += 1
        result = run_on_host(form, inputs, spec)
        if self.unsteady:
            result = result * (1 + 2.0**-23 * (self.runs % 2))
        return result * 1.01 if self.wrong else result

    def contest(
        self, form: LibraryForm, spec: KernelSpec, plans: Sequence[LaunchPlan], buffers: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> tuple[float, float]:  # fmt: skip
        assert plans and set(outputs) < set(buffers)
        return self.times

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("name", FORMS)
def test_a_form_computes_its_spec(name: str) -> None:
    call, signature, body = FORMS[name]
    spec = parse_kernel(f"kernel {name}{signature} {{ {body} }}")
    form = form_of(spec)
    assert form.calls[0] == call and "_Fp32" in form.source
    inputs = draw(spec, "normal", 0)
    result = run_on_host(form, inputs, spec)
    expected = interpret(spec, inputs)["y"]
    assert result.stride() == spec.strides_of("y")
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


def test_attention_has_a_form() -> None:
    spec = parse_kernel(ATTENTION)
    form = form_of(spec)
    assert form.family == "attention" and "True, scale=0.25" in form.source
    inputs = draw(spec, "normal", 0)
    torch.testing.assert_close(
        run_on_host(form, inputs, spec).double(), interpret(spec, inputs)["o"], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kernel s(x: f32[m=8,k=9]) -> (y: f32[m]) { y[m] = sum(k) x[m,k] }", "sum of products"),
        ("kernel q(x: f32[m=8,k=9], w: f32[n=7,k]) -> (y: f32[m,n]) { y[m,n] = sum(k) exp(x[m,k]) * w[n,k] }", 
         "more than"),
        ("kernel p(x: f32[c=8,h=16], f: f32[o=8,c,r=3]) -> (y: f32[o,i=15]) {"
         " y[o,i] = sum(c,r) x[c,i+r-1 | 0.0] * f[o,c,r] }", "differs from side to side"),
        ("kernel h(x: f16[m=8,k=9], w: f16[n=7,k]) -> (y: f32[m,n]) { y[m,n] = sum(k) x[m,k] * w[n,k] }",
         "one float type"),
        ("kernel d<m in 1..99 hint 8>(x: f32[m,k=9], w: f32[n=7,k]) -> (y: f32[m,n]) {"
         " y[m,n] = sum(k) x[m,k] * w[n,k] }", "symbolic"),
    ],
)  # fmt: skip
def test_what_is_no_library_call_says_why(text: str, reason: str) -> None:
    found = library_form(parse_kernel(text), "f")
    assert isinstance(found, str) and reason in found


def test_a_form_is_held_to_what_kernels_are_held_to() -> None:
    spec = parse_kernel(LINEAR)
    form, examiner = form_of(spec), Examiner(spec, 0)
    sets = input_sets(spec, examiner, 0)
    good = verified(form, spec, examiner, sets, Contender())
    assert not isinstance(good, Rejected) and good[0].error <= good[0].tolerance
    bad = verified(form, spec, examiner, sets, Contender(wrong=True))
    assert isinstance(bad, Rejected) and bad.stage == "compare"
    exact = parse_kernel(LINEAR.replace("bf16", "f32"))
    shaky = verified(form_of(exact), exact, Examiner(exact, 0), sets[:1], Contender(unsteady=True))
    assert isinstance(shaky, Rejected) and shaky.diagnostic.code == "KVC0705"


def test_without_a_device_nothing_is_chosen() -> None:
    with pytest.raises(KvcError) as error:
        contender_for("sim", "gfx942")
    assert error.value.code == "KVC0601" and "--library" in str(error.value.diagnostic.hint)


# ---------------------------------------------------------------- a whole folder

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(24, 40), nn.Linear(40, 24)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x))).softmax(-1)

def get_inputs():
    return [torch.randn(16, 24)]
"""


def translated(tmp: Path, contender: Contender | None, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    from kvc.commands import TranslateRequest, run_translate

    model = tmp / "model.py"
    model.write_text(MODEL)
    if contender is not None:
        patch.setattr(library, "contender_for", lambda executor, arch: contender)
    request = TranslateRequest(
        model=str(model), out=tmp / "out", target="hip", arch="gfx942", dtype=None, mode="eval", executor="sim",
        numerics="strict", strict=False, emitters=(), seed=0, jobs=1, use_cache=False, library=contender is not None,
    )  # fmt: skip
    return run_translate(request, Console(quiet=True))


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    tmp = tmp_path_factory.mktemp("library")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVC_CACHE_DIR", str(tmp / "cache"))
        summary = translated(tmp, Contender(), patch)
    return tmp / "out", summary


def test_a_chosen_call_is_declared_everywhere(chosen: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = chosen
    lock = json.loads((folder / "kvc.lock").read_text())
    records = [k for k in lock["kernels"] if "library" in k]
    assert lock["library"] == "allowed" and len(records) == len(summary["library"]) > 0
    assert all(k["library"]["executor"] == "sim" and k["library"]["errors"] for k in records)
    times = json.loads((folder / "measurements.json").read_text())["kernels"]
    assert all(times[k["name"]]["library"]["library_us"] == 1000.0 for k in records)
    text = (folder / "module.py").read_text()
    assert text.count("def _library_") == len(records) and "torch.addmm" in text
    assert "replaced by calls of vendor libraries" in text
    page = (folder / "report.html").read_text()
    assert "torch.addmm" in page and "no generated code" in page
    launches = sum(e["launches"] for e in lock["model"]["end_to_end"])
    assert launches == sum(k["uses"] for k in lock["kernels"] if "library" not in k)


def test_verify_checks_the_calls_and_finds_one_that_is_not_declared(chosen: tuple[Path, dict[str, Any]]) -> None:
    from kvc.commands import run_verify_folder

    folder, _ = chosen
    result = run_verify_folder(folder, None, "sim", 1, 1, Console(quiet=True))
    assert result["ok"], result["lines"]
    assert any("library call torch.addmm" in line and "its form only" in line for line in result["lines"])
    module = folder / "module.py"
    before = module.read_text()
    module.write_text(before + "\n\ndef _library_other() -> None:\n    pass\n")
    result = run_verify_folder(folder, None, "sim", 1, 1, Console(quiet=True))
    module.write_text(before.replace("torch.addmm(", "torch.addmm(1.01 * "))
    assert not result["ok"] and any("KVC0804" in line and "other" in line for line in result["lines"])
    result = run_verify_folder(folder, None, "sim", 1, 1, Console(quiet=True))
    module.write_text(before)
    assert not result["ok"] and any("not what this kvc writes" in line for line in result["lines"])


def test_the_choice_goes_by_time_and_by_verdict(chosen: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    from kvc.autotune.folder import opened
    from kvc.verify.judge import Bench
    from kvc.verify.pool import WorkerPool

    folder, _ = chosen
    with WorkerPool(1) as pool:
        before = opened(folder, Bench(pool, "sim", 0), None, 1).translation
    assert before.options.library and before.library_calls  # read back from the lock
    names = [f"k{n}" for n in range(len(before.plan.kernels))]
    quiet: Any = lambda event, details: None  # noqa: E731
    slow = choose_libraries(before, names, Contender(times=(1.99, 2.0)), quiet)
    assert not slow.library_calls and any("of the kernel's time" in c.reason for c in slow.library)
    wrong = choose_libraries(before, names, Contender(wrong=True), quiet)
    assert not wrong.library_calls and any("KVC0701" in c.reason for c in wrong.library)
    assert all(isinstance(c, LibraryChoice) and (c.form or c.reason) for c in slow.library)


def test_no_library_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVC_CACHE_DIR", str(tmp_path / "cache"))
    summary = translated(tmp_path, None, monkeypatch)
    lock = json.loads((tmp_path / "out" / "kvc.lock").read_text())
    text = (tmp_path / "out" / "module.py").read_text()
    assert lock["library"] == "forbidden" and summary["library"] == []
    assert "_library_" not in text and not any("library" in k for k in lock["kernels"])
    assert "Library calls were forbidden" in (tmp_path / "out" / "report.html").read_text()
