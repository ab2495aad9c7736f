"""How a written module is called: the signature, inputs, result and state of the original, as text for module.py."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError
from kvc.dtypes import dtype, from_torch
from kvc.graph import Ref, TensorType
from kvc.module_source import Interface, StateEntry, state_name

if TYPE_CHECKING:
    import torch
    from kvc.frontends.fx.capture import Captured
    from torch import nn

_LITERALS = (bool, int, float, str, type(None))


def interface_of(
    captured: Captured, title: str, dtype: str = "", init: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
) -> Interface:
    """The interface of a captured model; `init` are the arguments that it was constructed with, where they are known;
    `dtype` is what the model was cast to, "" when it was not. KVC0201 for arguments or results that cannot be written
    down."""
    signature, inputs, checks = _arguments(captured)
    record, shown = None, "..."
    if init is not None and _is_plain((init[0], dict(init[1]))):
        record = (repr(tuple(init[0])), repr(dict(init[1])))
        shown = ", ".join([*map(repr, init[0]), *(f"{k}={v!r}" for k, v in init[1].items())])
    return Interface(
        title=title,
        mode=captured.mode,
        dtype=dtype,
        signature=signature,
        inputs=inputs,
        result=_Result(len(captured.graph.outputs)).expression(captured.output),
        state=_state(captured),
        tied=_tied(captured.module),
        init_record=record,
        init_arguments=shown,
        checks=checks,
        call=_call(captured),
    )


def _call(captured: Captured) -> dict[str, Any]:
    """How the example call is made, as JSON: {"input": graph input} and {"value": literal} in the places of leaves."""
    leaves = iter(captured.inputs)

    def encode(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return {"sequence": [encode(v) for v in value]}
        if isinstance(value, dict):
            return {"mapping": [[k, encode(v)] for k, v in value.items()]}
        leaf = next(leaves)
        return {"input": leaf.name} if isinstance(leaf, Ref) else {"value": leaf}

    args, kwargs = encode(tuple(captured.args)), encode(dict(captured.kwargs))
    return {"args": args, "kwargs": kwargs}


def rebuild(encoded: Mapping[str, Any], feed: Mapping[str, torch.Tensor]) -> Any:
    """The value that `_call` encoded, with the tensors of `feed` in the places of inputs."""
    if "sequence" in encoded:
        return [rebuild(v, feed) for v in encoded["sequence"]]
    if "mapping" in encoded:
        return {k: rebuild(v, feed) for k, v in encoded["mapping"]}
    return feed[encoded["input"]] if "input" in encoded else encoded["value"]


def _is_plain(value: Any) -> bool:
    """Whether `repr` says all there is to a value."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return isinstance(value, _LITERALS)


# ---------------------------------------------------------------- arguments


def _arguments(captured: Captured) -> tuple[str, dict[str, str], tuple[tuple[str, str], ...]]:
    """The signature's text, the expression of each user input, and (expression, literal) pairs of arguments that the
    capture fixed: they must be what they were then."""
    signature = inspect.signature(captured.module.forward)
    bound = signature.bind(*captured.args, **captured.kwargs).arguments
    rest = next((n for n, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), "")
    # torch.export flattens positional arguments first, then keywords as they were given.
    given = dict(signature.bind_partial(*captured.args).arguments)
    given |= {k if k in signature.parameters else f"{rest}[{k!r}]": v for k, v in captured.kwargs.items()}
    leaves = [leaf for name, value in given.items() for leaf in _leaves(name, value)]
    if len(leaves) != len(captured.inputs):
        raise KvcError("KVC0201", f"{len(leaves)} arguments, {len(captured.inputs)} inputs of the graph")
    kept = {i.name for i in captured.graph.inputs}
    tensors: dict[str, str] = {}
    fixed: list[tuple[str, str]] = []
    for expression, leaf in zip(leaves, captured.inputs, strict=True):
        if isinstance(leaf, Ref):
            if leaf.name in kept:
                tensors[leaf.name] = expression
        else:
            fixed.append((expression, repr(leaf)))
    for name, parameter in signature.parameters.items():
        if name not in bound and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            fixed.append((name, _default(parameter)))
    return _signature_text(signature), tensors, tuple(fixed)


def _leaves(expression: str, value: Any) -> list[str]:
    """The expressions that read the leaves of an argument, in torch's pytree order."""
    import torch

    if isinstance(value, (torch.Tensor, *_LITERALS)):
        return [expression]
    if isinstance(value, tuple | list):
        return [leaf for n, v in enumerate(value) for leaf in _leaves(f"{expression}[{n}]", v)]
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in _leaves(f"{expression}[{k!r}]", v)]
    raise KvcError(
        "KVC0201",
        f"argument {expression} is a {type(value).__name__}",
        hint="pass tensors, numbers, strings, and tuples, lists or dicts of them",
    )


