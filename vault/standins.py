"""What stands in for a GPU while a foreign module is watched: `triton.jit`, extension loaders, and the CUDA device.

Tensors stay on the CPU. A torch mode answers what code asks about devices, and notes each operator that computes on
the host: a module that does part of its work in torch is no kernel for the whole spec.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvc.vault.hostcode import Host, Launched, Pointer, Unclear, take_apart

_FILLS = ("zeros", "new_zeros", "full", "ones", "new_full", "new_ones", "zero_", "fill_")
_VIEWS = {
    "view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "slice", "select", "unsqueeze", "squeeze",
    "detach", "alias", "as_strided", "_reshape_alias", "lift_fresh", "split", "unbind", "view_as", "diagonal",
}  # fmt: skip


@dataclass(frozen=True)
class TritonLaunch:
    """A launch of a Triton function: `names` of its parameters, one for each argument; options of the compiler."""

    kernel: str
    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    names: tuple[str, ...]
    options: dict[str, int]


@dataclass
class Notes:
    """What was seen. `filled`: the host gave memory a value before a launch; `device`: C++ that kernels need;
    `sources`: Python texts that may define Triton functions."""

    launches: list[Any] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    filled: bool = False
    device: str = ""
    sources: list[str] = field(default_factory=list)

    def own(self, code: str) -> None:
        self.sources.append(code)

    # ------------------------------------------------------------ torch as C++ calls it
    def library(self, name: str, args: list[Any], template: str | None) -> Any:
        import torch

        short = name.rpartition("::")[2]
        if short == "TensorOptions":
            return {}
        if name.split("::")[0] not in ("torch", "at", short) or not hasattr(torch, short):
            raise Unclear(f"the host code calls {name}, which is not known")
        given = [list(a) if isinstance(a, tuple) else a for a in args if not isinstance(a, dict)]
        options = next((a for a in args if isinstance(a, dict)), {})
        kind = options.get("dtype")
        more = {"dtype": _dtype(kind)} if kind is not None else {}
        return getattr(torch, short)(*given, **more)

    def method(self, value: Any, name: str, args: list[Any], template: str | None) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            raise Unclear(f"the host code calls {name}() of a {type(value).__name__}")
        if name in ("data_ptr", "const_data_ptr", "mutable_data_ptr"):
            return Pointer(value, _element(template or ""))
        if name == "sizes":
            return tuple(value.shape)
        if name == "strides":
            return tuple(value.stride())
        if name in ("scalar_type", "dtype"):
            return str(value.dtype)
        if name == "options":
            return {"dtype": str(value.dtype)}
        if name in ("is_cuda", "is_hip", "defined"):
            return True
        if name == "device":
            return value.device
        if name == "ndimension":
            return value.dim()
        if not hasattr(value, name):
            raise Unclear(f"the host code calls Tensor.{name}, which is not known")
        attribute = getattr(value, name)
        return attribute(*(list(a) if isinstance(a, tuple) else a for a in args)) if callable(attribute) else attribute


def _dtype(kind: Any) -> Any:
    import torch

    names = {"float": "float32", "half": "float16", "double": "float64", "int": "int32", "int64_t": "int64"}
    text = str(kind).removeprefix("torch.")
    found = getattr(torch, names.get(text, text), None)
    if not isinstance(found, torch.dtype):
        raise Unclear(f"a tensor of {kind}")
    return found


def _element(template: str) -> str:
    """The C type that kernels call an element of a tensor that torch's C++ calls `template`."""
    text = template.replace("const", "").strip()
    table = {
        "at::Half": "__half",
        "c10::Half": "__half",
        "at::BFloat16": "__hip_bfloat16",
        "c10::BFloat16": "__hip_bfloat16",
    }
    return table.get(text, text)


