"""What a problem costs at given sizes, found by running it on meta tensors: shapes flow, no element is computed.

A measurement lists every operator with the extents that a kernel would tile, so that sizes can be compared: the same
operators in the same order of first use mean the same problem.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# What a problem's own code and torch raise where sizes do not fit together.
FAILURES = (RuntimeError, TypeError, ValueError, AssertionError, LookupError, AttributeError, ArithmeticError)

# Operators that move or rename data as strides require; their presence depends on sizes, the problem does not.
_LAYOUT = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "clone",
        "contiguous",
        "expand",
        "transpose",
        "permute",
        "t",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "alias",
        "detach",
        "as_strided",
        "split",
        "split_with_sizes",
        "unbind",
        "copy_",
        "_to_copy",
        "empty",
        "empty_like",
        "new_empty",
        "new_empty_strided",
        "empty_strided",
        "fill_",
        "zero_",
        "lift_fresh",
        "_reshape_alias",
        "unsafe_split",
        "chunk",
        "rand",
        "randn",
        "randint",
        "uniform_",
        "normal_",
    ]
)
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
_MATRIX = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}


@dataclass(frozen=True)
class Operation:
    """`matrix`: the (M, N, K) of a contraction, else None. `extents`: of the (first) result, or of the first operand
    where that is larger (a reduction). `sampled`: the values that each statistic of a norm is of, else 0."""

    name: str
    extents: tuple[int, ...]
    matrix: tuple[int, int, int] | None
    macs: int
    elements: int
    sampled: int = 0

    def repeated(self, times: int) -> Operation:
        return replace(self, macs=times * self.macs, elements=times * self.elements)


@dataclass(frozen=True)
class Measurement:
    """`state` and `inputs`: shapes of parameters and buffers, and of tensor arguments."""

    operations: tuple[Operation, ...]
    state: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]

    @property
    def macs(self) -> int:
        return sum(o.macs for o in self.operations)

    @property
    def elements(self) -> int:
        """Elements that operators read or write."""
        return sum(o.elements for o in self.operations)

    @property
    def bytes(self) -> int:
        """State, inputs and the largest result, as fp32."""
        largest = max((math.prod(o.extents) for o in self.operations), default=0)
        return 4 * (sum(math.prod(s) for s in (*self.state, *self.inputs)) + largest)

    @property
    def sampled(self) -> int:
        """The fewest values that the statistics of any norm are of; 0 without norms."""
        return min((o.sampled for o in self.operations if o.sampled), default=0)

    @property
    def structure(self) -> tuple[str, ...]:
        """Operators in the order of their first use, layout aside, and the ranks of the inputs."""
        names = dict.fromkeys(o.name for o in self.operations)
        return (*names, *(f"rank{len(s)}" for s in self.inputs))


def measure(source: str, file: str = "problem.py") -> Measurement:
    """Run the problem in train mode on meta tensors. Raises one of FAILURES where its sizes do not fit together."""
    import torch

    recorder = _recorder()
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        scope, model = _constructed(source, file)
        with torch.device("meta"):
            arguments = [_on_meta(x) for x in scope["get_inputs"]()]
            with recorder, _one_step(recorder):
                model(*arguments)
    state = tuple(tuple(t.shape) for t in (*model.parameters(), *model.buffers()))
    shapes = tuple(tuple(x.shape) for x in arguments if isinstance(x, torch.Tensor))
    return Measurement(tuple(recorder.operations), state, shapes)


def _constructed(source: str, file: str) -> tuple[dict[str, Any], torch.nn.Module]:
    """The problem's names, and its model on meta tensors. Constructors that look at values run on real ones."""
    import torch

    code = compile(ast.parse(source, file), file, "exec")
    for device in ("meta", "cpu"):
        module = types.ModuleType("kvc_bench_trial")
        with torch.device(device):
            exec(code, module.__dict__)  # the user's own problem file, as `kvc translate` would import it
            try:
                model = module.Model(*module.get_init_inputs())
            except (RuntimeError, NotImplementedError) as e:
                if device == "meta" and "meta" in str(e):
                    continue
                raise
        for part in model.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, torch.Tensor):
                    setattr(part, name, _on_meta(value))
        return module.__dict__, model.to("meta").train()
    raise RuntimeError("the model cannot be constructed")


