"""Element types, one row each.

`compute` is the type in which arithmetic on a value of this type happens (torch's "opmath"): loads of narrow
floats widen to f32 exactly, narrow integers widen to i32. `rtol`/`atol` are the verifier's tolerances; `atol`
is a fraction of the reference's magnitude, not an absolute number.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.diagnostics import KvcError


@dataclass(frozen=True)
class DType:
    name: str  # as written in .kir
    bits: int
    kind: str  # "float" | "int" | "uint" | "bool"
    torch_name: str
    compute_name: str
    eps: float = 0.0  # unit in the last place of 1.0
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def compute(self) -> DType:
        return DTYPES[self.compute_name]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


DTYPES: dict[str, DType] = {
    row.name: row
    for row in (
        DType("f64", 64, "float", "float64", "f64", 2.0**-52, 1e-11, 1e-11),
        DType("f32", 32, "float", "float32", "f32", 2.0**-23, 1e-4, 1e-5),
        DType("f16", 16, "float", "float16", "f32", 2.0**-10, 1e-2, 1e-3),
        DType("bf16", 16, "float", "bfloat16", "f32", 2.0**-7, 3e-2, 8e-3),
        DType("f8e4m3fn", 8, "float", "float8_e4m3fn", "f32", 2.0**-3, 1.3e-1, 6e-2),
        DType("f8e4m3fnuz", 8, "float", "float8_e4m3fnuz", "f32", 2.0**-3, 1.3e-1, 6e-2),
        DType("f8e5m2", 8, "float", "float8_e5m2", "f32", 2.0**-2, 2.6e-1, 1.3e-1),
        DType("f8e5m2fnuz", 8, "float", "float8_e5m2fnuz", "f32", 2.0**-2, 2.6e-1, 1.3e-1),
        DType("i64", 64, "int", "int64", "i64"),
        DType("i32", 32, "int", "int32", "i32"),
        DType("i16", 16, "int", "int16", "i32"),
        DType("i8", 8, "int", "int8", "i32"),
        DType("u8", 8, "uint", "uint8", "i32"),
        DType("bool", 8, "bool", "bool", "bool"),
    )
}

F64, F32, F16, BF16 = (DTYPES[name] for name in ("f64", "f32", "f16", "bf16"))
I64, I32, I16, I8, U8, BOOL = (DTYPES[name] for name in ("i64", "i32", "i16", "i8", "u8", "bool"))
_BY_TORCH = {row.torch_name: row for row in DTYPES.values()}


def dtype(name: str) -> DType:
    """The row of a dtype by its .kir name."""
    if name not in DTYPES:
        raise KvcError("KVC0301", f"no dtype {name!r}", hint=f"one of: {', '.join(DTYPES)}")
    return DTYPES[name]


def from_torch(torch_dtype: object) -> DType:
    """The row of a `torch.dtype`."""
    name = str(torch_dtype).removeprefix("torch.")
    if name not in _BY_TORCH:
        raise KvcError("KVC0201", f"dtype {name} is not supported", hint="cast the tensor to a supported dtype")
    return _BY_TORCH[name]


def promote(a: DType, b: DType) -> DType:
    """The compute type of an expression over two compute types: bool < i32 < i64 < f32 < f64."""
    order = (BOOL, I32, I64, F32, F64)
    return order[max(order.index(a.compute), order.index(b.compute))]
