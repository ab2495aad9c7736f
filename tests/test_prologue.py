"""What follows from parameters alone is worked out when they change: which steps that are, and when they run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kvc.arch import arch
from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Launch, Origin, Scratch, Task
from kvc.explain import explain
from kvc.frontends.fx.capture import capture
from kvc.passes.memory import memory_plan
from kvc.pipeline_graph import plan
from kvc.plan import Invoke, Plan
from kvc.templates import render
from kvc.text import parse_kernel
from kvc.verify.model import check_prepared, written_module
from kvc.workspace import launches_ahead
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class Tables(nn.Module):
    """A table by sines, a cast weight and a gathered bias."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.randn(8))
        self.weight = nn.Parameter(torch.randn(24, 16))
        self.bias = nn.Parameter(torch.randn(9))
        self.register_buffer("which", torch.arange(24) % 9)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(32.0)[:, None] * self.rate
        table = torch.cat([angles.sin(), angles.cos()], 1)
        y = ((x + table).bfloat16() @ self.weight.bfloat16().t()).float()
        return y * torch.exp(self.bias)[self.which]


class Counting(nn.Module):
    """A buffer that changes is no fixed tensor, and a result that follows from parameters is made at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(16))
        self.gain = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        return x * torch.exp(self.count), torch.exp(self.gain)


def planned(model: nn.Module, *args: Tensor) -> Plan:
    return plan(capture(model, args).graph)


def reads(made: Plan) -> set[str]:
    return {v for s in made.launches for v in s.inputs}


def test_tables_and_casts_are_a_prologue() -> None:
    made = planned(Tables(), torch.randn(4, 32, 16))
    called = [made.kernels[s.kernel] for s in made.launches]
    assert len(made.prologue) >= 2, explain(made)
    functions = {e for spec in called for e in ("sin(", "cos(", "exp(") if e in str(spec)}
    assert not functions
    assert not {"rate", "weight", "bias", "which"} & reads(made)
    assert f"{len(made.prologue)} once" in explain(made)


def test_a_normalised_weight_is_a_prologue() -> None:
    made = planned(weight_norm(nn.Linear(16, 24)), torch.randn(8, 16))
    assert len(made.launches) == 1 and made.prologue, explain(made)


def test_prologue_values_have_no_place_in_the_arena() -> None:
    made = planned(Tables(), torch.randn(4, 32, 16))
    written = {v for n in made.prologue for s in [made.steps[n]] if isinstance(s, Invoke) for v in s.outputs}
    assert written and not written & set(memory_plan(made).offsets)


def test_what_changes_or_leaves_the_model_runs_at_each_call() -> None:
    made = planned(Counting(), torch.randn(4, 16))
    assert not made.prologue and len(made.calls) == len(made.steps)


def test_small_masks_are_still_computed_where_they_are_used() -> None:
    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[-1]
            return x.masked_fill(torch.ones(n, n).triu(1).bool(), 0.0)

    made = planned(Masked(), torch.randn(3, 32, 32))
    assert not made.prologue and len(made.steps) == 1


# ---------------------------------------------------------------- the written module


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that derives 2 w from its parameter w and gives x + 2 w."""
    parameter = {"name": "'w'", "shape": (3,), "strides": (1,), "dtype": "float32", "kind": "parameter"}
    derived = {"shape": (3,), "dtype": "float32", "comment": "twice"}
    text = render(
        "module.py.j2", title="small", version="0", arch="gfx942", target="hip", native=False, mode="eval", distinct=1,
        fallbacks="no", library=[], arena_bytes=256, kernels=[], regions=[], region_dtypes=[], constants=False,
        tensors=[parameter],
        safetensors_dtypes={}, tied={}, used=["'w'"], signature=", x", prologue=[], device="x.device",
        body=["y = x + d[0]"], result="y", init_record="None", init_arguments="", sources=[0], derived=[derived],
        preparation=["d[0].copy_(w[0].detach() * 2)", "_made.append(1)"], home="self._slots[0][0]['w'].device",
    )  # fmt: skip
    (tmp_path / "module.py").write_text(text)
    with written_module(tmp_path) as written:
        written._made = []  # type: ignore[attr-defined]
        yield written


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        model.w.add_(1)


def replaced(model: nn.Module) -> None:
    model.w = nn.Parameter(torch.randn(3))


