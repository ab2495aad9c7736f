"""Foreign code in a confined process: captures a reference, and watches what a foreign module launches.

`python -P -m kvc.vault.observe POLICY` confines itself as a worker does (kvc.verify.confine), and answers each line of
JSON with one, from a process forked for it (kvc.verify.isolate). Nothing that it says is believed: a spec is parsed
again, and a candidate goes through every gate.

A foreign module is called once on CPU tensors with `triton.jit` and torch's extension loader replaced: launches are
noted and not done. The launches state the kernel's arguments; tensors are told apart by where their memory begins.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, BinaryIO

from kvc.vault.hostcode import Host, Launched, Pointer, Unclear, take_apart
from kvc.vault.standins import Notes, TritonLaunch, stand_ins

_MAX_BYTES = 1 << 28  # of an intermediate tensor
_MAX_REPLY = 1 << 24  # characters of an answer
_START_S = 180.0  # a busy machine's time to import torch


@dataclass(frozen=True)
class Seen:
    """What a foreign module did, in names of the spec. `launches`: kernel, grid, block, shared, args, options; an
    argument is ["tensor", name, C type] or ["value", literal]. `scratch`: name, dtype, numel."""

    language: str
    launches: tuple[dict[str, Any], ...]
    scratch: tuple[tuple[str, str, int], ...]
    filled: bool
    device: str = ""
    sources: tuple[str, ...] = field(default=())


def main() -> None:
    """Answers requests, one a line: {"do": "capture" | "watch", ...} -> an answer or {"unclear": why}."""
    from kvc.verify.confine import enter
    from kvc.verify.isolate import isolated
    from kvc.verify.sandbox import Policy

    rules = Policy.from_json(sys.argv[1])
    report = enter(rules)
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what foreign code prints is no answer
    rules = replace(rules, level=report.level)
    _warm()
    for line in sys.stdin:
        request = json.loads(line)

        def work(stream: BinaryIO, request: dict[str, Any] = request) -> None:
            stream.write(json.dumps(answer(request)).encode())

        outcome = isolated(work, rules, report, float(request["limit_s"]))
        text = outcome.reply.decode(errors="replace") if outcome.ok else ""
        reply = (
            text
            if text and "\n" not in text
            else json.dumps({"unclear": f"the foreign code fails: {outcome.reason()}"})
        )
        pipe.write(reply + "\n")
        pipe.flush()


def _warm() -> None:
    """Everything imported that an answer needs: requests are answered in forks of this process, which runs none."""
    import torch
    import torch.utils.cpp_extension
    import triton
    from kvc.frontends.fx.capture import capture as capture_module

    torch.set_num_threads(1)
    capture_module(torch.nn.ReLU(), (torch.zeros(2),))
    assert triton


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; whatever foreign code raises is a reason."""
    import torch
    from kvc.diagnostics import KvcError

    torch.set_num_threads(1)
    try:
        return {"capture": capture, "watch": watch}[request["do"]](request)
    except Unclear as unclear:
        return {"unclear": str(unclear)}
    except KvcError as error:
        return {"unclear": str(error).splitlines()[0]}
    except (
        RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError, ArithmeticError, ImportError,
        OSError, SyntaxError, NameError, RecursionError,
    ) as error:  # fmt: skip
        # The foreign module's own failure, of any kind that Python code has.
        return {"unclear": f"the foreign code fails: {type(error).__name__}: {str(error)[:300]}"}


def _captured(request: dict[str, Any]) -> Any:
    from kvc.vault.harvest import Reference, capture_reference

    return capture_reference(Reference("user", "", "", request["reference"]), request["seed"])


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """{"reference"} -> {"spec"}: the whole module as one kernel. Unclear where that needs torch or is too large."""
    from kvc.lower import fallbacks, lower
    from kvc.pipeline_graph import GRAPH_PASSES
    from kvc.text import print_kernel
    from kvc.vault.harvest import MAX_BYTES, MAX_POINTS, fits
    from kvc.verify.judge import points

    graph = _captured(request).graph
    for run in GRAPH_PASSES:
        graph = run(graph)
    missing = fallbacks(graph)
    if missing:
        raise Unclear(f"the reference needs torch: {next(iter(missing.values()))}")
    spec, _ = lower(graph)
    if not fits(spec):
        raise Unclear(
            f"the reference is beyond what is simulated ({points(spec)} points of {MAX_POINTS}, or {MAX_BYTES >> 20} MB "  # noqa: E501
            "of operands), is empty, or has symbolic sizes"
        )
    return {"spec": print_kernel(spec)}


