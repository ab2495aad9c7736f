"""TritonBench-G and ROCmBench, from the user's checkout: tasks with an instruction and a test, without a reference.

A model is prompted with the task's own instruction and writes Python; the task's test runs behind it. As published: a
call counts when the script ends well, an execution when it prints what the gold script prints (TritonBench-G) or when
its tests pass (ROCmBench). Printing proves little where nothing is printed, so the values that a script leaves in its
`result...` variables are compared with the gold script's too.

First gold runs against gold, and against itself with every kernel emptied: a task whose gold fails, differs from itself
or does not notice empty kernels cannot tell right from wrong, and is listed apart. On a machine without a GPU scripts
run on the simulator (kvc.model.on_simulator); what that cannot run is "not run", with the reason.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kvc.arch import DEFAULT_ARCH
from kvc.diagnostics import KvcError
from kvc.model.evaluate import bootstrap, pass_at, wilson
from kvc.model.on_simulator import MARK, NATIVE, NOT_RUN
from kvc.simulator.executor import SimExecutor

#: The line between a task's kernel and its test, in both suites.
SEPARATOR = "#" * 146
#: Of values that two runs leave: the suites' own tolerance.
TOLERANCE = 1e-2
_GRACE_S = 10.0


@dataclass(frozen=True)
class Script:
    """A task. `gold`: its kernel with the functions that launch it; `test`: what runs behind it; `kind`: "script",
    judged by what it prints and leaves, or "pytest"."""

    name: str
    instruction: str
    gold: str
    test: str
    kind: str

    def source(self, code: str) -> str:
        return f"{code.rstrip()}\n\n{SEPARATOR}\n{self.test}"


def tritonbench(root: Path) -> list[Script]:
    """TritonBench-G v1 of a checkout of thunlp/TritonBench, or of one that carries it. KVC0101 where there is none."""
    rows, folder = _table(root, "TritonBench_G_v1.json"), _folder(root, "TritonBench_G_v1")
    tasks = []
    for row in rows:
        text = (folder / row["file"]).read_text(encoding="utf-8")
        gold, _, test = text.rpartition(SEPARATOR)
        instruction = row.get("comp_instru") or row.get("simp_instru") or row.get("instruction") or ""
        if gold:
            tasks.append(Script(row["file"].removesuffix(".py"), instruction.strip(), gold, test, "script"))
    return tasks


def rocmbench(root: Path) -> list[Script]:
    """ROCmBench v1 of a checkout of AMD-AGI/GEAK-eval (or GEAK). KVC0101 where there is none."""
    tasks = []
    for row in _table(root, "ROCm_eval_complex_instruct_v1.json"):
        gold, _, test = row["label"].partition(SEPARATOR)
        if test:
            tasks.append(Script(row["file"].removesuffix(".py"), row["instruction"].strip(), gold, test, "pytest"))
    return tasks


SCRIPTS: dict[str, Callable[[Path], list[Script]]] = {"tritonbench-g": tritonbench, "rocmbench": rocmbench}


def _table(root: Path, name: str) -> list[dict[str, Any]]:
    found = sorted(root.rglob(name))
    if not found:
        raise KvcError("KVC0101", f"{root} holds no {name}", hint="a checkout of the suite")
    rows: list[dict[str, Any]] = json.loads(found[0].read_text(encoding="utf-8"))
    return rows


def _folder(root: Path, name: str) -> Path:
    found = sorted(p for p in root.rglob(name) if p.is_dir())
    if not found:
        raise KvcError("KVC0101", f"{root} holds no folder {name}", hint="a checkout of the suite")
    return found[0]


# ---------------------------------------------------------------- code


def emptied(code: str) -> str:
    """The code with the body of every Triton kernel replaced by `pass`: what a test must notice."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def code_of(text: str) -> str:
    """The Python of an answer: its last fenced block, else all of it."""
    text = text.rpartition("</think>")[2]
    blocks = re.findall(r"```(?:python|py)?\n(.*?)```", text, re.DOTALL)
    return str(blocks[-1]) if blocks else text.strip("\n ")


