"""ONNX's own node tests ("backend tests"), run through kvc: how many of those that concern it pass, and at which level.

    table        the torch module that a model becomes
    interpreter  its captured graph, as index notation, by kvc.interpret in working precision
    simulator    translated, compiled and verified on an executor, like any model

A case is in scope when every operator in it has a row, is control flow, or is defined by ONNX as a function, and all
its tensors have a type that kvc computes with. Cases pass sizes and axes as inputs of the model, where models have
constants: such inputs are bound to the values of the case, and only those that an operator asks for.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from kvc.diagnostics import KvcError, Location
from kvc.frontends.onnx.load import modern
from kvc.frontends.onnx.model import OnnxModel, build
from kvc.frontends.onnx.table import CONTROL, TABLE
from kvc.frontends.onnx.values import DTYPES, ENUM_OF, Static, from_proto

if TYPE_CHECKING:
    import onnx

LEVELS = ("table", "interpreter", "simulator")
STATES = ("passed", "failed", "refused", "out of scope")
#: Operators that draw random numbers or act on other things than numbers, whatever defines them.
_OUTSIDE = frozenset({"Bernoulli", "ImageDecoder"})
WANTED = 0.9  # the share of the cases in scope that must pass
_BY_NAME = {str(d).removeprefix("torch."): d for d in DTYPES.values()}


@dataclass(frozen=True)
class Result:
    """What became of a case. `refused`: a typed diagnostic, nothing wrong was computed. `bound`: inputs that were made
    constants."""

    name: str
    state: str
    reason: str = ""
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A model with one set of inputs and the outputs that ONNX's reference gives."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Static]
    outputs: tuple[Any, ...]
    rtol: float
    atol: float


# ---------------------------------------------------------------- which cases


def cases(pattern: str = "") -> Iterator[tuple[str, Case | str]]:
    """Every node test whose name contains `pattern`: (name, the case, or why it is out of scope)."""
    for case in _collected():
        if pattern in case.name:
            yield case.name, _case(case)


@cache
def _collected() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators divide by zero on purpose
        return list(collect_testcases(None))


def _case(case: Any) -> Case | str:
    model: onnx.ModelProto = case.model
    reason = outside(model)
    if reason:
        return reason
    inputs, outputs = case.data_sets[0]
    names = [i.name for i in model.graph.input]
    try:
        fed = {name: value(x) for name, x in zip(names, inputs, strict=True)}
        wanted = tuple(value(y) for y in outputs)
    except (KvcError, TypeError) as error:
        return str(error).splitlines()[0]
    return Case(case.name, model, fed, wanted, case.rtol, case.atol)


def value(x: Any) -> Static:
    """A tensor of a case. TypeError for what is none of a supported type."""
    import onnx

    if isinstance(x, onnx.TensorProto):
        return from_proto(x)
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError("sequences and optional values as inputs or outputs")
    array = np.asarray(x)
    dtype = _BY_NAME.get(array.dtype.name)
    if dtype is None:
        raise TypeError(f"tensors of {array.dtype.name}")
    return Static(array if array.dtype.kind in "fiub" else array.astype(np.float32), dtype)


def outside(model: onnx.ModelProto) -> str:
    """Why a model is out of scope, "" when it is not."""
    import onnx

    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    for value_ in (*model.graph.input, *model.graph.output):
        kind = value_.type.WhichOneof("value")
        if kind != "tensor_type":
            return f"{kind.removesuffix('_type')} as input or output"
        if value_.type.tensor_type.elem_type not in DTYPES:
            return f"tensors of {onnx.TensorProto.DataType.Name(value_.type.tensor_type.elem_type).lower()}"
    local = {(f.domain, f.name) for f in model.functions}
    for node in _nodes(model.graph.node):
        known = node.op_type in TABLE or node.op_type in CONTROL or (node.domain, node.op_type) in local
        if node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in local:
            return f"domain {node.domain}"
        if node.op_type in _OUTSIDE or (not known and not _defined(node.op_type, opset)):
            return f"operator {node.op_type}"
        drops = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
        if drops or any(a.name == "training_mode" and a.i for a in node.attribute):
            return "training"
    return ""


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g.node)


def _defined(op: str, opset: int) -> bool:
    """Whether ONNX defines an operator as a function of others."""
    import onnx

    try:
        schema: Any = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


# ---------------------------------------------------------------- one case


def run_case(case: Case, level: str, simulate: Callable[[Path], None] | None = None) -> Result:
    """Run a case at a level; `simulate` translates and verifies a model file (level "simulator")."""
    bound: list[str] = []
    while True:
        model = _bind(case, bound)
        inputs = {n: x.tensor() for n, x in case.inputs.items() if n not in bound}
        try:
            if simulate is not None:
                with tempfile.TemporaryDirectory(prefix="kvc-onnx-") as folder:
                    simulate(save(Path(folder), model, inputs))
                return Result(case.name, "passed", "", tuple(bound))
            module = build(modern(model, Location(case.name)), f"{case.name}.onnx", inputs)
            got = _interpreted(module, inputs) if level == "interpreter" else _eager(module, inputs)
        except KvcError as error:
            more = _to_bind(case, error, bound)
            if not more:
                code = error.code
                state = "failed" if code.startswith(("KVC06", "KVC07", "KVC03")) else "refused"
                return Result(case.name, state, str(error.diagnostic).splitlines()[0], tuple(bound))
            bound += more
            continue
        except (RuntimeError, TypeError, ValueError, LookupError, AssertionError, ArithmeticError) as error:
            return Result(case.name, "failed", f"{type(error).__name__}: {str(error).splitlines()[:1]}", tuple(bound))
        wrong = _differences(case, got)
        return Result(case.name, "failed" if wrong else "passed", wrong, tuple(bound))


def _to_bind(case: Case, error: KvcError, bound: list[str]) -> list[str]:
    """The inputs to make constants after a diagnostic that wants one known."""
    needed = error.diagnostic.details.get("needed")
    if needed is None:
        return []
    if needed in case.inputs and needed not in bound:
        return [needed]
    left = {n: x for n, x in case.inputs.items() if n not in bound}
    integers = [n for n, x in left.items() if not x.dtype.is_floating_point and len(x.shape) <= 1]
    return integers or [n for n, x in left.items() if not x.shape]


def _bind(case: Case, names: list[str]) -> onnx.ModelProto:
    """The model with inputs made initializers."""
    import onnx

    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for name in names:
        x = case.inputs[name]
        model.graph.initializer.append(_proto(x.tensor(), name))
        del model.graph.input[[i.name for i in model.graph.input].index(name)]
    return model


def save(folder: Path, model: onnx.ModelProto, inputs: dict[str, torch.Tensor]) -> Path:
    """A case as files, in ONNX's own layout."""
    data = folder / "test_data_set_0"
    data.mkdir()
    for n, x in enumerate(inputs.values()):
        (data / f"input_{n}.pb").write_bytes(_proto(x, "").SerializeToString())
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _proto(x: torch.Tensor, name: str) -> onnx.TensorProto:
    import onnx

    raw = torch.empty(x.numel(), dtype=x.dtype).copy_(x.reshape(-1)).view(torch.uint8).numpy().tobytes()
    return onnx.TensorProto(name=name, data_type=ENUM_OF[x.dtype], dims=x.shape, raw_data=raw)


