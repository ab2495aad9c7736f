"""Values: calls, casts and literals as text, typed like the index notation types them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from kvc.dtypes import BOOL, F32, F64, I32, I64, DType
from kvc.functions import FUNCTIONS, Function
from kvc.kernel import (
    Axis,
    Call,
    Cast,
    Const,
    Expr,
    Extent,
    KernelSpec,
    Load,
    Operand,
    call,
    lift,
)

from .index import LINE, IndexScope, V, literal_text, typed_literal
from .source import KernelText
from .spelling import ATOM, COMPARE, MUL, TL, UNARY, infix, spelling


class ValueScope(IndexScope):
    """An IndexScope that also writes values; `load` says what a tensor's value is."""

    @abstractmethod
    def load(self, tensor: str, index: tuple[Expr, ...], other: Expr | None) -> V:
        """`tensor[index]`."""

    # ------------------------------------------------------------ values
    def value(self, expr: Expr) -> V:
        """A block of values of an expression over axes of the spec, in its compute type."""
        match expr:
            case Const(value):
                kind = BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32
                text = literal_text(value)
                return V(text, UNARY if text.startswith("-") else ATOM, kind, literal=value)
            case Load(tensor, index, other):
                return self.load(tensor, index, other)
            case Cast(dtype, arg):
                return self.round(self.value(arg), dtype)
            case Axis() | Extent():
                return self._integer_value(expr)
            case Call(fn, args):
                if self.algebra.is_index(expr) and not all(isinstance(a, Const) for a in args):
                    return self._integer_value(expr)
                return self._call(FUNCTIONS[fn], args)
        raise TypeError(f"not an expression: {expr!r}")

    def _integer_value(self, expr: Expr) -> V:
        """An index used as a value: 64-bit arithmetic where 32 bits might not do."""
        resolved = self.resolved(expr)
        low, high = self.algebra.interval(resolved)
        if self.wide or (low >= -(2**31) and high < 2**31):
            value = self._index(resolved)
            if value.literal is not None:
                return replace(value, type=I64)
            constant = value.axes and all(self.binding(a).constant for a in value.axes)
            return V(f"tl.full((), {value.text}, tl.int32)", ATOM, I32, value.axes) if constant else value
        return self._widened(resolved)

    def _widened(self, expr: Expr) -> V:
        """The same arithmetic with every axis in 64 bits."""
        match expr:
            case Axis():
                return self.to(self._integer_value(expr), I64)
            case Call("add" | "sub" | "mul" as fn, (a, b)):
                left, right = self._widened(a), self._widened(b)
                sign, level = infix(fn, I64) or ("", ATOM)
                text = f"{left.at(level)} {sign} {right.at(level + 1)}"
                return V(text, level, I64, left.axes | right.axes)
        return self.to(self._index(expr), I64)

    def to(self, value: V, dtype: DType) -> V:
        """The value in another compute type; exact where that type is wider."""
        if value.literal is not None:
            number = typed_literal(value.literal, dtype)
            text = literal_text(number)
            return V(text, UNARY if text.startswith("-") else ATOM, dtype, literal=number)
        if value.type is dtype:
            return value
        if dtype is BOOL:
            return V(f"{value.at(COMPARE + 1)} != 0", COMPARE, BOOL, value.axes)
        return V(f"{value.at(ATOM)}.to({TL[dtype.name]})", ATOM, dtype, value.axes)

    def strong(self, value: V, dtype: DType) -> V:
        """The value as a tensor of the type, also where it is a literal."""
        cast = self.to(value, dtype)
        if cast.literal is None:
            return cast
        return V(f"tl.full((), {cast.text}, {TL[dtype.name]})", ATOM, dtype)

    def round(self, value: V, dtype: DType) -> V:
        """What a value is after it was stored as `dtype` and read again: in that type's compute type."""
        compute = dtype.compute
        if dtype is compute:
            # In a local of its own, a bare literal has 32 bits.
            wide = value.literal is not None and dtype.bits == 64
            return self.strong(value, dtype) if wide else self.to(value, dtype)
        if value.literal is not None and not dtype.is_float:
            value = self.strong(value, compute)
        value = self.to(value, compute) if not (dtype.is_integer and value.type.is_integer) else value
        value = self.strong(value, compute) if value.literal is not None else value
        text = f"{value.at(ATOM)}.to({TL[dtype.name]}).to({TL[compute.name]})"
        return V(text, ATOM, compute, value.axes)

    # ------------------------------------------------------------ calls
    def _call(self, function: Function, args: tuple[Expr, ...]) -> V:
        if function.name == "pow" and args[1] in (Const(2), Const(2.0)):
            return self._square(args[0])
        values = [self.value(a) for a in args]
        if function.result == "select":
            return self._select(values, args)
        result = self.spec.type_of(Call(function.name, args))
        joined = self.spec.type_of(call("add", *args)) if len(args) == 2 else self.spec.type_of(args[0])
        operand = result if function.result in ("float", "same") else joined
        if function.name in ("and", "or", "not"):
            operand = BOOL
        if all(v.literal is not None for v in values):
            values[0] = self.strong(values[0], operand)
        if not self._narrow_integers(function, values):
            values = [self.to(v, operand) for v in values]
        else:
            operand = I32
        if function.expand is not None:
            return self._composite(function, values, operand)
        return self._primitive(function, values, operand, BOOL if function.result == "bool" else operand)

    def _square(self, arg: Expr) -> V:
        """pow(x, 2): one product, exactly what a correctly rounded pow gives."""
        base = self._named(self.strong(self.value(arg), self.spec.type_of(arg)), "v")
        return self._joined("{0} * {1}", MUL, [base, base], base.type)

    @staticmethod
    def _narrow_integers(function: Function, values: list[V]) -> bool:
        """Whether 32-bit operands of a function that cannot overflow may stay as they are."""
        safe = function.result == "bool" or function.name in ("minimum", "maximum", "mod", "floordiv")
        return safe and all(
            v.type is I32 or (isinstance(v.literal, int) and not isinstance(v.literal, bool) and abs(v.literal) < 2**31)
            for v in values
        )

    def _select(self, values: list[V], args: tuple[Expr, ...]) -> V:
        kind = self.spec.type_of(Call("where", args))
        if all(v.type is I32 for v in values[1:]):
            kind = I32
        condition = self.to(values[0], BOOL)
        yes, no = (self._argument(self.to(v, kind)) for v in values[1:])
        if yes.literal is not None and no.literal is not None:
            yes = self.strong(yes, kind)
        return self._joined("tl.where({0}, {1}, {2})", ATOM, [condition, yes, no], kind)

    def _argument(self, value: V) -> V:
        """A value as an argument of a tl function, which takes Python floats as f32."""
        precise = value.type in (F64, I64) and value.literal is not None
        return self.strong(value, value.type) if precise else value

    def _primitive(self, function: Function, values: list[V], operand: DType, result: DType) -> V:
        operator = infix(function.name, operand)
        if operator is not None:
            sign, level = operator
            # Comparisons do not chain; the others associate to the left.
            left = values[0] if values[0].strength >= level + (level == COMPARE) else self._in_parentheses(values[0])
            right = values[1] if values[1].strength > level else self._in_parentheses(values[1])
            return self._joined(f"{{0}} {sign} {{1}}", level, [left, right], result)
        how = spelling(function.name, operand, self.kernel.file.task.numerics)
        if how.libdevice:
            self.kernel.file.use_libdevice()
        for helper in how.helpers:
            self.kernel.file.helper(helper)
        arguments = [self._argument(v) for v in values]
        if how.atoms:
            arguments = [v if v.strength >= UNARY else self._in_parentheses(v) for v in arguments]
            if how.template.count("{0}") > 1:
                arguments = [self._named(arguments[0], "v")]
        return self._joined(how.template, how.strength, arguments, result)

    @staticmethod
    def _in_parentheses(value: V) -> V:
        return replace(value, text=f"({value.text})", strength=ATOM)

    def _joined(self, template: str, strength: int, values: list[V], kind: DType) -> V:
        """A template over texts, with the longest argument in a local where the line gets too long."""
        while sum(len(v.text) for v in values) + len(template) > LINE:
            # What has a name already gains nothing from another, however long the name is.
            wide = [n for n, v in enumerate(values) if len(v.text) >= 24 and not v.text.isidentifier()]
            if not wide:
                break
            longest = max(wide, key=lambda n: len(values[n].text))
            values = [self._named(v, "v") if n == longest else v for n, v in enumerate(values)]
        axes = frozenset().union(*(v.axes for v in values))
        return V(template.format(*(v.text for v in values)), strength, kind, axes)

    def _named(self, value: V, stem: str) -> V:
        """The value in a local of this scope."""
        if value.text.isidentifier():
            return value
        text = value.text[1:-1] if value.text.startswith("(") and _encloses(value.text) else value.text
        name = self.kernel.fresh(stem)
        self.emit(f"{name} = {text}")
        return replace(value, text=name, strength=ATOM)

    def _composite(self, function: Function, values: list[V], operand: DType) -> V:
        """A call of the helper function made from a composite's meaning."""
        assert function.expand is not None
        file = self.kernel.file
        name = function.name if operand is F32 else f"{function.name}_{operand.name}"
        if not file.has_helper(name):
            parameters = [chr(ord("x") + n) for n in range(function.arity)]
            scalars = tuple(Operand(p, operand, ()) for p in parameters)
            text = KernelText(file, name, KernelSpec(name, (), scalars, (), ()), frozenset())
            scope = type(self)(text)
            for p in parameters:
                scope.memo[(p, (), None)] = V(p, ATOM, operand)
            result = scope.value(lift(function.expand(*(Load(p, ()) for p in parameters))))
            lines = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
            lines += [f"    {line}" for line in (*text.lines, f"return {result.text}")]
            file.define_helper(name, "\n".join(lines))
        arguments = ", ".join(f"{{{n}}}" for n in range(len(values)))
        return self._joined(f"{name}({arguments})", ATOM, values, operand)


def _encloses(text: str) -> bool:
    """Whether the first parenthesis closes at the end."""
    depth = 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return n == len(text) - 1
    return False
