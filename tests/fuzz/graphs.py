"""Random graphs over the op table: captured, translated to a target, executed on the simulator, compared with eager.

A graph is a program of calls of ATen overloads. Each step takes a sample of an `OpDef` and puts live values in the
place of its tensors: as they are, where the rank fits (the sample's sizes then follow the value's), else reshaped to
fit. Between steps come views that change strides. Inputs have random strides, sizes and dtypes. The seed decides all of
it, for one state of the op table (a new op moves the choices; a failure's record therefore names its steps):

    python -m tests.fuzz.graphs --seed 17 --target hip     one graph, with its steps
    python -m tests.fuzz.graphs --start 0 --count 300      many; failures by class, one JSON line each with --out
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.dtypes import DTYPES, DType
from kvc.emitter import target as find_target
from kvc.ops import OpDef, Sample, op_table
from kvc.verify.judge import Bench
from kvc.verify.pool import WorkerPool

from tests.adversarial.local import LocalPool
from tests.optable.harness import is_tensor

SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65)
MOST_ELEMENTS = 6000
FLOATS = ("f32", "f32", "f32", "f16", "bf16")
#: Ops that draw numbers or make tensors of nothing have no inputs to compose; some ask for sorted ones, or for indices
#: that another op made.
_LEFT_OUT = re.compile(
    r"^(random_|rand|bernoulli|dropout|native_dropout|multinomial|empty|searchsorted|bucketize|embedding_bag"
    r"|_embedding_bag|(adaptive_)?max_pool.*backward)"
)


@dataclass(frozen=True)
class Slot:
    """A value of the program, by number, in the place of an argument."""

    number: int


@dataclass(frozen=True)
class Step:
    """`call(*args, **attrs)`, by its dotted name below torch; `results` values are added to the program's."""

    call: str
    args: tuple[Any, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    results: int = 1

    def run(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        function: Any = torch
        for name in self.call.split("."):
            function = getattr(function, name)
        got = function(*[_filled(a, values) for a in self.args], **{k: _filled(v, values) for k, v in self.attrs})
        return list(got) if isinstance(got, list | tuple) else [got]

    def __str__(self) -> str:
        args = [*map(_shown, self.args), *(f"{k}={_shown(v)}" for k, v in self.attrs)]
        return f"{self.call.removeprefix('ops.')}({', '.join(args)})"


def _filled(arg: Any, values: list[torch.Tensor]) -> Any:
    if isinstance(arg, Slot):
        return values[arg.number]
    if isinstance(arg, list):
        return [_filled(a, values) for a in arg]
    return arg


def _shown(arg: Any) -> str:
    if isinstance(arg, Slot):
        return f"v{arg.number}"
    return f"[{', '.join(map(_shown, arg))}]" if isinstance(arg, list) else str(arg)


class Program(torch.nn.Module):
    """Runs the steps on its inputs; returns the values that no step used (the last three)."""

    def __init__(self, steps: list[Step], outputs: list[int]) -> None:
        super().__init__()
        self.steps = steps
        self.outputs = outputs

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values += step.run(values)
        return tuple(values[n] for n in self.outputs)


@dataclass
class Maker:
    """Writes one program. `inputs` and `values` are example tensors by number, inputs first; a new input moves the
    numbers of the steps' values, so they are numbered when the program is done."""

    rng: random.Random
    inputs: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    # Values are numbered from 1000 up while inputs may still be added.
    FIRST = 1000

    def value(self, number: int) -> torch.Tensor:
        return self.inputs[number] if number < self.FIRST else self.values[number - self.FIRST]

    def live(self) -> list[int]:
        return [*range(len(self.inputs)), *(self.FIRST + n for n in range(len(self.values)))]

    def fresh(self, dtype: str, shape: tuple[int, ...], limit: Any = None) -> Slot:
        """A new input with strides of some permutation, or every second element of a larger one."""
        order = list(range(len(shape)))
        if self.rng.random() < 0.4:
            self.rng.shuffle(order)
        stretch = self.rng.random() < 0.15 and len(shape) > 0
        stored = [shape[i] for i in order]
        if stretch:
            stored[-1] *= 2
        gen = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        kind = DTYPES[dtype]
        wanted = getattr(torch, kind.torch_name)
        if dtype == "bool":
            x = torch.rand(stored, generator=gen) > 0.5
        elif kind.is_float:
            x = torch.randn(stored, generator=gen)
            x = (x.abs().clamp(0.05, 0.95) if limit else x).to(wanted)
        else:
            x = torch.randint(0, limit if isinstance(limit, int) and limit > 0 else 5, stored, generator=gen).to(wanted)
        if stretch:
            x = x[..., ::2]
        back = [order.index(i) for i in range(len(shape))]
        self.inputs.append(x.permute(back) if len(shape) > 1 else x)
        return Slot(len(self.inputs) - 1)

    def add(self, call: str, *args: Any, **attrs: Any) -> Slot | None:
        """A step, if eager takes it and its results are small; the first result."""
        step = Step(call, args, tuple(attrs.items()))
        try:
            got = step.run(_Numbered(self))  # type: ignore[arg-type]
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return None
        if not got or any(not isinstance(g, torch.Tensor) or g.numel() > MOST_ELEMENTS for g in got):
            return None
        if any(g.is_complex() or g.is_quantized for g in got):
            return None
        first = self.FIRST + len(self.values)
        self.values += got
        self.steps.append(Step(call, args, tuple(attrs.items()), len(got)))
        self.used |= {s.number for a in (*args, *attrs.values()) for s in _slots(a)}
        return Slot(first)

    # ------------------------------------------------------------ views between steps

    def viewed(self, slot: Slot) -> Slot:
        """The value through a random view, or as it is."""
        x = self.value(slot.number)
        if x.dim() == 0 or self.rng.random() < 0.6:
            return slot
        dim = self.rng.randrange(x.dim())
        kind = self.rng.choice(["permute", "slice", "flip", "unsqueeze", "expand", "flatten", "select"])
        made: Slot | None = None
        if kind == "permute":
            order = list(range(x.dim()))
            self.rng.shuffle(order)
            made = self.add("permute", slot, order)
        elif kind == "slice" and x.shape[dim] > 2:
            start, step = self.rng.randrange(2), self.rng.choice([1, 1, 2, 3])
            made = self.add("ops.aten.slice.Tensor", slot, dim, start, x.shape[dim] - self.rng.randrange(2), step)
        elif kind == "flip":
            made = self.add("flip", slot, [dim])
        elif kind == "unsqueeze" and x.dim() < 4:
            made = self.add("unsqueeze", slot, dim)
        elif kind == "expand" and x.dim() < 4:
            made = self.add("ops.aten.expand.default", slot, [self.rng.choice([2, 3]), *x.shape])
        elif kind == "flatten" and x.dim() > 1:
            made = self.add("flatten", slot, 0, 1)
        elif kind == "select" and x.dim() > 1:
            made = self.add("select", slot, dim, self.rng.randrange(x.shape[dim]) if x.shape[dim] else 0)
        return made or slot

    # ------------------------------------------------------------ an op of the table

    def op(self, definition: OpDef, sample: Sample) -> Slot | None:
        """A step of the op, with live values for some of the sample's tensors."""
        sizes: dict[int, int] = {}
        chosen: dict[int, Slot] = {}
        places = [n for n, entry in enumerate(sample.tensors) if is_tensor(entry)]
        self.rng.shuffle(places)
        for n in places[: self.rng.randint(1, 2)]:
            slot = self._substitute(sample.tensors[n], sizes)
            if slot is not None:
                chosen[n] = slot
        args = [chosen[n] if n in chosen else self._argument(e, sizes) for n, e in enumerate(sample.tensors)]
        attrs = {k: self._argument(v, sizes) for k, v in sample.attrs}
        name, _, overload = definition.aten[0].partition(".")
        call = f"ops.aten.{name}" + (f".{overload}" if overload == "stable" else "")
        return self.add(call, *args, **attrs)

    def _substitute(self, entry: Any, sizes: dict[int, int]) -> Slot | None:
        """A live value for a sample's tensor: of any sizes where those of the sample can follow, else cut to size."""
        dtype, shape, *limit = entry
        kind = DTYPES[dtype]
        if not kind.is_float:
            return None
        live = [n for n in self.live() if self.value(n).is_floating_point() and self.value(n).numel()]
        if not live:
            return None
        slot = self.viewed(Slot(self.rng.choice(live[-4:] + live[:2])))
        x = self.value(slot.number)
        if x.dim() == len(shape) and all(sizes.get(a, b) == b for a, b in zip(shape, x.shape, strict=True)):
            wanted = dict(zip(shape, x.shape, strict=True))
            if all(wanted[a] == b for a, b in zip(shape, x.shape, strict=True)):
                sizes |= wanted
                return self._typed(slot, dtype, bool(limit))
        shape = tuple(sizes.get(n, n) for n in shape)
        needed = torch.Size(shape).numel()
        if x.numel() < needed or not needed:
            return None
        flat = self.add("ops.aten.slice.Tensor", self.add("reshape", slot, [-1]), 0, 0, needed)
        fitted = self.add("reshape", flat, list(shape))
        for n in shape:
            sizes.setdefault(n, n)
        return self._typed(fitted, dtype, bool(limit)) if fitted is not None else None

    def _typed(self, slot: Slot, dtype: str, narrow: bool) -> Slot | None:
        """The value in (mostly) the sample's dtype, within (0, 1) where the sample asks for that."""
        wanted = getattr(torch, DTYPES[dtype].torch_name)
        if self.value(slot.number).dtype != wanted:
            cast = self.add("ops.aten._to_copy", slot, dtype=wanted)
            if cast is None:
                return None
            slot = cast
        if not narrow:
            return slot
        inside = self.add("sigmoid", slot)
        return self.add("clamp", inside, 0.05, 0.95) if inside is not None else None

    def _argument(self, entry: Any, sizes: dict[int, int]) -> Any:
        if is_tensor(entry):
            dtype, shape, *limit = entry
            bound = sizes.get(limit[0], limit[0]) if limit and isinstance(limit[0], int) else limit and limit[0]
            return self.fresh(dtype, tuple(sizes.get(n, n) for n in shape), bound or None)
        if isinstance(entry, tuple) and any(is_tensor(e) for e in entry):
            return [self._argument(e, sizes) for e in entry]
        if isinstance(entry, DType):
            return getattr(torch, entry.torch_name)
        return list(entry) if isinstance(entry, tuple) else entry

    def program(self) -> Program:
        """The steps with their final numbers."""
        offset = len(self.inputs) - self.FIRST

        def final(arg: Any) -> Any:
            if isinstance(arg, Slot):
                return Slot(arg.number + offset if arg.number >= self.FIRST else arg.number)
            return [final(a) for a in arg] if isinstance(arg, list) else arg

        steps = [
            Step(s.call, tuple(final(a) for a in s.args), tuple((k, final(v)) for k, v in s.attrs), s.results)
            for s in self.steps
        ]
        ends = [n for n in self.live() if n >= self.FIRST and n not in self.used] or [self.live()[-1]]
        return Program(steps, [n + offset for n in ends[-3:]])


class _Numbered:
    """Values by the numbers that they have while a program is made."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.maker.value(number)


def _slots(arg: Any) -> Iterator[Slot]:
    if isinstance(arg, Slot):
        yield arg
    elif isinstance(arg, list):
        for a in arg:
            yield from _slots(a)


@cache
def _choices() -> tuple[tuple[OpDef, Sample], ...]:
    """Every sample of every op that has a tensor, ordered by name."""
    return tuple(
        (definition, sample)
        for name, definition in sorted(op_table().items())
        if definition.aten and "::" not in definition.aten[0] and not _LEFT_OUT.match(name)
        for sample in definition.samples
        if any(is_tensor(e) for e in sample.tensors)
    )


def generate(seed: int) -> tuple[Program, tuple[torch.Tensor, ...]]:
    """The program of a seed, and its example inputs."""
    rng = random.Random(seed)
    maker = Maker(rng)
    rank = rng.randint(1, 4)
    shape: list[int] = []
    for _ in range(rank):
        room = MOST_ELEMENTS // 4 // max(1, torch.Size(shape).numel())
        shape.append(rng.choice([s for s in SIZES if s <= max(room, 1)]))
    maker.fresh(rng.choice(FLOATS), tuple(shape))
    names = sorted({definition.name for definition, _ in _choices()})
    wanted, tries = rng.randint(2, 5), 0
    while wanted and tries < 60:
        tries += 1
        name = rng.choice(names)  # by op, not by sample: some ops have many
        definition, sample = rng.choice([c for c in _choices() if c[0].name == name])
        wanted -= maker.op(definition, sample) is not None
    return maker.program(), tuple(maker.inputs)


# ---------------------------------------------------------------- running


@dataclass(frozen=True)
class Result:
    """What became of a graph on a target: "ok", "unsupported" (said in a diagnostic), "rejected" (a kernel or the whole
    differs) or "crash" (an exception that is no diagnostic). `what` names the class of the failure."""

    seed: int
    target: str
    status: str
    what: str = ""
    detail: str = ""
    ops: tuple[str, ...] = ()


_UNSUPPORTED = frozenset({"KVC0201", "KVC0202", "KVC0203"})


def check(seed: int, targets: Sequence[str], arch: str, pool: Any = None) -> list[Result]:
    """Generate and capture one graph; translate, write and verify it for each target, by default without processes."""
    program, inputs = generate(seed)
    ops = tuple(map(str, program.steps))
    pool = pool or LocalPool(patient=True)
    captured: list[Any] = []

    def attempt(target: str) -> Result:
        try:
            if not captured:
                captured.append(_capture(program, inputs))
            fallbacks = _translate(captured[0], target, arch, pool)
        except KvcError as error:
            status = "unsupported" if error.code in _UNSUPPORTED else "rejected"
            message = error.diagnostic.message
            return Result(seed, target, status, f"{error.code} {_general(message)}", str(error)[:600], ops)
        except Exception as error:  # the class of failure that this program looks for
            where = [f for f in traceback.extract_tb(error.__traceback__) if "torch" not in f.filename][-1]
            what = f"{type(error).__name__} in {Path(where.filename).name}:{where.name}: {_general(str(error))}"
            detail = "".join(traceback.format_exception(error))[-1500:]
            return Result(seed, target, "crash", what[:160], detail, ops)
        return Result(seed, target, "ok", f"fallbacks {fallbacks}" if fallbacks else "", "", ops)

    return [attempt(target) for target in targets]


def _capture(program: Program, inputs: tuple[torch.Tensor, ...]) -> Any:
    from kvc.frontends.fx.capture import capture

    return capture(program, inputs)


def _translate(captured: Any, target: str, arch: str, pool: Any) -> str:
    """The operators that would run eagerly; raises for whatever does not verify."""
    from kvc.interface import interface_of, stored_constants
    from kvc.package import write
    from kvc.pipeline import Options, translate
    from kvc.whole import model_reference

    bench = Bench(pool, "sim", 0)
    done = translate(captured, find_target(target), arch_row(arch), Options("sim", jobs=1), bench=bench)
    with tempfile.TemporaryDirectory(prefix="kvc-fuzz-") as folder:
        references = [model_reference(captured, done.plan, 0)]
        constants = stored_constants(captured)
        write(Path(folder) / "out", done, interface_of(captured, "fuzz"), constants, references, bench)
    return ", ".join(sorted({f.node.op for f in done.plan.fallbacks}))


def _general(message: str) -> str:
    """A message without its numbers and names: one class a cause."""
    short = re.sub(r"kernel \S+ \((\S+), [^)]*\)", r"kernel (\1)", message.splitlines()[0] if message else "")
    return re.sub(r"-?\d[\d.,e+-]*", "#", short)[:110]


def report(results: list[Result]) -> str:
    """Counts by status, and each class of failure with its seeds."""
    lines = [", ".join(f"{n} {s}" for s, n in collections.Counter(r.status for r in results).most_common())]
    classes: dict[tuple[str, str, str], list[Result]] = {}
    for r in results:
        if r.status != "ok":
            classes.setdefault((r.status, r.target, r.what), []).append(r)
    for (status, target, what), found in sorted(classes.items(), key=lambda item: -len(item[1])):
        seeds = ", ".join(str(r.seed) for r in found[:6])
        lines.append(f"{len(found):4} {status} {target}: {what} [{seeds}]")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="one graph, shown in full")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--target", default="hip,triton")
    parser.add_argument("--arch", default="gfx942")
    parser.add_argument("--workers", action="store_true", help="compile and run in confined workers, as kvc does")
    parser.add_argument("--out", type=Path, help="append every result here, one JSON line each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [given.seed] if given.seed is not None else range(given.start, given.start + given.count)
    ends = time.monotonic() + given.seconds
    results = []
    with WorkerPool(1, 120.0) as workers:
        for seed in seeds:
            if given.seed is not None:
                program, inputs = generate(seed)
                print(*(f"input v{n}: {x.dtype} {list(x.shape)} {x.stride()}" for n, x in enumerate(inputs)), sep="\n")
                print(*program.steps, f"-> {program.outputs}", sep="\n")
            fresh = check(seed, given.target.split(","), given.arch, workers if given.workers else None)
            results += fresh
            if given.out:
                with given.out.open("a") as file:
                    file.writelines(json.dumps(vars(result)) + "\n" for result in fresh)
            if given.seed is not None:
                print(*(f"{r.target}: {r.status} {r.what}\n{r.detail}" for r in fresh), sep="\n")
            if time.monotonic() > ends:
                break
    print(report(results))
    return int(any(r.status in ("rejected", "crash") for r in results))


if __name__ == "__main__":
    sys.exit(main())
