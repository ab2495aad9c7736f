"""ONNX models as input: read, fixed in size and executed operator by operator in torch, so that everything behind the
capture (passes, kernels, verification) is the same as for a PyTorch model.

`kvc.frontends.onnx.load` makes the module, `table` says what each operator means, `steps` flattens functions, branches
and loops, `original` asks onnxruntime, `conformance` runs ONNX's own node tests. The package `onnx` is imported when a
model is loaded (`pip install 'kvc[onnx]'`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def state_dict(path: str | Path) -> dict[str, torch.Tensor]:
    """The weights of an .onnx file under the names that a translated module's `load_state_dict` takes: the names of
    the initializers. Raises what loading raises (KVC0101, KVC0102, KVC0108)."""
    from kvc.frontends.onnx.load import read_weights

    return read_weights(Path(path))


__all__ = ["state_dict"]
