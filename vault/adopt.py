"""A candidate from what a foreign module was seen to launch: its kernels as they are, called by kernels of kvc's shape.

kvc launches kernels whose arguments are all tensors. A foreign kernel also takes sizes and strides; these are constants
for one spec. So each launch gets a kernel of its own that takes the tensors and calls the foreign one with the
constants written out. The foreign text is not changed but for `__global__`, which becomes a device function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from kvc.emitter import Candidate, Launch, Origin, Scratch, Task
from kvc.kernel import KernelSpec
from kvc.vault.hostcode import Unclear

_C_TYPES = {
    "torch.float32": "float", "torch.float16": "__half", "torch.bfloat16": "__hip_bfloat16", "torch.float64": "double",
    "torch.int32": "int", "torch.int64": "long", "torch.bool": "bool", "torch.uint8": "unsigned char",
    "torch.int8": "signed char", "torch.int16": "short",
}  # fmt: skip
_HIP_HEAD = "#include <hip/hip_runtime.h>\n#include <hip/hip_fp16.h>\n#include <hip/hip_bf16.h>\n"
_TRITON_HEAD = "import triton\nimport triton.language as tl\n"
_DTYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "int64": "i64", "bool": "bool",  # noqa: E501
    "uint8": "u8", "int8": "i8", "int16": "i16",
}  # fmt: skip
_ALLOWED_IMPORTS = {"triton", "tl", "libdevice", "math"}


def candidate(task: Task, seen: dict[str, Any], origin: Origin) -> Candidate:
    """The candidate for `seen` (kvc.vault.observe.Seen as JSON). Unclear where a launch cannot be stated."""
    _no_strangers(task.spec, seen)
    make = {"hip": _hip, "triton": _triton}[seen["language"]]
    source, launches = make(task, seen)
    scratch = tuple(Scratch(str(n), _dtype(str(d)), int(count)) for n, d, count in seen["scratch"])
    return Candidate(task, seen["language"], "foreign", source, launches, scratch, (), origin)


def _dtype(name: str) -> str:
    from kvc.dtypes import DTYPES

    found = _DTYPES.get(name, "")
    if found not in DTYPES:
        raise Unclear(f"an intermediate tensor of {name}")
    return found


def _no_strangers(spec: KernelSpec, seen: dict[str, Any]) -> None:
    """Every input of the spec must be read and every output be written by a launch."""
    named = {a[1] for launch in seen["launches"] for a in launch["args"] if a[0] == "tensor"}
    missing = [o.name for o in (*spec.inputs, *spec.outputs) if o.name not in named]
    if missing:
        raise Unclear(f"no kernel is given {', '.join(missing)}: the module works on copies, or ignores it")


def _tensors(launch: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(a[1] for a in launch["args"] if a[0] == "tensor"))


# ---------------------------------------------------------------- HIP


def _hip(task: Task, seen: dict[str, Any]) -> tuple[str, tuple[Launch, ...]]:
    device = seen["device"].strip()
    if not device:
        raise Unclear("the source of the kernels was not seen")
    if re.search(r"\b(at|c10|torch)::", device):
        raise Unclear("the kernels use torch's C++ types, which need torch's headers")
    parts, launches = [_HIP_HEAD + device], []
    for number, launch in enumerate(seen["launches"]):
        tensors = _tensors(launch)
        name = f"kvc_launch{number}"
        types = {a[1]: _ctype(a[2]) for a in launch["args"] if a[0] == "tensor"}
        threads = launch["block"][0] * launch["block"][1] * launch["block"][2]
        parameters = ", ".join(f"{types[t]}* p{n}" for n, t in enumerate(tensors))
        values = ", ".join(_c_value(a, tensors) for a in launch["args"])
        parts.append(
            f'extern "C" __global__ void __launch_bounds__({threads})\n{name}({parameters}) {{\n'
            f"  {launch['kernel']}({values});\n}}"
        )
        extents = (tuple(launch["grid"]), tuple(launch["block"]))
        launches.append(Launch(name, *extents, tuple(tensors), launch["shared"]))
    return "\n\n".join(parts) + "\n", tuple(launches)


def _ctype(kind: str) -> str:
    text = _C_TYPES.get(kind, kind.replace("const", "").replace("*", "").strip())
    if not re.fullmatch(r"[\w ]+|__hip_bfloat16|__half", text) or text.startswith("torch"):
        raise Unclear(f"a pointer to {kind}")
    return text


def _c_value(argument: Sequence[Any], tensors: list[str]) -> str:
    if argument[0] == "tensor":
        return f"({_ctype(argument[2])}*)p{tensors.index(argument[1])}"
    value = argument[1]
    if value is None:
        return "nullptr"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value) if -(1 << 31) <= value < 1 << 31 else f"{value}LL"
    if value != value or value in (float("inf"), float("-inf")):
        raise Unclear("a kernel is given an infinite number")
    return f"{value!r}f"


# ---------------------------------------------------------------- Triton


def _triton(task: Task, seen: dict[str, Any]) -> tuple[str, tuple[Launch, ...]]:
    body = _functions(seen["sources"], [launch["kernel"] for launch in seen["launches"]])
    parts, launches = [_TRITON_HEAD + body], []
    for number, launch in enumerate(seen["launches"]):
        tensors = _tensors(launch)
        name = f"kvc_launch{number}"
        given = [_py_value(a, tensors, key) for a, key in zip(launch["args"], launch["names"], strict=True)]
        parameters = ", ".join(f"p{n}" for n in range(len(tensors)))
        parts.append(f"@triton.jit\ndef {name}({parameters}):\n    {launch['kernel']}({', '.join(given)})\n")
        warps = int(launch["options"].get("num_warps", 4))
        options = (("num_warps", warps), ("num_stages", int(launch["options"].get("num_stages", 2))))
        block = (warps * task.arch.wave_size, 1, 1)
        launches.append(Launch(name, tuple(launch["grid"]), block, tuple(tensors), 0, options))
    return "\n\n".join(parts), tuple(launches)


def _py_value(argument: Sequence[Any], tensors: list[str], name: str) -> str:
    value = f"p{tensors.index(argument[1])}" if argument[0] == "tensor" else repr(argument[1])
    if value in ("inf", "-inf", "nan"):
        value = f'float("{value}")'
    return f"{name}={value}"


def _functions(sources: Sequence[str], kernels: Sequence[str]) -> str:
    """The text of the kernels and of what they call and name, from modules that may hold much else."""
    functions: dict[str, ast.FunctionDef] = {}
    constants: dict[str, ast.Assign | ast.AnnAssign] = {}
    imported: dict[str, ast.stmt] = {}
    for text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
                functions.setdefault(node.name, node)
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                constants.setdefault(node.targets[0].id, node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                imported |= {(a.asname or a.name).split(".")[0]: node for a in node.names}
    wanted, order = list(kernels), list[str]()
    lines: dict[str, None] = {}
    while wanted:
        name = wanted.pop()
        if name in order:
            continue
        if name not in functions:
            raise Unclear(f"the source of {name} was not found")
        order.append(name)
        own = {a.arg for a in functions[name].args.args}
        for used in sorted({n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)} - own):
            if used in functions:
                wanted.append(used)
            elif used in constants:
                lines[ast.unparse(constants[used])] = None
            elif used in imported and used not in _ALLOWED_IMPORTS:
                raise Unclear(f"the kernel uses {used}, which is not part of Triton's language")
            elif used == "libdevice":
                lines["from triton.language.extra import libdevice"] = None
    texts = []
    for name in reversed(order):
        node = functions[name]
        node.decorator_list = [ast.parse("triton.jit", mode="eval").body]
        texts.append(ast.unparse(node))
    head = sorted(line for line in lines if line.startswith("from"))
    rest = [line for line in lines if not line.startswith("from")]
    return "\n".join([*head, *rest]) + "\n\n" + "\n\n".join(texts) + "\n"
