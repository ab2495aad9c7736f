"""The interpreter of kvc.vault.hostcode: one activation of a host function, over its tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from kvc.vault.hostcode import OPAQUE, Host, Launched, Pointer, Type, Unclear, _Return, as_dim, cast, number, tokens

#: Statements that check or wait, and change nothing that a kernel is given.
_IGNORED = re.compile(
    r"TORCH_CHECK\w*|TORCH_INTERNAL_ASSERT|AT_ASSERT\w*|CHECK\w*|C10_\w+_CHECK|\w*(CUDA|HIP)_CHECK\w*"
    r"|AT_(CUDA|HIP)_CHECK|assert|static_assert|printf|(hip|cuda)(DeviceSynchronize|StreamSynchronize|GetLastError|PeekAtLastError)"
)
_QUALIFIERS = {"const", "constexpr", "static", "inline", "volatile", "unsigned", "signed"}
_BASIC = {
    "int", "long", "float", "double", "bool", "auto", "size_t", "int64_t", "int32_t", "uint32_t", "uint64_t", "dim3",
    "short", "char", "scalar_t", "half", "__half",
}  # fmt: skip
_OPENS, _CLOSES = {"(": ")", "[": "]", "{": "}", "<<<": ">>>"}, {")", "]", "}", ">>>"}
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<",),
    ("+", "-"),
    ("*", "/", "%"),
)
_MATH: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "sqrt": math.sqrt, "sqrtf": math.sqrt, "ceil": math.ceil, "floor": math.floor,
    "ceilf": math.ceil, "log2": math.log2, "pow": pow, "rsqrt": lambda x: 1 / math.sqrt(x), "exp": math.exp,
}  # fmt: skip
_DTYPES = {
    "Float": "float",
    "Half": "half",
    "BFloat16": "bfloat16",
    "Double": "double",
    "Int": "int",
    "Long": "int64_t",
}
_ELEMENT = {
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__hip_bfloat16",
    "float64": "double",
    "int32": "int",
    "int64": "int64_t",
}


class Frame:
    """Statements and expressions from `at` on; `names` are the variables, types among them."""

    def __init__(self, host: Host, code: list[str], names: dict[str, Any]) -> None:
        self.host, self.code, self.names, self.at = host, code, names, 0

    # ------------------------------------------------------------ tokens
    @property
    def here(self) -> str:
        return self.code[self.at] if self.at < len(self.code) else ""

    def ahead(self, n: int = 1) -> str:
        return self.code[self.at + n] if self.at + n < len(self.code) else ""

    def take(self, wanted: str = "") -> str:
        self.host.count()
        found = self.here
        if not found or (wanted and found != wanted):
            near = " ".join(self.code[max(self.at - 6, 0) : self.at + 3])
            raise Unclear(f"the host code is not understood near `{near}`")
        self.at += 1
        return found

    def skip_group(self) -> list[str]:
        """The tokens inside the bracket that begins here."""
        start, closing = self.at + 1, [_OPENS[self.take()]]
        while closing:
            token = self.take()
            if token in _OPENS:
                closing.append(_OPENS[token])
            elif token in _CLOSES and token == closing[-1]:
                closing.pop()
        return self.code[start : self.at - 1]

    def skip_statement(self) -> None:
        if self.here == "{":
            self.skip_group()
            return
        if self.here in ("if", "for", "while"):
            self.take()
            self.skip_group()
            self.skip_statement()
            if self.here == "else":
                self.take()
                self.skip_statement()
            return
        while self.here != ";":
            if self.here in _OPENS:
                self.skip_group()
            else:
                self.take()
        self.take()

    # ------------------------------------------------------------ statements
    def block(self) -> None:
        while self.at < len(self.code):
            self.statement()

    def within(self, code: list[str]) -> Frame:
        """The same variables over other tokens."""
        return Frame(self.host, code, self.names)

    def statement(self) -> None:
        token = self.here
        if token == ";":
            self.take()
        elif token == "{":
            self.within(self.skip_group()).block()
        elif token == "return":
            self.take()
            value = None if self.here == ";" else self.expression()
            raise _Return(value)
        elif token == "if":
            self.take()
            chosen = self.truth(self.within(self.skip_group()).expression())
            (self.statement if chosen else self.skip_statement)()
            if self.here == "else":
                self.take()
                (self.skip_statement if chosen else self.statement)()
        elif token in ("for", "while"):
            self.loop()
        elif token == "using" or _IGNORED.fullmatch(token):
            self.skip_statement()
        elif token.startswith(("AT_DISPATCH", "DISPATCH_")):
            self.dispatch()
        elif not self.declaration():
            self.expression()
            self.take(";")

    def truth(self, value: Any) -> bool:
        if value is OPAQUE:
            raise Unclear("the host code decides by something that is not known without a device")
        return bool(value)

    def loop(self) -> None:
        kind = self.take()
        head = self.skip_group()
        start = self.at
        self.skip_statement()
        body = self.code[start : self.at]
        first, test, step = [], head, []
        if kind == "for":
            cuts = [n for n, t in enumerate(head) if t == ";"]
            if len(cuts) != 2:
                raise Unclear("a loop over a container in the host code")
            first, test, step = head[: cuts[0]], head[cuts[0] + 1 : cuts[1]], head[cuts[1] + 1 :]
        if first:
            self.within([*first, ";"]).block()
        while self.truth(self.within(list(test)).expression()):
            self.within(body).block()
            if step:
                self.within([*step, ";"]).block()

    def dispatch(self) -> None:
        """AT_DISPATCH_*(type, "name", [&] { ... }): the body once, with scalar_t as the type."""
        self.take()
        inside = self.skip_group()
        kind = self.within(inside).expression()
        element = _ELEMENT.get(str(kind).removeprefix("torch."))
        places = [n for n, token in enumerate(inside) if token == "{"]
        if element is None or not places:
            raise Unclear(f"a dispatch over {kind!r}")
        body = self.within(inside)
        body.at = places[0]
        run = self.within(body.skip_group())
        run.names["scalar_t"] = Type(element)
        run.block()
        if self.here == ";":
            self.take()

    def declaration(self) -> bool:
        """`const int a = 1, b(2);`. False, with nothing taken, where this is none."""
        start = self.at
        kind = self.type_name()
        if (
            not kind
            or not re.fullmatch(r"[A-Za-z_]\w*", self.here)
            or self.ahead() not in ("=", "(", "{", ";", ",", "[")
        ):
            self.at = start
            return False
        while True:
            name, opener = self.take(), self.here
            value: Any = None
            if opener == "=":
                self.take()
                value = tuple(self.arguments()) if self.here == "{" else self.expression()
            elif opener in ("(", "{"):
                values = (
                    self.arguments() if kind.endswith("dim3") or kind.split()[-1] in _BASIC else self.opaque_group()
                )
                value = tuple(values) if kind.endswith("dim3") else values[0] if values else OPAQUE
            elif opener == "[":
                raise Unclear("an array in the host code")
            self.names[name] = cast(kind, value) if not kind.endswith("*") else value
            if self.take() == ";":
                return True

    def opaque_group(self) -> list[Any]:
        self.skip_group()
        return []

    def type_name(self) -> str:
        """A type from here on, "" where there is none."""
        words: list[str] = []
        while self.here in _QUALIFIERS:
            words.append(self.take())
        if not re.fullmatch(r"[A-Za-z_]\w*", self.here):
            return ""
        words.append(self.take())
        while self.here == "::" or (self.here in ("long", "int") and words[-1] in ("long", "unsigned")):
            words.append(self.take())
            if words[-1] == "::":
                words[-2:] = [f"{words[-2]}::{self.take()}"]
        if self.here == "<":
            inside = self.template()
            if inside is None:
                return ""
            words[-1] += f"<{inside}>"
        while self.here in ("*", "&", "const", "__restrict__"):
            words.append(self.take())
        return " ".join(words)

    def template(self) -> str | None:
        """The text between the angle brackets that begin here; None, with nothing taken, for a comparison."""
        start, depth = self.at, 0
        inside: list[str] = []
        while self.here and self.here not in (";", "{", "}", "&&", "||", "<<<"):
            token = self.take()
            # A launch behind template arguments is lexed as one: `k<4 <<<`; `>>` never is.
            depth += (token == "<") - (token == ">")
            if depth == 0:
                return self.substituted(inside[1:])
            inside.append(token)
        self.at = start
        return None

    def substituted(self, inside: list[str]) -> str:
        """Template arguments with the host's types and constants put in."""
        done = []
        for token in inside:
            value = self.names.get(token)
            done.append(value.name if isinstance(value, Type) else str(value) if isinstance(value, int) else token)
        return " ".join(done).replace(" :: ", "::")

    # ------------------------------------------------------------ expressions
    def arguments(self) -> list[Any]:
        """Values in the bracket that begins here."""
        inside = self.within(self.skip_group())
        values: list[Any] = []
        while inside.here:
            values.append(tuple(inside.arguments()) if inside.here == "{" else inside.expression())
            if inside.here:
                inside.take(",")
        return values

    def expression(self) -> Any:
        value = self.binary(0)
        if self.here == "?":
            self.take()
            first = self.expression()
            self.take(":")
            second = self.expression()
            return first if self.truth(value) else second
        return value

    def binary(self, level: int) -> Any:
        if level == len(_LEVELS):
            return self.unary()
        value = self.binary(level + 1)
        while self.here in _LEVELS[level]:
            value = _apply(self.take(), value, self.binary(level + 1))
        return value

    def unary(self) -> Any:
        token = self.here
        if token in ("-", "!", "+", "~", "&", "*", "++", "--"):
            self.take()
            if token in ("++", "--"):
                return self.step(self.take(), 1 if token == "++" else -1)
            value = self.unary()
            if token in ("&", "*"):
                return value
            return (
                not self.truth(value) if token == "!" else -value if token == "-" else ~value if token == "~" else value
            )
        if token == "(" and (kind := self.cast_type()):
            value = self.unary()
            return Pointer(value.tensor, kind.rstrip("* ")) if isinstance(value, Pointer) else cast(kind, value)
        return self.postfix(self.primary())

    def cast_type(self) -> str:
        """The type of a C cast that begins here, "" (and nothing taken) where the bracket holds an expression."""
        start = self.at
        self.take()
        first = self.here
        kind = self.type_name()
        known = first in _BASIC or first in _QUALIFIERS or kind.endswith("*") or isinstance(self.names.get(first), Type)
        if kind and known and self.here == ")":
            self.take()
            return kind
        self.at = start
        return ""

    def step(self, name: str, by: int) -> Any:
        self.names[name] = _apply("+", self.names.get(name, OPAQUE), by)
        return self.names[name]

    def primary(self) -> Any:
        token = self.take()
        if token == "(":
            value = self.expression()
            self.take(")")
            return value
        if token == "[":  # a lambda: its body is run where it is handed to a dispatch
            raise Unclear("a lambda in the host code")
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return number(token)
        if token.startswith('"'):
            return token[1:-1]
        if not re.fullmatch(r"[A-Za-z_]\w*", token):
            self.at -= 1
            return self.take("a value")
        name = token
        while self.here == "::":
            self.take()
            name += f"::{self.take()}"
        return self.named(name)

    def named(self, name: str) -> Any:
        if name in ("true", "false"):
            return name == "true"
        if name in ("nullptr", "NULL", "None"):
            return None
        if name in ("static_cast", "reinterpret_cast", "const_cast"):
            kind = self.template() or ""
            (value,) = self.arguments()
            return Pointer(value.tensor, kind.rstrip("* ")) if isinstance(value, Pointer) else cast(kind, value)
        if name == "sizeof":
            return _size_of(" ".join(self.substituted(self.skip_group()).split()))
        if name in self.host.parts.macros and name not in self.names:
            return self.macro(name)
        if name == "hipLaunchKernelGGL":
            return self.launch_call()
        short = name.rpartition("::")[2]
        if short in self.host.parts.kernels and self.here in ("<", "<<<"):
            return self.launch(short)
        if self.here in ("=", "+=", "-=", "*=", "/=", "++", "--") and self.ahead() != "=":
            return self.assign(name)
        if name in self.names:
            return self.names[name]
        return self.library(name)

    def assign(self, name: str) -> Any:
        operator = self.take()
        if operator in ("++", "--"):
            return self.step(name, 1 if operator == "++" else -1)
        value = self.expression()
        self.names[name] = value if operator == "=" else _apply(operator[0], self.names.get(name, OPAQUE), value)
        return self.names[name]

    def library(self, name: str) -> Any:
        """A function or constant that the file does not define."""
        short = name.rpartition("::")[2]
        template = self.template() if self.here == "<" else None
        if self.here not in ("(", "{"):
            if short.removeprefix("k") in _DTYPES:
                return _DTYPES[short.removeprefix("k")]
            if (
                "cuda" in name.lower()
                or "hip" in name.lower()
                or "device" in name.lower()
                or short in ("k", "IntArrayRef")
            ):
                return OPAQUE
            raise Unclear(f"the host code names {name}, which is not known")
        args = self.arguments()
        if short == "dim3":
            return tuple(args)
        if short in _SCALAR_CASTS:
            return cast(short, args[0])
        if short in _MATH and name in (short, f"std::{short}"):
            if any(not isinstance(a, (int, float)) for a in args):
                raise Unclear(f"{name} of something that is no number")
            return _MATH[short](*args)
        if name in self.host.parts.host:
            return self.host.call(name, args)
        if re.search(r"[Ss]tream|[Gg]uard|device", name):
            return OPAQUE
        return self.host.library(name, args, template)

    def macro(self, name: str) -> Any:
        parameters, body = self.host.parts.macros[name]
        code = tokens(body)
        if parameters is not None:
            inside = self.within(self.skip_group())
            given: list[list[str]] = [[]]
            depth = 0
            for token in inside.code:
                depth += (token in _OPENS) - (token in _CLOSES)
                if token == "," and depth == 0:
                    given.append([])
                else:
                    given[-1].append(token)
            table = dict(zip(parameters, given, strict=False))
            code = [t for token in code for t in (["(", *table[token], ")"] if token in table else [token])]
        return self.within(code).expression() if code else None

    def postfix(self, value: Any) -> Any:
        while True:
            if self.here in (".", "->"):
                self.take()
                value = self.member(value, self.take())
            elif self.here == "[":
                (index,) = self.arguments()
                if not isinstance(value, (tuple, list)):
                    raise Unclear("an index into something that is no list")
                value = value[index]
            elif self.here in ("++", "--"):
                raise Unclear("an increment inside an expression")
            else:
                return value

    def member(self, value: Any, name: str) -> Any:
        template = self.template() if self.here == "<" else None
        if self.here != "(":
            if isinstance(value, tuple) and name in ("x", "y", "z"):
                return (*value, 1, 1)["xyz".index(name)]
            raise Unclear(f"a member {name}")
        args = self.arguments()
        if value is OPAQUE:
            return OPAQUE
        if isinstance(value, (tuple, list)):
            if name == "size":
                return len(value)
            raise Unclear(f"{name}() of a list")
        if isinstance(value, dict):  # tensor options
            return {**value, name: args[0]} if args else value.get(name, OPAQUE)
        return self.host.method(value, name, args, template)

    # ------------------------------------------------------------ launches
    def launch(self, kernel: str) -> Any:
        template = self.template() if self.here == "<" else None
        self.take("<<<")
        self.at -= 1
        config = self.arguments()
        self.add(f"{kernel}<{template}>" if template is not None else kernel, config, self.arguments())
        return None

    def launch_call(self) -> Any:
        inside = self.within(self.skip_group())
        if inside.here == "HIP_KERNEL_NAME" or inside.here == "(":
            if inside.here != "(":
                inside.take()
            named = inside.within(inside.skip_group())
        else:
            named = inside
        kernel = named.take()
        template = named.template() if named.here == "<" else None
        inside.take(",")
        values = inside.within(["(", *inside.code[inside.at :], ")"]).arguments()
        self.add(f"{kernel}<{template}>" if template is not None else kernel, values[:4], values[4:])
        return None

    def add(self, kernel: str, config: list[Any], args: list[Any]) -> None:
        if len(config) < 2:
            raise Unclear("a launch without grid or block")
        shared = config[2] if len(config) > 2 else 0
        if not isinstance(shared, int):
            raise Unclear("the bytes of dynamic LDS are not known")
        if any(a is OPAQUE for a in args):
            raise Unclear(f"an argument of {kernel} is not known without a device")
        self.host.launches.append(Launched(kernel, as_dim(config[0]), as_dim(config[1]), shared, tuple(args)))


