"""Random specs and graphs: valid by construction, odd in every way that the text must carry."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from kvc.canonical import axis_order
from kvc.check import RESERVED
from kvc.diagnostics import Location
from kvc.dtypes import BF16, BOOL, DTYPES, F32, I64, DType
from kvc.functions import COMBINES, FUNCTIONS
from kvc.graph import Graph, Input, Node, Ref, TensorType
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Loop,
    Operand,
    Order,
    Over,
    Reduce,
    Scan,
    Scatter,
    Size,
    Stmt,
    contiguous,
)

finite = st.floats(allow_nan=False, width=64)
literals = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), finite).map(Const)
infix = [f for f in FUNCTIONS.values() if f.infix]


def expressions(axes: list[str], tensors: dict[str, tuple[str, ...]]) -> st.SearchStrategy[Expr]:
    """Trees over the axes and tensors in scope. Types are not minded: the text does not know them."""
    leaves: list[st.SearchStrategy[Expr]] = [literals]
    if axes:
        leaves += [st.sampled_from(axes).map(Axis), st.sampled_from(axes).map(Extent)]
    for name, dims in tensors.items():
        leaves.append(st.just(Load(name, tuple(Axis(a) for a in dims))))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        def calls(fn: str) -> st.SearchStrategy[Expr]:
            arity = FUNCTIONS[fn].arity
            return st.tuples(*[inner] * arity).map(lambda args: Call(fn, args)).filter(_is_normal)

        guarded = [
            st.tuples(st.tuples(*[inner] * len(dims)), literals | inner).map(lambda p, n=name: Load(n, p[0], p[1]))
            for name, dims in tensors.items()
        ]
        return st.one_of(
            st.sampled_from(sorted(FUNCTIONS)).flatmap(calls),
            st.sampled_from([f.name for f in infix]).flatmap(calls),
            st.tuples(st.sampled_from(sorted(DTYPES)), inner).map(lambda p: Cast(DTYPES[p[0]], p[1])),
            *guarded,
        )

    return st.recursive(st.one_of(leaves), grow, max_leaves=8)


def _is_normal(call: Call) -> bool:
    """A negated number is a number: `-3` parses as a literal."""
    return not (call.fn == "neg" and isinstance(call.args[0], Const))


@st.composite
def specs(draw: st.DrawFn) -> KernelSpec:
    """Every construct of the notation. Not all pass the checker: parsing is tested without it."""
    static = [Size(f"i{n}", draw(st.integers(1, 300))) for n in range(draw(st.integers(1, 4)))]
    symbolic = [
        Size(
            f"s{n}",
            None,
            draw(st.integers(1, 8)),
            draw(st.integers(9, 2**31)),
            draw(st.integers(0, 64)),
            draw(st.sampled_from([1, 8])),
        )
        for n in range(draw(st.integers(0, 2)))
    ]
    sizes = {s.name: s for s in (*symbolic, *static)}
    names = list(sizes)
    dims = st.lists(st.sampled_from(names), max_size=3, unique=True).map(tuple)
    dtypes = st.sampled_from([DTYPES[d] for d in sorted(DTYPES)])
    inputs = []
    for n in range(draw(st.integers(0, 3))):
        own = draw(dims)
        strides = draw(st.none() | st.tuples(*[st.integers(0, 999)] * len(own)))
        inputs.append(Operand(f"x{n}", draw(dtypes), own, strides, draw(st.sampled_from([16, 4, 2]))))
    tensors = {o.name: o.dims for o in inputs}
    body: list[Stmt] = []
    loop: Loop | None = None
    for n in range(draw(st.integers(1, 4))):
        axes = draw(dims)
        if draw(st.booleans()):
            loop = draw(st.none() | st.builds(Loop, st.sampled_from(names), st.booleans()))
        body.append(replace(draw(_statement(f"t{n}", axes, names, tensors, draw(dtypes))), loop=loop))
        tensors[f"t{n}"] = axes
    if draw(st.booleans()):
        first = draw(st.integers(0, len(body) - 1))
        loop = Loop(draw(st.sampled_from(names)), draw(st.booleans()))
        body[first:] = [replace(s, loop=loop) for s in body[first:]]
    outputs = []
    for s in body[-draw(st.integers(1, len(body))) :]:
        alias = draw(st.sampled_from([None, *(i.name for i in inputs)]))
        outputs.append(Operand(s.target, s.dtype, s.axes, alias=alias))
    spec = KernelSpec("k", tuple(sizes.values()), tuple(inputs), tuple(outputs), tuple(body))
    return replace(spec, sizes=tuple(sizes[a] for a in axis_order(spec)))


@st.composite
def _statement(
    draw: st.DrawFn,
    target: str,
    axes: tuple[str, ...],
    names: list[str],
    tensors: dict[str, tuple[str, ...]],
    dtype: DType,
) -> Stmt:
    inner = tuple(a for a in names if a not in axes)
    expr = expressions(names, tensors)
    choices: list[st.SearchStrategy[Over | None]] = [st.none()]
    if inner:
        where = st.none() | expr
        choices.append(st.builds(Reduce, st.sampled_from(sorted(COMBINES)), st.just(inner[:2]), where))
    scans = sorted(c for c in COMBINES if COMBINES[c].binary)
    if axes:
        axis = st.sampled_from(axes)
        choices.append(st.builds(Scan, st.sampled_from(scans), axis, st.booleans(), st.booleans()))
        choices.append(st.builds(Order, st.sampled_from(["sort", "argsort"]), axis, st.booleans()))
    kinds = st.sampled_from(["set", "sum", "prod", "max", "min"])
    choices.append(st.builds(Scatter, kinds, st.just(inner), st.tuples(*[expr] * len(axes)), expr))
    return Stmt(target, dtype, axes, draw(expr), draw(st.one_of(choices)))


# ---------------------------------------------------------------- graphs

words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda w: w not in RESERVED)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63),
    finite,
    st.none(),
    st.text(max_size=6),
    st.sampled_from([F32, BF16, I64, BOOL]),
)
attributes = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=5)
places = st.none() | st.builds(Location, st.from_regex(r"[a-z/._]{1,12}\.py", fullmatch=True), st.integers(0, 10**5))


@st.composite
def types(draw: st.DrawFn) -> TensorType:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 99), max_size=4).map(tuple))
    strides = draw(st.just(contiguous(shape)) | st.tuples(*[st.integers(0, 9999)] * len(shape)))
    return TensorType(dtype, shape, strides)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    inputs = []
    for n in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["user", "param", "buffer", "const"]))
        inputs.append(Input(f"a{n}", draw(types()), kind, "" if kind == "user" else draw(st.text(max_size=9))))
    known = [i.name for i in inputs]
    nodes = []
    for n in range(draw(st.integers(0, 5))):
        refs = st.sampled_from(known).map(Ref) if known else st.none()
        arg = st.one_of(refs, attributes, st.lists(st.one_of(refs, attributes), max_size=3).map(tuple))
        count = draw(st.integers(1, 2))
        outputs = tuple(f"v{n}_{m}" for m in range(count))
        nodes.append(
            Node(
                outputs,
                draw(words | st.just("aten.foo.default")),
                tuple(draw(st.lists(arg, max_size=3))),
                tuple((w, draw(attributes)) for w in draw(st.lists(words, max_size=3, unique=True))),
                tuple(draw(types()) for _ in outputs),
                draw(places),
            )
        )
        known += outputs
    some = st.lists(st.sampled_from(known), max_size=3).map(tuple) if known else st.just(())
    buffers = [i.name for i in inputs if i.kind == "buffer"]
    updates = tuple((b, draw(st.sampled_from(known))) for b in buffers if draw(st.booleans()))
    return Graph(draw(words), tuple(inputs), tuple(nodes), draw(some), updates)