class _Jit:
    """In the place of a Triton function: notes launches."""

    def __init__(self, fn: Any, notes: Notes) -> None:
        self.fn, self.notes = getattr(fn, "fn", fn), notes
        self.__name__ = self.fn.__name__
        self.parameters = inspect.signature(self.fn).parameters
        self.arg_names = list(self.parameters)
        self.preset: list[Callable[[dict[str, Any]], dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(grid, args, kwargs)

    def run(self, *args: Any, grid: Any, stream: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        self.launch(grid, args, kwargs)

    def launch(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip(self.arg_names, args, strict=False))
        options = {k: v for k, v in kwargs.items() if k not in self.parameters}
        named |= {k: v for k, v in kwargs.items() if k in self.parameters}
        for preset in self.preset:
            for key, value in preset(named).items():
                (named if key in self.parameters else options).setdefault(key, value)
        for key, parameter in self.parameters.items():
            if key not in named and parameter.default is not inspect.Parameter.empty:
                named[key] = parameter.default
        missing = [n for n in self.arg_names if n not in named]
        if missing:
            raise Unclear(f"{self.__name__} is launched without {', '.join(missing)}, which is chosen elsewhere")
        extent = grid(named) if callable(grid) else grid
        parts = tuple(extent) if isinstance(extent, (tuple, list)) else (extent,)
        x, y, z = (*(int(p) for p in parts), 1, 1)[:3]
        values = tuple(_plain(named[n]) for n in self.arg_names)
        kept: dict[str, int] = {k: int(options[k]) for k in ("num_warps", "num_stages") if k in options}
        self.notes.launches.append(TritonLaunch(self.__name__, (x, y, z), values, tuple(self.arg_names), kept))


def _plain(value: Any) -> Any:
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


def _decorators(notes: Notes) -> dict[str, Any]:
    def jit(fn: Any = None, **_: Any) -> Any:
        return (lambda f: _Jit(f, notes)) if fn is None else _Jit(fn, notes)

    def autotune(configs: Any = (), **_: Any) -> Any:
        def chosen(kernel: _Jit) -> _Jit:
            first = configs[0] if configs else None
            if first is not None:
                extra = {"num_warps": first.num_warps, "num_stages": first.num_stages}
                kernel.preset.append(lambda named: {**first.kwargs, **extra})
            return kernel

        return chosen

    def heuristics(values: dict[str, Any]) -> Any:
        def chosen(kernel: _Jit) -> _Jit:
            kernel.preset.append(lambda named: {k: f(named) for k, f in values.items() if k not in named})
            return kernel

        return chosen

    return {"jit": jit, "autotune": autotune, "heuristics": heuristics}


def _grid(*numels: Any) -> Any:
    """Inductor's own grid function, which newer versions of torch no longer have."""

    def extent(meta: dict[str, Any]) -> tuple[int, ...]:
        blocks = [meta.get(n, 1) for n in ("XBLOCK", "YBLOCK", "ZBLOCK")]
        return tuple(-(-int(n) // b) for n, b in zip(reversed(numels), blocks, strict=False))

    return extent


class _Extension:
    """In the place of a loaded extension: each function is interpreted."""

    def __init__(self, text: str, names: list[str], notes: Notes) -> None:
        parts = take_apart(text)
        notes.device += parts.device + "\n"
        self._host = Host(parts, notes.library, notes.method)
        self._host.launches = notes.launches
        self._names = {*names, *parts.exported, *parts.host}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(name)
        return lambda *args, **kwargs: self._host.call(name, [*args, *kwargs.values()])


def _loaders(notes: Notes) -> dict[str, Any]:
    def load_inline(name: str, cpp_sources: Any = "", cuda_sources: Any = "", functions: Any = (), **_: Any) -> Any:
        texts = [t for s in (cpp_sources, cuda_sources) for t in ([s] if isinstance(s, str) else list(s or ()))]
        return _Extension("\n".join(texts), list(functions or ()), notes)

    def load(name: str, sources: Any, **_: Any) -> Any:
        raise Unclear("the module builds an extension from files that are not in the record")

    return {"load_inline": load_inline, "load": load}


@contextlib.contextmanager
def stand_ins(notes: Notes) -> Iterator[None]:
    """Replaces the names above in this process, which is thrown away afterwards."""
    import torch
    import torch.utils.cpp_extension
    import triton

    for name, value in _decorators(notes).items():
        setattr(triton, name, value)
    for name, value in _loaders(notes).items():
        setattr(torch.utils.cpp_extension, name, value)
    quiet: Any = contextlib.nullcontext()
    stream = types.SimpleNamespace(cuda_stream=0)
    for name, value in {
        "current_stream": lambda *_: stream, "synchronize": lambda *_: None, "current_device": lambda: 0,
        "set_device": lambda *_: None, "is_available": lambda: True, "empty_cache": lambda: None,
        "device": lambda *_: quiet, "_DeviceGuard": lambda *_: quiet, "device_count": lambda: 1,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, value)
    c: Any = torch._C
    c._cuda_getCurrentRawStream = lambda *_: 0
    c._dynamo.guards._empty_strided_cuda = torch.empty_strided
    with contextlib.suppress(ImportError):
        import torch._inductor.runtime.triton_heuristics as found

        if not hasattr(found, "grid"):
            found.grid = _grid  # type: ignore[attr-defined]
    sys.setrecursionlimit(10_000)
    with _answers(), _watcher(notes), torch.no_grad():
        yield


def _answers() -> Any:
    """A mode in which there is a GPU by name and every tensor is on the CPU."""
    from torch.overrides import TorchFunctionMode

    class Answers(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = getattr(func, "__name__", "")
            owner = getattr(func, "__self__", None)
            if name == "__get__" and getattr(owner, "__name__", "") == "is_cuda":
                return True
            if name in ("cuda", "hip"):
                return args[0]
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            if name == "to":
                args = tuple(a for a in args if not _is_device(a))
                if len(args) == 1 and not set(kwargs) - {"device", "non_blocking", "copy"}:
                    return args[0]
            return func(*args, **kwargs)

    return Answers()


def _is_device(value: Any) -> bool:
    import torch

    return isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu", "hip"))


def _watcher(notes: Notes) -> Any:
    """A mode that notes operators which compute, and fills."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watcher(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.partition("::")[2]
            base = name.removesuffix("_like")
            if (name in _VIEWS or base.startswith(("empty", "new_empty"))) or _in_setup():
                pass
            elif base in _FILLS:
                notes.filled = True
            else:
                notes.computed.append(f"aten.{name}")
            return func(*args, **(kwargs or {}))

    def _in_setup() -> bool:
        """Whether a module is being built: what its constructor computes is state, and copied over afterwards."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name in ("_constructed", "_own_state"):
                return True
            frame = frame.f_back
        return False

    return Watcher()


__all__ = ["Launched", "Notes", "TritonLaunch", "stand_ins"]
