"""Modules of torch.nn by construction: constructor and input templates, instantiated over several sizes and dtypes.

A row is (constructor, inputs, modes). Names in braces are drawn together for one variant: {n} batch, {c} channels (a
multiple of 4), {o} output features, {l} length, {h} and {w} image sides, {d} depth, {k} odd kernel.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

VARIANTS = 6
_DTYPES = ("float32", "float32", "bfloat16", "float16")
_F32_ALONE = ("LocalResponseNorm", "AvgPool3d", "MultiMarginLoss")  # torch's CPU kernels have no narrow types for these

_X2, _X3, _X4, _X5 = "({n}, {c})", "({n}, {c}, {l})", "({n}, {c}, {h}, {w})", "({n}, {c}, {d}, {h}, {w})"
_SEQ = "({n}, {l}, {c})"

Row = tuple[str, tuple[str, ...], tuple[str, ...]]


def _rows(constructors: str, inputs: tuple[str, ...], modes: tuple[str, ...] = ("eval",)) -> list[Row]:
    return [(text.strip(), inputs, modes) for text in constructors.strip().splitlines()]


_ACTIVATIONS = """
    ELU(alpha=0.7)
    Hardshrink()
    Hardsigmoid()
    Hardtanh(-0.6, 0.8)
    Hardswish()
    LeakyReLU(0.2)
    LogSigmoid()
    PReLU()
    ReLU()
    ReLU6()
    RReLU()
    SELU()
    CELU(1.3)
    GELU()
    GELU(approximate='tanh')
    Sigmoid()
    SiLU()
    Mish()
    Softplus(beta=2)
    Softshrink(0.3)
    Softsign()
    Tanh()
    Tanhshrink()
    Threshold(0.1, 0.5)
