"""`kvc explain` and KVC_LOGS: why a kernel is what it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from kvc.arch import arch
from kvc.bottleneck import limit_of
from kvc.diagnostics import KvcError
from kvc.disassembly import class_of, disassemble, excerpt
from kvc.logs import TOPICS, chosen, tell, topic
from kvc.text import parse_kernel

from .conftest import Run

ASM = """\
\t.text
k:                                      ; @k
; %bb.0:
\ts_load_dwordx2 s[0:1], s[0:1], 0x0
.LBB0_1:                                ; outer
\tds_read_b32 v1, v2
.LBB0_2:                                ; inner
\tv_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
\ts_cbranch_scc1 .LBB0_2
\tv_add_f32_e32 v1, v1, v2
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
.Lfunc_end0:
\t.size k, .Lfunc_end0-k
other:
\ts_endpgm
"""


def test_a_kernel_is_explained_both_ways(kvc: Run, folder: Path, tiny: Path) -> None:
    listed = json.loads(kvc("explain", folder, "--json").out)["kernels"]
    (name,) = [k["name"] for k in listed if k["name"].startswith("linear")]
    ran = kvc("explain", folder, "linear", "--root", tiny.parent)
    assert ran.code == 0, ran.err
    assert "y = torch.relu(self.bn(self.fc(x))) + self.shift" in ran.out  # back to the model
    assert "not pointwise: it has reductions" in ran.out  # why this schedule
    assert "never exist in memory" in ran.out and "apart since" in ran.out  # why one kernel
    assert "byte for byte the verified code object" in ran.out and "v_" in ran.out  # forward to the instructions
    found = json.loads(kvc("explain", folder, name, "--json").out)
    assert found["limit"]["kind"] == "estimate" and found["limit"]["by"] in {p["name"] for p in found["limit"]["parts"]}
    assert found["pattern"] == "contraction" and "hip.pointwise" in found["why_not_emitter"]
    (code,) = found["code"]
    assert sum(code["instructions"].values()) > 20 and any("linear(" in node for node in found["graph"])


def test_an_unknown_kernel_is_said_so(kvc: Run, folder: Path) -> None:
    ran = kvc("explain", folder, "lineal")
    assert ran.code == 2 and "KVC0106" in ran.err and "linear" in ran.err
    assert kvc("explain", folder, "").code == 2  # fits every kernel


def test_loops_are_found_and_the_innermost_is_shown() -> None:
    code = disassemble(ASM, "k")
    assert code.counts == {"scalar memory": 1, "LDS": 1, "matrix": 1, "branch": 3, "vector": 1}
    assert [(loop.first, loop.last) for loop in code.loops] == [(3, 5), (1, 7)]
    what, lines = excerpt(code, 10)
    assert "innermost" in what and [line.split()[0] for line in lines] == [
        ".LBB0_2:",
        "v_mfma_f32_16x16x16_f16",
        "s_cbranch_scc1",
    ]
    assert disassemble(ASM, "missing").lines == ()
    assert class_of("tensor_load") == "other"


def test_the_limit_follows_the_work() -> None:
    row = arch("gfx942")
    grid = [{"grid": [4096, 1, 1]}]
    copy = parse_kernel("kernel c(x: f32[m=100000000]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}")
    assert limit_of(copy, row, grid).name == "memory"
    small = parse_kernel("kernel c(x: f32[m=100]) -> (y: f32[m]) {\n  y[m] = x[m] * 2.0\n}")
    assert limit_of(small, row, grid).name == "latency"
    product = parse_kernel(
        "kernel p(x: bf16[m=8192,k=8192], w: bf16[n=8192,k]) -> (y: f32[m,n]) {\n  y[m,n] = sum(k) x[m,k] * w[n,k]\n}"
    )

    def counters(**counted: int) -> dict:
        return {"launches": [{"counters": counted}]}

    assert limit_of(product, row, grid, counters(mfma_flops=2 * 8192**3)).name == "MFMA"
    assert limit_of(product, row, grid, counters(mfma_flops=1, lds_bytes=10**12)).name == "LDS"


def test_logs_are_told_to_those_who_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def forbidden() -> str:
        raise AssertionError("nobody listens")

    tell("graph", forbidden)
    monkeypatch.setenv("KVC_LOGS", "verdicts, plan")
    assert chosen() == {"verdicts", "plan"}
    tell("graph", forbidden)
    seen: list[str] = []
    logger = topic("plan")
    listener = logging.Handler()
    listener.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(listener)
    tell("plan", lambda: "six kernels")
    logger.removeHandler(listener)
    assert seen == ["six kernels"]
    monkeypatch.setenv("KVC_LOGS", "all")
    assert chosen() == set(TOPICS)
    monkeypatch.setenv("KVC_LOGS", "weather")
    with pytest.raises(KvcError, match="weather"):
        topic("plan")
    monkeypatch.delenv("KVC_LOGS")
    assert not topic("plan").handlers
