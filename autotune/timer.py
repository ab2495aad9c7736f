"""The process in which verified kernels are timed: `python -m kvc.autotune.timer`, and the side that drives it.

It runs launch plans on the device by turns and answers milliseconds. What hangs or brings the driver down costs this
process and condemns one candidate; the study goes on with a new one.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from kvc.diagnostics import KvcError
from kvc.executor import LaunchPlan
from kvc.records import diagnostic_from_json
from kvc.timing import interleave
from kvc.verify.frames import Frame, FrameError, read, write
from kvc.verify.worker import body_of

if TYPE_CHECKING:
    import numpy as np

ROUNDS = (5, 50)  # at least, at most
BUDGET_S = 1.0  # of timed rounds of one contest
WARMUP = 2
GLANCE = 3  # rounds after which a hopeless contestant may be given up
HOPELESS = 1.5  # times the incumbent
TIMEOUT_S = 120.0
CHALLENGER, INCUMBENT = "challenger", "incumbent"


@dataclass(frozen=True)
class Contest:
    """Milliseconds of both sides; `given_up` when the first rounds left no hope."""

    challenger: tuple[float, ...]
    incumbent: tuple[float, ...]
    given_up: bool = False

    @property
    def ratio(self) -> float:
        """The challenger's time in times of the incumbent's: what a drift of the machine leaves alone."""
        return statistics.median(self.challenger) / statistics.median(self.incumbent)


class Clock(Protocol):
    """Times two candidates against each other; the incumbent may be absent."""

    def contest(
        self,
        challenger: Sequence[LaunchPlan],
        incumbent: Sequence[LaunchPlan] | None,
        buffers: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> Contest: ...

    def close(self) -> None: ...


class DeviceClock:
    """Times on the device of an executor ("amdgpu", "cuda"), in a process of its own. KVC0604 when that dies."""

    program = "kvc.autotune.timer"

    def __init__(self, executor: str, arch: str, timeout_s: float = TIMEOUT_S) -> None:
        self.executor = executor
        self.arch = arch
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] = tempfile.TemporaryFile(prefix="kvc-timer-")  # noqa: SIM115 (closed in `close`)

    def contest(
        self,
        challenger: Sequence[LaunchPlan],
        incumbent: Sequence[LaunchPlan] | None,
        buffers: Mapping[str, np.ndarray],
        outputs: Collection[str],
    ) -> Contest:
        sides = {CHALLENGER: challenger} | ({INCUMBENT: incumbent} if incumbent is not None else {})
        body: dict[str, Any] = {"executor": self.executor, "arch": self.arch, "outputs": sorted(outputs), "sides": {}}
        blobs: dict[str, bytes] = {}
        for side, plans in sides.items():
            body["sides"][side] = []
            for n, plan in enumerate(plans):
                blobs[f"{side}{n}"] = plan.binary
                body["sides"][side].append({**body_of(plan, 0), "object": f"{side}{n}"})
        answer = self._ask(Frame(body, buffers, blobs)).body
        if "error" in answer:
            found = diagnostic_from_json(answer["error"])
            raise KvcError(found.code, found.message, found.location, found.hint, **found.details)
        samples = answer["samples"]
        return Contest(tuple(samples[CHALLENGER]), tuple(samples.get(INCUMBENT, ())), answer["given_up"])

    def _ask(self, frame: Frame) -> Frame:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.program],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            )  # fmt: skip
        assert self._process.stdin is not None
        deadline = time.monotonic() + self.timeout_s
        try:
            write(cast(BinaryIO, self._process.stdin), frame)
            return read(lambda n: self._exactly(n, deadline))
        except (FrameError, BrokenPipeError, ValueError) as error:
            self._end()
            self._stderr.seek(0)
            words = self._stderr.read()[-2000:].decode(errors="replace").strip().splitlines()
            raise KvcError("KVC0604", f"timing: {error}{': ' + words[-1] if words else ''}") from None

    def _exactly(self, count: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        parts: list[bytes] = []
        missing = count
        while missing:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise FrameError("the kernel ran out of time")
            part = os.read(pipe, min(missing, 1 << 20))
            if not part:
                raise FrameError(f"the process died with status {self._process.wait()}")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:  # what was buffered for a dead process
                        continue
            self._process = None

    def close(self) -> None:
        self._end()
        self._stderr.close()


def hopeless(samples: Mapping[str, Sequence[float]]) -> bool:
    """Whether the challenger's best of a few rounds is far behind the incumbent's worst."""
    mine, theirs = samples[CHALLENGER], samples.get(INCUMBENT, ())
    return len(mine) >= GLANCE and len(theirs) >= GLANCE and min(mine) > HOPELESS * max(theirs)


# ---------------------------------------------------------------- in the process


def answer(frame: Frame) -> Frame:
    """Time the sides of a frame."""
    from kvc.executors import executor

    body = frame.body
    sides = {
        side: [
            LaunchPlan(
                frame.blobs[item["object"]], "", item["kernel"], tuple(item["grid"]), tuple(item["block"]),
                item["dynamic_lds"], tuple((kind, value) for kind, value in item["args"]),
            )
            for item in items
        ]
        for side, items in body["sides"].items()
    }  # fmt: skip
    try:
        runner: Any = executor(body["executor"], body["arch"])
        with runner, runner.contestants(sides, frame.arrays, outputs=body["outputs"]) as sample:
            for _ in range(WARMUP):
                for side in sides:
                    sample(side)
            seen: list[bool] = []

            def stop(samples: dict[str, list[float]]) -> bool:
                if hopeless(samples):
                    seen.append(True)
                return bool(seen)

            samples = interleave(list(sides), sample, *ROUNDS, BUDGET_S, stop)
    except KvcError as error:
        return Frame({"error": error.diagnostic.to_json()})
    return Frame({"samples": samples, "given_up": bool(seen)})


def main(reply: Callable[[Frame], Frame] = answer) -> None:
    """Answer frames from stdin on stdout until it ends."""
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a driver prints must not reach the pipe

    def exactly(count: int) -> bytes:
        data = sys.stdin.buffer.read(count)
        if len(data) != count:
            raise FrameError("end of input")
        return data

    while True:
        try:
            frame = read(exactly)
        except FrameError:
            return
        write(pipe, reply(frame))


if __name__ == "__main__":
    main()
