"""More specs than a vault holds: those of training examples, changed, with the kernels that the rules write for them.

A small model has to see many compositions of operations before it writes one that it never saw. Changes are those that
leave a spec a plausible piece of a model: other functions, reductions, dtypes, sizes, layouts; an operation before or
behind. A changed spec keeps the invariants of `kvc.check`, and one whose set of operations is held out is no training
example, so that held-out figures mean the same with and without these. Kernels are the rules' own and are not executed:
examples of the vault, which are, teach which kernel is best; these teach how one is written.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvc.arch import arch
from kvc.check import kernel_problems
from kvc.diagnostics import KvcError
from kvc.dtypes import BF16, F16, F32, DType
from kvc.emitter import Emitter, Knob, Task
from kvc.kernel import Axis, Call, Const, Expr, KernelSpec, Load, Operand, Reduce, Size, Stmt
from kvc.model.dataset import Example
from kvc.model.prompt import Asked, prompt, setting
from kvc.model.sizes import NotAFrame

UNARY = (
    "exp", "tanh", "sigmoid", "relu", "silu", "gelu", "gelu_tanh", "abs", "neg", "sqrt", "rsqrt", "log", "log1p",
    "expm1", "sin", "cos", "erf", "softplus", "mish", "hardswish", "hardsigmoid", "reciprocal", "floor", "sign",
)  # fmt: skip
COMPARISONS = ("lt", "le", "gt", "ge")
BINARY = ("add", "sub", "mul", "div", "minimum", "maximum", "add", "mul")
REDUCTIONS = ("sum", "sum", "max", "min", "prod")
FLOATS = (F32, BF16, F16)
EXTENTS = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    12,
    13,
    16,
    17,
    24,
    31,
    32,
    33,
    48,
    63,
    64,
    65,
    96,
    100,
    128,
    255,
    256,
    384,
    512,
    1000,
)
#: Points of the largest statement: what a kernel computes does not depend on it, and simulated ones stay below.
MOST_POINTS = 1 << 22
_CONTRADICTIONS = (KvcError, ValueError, ArithmeticError, LookupError, AssertionError, TypeError)


def _value(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    """Rebuild an expression bottom-up, indices and what lies outside a tensor left as they are."""
    if isinstance(expr, Load):
        return visit(expr)
    children = tuple(_value(c, visit) for c in expr.children)
    return visit(expr if children == expr.children else expr.rebuild(children))


def _values(spec: KernelSpec, visit: Callable[[Expr], Expr]) -> KernelSpec:
    return replace(spec, body=tuple(replace(s, expr=_value(s.expr, visit)) for s in spec.body))


def other_functions(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """Some functions replaced by others of their kind."""

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Call) and rng.random() < 0.5:
            kind = next((k for k in (UNARY, BINARY) if expr.fn in k), ())
            return Call(rng.choice(kind), expr.args) if kind else expr
        return expr

    return _values(spec, visit)


def other_reductions(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """Some plain reductions combined by another function."""

    def stmt(s: Stmt) -> Stmt:
        if isinstance(s.over, Reduce) and s.over.op in REDUCTIONS and s.dtype.is_float and rng.random() < 0.5:
            return replace(s, over=replace(s.over, op=rng.choice(REDUCTIONS)))
        return s

    return replace(spec, body=tuple(map(stmt, spec.body)))


def constant(rng: random.Random) -> Const:
    """A number as models hold them: a round one, one with some decimals, or a small one."""
    kind = rng.random()
    if kind < 0.4:
        return Const(rng.choice((0.5, 2.0, 0.1, 1.0, 3.0, 0.044715, 0.25, 4.0, 1.5, 0.01, 0.2, 6.0)))
    if kind < 0.85:
        return Const(round(rng.uniform(0.05, 9.5), rng.randint(1, 4)))
    return Const(float(f"{rng.randint(1, 9)}e-0{rng.randint(3, 8)}"))


def other_constants(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """Some floating constants drawn again; a sign stays."""

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Const) and isinstance(expr.value, float) and expr.value and rng.random() < 0.6:
            return expr if not math.isfinite(expr.value) else Const(math.copysign(constant(rng).value, expr.value))
        return expr

    return _values(spec, visit)


def other_dtype(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """One floating type of operands and temporaries replaced by another, everywhere."""
    present = [d for d in FLOATS if any(o.dtype is d for o in (*spec.inputs, *spec.outputs))]
    if not present:
        return spec
    old, new = rng.choice(present), rng.choice(FLOATS)

    def to(dtype: DType) -> DType:
        return new if dtype is old else dtype

    outputs = {o.name for o in spec.outputs}
    body = tuple(replace(s, dtype=to(s.dtype)) if s.target in outputs or old is not F32 else s for s in spec.body)
    return replace(
        spec,
        body=body,
        inputs=tuple(replace(o, dtype=to(o.dtype)) for o in spec.inputs),
        outputs=tuple(replace(o, dtype=to(o.dtype)) for o in spec.outputs),
    )


def other_sizes(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """Some extents drawn again (KVC's check throws out what reads outside its tensors)."""

    def size(s: Size) -> Size:
        if s.size is None or s.size == 1 or rng.random() < 0.4:
            return s
        kind = rng.random()
        extent = s.size * rng.choice((2, 3, 5)) if kind < 0.3 else rng.choice(EXTENTS) if kind < 0.8 else s.size + 1
        return replace(s, size=extent)

    if any(o.strides is not None for o in (*spec.inputs, *spec.outputs)):
        return spec
    return replace(spec, sizes=tuple(map(size, spec.sizes)))


def other_layout(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """The dims of an input or output in another order."""
    found = [o for o in (*spec.inputs, *spec.outputs) if len(o.dims) > 1 and o.strides is None and o.alias is None]
    if not found:
        return spec
    chosen = rng.choice(found)
    order = list(range(len(chosen.dims)))
    rng.shuffle(order)

    def moved(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(values[n] for n in order)

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.tensor == chosen.name:
            return replace(expr, index=tuple(expr.index[n] for n in order))
        return expr

    def operand(o: Operand) -> Operand:
        return replace(o, dims=moved(o.dims)) if o.name == chosen.name else o

    body = tuple(s.map(lambda e: _everywhere(e, visit)) for s in spec.body)
    body = tuple(replace(s, axes=moved(s.axes)) if s.target == chosen.name else s for s in body)
    return replace(
        spec, body=body, inputs=tuple(map(operand, spec.inputs)), outputs=tuple(map(operand, spec.outputs))
    )  # fmt: skip


def _everywhere(expr: Expr, visit: Callable[[Expr], Expr]) -> Expr:
    from kvc.kernel import transform

    return transform(expr, visit)


def _pointwise(value: Expr, axes: tuple[str, ...], rng: random.Random, extra: list[Operand], dtype: DType) -> Expr:
    """An operation on a value; sometimes with a new operand over some of the axes, which is added to `extra`."""
    kind = rng.random()
    if kind < 0.4:
        return Call(rng.choice(UNARY), (value,))
    if kind < 0.6:
        return Call(rng.choice(BINARY), (value, constant(rng)))
    if kind < 0.7:
        return Call(rng.choice(BINARY), (Call(rng.choice(UNARY), (value,)), value))
    if kind < 0.77:
        inside = Call(rng.choice(COMPARISONS), (value, constant(rng)))
        return Call("where", (inside, value, Call(rng.choice(("mul", "add")), (value, constant(rng)))))
    dims = axes if kind < 0.87 else axes[-1:] if kind < 0.93 else tuple(a for a in axes if rng.random() < 0.6)
    made = Operand(f"more{len(extra)}_{rng.randrange(1000)}", dtype, dims)
    extra.append(made)
    args = (value, Load(made.name, tuple(Axis(a) for a in dims)))
    return Call(rng.choice(BINARY), args if rng.random() < 0.7 else args[::-1])


def epilogue(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """One more operation on an output, as a statement of its own."""
    output = rng.choice(spec.outputs)
    last = spec.stmt[output.name]
    if not output.dtype.is_float or output.alias or last.loop is not None or spec.loops:
        return spec
    between = f"was_{output.name}"
    extra: list[Operand] = []

    def rename(expr: Expr) -> Expr:
        return replace(expr, tensor=between) if isinstance(expr, Load) and expr.tensor == output.name else expr

    body = [s.map(lambda e: _everywhere(e, rename)) for s in spec.body]
    body = [replace(s, target=between) if s.target == output.name else s for s in body]
    value = Load(between, tuple(Axis(a) for a in last.axes))
    made = _pointwise(value, last.axes, rng, extra, output.dtype)
    body.append(Stmt(output.name, output.dtype, last.axes, made))
    return replace(spec, body=tuple(body), inputs=(*spec.inputs, *extra))


def chain(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """Several operations more, one after the other."""
    for _ in range(rng.randint(2, 7)):
        spec = epilogue(spec, rng)
    return spec


def prologue(spec: KernelSpec, rng: random.Random) -> KernelSpec:
    """One operation on an input before anything reads it."""
    found = [o for o in spec.inputs if o.dtype.is_float and o.dims and o.alias is None]
    if not found or spec.loops:
        return spec
    chosen, extra = rng.choice(found), list[Operand]()
    name = f"of_{chosen.name}"

    def visit(expr: Expr) -> Expr:
        return replace(expr, tensor=name) if isinstance(expr, Load) and expr.tensor == chosen.name else expr

    body = tuple(s.map(lambda e: _everywhere(e, visit)) for s in spec.body)
    if len(set(chosen.dims)) != len(chosen.dims):
        return spec
    value = Load(chosen.name, tuple(Axis(a) for a in chosen.dims))
    made = Stmt(name, chosen.dtype, chosen.dims, _pointwise(value, chosen.dims, rng, extra, chosen.dtype))
    return replace(spec, body=(made, *body), inputs=(*spec.inputs, *extra))


CHANGES = (
    other_functions, other_reductions, other_constants, other_dtype, other_sizes, other_layout, epilogue, epilogue,
    chain, prologue,
)  # fmt: skip


def changed(spec: KernelSpec, rng: random.Random, split: str = "train") -> KernelSpec | None:
    """The spec after one to four changes; None where the outcome is no spec, or of the other split, or too large."""
    from kvc.canonical import canonical
    from kvc.vault.normalize import op_names, split_of

    try:
        made = spec
        for change in rng.choices(CHANGES, k=rng.randint(1, 4)):
            made = change(made, rng)
        if made is spec or split_of(op_names(made)) != split or next(kernel_problems(made), None) is not None:
            return None
        made = canonical(made)
        points = max((_points(made, (*s.axes, *s.inner_axes)) for s in made.body), default=0)
        return made if points <= MOST_POINTS else None
    except _CONTRADICTIONS:
        return None


def _points(spec: KernelSpec, axes: Sequence[str]) -> int:
    total = 1
    for axis in axes:
        total *= spec.extent(axis)
    return total


def _settings(
    task: Task, rules: Sequence[Emitter], rng: random.Random, each: int
) -> Iterator[tuple[Emitter, Knobs, bool]]:
    """What to ask of which rule: the first rule's default, then others drawn at random; whether it is the first."""
    found = [r for r in rules if r.supports(task).ok]
    if not found:
        return
    yield found[0], found[0].space(task).default, True
    for _ in range(each - 1):
        rule = rng.choice(found)
        yield rule, rng.choice(rule.space(task).configurations), False


Knobs = tuple[tuple[str, Knob], ...]


def examples_of(
    spec: KernelSpec, target: str, arch_name: str, op_class: str, rng: random.Random, each: int, split: str = "train"
) -> Iterator[Example]:
    """Examples of a spec for a target, `each` at most: the first rule's default kernel as the best, others by name."""
    from kvc.emitter import target as find
    from kvc.model.lift import emit, lift
    from kvc.text import print_kernel

    task = Task(spec, arch(arch_name))
    asked = Asked(task)
    seen: set[str] = set()
    for rule, knobs, is_first in _settings(asked.canonical_task, find(target).emitters(), rng, each):
        candidate = emit(asked, rule, knobs)
        if candidate is None or candidate.source in seen:
            continue
        seen.add(candidate.source)
        try:
            lifted = lift(candidate, rule, others=0)
        except (NotAFrame, KvcError):
            continue
        wanted = "" if is_first else setting(candidate.schedule, candidate.knobs)
        rank = "best" if is_first else "any"
        yield Example(
            prompt(asked, target, rank=rank, wanted=wanted), lifted.answer, target, arch_name, split, rank, rule.name,
            op_class, spec.hash, "", print_kernel(spec), json.dumps([list(k) for k in candidate.knobs]),
            lifted.witnesses,
        )  # fmt: skip


def augment(
    sources: Sequence[Example], count: int, seconds: float, seed: int, each: int = 2, split: str = "train"
) -> Iterator[Example]:
    """At least `count` examples (fewer where `seconds` are over) of specs made from those of `sources`, for both
    targets; no canonical spec twice. `split`: whether their sets of operations are those that are trained on, or held
    out (then `each` is best 1)."""
    from kvc.text import parse_kernel
    from kvc.vault.normalize import op_class

    rng, until, made = random.Random(seed), time.monotonic() + seconds, 0
    texts = sorted({(e.spec_text, e.arch) for e in sources if e.split == "train"})
    targets = sorted({e.target for e in sources})
    seen: set[str] = set()
    while made < count and time.monotonic() < until and texts:
        text, arch_name = rng.choice(texts)
        spec = changed(parse_kernel(text), rng, split)
        if spec is None or spec.hash in seen:
            continue
        seen.add(spec.hash)
        try:
            name = op_class(spec)
            for target in targets:
                for example in examples_of(spec, target, arch_name, name, rng, each, split):
                    made += 1
                    yield example
        except _CONTRADICTIONS:
            continue
