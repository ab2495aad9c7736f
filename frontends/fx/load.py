"""Finds the user's model and its inputs.

    model.py                   class `Model`, `get_inputs()`, optionally `get_init_inputs()` (KernelBench's convention)
    model.py:Name              another class, an instance, or a factory without arguments
    package.module:factory     returns the module, or (module, inputs)
    model.onnx                 an ONNX model (kvc.frontends.onnx.load)

Inputs are a list or tuple of positional arguments or a dict of keyword arguments, from the factory, the file's
`get_inputs()`, or its `example_inputs`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError, Location

if TYPE_CHECKING:
    import torch

# Modules that came from a model's folder. They are evicted before the next model is loaded, so that two models may
# each have a `layers.py`.
_OWNED: set[str] = set()


@dataclass(frozen=True)
class Loaded:
    """A model and example inputs. `root` is the folder that its imports are resolved from ("" for a package); `init`
    the constructor's arguments, where kvc constructed it."""

    name: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    file: str = ""
    root: str = ""
    init: tuple[tuple[Any, ...], dict[str, Any]] | None = None


def load(target: str, seed: int = 0) -> Loaded:
    """The model that `target` names, built and fed under a fixed seed.

    KVC0101 no such file; KVC0102 it does not import or the model does not construct; KVC0103 no model in it;
    KVC0104 no usable inputs. Of an .onnx file also what kvc.frontends.onnx.load raises.
    """
    if ".onnx" in target:
        from kvc.frontends.onnx.load import is_onnx, load_onnx

        if is_onnx(target):
            return load_onnx(target, seed)
    path, name = _split(target)
    if path is not None:
        return _load_file(path, name, seed)
    package, _, factory = target.partition(":")
    if not factory:
        raise KvcError("KVC0101", f"{target!r}", hint="give model.py, model.py:Name or package.module:factory")
    with user_code(f"{package} does not import"):
        scope = importlib.import_module(package)
    return _build(scope, factory, seed, name=factory, root="")


def _split(target: str) -> tuple[Path | None, str]:
    """(file, name in it), or (None, "") for a package's factory."""
    head, colon, name = target.rpartition(":")
    for path, chosen in ((target, ""), (head, name)):
        if path.endswith(".py"):
            file = Path(path)
            if not file.is_file():
                raise KvcError("KVC0101", f"{path}", hint="the path is relative to the current folder")
            return file.resolve(), chosen
    if not colon and ("/" in target or Path(target).exists()):
        raise KvcError("KVC0101", f"{target} is no Python file")
    return None, ""


def _load_file(file: Path, name: str, seed: int) -> Loaded:
    root = str(file.parent)
    with importable(root):
        _evict()
        before = set(sys.modules)
        scope = _execute(file)
        loaded = _build(scope, name, seed, name=name or file.stem, root=root, file=str(file))
        for module in set(sys.modules) - before:
            origin = getattr(sys.modules[module], "__file__", None)
            if isinstance(origin, str) and Path(origin).is_relative_to(root):
                _OWNED.add(module)
    return loaded


def _execute(file: Path) -> ModuleType:
    """Run the file as a module of a name that nothing else uses."""
    unique = f"_kvc_user_{file.stem}"
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None and spec.loader is not None
    scope = importlib.util.module_from_spec(spec)
    # Registered while it runs and after: dataclasses, pickling and torch.export look modules up by name.
    sys.modules[unique] = scope
    _OWNED.add(unique)
    with user_code(f"{file.name} does not import", str(file)):
        spec.loader.exec_module(scope)
    return scope


def _evict() -> None:
    for name in _OWNED:
        sys.modules.pop(name, None)
    _OWNED.clear()


@contextlib.contextmanager
def importable(root: str) -> Iterator[None]:
    """The folder first on the import path. kvc's own modules are never shadowed, since all live under `kvc`."""
    if not root:
        yield
        return
    sys.path.insert(0, root)
    try:
        yield
    finally:
        sys.path.remove(root)


class user_code(contextlib.AbstractContextManager[None]):
    """Turns whatever the user's code raises into one diagnostic at the innermost line of that code."""

    def __init__(self, what: str, file: str = "", code: str = "KVC0102") -> None:
        self.what, self.file, self.code = what, file, code

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, KvcError):
            return
        where = location_of(error, str(Path(self.file).parent) if self.file else "")
        raise KvcError(self.code, f"{self.what}: {type(error).__name__}: {error}", where) from error


