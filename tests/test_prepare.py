"""Terms of weights: fp32 products by bf16 terms split the activation at each call and the weights in `prepare`. The
whole written module is verified as every other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kvc.arch import arch
from kvc.emitter import target as find_target
from kvc.frontends.fx.capture import capture
from kvc.interface import interface_of, stored_constants
from kvc.package import read_lock, write
from kvc.pipeline import Options, Translation, translate
from kvc.verify.judge import Bench
from kvc.whole import model_reference
from torch import Tensor, nn

from tests.adversarial.local import LocalPool


class Layers(nn.Module):
    """Two equal layers, one of them applied twice, and a product of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(torch.relu(self.second(torch.relu(self.first(x))))))
        return y @ x.t()


def translated(target: str, out: Path) -> Translation:
    """On a chip like gfx942 whose own fp32 products are too slow for anything, so that small layers are split too."""
    row = arch("gfx942")
    row = replace(row, peak_tflops=tuple((k, 1e-5 if k.startswith("f32") else v) for k, v in row.peak_tflops))
    captured = capture(Layers(), (torch.randn(64, 64),))
    bench = Bench(LocalPool(), "sim", 0)  # type: ignore[arg-type]
    done = translate(captured, find_target(target), row, Options("sim", jobs=1), bench=bench)
    reference = model_reference(captured, done.plan, 0)
    return write(out, done, interface_of(captured, "layers"), stored_constants(captured), [reference], bench)


@pytest.mark.parametrize("target", ["hip", "triton"])
def test_terms_of_weights_are_made_once(tmp_path: Path, target: str) -> None:
    done = translated(target, tmp_path / "out")
    text = (tmp_path / "out" / "module.py").read_text()
    derive, forward = (text[text.index(f"def {name}(") :] for name in ("_derive", "forward"))
    derive, forward = derive[: derive.index("def forward")], forward[: forward.index("return")]
    once = re.findall(r"_launch\(\w+, call, \((.*?)\)\)", derive)
    assert len(once) == 2, derive  # two weights; the one that is used twice has one copy
    assert all(line.startswith("w[") and line.count("d[") == 3 for line in once)
    made = len(re.findall("_launch", forward))
    whole = sum(len(done.artifacts[s.kernel].candidate.launches) for s in done.plan.launches)
    assert made == whole - 3 and done.evidence[0].launches == made
    (layer,) = [k for k in read_lock(tmp_path / "out")["kernels"] if k["uses"] == 3]
    assert [launch.get("ahead", False) for launch in layer["launches"]][:3] == [True, True, False]
