"""An exported FX graph -> kvc.graph.Graph."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kvc.check import RESERVED
from kvc.diagnostics import KvcError, Location
from kvc.dtypes import I64, from_torch
from kvc.frontends.fx.decompose import ASSERTIONS, overload_name
from kvc.frontends.fx.load import is_user_file, short_path
from kvc.graph import Arg, Attr, Graph, Input, Node, Ref, TensorType
from kvc.ops import by_aten
from kvc.optable.complex import COMPLEX
from kvc.optable.create import DROPPED
from kvc.optable.random import BUFFER, RANDOM

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OPEN_END = 2**63 - 1
_STORAGE = "as_strided.default"
_UPDATING_NORM = "_native_batch_norm_legit_functional.default"
# Regions that export wraps in a subgraph because of a mode that does not change values here.
_WRAPPERS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


class Namer:
    """Valid, unique names for values that are no reserved words of the kernel text."""

    def __init__(self) -> None:
        self.taken: set[str] = set(RESERVED)

    def __call__(self, stem: str) -> str:
        stem = re.sub(r"\W", "_", stem).strip("_") or "v"
        if stem[0].isdigit():
            stem = f"v{stem}"
        name, n = stem, 0
        while name in self.taken:
            name, n = f"{stem}_{n}", n + 1
        self.taken.add(name)
        return name


def location(node: FxNode, root: str) -> Location | None:
    """The innermost frame of user code in the node's stack trace."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for file, line in reversed(frames):
        if is_user_file(file):
            return Location(short_path(file, root), int(line))
    return None


def tensor_type(value: torch.Tensor, where: Location | None = None) -> TensorType:
    """The type of a (fake) tensor. KVC0202 where its shape depends on data."""
    for extent in (*value.shape, *value.stride()):
        if not isinstance(extent, int):
            raise KvcError("KVC0202", f"a tensor has the shape {tuple(value.shape)}", where,
                           hint="sizes must follow from the shapes of the inputs")  # fmt: skip
    if value.is_complex():
        # A pair of reals, as it lies in memory (kvc.optable.complex).
        strides = tuple(2 * s for s in value.stride())
        return TensorType(from_torch(value.dtype.to_real()), (*value.shape, 2), (*strides, 1))
    return TensorType(from_torch(value.dtype), tuple(value.shape), tuple(value.stride()))


