"""The shape of a Qwen3-architecture model: one description for training, inference and files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder as Qwen3 has it: grouped-query attention with normed queries and keys, SwiGLU, RMS norms,
    rotary embedding, tied embeddings. The default is the shipped model's: 22.4 M parameters at 4096 tokens."""

    vocabulary: int = 4096
    hidden: int = 384
    layers: int = 12
    heads: int = 6
    kv_heads: int = 2
    head: int = 64
    inner: int = 1152
    context: int = 4096
    theta: float = 10000.0
    epsilon: float = 1e-6
    tied: bool = True  # whether the last matrix is the embedding; kvc's own models always have it so

    def __post_init__(self) -> None:
        if self.hidden % 16 or self.inner % 16 or self.head % 16 or self.heads % self.kv_heads:
            raise ValueError(f"sizes must be multiples of 16, heads of kv_heads: {self}")

    @property
    def parameters(self) -> int:
        """Weights, tied embeddings counted once."""
        attention = self.hidden * self.head * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head
        layer = attention + 3 * self.hidden * self.inner + 2 * self.hidden
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Name and shape (rows, columns) of every matrix, in the order of use; names as Qwen3 checkpoints have them."""
        h, q, kv = self.hidden, self.heads * self.head, self.kv_heads * self.head
        found = {"model.embed_tokens.weight": (self.vocabulary, h)}
        for n in range(self.layers):
            layer = f"model.layers.{n}"
            found |= {
                f"{layer}.self_attn.q_proj.weight": (q, h),
                f"{layer}.self_attn.k_proj.weight": (kv, h),
                f"{layer}.self_attn.v_proj.weight": (kv, h),
                f"{layer}.self_attn.o_proj.weight": (h, q),
                f"{layer}.mlp.gate_proj.weight": (self.inner, h),
                f"{layer}.mlp.up_proj.weight": (self.inner, h),
                f"{layer}.mlp.down_proj.weight": (h, self.inner),
            }
        return found

    def vectors(self) -> dict[str, int]:
        """Name and length of every norm, in the order of use."""
        found: dict[str, int] = {}
        for n in range(self.layers):
            layer = f"model.layers.{n}"
            found |= {
                f"{layer}.input_layernorm.weight": self.hidden,
                f"{layer}.self_attn.q_norm.weight": self.head,
                f"{layer}.self_attn.k_norm.weight": self.head,
                f"{layer}.post_attention_layernorm.weight": self.hidden,
            }
        return {**found, "model.norm.weight": self.hidden}

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k != "tied" or not v}  # files of kvc's models stay as they are

    @staticmethod
    def from_json(data: dict[str, Any]) -> Shape:
        return Shape(**data)

    def qwen3(self) -> Any:
        """The same as a transformers configuration."""
        from transformers import Qwen3Config

        settings: dict[str, Any] = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.context,
            "rope_theta": self.theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "rms_norm_eps": self.epsilon,
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 3,
            "pad_token_id": 0,
        }
        return Qwen3Config(**settings)
