"""Batch norm in eval mode as one multiplication and one addition per channel, or as none.

What a norm does in eval mode follows from its parameters alone: y = x * scale + shift with
scale = weight / sqrt(var + eps) and shift = bias - mean * scale. Behind a convolution or a linear layer that nothing
else reads, scale and shift move into its weight and bias. Nothing is worked out here: the nodes that derive the new
tensors read parameters only, so they are kernels of the plan's prologue (kvc.plan) and follow the weights.

A weight takes the scale only where it has the dtype of the arithmetic: a scaled 16-bit weight would be rounded a second
time. There the norm stays an epilogue, by scale and shift in f32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvc.builder import Builder
from kvc.dtypes import DType
from kvc.graph import Arg, Attr, Graph, Node, Ref, TensorType
from kvc.lower import meaning_of
from kvc.passes.canonicalize import without_dead
from kvc.plan import fixed_inputs

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


def fold_norms(graph: Graph) -> Graph:
    """An equal graph (up to rounding) in which norms whose parameters and statistics are fixed are scale and shift."""
    return _Folding(graph).run()


@dataclass(frozen=True)
class _Norm:
    """A batch norm by running statistics."""

    x: str
    weight: str | None
    bias: str | None
    mean: str
    var: str
    eps: float


class _Folding:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = dict(graph.types)
        self.fixed = set(fixed_inputs(graph))
        self.nodes: list[Node] = []
        self.taken = set(graph.types)
        self.node: Node = graph.nodes[0] if graph.nodes else Node((), "", (), (), ())  # the norm that is rewritten

    def run(self) -> Graph:
        for node in self.graph.nodes:
            norm = self.norm(node)
            if norm is None:
                if node.refs and self.fixed.issuperset(node.refs) and not self.graph.live_out & set(node.outputs):
                    self.fixed.update(node.outputs)
                self.nodes.append(node)
                continue
            self.node = node
            self.fold(node, norm)
        return without_dead(replace(self.graph, nodes=tuple(self.nodes)))

    # ------------------------------------------------------------ what to fold
    def norm(self, node: Node) -> _Norm | None:
        """The norm that a node is, where all but its input is fixed and only its result is read."""
        arguments = _bound(node, ("input", "weight", "bias", "running_mean", "running_var"))
        if node.op == "batch_norm":
            arguments |= _bound(node, ("", "", "", "", "", "training", "momentum", "eps"))
            if arguments.get("training", True):
                return None
        elif node.op == "batch_norm_inference":
            arguments |= _bound(node, ("", "", "", "", "", "momentum", "eps"))
        else:
            return None
        read = self.graph.live_out | {r for n in self.graph.nodes for r in n.refs} if len(node.outputs) > 1 else set()
        x, weight, bias, mean, var = (_name(arguments.get(n)) for n in _PARAMETERS)
        eps = arguments.get("eps", 1e-5)
        if x is None or mean is None or var is None or not isinstance(eps, int | float):
            return None
        own = [n for n in (weight, bias, mean, var) if n is not None]
        if not self.fixed.issuperset(own) or any(o in read for o in node.outputs[1:]):
            return None
        return _Norm(x, weight, bias, mean, var, float(eps)) if self.types[x].dtype.is_float else None

    def producer(self, norm: _Norm) -> tuple[int, int] | None:
        """(position of the layer whose weight can take the scale, output dim of that weight)."""
        if norm.x in self.graph.live_out or len(self.graph.users[norm.x]) != 1 or norm.x not in self.graph.producer:
            return None
        position = next((i for i, n in enumerate(self.nodes) if n.outputs == (norm.x,)), None)
        if position is None:
            return None
        node = self.nodes[position]
        dim = _output_dim(node, self.types)
        weight, bias = (_layer(node).get(n) for n in ("weight", "bias"))
        if dim is None or not isinstance(weight, Ref) or not self.fixed.issuperset(node.refs[1:]):
            return None
        kind = self.types[weight.name].dtype
        same = kind is kind.compute and self.types[norm.x].dtype is kind and (bias is None or isinstance(bias, Ref))
        return (position, dim) if same else None

    # ------------------------------------------------------------ how
    def fold(self, node: Node, norm: _Norm) -> None:
        found = self.producer(norm)
        kind = self.types[norm.x].dtype.compute
        if found is None:
            scale, shift = self.scale_and_shift(norm, kind, None)
            rank = len(self.types[norm.x].shape)
            x = self.cast(norm.x, kind)
            y = self.add("add", self.add("mul", x, self.spread(scale, 1, rank)), self.spread(shift, 1, rank))
            self.finish(node, y)
            return
        position, dim = found
        layer = self.nodes.pop(position)
        arguments = _layer(layer)
        weight, bias = arguments["weight"], arguments.get("bias")
        assert isinstance(weight, Ref)
        scale, shift = self.scale_and_shift(norm, kind, bias.name if isinstance(bias, Ref) else None)
        scaled = self.add("mul", weight.name, self.spread(scale, dim, len(self.types[weight.name].shape)))
        self.fixed.update((scaled, shift))
        args = (layer.args[0], Ref(scaled), Ref(shift), *layer.args[3:])
        attrs = tuple((n, v) for n, v in layer.attrs if n not in ("weight", "bias"))
        self.nodes.append(replace(layer, outputs=node.outputs[:1], args=args, attrs=attrs, types=node.types[:1]))

    def scale_and_shift(self, norm: _Norm, kind: DType, layer_bias: str | None) -> tuple[str, str]:
        """Per channel, in the dtype of the arithmetic; `layer_bias` is added to x before the norm."""
        var, mean = self.cast(norm.var, kind), self.cast(norm.mean, kind)
        scale = self.add("rsqrt", self.add("add", var, norm.eps))
        if norm.weight is not None:
            scale = self.add("mul", scale, self.cast(norm.weight, kind))
        offset = mean if layer_bias is None else self.add("sub", mean, layer_bias)
        product = self.add("mul", offset, scale)
        if norm.bias is None:
            return scale, self.add("neg", product)
        return scale, self.add("sub", self.cast(norm.bias, kind), product)

    def cast(self, value: str, kind: DType) -> str:
        return value if self.types[value].dtype is kind else self.add("to", value, dtype=kind)

    def spread(self, value: str, dim: int, rank: int) -> str:
        """A vector over channels, to broadcast along `dim` of `rank` dims."""
        shape = tuple(self.types[value].shape[0] if d == dim else 1 for d in range(rank))
        return value if rank == 1 else self.add("view", value, shape)

    def add(self, op: str, *args: str | Attr, **attrs: Attr) -> str:
        """Append a node; string arguments are values."""
        made = tuple(Ref(a) if isinstance(a, str) else a for a in args)
        return self.append(op, made, tuple(attrs.items()), self.fresh(op))

    def fresh(self, op: str) -> str:
        stem = f"{self.node.name}_{op}"
        name, n = stem, 1
        while name in self.taken:
            n += 1
            name = f"{stem}_{n}"
        self.taken.add(name)
        return name

    def append(self, op: str, args: tuple[Arg, ...], attrs: tuple[tuple[str, Attr], ...], name: str) -> str:
        node = Node((name,), op, args, attrs, (), self.node.loc)
        k = Builder(frozenset(node.refs))
        values = {r: k.operand(r, self.types[r].dtype, self.types[r].shape) for r in dict.fromkeys(node.refs)}
        (result,) = meaning_of(k, node, values)
        self.types[name] = TensorType.of(result.dtype, result.shape)
        self.nodes.append(replace(node, types=(self.types[name],)))
        return name

    def finish(self, node: Node, y: str) -> None:
        """Give the last value the norm's name and type."""
        last = self.nodes[-1]
        assert last.outputs == (y,)
        if last.type.dtype is not node.type.dtype:
            y = self.cast(y, node.type.dtype)
            last = self.nodes[-1]
        self.nodes[-1] = replace(last, outputs=node.outputs[:1], types=node.types[:1])