# ---------------------------------------------------------------- runs


@dataclass(frozen=True)
class Ran:
    """How a script ended: "ok", "failed", "timeout" or "not run"; what it printed, left, and the reason."""

    status: str
    printed: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    reason: str = ""


def run_script(task: Script, code: str, place: str, timeout_s: float) -> Ran:
    """Run a task's test behind some code, confined. `place`: an AMD GPU's name, for the simulator, or NATIVE."""
    from kvc.verify.sandbox import command, environment, policy

    devices = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/*") if place == NATIVE else ()
    if place != NATIVE:
        SimExecutor.make_ready()
    with tempfile.TemporaryDirectory(prefix="kvc-script-") as folder, tempfile.TemporaryFile("w+") as said:
        rules = policy(devices, folder)
        words = ["kvc.model.on_simulator" if w == "kvc.verify.worker" else w for w in command(rules)]
        with subprocess.Popen(
            [*words, place, task.kind, task.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            text=True, errors="replace", env=environment(rules), start_new_session=True,
        ) as process:  # fmt: skip
            line = _answer(process, json.dumps(task.source(code)), timeout_s)
        said.seek(0)
        complaint = said.read()[-10_000:]
    if line is None:
        return Ran("timeout", reason=f"more than {timeout_s:g} s")
    if process.returncode == NOT_RUN and MARK in complaint:
        return Ran("not run", reason=complaint.rpartition(MARK)[2].strip().splitlines()[0])
    reply = _reply(line)
    if process.returncode == 0 and reply is not None:
        return Ran("ok", *reply)
    printed = reply[0] if reply else ""
    lines = f"{complaint}\n{printed}".strip().splitlines()
    return Ran("failed", printed, reason=lines[-1][:200] if lines else f"exit code {process.returncode}")


def _answer(process: subprocess.Popen[str], request: str, timeout_s: float) -> str | None:
    """The process's one line, and its end; None where that takes too long. Its stdin stays open so long: with the end
    of stdin it ends (kvc.verify.confine)."""
    assert process.stdin is not None and process.stdout is not None
    stdout, lines = process.stdout, list[str]()
    reader = threading.Thread(target=lambda: lines.append(stdout.read()), daemon=True)
    reader.start()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(request + "\n")
        process.stdin.flush()
    reader.join(timeout_s)
    is_late = reader.is_alive()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.0 if is_late else _GRACE_S)  # stdout may end a little before the process does
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    if is_late:
        process.kill()
    reader.join()
    process.wait()
    return None if is_late else "".join(lines)


def _reply(line: str) -> tuple[str, dict[str, Any]] | None:
    """What the process printed and left; None where it sent nothing of that form. It is not to be trusted."""
    import numpy as np

    try:
        data = json.loads(line)
        arrays = {
            str(k): np.frombuffer(base64.b64decode(text), np.float64).reshape(tuple(int(n) for n in shape))
            for k, (shape, text) in data["values"].items()
        }
        return str(data["printed"]), arrays
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def same_values(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two runs left the same: names, shapes, and numbers within TOLERANCE."""
    import numpy as np

    return a.keys() == b.keys() and all(
        a[k].shape == b[k].shape
        and np.allclose(a[k].astype(float), b[k].astype(float), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        for k in a
    )


def agrees(task: Script, ran: Ran, gold: Ran) -> tuple[bool, bool]:
    """(as published, and by values too): whether a run that ended is right."""
    if ran.status != "ok":
        return False, False
    published = task.kind == "pytest" or ran.printed == gold.printed
    return published, published and (task.kind == "pytest" or same_values(ran.values, gold.values))


@dataclass(frozen=True)
class Gold:
    """What the gold script proves. `published`: whether the suite's own criterion notices empty kernels; `strict`:
    whether values do; `reason`: why neither, or why it was not run."""

    status: str
    published: bool = False
    strict: bool = False
    reason: str = ""
    ran: Ran = field(default_factory=lambda: Ran("not run"))


def gold_check(task: Script, place: str, timeout_s: float) -> Gold:
    """Gold against gold, then against empty kernels."""
    first = run_script(task, task.gold, place, timeout_s)
    if first.status != "ok":
        kind = "not run" if first.status in ("not run", "timeout") else "gold fails"
        return Gold(kind, reason=first.reason, ran=first)
    again = run_script(task, task.gold, place, timeout_s)
    published, strict = agrees(task, again, first)
    if not published and not same_values(again.values, first.values):
        return Gold("unstable", reason="gold differs from itself", ran=first)
    empty = run_script(task, emptied(task.gold), place, timeout_s)
    fooled, fooled_by_values = agrees(task, empty, first)
    sees, sees_values = published and not fooled, strict and not fooled_by_values
    why = "" if sees_values else "empty kernels pass" if fooled_by_values else "gold differs from itself"
    return Gold("ok" if sees_values else "blind", sees, sees_values, why, first)


# ---------------------------------------------------------------- a suite


@dataclass(frozen=True)
class Request:
    """What is asked of a suite of scripts. `samples`: answers to a task, the first greedy."""

    suite: str
    root: Path
    out: Path
    author: str = "gold"
    arch: str = DEFAULT_ARCH
    executor: str = "sim"
    samples: int = 1
    every: int = 1
    limit: int | None = None
    only: frozenset[str] = frozenset()
    seed: int = 0
    timeout_s: float = 300.0


def place_of(request: Request) -> str:
    """Where scripts run. KVC0601 for a GPU that is not here."""
    if request.executor == "sim":
        return request.arch
    import torch

    if not torch.cuda.is_available():
        raise KvcError("KVC0601", "torch sees no GPU here", hint="--executor sim runs what the simulator can")
    return NATIVE


def run(request: Request, say: Callable[[str], None]) -> dict[str, Any]:
    """Run what OUT/results.jsonl does not hold yet; gives the report. KVC0106 for an unknown suite."""
    if request.suite not in SCRIPTS:
        raise KvcError("KVC0106", f"suite {request.suite!r}", hint=f"one of: {', '.join(SCRIPTS)}")
    tasks = SCRIPTS[request.suite](request.root)
    if request.only:
        tasks = [t for t in tasks if t.name in request.only]
    tasks = tasks[:: request.every][: request.limit]
    request.out.mkdir(parents=True, exist_ok=True)
    journal, place = request.out / "results.jsonl", place_of(request)
    settings = {"author": request.author, "place": place, "samples": request.samples, "seed": request.seed}
    known = {r["task"]: r for r in _journal(journal) if r["settings"] == settings}
    rows = []
    for number, task in enumerate(tasks, 1):
        row = known.get(task.name)
        if row is None:
            row = {"task": task.name, "settings": settings, **_one(request, task, place)}
            with journal.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        rows.append(row)
        tries = "".join("+" if t["strict"] else "." for t in row["tries"])
        say(f"{number}/{len(tasks)} {task.name}: {row['gold']} {row['reason']} {tries}".rstrip())
    return report(rows).to_json()


def _journal(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _one(request: Request, task: Script, place: str) -> dict[str, Any]:
    gold = gold_check(task, place, request.timeout_s)
    row: dict[str, Any] = {"gold": gold.status, "published": gold.published, "reason": gold.reason, "tries": []}
    if gold.ran.status != "ok" or gold.status == "unstable":
        return row
    for code in answers(request, task):
        ran = run_script(task, code, place, request.timeout_s)
        published, strict = agrees(task, ran, gold.ran)
        row["tries"].append(
            {"call": ran.status == "ok", "published": published, "strict": strict, "reason": ran.reason}
        )
    return row


def answers(request: Request, task: Script) -> list[str]:
    """The author's code for a task: the gold itself, or what a model writes when given the task's instruction."""
    from dataclasses import replace

    from kvc.model.infer.generate import Sampling

    if request.author == "gold":
        return [task.gold] * request.samples
    source = _writer(request.author)
    text = f"{task.instruction}\n\nAnswer with one Python file that holds the kernels and their launchers.\n"
    if not source.fits(text):
        return [""] * request.samples
    warm = Sampling(temperature=0.6, most=8192)
    cold = replace(warm, temperature=0.0)
    found = source.write([text], cold, [request.seed])
    if request.samples > 1:
        seeds = [request.seed + n for n in range(1, request.samples)]
        found += source.write([text] * (request.samples - 1), warm, seeds)
    return [code_of(t) for t in found]


@cache
def _writer(author: str) -> Any:
    from kvc.model.writer import ServerWriter, writer

    kind, _, argument = author.partition(":")
    if kind == "openai":
        return ServerWriter(argument)
    if kind == "model":
        return writer(argument)
    raise KvcError("KVC0105", f"no author {author!r}", hint="gold, model, model:PATH_OR_HUB_ID or openai:URL#NAME")


@dataclass
class Report:
    """Shares are of all tasks that ran, [share, low, high] of the 95 % interval. `call` and `published` are the suite's
    own criteria at the first try; `corr`: by k, right by values too, of the tasks that can tell."""

    tasks: int = 0
    ran: int = 0
    tell: int = 0
    call: list[float] = field(default_factory=list)
    published: list[float] = field(default_factory=list)
    corr: dict[int, list[float]] = field(default_factory=dict)
    blind: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        def share(v: Sequence[float]) -> str:
            return f"{100 * v[0]:.1f} % ({100 * v[1]:.1f} to {100 * v[2]:.1f})"

        lines = [f"{self.ran} of {self.tasks} tasks ran, {self.tell} of them can tell right from wrong"]
        if self.ran:
            lines.append(
                f"  first try, of those that ran: call {share(self.call)}, as published {share(self.published)}"
            )
        lines += [f"  Corr@{k}, of those that can tell: {share(v)}" for k, v in sorted(self.corr.items())]
        for title, rows in (("proves nothing", self.blind), ("not run", self.not_run), ("failed", self.failures)):
            lines += [f"  {name}: {title}, {why}" for name, why in rows.items()]
        return "\n".join(lines)


def report(rows: Sequence[dict[str, Any]]) -> Report:
    """Figures of a suite's rows."""
    ran = [r for r in rows if r["tries"]]
    tell = [r for r in ran if r["gold"] == "ok"]
    made = Report(len(rows), len(ran), len(tell))
    for name in ("call", "published"):
        passed = sum(r["tries"][0][name] for r in ran)
        setattr(made, name, [round(v, 4) for v in (passed / max(len(ran), 1), *wilson(passed, len(ran)))])
    tries = min((len(r["tries"]) for r in tell), default=0)
    for k in (1, 3, 5, 8):
        if k <= tries:
            values = [pass_at(k, len(r["tries"]), sum(t["strict"] for t in r["tries"])) for r in tell]
            passed = sum(r["tries"][0]["strict"] for r in tell)
            spread = wilson(passed, len(tell)) if tries == 1 else bootstrap(values)
            made.corr[k] = [round(v, 4) for v in (sum(values) / len(values), *spread)]
    for r in rows:
        if r["gold"] == "not run":
            made.not_run[r["task"]] = r["reason"]
        elif r["gold"] != "ok":
            made.blind[r["task"]] = f"{r['gold']}: {r['reason']}"
        elif not any(t["strict"] for t in r["tries"]):
            made.failures[r["task"]] = r["tries"][0]["reason"] if r["tries"] else ""
    return made