def is_complex(node: FxNode) -> bool:
    """Whether an FX node gives a complex tensor."""
    import torch

    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def complex_arguments(node: FxNode) -> tuple[int, ...]:
    """Which of a call's tensors are complex, counted in the order of its arguments."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves((node.args, node.kwargs))
    tensors = [x for x in leaves if isinstance(x, torch.fx.Node) and isinstance(x.meta.get("val"), torch.Tensor)]
    return tuple(n for n, x in enumerate(tensors) if is_complex(x))


class Importer:
    """Builds nodes; `env` holds for each FX node its value: Ref, literal or tuple of those."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.name = Namer()
        self.env: dict[FxNode, Any] = {}
        self.inputs: list[Input] = []
        self.nodes: list[Node] = []
        self.random: Ref | None = None
        self.draws = 0  # calls that draw, so far

    # ------------------------------------------------------------ inputs
    def input(self, node: FxNode, kind: str, target: str) -> None:
        """A tensor input; user inputs keep the name of forward's argument."""
        if is_complex(node):
            raise KvcError("KVC0201", f"{target or node.name} is a complex tensor",
                           hint="pass or keep torch.view_as_real of it")  # fmt: skip
        name = self.name(target if target else node.name)
        self.inputs.append(Input(name, tensor_type(node.meta["val"]), kind, target))
        self.env[node] = Ref(name)

    def literal(self, node: FxNode, value: bool | int | float) -> None:
        """A number that the model's code wrote as a tensor, `torch.tensor(0.5)`: a node that fills in the literal."""
        type_ = tensor_type(node.meta["val"])
        name = self.name(node.name.removeprefix("c_"))
        where = next((location(user, self.root) for user in node.users), None)
        attrs = (("size", ()), ("fill_value", value), ("dtype", type_.dtype))
        self.nodes.append(Node((name,), "full", (), attrs, (type_,), where))
        self.env[node] = Ref(name)

    # ------------------------------------------------------------ nodes
    def run(self, module: GraphModule, inner: bool = False) -> Any:
        """Import a graph whose placeholders are bound; gives the values that it returns. `inner`: to another graph."""
        for node in module.graph.nodes:
            if node.op == "output":
                if not inner and any(is_complex(n) for n in node.all_input_nodes):
                    raise KvcError("KVC0201", "a complex tensor is returned",
                                   hint="return torch.view_as_real of it")  # fmt: skip
                return self.value(node.args[0])
            if node.op == "get_attr":
                self.env.setdefault(node, getattr(module, str(node.target), None))
            elif node.op == "call_function":
                self.env[node] = self.call(module, node)
        raise KvcError("KVC0201", "the exported graph has no output")

    def value(self, arg: Any) -> Any:
        """What an FX argument is in the graph."""
        import torch

        if isinstance(arg, torch.fx.Node):
            return self.env[arg]
        if isinstance(arg, list | tuple):
            return tuple(self.value(a) for a in arg)
        if isinstance(arg, torch.dtype):
            return from_torch(arg.to_real() if arg.is_complex else arg)
        if isinstance(arg, torch.memory_format | torch.layout | torch.device):
            return None
        return arg

    def call(self, module: GraphModule, node: FxNode) -> Any:
        where = location(node, self.root)
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]
        if getattr(node.target, "__name__", str(node.target)) in _WRAPPERS:
            return self.inline(module, node)
        name = overload_name(node.target)
        if name in ASSERTIONS:
            return None
        if not hasattr(node.target, "_schema"):
            raise KvcError("KVC0201", f"operator {node.target} cannot be translated", where,
                           hint="control flow operators and Python callbacks have no meaning as kernels")  # fmt: skip
        return self.operator(node, name, where)

    def inline(self, module: GraphModule, node: FxNode) -> Any:
        """A wrapped subgraph, in place."""
        import torch

        position = next(i for i, a in enumerate(node.args) if isinstance(self.value(a), torch.fx.GraphModule))
        body = self.value(node.args[position])
        placeholders = [n for n in body.graph.nodes if n.op == "placeholder"]
        for placeholder, arg in zip(placeholders, node.args[position + 1 :], strict=True):
            self.env[placeholder] = self.value(arg)
        return self.run(body, inner=True)

    def operator(self, node: FxNode, name: str, where: Location | None) -> Any:
        import torch

        definition = by_aten().get(name)
        args, attrs = self.arguments(node)
        random = self.drawn(name, node)
        result = node.meta.get("val")
        several = isinstance(result, list | tuple)
        values: list[Any] = list(result) if isinstance(result, list | tuple) else [result]
        if not values or not all(isinstance(v, torch.Tensor) for v in values):
            raise KvcError("KVC0202", f"{node.target} gives a Python value that depends on data", where,
                           hint="replace .item(), .tolist() or a branch on a tensor by tensor operations")  # fmt: skip
        types = tuple(tensor_type(v, where) for v in values)
        if name == _UPDATING_NORM:
            # Traced, the new running statistics have the dtype of the computation; run, that of the buffers.
            known = {i.name: i.type for i in self.inputs}
            types = (*types[:3], *(known.get(a.name, t) for a, t in zip(args[3:5], types[3:], strict=True)))  # type: ignore[union-attr]
        outputs = tuple(self.name(f"{node.name}_{i}" if several else node.name) for i in range(len(values)))
        op = definition.name if definition is not None else str(node.target)
        pairs = complex_arguments(node)
        if pairs or is_complex(node):
            if any(isinstance(v, complex) for v in (*args, *dict(attrs).values())):
                raise KvcError("KVC0201", f"{node.target} has a complex number as argument", where,
                               hint="write it as torch.complex(real, imaginary)")  # fmt: skip
            op, attrs = COMPLEX.get(name, f"complex {node.target}"), (*attrs, ("pairs", pairs))
        if random is not None:
            op, args = random, (self.random_state(), self.draws, *args)
            self.draws += 1
        if name == _STORAGE and not self.is_row_major(args[0]):
            # Its meaning counts elements in row-major order, which is not how this storage lies.
            op = str(node.target)
        self.nodes.append(Node(outputs, op, args, attrs, types, where))
        refs = tuple(Ref(o) for o in outputs)
        return refs if several else refs[0]

    def is_row_major(self, arg: Arg) -> bool:
        """Whether a value is contiguous (an input, or what a node gives)."""
        types = {i.name: i.type for i in self.inputs}
        types |= {o: t for n in self.nodes for o, t in zip(n.outputs, n.types, strict=True)}
        return isinstance(arg, Ref) and types[arg.name].is_contiguous

    # ------------------------------------------------------------ random numbers
    def drawn(self, name: str, node: FxNode) -> str | None:
        """The op of a call that draws random numbers."""
        if name not in RANDOM:
            return None
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        given = {a.name: _default(a) for a in schema}
        given |= {a.name: self.value(v) for a, v in zip(schema, node.args, strict=False)}
        given |= {key: self.value(v) for key, v in node.kwargs.items()}
        return RANDOM[name].op if RANDOM[name].draws(given) else None

    def random_state(self) -> Ref:
        """The buffer that holds the seed and counts forward passes; declared where it is first used."""
        if self.random is None:
            self.random = Ref(self.name(BUFFER))
            type_ = TensorType.of(I64, (2,))
            self.inputs.append(Input(self.random.name, type_, "buffer", BUFFER))
        return self.random

    def advance(self) -> tuple[str, str] | None:
        """The update of the random state after a pass that drew: (buffer, value)."""
        if self.random is None:
            return None
        name = self.name(f"{BUFFER}_next")
        self.nodes.append(Node((name,), "random_advance", (self.random,), (), (TensorType.of(I64, (2,)),)))
        return self.random.name, name

    def arguments(self, node: FxNode) -> tuple[tuple[Arg, ...], tuple[tuple[str, Attr], ...]]:
        """Positional arguments up to the last tensor; the literals after it by name, defaults left out."""
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        given: dict[str, Any] = {a.name: self.value(v) for a, v in zip(schema, node.args, strict=False)}
        given |= {k: self.value(v) for k, v in node.kwargs.items()}
        # Python's open end of a slice arrives as the largest integer.
        given = {n: None if isinstance(v, int) and v == _OPEN_END else v for n, v in given.items()}
        full = [(a, given.get(a.name, _default(a))) for a in schema]
        last = max((i for i, (_, v) in enumerate(full) if _has_ref(v)), default=-1)
        attrs = [
            (a.name, v)
            for a, v in full[last + 1 :]
            if a.name not in DROPPED and not (a.has_default_value() and v == _default(a))
        ]
        return tuple(v for _, v in full[: last + 1]), tuple(attrs)


def _default(argument: Any) -> Any:
    value = argument.default_value if argument.has_default_value() else None
    return tuple(value) if isinstance(value, list) else value


def _has_ref(value: Any) -> bool:
    return isinstance(value, Ref) or (isinstance(value, tuple) and any(_has_ref(v) for v in value))


def pruned(graph: Graph, keep: Iterable[str] = ()) -> Graph:
    """The graph without parameters and constants that nothing reads; user inputs stay."""
    read = {r for n in graph.nodes for r in n.refs} | graph.live_out | {b for b, _ in graph.mutations} | set(keep)
    inputs = tuple(i for i in graph.inputs if i.kind == "user" or i.name in read)
    return Graph(graph.name, inputs, graph.nodes, graph.outputs, graph.mutations)
