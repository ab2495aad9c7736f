"""The same decoder in NumPy: what the compiled engine is tested against, and the way where there is no compiler."""

from __future__ import annotations

import numpy as np
from kvc.model.infer.engine import MAX_ROWS, rotary
from kvc.model.weights import Weights


class Reference:
    """Interface of kvc.model.infer.engine.Engine, float32 weights, one row at a time."""

    def __init__(self, weights: Weights, slots: int = 1, context: int | None = None) -> None:
        self.shape = s = weights.shape
        self.slots, self.context = slots, min(context or s.context, s.context)
        self._dense = {name: weights.dense(name) for name in weights.matrices}
        self._vectors = weights.vectors
        self._cosine, self._sine = rotary(s.head, self.context, s.theta)
        size = (slots, s.layers, s.kv_heads, self.context, s.head)
        self._keys, self._values = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def forward(self, tokens: np.ndarray, slots: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """See Engine.forward."""
        if not 0 < len(tokens) <= MAX_ROWS or positions.max() >= self.context:
            raise ValueError(f"{len(tokens)} rows to position {positions.max()} of {self.context}")
        rows = [self._row(*row) for row in zip(tokens, slots, positions, strict=True)]
        kept = [x for x, keep in zip(rows, wanted, strict=True) if keep]
        return np.array(kept, np.float32) @ self._dense["model.embed_tokens.weight"].T

    def _row(self, token: int, slot: int, position: int) -> np.ndarray:
        x = self._dense["model.embed_tokens.weight"][token]
        for n in range(self.shape.layers):
            name = f"model.layers.{n}"
            x = x + self._attention(self._norm(x, f"{name}.input_layernorm"), n, slot, position)
            y = self._norm(x, f"{name}.post_attention_layernorm")
            gate = self._dense[f"{name}.mlp.gate_proj.weight"] @ y
            up = self._dense[f"{name}.mlp.up_proj.weight"] @ y
            x = x + self._dense[f"{name}.mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
        return self._norm(x, "model.norm")

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.shape.epsilon))
        return x / scale * self._vectors[f"{name}.weight"]

    def _turned(self, x: np.ndarray, position: int) -> np.ndarray:
        a, b = np.split(x, 2, -1)
        c, s = self._cosine[position], self._sine[position]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def _attention(self, x: np.ndarray, n: int, slot: int, position: int) -> np.ndarray:
        s, name = self.shape, f"model.layers.{n}.self_attn"
        q, k, v = ((self._dense[f"{name}.{p}_proj.weight"] @ x).reshape(-1, s.head) for p in "qkv")
        self._keys[slot, n, :, position] = self._turned(self._norm(k, f"{name}.k_norm"), position)
        self._values[slot, n, :, position] = v
        q = self._turned(self._norm(q, f"{name}.q_norm"), position).reshape(s.kv_heads, -1, s.head)
        scores = q @ self._keys[slot, n, :, : position + 1].transpose(0, 2, 1) / np.sqrt(np.float32(s.head))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self._dense[f"{name}.o_proj.weight"] @ (weights @ self._values[slot, n, :, : position + 1]).reshape(-1)