"""

ROWS: list[Row] = [
    *_rows(_ACTIVATIONS, (_X3,)),
    *_rows(
        """
        Softmax(dim=-1)
        Softmin(dim=1)
        LogSoftmax(dim=-1)
        GLU(dim=1)
        """,
        (_X3,),
    ),
    *_rows("Softmax2d()", (_X4,)),
    *_rows("Linear({c}, {o})\nLinear({c}, {o}, bias=False)", (_SEQ,)),
    *_rows("Bilinear({c}, {c}, {k})", (_X2, _X2)),
    *_rows(
        """
        Conv1d({c}, {o}, {k}, padding={k} // 2)
        Conv1d({c}, {c}, 3, groups={c})
        Conv1d({c}, {o}, 4, stride=2)
        ConvTranspose1d({c}, 6, 4, stride=2, padding=1)
        Conv1d({c}, 8, 3, dilation=2, padding_mode='circular', padding=1)
        """,
        (_X3,),
    ),
    *_rows(
        """
        Conv2d({c}, {o}, 1)
        Conv2d({c}, 8, {k}, padding={k} // 2, bias=False)
        Conv2d({c}, {c}, 3, groups={c}, padding=1)
        Conv2d({c}, 8, 3, stride=2)
        Conv2d({c}, 8, 3, dilation=2)
        Conv2d({c}, 8, (1, 3), padding=(0, 1), groups=2)
        ConvTranspose2d({c}, 6, 2, stride=2)
        ConvTranspose2d({c}, 5, 3, padding=1)
        """,
        (_X4,),
    ),
    *_rows(
        """
        Conv3d({c}, 4, 3, padding=1)
        Conv3d({c}, 6, (1, 3, 3))
        ConvTranspose3d({c}, 3, 2, stride=2)
        """,
        (_X5,),
    ),
    *_rows(
        """
        MaxPool1d(3, stride=2)
        AvgPool1d(3, stride=1, padding=1)
        AdaptiveAvgPool1d(5)
        LPPool1d(2, 3)
        """,
        (_X3,),
    ),
    *_rows(
        """
        MaxPool2d(2)
        MaxPool2d(3, stride=2, padding=1)
        AvgPool2d(3, stride=2, ceil_mode=True)
        AdaptiveAvgPool2d(1)
        AdaptiveAvgPool2d((3, 2))
        AdaptiveMaxPool2d(2)
        LPPool2d(2, 2)
        PixelShuffle(2)
        PixelUnshuffle(1)
        ZeroPad2d(2)
        ReflectionPad2d(1)
        ReplicationPad2d(2)
        ConstantPad2d((1, 2, 0, 1), 0.5)
        CircularPad2d(1)
        Unfold(3, padding=1)
        Upsample(scale_factor=2)
        Upsample(scale_factor=2, mode='bilinear')
        Upsample(size=(9, 7), mode='bilinear', align_corners=True)
        Upsample(scale_factor=2, mode='bicubic')
        ChannelShuffle(2)
        Flatten()
        Flatten(2)
        LocalResponseNorm(3)
        """,
        (_X4,),
    ),
    *_rows(
        """
        MaxPool3d(2)
        AvgPool3d(2)
        AdaptiveAvgPool3d(2)
        ConstantPad3d(1, 0.0)
        """,
        (_X5,),
    ),
    *_rows(
        """
        ReflectionPad1d(2)
        ReplicationPad1d((1, 3))
        ConstantPad1d(2, -0.5)
        """,
        (_X3,),
    ),
    *_rows(
        """
        BatchNorm1d({c})
        InstanceNorm1d({c}, affine=True)
        GroupNorm(4, {c})
        """,
        (_X3,), ("eval", "train"),
    ),
    *_rows(
        """
        BatchNorm2d({c})
        GroupNorm(2, {c})
        InstanceNorm2d({c})
        """,
        (_X4,), ("eval", "train"),
    ),
    *_rows("BatchNorm3d({c})", (_X5,), ("eval", "train")),
    *_rows(
        """
        LayerNorm({c})
        LayerNorm({c}, bias=False)
        LayerNorm(({l}, {c}))
        RMSNorm({c})
        """,
        (_SEQ,),
    ),
    *_rows("Embedding({v}, {c})\nEmbedding({v}, {c}, padding_idx=0)", ("index:({n}, {l})",)),
    *_rows("EmbeddingBag({v}, {c}, mode='mean')\nEmbeddingBag({v}, {c}, mode='sum')", ("index:({n}, {l})",)),
    *_rows(
        """
        LSTM({c}, {k}, batch_first=True)
        GRU({c}, {k}, batch_first=True)
        RNN({c}, {k}, batch_first=True)
        """,
        (_SEQ,),
    ),
    *_rows(
        """
        LSTMCell({c}, {k})
        GRUCell({c}, {k})
        RNNCell({c}, {k})
        """,
        (_X2,),
    ),
    *_rows(
        """
        MSELoss()
        L1Loss()
        SmoothL1Loss()
        HuberLoss(delta=0.7)
        KLDivLoss(reduction='batchmean')
        PoissonNLLLoss()
        SoftMarginLoss()
        CosineSimilarity(dim=1)
        PairwiseDistance()
        BCEWithLogitsLoss()
        MSELoss(reduction='none')
        """,
        (_X2, _X2),
    ),
    *_rows("TripletMarginLoss()\nTripletMarginWithDistanceLoss()", (_X2, _X2, _X2)),
    *_rows(
        """
        CrossEntropyLoss()
        NLLLoss()
        MultiMarginLoss()
        CrossEntropyLoss(label_smoothing=0.1)
        """,
        (_X2, "target:({n},)"),
    ),
    *_rows(
        """
        TransformerEncoderLayer({c}, 2, {o}, batch_first=True)
        MultiheadAttention({c}, 4, batch_first=True)
        TransformerEncoderLayer({c}, 4, {o}, batch_first=True, norm_first=True, activation='gelu')
        """,
        (_SEQ,),
    ),
    *_rows("TransformerDecoderLayer({c}, 4, {o}, batch_first=True)", (_SEQ, _SEQ)),
]  # fmt: skip


def variant(row: int, number: int) -> tuple[str, str, str]:
    """(origin, source text, mode) of one variant of a row."""
    constructor, inputs, modes = ROWS[row]
    rng = random.Random(f"{row}/{number}")
    sizes = {
        "n": rng.choice((1, 2, 3, 5)), "c": rng.choice((8, 12, 16, 20, 32, 36, 64)), "o": rng.choice((7, 24, 40, 65)),
        "l": rng.choice((9, 17, 33, 50, 64, 101)), "h": rng.choice((6, 8, 11, 14)), "w": rng.choice((6, 7, 10, 16)),
        "d": rng.choice((4, 5, 6)), "k": rng.choice((3, 5, 7)), "v": rng.choice((31, 100, 257)),
    }  # fmt: skip
    mode = modes[number % len(modes)]
    dtype = rng.choice(_DTYPES)
    made = constructor.format(**sizes)
    if made.startswith(_F32_ALONE):
        dtype = "float32"
    drawn = ",\n".join(f"        {_input(text.format(**sizes), dtype, sizes)}" for text in inputs)
    names = [f"x{i}" for i in range(len(inputs))]
    call = ", ".join(names * 3 if made.startswith("MultiheadAttention") else names)
    cast = f".to(torch.{dtype})" if dtype != "float32" else ""
    source = (
        "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        self.inner = nn.{made}{cast}\n\n"
        f"    def forward(self, {', '.join(names)}):\n        return self.inner({call})\n\n\n"
        f"def get_inputs():\n    return [\n{drawn},\n    ]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    return f"torch.nn.{made} {dtype} {mode}", source, mode


def _input(text: str, dtype: str, sizes: dict[str, int]) -> str:
    kind, _, shape = text.rpartition(":")
    if kind == "index":
        return f"torch.randint(0, {sizes['v']}, {shape})"
    if kind == "target":
        return f"torch.randint(0, {sizes['c']}, {shape})"
    return f"torch.randn({shape}, dtype=torch.{dtype})"


def jobs() -> Iterator[dict[str, Any]]:
    """A harvest task for each variant of each row; the first variants of all rows first."""
    for number in range(VARIANTS):
        for row in range(len(ROWS)):
            yield {"do": "harvest", "library": "nn", "row": row, "number": number}
