"""torch.export -> Graph: non-strict first, strict as the second try, functional, composite operators kept whole."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvc.check import check_graph
from kvc.diagnostics import KvcError, Location
from kvc.dtypes import DTYPES
from kvc.frontends.fx.decompose import decompose_unknown
from kvc.frontends.fx.importer import Importer, pruned
from kvc.frontends.fx.load import Loaded, importable, location_of
from kvc.frontends.fx.recurrent import shapes_only
from kvc.graph import Attr, Graph, Ref

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

MODES = ("eval", "train")
_DATA_DEPENDENT = re.compile(r"data.?dependent|GuardOnDataDependent|Could not guard|unbacked", re.IGNORECASE)
_ASSIGNED = re.compile(r"(was|were) assigned during export")
_ATTRIBUTE = re.compile(r"self\.([\w.]*\w)")
# What torch.export and a model's forward raise where they cannot go on.
_FAILURES = (
    RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError, ArithmeticError, ImportError,
)  # fmt: skip

Leaf = Ref | Attr


@dataclass(frozen=True)
class Captured:
    """A captured model.

    `state`: the tensor of each graph input that is no user input, by its name. `inputs`: the leaves of (args, kwargs)
    in pytree order, a Ref to a graph input for a tensor, else the literal that the capture is specialised to (a call
    must give an equal one). `output`: what forward returns, with Refs to graph values in the place of tensors;
    `in_spec` and `out_spec` are the pytree structures of both. `tied`: state_dict names of tensors that other names of
    the state_dict share, with the name that the graph uses.
    """

    graph: Graph
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: dict[str, torch.Tensor]
    inputs: tuple[Leaf, ...]
    output: Any
    in_spec: Any
    out_spec: Any
    tied: dict[str, str]
    mode: str
    strict: bool
    root: str = ""

    def feed(self) -> dict[str, torch.Tensor]:
        """The tensor of every graph input for the example arguments."""
        import torch.utils._pytree as pytree

        leaves = pytree.tree_leaves((self.args, self.kwargs), is_leaf=lambda x: x is None)
        user = {ref.name: leaf for ref, leaf in zip(self.inputs, leaves, strict=True) if isinstance(ref, Ref)}
        return {**self.state, **user}


def capture_loaded(loaded: Loaded, mode: str = "eval", dtype: str | None = None) -> Captured:
    """Capture what kvc.frontends.fx.load found."""
    return capture(
        loaded.module, loaded.args, loaded.kwargs, mode=mode, dtype=dtype, name=loaded.name, root=loaded.root
    )


def capture(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    mode: str = "eval",
    dtype: str | None = None,
    name: str = "",
    root: str = "",
) -> Captured:
    """Capture `module(*args, **kwargs)` with static shapes.

    The module is put into `mode` and, where `dtype` names a float type ("bf16"), converted together with the float
    inputs. `root` is the folder that source locations are relative to. KVC0104 where the inputs do not fit, KVC0202
    for control flow that depends on data, KVC0201 for anything else that cannot be captured.
    """
    import torch

    if mode not in MODES:
        raise KvcError("KVC0106", f"mode {mode!r}", hint=f"one of: {', '.join(MODES)}")
    module.train(mode == "train")
    kwargs = dict(kwargs or {})
    if dtype is not None:
        if dtype not in DTYPES or not DTYPES[dtype].is_float:
            raise KvcError("KVC0106", f"dtype {dtype!r}", hint="one of: f32, f16, bf16, f64")
        to = getattr(torch, DTYPES[dtype].torch_name)
        module.to(to)
        args, kwargs = _cast((args, kwargs), to)
    with importable(root), torch.no_grad(), _quiet(), shapes_only():
        program, strict = _export(module, tuple(args), kwargs, root)
        program = decompose_unknown(program.run_decompositions({}))
    return _import(program, module, tuple(args), kwargs, mode, strict, name or type(module).__name__, root)


def _cast(tree: Any, to: torch.dtype) -> Any:
    """Every float tensor of a structure in another dtype."""
    import torch
    import torch.utils._pytree as pytree

    def convert(leaf: Any) -> Any:
        return leaf.to(to) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(convert, tree)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Export logs the failure of the first try, which the second may mend, and prints the graph that it had by then."""
    import io
    import warnings

    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# ---------------------------------------------------------------- export


def _export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: str
) -> tuple[ExportedProgram, bool]:
    """(program, whether it took strict mode)."""
    import warnings

    import torch

    first: Exception | None = None
    for strict in (False, True):
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                program = torch.export.export(module, args, kwargs, strict=strict)
        except _FAILURES as e:
            if _register_assigned(module, [str(e)]):
                return _export(module, args, kwargs, root)
            first = first or e
            continue
        if _register_assigned(module, [str(w.message) for w in caught]):
            return _export(module, args, kwargs, root)
        return program, strict
    assert first is not None
    raise _failure(first, module, args, kwargs, root) from first


def _register_assigned(module: torch.nn.Module, messages: list[str]) -> bool:
    """Make tensors that forward assigns to plain attributes buffers outside the state_dict, so that the capture sees
    them change. Export only says which they are, in a message. Gives whether there were any."""
    import torch

    found = False
    for path in (p for m in messages if _ASSIGNED.search(m) for p in _ATTRIBUTE.findall(m)):
        owner, _, name = path.rpartition(".")
        part = module.get_submodule(owner)
        value = vars(part).get(name)
        if isinstance(value, torch.Tensor):
            delattr(part, name)
            part.register_buffer(name, value, persistent=False)
            found = True
    return found


