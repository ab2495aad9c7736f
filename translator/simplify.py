"""Algebra on index expressions: linear normal form, intervals, floordiv and mod by constants.

View chains (reshape, permute, slice, flatten) leave accesses such as `x[(i*64 + j) // 64, (i*64 + j) % 64]`; this
module turns them back into `x[i, j]`, so that a view never becomes a copy and schedules can match plain patterns.
Everything here is exact on integers, and only static extents are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from kvc.dtypes import DType
from kvc.kernel import Axis, Call, Cast, Const, Expr, Extent, KernelSpec, Load, Reduce, Scatter, Size, Stmt, transform

Interval = tuple[float, float]  # inclusive; +-inf where unknown
Sum = frozenset[tuple[Expr, int]]  # the terms of a Linear, without its constant
_INF = float("inf")
_UNKNOWN: Interval = (-_INF, _INF)
# What a comparison says about a - b, and the comparison that holds where it does not.
_BOUNDS: dict[str, Interval] = {"lt": (-_INF, -1), "le": (-_INF, 0), "gt": (1, _INF), "ge": (0, _INF), "eq": (0, 0)}
_OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}


def _gcd(a: int, *others: int) -> int:
    """The greatest common divisor; the number itself where it is one of them, so that one that knows where it comes
    from (kvc.model.trace) goes on knowing."""
    found = gcd(a, *others)
    return next((n for n in (a, *others) if n == found), found)


def _whole(bound: float) -> int:
    """A finite bound as an integer."""
    return bound if isinstance(bound, int) else int(bound)


def _down(bound: float, divisor: int) -> float:
    """A bound of a quotient, rounded down."""
    return bound if abs(bound) == _INF else bound // divisor


@dataclass(frozen=True)
class Linear:
    """constant + sum(coefficient * atom); an atom is an Axis or an opaque integer expression."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    @staticmethod
    def build(terms: Mapping[Expr, int], constant: int) -> Linear:
        return Linear(tuple((atom, c) for atom, c in terms.items() if c), constant)

    @property
    def coefficients(self) -> dict[Expr, int]:
        return dict(self.terms)

    def scaled(self, factor: int) -> Linear:
        return Linear.build({a: c * factor for a, c in self.terms}, self.constant * factor)

    def plus(self, other: Linear, sign: int = 1) -> Linear:
        terms = dict(self.terms)
        for atom, c in other.terms:
            terms[atom] = terms.get(atom, 0) + sign * c
        return Linear.build(terms, self.constant + sign * other.constant)

    def expr(self) -> Expr:
        """Back to an expression: positive terms first, in order, then the constant."""
        result: Expr | None = None
        for atom, c in sorted(self.terms, key=lambda t: t[1] < 0):
            term = atom if abs(c) == 1 else Call("mul", (atom, Const(abs(c))))
            if result is None:
                result = term if c > 0 else Call("mul", (atom, Const(c)))
            else:
                result = Call("add" if c > 0 else "sub", (result, term))
        if result is None:
            return Const(self.constant)
        if self.constant:
            result = Call("add" if self.constant > 0 else "sub", (result, Const(abs(self.constant))))
        return result


