"""Reads an .onnx file as a model with example inputs.

    model.onnx                      sizes as the file has them
    model.onnx:batch=4,seq=128      named dimensions fixed (what `--dim batch=4` makes)

Example inputs are those of ONNX's own convention, `test_data_set_0/input_N.pb` beside the file, where they are there
and have these sizes. Else floats are drawn from a normal distribution, indices below what they index, and every other
integer or boolean is one: a mask that hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError, Location

if TYPE_CHECKING:
    import onnx
    import torch
    from kvc.frontends.fx.load import Loaded

SUFFIX = ".onnx"
OLDEST = 13  # opset; older files are converted by onnx itself
#: Operators that hand an index tensor on.
_CARRY = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Concat", "Slice")


@dataclass(frozen=True)
class Target:
    """A file and its fixed dimensions."""

    path: Path
    dims: dict[str, int]


def is_onnx(target: str) -> bool:
    """Whether `target` names an .onnx file."""
    return target.partition(f"{SUFFIX}:")[0].endswith(SUFFIX) or f"{SUFFIX}:" in target


def with_dims(target: str, dims: Mapping[str, int] | tuple[str, ...]) -> str:
    """The target with `--dim NAME=VALUE` added. KVC0106 for what is no such pair or no .onnx file."""
    pairs = [f"{k}={v}" for k, v in dims.items()] if isinstance(dims, Mapping) else list(dims)
    if not pairs:
        return target
    if not is_onnx(target):
        raise KvcError("KVC0106", "--dim fixes the sizes of an .onnx model", hint="leave it out for a Python model")
    joined = f"{target},{','.join(pairs)}" if f"{SUFFIX}:" in target else f"{target}:{','.join(pairs)}"
    parse(joined)
    return joined


def parse(target: str) -> Target:
    """KVC0106 where a dimension is no NAME=NUMBER, KVC0101 where there is no such file."""
    head, _, tail = target.partition(f"{SUFFIX}:") if f"{SUFFIX}:" in target else (target[: -len(SUFFIX)], "", "")
    dims = {}
    for pair in filter(None, tail.split(",")):
        name, _, value = pair.rpartition("=")
        if not name or not value.isdigit() or int(value) < 1:
            raise KvcError("KVC0106", f"dimension {pair!r}", hint="NAME=NUMBER, e.g. batch=4")
        dims[name.strip()] = int(value)
    path = Path(head + SUFFIX)
    if not path.is_file():
        raise KvcError("KVC0101", str(path), hint="the path is relative to the current folder")
    return Target(path.resolve(), dims)


def read(path: Path) -> onnx.ModelProto:
    """The model, checked by onnx and of opset 13 or newer. KVC0108 without the package, KVC0102 for a file that is no
    valid model, KVC0204 for an opset that cannot be converted."""
    onnx = import_onnx()
    from google.protobuf.message import DecodeError

    where = Location(path.name)
    try:
        onnx.checker.check_model(str(path))
        model = onnx.load(str(path))
    except (onnx.checker.ValidationError, DecodeError, OSError) as error:
        raise KvcError("KVC0102", f"onnx says: {_first_line(error)}", where,
                       hint="export the model again; external data must lie beside the file") from None  # fmt: skip
    return modern(model, where)


def modern(model: onnx.ModelProto, where: Location) -> onnx.ModelProto:
    """The model in an opset that the table is written for."""
    onnx = import_onnx()
    from onnx import version_converter

    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), onnx.defs.onnx_opset_version())
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise KvcError("KVC0204", f"opset {opset}, and the installed onnx knows {newest}", where,
                       hint="pip install --upgrade onnx")  # fmt: skip
    if opset >= OLDEST:
        return model
    if opset < 9 and any(node.op_type == "Scan" for node in model.graph.node):
        raise KvcError("KVC0204", "Scan of opset 8", where, hint=f"export with opset {OLDEST} or newer")
    try:
        converted: Any = version_converter.convert_version(model, OLDEST)
    except (RuntimeError, version_converter.ConvertError) as error:
        raise KvcError("KVC0204", f"opset {opset} cannot be converted to {OLDEST}: {_first_line(error)}", where,
                       hint=f"export with opset {OLDEST} or newer") from None  # fmt: skip
    return converted


def import_onnx() -> Any:
    """The package. KVC0108 where it is not installed."""
    try:
        import onnx
    except ImportError:
        raise KvcError("KVC0108", "reading .onnx files needs the package onnx",
                       hint="pip install 'kvc[onnx]'") from None  # fmt: skip
    return onnx


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# ---------------------------------------------------------------- inputs


def graph_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs that are no initializers."""
    given = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in given]


