"""What a value of an ONNX graph is while it is executed, and how an operator reads its inputs and attributes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from kvc.diagnostics import KvcError, Location

if TYPE_CHECKING:
    import onnx

#: onnx.TensorProto.DataType -> torch dtype. Left out: strings, complex numbers and types of less than a byte.
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16, 17: torch.float8_e4m3fn, 18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz,
}  # fmt: skip
ENUM_OF = {dtype: number for number, dtype in DTYPES.items()}
#: Types that numpy does not have; their values are kept as float32, which holds them exactly.
_AS_FLOAT32 = frozenset(
    {torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz}
)
#: 16-bit and wider float types, which `--dtype` replaces; 8-bit floats are storage formats and stay.
REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


@dataclass(eq=False)
class Static:
    """A tensor that is known when the model is translated."""

    array: np.ndarray
    dtype: torch.dtype
    name: str = ""  # the initializer that it is, so that it follows the state_dict where kernels read it

    @cached_property
    def key(self) -> str:
        """Equal for equal values."""
        digest = hashlib.sha256(np.ascontiguousarray(self.array).tobytes()).hexdigest()[:24]
        return f"{self.dtype} {self.array.shape} {digest}"

    @cached_property
    def uniform(self) -> bool:
        """Whether all elements are one number."""
        flat = self.array.reshape(-1)
        return bool(flat.size) and bool((flat == flat[0]).all())

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def tensor(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The value as a torch tensor of its own; not to be called while tracing."""
        return torch.from_numpy(np.array(self.array, order="C")).to(dtype or self.dtype)

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Static:
        plain = tensor.detach().to(torch.float32) if tensor.dtype in _AS_FLOAT32 else tensor.detach()
        return cls(plain.contiguous().cpu().numpy(), tensor.dtype)

    @classmethod
    def ints(cls, values: Sequence[int] | int) -> Static:
        return cls(np.array(values, dtype=np.int64), torch.int64)


Value = torch.Tensor | Static | list[Any]  # a list is an ONNX sequence of Values


def from_proto(proto: onnx.TensorProto, where: Location | None = None) -> Static:
    """A tensor of the file. KVC0204 for a type that kvc does not compute with."""
    from onnx import TensorProto, numpy_helper

    if proto.data_type not in DTYPES:
        name = TensorProto.DataType.Name(proto.data_type)
        raise KvcError("KVC0204", f"tensor {proto.name!r} is of type {name}", where,
                       hint="convert it to a float or integer type of 8 bits or more")  # fmt: skip
    dtype = DTYPES[proto.data_type]
    array = numpy_helper.to_array(proto)
    return Static(array.astype(np.float32) if dtype in _AS_FLOAT32 else np.asarray(array), dtype)


@dataclass
class Call:
    """One execution of an operator. `materialise` gives a Static as a tensor of the running model, `peek` the value of
    an input that follows from weights alone, `real` maps a float type of the file to the one that the model now has."""

    op: str
    where: Location
    attrs: dict[str, Any]
    inputs: list[Value | None]
    names: tuple[str, ...]
    outputs: int
    opset: int
    materialise: Callable[[Static], torch.Tensor]
    peek: Callable[[str], Static | None]
    real: Callable[[torch.dtype], torch.dtype]

    # ------------------------------------------------------------ failure
    def fail(self, reason: str, hint: str = "", **details: Any) -> KvcError:
        hint = hint or "rewrite this part of the model"
        return KvcError("KVC0204", f"{self.op}: {reason}", self.where, hint, **details)

    # ------------------------------------------------------------ inputs
    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def x(self, i: int = 0) -> torch.Tensor:
        """Input `i` as a tensor."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, Static):
            return self.materialise(value)
        if isinstance(value, torch.Tensor):
            return value
        raise self.fail(f"input {i} is {'missing' if value is None else 'a sequence'}")

    def opt(self, i: int) -> torch.Tensor | None:
        return self.x(i) if self.has(i) else None

    def xs(self) -> list[torch.Tensor]:
        return [self.x(i) for i in range(len(self.inputs))]

    def known(self, i: int) -> Static | None:
        """Input `i` where its value is known now, else None."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if isinstance(value, torch.Tensor):
            return self.peek(self.names[i])
        return value if isinstance(value, Static) else None

    def static(self, i: int, what: str) -> np.ndarray:
        """Input `i` as an array; KVC0204 where it depends on what the model is given."""
        found = self.known(i)
        if found is None:
            raise self.fail(f"{what} depends on the inputs of the model",
                            "kernels are written for fixed sizes: make it a constant of the model",
                            needed=self.names[i])  # fmt: skip
        return found.array

    def ints(self, name: str, i: int | None = None, default: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """Integers that are an attribute in some opsets and input `i` in others."""
        if i is not None and self.has(i):
            return tuple(int(v) for v in self.static(i, name).reshape(-1))
        value = self.attrs.get(name)
        return default if value is None else tuple(int(v) for v in value)

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.attrs.get(name, default))

    def decimal(self, name: str, default: float = 0.0) -> float:
        return float(self.attrs.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def dtype(self, name: str, default: int) -> torch.dtype:
        """The dtype that an attribute names, as the model has it."""
        number = self.integer(name, default)
        if number not in DTYPES:
            raise self.fail(f"type {number} of attribute {name}", "types of 8 bits or more are supported")
        return self.real(DTYPES[number])

    def axis(self, rank: int, name: str = "axis", default: int = 0) -> int:
        axis = self.integer(name, default)
        if not -rank <= axis < max(rank, 1):
            raise self.fail(f"axis {axis} of a tensor with {rank} dimensions")
        return axis % rank if rank else 0