def _failure(
    error: Exception, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], root: str
) -> KvcError:
    """The diagnostic for a failed export."""
    text = _first_line(error)
    where = _where(error, root)
    if _DATA_DEPENDENT.search(f"{type(error).__name__} {error}"):
        return KvcError(
            "KVC0202", text, where, hint="use torch.where or masks in the place of a branch on tensor values"
        )
    import copy

    try:
        copy.deepcopy(module)(*args, **kwargs)
    except _FAILURES as eager:
        return KvcError(
            "KVC0104", f"the model itself fails on its inputs: {type(eager).__name__}: {_first_line(eager)}",
            location_of(eager, root), hint="get_inputs() must give arguments that forward accepts",
        )  # fmt: skip
    return KvcError("KVC0201", f"{type(error).__name__}: {text}", where,
                    hint="see what torch.export says with TORCH_LOGS=export")  # fmt: skip


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _where(error: BaseException | None, root: str) -> Location | None:
    """User code in the traceback of an error or of what caused it."""
    while error is not None:
        found = location_of(error, root)
        if found is not None:
            return found
        error = error.__cause__ or error.__context__
    return None


# ---------------------------------------------------------------- import


def _import(
    program: ExportedProgram, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], mode: str,
    strict: bool, name: str, root: str,
) -> Captured:  # fmt: skip
    from torch.utils._pytree import tree_unflatten

    importer = Importer(root)
    state, tied = _inputs(importer, program, module)
    returned = importer.run(program.graph_module)
    values = returned if isinstance(returned, tuple) else (returned,)
    outputs: list[Leaf] = []
    mutations: list[tuple[str, str]] = []
    by_target = {i.target: i.name for i in importer.inputs if i.kind == "buffer"}
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        kind = spec.kind.name
        if kind == "USER_OUTPUT":
            outputs.append(value)
        elif kind == "BUFFER_MUTATION":
            buffer = by_target[str(spec.target)]
            if value != Ref(buffer):
                mutations.append((buffer, value.name))
        else:
            raise KvcError("KVC0201", f"the model changes its input {spec.target} in place",
                           hint="clone the input before changing it")  # fmt: skip
    random = importer.advance()
    if random is not None:
        mutations.append(random)
        state[random[0]] = random_buffer(module)
    tensors = tuple(v.name for v in outputs if isinstance(v, Ref))
    graph = pruned(Graph(importer.name(name), tuple(importer.inputs), tuple(importer.nodes), tensors, tuple(mutations)))
    check_graph(graph)
    kept = {i.name for i in graph.inputs}
    leaves = tuple(importer.env[n] for n in _user_placeholders(program))
    spec = program.call_spec
    return Captured(
        graph, module, args, kwargs, {n: x for n, x in state.items() if n in kept}, leaves,
        tree_unflatten(outputs, spec.out_spec), spec.in_spec, spec.out_spec, tied, mode, strict, root,
    )  # fmt: skip


def random_buffer(module: torch.nn.Module) -> torch.Tensor:
    """The module's [seed, forward passes], as a buffer outside the state_dict (kvc.optable.random)."""
    import torch
    from kvc.optable.random import BUFFER

    if BUFFER not in dict(module.named_buffers()):
        module.register_buffer(BUFFER, torch.zeros(2, dtype=torch.int64), persistent=False)
    return module.get_buffer(BUFFER)


def _user_placeholders(program: ExportedProgram) -> list[Any]:
    specs = program.graph_signature.input_specs
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    return [n for n, s in zip(placeholders, specs, strict=True) if s.kind.name == "USER_INPUT"]


def _inputs(
    importer: Importer, program: ExportedProgram, module: torch.nn.Module
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Declare the graph's inputs; gives the tensors of those that are state, and the names that share a tensor."""
    import torch

    state: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[Any, ...], tuple[Ref, str]] = {}
    kinds = {"PARAMETER": "param", "BUFFER": "buffer", "CONSTANT_TENSOR": "const", "USER_INPUT": "user"}
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        kind = kinds.get(spec.kind.name)
        if kind is None:
            raise KvcError("KVC0201", f"an input of kind {spec.kind.name} cannot be translated")
        if kind == "user":
            if isinstance(node.meta["val"], torch.Tensor):
                importer.input(node, kind, "")
            else:
                importer.env[node] = importer.value(node.meta["val"])
            continue
        tensor = _state_tensor(program, module, kind, str(spec.target))
        key = (kind, tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        if kind == "param" and key in first:
            importer.env[node], tied[str(spec.target)] = first[key]
            continue
        if kind == "const" and tensor.dim() == 0 and node.users:
            importer.literal(node, tensor.item())
            continue
        importer.input(node, kind, str(spec.target))
        first[key] = (importer.env[node], str(spec.target))
        state[importer.env[node].name] = tensor
    return state, tied


def _state_tensor(program: ExportedProgram, module: torch.nn.Module, kind: str, target: str) -> torch.Tensor:
    """The model's own tensor, so that it follows load_state_dict; constants are copied, as nothing owns them."""
    if kind == "param":
        return module.get_parameter(target).detach()
    if kind == "buffer":
        return module.get_buffer(target).detach()
    constant: torch.Tensor = program.constants[target]
    return constant.detach().clone()
