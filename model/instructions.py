"""What a model is told that was not trained on frames: the notation, the frame, and one worked example a target."""

from __future__ import annotations

from functools import cache

TEXT = """\
You write one GPU kernel for AMD CDNA. The kernel is specified in index notation: named axes with their sizes, then one
statement a line. `sum(k) a[i,k] * b[k,j]` is a sum over k; `a[i - 1 | 0.0]` reads 0.0 outside the tensor; arithmetic is
in float32, a store rounds to the type of its tensor (a statement with a narrow type rounds even when it stays in
registers); integers are 64-bit. Tensors are contiguous in row-major order unless strides are given.

Answer with a frame and nothing else: no explanation, no code fence.
  line 1        a name for the schedule, lower case
  set A=1 B=2   tunable numbers (for Triton also num_warps, num_stages)
  scratch NAME DTYPE $SIZE              a workspace buffer, if needed
  run KERNEL(a0,a1,y0) $GRID block 256  one launch; KERNEL begins with "fused"; operands in parameter order
  use NAME                              helper functions, if any of: {helpers}
  (blank line)
  the kernel's source, without includes or imports
A number that follows from sizes may be written `$d0`, `$(d0*d1)` or `$cdiv(d0*d1,256)`.

Example of a task:
{prompt}
Its answer:
{answer}
Your task:
"""

_EXAMPLE = """\
{target} gfx942 strict best
(a0:f32[d0=64,d1=255],a1:f32[d0]) -> (y0:f32[d0,d1])
y0[d0,d1] = a0[d0,d1] * a1[d0]
pointwise axes d0*d1=16320:64
"""

_ANSWERS = {
    "hip": """\
pointwise
set BLOCK=256
run fused(a0,a1,y0) $cdiv(d0*d1,BLOCK) block 256

constexpr int BLOCK = 256;

extern "C" __global__ void __launch_bounds__(BLOCK)
fused(const float* __restrict__ a0, const float* __restrict__ a1, float* __restrict__ y0) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= $(d0*d1)) return;
  y0[i] = a0[i] * a1[i / $d1];
}
""",
    "triton": """\
pointwise
set BLOCK=256 num_warps=4
run fused(a0,a1,y0) $cdiv(d0*d1,BLOCK)

@triton.jit
def fused(a0_ptr, a1_ptr, y0_ptr):
    p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = p < $(d0*d1)
    a0 = tl.load(a0_ptr + p, mask=inside, other=0.0)
    a1 = tl.load(a1_ptr + p // $d1, mask=inside, other=0.0)
    tl.store(y0_ptr + p, a0 * a1, mask=inside)
""",
}


@cache
def instructions(target: str) -> str:
    """The text that goes before a prompt."""
    from kvc.model.languages import language

    example = _EXAMPLE.format(target=target)
    return TEXT.format(helpers=", ".join(language(target).helpers), prompt=example, answer=_ANSWERS[target])


def without_fence(text: str) -> str:
    """A text without thoughts and without the code fence that chat models put around an answer."""
    text = text.rpartition("</think>")[2].strip("\n ")
    if text.startswith("```"):
        text = text.partition("\n")[2]
        text = text.rpartition("```")[0] or text
    return text