def _eager(module: OnnxModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        results = module(*inputs.values())
    return list(results) if isinstance(results, tuple) else [results]


def _interpreted(module: OnnxModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    from kvc.frontends.fx.capture import capture
    from kvc.pipeline_graph import plan
    from kvc.whole import reference_of_graph

    captured = capture(module, tuple(inputs.values()), {}, name="case")
    reference = reference_of_graph(
        plan(captured.graph), captured.feed(), {}, captured.args, captured.kwargs, 0, "case"
    )  # fmt: skip
    found = reference.working
    return [found[f"out{n}"] for n in range(len(captured.graph.outputs))]


def _differences(case: Case, got: list[torch.Tensor]) -> str:
    """What is wrong with the results, "" when nothing is. Tolerances are the case's own, or one step of the type
    where that is coarser."""
    if len(got) != len(case.outputs):
        return f"{len(got)} outputs, {len(case.outputs)} are expected"
    for n, (mine, wanted) in enumerate(zip(got, case.outputs, strict=True)):
        if tuple(mine.shape) != wanted.shape:
            return f"output {n}: shape {tuple(mine.shape)}, {wanted.shape} is expected"
        if mine.dtype != wanted.dtype:
            return f"output {n}: {mine.dtype}, {wanted.dtype} is expected"
        rtol, atol = case.rtol, case.atol
        if mine.dtype.is_floating_point:
            rtol = max(rtol, 2 * torch.finfo(mine.dtype).eps)
            atol = max(atol, 1e-6)
        a, b = Static.of(mine).array.astype(np.float64), wanted.array.astype(np.float64)
        close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in np.argwhere(~close)[0]) if close.ndim else ()
            return f"output {n}{list(at)}: {a[at]}, {b[at]} is expected"
    return ""


# ---------------------------------------------------------------- all cases


def run(
    pattern: str, level: str, simulate: Callable[[Path], None] | None = None, limit: int = 0,
    listen: Callable[[Result], None] = lambda result: None,
) -> list[Result]:  # fmt: skip
    """Every case that matches; with `limit` every n-th of those in scope, so that about that many run. KVC0106 for an
    unknown level."""
    if level not in LEVELS:
        raise KvcError("KVC0106", f"level {level!r}", hint=f"one of: {', '.join(LEVELS)}")
    found = list(cases(pattern))
    scope = [name for name, case in found if isinstance(case, Case)]
    step = max(-(-len(scope) // limit), 1) if limit else 1
    chosen = set(scope[::step])
    results = []
    for name, case in found:
        if isinstance(case, str):
            results.append(Result(name, "out of scope", case))
        elif name in chosen:
            results.append(run_case(case, level, simulate))
        else:
            continue
        listen(results[-1])
    return results


def summary(results: list[Result], level: str) -> dict[str, Any]:
    """Counts, the share that passes, and what did not, by reason."""
    counts = Counter(r.state for r in results)
    scope = len(results) - counts["out of scope"]
    return {
        "level": level,
        "cases": len(results),
        "in_scope": scope,
        **{state.replace(" ", "_"): counts[state] for state in STATES},
        "share": counts["passed"] / scope if scope else 0.0,
        "bound": sum(bool(r.bound) for r in results),
        "not_passed": {r.name: f"{r.state}: {r.reason}" for r in results if r.state in ("failed", "refused")},
        "outside": dict(Counter(r.reason for r in results if r.state == "out of scope").most_common()),
    }


def text_of(found: dict[str, Any]) -> str:
    """A summary as text."""
    lines = [
        f"{found['passed']} of {found['in_scope']} cases in scope pass ({found['share']:.1%}), level {found['level']}; "
        f"{found['failed']} fail, {found['refused']} are refused with a diagnostic; {found['bound']} with sizes bound",
        *(f"  {name}: {why}" for name, why in found["not_passed"].items()),
        f"{found['out_of_scope']} are out of scope:",
        *(f"  {count:4}  {why}" for why, count in found["outside"].items()),
    ]
    return "\n".join(lines)


def simulator(target: str, arch: str, executor: str) -> Callable[[Path], None]:
    """What translates a model file to a folder beside it and verifies it there."""
    from kvc.commands import TranslateRequest, run_translate
    from kvc.console import Console

    def run(path: Path) -> None:
        request = TranslateRequest(
            model=str(path), out=path.parent / "out", target=target, arch=arch, dtype=None, mode="eval",
            executor=executor, numerics="strict", strict=False, emitters=(), seed=0, jobs=1, use_cache=True,
        )  # fmt: skip
        run_translate(request, Console(quiet=True, verbose=False))

    return run