def watch(request: dict[str, Any]) -> dict[str, Any]:
    """{"reference", "code", "functional", "inputs", "outputs"} -> Seen as JSON. `inputs` are the spec's, by name;
    `outputs` [name, shape]."""
    captured = _captured(request)
    feed = captured.feed()
    notes = Notes()
    with stand_ins(notes):
        module, call = _foreign(request, captured, notes)
        known = {_where(t): n for n, t in feed.items() if n in request["inputs"]}
        for name, tensor in _own_state(module, captured, feed, request["inputs"]):
            known.setdefault(_where(tensor), name)
        result = call()
    if not notes.launches:
        raise Unclear("the module ran and launched no kernel")
    if notes.computed:
        raise Unclear(f"the host code computes with torch: {', '.join(dict.fromkeys(notes.computed))[:200]}")
    scratch = _Names(known, _results(result, request["outputs"], known))
    launches = tuple(_in_names(launch, scratch) for launch in notes.launches)
    kinds = {type(launch) for launch in notes.launches}
    if len(kinds) != 1:
        raise Unclear("the module launches both Triton and HIP kernels")
    language = "triton" if kinds == {TritonLaunch} else "hip"
    seen = Seen(language, launches, tuple(scratch.made), notes.filled, notes.device, tuple(notes.sources))
    return asdict(seen)


def _foreign(request: dict[str, Any], captured: Any, notes: Notes) -> tuple[Any, Any]:
    """The foreign module and a call of it on the reference's inputs."""
    import torch

    code, host_text = request["code"], ""
    if "__global__" in code and "import torch" not in code:
        host_text, code = code, request["functional"] or request["reference"]
    scope: dict[str, Any] = {"__name__": "foreign"}
    notes.own(code)
    exec(compile(code, "<foreign>", "exec"), scope)
    model = next((scope[n] for n in ("ModelNew", "Model") if n in scope), None)
    if model is None:
        named = [v for v in scope.values() if isinstance(v, type) and issubclass(v, torch.nn.Module)]
        own = [v for v in named if v.__module__ == "foreign"]
        model = own[-1] if own else None
    args, kwargs = list(captured.args), dict(captured.kwargs)
    if host_text:
        parts = take_apart(host_text)
        notes.device = parts.device
        entry = next(iter(parts.exported), None) or next(iter(parts.host), None)
        if entry is None:
            raise Unclear("no host code says how the kernel is launched")
        host = Host(parts, notes.library, notes.method)
        host.launches = notes.launches

        def fn(*given: Any, **named: Any) -> Any:
            return host.call(entry, [*given, *named.values()])

        if not request["functional"]:
            state = [t for n, t in captured.state.items() if n in request["inputs"]]
            return None, lambda: fn(*(a for a in args if isinstance(a, torch.Tensor)), *state)
        kwargs["fn"] = fn
    if model is None:
        raise Unclear("the code defines no module to call")
    module = _constructed(model, scope, captured)
    return module, lambda: module(*args, **kwargs)


def _constructed(model: Any, scope: dict[str, Any], captured: Any) -> Any:
    """A foreign module with the reference's parameters, by name, else in order."""
    import torch

    init = scope.get("get_init_inputs", list)()
    if isinstance(init, (list, tuple)) and len(init) == 2 and isinstance(init[1], dict) and isinstance(init[0], list):
        module = model(*init[0], **init[1])
    else:
        module = model(**init) if isinstance(init, dict) else model(*init)
    theirs, ours = module.state_dict(), captured.module.state_dict()
    names = {n: n for n in theirs if n in ours}
    if len(names) != len(theirs):
        pairs = list(zip(theirs, ours, strict=False))
        if len(theirs) != len(ours) or any(theirs[a].shape != ours[b].shape for a, b in pairs):
            raise Unclear("the foreign module's parameters are not those of the reference")
        names = dict(pairs)
    with torch.no_grad():
        for name, other in names.items():
            theirs[name].copy_(ours[other])
    module.train(captured.module.training)
    return module


def _own_state(module: Any, captured: Any, feed: dict[str, Any], inputs: list[str]) -> Iterator[tuple[str, Any]]:
    """The foreign module's own tensors with the spec's names for the same values."""
    if module is None:
        return
    places = {_where(t): n for n, t in captured.state.items() if n in inputs}
    theirs, ours = module.state_dict(), captured.module.state_dict()
    straight = all(n in ours for n in theirs)
    for (name, tensor), other in zip(theirs.items(), ours.values(), strict=False):
        mine = ours[name] if straight else other
        if _where(mine) in places:
            yield places[_where(mine)], tensor


