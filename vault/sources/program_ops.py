"""The operators that random programs are made of, each with a weight that follows the census of KernelBench.

An operator is a function of the program so far and a value; it answers with a Python expression, or None where it
does not fit. It may ask the program for further inputs, parameters and modules. Nothing here works out a shape: the
program evaluates each expression with torch and drops those that torch refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvc.vault.sources.generate import Program, Value

Write = Callable[["Program", "Value"], str | None]


@dataclass(frozen=True)
class ProgramOp:
    """`kind`: of the value it takes ("float", "bool", "int"); `ranks`: least and most rank of that value."""

    name: str
    group: str
    weight: float
    write: Write
    kind: str = "float"
    ranks: tuple[int, int] = (0, 5)


OPS: dict[str, ProgramOp] = {}


def op(group: str, weight: float, ranks: tuple[int, int] = (0, 5), kind: str = "float") -> Callable[[Write], Write]:
    def register(write: Write) -> Write:
        name = write.__name__
        OPS[name] = ProgramOp(name, group, weight, write, kind, ranks)
        return write

    return register


def _simple(group: str, kind: str, rows: dict[str, float], ranks: tuple[int, int] = (0, 5)) -> None:
    """Operators that are one template over `x`."""
    for template, weight in rows.items():
        OPS[template] = ProgramOp(template, group, weight, _template(template), kind, ranks)


def _template(text: str) -> Write:
    return lambda g, x: text.replace("{x}", x.name).replace("{c}", g.constant())


_simple(
    "pointwise", "float",
    {
        "torch.relu({x})": 2.5, "F.gelu({x})": 1.6, "F.gelu({x}, approximate='tanh')": 0.6, "torch.tanh({x})": 1.5,
        "torch.sigmoid({x})": 1.4, "F.silu({x})": 1.0, "F.mish({x})": 0.6, "F.hardswish({x})": 0.5,
        "F.hardsigmoid({x})": 0.4, "F.leaky_relu({x}, {c})": 0.7, "F.elu({x})": 0.4, "F.selu({x})": 0.3,
        "F.celu({x}, alpha=1.5)": 0.2, "F.softplus({x})": 0.5, "F.softsign({x})": 0.4, "F.logsigmoid({x})": 0.4,
        "F.relu6({x})": 0.4, "F.tanhshrink({x})": 0.2, "F.softshrink({x}, 0.3)": 0.2, "F.hardshrink({x}, 0.3)": 0.2,
        "F.threshold({x}, 0.1, {c})": 0.2, "torch.exp(-torch.abs({x}))": 0.5, "torch.log1p(torch.abs({x}))": 0.4,
        "torch.sqrt(torch.abs({x}) + 0.1)": 0.4, "torch.rsqrt({x} * {x} + 1.0)": 0.4, "torch.abs({x})": 0.5,
        "-{x}": 0.3, "torch.square({x})": 0.4, "{x} ** 3": 0.3, "torch.sin({x})": 0.3, "torch.cos({x})": 0.3,
        "torch.erf({x})": 0.3, "torch.floor({x})": 0.15, "torch.round({x})": 0.1, "torch.sign({x})": 0.1,
        "1.0 / (1.0 + torch.exp(-{x}))": 0.3, "torch.atan({x})": 0.1, "torch.expm1({x} * 0.5)": 0.1,
        "torch.clamp({x}, -0.8, 0.9)": 0.8, "torch.clamp_min({x}, {c})": 0.3, "F.hardtanh({x})": 0.5,
        "{x} * {c}": 1.2, "{x} + {c}": 1.0, "{x} - {c}": 0.4, "{c} - {x}": 0.4, "{x} / {c}": 0.6,
        "{x} * torch.sigmoid(1.702 * {x})": 0.3, "torch.where({x} > {c}, {x}, {x} * 0.1)": 0.4,
        "torch.minimum({x}, torch.tanh({x}) + {c})": 0.2, "torch.fmod({x}, 0.7)": 0.05, "torch.exp2({x} * 0.5)": 0.15,
        "torch.tan(torch.tanh({x}))": 0.05, "torch.sinh({x} * 0.3)": 0.05, "torch.log(torch.abs({x}) + {c})": 0.3,
        "{x}.float()": 0.3, "{x}.to(torch.bfloat16)": 0.15, "{x}.to(torch.float16)": 0.1,
        "torch.trunc({x} * 3.0)": 0.05,
    },
)  # fmt: skip
_simple(
    "mask", "bool",
    {"torch.logical_not({x})": 1.0, "{x}.float()": 2.0, "{x}.any(dim=-1)": 1.0, "{x}.all(dim=-1)": 0.6,
     "{x}.sum(dim=-1)": 0.6},
    (1, 5),
)  # fmt: skip
_simple(
    "integer", "int",
    {"{x}.float() * {c}": 2.0, "{x} + 3": 0.6, "{x} % 5": 0.6, "{x} // 3": 0.5, "torch.clamp({x}, 0, 4)": 0.5,
     "{x} == 2": 0.5, "{x} * 2 - 1": 0.4, "torch.bitwise_and({x}, 6)": 0.3, "{x}.to(torch.int32)": 0.3},
)  # fmt: skip
_simple(
    "compare", "float",
    {"{x} > {c}": 0.4, "{x} <= {c}": 0.3, "torch.isfinite({x})": 0.05, "({x} * 4).to(torch.int64)": 0.15},
)  # fmt: skip


# ---------------------------------------------------------------- two operands


@op("binary", 4.0, (1, 5))
def binary(g: Program, x: Value) -> str:
    other = g.partner(x)
    form = g.pick(
        {"{a} + {b}": 4, "{a} * {b}": 3, "{a} - {b}": 2, "torch.maximum({a}, {b})": 0.7, "torch.minimum({a}, {b})": 0.5,
         "{a} / (torch.abs({b}) + 1.0)": 1, "torch.lerp({a}, {b}, 0.3)": 0.3, "{a} + 0.5 * {b}": 0.7,
         "torch.atan2({a}, torch.abs({b}) + 0.5)": 0.1, "torch.where({b} > 0, {a}, {b})": 0.7,
         "torch.addcmul({a}, {b}, {b}, value=0.5)": 0.3, "torch.hypot({a}, {b})": 0.1,
         "{a} * torch.sigmoid({b})": 0.8, "F.silu({a}) * {b}": 0.5, "({a} - {b}).abs()": 0.3}
    )  # fmt: skip
    return form.replace("{a}", x.name).replace("{b}", other)


@op("mask", 0.8, (1, 5))
def masked(g: Program, x: Value) -> str:
    mask = g.input(g.broadcast_of(x.shape), "bool")
    form = g.pick({"{x}.masked_fill({m}, {c})": 2, "torch.where({m}, {x}, -{x})": 1, "{x} * {m}": 0.5})
    return form.replace("{m}", mask).replace("{x}", x.name).replace("{c}", g.constant())


@op("mask", 0.5, (2, 4))
def triangular(g: Program, x: Value) -> str:
    fn = g.pick({"torch.tril": 2, "torch.triu": 1})
    return f"{fn}({x.name}, diagonal={g.structure.choice((0, 0, 1, -1))})"


# ---------------------------------------------------------------- reductions, softmax, norms


@op("reduce", 3.5, (1, 5))
def reduction(g: Program, x: Value) -> str:
    dim = g.dims(x)
    keep = ", keepdim=True" if g.structure.random() < 0.4 else ""
    form = g.pick(
        {"{x}.sum(dim={d}{k})": 3, "{x}.mean(dim={d}{k})": 3, "torch.amax({x}, dim={d}{k})": 1.5,
         "torch.amin({x}, dim={d}{k})": 0.7, "torch.logsumexp({x}, dim={d}{k})": 1.2,
         "torch.linalg.vector_norm({x}, dim={d}{k})": 0.8, "torch.var({x}, dim={d}, correction=0{k})": 0.7,
         "torch.std({x}, dim={d}{k})": 0.4, "({x} * {x}).mean(dim={d}{k})": 0.5, "{x}.abs().sum(dim={d}{k})": 0.4}
    )  # fmt: skip
    return form.replace("{x}", x.name).replace("{d}", dim).replace("{k}", keep)


@op("reduce", 0.9, (1, 4))
def selection(g: Program, x: Value) -> str:
    dim = g.dim(x)
    form = g.pick({"torch.max({x}, dim={d}).values": 2, "torch.min({x}, dim={d}).values": 1.5,
                   "torch.argmax({x}, dim={d})": 1.2, "torch.argmin({x}, dim={d})": 0.8,
                   "torch.prod(torch.tanh({x}), dim={d})": 0.2})  # fmt: skip
    return form.replace("{x}", x.name).replace("{d}", str(dim))


@op("softmax", 2.2, (1, 4))
def softmax(g: Program, x: Value) -> str:
    fn = g.pick({"torch.softmax": 3, "torch.log_softmax": 1, "F.softmin": 0.2})
    return f"{fn}({x.name}, dim={g.dim(x)})"


@op("norm", 2.4, (2, 4))
def layer_norm(g: Program, x: Value) -> str:
    last = x.shape[-1:] if len(x.shape) < 3 or g.structure.random() < 0.85 else x.shape[-2:]
    form = g.pick({"layer": 3, "rms": 1.5, "plain": 0.6, "manual": 0.7, "normalize": 0.5})
    if form == "layer":
        return f"{g.module(f'nn.LayerNorm({_shape(last)})')}({x.name})"
    if form == "rms":
        return f"{g.module(f'nn.RMSNorm({_shape(last)}, eps=1e-6)')}({x.name})"
    if form == "plain":
        return f"F.layer_norm({x.name}, {_shape(last)})"
    if form == "normalize":
        return f"F.normalize({x.name}, dim={g.dim(x)})"
    scale = g.parameter(x.shape[-1:])
    return f"{x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-6) * {scale}"


@op("norm", 1.6, (3, 5))
def channel_norm(g: Program, x: Value) -> str:
    channels = x.shape[1]
    groups = g.structure.choice([n for n in range(1, channels + 1) if channels % n == 0][:4])
    kind = {3: "1d", 4: "2d", 5: "3d"}[len(x.shape)]
    made = g.pick({f"nn.GroupNorm({groups}, {channels})": 2, f"nn.BatchNorm{kind}({channels})": 3,
                   f"nn.InstanceNorm{kind}({channels})": 0.7})  # fmt: skip
    return f"{g.module(made)}({x.name})"


# ---------------------------------------------------------------- contractions


@op("matmul", 4.0, (2, 4))
def linear(g: Program, x: Value) -> str:
    bias = g.structure.random() < 0.7
    return f"{g.module(f'nn.Linear({x.shape[-1]}, {g.size()}, bias={bias})')}({x.name})"


@op("matmul", 2.0, (2, 4))
def matmul(g: Program, x: Value) -> str:
    n = g.size()
    k = x.shape[-1]
    batch = x.shape[:-2] if len(x.shape) > 2 and g.structure.random() < 0.7 else ()
    form = g.pick({"torch.matmul({x}, {y})": 3, "torch.matmul({x}, {t}.transpose(-1, -2))": 2,
                   "torch.matmul({x}, {y}) * {c}": 0.7})  # fmt: skip
    other = g.input((*batch, n, k) if "{t}" in form else (*batch, k, n))
    return form.replace("{x}", x.name).replace("{y}", other).replace("{t}", other).replace("{c}", g.constant())


@op("matmul", 0.8, (2, 2))
def two_matrices(g: Program, x: Value) -> str:
    m, k = x.shape
    n = g.size()
    return g.pick({
        f"torch.addmm({g.parameter((n,))}, {x.name}, {g.parameter((k, n))})": 2,
        f"torch.mm({x.name}.t(), {g.input((m, n))})": 1,
        f"torch.mv({x.name}, {g.input((k,))})": 0.7,
        f"torch.einsum('mk,nk->nm', {x.name}, {g.input((n, k))})": 1,
        f"torch.einsum('mk,m->k', {x.name}, {g.input((m,))})": 0.4,
    })  # fmt: skip


@op("matmul", 0.9, (3, 3))
def three_dims(g: Program, x: Value) -> str:
    b, m, k = x.shape
    n = g.size()
    return g.pick({
        f"torch.bmm({x.name}, {g.input((b, k, n))})": 2,
        f"torch.baddbmm({g.input((b, m, n))}, {x.name}, {g.input((b, k, n))})": 0.7,
        f"torch.einsum('bmk,bnk->bmn', {x.name}, {g.input((b, n, k))})": 1,
        f"torch.einsum('bmk,kn->bnm', {x.name}, {g.parameter((k, n))})": 0.7,
        f"torch.bmm({x.name}.transpose(1, 2), {x.name})": 0.7,
    })  # fmt: skip


@op("conv", 5.0, (3, 5))
def conv(g: Program, x: Value) -> str | None:
    rank = len(x.shape) - 2
    channels = x.shape[1]
    out = g.size(24)
    depthwise = g.structure.random() < 0.2
    groups = channels if depthwise else (2 if channels % 2 == 0 and g.structure.random() < 0.1 else 1)
    out = channels * g.structure.choice((1, 1, 2)) if depthwise else max(out // groups, 1) * groups
    kernel = g.structure.choice((1, 3, 3, 3, 2, 4, 5))
    stride = g.structure.choice((1, 1, 1, 2))
    padding = g.structure.choice((0, kernel // 2, kernel // 2, 1))
    dilation = g.structure.choice((1, 1, 1, 2))
    name, more = f"nn.Conv{rank}d", f", dilation={dilation}" if dilation > 1 else ""
    if g.structure.random() < 0.25 and not depthwise:
        name, more = f"nn.ConvTranspose{rank}d", ""
    bias = g.structure.random() < 0.7
    args = f"{channels}, {out}, {kernel}, stride={stride}, padding={padding}{more}, groups={groups}, bias={bias}"
    return f"{g.module(f'{name}({args})')}({x.name})"


@op("pool", 2.2, (3, 5))
def pool(g: Program, x: Value) -> str:
    rank = len(x.shape) - 2
    k, s = g.structure.choice(((2, 2), (3, 2), (3, 1), (2, 1), (5, 2)))
    p = g.structure.choice((0, k // 2)) if k > 2 else 0
    ceil = ", ceil_mode=True" if g.structure.random() < 0.1 else ""
    return g.pick({
        f"F.max_pool{rank}d({x.name}, {k}, stride={s}, padding={p}{ceil})": 3,
        f"F.avg_pool{rank}d({x.name}, {k}, stride={s}, padding={p}{ceil})": 2,
        f"F.avg_pool{rank}d({x.name}, {k}, stride={s}, padding={p}, count_include_pad=False)": 0.4,
        f"F.adaptive_avg_pool{rank}d({x.name}, {g.structure.choice((1, 1, 2, 3))})": 1.5,
        f"F.adaptive_max_pool{rank}d({x.name}, 1)": 0.3,
    })  # fmt: skip


@op("attention", 0.7, (3, 4))
def attention(g: Program, x: Value) -> str:
    length = g.size(40)
    key = g.input((*x.shape[:-2], length, x.shape[-1]))
    value = g.input((*x.shape[:-2], length, x.shape[-1]))
    return g.pick({
        f"F.scaled_dot_product_attention({x.name}, {key}, {value})": 2,
        f"F.scaled_dot_product_attention({x.name}, {x.name}, {x.name}, is_causal=True)": 1,
        f"torch.softmax(torch.matmul({x.name}, {key}.transpose(-1, -2)) * 0.2, dim=-1)": 1,
    })  # fmt: skip


# ---------------------------------------------------------------- scans, orders, gathers, losses


@op("scan", 0.9, (1, 4))
def scan(g: Program, x: Value) -> str:
    dim = g.dim(x)
    return g.pick({
        f"torch.cumsum({x.name}, dim={dim})": 4,
        f"torch.cumprod(torch.sigmoid({x.name}) + 0.4, dim={dim})": 0.7,
        f"torch.flip(torch.cumsum(torch.flip({x.name}, [{dim}]), dim={dim}), [{dim}])": 0.6,
        f"torch.cumsum({x.name}, dim={dim}) - {x.name}": 0.6,
        f"torch.logcumsumexp({x.name}, dim={dim})": 0.2,
    })  # fmt: skip


@op("order", 0.25, (1, 3))
def order(g: Program, x: Value) -> str:
    dim = g.dim(x)
    return g.pick({
        f"torch.sort({x.name}, dim={dim}).values": 1,
        f"torch.topk({x.name}, {min(3, max(x.shape[dim], 1))}, dim={dim}).values": 1,
        f"torch.argsort({x.name}, dim={dim}, descending=True)": 0.3,
    })  # fmt: skip


@op("gather", 1.2, (1, 4))
def gather(g: Program, x: Value) -> str:
    count = g.size()
    dim = g.dim(x)
    rows = x.shape[dim]
    form = g.pick({"index_select": 2, "gather": 1, "embedding": 1.5, "index": 1, "scatter_add": 0.5, "index_add": 0.3})
    if form == "embedding":
        table = g.size()
        ids = g.input((x.shape[0],), f"index:{table}")
        return f"{g.module(f'nn.Embedding({table}, {x.shape[-1]})')}({ids})"
    if form == "index_select":
        return f"torch.index_select({x.name}, {dim}, {g.input((count,), f'index:{rows}')})"
    if form == "index":
        return f"{x.name}[{g.input((count,), f'index:{x.shape[0]}')}]"
    if form == "gather":
        shape = tuple(min(count, 17) if i == dim % len(x.shape) else n for i, n in enumerate(x.shape))
        return f"torch.gather({x.name}, {dim}, {g.input(shape, f'index:{rows}')})"
    ids = g.input((rows,), f"index:{max(rows // 2, 1)}")
    if form == "index_add":
        return f"torch.zeros_like({x.name}).index_add({dim}, {ids}, {x.name})"
    full = g.input(x.shape, f"index:{max(rows // 2, 1)}")
    return f"torch.zeros_like({x.name}).scatter_add({dim}, {full}, {x.name})"


@op("loss", 0.5, (2, 3))
def loss(g: Program, x: Value) -> str:
    form = g.pick({"F.mse_loss({x}, {y})": 1, "F.l1_loss({x}, {y})": 0.6, "F.smooth_l1_loss({x}, {y})": 0.8,
                   "F.huber_loss({x}, {y})": 0.5, "F.binary_cross_entropy_with_logits({x}, torch.sigmoid({y}))": 0.6,
                   "F.kl_div(torch.log_softmax({x}, -1), torch.softmax({y}, -1), reduction='batchmean')": 0.5,
                   "F.cosine_similarity({x}, {y}, dim=-1)": 0.6})  # fmt: skip
    return form.replace("{x}", x.name).replace("{y}", g.input(x.shape))


@op("loss", 0.3, (2, 2))
def cross_entropy(g: Program, x: Value) -> str:
    return f"F.cross_entropy({x.name}, {g.input(x.shape[:1], f'index:{x.shape[1]}')})"


# ---------------------------------------------------------------- views and copies


@op("view", 3.0, (2, 5))
def view(g: Program, x: Value) -> str | None:
    rank = len(x.shape)
    a, b = sorted(g.structure.sample(range(rank), 2))
    order = list(range(rank))
    g.structure.shuffle(order)
    dim = g.dim(x)
    start = x.shape[dim] // 4
    return g.pick({
        f"{x.name}.transpose({a}, {b})": 2,
        f"{x.name}.permute({', '.join(map(str, order))})": 1,
        f"{x.name}.flatten({rank - 2})": 1,
        f"torch.narrow({x.name}, {dim}, {start}, {max(x.shape[dim] // 2, 1)})": 1,
        f"{x.name}[..., ::2]": 0.6,
        f"{x.name}[..., 1:]": 0.6,
        f"{x.name}.select({dim}, {x.shape[dim] // 2})": 0.5,
        f"torch.chunk({x.name}, 2, dim={dim})[1]": 0.6,
        f"torch.flip({x.name}, [{dim}])": 0.4,
        f"torch.roll({x.name}, {g.structure.choice((1, 2, -1))}, dims={dim})": 0.4,
        f"{x.name}.unsqueeze({dim})": 0.4,
        f"{x.name}.transpose({a}, {b}).contiguous()": 0.5,
        f"{x.name}.reshape(-1)": 0.4,
    })  # fmt: skip


@op("join", 1.6, (1, 4))
def join(g: Program, x: Value) -> str:
    dim = g.dim(x)
    extent = g.size(40)
    shape = tuple(extent if i == dim % len(x.shape) else n for i, n in enumerate(x.shape))
    return g.pick({
        f"torch.cat([{x.name}, {g.input(shape)}], dim={dim})": 3,
        f"torch.stack([{x.name}, {g.partner(x, same=True)}], dim={g.structure.choice((0, -1))})": 0.7,
        f"torch.cat([{x.name}, torch.tanh({x.name})], dim={dim})": 0.7,
        f"{x.name}.repeat_interleave(2, dim={dim})": 0.3,
    })  # fmt: skip


@op("pad", 1.0, (2, 5))
def pad(g: Program, x: Value) -> str:
    low, high = g.structure.choice(((1, 1), (0, 2), (3, 0), (2, 1)))
    where = f"{low}, {high}" if len(x.shape) < 3 or g.structure.random() < 0.6 else f"{low}, {high}, 1, 1"
    return g.pick({f"F.pad({x.name}, ({where}))": 3, f"F.pad({x.name}, ({where}), value=0.5)": 0.7,
                   f"F.pad({x.name}, ({low}, {high}), mode='replicate')": 0.3})  # fmt: skip


@op("resize", 0.7, (4, 4))
def resize(g: Program, x: Value) -> str:
    return g.pick({
        f"F.interpolate({x.name}, scale_factor=2, mode='nearest')": 1.2,
        f"F.interpolate({x.name}, scale_factor=2, mode='bilinear')": 0.8,
        f"F.pixel_shuffle({x.name}, 2)": 1.0,
        f"F.pixel_unshuffle({x.name}, 2)": 0.6,
        f"F.unfold({x.name}, 3, padding=1)": 0.6,
    })  # fmt: skip


@op("expand", 0.6, (1, 3))
def expand(g: Program, x: Value) -> str:
    n = g.structure.choice((2, 3))
    return g.pick({f"{x.name}.unsqueeze(0).expand({', '.join(map(str, (n, *x.shape)))})": 1,
                   f"{x.name}.unsqueeze(-1) * {g.input((g.size(24),))}": 1,
                   f"{x.name}.unsqueeze(-1) - {x.name}.unsqueeze(-2)": 0.7})  # fmt: skip


@op("recurrent", 0.12, (3, 3))
def recurrent(g: Program, x: Value) -> str:
    hidden = g.size(20)
    cell = g.pick({"nn.LSTM": 1, "nn.GRU": 1, "nn.RNN": 0.7})
    return f"{g.module(f'{cell}({x.shape[-1]}, {hidden}, batch_first=True)')}({x.name})[0]"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