_PARAMETERS = ("input", "weight", "bias", "running_mean", "running_var")


def _bound(node: Node, names: tuple[str, ...]) -> dict[str, Arg]:
    """Arguments by name; "" skips a position."""
    found: dict[str, Arg] = {n: a for n, a in zip(names, node.args, strict=False) if n}
    return found | dict(node.attrs)


def _layer(node: Node) -> dict[str, Arg]:
    return _bound(node, ("input", "weight", "bias"))


def _name(arg: Arg) -> str | None:
    return arg.name if isinstance(arg, Ref) else None


def _output_dim(node: Node, types: dict[str, TensorType]) -> int | None:
    """The dim of a layer's weight along which its output channels lie, where those are dim 1 of its output."""
    rank = len(node.type.shape)
    weight = _layer(node).get("weight")
    if not isinstance(weight, Ref) or len(node.args) < 2 or len(node.refs) < 2 or node.refs[0] != _name(node.args[0]):
        return None
    spatial = len(types[weight.name].shape) - 2
    if node.op == "linear":
        return 0 if rank == 2 else None
    if rank != spatial + 2:  # without a batch, channels are dim 0
        return None
    if node.op in _CONVOLUTIONS:
        return 0
    if node.op in _TRANSPOSED:
        groups = _bound(node, ("", "", "", "stride", "padding", "output_padding", "groups")).get("groups", 1)
        return 1 if groups == 1 else None
    if node.op == "convolution":
        given = _bound(node, ("", "", "", "stride", "padding", "dilation", "transposed", "output_padding", "groups"))
        if not given.get("transposed", False):
            return 0
        return 1 if given.get("groups", 1) == 1 else None
    return None
