"""The small passes: unit axes, dedupe, the memory plan, the layout of intermediates."""

from kvc.dtypes import F32
from kvc.graph import Graph, Input, TensorType
from kvc.kernel import KernelSpec
from kvc.passes.dedupe import dedupe
from kvc.passes.memory import ALIGN, live_peak, memory_plan, size_of
from kvc.passes.unit_axes import drop_unit_axes
from kvc.plan import Invoke, Plan
from kvc.text import parse_kernel, print_kernel


def body(spec: KernelSpec) -> list[str]:
    return [line.strip() for line in print_kernel(spec).splitlines()[1:-1]]


def test_unit_axes_go_where_every_read_is_at_zero() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[b=1,m=5,k=7]) -> (y: f32[b,m,k]) {
        s: f32[b,m,u=1] = sum(k) x[b,m,k]
        one: f32[b,m,u] = sum(b2=1) s[b2,m,u]
        y[b,m,k] = x[b,m,k] / one[0,m,0]
    }"""
    )
    assert body(drop_unit_axes(spec)) == [
        "s: f32[m] = sum(k) x[0,m,k]",
        "one: f32[m] = s[m]",
        "y[m,k] = x[0,m,k] / one[m]",
    ]


def test_a_unit_dim_that_is_read_outside_stays() -> None:
    spec = parse_kernel(
        """kernel k(x: f32[m=5]) -> (y: f32[m,i=3]) {
        t: f32[m,u=1] = exp(x[m])
        y[m,i] = t[m,i - 1 | 0.0]
    }"""
    )
    assert body(drop_unit_axes(spec))[0] == "t: f32[m,u=1] = exp(x[m])"


def test_equal_kernels_are_one_whatever_their_names() -> None:
    a = parse_kernel("kernel add(x: f32[m=5], z: f32[m]) -> (y: f32[m]) { y[m] = x[m] + z[m] }")
    b = parse_kernel("kernel other(p: f32[i=5], q: f32[i]) -> (r: f32[i]) { r[i] = p[i] + q[i] }")
    c = parse_kernel("kernel add(x: f32[m=6], z: f32[m]) -> (y: f32[m]) { y[m] = x[m] + z[m] }")
    distinct, which = dedupe([a, b, c, a])
    assert [k.name for k in distinct] == ["add", "add_2"] and which == (0, 0, 1, 0)


def chain(sizes: list[int]) -> Plan:
    """A plan in which step n reads buffer n - 1 and n - 2 and writes buffer n; the last is the graph's output."""
    buffers = {f"b{n}": TensorType.of(F32, (size,)) for n, size in enumerate(sizes)}
    graph = Graph("g", (Input("x", TensorType.of(F32, (1,)), "user"),), (), (f"b{len(sizes) - 1}",))
    steps = []
    for n in range(len(sizes)):
        reads = tuple(f"b{i}" for i in (n - 1, n - 2) if i >= 0) or ("x",)
        steps.append(Invoke(0, reads, (f"b{n}",)))
    return Plan(graph, (), tuple(steps), buffers)


def test_tensors_that_live_together_do_not_overlap_and_share_memory_otherwise() -> None:
    plan = chain([1000, 3000, 10, 500, 7000, 20, 20, 900, 1])
    memory = memory_plan(plan)
    assert set(memory.offsets) == {f"b{n}" for n in range(8)}  # the output is not in the arena
    for a in memory.offsets:
        assert memory.offsets[a] % ALIGN == 0
        for b in memory.offsets:
            (fa, la), (fb, lb) = memory.lifetimes[a], memory.lifetimes[b]
            if a != b and fa <= lb and fb <= la:
                ends = memory.offsets[a] + size_of(plan.buffers[a]), memory.offsets[b] + size_of(plan.buffers[b])
                assert ends[0] <= memory.offsets[b] or ends[1] <= memory.offsets[a]
    assert memory.nbytes == live_peak(plan)


def test_a_plan_without_intermediates_needs_no_arena() -> None:
    assert memory_plan(chain([5])).nbytes == 0
