"""What a kvc.lock must look like before anything is read from it: a lock is a file that anybody may have edited.

A shape is a type (`str`, `int`, ...), a tuple of alternatives, `[shape]` for a list, `{str: shape}` for a mapping with
any keys, `{"key": shape}` for a record, where a key that ends in "?" may be missing and others may be there besides, or
a function that says what is wrong with a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

_NUMBER = (int, float, str)  # JSON has no infinity: a figure may be written as a word


def inside(value: Any) -> str:
    """The path of a file in the folder: relative, and not out of it."""
    if not isinstance(value, str) or not value:
        return "is no path"
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\\" in value or "\0" in value:
        return f"{value!r} leads out of the folder"
    return ""


def paths(value: Any) -> str:
    """Digests by path."""
    if not isinstance(value, Mapping):
        return "is no mapping"
    for path, digest in value.items():
        problem = inside(path)
        if problem or not isinstance(digest, str):
            return problem or f"{path}: is no digest"
    return ""


def three(value: Any) -> str:
    """A size in three dimensions."""
    good = isinstance(value, list) and len(value) == 3 and all(type(n) is int and 0 < n < 2**31 for n in value)
    return "" if good else "is not three positive integers"


def pairs(value: Any) -> str:
    """Options of a launch: name and value each."""
    good = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) for p in value)
    return "" if good else "is no list of pairs"


_ERROR = {"output": str, "error": _NUMBER, "tolerance": _NUMBER, "allowed": _NUMBER, "working_error": _NUMBER}
_LAUNCH = {
    "kernel": str, "grid": three, "block": three, "args": [str], "dynamic_lds": int, "options": pairs,
    "ahead?": bool,
}  # fmt: skip
_KERNEL = {
    "name": str, "file": inside, "sha256": str, "code_objects": paths, "symbols": {str: inside}, "spec_hash": str,
    "target": str, "arch": str, "numerics": str, "schedule": str, "executor": str, "seed": int,
    "emitter": {"emitter": str, "version": str, "weights": str, "seed": int}, "knobs": {str: (int, str, bool, float)},
    "launches": [_LAUNCH], "workspace": [{"name": str, "dtype": str, "numel": int}],
    "resources": {str: (dict, str)}, "checks": [str], "input_sets": [str],
    "errors": [_ERROR], "warnings": [str], "origin": [str], "uses": int,
    "library?": {
        "family": str, "calls": [str], "sha256": str, "executor": str, "checks": [str], "input_sets": [str],
        "errors": [_ERROR], "facts": {str: str},
    },
}  # fmt: skip
LOCK_SHAPE: Any = {
    "format": int, "target": str, "arch": str, "numerics": str, "library?": str, "seed": int,
    "kernels": [_KERNEL], "files": paths,
    "fallbacks": [{"op": str, "reason": str, "at": str}],
    "steps": [{"kernel?": str, "fallback?": str, "inputs?": [str], "outputs": [str], "origin?": [str], "once?": bool}],
    "toolchain": {str: (str, int, list, dict, type(None))},
    "model": {
        "name": str, "mode": str, "dtype": str, "call": dict, "interface?": dict,
        "end_to_end": [{"executor": str, "oracle": str, "input_set": str, "launches": int, "errors": [_ERROR]}],
    },
}  # fmt: skip


def problems(value: Any, shape: Any = LOCK_SHAPE, where: str = "") -> Iterator[str]:
    """What is wrong with a value, each with its place in the lock."""
    if isinstance(shape, type | tuple):
        kinds = shape if isinstance(shape, tuple) else (shape,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            yield f"{where or 'the lock'} is no {' or '.join(k.__name__ for k in kinds)}"
    elif callable(shape):
        problem = shape(value)
        if problem:
            yield f"{where} {problem}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for n, item in enumerate(value):
            yield from problems(item, shape[0], f"{where}[{n}]")
    else:
        yield from _mapping_problems(value, shape, where)


def _mapping_problems(value: Any, shape: Mapping[Any, Any], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'the lock'} is no mapping"
        return
    if str in shape:
        for key, item in value.items():
            yield from problems(item, shape[str], f"{where}.{key}" if where else key)
        return
    for name, part in shape.items():
        key = name.removesuffix("?")
        place = f"{where}.{key}" if where else key
        if key in value:
            yield from problems(value[key], part, place)
        elif key == name:
            yield f"{place} is missing"
