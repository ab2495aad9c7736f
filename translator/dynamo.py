"""`torch.compile(model, backend="kvc", options={...})`: the graphs of a program as verified kernels.

torch finds the backend through the entry-point group "torch_dynamo_backends". AOTAutograd hands over functional forward
and backward graphs, having taken mutation and aliasing of inputs upon itself; each becomes the same written module that
`kvc translate` writes, kept in the cache. What cannot be translated runs eagerly, with the reason in the log.

Options: `target` ("hip" or "triton"), `arch` (default: that of the GPU at hand, else kvc's default), `emitter` (a name
or several), `numerics` ("strict", "fast"), `strict` (raise in the place of running eagerly), `executor` ("auto", or
"sim" to run small models on the simulator, on the CPU), `seed`, `jobs`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from kvc.arch import CDNA, DEFAULT_ARCH, arch
from kvc.diagnostics import KvcError
from kvc.emitter import target as find_target
from kvc.logs import tell, topic

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

#: Shapes for which one graph with symbolic sizes is translated before the rest runs eagerly.
MAX_SHAPES = 16

Run = Callable[..., Any]
_lock = threading.RLock()


@dataclass(frozen=True)
class DynamoOptions:
    """The options of the backend, checked. KVC0105, KVC0106 for what is unknown."""

    target: str = ""  # "": hip on ROCm and on the simulator, triton on CUDA
    arch: str = ""
    emitter: tuple[str, ...] = ()
    numerics: str = "strict"
    strict: bool = False
    executor: str = "auto"
    seed: int = 0
    jobs: int = 2

    @staticmethod
    def of(given: Mapping[str, Any] | None) -> DynamoOptions:
        values = dict(given or {})
        known = [f.name for f in fields(DynamoOptions)]
        for name in values:
            if name not in known:
                raise KvcError("KVC0106", f"backend kvc has no option {name!r}", hint=f"one of: {', '.join(known)}")
        emitter = values.get("emitter", ())
        values["emitter"] = (emitter,) if isinstance(emitter, str) else tuple(emitter)
        options = DynamoOptions(**values)
        if options.target:
            find_target(options.target)
        if options.arch:
            arch(options.arch)
        return options


def kvc(module: GraphModule, inputs: list[Any], *, options: Mapping[str, Any] | None = None, mode: str = "") -> Run:
    """The backend: torch.compile calls it with each graph that Dynamo captured."""
    from kvc.frontends.fx.decompose import decompositions_for_tracing
    from torch._dynamo.backends.common import aot_autograd
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = DynamoOptions.of(options)
    if mode not in ("", "default", None):
        raise KvcError("KVC0106", f"mode {mode!r}", hint="leave out mode=; kernels are tuned by `kvc tune`")
    backend = aot_autograd(
        fw_compiler=_compiler("forward", chosen),
        bw_compiler=_compiler("backward", chosen),
        inference_compiler=_compiler("inference", chosen),
        decompositions=decompositions_for_tracing,
    )
    # Attention by its definition: the fused operators that torch would pick have gradients that only torch knows.
    with sdpa_kernel(SDPBackend.MATH):
        run: Run = backend(module, inputs)
    return run


def _compiler(kind: str, options: DynamoOptions) -> Callable[[GraphModule, Sequence[Any]], Run]:
    """A compiler of one kind of graph, as AOTAutograd wants it."""

    def compile_graph(module: GraphModule, inputs: Sequence[Any]) -> Run:
        from functorch.compile import make_boxed_func

        if _is_symbolic(module, inputs):
            run: Run = _ByShape(kind, module, options)
        else:
            run = _compiled(kind, module, inputs, options)
        boxed: Run = make_boxed_func(run)
        return boxed

    return compile_graph


def _is_symbolic(module: GraphModule, inputs: Sequence[Any]) -> bool:
    import torch

    values = [*inputs, *(n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder")]
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return any(
        isinstance(v, symbolic) or (isinstance(v, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in v.shape))
        for v in values
    )


def _compiled(kind: str, module: GraphModule, inputs: Sequence[Any], options: DynamoOptions) -> Run:
    """The graph as a callable: kernels, or, unless `strict`, the graph itself with a logged reason."""
    from kvc.compiled_graph import compiled_graph

    try:
        with _lock:
            tell("dynamo", lambda: f"{kind} graph:\n{module.print_readable(print_output=False)}")
            made = compiled_graph(kind, module, inputs, _resolved(options, inputs))
    except KvcError as error:
        if options.strict:
            raise
        topic("dynamo").warning("a %s graph of %d nodes runs eagerly: %s", kind, len(module.graph.nodes), error)
        return module.forward
    for reason in made.fallbacks:
        topic("dynamo").info("in a %s graph, eagerly: %s", kind, reason)
    return made


@dataclass
class _ByShape:
    """A graph with symbolic sizes: translated anew for each set of concrete sizes that it meets, up to MAX_SHAPES."""

    kind: str
    module: GraphModule
    options: DynamoOptions
    known: dict[tuple[Any, ...], Run] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        key = tuple(_shape_of(a) for a in args)
        run = self.known.get(key)
        if run is None:
            with _lock:
                run = self.known.setdefault(key, self._made(args))
        return run(*args)

    def _made(self, args: tuple[Any, ...]) -> Run:
        if len(self.known) >= MAX_SHAPES:
            reason = KvcError("KVC0106", f"more than {MAX_SHAPES} sets of sizes", hint="pad inputs to fewer sizes")
            if self.options.strict:
                raise reason
            topic("dynamo").warning("a %s graph runs eagerly: %s", self.kind, reason)
            return self.module.forward
        module, fakes = specialised(self.module, args)
        return _compiled(self.kind, module, fakes, self.options)


def _shape_of(arg: Any) -> Any:
    import torch

    return (tuple(arg.shape), tuple(arg.stride()), arg.dtype) if isinstance(arg, torch.Tensor) else arg


def specialised(module: GraphModule, args: Sequence[Any]) -> tuple[GraphModule, list[Any]]:
    """A graph traced again with the concrete sizes of `args`, and the fake arguments of that trace."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = FakeTensorMode(shape_env=None, allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(a.detach(), static_shapes=True) if isinstance(a, torch.Tensor) else a for a in args]
    with mode, torch.no_grad():
        traced = make_fx(lambda *values: torch.fx.Interpreter(module).run(*values), tracing_mode="real")(*fakes)
    return traced, fakes


