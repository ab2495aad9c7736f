"""What training takes of a GPU's memory, reckoned before it starts.

Weights, gradients and optimiser by the number of parameters; activations by Qwen3's layers with or without gradient
checkpointing (one input of each layer is kept, and one layer is worked out again at a time); logits in the dtype of the
model and in float32, with their gradient. Fragmentation and the framework are a tenth on top and 2 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvc.model.shape import Shape
from kvc.model.train.recipe import Recipe

GIB = 1 << 30
#: Bytes a trained parameter of the optimiser's state.
STATE_BYTES = {"adamw": 8, "adamw8bit": 2}


@dataclass(frozen=True)
class Memory:
    """GiB on one GPU that holds everything."""

    weights: float
    gradients: float
    optimiser: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return 1.1 * (self.weights + self.gradients + self.optimiser + self.activations + self.logits) + 2.0

    def text(self) -> str:
        return (
            f"{self.total:.0f} GiB: weights {self.weights:.1f}, gradients {self.gradients:.1f}, "
            f"optimiser {self.optimiser:.1f}, activations {self.activations:.1f}, logits {self.logits:.1f}, rest on top"
        )


def adapted(shape: Shape, rank: int) -> int:
    """Parameters of LoRA adapters of a rank on every matrix of every layer."""
    sizes = [size for name, size in shape.matrices().items() if ".layers." in name]
    return sum(rank * (rows + columns) for rows, columns in sizes)


def _activations(shape: Shape, tokens: int, checkpointed: bool) -> float:
    """Bytes at two a value: a layer's inputs and what its products, norms and gate keep."""
    attention = shape.head * (2 * shape.heads + 2 * shape.kv_heads)
    layer = tokens * (6 * shape.hidden + 2 * attention + 4 * shape.inner) * 2
    kept = shape.layers * tokens * shape.hidden * 2
    return kept + layer if checkpointed else shape.layers * layer


def sft(recipe: Recipe) -> Memory:
    """Supervised fine-tuning, one sequence of the recipe's length at a time."""
    shape, length = recipe.shape, recipe.sft.length
    trained = adapted(shape, recipe.lora.rank) if recipe.lora.rank else shape.parameters
    return Memory(
        2 * shape.parameters / GIB + (2 * trained / GIB if recipe.lora.rank else 0.0),
        2 * trained / GIB,
        STATE_BYTES[recipe.sft.optimiser] * trained / GIB,
        _activations(shape, length, recipe.sft.gradient_checkpointing) / GIB,
        10 * length * shape.vocabulary / GIB,
    )


def rl(recipe: Recipe, prompt_tokens: int = 512) -> Memory:
    """GRPO, one answer at a time through the gradient. A full fine-tuning keeps a copy of the weights as the reference;
    an adapter is simply switched off."""
    shape = recipe.shape
    trained = adapted(shape, recipe.lora.rank) if recipe.lora.rank else shape.parameters
    tokens = prompt_tokens + recipe.rl.answer_tokens
    copies = 1 if recipe.lora.rank or not recipe.rl.kl else 2
    return Memory(
        2 * copies * shape.parameters / GIB,
        2 * trained / GIB,
        STATE_BYTES[recipe.sft.optimiser] * trained / GIB,
        _activations(shape, tokens, recipe.sft.gradient_checkpointing) / GIB,
        10 * recipe.rl.answer_tokens * shape.vocabulary / GIB,
    )
