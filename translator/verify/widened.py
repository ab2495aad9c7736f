"""A model run in float64 that still means what it means in its own dtype: the oracle must be better than eager, and
compute the same thing.

Three things would change with the dtype. A cast by hand to a narrower float rounds: here it does, and what follows goes
on in float64, so that it is exact and not as eager computes in that dtype. The limits of the dtype that the model asks
for (`torch.finfo(x.dtype).eps`) are numbers of the model: those of its own dtype. So is the epsilon that rms_norm takes
where it is given none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    import torch


def own_dtype(module: torch.nn.Module, arguments: Any) -> torch.dtype | None:
    """The dtype that a model computes in: the first floating one among its parameters and arguments (nested)."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = (x for x in (*module.parameters(), *pytree.tree_leaves(arguments)) if isinstance(x, torch.Tensor))
    return next((x.dtype for x in tensors if x.is_floating_point()), None)


def to_double(value: Any) -> Any:
    """A nested value with its floating tensors in float64."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, value)


@contextmanager
def widened(own: torch.dtype | None) -> Iterator[None]:
    """While it is entered, a model whose tensors were made float64 computes what it says in dtype `own` (None: it has
    no floats). `torch.finfo` is replaced meanwhile, for the whole process."""
    import torch

    if own is None or own is torch.float64:
        with _casts():
            yield
        return
    limits = torch.finfo

    def finfo(dtype: torch.dtype | None = None) -> torch.finfo:
        return limits(own if dtype is torch.float64 else dtype or torch.get_default_dtype())

    computes = torch.float32 if own.itemsize < 4 else own
    with patch.object(torch, "finfo", finfo), _epsilon(limits(computes).eps), _casts():
        yield


def _casts() -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and result.is_floating_point():
                return result.double()
            return result

    return Casts()


def _epsilon(eps: float) -> Any:
    import torch
    import torch.nn.functional as F
    from torch.overrides import TorchFunctionMode

    class Epsilon(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(kwargs or {})
            if func in (F.rms_norm, torch.rms_norm):
                given = dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | given
                args = ()
                if given.get("eps") is None:
                    given["eps"] = eps
            return func(*args, **given)

    return Epsilon()