def shapes(model: onnx.ModelProto, dims: Mapping[str, int], file: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """(element type, shape) of each input. KVC0107 for a size that is not known, KVC0106 for a name that no input has,
    KVC0204 for an input that is no tensor."""
    found, open_, named = {}, {}, set()
    for value in graph_inputs(model):
        if not value.type.HasField("tensor_type"):
            raise KvcError("KVC0204", f"input {value.name!r} is no tensor", Location(file), hint="pass tensors")
        kind = value.type.tensor_type
        shape = []
        for n, dim in enumerate(kind.shape.dim):
            name = dim.dim_param or f"{value.name}.{n}"
            if not dim.HasField("dim_value"):
                named.add(name)
                if name not in dims:
                    open_[name] = value.name
            shape.append(dim.dim_value if dim.HasField("dim_value") else dims.get(name, 0))
        found[value.name] = (kind.elem_type, tuple(shape))
    unknown = sorted(set(dims) - named)
    if unknown:
        known = ", ".join(sorted(named)) or "none: every size is fixed"
        raise KvcError("KVC0106", f"no dimension {unknown[0]!r}", Location(file), hint=f"dimensions: {known}")
    if open_:
        missing = ", ".join(f"{name} (of {owner})" for name, owner in open_.items())
        options = " ".join(f"--dim '{name}=1'" if " " in name or "*" in name else f"--dim {name}=1" for name in open_)
        raise KvcError("KVC0107", missing, Location(file), hint=f"kernels are written for fixed sizes: {options}")
    return found


def example_inputs(
    model: onnx.ModelProto, path: Path, wanted: Mapping[str, tuple[int, tuple[int, ...]]], seed: int
) -> dict[str, torch.Tensor]:
    """A tensor for each input."""
    import torch
    from kvc.frontends.onnx.values import DTYPES

    saved = _saved_inputs(path, list(wanted))
    limits = _limits(model)
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, (kind, shape) in wanted.items():
        if kind not in DTYPES:
            raise KvcError("KVC0204", f"input {name!r} is of a type that kvc does not compute with",
                           Location(path.name), hint="use numbers of 8 bits or more")  # fmt: skip
        dtype = DTYPES[kind]
        if name in saved and tuple(saved[name].shape) == shape and saved[name].dtype == dtype:
            made[name] = saved[name]
        elif dtype.is_floating_point:
            made[name] = torch.randn(shape, generator=generator).to(dtype)
        elif name in limits:
            made[name] = torch.randint(0, limits[name], shape, generator=generator).to(dtype)
        else:
            made[name] = torch.ones(shape, dtype=dtype)
    return made


def _saved_inputs(path: Path, names: list[str]) -> dict[str, torch.Tensor]:
    import onnx
    from kvc.frontends.onnx.values import from_proto

    found = {}
    for n, name in enumerate(names):
        file = path.parent / "test_data_set_0" / f"input_{n}.pb"
        if file.is_file():
            proto = onnx.TensorProto()
            proto.ParseFromString(file.read_bytes())
            found[name] = from_proto(proto).tensor()
    return found


def _limits(model: onnx.ModelProto) -> dict[str, int]:
    """For integer inputs that index something whose size the file gives: that size."""
    tables = {i.name: tuple(i.dims) for i in model.graph.initializer}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in dict.fromkeys(node.input):
            readers.setdefault(name, []).append(node)
    limits = {}
    for value in graph_inputs(model):
        queue, seen, found = [value.name], {value.name}, []
        while queue:
            name = queue.pop()
            for node in readers.get(name, []):
                if node.op_type == "Gather" and node.input[1] == name and node.input[0] in tables:
                    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                    found.append(tables[node.input[0]][axis])
                elif node.op_type in _CARRY and node.output[0] not in seen:
                    seen.add(node.output[0])
                    queue.append(node.output[0])
        if found:
            limits[value.name] = min(found)
    return limits


# ---------------------------------------------------------------- the model


def load_onnx(target: str, seed: int = 0) -> Loaded:
    """The model that `target` names, with inputs. KVC0101, KVC0102, KVC0106, KVC0107, KVC0108, KVC0202, KVC0204."""
    from kvc.frontends.fx.load import Loaded
    from kvc.frontends.onnx.model import build
    from kvc.frontends.onnx.original import confirmation

    found = parse(target)
    model = read(found.path)
    inputs = example_inputs(model, found.path, shapes(model, found.dims, found.path.name), seed)
    module = build(model, found.path.name, inputs)
    module._confirm = confirmation(found.path, inputs)
    return Loaded(found.path.stem, module, tuple(inputs.values()), {}, str(found.path), str(found.path.parent))


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Initializers by the names that a translated module's state_dict has."""
    from kvc.frontends.onnx.model import OnnxModel
    from kvc.frontends.onnx.values import from_proto

    module = OnnxModel()
    for proto in read(parse(str(path)).path).graph.initializer:
        module.place(proto.name, from_proto(proto).tensor().clone())
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}
