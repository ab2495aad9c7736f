"""Graphs of torch.compile recorded as graphs of the device, so that a call costs the host one launch.

A recorded graph reads its inputs and writes its results at fixed places. Parameters are read where they lie; other
inputs are copied to the graph's own (one launch for all), and results are handed out as copies, so that they outlive
the next call: a forward graph may run twice before its backward graphs do. Graphs of a device share one pool of
memory, hence one lock, and each replay waits for the one before it where that was put on another stream.

The recording itself is the written module's own (`Model.record`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvc.logs import topic

if TYPE_CHECKING:
    import torch

MAX_RECORDINGS = 8  # of one graph, whose parameters were replaced in between
_PLAIN_CALLS = 1  # before the first recording: sizes that are met once are not worth one


@dataclass
class _Device:
    """What the graphs of a device share: the order of replays, the pool, the end of the last replay and its stream."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    pool: Any = None
    done: Any = None
    stream: int | None = None
    parameters: set[int] = field(default_factory=set)  # where parameters of forward graphs lie


_devices: dict[int | None, _Device] = {}


def obstacle(ops: Sequence[str], inputs: Sequence[Any]) -> str:
    """Why a graph whose operators `ops` run eagerly cannot be recorded on these inputs; "" where nothing is known
    against it (recording may fail all the same)."""
    import torch

    places = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if not places or any(p.type != "cuda" for p in places):
        return f"its tensors are on {', '.join(sorted({p.type for p in places})) or 'no device'}, not on a GPU"
    if len(places) > 1:
        return "its tensors are on several devices"
    for op in ops:
        problem = _problem(op)
        if problem:
            return f"{op} runs eagerly in it and {problem}"
    return ""


def _problem(op: str) -> str:
    """What an eager operator does that a recording cannot hold."""
    import torch
    from kvc.plan_run import overload

    made = overload(op)
    tags = set(getattr(made, "tags", ()))
    if torch.Tag.nondeterministic_seeded in tags:
        return "draws random numbers, which would be the same in each replay"
    if tags & {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}:
        return "waits for the device"
    return "changes its inputs" if made._schema.is_mutable else ""


class Replayed:
    """A graph's module as a callable that records itself at the second call and replays from then on.

    `static` are the positions of inputs that lie at the same place from call to call (parameters). Where a recording
    cannot be made, calls run as they are and the logger says why, once.
    """

    def __init__(self, model: torch.nn.Module, kind: str, static: Collection[int]) -> None:
        self.model = model
        self.kind = kind
        self.static = tuple(sorted(static))
        self.reason = ""  # why it is not recorded
        self.recordings = 0
        self._calls = 0
        self._recorded: Any = None

    def __call__(self, *args: Any) -> Any:
        import torch

        if self.reason or torch.cuda.is_current_stream_capturing():
            return self.model(*args)
        device = next(x.device for x in args if isinstance(x, torch.Tensor))
        shared = _devices.setdefault(device.index, _Device())
        with shared.lock, torch.cuda.device(device):
            if self._calls < _PLAIN_CALLS:
                self._calls += 1
                return self.model(*args)
            stream = torch.cuda.current_stream(device)
            if shared.done is not None and shared.stream != stream.cuda_stream:
                stream.wait_event(shared.done)
            if (self._recorded is None or not self._recorded.stays(args)) and not self._record(args, shared):
                return self.model(*args)
            result = _handed_out(self._recorded, self._recorded.replay(args), args)
            shared.done = shared.done or torch.cuda.Event()
            shared.done.record(stream)
            shared.stream = stream.cuda_stream
            return result

    def _record(self, args: tuple[Any, ...], shared: _Device) -> bool:
        """Record a call on `args`; whether that could be done."""
        import torch

        if self.recordings >= MAX_RECORDINGS:
            return self._give_up(f"its parameters lay elsewhere {self.recordings} times")
        if self.kind == "backward":
            # Which of the tensors that forward saved are parameters, only their addresses say.
            known = shared.parameters if self._recorded is None else {a for _, a in self._recorded.fixed}
            self.static = tuple(n for n, address in _addresses(args) if address in known)
        else:
            shared.parameters.update(address for n, address in _addresses(args) if n in self.static)
        self._recorded = None
        if shared.pool is None:
            shared.pool = torch.cuda.graph_pool_handle()
        try:
            self._recorded = self.model.record(args, None, self.static, shared.pool)  # type: ignore[operator]
        except RuntimeError as error:  # torch has no other word for what a recording cannot hold
            return self._give_up(str(error).splitlines()[0])
        self.recordings += 1
        return True

    def _give_up(self, reason: str) -> bool:
        self.reason = reason
        topic("dynamo").warning("a %s graph is not recorded: %s", self.kind, reason)
        return False


def _addresses(args: Sequence[Any]) -> list[tuple[int, int]]:
    """Position and address of each tensor."""
    import torch

    return [(n, x.data_ptr()) for n, x in enumerate(args) if isinstance(x, torch.Tensor)]


def _handed_out(recorded: Any, result: Any, args: tuple[Any, ...]) -> Any:
    """Results that the next replay leaves alone: copies in their own layout, and arguments for arguments. What is
    returned twice is one tensor."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, tree = pytree.tree_flatten(result)
    made = {id(mine): x for mine, x in zip(recorded.given, args, strict=True)}
    tensors = list({id(x): x for x in leaves if isinstance(x, torch.Tensor) and id(x) not in made}.values())
    fresh = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
    if fresh:
        torch._foreach_copy_(fresh, tensors)
    made |= dict(zip(map(id, tensors), fresh, strict=True))
    return pytree.tree_unflatten([made.get(id(x), x) if isinstance(x, torch.Tensor) else x for x in leaves], tree)


def replayed(
    model: torch.nn.Module, kind: str, ops: Sequence[str], inputs: Sequence[Any], static: Collection[int]
) -> Callable[..., Any]:
    """`model` recorded and replayed, or itself, with the reason in the log, where that cannot be. `ops`: what runs
    eagerly in it; `inputs`: those of the graph, `static` the positions of parameters among them."""
    reason = obstacle(ops, inputs)
    if reason:
        topic("dynamo").warning("a %s graph is not recorded: %s", kind, reason)
        return model
    return Replayed(model, kind, static)


__all__ = ["MAX_RECORDINGS", "Replayed", "obstacle", "replayed"]
