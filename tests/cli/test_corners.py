"""Models at the edges of what a model is, found by the graph fuzzer: each translates and verifies on both targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

CORNERS = {
    "results without elements": "return x[:, :0].sin() * 2, x.sum(1)",
    "windows that overlap": "return x.reshape(-1).unfold(0, 2, 1), x.roll(1, 2)",
    "a table that follows from nothing": "return x * torch.arange(4.0).cos().cumsum(0)",
    "a result that is an input": "return x, x.t()[0] if x.ndim == 2 else x[0], x + 1",
    "a mix of layouts": "return torch.xlogy(x[0], x[1].t().contiguous().t()), torch.addcmul(x[0], x[1], x[0].exp())",
    "repeated in place": "return x[:, :, :1].expand(2, 3, 5), x[0, 0].exp().expand(3, 4)",
    "half precision by hand": "return torch.special.i0e(x.half()), (x.bfloat16() @ x.bfloat16().mT).float()",
    "one element": "return x.sum().reshape(()), x[0, 0, 0]",
}


@pytest.mark.parametrize("target", ["hip", "triton"])
def test_all_at_once(target: str, kvc: Run, tmp_path: Path) -> None:
    source = tmp_path / "corners.py"
    parts = "".join(
        f"\n    def part{n}(self, x):  # {name}\n        {code}\n" for n, (name, code) in enumerate(CORNERS.items())
    )
    results = ", ".join(
        f"*self.part{n}(x)" if "," in code else f"self.part{n}(x)" for n, code in enumerate(CORNERS.values())
    )
    source.write_text(
        f"import torch\n\n\nclass Model(torch.nn.Module):{parts}\n    def forward(self, x):\n        return {results}\n"
        "\n\ndef get_inputs():\n    return [torch.randn(2, 3, 4)]\n"
    )
    ran = kvc("translate", source, "-t", target, "-o", tmp_path / "out", "--strict")
    assert ran.code == 0, ran.err
