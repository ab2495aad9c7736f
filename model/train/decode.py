"""Answers of the network under training, many at a time: what probes and reinforcement learning sample from.

All sequences go in step: each reads its own prompt token by token, then writes. A step is one shape whatever the
position, so that on a GPU it is recorded once as a graph and replayed: a step of a small model is hundreds of launches,
each shorter than the time that Python takes to ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from kvc.model.train.network import Block, Decoder, Norm, turn
from torch import Tensor

_WARMUP = 3  # steps before a graph is recorded, in which libraries set themselves up


@dataclass(frozen=True)
class _Layer:
    """A block's matrices in the type that products are made in, its norms, and its part of the cache, keys and values
    of [batch, kv_heads, time, head]."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norms: tuple[Norm, Norm, Norm, Norm]
    keys: Tensor
    values: Tensor


class Stepper:
    """One token of every sequence at a time, over a cache of `time` positions."""

    def __init__(self, network: Decoder, batch: int, time: int) -> None:
        self.shape, self.device = network.shape, network.cosine.device
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.network, self.batch = network, batch
        self.head = network.model.embed_tokens.weight.to(self.dtype)
        self.layers = [self._layer(block, time) for block in network.model.layers]
        self.token = torch.zeros(batch, dtype=torch.long, device=self.device)
        self.at = torch.zeros(1, dtype=torch.long, device=self.device)
        self.positions = torch.arange(time, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        if self.device.type == "cuda":
            self._record()

    def _layer(self, block: torch.nn.Module, time: int) -> _Layer:
        assert isinstance(block, Block)
        s, attention, mlp = self.shape, block.self_attn, block.mlp
        linear = (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
            mlp["gate_proj"], mlp["up_proj"], mlp["down_proj"],
        )  # fmt: skip
        norms = (block.input_layernorm, attention.q_norm, attention.k_norm, block.post_attention_layernorm)
        size = (self.batch, s.kv_heads, time, s.head)
        q, k, v, o, gate, up, down = (m.get_parameter("weight").to(self.dtype) for m in linear)
        keys, values = (torch.zeros(size, dtype=self.dtype, device=self.device) for _ in range(2))
        return _Layer(q, k, v, o, gate, up, down, norms, keys, values)

    def logits(self, token: Tensor, at: int) -> Tensor:
        """Logits [batch, vocabulary] after token [batch] at a position; they hold until the next step."""
        self.token.copy_(token)
        self.at.fill_(at)
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._out

    def _record(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARMUP):
                self._step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._out = self._step()
        self._graph = graph

    def _step(self) -> Tensor:
        x = self.network.model.embed_tokens(self.token)
        cosine, sine = self.network.cosine[self.at], self.network.sine[self.at]
        later = self.positions > self.at
        for layer in self.layers:
            first, _, _, second = layer.norms
            x = x + self._attention(layer, first(x).to(self.dtype), cosine, sine, later)
            y = second(x).to(self.dtype)
            x = x + F.linear(F.silu(F.linear(y, layer.gate)) * F.linear(y, layer.up), layer.down)
        return F.linear(self.network.model.norm(x).to(self.dtype), self.head)

    def _attention(self, layer: _Layer, y: Tensor, cosine: Tensor, sine: Tensor, later: Tensor) -> Tensor:
        s = self.shape
        _, q_norm, k_norm, _ = layer.norms
        q = turn(q_norm(F.linear(y, layer.q).view(-1, s.heads, s.head)), cosine, sine).to(self.dtype)
        k = turn(k_norm(F.linear(y, layer.k).view(-1, s.kv_heads, s.head)), cosine, sine).to(self.dtype)
        v = F.linear(y, layer.v).view(-1, s.kv_heads, s.head)
        layer.keys.index_copy_(2, self.at, k[:, :, None])
        layer.values.index_copy_(2, self.at, v[:, :, None])
        grouped = q.view(-1, s.kv_heads, s.heads // s.kv_heads, s.head)
        scores = (grouped @ layer.keys.transpose(-1, -2)).float() * s.head**-0.5
        weights = scores.masked_fill(later, float("-inf")).softmax(-1).to(self.dtype)
        return F.linear((weights @ layer.values).reshape(-1, s.heads * s.head), layer.o)


@torch.no_grad()
def sample(
    network: Decoder,
    prompts: list[list[int]],
    most: int,
    end: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Answers to prompts. Stops when all have ended or at `most` tokens an answer. Greedy at temperature 0."""
    network.eval()
    device = network.cosine.device
    steps = min(max(map(len, prompts)) + most, network.shape.context)
    written = torch.zeros(len(prompts), steps, dtype=torch.long, device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    for n, p in enumerate(prompts):
        written[n, : len(p)] = torch.tensor(p[:steps], device=device)
    stepper = Stepper(network, len(prompts), steps)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for at in range(1, steps):
        chosen = _choose(stepper.logits(written[:, at - 1], at - 1).float(), temperature, generator)
        writing = at >= lengths
        written[:, at] = torch.where(writing, torch.where(done, end, chosen), written[:, at])
        done |= writing & ((written[:, at] == end) | (at + 1 - lengths >= most))
        if at % 32 == 0 and bool(done.all()):
            break
    answers = []
    for row, prompt in zip(written.tolist(), prompts, strict=True):
        answer = row[len(prompt) : len(prompt) + most]
        answers.append(answer[: answer.index(end)] if end in answer else answer)
    return answers


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature <= 0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)[:, 0]