# ---------------------------------------------------------------- where to run


@dataclass(frozen=True)
class Place:
    """Options with nothing left open: what is written, for which GPU, what judges it and what runs it ("sim", or
    "native" for the GPU that the tensors are on)."""

    options: DynamoOptions
    target: str
    arch: str
    judge: str
    run: str


def _resolved(options: DynamoOptions, inputs: Sequence[Any]) -> Place:
    """KVC0601 where kernels for the chosen GPU cannot run on the tensors' device."""
    import torch
    from kvc.executors import choose

    devices = {x.device for x in inputs if isinstance(x, torch.Tensor)}
    if options.executor == "sim":
        if any(d.type != "cpu" for d in devices):
            raise KvcError("KVC0601", "executor sim runs models on the CPU", hint="leave it out on a GPU")
        row = arch(options.arch or DEFAULT_ARCH)
        return Place(options, options.target or "hip", row.name, choose("sim", row), "sim")
    if options.executor != "auto":
        raise KvcError("KVC0106", f"executor {options.executor!r}", hint="one of: auto, sim")
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        raise KvcError(
            "KVC0601", f"the tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}",
            hint='move model and inputs to one GPU, or try the simulator with options={"executor": "sim"}',
        )  # fmt: skip
    return _on_gpu(options, next(iter(devices)))


def _on_gpu(options: DynamoOptions, device: torch.device) -> Place:
    import torch
    from kvc.executors import choose

    if torch.version.hip is None:
        target = options.target or "triton"
        if target != "triton":
            raise KvcError(
                "KVC0601", f"{target} kernels do not run on this GPU", hint='use options={"target": "triton"}'
            )
        row = arch(options.arch or DEFAULT_ARCH)
    else:
        found = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        if found not in CDNA or options.arch not in ("", found):
            raise KvcError("KVC0602", f"{device} is a {found}", hint=f"kernels are written for: {', '.join(CDNA)}")
        target, row = options.target or "hip", arch(found)
    return Place(options, target, row.name, choose("auto", row), "native")