def _where(tensor: Any) -> int:
    return tensor.data_ptr()


def _results(result: Any, outputs: list[list[Any]], known: dict[int, str]) -> dict[int, str]:
    """Where each output of the spec is written."""
    import torch.utils._pytree as pytree

    tensors = [t for t in pytree.tree_leaves(result) if hasattr(t, "data_ptr")]
    if len(tensors) != len(outputs):
        raise Unclear(f"the foreign module gives {len(tensors)} tensors, the reference {len(outputs)}")
    found: dict[int, str] = {}
    for tensor, (name, shape) in zip(tensors, outputs, strict=True):
        if list(tensor.shape) != shape:
            raise Unclear(f"the foreign module gives shape {list(tensor.shape)}, the reference {shape}")
        if not tensor.is_contiguous():
            raise Unclear("the foreign module gives a tensor with strides")
        if _where(tensor) in known or _where(tensor) in found:
            raise Unclear("an output shares the memory of an input or of another output")
        found[_where(tensor)] = name
    return found


class _Names:
    """Names of tensors by where they begin: inputs, outputs, and scratch for all others."""

    def __init__(self, known: dict[int, str], results: dict[int, str]) -> None:
        self._known = {**known, **results}
        self.made: list[tuple[str, str, int]] = []

    def of(self, tensor: Any) -> str:
        place = _where(tensor)
        if place not in self._known:
            whole = tensor.untyped_storage()
            if place != whole.data_ptr():
                raise Unclear("a kernel is given the middle of a tensor")
            if whole.nbytes() > _MAX_BYTES:
                raise Unclear("an intermediate tensor is too large")
            name = f"kvc_tmp{len(self.made)}"
            self._known[place] = name
            kind = str(tensor.dtype).removeprefix("torch.")
            self.made.append((name, kind, whole.nbytes() // tensor.element_size()))
        return self._known[place]


def _in_names(launch: Launched | TritonLaunch, names: _Names) -> dict[str, Any]:
    args: list[list[Any]] = []
    for value in launch.args:
        if isinstance(value, Pointer):
            args.append(["tensor", names.of(value.tensor), value.ctype or str(value.tensor.dtype)])
        elif value is None or isinstance(value, (bool, int, float)):
            args.append(["value", value])
        elif hasattr(value, "data_ptr"):
            args.append(["tensor", names.of(value), str(value.dtype)])
        else:
            raise Unclear(f"an argument of {launch.kernel} is a {type(value).__name__}")
    text = {"kernel": launch.kernel, "grid": list(launch.grid), "args": args}
    if isinstance(launch, TritonLaunch):
        return {**text, "names": list(launch.names), "options": launch.options}
    return {**text, "block": list(launch.block), "shared": launch.shared}


# ---------------------------------------------------------------- the parent's side


class Observer:
    """A confined process that answers requests; a new one where it died. Use from one thread."""

    def __init__(self, limit_s: float = 120.0) -> None:
        self.limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer; {"unclear"} where the process dies, hangs or talks nonsense."""
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(self.limit_s + _START_S, process.kill)  # the observer itself keeps the limit, as a rule
        late.start()
        try:
            process.stdin.write(json.dumps({**request, "limit_s": self.limit_s}) + "\n")
            process.stdin.flush()
            said = process.stdout.readline(_MAX_REPLY)
        except BrokenPipeError:
            said = ""
        finally:
            late.cancel()
        with contextlib.suppress(ValueError):
            found = json.loads(said)
            if isinstance(found, dict):
                return found
        self.close()
        return {"unclear": "the process that watches foreign code died or answered nonsense"}

    def _start(self) -> subprocess.Popen[str]:
        from kvc.verify.sandbox import command, environment, policy

        self._folder = tempfile.TemporaryDirectory(prefix="kvc-")
        rules = policy(folder=self._folder.name)
        more: list[str] = []
        for name in ("kvc.vault", "kvc.frontends", "kvc.model"):
            spec = importlib.util.find_spec(name)
            more += list(spec.submodule_search_locations or ()) if spec else []
        rules = replace(rules, readable=(*rules.readable, *(p for p in more if p not in rules.readable)))
        words = [w if w != "kvc.verify.worker" else "kvc.vault.observe" for w in command(rules)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",  # noqa: E501
            env=environment(rules), cwd=self._folder.name,
        )  # fmt: skip
        return self._process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None


if __name__ == "__main__":
    main()
