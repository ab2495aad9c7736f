"""Kernel sources and specs with what is incidental taken out: for digests, near-duplicates and splits."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Iterator

from kvc.dtypes import DTYPES
from kvc.kernel import Call, Cast, KernelSpec, Order, Reduce, Scan, Scatter, walk

_COMMENT = {"hip": r"//[^\n]*|/\*.*?\*/", "triton": r"#[^\n]*"}
_REST = r"""
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)[uUlLfF]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>[^\s\w])
"""
_TOKENS = {
    target: re.compile(rf"(?P<comment>{comment}){_REST}", re.VERBOSE | re.DOTALL)
    for target, comment in ((t, c.replace("#", r"\#")) for t, c in _COMMENT.items())
}
_C_WORDS = """
    auto bool break case char class const constexpr continue default do double else enum extern false float for if
    inline int long namespace return short signed sizeof static struct switch template true typedef typename unsigned
    using void volatile while __global__ __device__ __shared__ __launch_bounds__ threadIdx blockIdx blockDim gridDim
    __syncthreads include define
"""
_KEPT_C = frozenset(_C_WORDS.split())
_KEPT_PYTHON = frozenset(keyword.kwlist) | {"tl", "triton", "jit", "constexpr"}


def tokens(source: str, target: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each token but comments; kind: string, number, name or sign."""
    for match in _TOKENS["hip" if target == "hip" else "triton"].finditer(source):
        kind = str(match.lastgroup)
        if kind != "comment":
            yield kind, match.group()


def without_constants(source: str, target: str) -> list[str]:
    """Tokens of a source with every number as `0`: what near-duplicates are measured on."""
    return ["0" if kind == "number" else text for kind, text in tokens(source, target)]


def normalized(source: str, target: str) -> str:
    """A source without comments, constants and the choice of names: variables are numbered in order of appearance.
    What follows a dot (a member, a function of a module) and keywords stay."""
    kept = _KEPT_C if target == "hip" else _KEPT_PYTHON
    names: dict[str, str] = {}
    out: list[str] = []
    for kind, text in tokens(source, target):
        if kind == "number":
            text = "0"
        elif kind == "name" and text not in kept and not (out and out[-1] == "."):
            text = names.setdefault(text, f"v{len(names)}")
        out.append(text)
    return " ".join(out)


_DTYPE = re.compile(r"\b(" + "|".join(sorted(DTYPES, key=len, reverse=True)) + r")\b")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:e[+-]?\d+)?", re.IGNORECASE)


def structure(spec: KernelSpec) -> str:
    """Digest (16 digits) of a spec with sizes, constants and dtypes normalised: two specs of one structure differ in
    numbers and widths alone."""
    from kvc.canonical import canonical
    from kvc.text import print_kernel

    text = print_kernel(canonical(spec))
    text = _DTYPE.sub(lambda m: DTYPES[m[1]].kind[0].upper(), text)
    return hashlib.sha256(_NUMBER.sub("0", text).encode()).hexdigest()[:16]


def op_names(spec: KernelSpec) -> tuple[str, ...]:
    """Sorted names of what a spec computes: its functions, casts, and reductions, scans, scatters and orders."""
    found: set[str] = set()
    for stmt in spec.body:
        over = stmt.over
        if isinstance(over, Reduce):
            found.add(f"reduce.{over.op}")
        elif isinstance(over, Scan):
            found.add(f"scan.{over.op}")
        elif isinstance(over, Scatter):
            found.add(f"scatter.{over.op}")
        elif isinstance(over, Order):
            found.add(over.kind)
        if stmt.loop is not None:
            found.add("loop")
        for root in stmt.roots:
            for node in walk(root):
                if isinstance(node, Call):
                    found.add(node.fn)
                elif isinstance(node, Cast):
                    found.add("cast")
    return tuple(sorted(found))


HELDOUT_PERMILLE = 80


def split_of(ops: tuple[str, ...]) -> str:
    """train or heldout, by the set of operations alone."""
    number = int.from_bytes(hashlib.sha256(" ".join(ops).encode()).digest()[:8], "big")
    return "heldout" if number % 1000 < HELDOUT_PERMILLE else "train"


def op_class(spec: KernelSpec) -> str:
    """Pattern of a spec, a slash, and its dominant work: the kind of a contraction, else the reductions that it holds,
    else where a pointwise kernel reads (plain, gather, view)."""
    from kvc.patterns import Contraction, match

    pattern = match(spec)
    name = type(pattern).__name__.lower()
    if isinstance(pattern, Contraction):
        return f"{name}/{_contraction(pattern)}"
    combined = [n.partition(".")[2] or n for n in op_names(spec) if "." in n or n in ("sort", "argsort", "loop")]
    if combined:
        return f"{name}/{'+'.join(dict.fromkeys(combined))}"
    return f"{name}/{_reads(spec)}"


def _contraction(pattern: object) -> str:
    from kvc.kernel import Axis
    from kvc.patterns import Contraction

    assert isinstance(pattern, Contraction)
    plain = all(isinstance(at, Axis) for load in pattern.stmt.loads() for at in load.index)
    if not plain:
        return "conv"
    if not pattern.m or not pattern.n:
        return "matvec"
    return "bmm" if pattern.batch else "matmul"


def _reads(spec: KernelSpec) -> str:
    from kvc.kernel import Axis, Load

    kinds = set()
    for stmt in spec.body:
        for load in stmt.loads():
            for at in load.index:
                if any(isinstance(e, Load) for e in walk(at)):
                    kinds.add("gather")
                elif not isinstance(at, Axis):
                    kinds.add("view")
    return "gather" if "gather" in kinds else "view" if kinds else "plain"
