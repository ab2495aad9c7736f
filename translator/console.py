"""What a person sees while work goes on: a progress line on a terminal, plain lines elsewhere, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import Diagnostic

if TYPE_CHECKING:
    from kvc.pipeline import Attempt
    from rich.progress import Progress, TaskID

_STAGES = {
    "capture": "capturing the model",
    "partition": "cutting it into kernels",
    "kernels": "writing and verifying kernels",
    "model": "verifying the whole model",
    "write": "writing",
}


class Console:
    """Progress goes to stderr, results to stdout. `quiet` leaves errors only; `verbose` adds every attempt."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._total = 0
        self._done = 0

    @contextmanager
    def progress(self) -> Iterator[Console]:
        """Show a progress line while the block runs, on a terminal."""
        if self.quiet or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as progress:
            self._progress = progress
            self._task = progress.add_task("starting", total=None)
            try:
                yield self
            finally:
                self._progress = self._task = None

    def listen(self, event: str, details: dict[str, Any]) -> None:
        """A kvc.pipeline listener."""
        if event == "stage":
            self._stage(details)
        elif event == "kernel" and details["state"] != "start":
            self._kernel(details)

    def _stage(self, details: dict[str, Any]) -> None:
        name = str(details["name"])
        total = details.get("total")
        self._total, self._done = total or 0, 0
        text = _STAGES.get(name, name)
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text, total=total, completed=0)
        elif not self.quiet:
            self.note(text + (f" ({total} distinct)" if total else ""))

    def _kernel(self, details: dict[str, Any]) -> None:
        self._done += 1
        attempts: list[Attempt] = details.get("attempts", [])
        line = f"  {details['name']}: {describe(attempts)}, {details['seconds']:.1f} s"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self._done)
            if self.verbose:
                self._progress.console.print(line, highlight=False, markup=False)
        elif not self.quiet and self.verbose:
            self.note(f"{line} ({self._done} of {self._total})")

    def note(self, text: str) -> None:
        """A line about the work, on stderr."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str = "") -> None:
        """A line of the result, on stdout."""
        if not self.quiet:
            print(text, flush=True)

    def warn(self, diagnostic: Diagnostic) -> None:
        print(f"kvc: warning: {diagnostic}", file=sys.stderr)


def describe(attempts: list[Attempt]) -> str:
    """What the attempts for a kernel came to, in a few words."""
    from kvc.verify.verdict import Rejected, Verified

    words = []
    for attempt in attempts:
        match attempt.verdict:
            case Verified(evidence):
                worst = evidence.worst
                error = f", error {worst.error:.1e} of {worst.tolerance:.0e}" if worst else ""
                words.append(f"{attempt.schedule} verified{' (cached)' if attempt.cached else ''}{error}")
            case Rejected(stage, diagnostic):
                words.append(f"{attempt.schedule} rejected at {stage} ({diagnostic.code}: {diagnostic.message})")
    return "; ".join(words) or "no emitter supports it"
