"""The process in which candidates are compiled and run: `python -P -m kvc.verify.worker POLICY`.

It confines itself (kvc.verify.confine), says so in a first frame, and then answers frames (kvc.verify.frames) on its
standard input and output. A diagnostic is an answer; any other failure ends the process, which costs its parent this
one candidate.

The worker reads untrusted data and runs no untrusted code. A candidate is linted and compiled in a process of its own,
forked from this one (kvc.verify.isolate): compiling Triton imports the candidate's Python. What comes back from there
is data that a candidate may have made up. It is checked in a second process, which the candidate never entered, and
then goes through the judge's gates like anything else. Kernels are executed here.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, BinaryIO

from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Compiled, Target, target
from kvc.executor import Executor, LaunchPlan
from kvc.executors import executor
from kvc.records import candidate_from_json, compiled_from_json, compiled_to_json, diagnostic_from_json
from kvc.verify.frames import Frame, FrameError, read, write
from kvc.verify.sandbox import Policy, Report

#: Seconds for a candidate's process where a request names none.
DEFAULT_LIMIT_S = 300.0


class _Rejection(Exception):
    def __init__(self, stage: str, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.stage = stage
        self.diagnostic = diagnostic


class Worker:
    """Answers requests, one after the other."""

    def __init__(self, rules: Policy, report: Report) -> None:
        self.rules = rules
        self.report = report
        self.started = time.monotonic_ns()
        self.actions: dict[str, Callable[[Frame], Frame]] = {
            "prepare": self.prepare,
            "execute": execute,
            "ping": self.ping,
        }

    def answer(self, frame: Frame) -> Frame:
        try:
            return self.actions[frame.body["action"]](frame)
        except _Rejection as rejection:
            return _rejected(rejection)
        except KvcError as error:
            return Frame({"error": error.diagnostic.to_json()})

    def ping(self, frame: Frame) -> Frame:
        return Frame({"started": self.started, "sandbox": self.report.to_json()})

    def prepare(self, frame: Frame) -> Frame:
        """Lint, compile and check `body["candidate"]`. Answers {"compiled"} with blobs, or {"rejected"}. KVC0501
        without a toolchain, KVC0604 where the candidate's process dies or runs out of time."""
        candidate = candidate_from_json(frame.body["candidate"])
        language = target(candidate.target)
        language.toolchain()  # asked here, so that no candidate can claim that it is missing
        warm = getattr(language, "warm", None)
        if warm is not None:
            warm(candidate.task.arch)
        limit_s = float(frame.body.get("limit_s", DEFAULT_LIMIT_S))
        answer = self._apart(partial(_compile, candidate, language), limit_s)
        if "compiled" not in answer.body:
            return answer
        checked = self._apart(partial(_check, candidate, language, answer), limit_s)
        return checked if checked.body != {"checked": True} else answer

    def _apart(self, work: Callable[[BinaryIO], None], limit_s: float) -> Frame:
        """The frame that `work` wrote in a process of its own, in one of the three shapes that are expected."""
        from kvc.verify.isolate import isolated

        outcome = isolated(work, self.rules, self.report, limit_s)
        if outcome.tried:
            tried = "; ".join(outcome.tried)
            message = f"while it was compiled, the candidate's own code tried to {tried}"
            if not outcome.ok:
                message += f"; {outcome.reason()}"
            hint = "a kernel file holds constants and kernels; nothing in it needs to run"
            raise _Rejection("compile", Diagnostic("KVC0605", message, hint=hint, details={"tried": outcome.tried}))
        if not outcome.ok:
            raise KvcError("KVC0604", outcome.reason())
        return _understood(outcome.reply)


