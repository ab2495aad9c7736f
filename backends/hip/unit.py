"""What is being written: a source file (`Unit`), one of its kernels (`Kernel`), and the memory it sees (`Buffer`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvc.backends.hip.cxx import RESERVED, Names, Writer
from kvc.backends.hip.spelling import Helpers
from kvc.dtypes import DType
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Size
from kvc.simplify import IndexAlgebra

INT32 = 2**31


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: the pointer's name, the element type, and strides in elements."""

    pointer: str
    dtype: DType
    dims: tuple[str, ...]
    strides: tuple[Expr, ...]
    span: int  # elements between the first and one past the last that an index can reach
    argument: str  # the operand or scratch buffer, as launches name it


@dataclass
class Unit:
    """One source file being written: what its kernels share."""

    spec: KernelSpec
    helpers: Helpers = field(default_factory=Helpers)
    constants: dict[str, str] = field(default_factory=dict)  # `constexpr int NAME = value;` lines, by name

    def extent(self, axis: str) -> str:
        """The size of an axis as C++: a named constant, or the kernel's parameter where it is symbolic."""
        size = self.spec.size[axis].size
        if size is None:
            return extent_parameter(axis)
        name = f"{axis.upper()}_SIZE"
        self.constants.setdefault(name, f"constexpr {'int' if size < INT32 else 'long long'} {name} = {size};")
        return name


def extent_parameter(axis: str) -> str:
    """The kernel parameter that holds the extent of a symbolic axis."""
    return f"{axis}_size"


class Kernel:
    """One `__global__` function being written: its names, its buffers, its axes and its lines."""

    def __init__(self, unit: Unit, buffers: dict[str, Buffer], wide: bool, readable: Iterable[str] = ()) -> None:
        self.unit = unit
        self.spec = unit.spec
        self.helpers = unit.helpers
        self.buffers = buffers
        self.readable = frozenset(readable)  # tensors that are complete in memory; others are computed here
        self.wide = wide  # 64-bit index arithmetic
        self.writer = Writer(1)
        self.sizes: dict[str, Size] = dict(unit.spec.size)
        self.algebra = IndexAlgebra(self.sizes)
        taken = {b.pointer for b in buffers.values()} | {extent_parameter(s.name) for s in unit.spec.sizes}
        # Loop variables with one-letter names are common in specs too; only the schedules that use them claim them.
        self.names = Names(taken | {name for name in RESERVED if len(name) > 1})
        self.axis_text: dict[str, str] = {}
        self.used: dict[str, None] = {}  # tensors whose buffers it touches

    @property
    def index_type(self) -> str:
        return "long long" if self.wide else "int"

    def axis(self, stem: str, extent: int | None, text: str = "") -> Axis:
        """A fresh loop axis (a C++ index variable of that name, or `text`); extent None: of unknown size."""
        is_own = stem in RESERVED and stem not in self.axis_text.values()
        name = stem if is_own else self.names.fresh(stem)
        self.names.taken.add(name)
        key = name if name not in self.unit.spec.size else f"{name}#"
        self.sizes[key] = Size(key, extent) if extent is not None else Size(key, None, 0, 2**62)
        self.axis_text[key] = text or name
        return Axis(key)

    @contextmanager
    def dry(self) -> Iterator[None]:
        """Emission inside leaves no trace: a rehearsal, to learn what a body will read."""
        saved = self.writer, self.names, self.unit, self.helpers
        sizes, texts, used = dict(self.sizes), dict(self.axis_text), dict(self.used)
        self.writer, self.names = Writer(), Names(self.names.taken)
        self.unit = Unit(self.spec)
        self.helpers = self.unit.helpers
        try:
            yield
        finally:
            self.writer, self.names, self.unit, self.helpers = saved
            self.axis_text, self.used = texts, used
            self.sizes.clear()
            self.sizes.update(sizes)

    @contextmanager
    def local_names(self) -> Iterator[None]:
        """Names taken inside are free again after: a block that nothing outside refers to."""
        names, texts = self.names, dict(self.axis_text)
        self.names = Names(names.taken)
        try:
            yield
        finally:
            self.names, self.axis_text = names, texts

    def split(self, flat: Expr, axes: tuple[str, ...]) -> dict[str, Expr]:
        """Axes of a row-major domain as expressions of its flat index; the first one, whose size may be symbolic, takes
        what is left over."""
        point: dict[str, Expr] = {}
        step = 1
        for n, name in reversed(list(enumerate(axes))):
            size = self.spec.size[name].size
            assert size is not None or n == 0
            quotient = flat if step == 1 else Call("floordiv", (flat, Const(step)))
            index = quotient if n == 0 or size is None else Call("mod", (quotient, Const(size)))
            point[name] = self.algebra.index(index) if size != 1 else Const(0)
            step *= size or 1
        return point
