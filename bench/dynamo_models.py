"""Rows of `kvc bench dynamo`: layers of torch.nn put together as people do, and architectures of transformers at their
smallest. A row that is trained has no dropout, so that its gradients are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvc.bench.zoo_models import Entry, Inputs, hf, image
from kvc.diagnostics import KvcError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Row:
    """A model that is run, and trained where `train` says so."""

    entry: Entry
    train: bool = False

    @property
    def name(self) -> str:
        return self.entry.name


def _floats(*shape: int) -> Inputs:
    def inputs(module: Any) -> dict[str, Any]:
        import torch

        return {"": (torch.randn(*shape),)}

    return inputs


def _tokens(vocabulary: int, *shape: int, name: str = "") -> Inputs:
    def inputs(module: Any) -> dict[str, Any]:
        import torch

        ids = torch.randint(2, vocabulary, shape)
        return {name: ids if name else (ids,)}

    return inputs


def _nn(name: str, build: Callable[[], torch.nn.Module], inputs: Inputs, train: bool = False) -> Row:
    return Row(Entry(name, "torch", build, inputs, "torch.nn"), train)


def _hf(model: str, inputs: Inputs, config: str = "", train: bool = False, **settings: Any) -> Row:
    return Row(hf(model, inputs, config, "transformers", **settings), train)


# ---------------------------------------------------------------- torch.nn


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def _norm_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.LogSoftmax(-1))


def _batch_norm_mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.SiLU(), nn.Linear(8, 3))


def _convnet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def _separable() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Conv2d(4, 6, 1), nn.GroupNorm(2, 6), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def _temporal() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.Tanh(), nn.Conv1d(4, 2, 1, stride=2))


def _autoencoder() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(3, 1, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid(),
    )  # fmt: skip


def _upsampling() -> Any:
    from torch import nn

    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ELU(), nn.Upsample(scale_factor=2, mode="bilinear"))


def _classifier() -> Any:
    from torch import nn

    return nn.Sequential(nn.EmbeddingBag(20, 6, mode="mean"), nn.Linear(6, 3))


def _language_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Embedding(20, 6), nn.RMSNorm(6), nn.Linear(6, 20, bias=False))


def _layer(**settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        from torch import nn

        return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, **settings)

    return build


def _decoder_layer() -> Any:
    from torch import nn

    class CrossAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=0.0, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x, x.flip(1))
            return out

    return CrossAttention()


def _residual() -> Any:
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(),
                nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.body(x))

    import torch

    return Residual()


def _recurrent(kind: str) -> Callable[[], Any]:
    def build() -> Any:
        from torch import nn

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = getattr(nn, kind)(4, 5, batch_first=True)
                self.head = nn.Linear(5, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
                return out

        return Recurrent()

    return build


def _gated() -> Any:
    import torch
    from torch import nn

    class Gated(nn.Module):
        """A mixture of two experts, weighted by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 2)
            self.experts = nn.ModuleList(nn.Linear(6, 5) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weights = self.gate(x).softmax(-1)
            return torch.stack([e(x) for e in self.experts], -1).mul(weights.unsqueeze(-2)).sum(-1)

    return Gated()


_TORCH = (
    _nn("mlp", _mlp, _floats(4, 6), train=True),
    _nn("layer_norm_mlp", _norm_mlp, _floats(4, 6), train=True),
    _nn("batch_norm_mlp", _batch_norm_mlp, _floats(6, 6), train=True),
    _nn("convnet", _convnet, _floats(2, 2, 6, 6), train=True),
    _nn("residual_block", _residual, _floats(2, 3, 5, 5)),
    _nn("separable_convolution", _separable, _floats(2, 4, 5, 5)),
    _nn("temporal_convolution", _temporal, _floats(2, 3, 12), train=True),
    _nn("autoencoder", _autoencoder, _floats(2, 1, 6, 6)),
    _nn("upsampling", _upsampling, _floats(1, 2, 4, 4)),
    _nn("embedding_bag", _classifier, _tokens(20, 3, 5)),
    _nn("language_model", _language_model, _tokens(20, 2, 4), train=True),
    _nn("encoder_layer", _layer(), _floats(2, 5, 8), train=True),
    _nn("encoder_layer_pre_norm", _layer(norm_first=True, activation="gelu"), _floats(2, 5, 8)),
    _nn("decoder_layer", _decoder_layer, _floats(2, 4, 8)),
    _nn("lstm", _recurrent("LSTM"), _floats(2, 3, 4), train=True),
    _nn("gru", _recurrent("GRU"), _floats(2, 3, 4), train=True),
    _nn("rnn", _recurrent("RNN"), _floats(2, 3, 4), train=True),
    _nn("gated_experts", _gated, _floats(3, 6)),
)


# ---------------------------------------------------------------- transformers

_TINY: dict[str, Any] = {
    "vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20,
    "max_position_embeddings": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_DECODER: dict[str, Any] = {
    **{k: v for k, v in _TINY.items() if "dropout" not in k},
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_IDS = _tokens(24, 2, 5, name="input_ids")
_VISION: dict[str, Any] = {
    "image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 20,
}  # fmt: skip

_TRANSFORMERS = (
    _hf("BertModel", _IDS, **_TINY),
    _hf(
        "DistilBertModel",
        _IDS,
        vocab_size=24,
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=20,
        max_position_embeddings=16,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    _hf(
        "GPT2LMHeadModel",
        _IDS,
        "GPT2",
        vocab_size=24,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        train=True,
    ),
    _hf("LlamaForCausalLM", _IDS, **_DECODER, num_key_value_heads=1, train=True),
    _hf("Qwen3ForCausalLM", _IDS, **_DECODER, num_key_value_heads=1, head_dim=8),
    _hf(
        "OPTForCausalLM",
        _IDS,
        "OPT",
        vocab_size=24,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=20,
        max_position_embeddings=16,
        word_embed_proj_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    _hf(
        "MambaForCausalLM",
        _IDS,
        vocab_size=24,
        hidden_size=8,
        num_hidden_layers=1,
        state_size=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    ),
    _hf("ViTModel", image(8), **_VISION),
    _hf("ResNetModel", image(16), "ResNet", embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic"),
    _hf("ConvNextModel", image(32), "ConvNext", hidden_sizes=[4, 4, 8, 8], depths=[1, 1, 1, 1], image_size=32),
)

ROWS: tuple[Row, ...] = (*_TORCH, *_TRANSFORMERS)


def rows(names: frozenset[str]) -> list[Row]:
    """The rows of those names (any case), all where none is given. KVC0106 for a name that is none."""
    known = {row.name.lower(): row for row in ROWS}
    for name in names:
        if name.lower() not in known:
            raise KvcError("KVC0106", f"no model {name!r}", hint=f"one of: {', '.join(sorted(known))}")
    wanted = {name.lower() for name in names}
    return [row for row in ROWS if not wanted or row.name.lower() in wanted]