def _understood(reply: bytes) -> Frame:
    """A candidate's answer, of which nothing is believed before it is looked at. KVC0604 where it makes no sense."""
    stream = io.BytesIO(reply)
    try:
        frame = read(lambda n: _exactly(stream, n))
        if stream.read(1):
            raise FrameError("more than one answer")
        if "rejected" in frame.body:
            found = frame.body["rejected"]
            diagnostic = diagnostic_from_json(found["diagnostic"])
            if found["stage"] in ("lint", "compile", "resources") and diagnostic.code != "KVC0501":
                return _rejected(_Rejection(found["stage"], diagnostic))
        elif frame.body == {"checked": True}:
            return Frame({"checked": True})
        elif "compiled" in frame.body:
            compiled = compiled_from_json(frame.body["compiled"], dict(frame.blobs))
            body, blobs = compiled_to_json(compiled)
            return Frame({"compiled": body}, blobs=blobs)
    except (FrameError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise KvcError("KVC0604", f"the candidate's process answered nonsense: {error}") from None
    raise KvcError("KVC0604", "the candidate's process answered nonsense")


def _rejected(rejection: _Rejection) -> Frame:
    return Frame({"rejected": {"stage": rejection.stage, "diagnostic": rejection.diagnostic.to_json()}})


def _compile(candidate: Candidate, language: Target, stream: BinaryIO) -> None:
    """In the candidate's process: lint, then compile."""
    try:
        errors = language.lint(candidate.source, candidate.task.arch)
        if errors:
            raise _Rejection("lint", errors[0])
        compiled = language.compile(candidate)
    except KvcError as error:
        write(stream, _rejected(_Rejection("compile", error.diagnostic)))
    except _Rejection as rejection:
        write(stream, _rejected(rejection))
    else:
        body, blobs = compiled_to_json(compiled)
        write(stream, Frame({"compiled": body}, blobs=blobs))


def _check(candidate: Candidate, language: Target, answer: Frame, stream: BinaryIO) -> None:
    """In a second process: the limits of the GPU, and whether the binary is what its assembly text says."""
    compiled = compiled_from_json(answer.body["compiled"], dict(answer.blobs))
    try:
        for problem in _problems(candidate, language, compiled):
            raise _Rejection("resources", problem)
    except KvcError as error:
        write(stream, _rejected(_Rejection("compile", error.diagnostic)))
    except _Rejection as rejection:
        write(stream, _rejected(rejection))
    else:
        write(stream, Frame({"checked": True}))


def _problems(candidate: Candidate, language: Target, compiled: Compiled) -> list[Diagnostic]:
    missing = [launch.kernel for launch in candidate.launches if launch.kernel not in compiled.objects]
    if missing:
        return [Diagnostic("KVC0502", f"the source defines no kernel {missing[0]}")]
    found: list[Diagnostic] = []
    for name in ("confirm", "limits"):
        ask = getattr(language, name, None)
        found += ask(candidate, compiled) if ask is not None else []
    return found


def execute(frame: Frame) -> Frame:
    """Run `body["launches"]` on the arrays. Answers the arrays after the last launch and {"evidence"}."""
    body = frame.body
    launches = [
        LaunchPlan(
            binary=frame.blobs[f"{item['object']}.co"],
            asm=frame.blobs[f"{item['object']}.asm"].decode(),
            kernel=item["kernel"],
            grid=tuple(item["grid"]),
            block=tuple(item["block"]),
            dynamic_lds=item["dynamic_lds"],
            args=tuple((kind, value) for kind, value in item["args"]),
        )
        for item in body["launches"]
    ]
    runner = _executor(body["executor"], body["arch"], body["seed"])
    done = runner.execute(launches, frame.arrays, outputs=body["outputs"])
    return Frame({"evidence": done.evidence}, done.buffers)


@lru_cache(maxsize=8)
def _executor(name: str, arch: str, seed: int) -> Executor:
    return executor(name, arch, seed)


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise FrameError("end of input")
    return data


def main() -> None:
    from kvc.verify.confine import enter

    rules = Policy.from_json(sys.argv[1])
    # Confined before anything else is imported. What a compiler prints must not reach the pipe.
    report = enter(rules)
    # Decoding a program makes many small objects that live on: at the default pace the collector walks them each time.
    gc.set_threshold(50_000, 20, 50)
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stdin = sys.stdin.buffer
    write(pipe, Frame({"sandbox": report.to_json()}))
    worker = Worker(replace(rules, level=report.level), report)
    while True:
        try:
            request = read(lambda n: _exactly(stdin, n))
        except FrameError:
            return
        write(pipe, worker.answer(request))


def body_of(launch: LaunchPlan, index: int) -> dict[str, Any]:
    """The JSON of a launch whose code object is blob number `index`."""
    return {
        "object": str(index),
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "dynamic_lds": launch.dynamic_lds,
        "args": [list(argument) for argument in launch.args],
    }


if __name__ == "__main__":
    main()