def _default(parameter: inspect.Parameter) -> str:
    return repr(parameter.default) if isinstance(parameter.default, _LITERALS) else "None"


def _signature_text(signature: inspect.Signature) -> str:
    """ ", x, mask=None, *, scale=1.0": names and defaults, without annotations."""
    parts = []
    keyword_only = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts.append(f"*{name}")
            keyword_only = True
        elif parameter.kind is parameter.VAR_KEYWORD:
            parts.append(f"**{name}")
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
                parts.append("*")
                keyword_only = True
            needed = parameter.default is parameter.empty
            parts.append(name if needed else f"{name}={_default(parameter)}")
    return "".join(f", {part}" for part in parts)


# ---------------------------------------------------------------- result


class _Result:
    """Writes the expression of a result, numbering its tensors in pytree order."""

    def __init__(self, outputs: int) -> None:
        self.left = outputs
        self.next = 0

    def expression(self, result: Any) -> str:
        text = self._of(result)
        if self.next != self.left:
            raise KvcError("KVC0201", f"the result holds {self.next} tensors, the graph gives {self.left}")
        return text

    def _of(self, value: Any) -> str:
        if isinstance(value, Ref):
            self.next += 1
            return f"{{{self.next - 1}}}"
        if isinstance(value, _LITERALS):
            return repr(value).replace("{", "{{").replace("}", "}}")
        if isinstance(value, tuple):
            items = [self._of(v) for v in value]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(self._of(v) for v in value)}]"
        if isinstance(value, dict):  # mappings with attributes (transformers' outputs) come back as plain dicts
            return "{{" + ", ".join(f"{k!r}: {self._of(v)}" for k, v in value.items()) + "}}"
        raise KvcError(
            "KVC0201",
            f"the model returns a {type(value).__name__}",
            hint="return tensors, or tuples, lists or dicts of them",
        )


# ---------------------------------------------------------------- state


def _entry(name: str, t: torch.Tensor, kind: str) -> StateEntry:
    return StateEntry(name, TensorType(from_torch(t.dtype), tuple(t.shape), tuple(t.stride())), kind)


def _tied(module: nn.Module) -> dict[str, str]:
    """State_dict names that share a tensor with an earlier name."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            tied[name] = first[id(tensor)]
        first.setdefault(id(tensor), name)
    return tied


def _state(captured: Captured) -> tuple[StateEntry, ...]:
    """Everything that the written module registers, in the original's order."""
    module = captured.module
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = dict(module.named_buffers(remove_duplicate=False))
    saved = module.state_dict(keep_vars=True)
    entries = [_entry(name, t, "parameter" if name in parameters else "buffer") for name, t in saved.items()]
    entries += [_entry(name, t, "volatile") for name, t in buffers.items() if name not in saved]
    known = {e.name for e in entries}
    for i in captured.graph.inputs:
        name = state_name(i)
        if i.kind == "user" or name in known:
            continue
        if i.kind != "const":
            raise KvcError("KVC0302", f"graph input {i.name} names {i.target}, which the module does not have")
        entries.append(_entry(name, captured.state[i.name], "constant"))
        known.add(name)
    return tuple(entries)


def stored_constants(captured: Captured) -> dict[str, torch.Tensor]:
    """What constants.safetensors holds: non-persistent buffers and lifted constants."""
    module = captured.module
    saved = set(module.state_dict())
    volatile = {n: b.detach() for n, b in module.named_buffers(remove_duplicate=False) if n not in saved}
    lifted = {state_name(i): captured.state[i.name] for i in captured.graph.inputs if i.kind == "const"}
    return {**volatile, **lifted}


# ---------------------------------------------------------------- as JSON


def interface_to_json(interface: Interface) -> dict[str, Any]:
    """The interface for kvc.lock, from which module.py can be written again. `call` stands in the lock itself."""
    data = asdict(interface)
    data.pop("call")
    data["state"] = [
        {"name": e.name, "kind": e.kind, "dtype": e.type.dtype.name, "shape": e.type.shape, "strides": e.type.strides}
        for e in interface.state
    ]
    return data


def interface_from_json(data: Mapping[str, Any], call: Mapping[str, Any]) -> Interface:
    """The interface that `interface_to_json` wrote."""
    state = tuple(
        StateEntry(e["name"], TensorType(dtype(e["dtype"]), tuple(e["shape"]), tuple(e["strides"])), e["kind"])
        for e in data["state"]
    )
    record = data["init_record"]
    return Interface(
        **{
            **data,
            "state": state,
            "init_record": (record[0], record[1]) if record else None,
            "checks": tuple((expression, literal) for expression, literal in data["checks"]),
            "call": call,
        }
    )
