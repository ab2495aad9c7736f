"""Random PyTorch programs: typed by construction, weighted by the census, written as self-contained modules.

A program grows one operator at a time. Each expression is evaluated at once with real tensors; what torch refuses, what
grows too large and what is constant or not finite is dropped. Two seeds decide a program: one its skeleton (which
operators, on which values), the other its sizes and dtype, so that one skeleton gives several specs.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvc.vault.sources.program_ops import OPS, ProgramOp

if TYPE_CHECKING:
    import torch

MAX_NUMEL = 1 << 15  # elements of a value
MAX_WORK = 1 << 21  # elements of a value times the extent that a contraction sums over, roughly its multiply-adds
LENGTHS = (2, 8)  # operators of a program
TRIES = 60
SIZE_VARIANTS = 3  # programs of one skeleton

#: Extents in the order of how often they are wanted: primes and odd ones (tails), multiples of a tile, tiny ones.
_SIZES = (7, 13, 16, 24, 31, 33, 48, 64, 65, 67, 80, 96, 100, 128, 129, 5, 3, 8, 1, 20, 17, 37, 63)
_SMALL = (1, 2, 3, 4, 5, 8)
_IMAGE = (5, 7, 8, 9, 11, 14, 16)
_DTYPES = {"float32": 6.5, "bfloat16": 2.0, "float16": 1.5}
_RANKS = {1: 0.7, 2: 4.0, 3: 4.0, 4: 4.5, 5: 0.7}
_REFUSED = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AttributeError, AssertionError)


@dataclass(frozen=True)
class Value:
    """A value of the program: its name, shape, and kind ("float", "int" or "bool")."""

    name: str
    shape: tuple[int, ...]
    kind: str
    is_input: bool = False


@dataclass
class Program:
    """A program under construction."""

    structure: random.Random
    sizes: random.Random
    dtype: str = "float32"
    values: list[Value] = field(default_factory=list)
    init: list[str] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)  # name, expression that draws it
    lines: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    scope: dict[str, Any] = field(default_factory=dict)
    _count: int = 0

    # ------------------------------------------------ what operators ask for

    def pick(self, weighted: dict[str, float]) -> str:
        return self.structure.choices(list(weighted), list(weighted.values()))[0]

    def constant(self) -> str:
        return str(self.structure.choice((0.1, 0.25, 0.5, 0.7, 1.5, 2.0, 0.01, 3.0)))

    def size(self, at_most: int = 160) -> int:
        """An extent; the skeleton does not depend on it."""
        return self.sizes.choice([n for n in _SIZES if n <= at_most])

    def dim(self, x: Value) -> int:
        """One dimension, mostly the last one."""
        rank = len(x.shape)
        return -1 if self.structure.random() < 0.6 else self.structure.randrange(rank)

    def dims(self, x: Value) -> str:
        """The `dim` argument of a reduction."""
        rank = len(x.shape)
        kind = self.structure.random()
        if kind < 0.6 or rank == 1:
            return str(self.dim(x))
        if kind < 0.75:
            return str(tuple(range(rank)))
        return str(tuple(sorted(self.structure.sample(range(rank), self.structure.randint(1, rank - 1)))))

    def broadcast_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        kind = self.structure.random()
        if kind < 0.45:
            return shape
        if kind < 0.7:
            return shape[self.structure.randint(0, max(len(shape) - 1, 0)) :]
        return tuple(n if self.structure.random() < 0.5 else 1 for n in shape)

    def input(self, shape: tuple[int, ...], kind: str = "float") -> str:
        """A further argument of forward; kind: float, bool, int, or index:N for positions below N."""
        name = f"a{len(self.inputs)}"
        dims = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        if kind == "float":
            text = f"torch.randn(({dims}), dtype=torch.{self.dtype})"
        elif kind == "bool":
            text = f"torch.rand(({dims})) < 0.5"
        else:
            low, high = (-8, 9) if kind == "int" else (0, max(int(kind.partition(":")[2]), 1))
            text = f"torch.randint({low}, {high}, ({dims}))"
        self.inputs.append((name, text))
        self.scope[name] = eval(text, self.scope)
        kind = "float" if kind == "float" else "bool" if kind == "bool" else "int"
        self.values.append(Value(name, shape, kind, True))
        return name

    def parameter(self, shape: tuple[int, ...]) -> str:
        dims = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        return self._member(f"nn.Parameter(torch.randn(({dims})))", "p")

    def module(self, made: str) -> str:
        name = re.sub(r"\W.*", "", made.removeprefix("nn.")).lower()
        return self._member(made, name)

    def _member(self, made: str, stem: str) -> str:
        import torch

        self._count += 1
        name = f"{stem}{self._count}"
        built = eval(made, self.scope)
        with torch.no_grad():
            built = built.to(getattr(torch, self.dtype))
        setattr(self.scope["self"], name, built)
        self.init.append(f"self.{name} = {made}")
        return f"self.{name}"

    def partner(self, x: Value, same: bool = False) -> str:
        """Another operand for `x`: an earlier value of its shape, or a new one that broadcasts."""
        alike = [v for v in self.values if v.shape == x.shape and v.kind == "float" and v.name != x.name]
        if alike and self.structure.random() < 0.55:
            return self.structure.choice(alike).name
        if same:
            return self.input(x.shape)
        shape = self.broadcast_of(x.shape)
        return self.parameter(shape) if self.structure.random() < 0.4 else self.input(shape)

    # ------------------------------------------------ growing

    def start(self) -> None:
        import torch
        import torch.nn.functional

        self.scope.update(torch=torch, nn=torch.nn, F=torch.nn.functional, self=torch.nn.Module().eval())
        rank = int(self.pick({str(r): w for r, w in _RANKS.items()}))
        self.input(self._shape(rank))

    def _shape(self, rank: int) -> tuple[int, ...]:
        draw = self.sizes.choice
        if rank == 1:
            return (draw((1000, 257, 4096, 31, 1023, 2049, 97)),)
        if rank == 2:
            return (draw(_SIZES), draw((*_SIZES, 200, 257, 512)))
        if rank == 3:
            return (draw(_SMALL), draw(_SIZES), draw(_SIZES))
        if rank == 4:
            return (draw((1, 2, 3)), draw((3, 4, 6, 8, 12, 16)), draw(_IMAGE), draw(_IMAGE))
        return (draw((1, 2)), draw((2, 3, 4, 8)), draw((3, 4, 5)), draw((5, 6, 7)), draw((5, 7, 8)))

    def grow(self, op: ProgramOp, x: Value) -> bool:
        """Append `op` on `x`; False, and nothing changed, where it does not fit."""
        import torch

        mark = (len(self.values), len(self.init), len(self.inputs), self._count)
        torch.manual_seed(len(self.lines))
        try:
            with torch.no_grad():
                text = op.write(self, x)
                result = eval(text, self.scope) if text else None
        except _REFUSED:
            result = None
        if not isinstance(result, torch.Tensor) or not self._usable(result, text or "", x):
            self._undo(mark)
            return False
        name = f"t{len(self.lines)}"
        self.scope[name] = result
        self.lines.append(f"{name} = {text}")
        self.used |= set(re.findall(r"\b[at]\d+\b", text or ""))
        kind = "float" if result.is_floating_point() else "bool" if result.dtype == torch.bool else "int"
        self.values.append(Value(name, tuple(result.shape), kind))
        return True

    def _undo(self, mark: tuple[int, int, int, int]) -> None:
        values, init, inputs, self._count = mark
        del self.values[values:], self.init[init:], self.inputs[inputs:]

    def _usable(self, result: torch.Tensor, text: str, x: Value) -> bool:
        """Neither empty, nor too large, nor constant, nor full of infinities."""
        import torch

        if not 0 < result.numel() <= MAX_NUMEL or result.ndim > 5 or result.is_complex():
            return False
        depth = 1
        if "self." in text or "matmul" in text or "mm(" in text or "einsum" in text:
            depth = x.shape[-1] if "conv" not in text else x.shape[1] * 9
        if result.numel() * depth > MAX_WORK:
            return False
        flat = result.double()
        if not bool(torch.isfinite(flat).all()) or float(flat.abs().max()) > 1e4:
            return False
        return result.numel() == 1 or bool((flat != flat.reshape(-1)[0]).any())

    # ------------------------------------------------ writing

    def source(self) -> str:
        """The module as text: Model, get_inputs, get_init_inputs."""
        results = [v.name for v in self.values if not v.is_input and v.name not in self.used][-3:]
        needed = self._live(results)
        lines = [line for line in self.lines if line.partition(" ")[0] in needed]
        body = "\n".join(f"        {line}" for line in lines)
        members = [m for m in self.init if re.search(rf"{re.escape(m.partition(' ')[0])}\b", body)]
        init = "\n".join(f"        {line}" for line in members)
        if members and self.dtype != "float32":
            init += f"\n        self.to(torch.{self.dtype})"
        names = [name for name, _ in self.inputs if re.search(rf"\b{name}\b", body)]
        made = ",\n".join(f"        {text}" for name, text in self.inputs if name in names)
        constructor = f"    def __init__(self):\n        super().__init__()\n{init}\n\n" if members else ""
        return (
            "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
            f"class Model(nn.Module):\n{constructor}    def forward({', '.join(['self', *names])}):\n{body}\n"
            f"        return {', '.join(results)}\n\n\n"
            f"def get_inputs():\n    return [\n{made},\n    ]\n\n\ndef get_init_inputs():\n    return []\n"
        )

    def _live(self, results: list[str]) -> set[str]:
        needed = set(results)
        for line in reversed(self.lines):
            name, _, text = line.partition(" = ")
            if name in needed:
                needed |= set(re.findall(r"\b[at]\d+\b", text))
        return needed


def program(number: int, seed: int = 0) -> str:
    """Source text of random program `number`; the same on every machine for the same torch."""
    skeleton, variant = divmod(number, SIZE_VARIANTS)
    structure, sizes = random.Random(f"{seed}/{skeleton}"), random.Random(f"{seed}/{skeleton}/{variant}")
    p = Program(structure, sizes)
    p.dtype = sizes.choices(list(_DTYPES), list(_DTYPES.values()))[0]
    p.start()
    wanted = structure.randint(*LENGTHS)
    for _ in range(TRIES):
        if len(p.lines) >= wanted:
            break
        made = [v for v in p.values if not v.is_input] or p.values[:1]
        x = made[-1] if structure.random() < 0.75 else structure.choice(made)
        fitting = [o for o in OPS.values() if o.kind == x.kind and o.ranks[0] <= len(x.shape) <= o.ranks[1]]
        p.grow(structure.choices(fitting, [o.weight for o in fitting])[0], x)
    return p.source()
