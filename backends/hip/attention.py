"""Attention: which specs the HIP kernel takes, and its knobs (the kernel itself: attention_kernel.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvc.attention import Attention, match_attention
from kvc.backends.hip.attention_kernel import MI, AttentionKernel, lds_bytes, shape_for
from kvc.backends.hip.source import VERSION, Knobs, alias_problem
from kvc.backends.hip.tiles import operand_dtype
from kvc.dtypes import F32
from kvc.emitter import Candidate, Space, Support, Task
from kvc.kernel import KernelSpec
from kvc.patterns import points

MAX_HEAD = 128  # what a lane's registers hold


class AttentionEmitter:
    """Knobs: WAVES (of a workgroup, MI queries each), BLOCK_N (keys of a step)."""

    name = "hip.attention"
    version = VERSION
    schedule = "attention"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        if not spec.is_static:
            return Support(False, "sizes are symbolic")
        pattern = match_attention(spec)
        problem = pattern if isinstance(pattern, str) else alias_problem(spec)
        if problem:
            return Support(False, problem)
        assert isinstance(pattern, Attention)
        reason = _refusal(spec, pattern)
        if not reason and shape_for(task.arch, operand_dtype(spec, pattern.q)) is None:
            reason = "the GPU has no matrix instruction for it"
        return Support(not reason, reason)

    def space(self, task: Task) -> Space:
        pattern = _pattern(task.spec)
        queries, keys = points(task.spec, pattern.m), points(task.spec, pattern.n)
        most = max(1, min(4, -(-queries // MI)))
        waves = [w for w in (4, 2, 1) if w <= most]
        blocks = [n for n in (64, 32) if n == 32 or n < 2 * keys]
        found = [(w, n) for w in waves for n in blocks if lds_bytes(task.spec, pattern, n) <= task.arch.lds_bytes]
        return Space(tuple((("WAVES", w), ("BLOCK_N", n)) for w, n in found))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        yield AttentionKernel(task, _pattern(task.spec), knobs).candidate(self.name, self.schedule, knobs)


def _pattern(spec: KernelSpec) -> Attention:
    pattern = match_attention(spec)
    assert isinstance(pattern, Attention)
    return pattern


def _refusal(spec: KernelSpec, pattern: Attention) -> str:
    if max(points(spec, pattern.d), points(spec, pattern.e)) > MAX_HEAD:
        return f"its heads are longer than {MAX_HEAD}"
    if points(spec, (*pattern.scores.axes, *pattern.d, *pattern.e)) == 0:
        return "it is empty"
    if pattern.scores.dtype.compute is not F32 or pattern.output.dtype.compute is not F32:
        return "its sums are not fp32"
    kinds = {operand_dtype(spec, x) for x in (pattern.q, pattern.k, pattern.v)}
    kind = kinds.pop()
    if kinds or kind.name not in ("f16", "bf16"):
        return "its operands are not all f16 or all bf16"
    if pattern.weight is not kind:
        return f"its weights are not rounded to {kind.name}"
    return ""
