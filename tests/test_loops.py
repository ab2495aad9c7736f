"""Loops of the index notation: their text, what the checker forbids, what they mean, and how they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kvc.canonical import canonical
from kvc.check import kernel_problems
from kvc.cost import launches
from kvc.interpret import interpret
from kvc.kernel import KernelSpec
from kvc.passes.partition import Cut, partition
from kvc.patterns import Recurrence, Staged, match, stages
from kvc.text import parse_kernel, print_kernel
from kvc.text.kernel_parser import parse_unchecked

from tests.loops import LOOPS


@pytest.mark.parametrize("name", LOOPS)
def test_text_is_the_identity(name: str) -> None:
    spec = parse_kernel(LOOPS[name])
    assert print_kernel(spec) == LOOPS[name]
    assert parse_kernel(print_kernel(canonical(spec))).hash == spec.hash


def test_the_direction_belongs_to_the_meaning() -> None:
    ahead = parse_kernel(LOOPS["decay"])
    back = parse_kernel(LOOPS["decay"].replace("loop t", "loop t reverse").replace("t - 1", "t + 1"))
    assert ahead.hash != back.hash


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("h[t,n] = h[t - 1,n] + x[t,n]", "gives no value for the first"),
        ("h[t,n] = h[t - 2,n | 0.0] + x[t,n]", "neither done nor the one before"),
        ("h[t,n] = h[t + 1,n | 0.0] + x[t,n]", "neither done nor the one before"),
        ("h[t,n] = h[t,n] + x[t,n]", "neither done nor the one before"),
        ("h[t,n] = h[t - 1,n + 1 | 0.0] + x[t,n]", "outside its other dims"),
        ("h[t,n] = h[t - 1,n | h[t - 1,n | 0.0]] + x[t,n]", "from the loop itself"),
        ("h[t,n] = x[t - 1,n | x[0,n]]", "no literal"),
        ("h[t,n] = scan sum(n) x[t,n]", "pointwise or a reduction"),
    ],
)
def test_what_a_step_may_not_do(step: str, problem: str) -> None:
    text = f"kernel k(x: f32[t=4,n=3]) -> (h: f32[t,n]) {{\n  loop t {{\n    {step}\n  }}\n}}"
    (spec,) = parse_unchecked(text)
    assert any(problem in p for p in kernel_problems(spec)), list(kernel_problems(spec))


def test_a_loop_has_its_axis_everywhere_and_one_place() -> None:
    (spec,) = parse_unchecked("kernel k(x: f32[t=4,n=3]) -> (h: f32[n]) {\n  loop t {\n    h[n] = x[0,n]\n  }\n}")
    assert any("no axis t" in p for p in kernel_problems(spec))
    text = """kernel k(x: f32[t=4,n=3]) -> (h: f32[t,n]) {
  loop t {
    g: f32[t,n] = x[t,n]
  }
  f: f32[t,n] = g[t,n]
  loop t {
    h[t,n] = f[t,n]
  }
}"""
    (spec,) = parse_unchecked(text)
    assert any("in two parts" in p for p in kernel_problems(spec))


# ---------------------------------------------------------------- meaning


def inputs_of(spec: KernelSpec) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {o.name: torch.randn(spec.shape_of(o.name), dtype=torch.float64) * 0.5 for o in spec.inputs}


def _lstm(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    h, c, hs, cs = x["h0"], x["c0"], [], []
    for gx in x["gx"]:
        i, f, g, o = (gx + torch.einsum("bk,gnk->bgn", h, x["w"])).unbind(1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        hs.append(h)
        cs.append(c)
    return {"h": torch.stack(hs), "c": torch.stack(cs)}


def _rnn_reverse(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    h, hs = torch.zeros(2, 150, dtype=torch.float64), []
    for t in reversed(range(5)):
        h = torch.tanh(x["x"][:, t] + h @ x["w"].T)
        hs.insert(0, h)
    return {"h": torch.stack(hs, 1)}


def _crossed(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    a, b, seen = x["y"][1], x["x"][0] * 2.0, []
    first = torch.full_like(b, 0.5)
    for n, row in enumerate(x["x"]):
        new = b + row
        b = a * (first if n == 0 else b) + new
        a = new
        seen.append((a, b))
    return {"a": torch.stack([s[0] for s in seen]), "b": torch.stack([s[1] for s in seen])}


def _ssm(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state, ys = torch.zeros(2, 3, 7, dtype=torch.float64), []
    for t in range(5):
        state = x["a"][t].exp()[:, None, None] * state + x["u"][t][:, None] * x["x"][t][..., None]
        ys.append((state * x["v"][t][:, None]).sum(-1))
    return {"y": torch.stack(ys)}


def _around(x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state, total = torch.zeros(9, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    for row in x["x"].exp():
        state = state * 0.5 + row
        total = total + state * state.max()
    return {"y": total}


@pytest.mark.parametrize(
    ("name", "reference"),
    [("lstm", _lstm), ("rnn_reverse", _rnn_reverse), ("crossed", _crossed), ("ssm", _ssm), ("around", _around)],
)
def test_meaning(name: str, reference: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    spec = parse_kernel(LOOPS[name])
    inputs = inputs_of(spec)
    for output, expected in reference(inputs).items():
        torch.testing.assert_close(interpret(spec, inputs)[output], expected, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- schedules


def test_phases_of_an_lstm() -> None:
    pattern = match(parse_kernel(LOOPS["lstm"]))
    assert isinstance(pattern, Recurrence) and launches(pattern) == 1
    assert pattern.batch == ("b",)
    assert [[s.target for s in phase] for phase in pattern.phases] == [["z"], ["i", "c", "h"]]
    assert pattern.carried == {"h", "c"} and pattern.shared == {"z", "h", "c"}


def test_a_loop_whose_points_never_meet() -> None:
    pattern = match(parse_kernel(LOOPS["decay"]))
    assert isinstance(pattern, Recurrence) and pattern.is_local and pattern.batch == ("b", "n")


def test_a_loop_among_other_stages() -> None:
    spec = parse_kernel(LOOPS["around"])
    assert isinstance(match(spec), Staged)
    assert [(s.kind, s.targets) for s in stages(spec).stages if s.kind == "loop"] == [("loop", ("s", "c"))]


@pytest.mark.parametrize("name", LOOPS)
def test_partition_keeps_a_loop_whole_and_its_meaning(name: str) -> None:
    whole = parse_kernel(LOOPS[name])
    inputs = inputs_of(whole)
    expected = interpret(whole, inputs)
    values = dict(inputs)
    cuts = [c for c in partition(whole) if isinstance(c, Cut)]
    assert sum(isinstance(match(c.spec), Recurrence) for c in cuts) == 1
    for cut in cuts:
        operands = {o.name: values[o.name].reshape(cut.spec.shape_of(o.name)) for o in cut.spec.inputs}
        values |= interpret(cut.spec, operands)
    for output, value in expected.items():
        torch.testing.assert_close(values[output].reshape(value.shape), value, rtol=1e-12, atol=1e-12)
