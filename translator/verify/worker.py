"""The process in which candidates are compiled and run: `python -m kvc.verify.worker`.

It answers frames (kvc.verify.frames) on its standard input and output. A diagnostic is an answer; any other failure
ends the process, which costs its parent this one candidate. The parent sets the time limit, this file the others.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO

from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Compiled, target
from kvc.executor import Executor, LaunchPlan
from kvc.executors import executor
from kvc.records import candidate_from_json, compiled_to_json
from kvc.verify.frames import Frame, FrameError, read, write

MAX_MEMORY = 16 << 30  # address space, in bytes; LLVM and NumPy reserve more than they touch
MAX_FILE = 4 << 30


class _Rejection(Exception):
    def __init__(self, stage: str, diagnostic: Diagnostic) -> None:
        super().__init__(str(diagnostic))
        self.stage = stage
        self.diagnostic = diagnostic


def prepare(frame: Frame) -> Frame:
    """Lint, compile and check the resources of `body["candidate"]`. Answers {"compiled"} with blobs."""
    candidate = candidate_from_json(frame.body["candidate"])
    language = target(candidate.target)
    errors = language.lint(candidate.source, candidate.task.arch)
    if errors:
        raise _Rejection("lint", errors[0])
    try:
        compiled = language.compile(candidate)
    except KvcError as error:
        if error.code == "KVC0501":  # a missing toolchain is not the candidate's fault
            raise
        raise _Rejection("compile", error.diagnostic) from None
    for problem in _resource_problems(candidate, compiled):
        raise _Rejection("resources", problem)
    body, blobs = compiled_to_json(compiled)
    return Frame({"compiled": body}, blobs=blobs)


def _resource_problems(candidate: Candidate, compiled: Compiled) -> list[Diagnostic]:
    limits = getattr(target(candidate.target), "limits", None)
    return limits(candidate, compiled) if limits is not None else []


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


def ping(frame: Frame) -> Frame:
    return Frame({"pid": os.getpid()})


ACTIONS: dict[str, Callable[[Frame], Frame]] = {"prepare": prepare, "execute": execute, "ping": ping}


def answer(frame: Frame) -> Frame:
    try:
        return ACTIONS[frame.body["action"]](frame)
    except _Rejection as rejection:
        return Frame({"rejected": {"stage": rejection.stage, "diagnostic": rejection.diagnostic.to_json()}})
    except KvcError as error:
        return Frame({"error": error.diagnostic.to_json()})


def _limit_resources() -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, MAX_MEMORY),
        (resource.RLIMIT_FSIZE, MAX_FILE),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _exactly(stream: BinaryIO, count: int) -> bytes:
    data = stream.read(count)
    if len(data) != count:
        raise FrameError("end of input")
    return data


def main() -> None:
    _limit_resources()
    # What a candidate or a compiler prints must not reach the pipe.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stdin = sys.stdin.buffer
    while True:
        try:
            request = read(lambda n: _exactly(stdin, n))
        except FrameError:
            return
        write(pipe, answer(request))


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
