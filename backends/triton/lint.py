"""Static rules for Triton source: what a kernel file may hold, and faults that compile and often run but are wrong.

A file is imports of Triton, constants, functions and, if need be, a `__main__` block for people who want to try it.
Anything else is refused: a candidate is untrusted, and a library call or a fallback to torch is no kernel.

`RULES` lists every rule; each finding is a KVC0403 whose `details["rule"]` names it. Syntax errors are KVC0502.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError, Location

from .toolchain import SOURCE_NAME

RULES: dict[str, str] = {
    "no-kernel": "the file defines no @triton.jit kernel",
    "import": "the file imports something other than triton, triton.language and its libdevice",
    "module-code": "the file runs code when it is imported",
    "forbidden-name": "the file uses a name that has no place in a kernel file (torch, os, eval, exec, open, ...)",
    "dunder": "the file reaches into an object's internals",
    "attribute": "the file reaches through triton for something other than the language",
    "statement": "a kernel holds a statement that is no part of Triton's language (try, with, class, lambda, ...)",
    "decorator": "a function has another decorator than @triton.jit, or defaults that are no constants",
    "unmasked": "a block of pointers may reach beyond the tensor: no mask covers one of its block axes",
    "dot-precision": "tl.dot does not say that fp32 operands keep their accuracy",
    "inline-asm": "inline assembly hides work from every later check",
    "num-warps": "num_warps times the wave size exceeds the threads of a workgroup",
    "device-print": "device code prints",
}

#: Precisions of tl.dot that keep fp32 accuracy.
ACCURATE_DOTS = frozenset({"ieee", "bf16x6", "tf32x3"})

_IMPORTS = frozenset({"triton", "triton.language", "triton.language.extra", "triton.language.extra.libdevice"})
_FROM = {"triton": {"language"}, "triton.language.extra": {"libdevice"}, "__future__": {"annotations"}}
FORBIDDEN = frozenset({
    "torch", "numpy", "os", "sys", "subprocess", "ctypes", "socket", "importlib", "builtins", "inspect", "gc",
    "eval", "exec", "compile", "open", "input", "breakpoint", "globals", "locals", "vars", "setattr", "delattr",
    "__import__", "exit", "quit",
})  # fmt: skip
_HINTS = {
    "no-kernel": "decorate the entry point with @triton.jit",
    "import": "import triton, triton.language as tl, and libdevice from triton.language.extra",
    "module-code": "keep to imports, constants and @triton.jit functions; put trials under if __name__ == '__main__'",
    "forbidden-name": "do all of the work in Triton; kvc launches the kernels itself",
    "dunder": "use the public interface of triton.language",
    "attribute": "use the functions of triton.language and libdevice, triton.jit and triton.cdiv",
    "statement": "write the kernel in assignments, calls, if, for and while",
    "decorator": "decorate with @triton.jit alone; give defaults as literals",
    "unmasked": "pass mask=, or state tl.static_assert(EXTENT // BLOCK * BLOCK == EXTENT) where the block divides it",
    "dot-precision": 'pass input_precision="ieee"',
    "inline-asm": "write it in triton.language",
    "num-warps": "use fewer warps",
    "device-print": "remove it",
}


@dataclass(frozen=True)
class _Finding:
    rule: str
    node: ast.AST | None
    message: str = ""


def lint(source: str, arch: ArchSpec, numerics: str = "strict") -> list[Diagnostic]:
    """KVC0403 for each rule that the source breaks, in order of lines; KVC0502 alone where it does not parse."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        where = Location(SOURCE_NAME, error.lineno or 0)
        return [Diagnostic("KVC0502", error.msg, where)]
    findings = [*_module_findings(tree), *_name_findings(tree), *_call_findings(tree, arch, numerics)]
    findings += [*_statement_findings(tree), *_attribute_findings(tree)]
    for function in _kernels(tree):
        findings += _mask_findings(function)
    unique = dict.fromkeys((f.rule, getattr(f.node, "lineno", 0), f.message) for f in findings)
    return [_diagnostic(*found) for found in sorted(unique, key=lambda found: (found[1], found[0]))]


def _diagnostic(rule: str, line: int, message: str) -> Diagnostic:
    text = f"{RULES[rule]}{': ' + message if message else ''}"
    return Diagnostic("KVC0403", text, Location(SOURCE_NAME, line), _HINTS[rule], {"rule": rule})


def _is_jit(node: ast.AST) -> bool:
    """`triton.jit`, called or not."""
    node = node.func if isinstance(node, ast.Call) else node
    return (isinstance(node, ast.Attribute) and node.attr == "jit") or (isinstance(node, ast.Name) and node.id == "jit")