def _on_meta(value: Any) -> Any:
    import torch

    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _recorder() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.operations: list[Operation] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name.rstrip("_") not in _LAYOUT and name not in _LAYOUT:
                given = [tuple(t.shape) for t in _tensors(args)]
                made = [tuple(t.shape) for t in _tensors(result)]
                if made:
                    self.operations.append(_operation(name, args, given, made))
            return result

    return Recorder()


def _one_step(recorder: Any) -> Any:
    """A mode in which a recurrent layer runs its first time step only, counted as often as there are steps: on meta
    tensors torch would run each step of each layer by itself, which takes a minute."""
    from torch.overrides import TorchFunctionMode

    class OneStep(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name not in _RECURRENT or not hasattr(args[0], "shape") or args[0].dim() != 3:
                return func(*args, **(kwargs or {}))
            time = 1 if args[-1] else 0  # the last argument is batch_first
            steps = args[0].shape[time]
            start = len(recorder.operations)
            first, *states = func(args[0].narrow(time, 0, 1), *args[1:], **(kwargs or {}))
            recorder.operations[start:] = [o.repeated(steps) for o in recorder.operations[start:]]
            shape = [steps if d == time else n for d, n in enumerate(first.shape)]
            return (first.new_empty(shape), *states)

    return OneStep()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _operation(name: str, args: Any, given: Sequence[tuple[int, ...]], made: Sequence[tuple[int, ...]]) -> Operation:
    out = made[0]
    extents = max(out, given[0], key=math.prod) if given else out
    elements = sum(math.prod(s) for s in given) + sum(math.prod(s) for s in made)
    matrix, macs = None, 0
    if name in _MATRIX:
        a, b = (tuple(args[i].shape) for i in _MATRIX[name])
        matrix = (a[-2], b[-1], a[-1])
        macs = math.prod(matrix) * math.prod(a[:-2])
    elif name == "convolution":
        matrix = _convolution(args, out)
        macs = math.prod(matrix) * int(args[8])
        if matrix[1] == 1:  # depthwise: no matrix product, each thread walks its window
            elements += macs
    elif "pool" in name and len(args) > 1 and "adaptive" not in name:
        elements += math.prod(out) * _window(args[1], len(out))
    return Operation(name, extents, matrix, macs, elements, _sampled(name, args, given))


def _sampled(name: str, args: Any, given: Sequence[tuple[int, ...]]) -> int:
    """Values that each statistic of a norm is of; 0 for anything else."""
    if not given or not given[0]:
        return 0
    if "batch_norm" in name:  # instance norms come as one, of a batch of 1
        return math.prod(given[0]) // max(given[0][1], 1)
    if name == "native_layer_norm":
        return math.prod(args[1])
    if name == "native_group_norm":
        _, channels, pixels, groups = (int(a) for a in args[3:7])
        return channels * pixels // max(groups, 1)
    return 0


def _convolution(args: Any, out: tuple[int, ...]) -> tuple[int, int, int]:
    """(M, N, K) of one group as an implicit GEMM over the result (also where it is transposed)."""
    weight = tuple(args[1].shape)
    transposed, groups = bool(args[6]), int(args[8])
    m = out[0] * math.prod(out[2:])
    channels = weight[0] // groups if transposed else weight[1]
    return m, out[1] // groups, channels * math.prod(weight[2:])


def _window(sizes: Any, rank: int) -> int:
    """Points of a pooling window; one size stands for every axis."""
    sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    return math.prod(sizes) if len(sizes) > 1 else int(sizes[0]) ** max(rank - 2, 1)