def assigned(model: nn.Module) -> None:
    model.load_state_dict({"w": torch.randn(3)}, assign=True)


def there_and_back(model: nn.Module) -> None:
    model.half()
    model.float()


def through_data(model: nn.Module) -> None:
    model.w.data.add_(1)
    model.prepare()  # leaves no trace


def stepped(model: nn.Module) -> None:
    model.w.requires_grad_()
    model.w.grad = torch.ones(3)
    torch.optim.SGD(model.parameters(), lr=0.5).step()


CHANGES: tuple[Callable[[nn.Module], None], ...] = (
    in_place, replaced, assigned, there_and_back, through_data, stepped,
    lambda model: model.load_state_dict({"w": torch.randn(3)}),
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_change_are_noticed(module: ModuleType, change: Callable[[nn.Module], None]) -> None:
    model, x = module.Model(), torch.randn(3)
    model.load_state_dict({"w": torch.tensor([1 / 3, 2.0, -5.0])})
    model(x)
    for _ in range(3):
        assert torch.equal(model(x), x + 2 * model.w)
    assert len(module._made) == 1
    place = model._derived[0].data_ptr()
    change(model)
    assert torch.equal(model(x), x + 2 * model.w)
    model(x)
    assert len(module._made) == 2
    assert model._derived[0].data_ptr() == place  # where a recorded call reads it


def test_copies_derive_their_own(module: ModuleType) -> None:
    model, x = module.Model(), torch.randn(3)
    model.load_state_dict({"w": torch.ones(3)})
    model(x)
    twin = copy.deepcopy(model)
    in_place(twin)
    assert torch.equal(twin(x), x + 4) and torch.equal(model(x), x + 2)


def test_tensors_of_inference_mode_are_never_trusted(module: ModuleType) -> None:
    x = torch.randn(3)
    with torch.inference_mode():
        model = module.Model()
        model.load_state_dict({"w": torch.ones(3)})
        model(x)
        model.w.add_(1)
        assert torch.equal(model(x), x + 4)


def test_nothing_derived_enters_the_state(module: ModuleType) -> None:
    model = module.Model()
    model.prepare()
    assert list(model.state_dict()) == ["w"] and not list(model.buffers())


# ---------------------------------------------------------------- launches that prepare operands


def candidate(*launches: Launch, scratch: tuple[str, ...] = ("t",)) -> Candidate:
    task = Task(
        parse_kernel("kernel k(x: f32[i=4], w: f32[i]) -> (y: f32[i]) {\n  y[i] = x[i] * w[i]\n}"), arch("gfx942")
    )
    workspace = tuple(Scratch(name, "bf16", 4) for name in scratch)
    return Candidate(task, "hip", "by_hand", "", launches, workspace, (), Origin("hand", "1"))


def launch(*args: str, ahead: bool = False) -> Launch:
    return Launch("k", (1, 1, 1), (64, 1, 1), args, ahead=ahead)


def test_launches_ahead_of_operands_that_stay() -> None:
    made = candidate(
        launch("w", "t", ahead=True), launch("x", "s", ahead=True), launch("t", "s", "y"), scratch=("t", "s")
    )
    assert launches_ahead(made, {"w"}) == (0,)
    assert launches_ahead(made, {"w", "x"}) == (0, 1)
    assert launches_ahead(made, ()) == ()


@pytest.mark.parametrize(
    "launches",
    [
        (launch("w", "t"), launch("t", "y")),  # it does not say so
        (launch("w", "y", ahead=True),),  # it writes a result
        (launch("t", "y"), launch("w", "t", ahead=True)),  # another used that scratch before
        (launch("w", ahead=True),),
    ],
)
def test_other_launches_run_at_each_call(launches: tuple[Launch, ...]) -> None:
    assert launches_ahead(candidate(*launches), {"w"}) == ()


def test_a_call_must_leave_what_was_prepared() -> None:
    before = [torch.arange(8, dtype=torch.uint8)]
    check_prepared(before, [torch.arange(8, dtype=torch.uint8)])
    untouched = torch.arange(8, dtype=torch.uint8)
    untouched[5:] = 0xFF  # spoiled, and written by nobody since
    check_prepared(before, [untouched])
    with pytest.raises(KvcError, match="changes what `prepare` wrote"):
        check_prepared(before, [torch.arange(8, dtype=torch.uint8) + 1])