_SCALAR_CASTS = {"float", "double", "int", "int64_t", "int32_t", "size_t", "bool", "uint32_t"}


def _size_of(kind: str) -> int:
    sizes = {"float": 4, "double": 8, "int": 4, "int64_t": 8, "long": 8, "half": 2, "__half": 2, "char": 1, "bool": 1}
    if kind not in sizes:
        raise Unclear(f"sizeof({kind})")
    return sizes[kind]


def _apply(operator: str, a: Any, b: Any) -> Any:
    if operator in ("==", "!=") and not isinstance(a, _NUMBERS):
        return (a == b) if operator == "==" else (a != b)
    if not isinstance(a, _NUMBERS) or not isinstance(b, _NUMBERS):
        raise Unclear(f"`{operator}` of something that is no number")
    if operator in ("/", "%"):
        if b == 0:
            raise Unclear("a division by zero in the host code")
        if isinstance(a, float) or isinstance(b, float):
            return a / b
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # C rounds toward zero
        return quotient if operator == "/" else a - quotient * b
    return _OPERATORS[operator](a, b)


_NUMBERS = (int, float)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "<": lambda a, b: a < b,
    ">": lambda a, b: a > b, "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, "&&": lambda a, b: bool(a and b), "||": lambda a, b: bool(a or b),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "<<": lambda a, b: a << min(b, 63),
}  # fmt: skip