def location_of(error: BaseException, root: str = "") -> Location | None:
    """The innermost line of user code in an exception's traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        return Location(short_path(error.filename, root), error.lineno or 0)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_user_file(f.filename)]
    return Location(short_path(frames[-1].filename, root), frames[-1].lineno or 0) if frames else None


def is_user_file(file: str) -> bool:
    """Whether a frame's file belongs to the model: neither torch, nor Python itself, nor kvc."""
    if file.startswith("<"):
        return False
    return not any(Path(file).is_relative_to(folder) for folder in _not_user())


@cache
def _not_user() -> tuple[Path, ...]:
    import kvc
    import torch

    stdlib = Path(contextlib.__file__).parent
    own = [Path(str(p)) for p in kvc.__path__]
    # Only what loading goes through: a model may well call other parts of the standard library.
    return (
        Path(torch.__file__).parent,
        *own,
        Path(__file__).parent.parent,
        stdlib / "importlib",
        stdlib / "contextlib.py",
    )


def short_path(file: str, root: str = "") -> str:
    """A path that says the same on every machine: relative to the model's folder, or to where packages are."""
    path = Path(file)
    if root and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    for parent in path.parents:
        if parent.name in ("site-packages", "dist-packages"):
            return path.relative_to(parent).as_posix()
    return path.name


# ---------------------------------------------------------------- model and inputs


def _build(scope: ModuleType, chosen: str, seed: int, *, name: str, root: str, file: str = "") -> Loaded:
    import torch

    made = _lookup(scope, chosen, file or scope.__name__)
    inputs: Any = None
    init: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    seed_all(seed)
    with user_code(f"{chosen or 'Model'} cannot be constructed", file or getattr(scope, "__file__", None) or ""):
        if isinstance(made, type):
            init = _arguments(_given(scope, "get_init_inputs"))
            made = made(*init[0], **init[1])
        elif not isinstance(made, torch.nn.Module):
            made = made()
    if isinstance(made, tuple) and len(made) == 2:
        made, inputs = made
    if not isinstance(made, torch.nn.Module):
        raise KvcError("KVC0103", f"{chosen} gives a {type(made).__name__}, not a torch.nn.Module")
    seed_all(seed)
    with user_code("get_inputs fails", file, "KVC0104"):
        if inputs is None:
            inputs = _given(scope, "get_inputs")
        if inputs is None:
            inputs = _given(scope, "example_inputs")
    if inputs is None:
        raise KvcError(
            "KVC0104", f"no inputs for {name}", Location(short_path(file, root)) if file else None,
            hint="define get_inputs() or example_inputs beside the model, or return (module, inputs)",
        )  # fmt: skip
    args, kwargs = _arguments(inputs)
    return Loaded(name, made, args, kwargs, file, root, init)


def _lookup(scope: ModuleType, chosen: str, where: str) -> Any:
    import torch

    found = getattr(scope, chosen or "Model", None)
    if found is not None and (isinstance(found, torch.nn.Module) or callable(found)):
        return found
    classes = [
        n
        for n, v in vars(scope).items()
        if isinstance(v, type) and issubclass(v, torch.nn.Module) and v.__module__ == scope.__name__
    ]
    hint = f"name one of: {', '.join(classes)}" if classes else "define class Model(torch.nn.Module)"
    raise KvcError("KVC0103", f"no {chosen or 'Model'} in {Path(where).name}", hint=hint)


def _given(scope: ModuleType, name: str) -> Any:
    value = getattr(scope, name, None)
    return value() if callable(value) else value


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: a dict is keywords, [positional, keywords] is both."""
    if inputs is None:
        return (), {}
    if isinstance(inputs, dict):
        return (), dict(inputs)
    if not isinstance(inputs, list | tuple):
        return (inputs,), {}
    if len(inputs) == 2 and isinstance(inputs[0], list | tuple) and isinstance(inputs[1], dict):
        return tuple(inputs[0]), dict(inputs[1])
    return tuple(inputs), {}


def seed_all(seed: int) -> None:
    import numpy
    import torch

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
