"""Windows: small reductions inside the lane that owns the output (pooling, depthwise convolution)."""

from __future__ import annotations

from collections.abc import Iterator

from kvc.emitter import Task
from kvc.patterns import Window, match_window

from .emitter import RuleEmitter
from .pointwise import flat_configurations, flat_kernel, points_of
from .source import Knobs, SourceFile, kernel_name


class WindowEmitter(RuleEmitter):
    """One launch; a flat block of output points, each with its own loops. Knobs: BLOCK, num_warps."""

    schedule = "window"

    def refusal(self, task: Task) -> str:
        if not task.spec.is_static:
            return "it has symbolic sizes"
        pattern = match_window(task.spec)
        return pattern if isinstance(pattern, str) else ""

    def configurations(self, task: Task) -> Iterator[Knobs]:
        pattern = match_window(task.spec)
        assert isinstance(pattern, Window)
        yield from flat_configurations(task, points_of(task.spec, pattern.axes), heavy=True)

    def write(self, file: SourceFile) -> None:
        spec = file.spec
        stmts = [spec.stmt[o.name] for o in spec.outputs]
        flat_kernel(file, kernel_name(spec.name), stmts, frozenset(o.name for o in spec.inputs))