def _kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    found = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    return [f for f in found if any(_is_jit(d) for d in f.decorator_list)]


def _is_main(node: ast.AST) -> bool:
    """`if __name__ == "__main__":` with nothing else about it: a turned comparison or an `else` runs on import."""
    match node:
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant("__main__")]),
            orelse=[],
        ):
            return True
    return False


# ---------------------------------------------------------------- the file


def _module_findings(tree: ast.Module) -> Iterator[_Finding]:
    if not _kernels(tree):
        yield _Finding("no-kernel", None)
    for node in tree.body:
        match node:
            case ast.Import(names):
                for name in names:
                    if name.name not in _IMPORTS:
                        yield _Finding("import", node, name.name)
            case ast.ImportFrom(module, names):
                allowed = _FROM.get(module or "", set())
                for name in names:
                    if name.name not in allowed:
                        yield _Finding("import", node, f"{module}.{name.name}")
            case ast.FunctionDef():
                if not any(_is_jit(d) for d in node.decorator_list):
                    yield _Finding("module-code", node, f"{node.name} is not decorated with @triton.jit")
            case ast.AnnAssign() | ast.Assign():
                if not _is_constant(node.value):
                    yield _Finding("module-code", node, ast.unparse(node)[:60])
            case ast.Expr(ast.Constant()):
                pass
            case _ if _is_main(node):
                pass
            case _:
                yield _Finding("module-code", node, ast.unparse(node)[:60].splitlines()[0])


def _is_constant(node: ast.expr | None) -> bool:
    """Literals, arithmetic on them, and tl.constexpr(...)."""
    match node:
        case None | ast.Constant() | ast.Name():
            return True
        case ast.UnaryOp(operand=a):
            return _is_constant(a)
        case ast.BinOp(left=a, right=b):
            return _is_constant(a) and _is_constant(b)
        case ast.Tuple(elts) | ast.List(elts):
            return all(_is_constant(e) for e in elts)
        case ast.Call(func, args, []):
            return ast.unparse(func) in ("tl.constexpr", "float", "triton.language.constexpr") and all(
                _is_constant(a) for a in args
            )
    return False


def _name_findings(tree: ast.Module) -> Iterator[_Finding]:
    """Names that are forbidden everywhere but in the `__main__` block, and dunders."""
    for top in tree.body:
        if _is_main(top):
            continue
        for node in ast.walk(top):
            if isinstance(node, ast.Name) and node.id in FORBIDDEN:
                yield _Finding("forbidden-name", node, node.id)
            if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
                yield _Finding("dunder", node, node.attr)
            if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
                yield _Finding("forbidden-name", node, node.attr)
            if isinstance(node, ast.Import | ast.ImportFrom) and node is not top:
                yield _Finding("import", node, ast.unparse(node))


_STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return, ast.Pass, ast.Assert,
    ast.Break, ast.Continue,
)  # fmt: skip
_NO_EXPRESSIONS = (ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


def _statement_findings(tree: ast.Module) -> Iterator[_Finding]:
    """What stands in functions, and around them."""
    for function in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        for decorator in function.decorator_list:
            called = decorator.keywords if isinstance(decorator, ast.Call) else []
            positional = decorator.args if isinstance(decorator, ast.Call) else []
            name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name not in ("triton.jit", "jit") or positional or not all(_is_constant(k.value) for k in called):
                yield _Finding("decorator", decorator, ast.unparse(decorator)[:60])
        defaults = [*function.args.defaults, *(d for d in function.args.kw_defaults if d is not None)]
        for default in defaults:
            if not _is_constant(default):
                yield _Finding("decorator", default, f"default {ast.unparse(default)[:40]}")
        for part in (n for statement in function.body for n in ast.walk(statement)):
            foreign = isinstance(part, ast.stmt) and not isinstance(part, _STATEMENTS)
            if (foreign and not isinstance(part, ast.Import | ast.ImportFrom)) or isinstance(part, _NO_EXPRESSIONS):
                yield _Finding("statement", part, type(part).__name__.lower())


#: Beside the names of triton.language itself: what may be reached through a module, by the path of that module.
_PATHS = {
    "triton": {"jit", "cdiv", "next_power_of_2"},
    "triton.language.math": {
        "abs", "ceil", "cos", "div_rn", "erf", "exp", "exp2", "fdiv", "floor", "fma", "log", "log2", "rsqrt", "sin",
        "sqrt", "sqrt_rn", "umulhi",
    },
    "triton.language.extra": set(),
}  # fmt: skip
_MODULES = {"triton.language", "triton.language.math", "triton.language.extra", "triton.language.extra.libdevice"}


def _attribute_findings(tree: ast.Module) -> Iterator[_Finding]:
    """Chains of attributes that start at a module: every step but the last must be a module of the language."""
    roots = dict(_aliases(tree))
    for top in tree.body:
        if _is_main(top) or isinstance(top, ast.Import | ast.ImportFrom):
            continue
        inner = {id(n.value) for n in ast.walk(top) if isinstance(n, ast.Attribute)}
        for node in ast.walk(top):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                chain = _chain(node)
                if chain and chain[0] in roots and not _reachable(roots[chain[0]], chain[1:]):
                    yield _Finding("attribute", node, ast.unparse(node))
            elif isinstance(node, ast.Name) and node.id in roots and id(node) not in inner:
                yield _Finding("attribute", node, f"{node.id} as a value")


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, module) for the imports of the file."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (name.asname, name.name) if name.asname else (name.name.split(".")[0], "triton")
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _chain(node: ast.AST) -> list[str]:
    """["tl", "math", "exp"] of tl.math.exp; [] where it starts at a value."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _reachable(module: str, chain: list[str]) -> bool:
    name = chain[0]
    if f"{module}.{name}" in _MODULES:
        return len(chain) > 1 and _reachable(f"{module}.{name}", chain[1:])
    if name.startswith("_") or name in FORBIDDEN:
        return False
    if module == "triton.language":
        return name in _language()
    allowed = _PATHS.get(module)
    return allowed is None or name in allowed


@cache
def _language() -> frozenset[str]:
    """Public names of triton.language that are no modules. KVC0501 where Triton is missing."""
    try:
        from triton import language
    except ImportError:
        raise KvcError("KVC0501", "Triton is not installed", hint="pip install 'triton>=3.6,<3.10'") from None
    return frozenset(n for n in language.__all__ if not isinstance(getattr(language, n, None), ModuleType))


# ---------------------------------------------------------------- calls


def _call_findings(tree: ast.Module, arch: ArchSpec, numerics: str) -> Iterator[_Finding]:
    for node in (n for top in tree.body if not _is_main(top) for n in ast.walk(top)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        keywords = {k.arg: k.value for k in node.keywords}
        if name == "inline_asm_elementwise":
            yield _Finding("inline-asm", node)
        if name in ("device_print", "print"):
            yield _Finding("device-print", node)
        if name in ("dot", "dot_scaled") and numerics == "strict":
            precision = keywords.get("input_precision")
            stated = isinstance(precision, ast.Constant) and precision.value in ACCURATE_DOTS
            if not stated or "allow_tf32" in keywords:
                yield _Finding("dot-precision", node)
        warps = keywords.get("num_warps")
        if isinstance(warps, ast.Constant) and isinstance(warps.value, int):
            threads = warps.value * arch.wave_size
            if threads > arch.max_threads:
                text = f"{warps.value} x {arch.wave_size} = {threads:,} of {arch.max_threads:,} on {arch.name}"
                yield _Finding("num-warps", node, text)


# ---------------------------------------------------------------- masks


class _Blocks(ast.NodeVisitor):
    """Which block sizes (second argument of tl.arange) each local of a kernel depends on, by one pass over its text."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.known: dict[str, frozenset[str]] = {}
        self.asserted: set[str] = set()
        self.findings: list[_Finding] = []
        for statement in function.body:
            self.visit(statement)

    def of(self, node: ast.AST) -> frozenset[str]:
        """Block sizes that an expression depends on. A reduction removes its own; that is not followed."""
        found: set[str] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found |= self.known.get(part.id, frozenset())
            if isinstance(part, ast.Call) and ast.unparse(part.func).endswith("arange") and len(part.args) == 2:
                found.add(ast.unparse(part.args[1]))
        return frozenset(found)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                # A loaded value is no index: what it depends on does not say where it points.
                self.known[name] = frozenset() if _is_load(node.value) else self.of(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name) and node.value is not None:
            self.known[node.target.id] = self.of(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            self.known[node.target.id] = self.known.get(node.target.id, frozenset()) | self.of(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "static_assert":
            self.asserted |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if name not in ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_cas", "atomic_xchg"):
            return
        keywords = {k.arg: k.value for k in node.keywords}
        if "boundary_check" in keywords or not node.args:
            return
        position = 1 if name == "load" else 2
        mask = keywords.get("mask") or (node.args[position] if len(node.args) > position else None)
        covered = self.of(mask) if mask is not None else frozenset()
        missing = self.of(node.args[0]) - covered - self.asserted
        if missing:
            self.findings.append(_Finding("unmasked", node, f"{', '.join(sorted(missing))} in tl.{name}"))


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "load"


def _mask_findings(function: ast.FunctionDef) -> list[_Finding]:
    return _Blocks(function).findings
