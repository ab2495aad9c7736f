"""What a person sees while kernels are tuned: the current best and its share of the roofline, measured or estimated."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kvc.console import Console

if TYPE_CHECKING:
    from rich.live import Live

_STAGES = {"open": "reading the translation", "tune": "tuning", "model": "verifying the whole model"}


def share(floor_us: float, us: float | None) -> str:
    """How much of the roofline a time reaches."""
    return f"{100 * floor_us / us:.0f} % of the roofline" if us else "nothing yet"


def microseconds(us: float | None) -> str:
    return "-" if us is None else f"{us:,.1f} us" if us < 1e4 else f"{us / 1e3:,.2f} ms"


class Progress:
    """A listener for kvc.autotune: one live line on a terminal, plain lines elsewhere, on stderr."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._live: Live | None = None
        self._kernels = ""

    def __enter__(self) -> Progress:
        if not self._console.quiet and sys.stderr.isatty():
            from rich.console import Console as RichConsole
            from rich.live import Live

            self._live = Live(console=RichConsole(stderr=True), transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def listen(self, event: str, details: dict[str, Any]) -> None:
        """A kvc.pipeline listener."""
        if event == "stage":
            total = details.get("total")
            text = _STAGES.get(details["name"], details["name"])
            self._line(f"{text} {total} kernels" if total else text)
        elif event == "trial":
            self._trial(details)
        elif event == "tuned":
            self._print(self._tuned(details["kernel"], details["result"]))
        elif event == "note":
            self._print(details["text"])

    def _trial(self, d: dict[str, Any]) -> None:
        label = "" if d["kind"] == "measured" else " (estimate)"
        best = f"{microseconds(d['best_us'])}{label}, {share(d['floor_us'], d['best_us'])}"
        self._line(f"{d['kernel']}: trial {d['done']}, best {best}", plain=False)
        if self._verbose:
            reason = f" ({d['reason']})" if d["reason"] else ""
            self._print(f"  {d['state']:<8} {microseconds(d['us']):>12}{label}  {d['choice']}{reason}")

    def _tuned(self, name: str, found: Any) -> str:
        label = "" if found.kind == "measured" else " (estimate)"
        if not found.changed:
            return f"{name}: nothing better in {len(found.history)} trials of {found.space} settings{label}"
        times = f"{microseconds(found.given_us)} -> {microseconds(found.best_us)}{label}"
        return f"{name}: {times}, {share(found.floor_us, found.best_us)}, {len(found.history)} trials"

    def _line(self, text: str, plain: bool = True) -> None:
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(text))
        elif plain:
            self._console.note(text)

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            self._console.note(text)


def summary_text(summary: dict[str, Any]) -> str:
    """The outcome as a person reads it."""
    kind = summary["kind"]
    lines = []
    for name, found in summary["kernels"].items():
        times = microseconds(found["best_us"])
        times = f"{microseconds(found['given_us'])} -> {times}" if found["changed"] else f"{times}, unchanged"
        lines.append(f"  {name:<36} {times} ({kind}), {share(found['floor_us'], found['best_us'])}")
    what = "estimates" if kind == "estimate" else "measured"
    head = f"{summary['out']}: {len(summary['changed'])} of {len(lines)} tuned kernels changed; times are {what}"
    return "\n".join([head, *lines])
