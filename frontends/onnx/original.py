"""The second opinion: the same model and inputs in onnxruntime.

The oracle of a translation is the ONNX graph executed by kvc's own table in float64, which is exact but could share a
misunderstanding of an operator with the kernels. onnxruntime, where it is installed, shares nothing with kvc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError, Location

if TYPE_CHECKING:
    import numpy as np
    import torch

_ORACLE = "ONNX model in float64"
#: Largest difference that is let pass, as a fraction of the largest value: both sides round in their own order.
_ALLOWED = {"float32": 2e-3, "float64": 1e-6}
_ALLOWED_NARROW = 5e-2  # 16- and 8-bit results, where one rounding more is a visible step


def confirmation(path: Path, inputs: Mapping[str, torch.Tensor]) -> Callable[[], str]:
    """A function that compares the model of `path` on `inputs` with onnxruntime, and says how that went."""
    return lambda: confirm(path, inputs)


def confirm(path: Path, inputs: Mapping[str, torch.Tensor]) -> str:
    """Where the oracle comes from and what agrees with it: a line for the lock. KVC0709 where onnxruntime computes
    something else."""
    try:
        import onnxruntime
    except ImportError:
        return f"{_ORACLE}; onnxruntime is not installed"
    results = run(path, inputs)
    if results is None:
        return f"{_ORACLE}; onnxruntime {onnxruntime.__version__} does not run this model"
    import torch
    from kvc.frontends.onnx.load import read
    from kvc.frontends.onnx.model import build

    module = build(read(path), path.name, inputs)
    with torch.no_grad():
        own = module(*inputs.values())
    own = own if isinstance(own, tuple) else (own,)
    worst = 0.0
    for name, mine, theirs in zip(module.program.outputs, own, results, strict=True):
        error, allowed = distance(mine, theirs)
        if error > allowed:
            raise KvcError("KVC0709", f"output {name!r}: onnxruntime differs by {error:.1e} of the largest value",
                           Location(path.name), hint="report this: kvc reads an operator in another way")  # fmt: skip
        worst = max(worst, error)
    # A power of ten is a statement that holds on the next machine too.
    bound = next(f"1e-{n}" for n in range(9, -1, -1) if worst <= 10.0**-n)
    return f"{_ORACLE}; onnxruntime {onnxruntime.__version__} agrees within {bound} of the largest value"


def run(path: Path, inputs: Mapping[str, torch.Tensor]) -> list[Any] | None:
    """What onnxruntime gives, on the CPU; None where it cannot run the model, for an opset or type that it lacks."""
    import onnxruntime
    import torch
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    if any(x.dtype == torch.bfloat16 or (x.is_floating_point() and x.dtype.itemsize == 1) for x in inputs.values()):
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feed = {name: x.numpy() for name, x in inputs.items()}
        results: list[Any] = session.run(None, feed)
    except (
        state.Fail,
        state.NotImplemented,
        state.InvalidGraph,
        state.InvalidArgument,
        state.RuntimeException,
        TypeError,
    ):
        return None
    return results


def distance(mine: torch.Tensor, theirs: np.ndarray) -> tuple[float, float]:
    """(the largest difference as a fraction of the largest value, what is allowed). Infinite where the shape, or the
    place of a NaN or infinity, differs."""
    import numpy as np

    a, b = np.asarray(mine.double().numpy()), np.asarray(theirs).astype(np.float64)
    name = str(mine.dtype).removeprefix("torch.")
    allowed = _ALLOWED.get(name, _ALLOWED_NARROW if mine.is_floating_point() or mine.element_size() == 1 else 0.0)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf"), allowed
    if not a.size:
        return 0.0, allowed
    finite = np.isfinite(a)
    scale = float(np.abs(b[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale, allowed