class IndexAlgebra:
    """Simplification within one scope of axis sizes."""

    def __init__(self, sizes: Mapping[str, Size], facts: Mapping[Sum, Interval] | None = None) -> None:
        self.sizes = sizes
        self.facts = dict(facts or {})  # bounds that hold in this branch, beyond what the axes' sizes say

    def extent(self, axis: str) -> Expr:
        """The size of an axis as an expression."""
        size = self.sizes[axis].size
        return Extent(axis) if size is None else Const(size)

    def assuming(self, condition: Expr, holds: bool = True) -> IndexAlgebra:
        """The algebra within a branch that is taken where `condition` is `holds`."""
        facts = dict(self.facts)
        for terms, (low, high) in self._facts(condition, holds):
            a, b = facts.get(terms, _UNKNOWN)
            facts[terms] = max(a, low), min(b, high)
        return IndexAlgebra(self.sizes, facts) if facts != self.facts else self

    def _facts(self, condition: Expr, holds: bool) -> Iterator[tuple[Sum, Interval]]:
        match condition:
            case Call("and" | "or" as fn, (a, b)) if (fn == "and") is holds:
                yield from self._facts(a, holds)
                yield from self._facts(b, holds)
            case Call("not", (a,)):
                yield from self._facts(a, not holds)
            case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn, (a, b)) if self.is_index(a) and self.is_index(b):
                difference = self.linear(a).plus(self.linear(b), -1)
                bound = _BOUNDS.get(fn if holds else _OPPOSITE[fn])
                if difference.terms and bound is not None:
                    low, high = bound[0] - difference.constant, bound[1] - difference.constant
                    yield frozenset(difference.terms), (low, high)
                    yield frozenset(difference.scaled(-1).terms), (-high, -low)

    # ------------------------------------------------------------ intervals
    def interval(self, expr: Expr) -> Interval:
        """Bounds of an integer expression over all values of its axes."""
        match expr:
            case Const(value) if isinstance(value, int):
                return value, value
            case Axis(name) if name in self.sizes:
                size = self.sizes[name]
                low, high = self.facts.get(frozenset({(expr, 1)}), _UNKNOWN) if self.facts else _UNKNOWN
                return max(0, low), min((size.size if size.size is not None else size.high) - 1, high)
            case Extent(name):
                size = self.sizes[name]
                return (size.low, size.high) if size.size is None else (size.size, size.size)
            case Call("mod", (_, Const(c))) if isinstance(c, int) and c > 0:
                return 0, c - 1
            case Call("floordiv", (arg, Const(c))) if isinstance(c, int) and c > 0:
                low, high = self.interval(arg)
                return _down(low, c), _down(high, c)
            case Cast(to, arg) if self._fits(arg, to):
                return self.interval(arg)
            case Call("minimum" | "maximum" as fn, (a, b)):
                pick = min if fn == "minimum" else max
                (al, ah), (bl, bh) = self.interval(a), self.interval(b)
                return pick(al, bl), pick(ah, bh)
            case Call("where", (_, a, b)):
                (al, ah), (bl, bh) = self.interval(a), self.interval(b)
                return min(al, bl), max(ah, bh)
            case Call("add" | "sub" | "mul" | "neg", _):
                return self._linear_interval(self.linear(expr), expr)
        return _UNKNOWN

    def _linear_interval(self, linear: Linear, expr: Expr) -> Interval:
        if linear.terms == ((expr, 1),):
            return _UNKNOWN
        return self._bounds(linear)

    # ------------------------------------------------------------ linear form
    def linear(self, expr: Expr) -> Linear:
        """Normal form of an integer expression; what is not linear becomes a (simplified) atom."""
        match expr:
            case Const(value) if isinstance(value, int) and not isinstance(value, bool):
                return Linear((), value)
            case Extent(name) if self.sizes[name].size is not None:
                return Linear((), self.sizes[name].size or 0)
            case Axis(name) if name in self.sizes and self.sizes[name].size == 1:
                return Linear((), 0)
            case Cast(to, arg) if self.is_index(arg) and self._fits(arg, to):
                return self.linear(arg)
            case Call("add", (a, b)):
                return self._collect(self.linear(a).plus(self.linear(b)))
            case Call("sub", (a, b)):
                return self._collect(self.linear(a).plus(self.linear(b), -1))
            case Call("neg", (a,)):
                return self.linear(a).scaled(-1)
            case Call("mul", (a, b)):
                left, right = self.linear(a), self.linear(b)
                if not right.terms:
                    return left.scaled(right.constant)
                if not left.terms:
                    return right.scaled(left.constant)
                return Linear(((Call("mul", (left.expr(), right.expr())), 1),), 0)
            case Call("floordiv", (a, Const(c))) if isinstance(c, int) and c > 0:
                return self._floordiv(self.linear(a), c)
            case Call("mod", (a, Const(c))) if isinstance(c, int) and c > 0:
                return self._mod(self.linear(a), c)
        return Linear(((expr, 1),), 0)

    def _fits(self, expr: Expr, to: DType) -> bool:
        """Whether every value of an index expression is exact in the integer type `to`."""
        low, high = self.interval(expr)
        return to.is_integer and -(2 ** (to.bits - 1)) <= low and high < 2 ** (to.bits - 1)

    def _split(self, linear: Linear, c: int) -> tuple[Linear, Linear]:
        """linear = c * quotient + rest, the rest with all coefficients and its constant in [0, c)."""
        quotient = {a: k // c for a, k in linear.terms if k % c == 0}
        rest = {a: k for a, k in linear.terms if k % c}
        constant = linear.constant
        # Keep the constant whole in the rest where it makes the rest's interval fit, e.g. (8*i - 1 + ...) // 8.
        return Linear.build(quotient, constant // c), Linear.build(rest, constant % c)

    def _bounds(self, linear: Linear) -> Interval:
        low: float = 0
        high: float = 0
        for atom, c in linear.terms:
            a, b = self.interval(atom)
            low += c * (a if c > 0 else b)
            high += c * (b if c > 0 else a)
        if self.facts:
            a, b = self.facts.get(frozenset(linear.terms), _UNKNOWN)
            low, high = max(low, a), min(high, b)
        return low + linear.constant, high + linear.constant

    def _floordiv(self, linear: Linear, c: int) -> Linear:
        if c == 1:
            return linear
        quotient, rest = self._split(linear, c)
        low, high = self._bounds(rest)
        if _down(low, c) == _down(high, c) and abs(low) != _INF:
            return quotient.plus(Linear((), _whole(low // c)))
        # (g*x + r) // (g*d) == x // d where 0 <= r < g
        g = _gcd(c, *(k for _, k in rest.terms)) if rest.terms else 1
        for divisor in sorted({_gcd(c, k) for _, k in rest.terms} | {g}, reverse=True):
            if divisor <= 1:
                continue
            coarse = Linear.build(
                {a: k // divisor for a, k in rest.terms if k % divisor == 0}, rest.constant // divisor
            )
            fine = Linear.build({a: k for a, k in rest.terms if k % divisor}, rest.constant % divisor)
            low, high = self._bounds(fine)
            if low >= 0 and high < divisor:
                return quotient.plus(self._floordiv(coarse, c // divisor))
        match rest.terms:
            case ((Call("floordiv", (inner, Const(d))), 1),) if isinstance(d, int) and rest.constant == 0:
                return quotient.plus(self._floordiv(self.linear(inner), c * d))
        return quotient.plus(Linear(((Call("floordiv", (rest.expr(), Const(c))), 1),), 0))

    def _mod(self, linear: Linear, c: int) -> Linear:
        _, rest = self._split(linear, c)
        low, high = self._bounds(rest)
        if _down(low, c) == _down(high, c) and abs(low) != _INF:
            return rest.plus(Linear((), _whole(-c * (low // c))))
        # (g*x + r) % (g*d) == g*(x % d) + r where 0 <= r < g
        for divisor in sorted({_gcd(c, k) for _, k in rest.terms}, reverse=True):
            if divisor <= 1 or divisor == c:
                continue
            coarse = Linear.build(
                {a: k // divisor for a, k in rest.terms if k % divisor == 0}, rest.constant // divisor
            )
            fine = Linear.build({a: k for a, k in rest.terms if k % divisor}, rest.constant % divisor)
            low, high = self._bounds(fine)
            if low >= 0 and high < divisor:
                return self._mod(coarse, c // divisor).scaled(divisor).plus(fine)
        match rest.terms:
            case ((Call("mod", (inner, Const(d))), 1),) if isinstance(d, int) and d % c == 0:
                return self._mod(self.linear(inner).plus(Linear((), rest.constant)), c)
        return Linear(((Call("mod", (rest.expr(), Const(c))), 1),), 0)

    def _collect(self, linear: Linear) -> Linear:
        """c*(x // c) + x % c -> x, and c*(x // c % d) + x % c -> x % (c*d): digits that belong together."""
        terms = linear.coefficients
        for atom, k in linear.terms:
            match atom:
                case Call("mod", (inner, Const(c))) if isinstance(c, int):
                    whole = self.linear(inner)
                    quotient = self._floordiv(whole, c)
                    if quotient.constant == 0 and len(quotient.terms) == 1 and quotient.terms[0][1] == 1:
                        high = quotient.terms[0][0]
                        rest = {a: v for a, v in terms.items() if a != atom}
                        if rest.pop(high, None) == c * k:
                            return self._collect(Linear.build(rest, linear.constant).plus(whole.scaled(k)))
                        for other, v in list(rest.items()):
                            if v == c * k and (d := _modulus(other, high)):
                                del rest[other]
                                joined = self._mod(whole, c * d).scaled(k)
                                return self._collect(Linear.build(rest, linear.constant).plus(joined))
        return linear

    # ------------------------------------------------------------ expressions
    def index(self, expr: Expr) -> Expr:
        """An equal, simpler integer expression."""
        return self.linear(transform(expr, self._node)).expr()

    def _node(self, expr: Expr) -> Expr:
        """Simplify one node whose children are simple."""
        match expr:
            case Call("lt" | "le" | "gt" | "ge" | "eq" | "ne" as fn, (a, b)):
                return self._compare(fn, expr)
            case Call("where", (Const(c), a, b)):
                return a if c else b
            case Call("and", (Const(c), a)) | Call("and", (a, Const(c))):
                return a if c else Const(False)
            case Call("or", (Const(c), a)) | Call("or", (a, Const(c))):
                return Const(True) if c else a
            case Call("not", (Const(c),)):
                return Const(not c)
        return expr

    def _compare(self, fn: str, expr: Call) -> Expr:
        a, b = expr.args
        if not (self.is_index(a) and self.is_index(b)):
            return expr
        low, high = self.interval(Call("sub", (a, b)))
        truth = {
            "lt": (high < 0, low >= 0),
            "le": (high <= 0, low > 0),
            "gt": (low > 0, high <= 0),
            "ge": (low >= 0, high < 0),
            "eq": (low == high == 0, low > 0 or high < 0),
            "ne": (low > 0 or high < 0, low == high == 0),
        }[fn]
        if truth[0]:
            return Const(True)
        if truth[1]:
            return Const(False)
        return expr

    def is_index(self, expr: Expr) -> bool:
        match expr:
            case Const(value):
                return isinstance(value, int) and not isinstance(value, bool)
            case Axis() | Extent():
                return True
            case Cast(to, arg):
                return self.is_index(arg) and self._fits(arg, to)
            case Call("add" | "sub" | "mul" | "floordiv" | "mod" | "neg" | "minimum" | "maximum", args):
                return all(self.is_index(a) for a in args)
        return False


def _modulus(atom: Expr, inner: Expr) -> int:
    """d where the atom is `inner % d`, else 0."""
    match atom:
        case Call("mod", (arg, Const(d))) if arg == inner and isinstance(d, int):
            return d
    return 0


def simplify_stmt(algebra: IndexAlgebra, shape: Callable[[str], tuple[str, ...]], stmt: Stmt) -> Stmt:
    """Simplify every index and predicate of a statement and drop guards that can never act. `shape` gives the dims of
    a tensor."""
    over = stmt.over
    within = algebra
    if isinstance(over, Reduce) and over.where is not None:
        where = simplify_expr(algebra, shape, over.where)
        over, within = replace(over, where=where), algebra.assuming(where)
        if where == Const(True):
            over = replace(over, where=None)
    elif isinstance(over, Scatter):
        index = tuple(algebra.index(simplify_expr(algebra, shape, i)) for i in over.index)
        over = replace(over, index=index, base=simplify_expr(algebra, shape, over.base))
    return replace(stmt, expr=simplify_expr(within, shape, stmt.expr), over=over)


def simplify_expr(algebra: IndexAlgebra, shape: Callable[[str], tuple[str, ...]], expr: Expr) -> Expr:
    """An equal expression with simple indices. Predicates are decided by what the branch they stand in assumes;
    indices are not, since both branches of a `where` are evaluated and every access must stay inside by itself."""
    match expr:
        case Load(tensor, index, other):
            plain = IndexAlgebra(algebra.sizes) if algebra.facts else algebra
            index = tuple(plain.index(simplify_expr(plain, shape, i)) for i in index)
            if other is None or in_bounds(plain, index, shape(tensor)):
                return Load(tensor, index)
            return Load(tensor, index, simplify_expr(algebra, shape, other))
        case Call("where", (condition, a, b)):
            condition = simplify_expr(algebra, shape, condition)
            a = simplify_expr(algebra.assuming(condition), shape, a)
            b = simplify_expr(algebra.assuming(condition, False), shape, b)
            return algebra._node(Call("where", (condition, a, b)))
        case Call("and", (a, b)):
            a = simplify_expr(algebra, shape, a)
            return algebra._node(Call("and", (a, simplify_expr(algebra.assuming(a), shape, b))))
        case Call():
            if algebra.is_index(expr):
                return IndexAlgebra(algebra.sizes).index(expr)
            return algebra._node(expr.rebuild(tuple(simplify_expr(algebra, shape, a) for a in expr.args)))
        case Cast(to, arg):
            return Cast(to, simplify_expr(algebra, shape, arg))
    return expr


def steps(algebra: IndexAlgebra, axis: str, index: Expr) -> int | None:
    """How far `index` lies ahead of the current step of a loop over `axis`; None where that is no constant."""
    distance = algebra.linear(index).plus(algebra.linear(Axis(axis)), -1)
    return None if distance.terms else distance.constant


def in_bounds(algebra: IndexAlgebra, index: tuple[Expr, ...], dims: tuple[str, ...]) -> bool:
    """Whether every index provably lies within its dimension."""
    for i, dim in zip(index, dims, strict=True):
        low, high = algebra.interval(i)
        size = algebra.sizes[dim]
        if isinstance(i, Axis) and i.name == dim:
            continue
        extent = size.size if size.size is not None else size.low
        if low < 0 or high >= extent:
            return False
    return True


def simplify_indices(spec: KernelSpec) -> KernelSpec:
    """The spec with all its index arithmetic simplified."""
    algebra = IndexAlgebra(spec.size)
    body = tuple(simplify_stmt(algebra, spec.dims_of, s) for s in spec.body)
    return replace(spec, body=body)
