"""References from installed libraries: their models built from small configurations, with random weights.

transformers: every model type that AutoModel knows, its configuration's own fields set to small values where it has
them. torchvision and timm: families with small width and depth. What a library cannot build in that size is reported
by the capture and costs nothing else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from kvc.diagnostics import KvcError
from kvc.vault.harvest import Reference
from kvc.vault.sources import nn_modules, vision

LICENCES = {"nn": "BSD-3-Clause", "transformers": "Apache-2.0", "torchvision": "BSD-3-Clause", "timm": "Apache-2.0"}
TRANSFORMERS_VARIANTS = 3

#: Fields of configurations and their values in each variant; only those that a configuration has are set.
_SMALL: dict[str, tuple[Any, Any, Any]] = {
    "hidden_size": (48, 64, 40), "d_model": (48, 64, 40), "n_embd": (48, 64, 40), "embed_dim": (48, 64, 40),
    "dim": (48, 64, 40), "emb_dim": (48, 64, 40), "encoder_embed_dim": (48, 64, 40), "embedding_size": (48, 64, 40),
    "num_hidden_layers": (1, 2, 1), "n_layer": (1, 2, 1), "n_layers": (1, 2, 1), "num_layers": (1, 2, 1),
    "encoder_layers": (1, 1, 1), "decoder_layers": (1, 1, 1), "num_decoder_layers": (1, 1, 1),
    "num_encoder_layers": (1, 1, 1),
    "num_attention_heads": (4, 4, 2), "n_head": (4, 4, 2), "n_heads": (4, 4, 2), "num_heads": (4, 4, 2),
    "encoder_attention_heads": (4, 4, 2), "decoder_attention_heads": (4, 4, 2), "num_key_value_heads": (2, 4, 1),
    "num_kv_heads": (2, 4, 1), "head_dim": (12, 16, 20), "d_kv": (12, 16, 20),
    "intermediate_size": (96, 120, 72), "ffn_dim": (96, 120, 72), "d_ff": (96, 120, 72), "n_inner": (96, 120, 72),
    "encoder_ffn_dim": (96, 120, 72), "decoder_ffn_dim": (96, 120, 72), "moe_intermediate_size": (32, 48, 24),
    "shared_expert_intermediate_size": (32, 48, 24),
    "vocab_size": (131, 128, 97), "type_vocab_size": (2, 2, 2), "max_position_embeddings": (64, 64, 48),
    "n_positions": (64, 64, 48), "max_source_positions": (40, 40, 40), "max_target_positions": (40, 40, 40),
    "num_local_experts": (4, 4, 4), "num_experts": (4, 4, 4), "n_routed_experts": (4, 4, 4),
    "num_experts_per_tok": (2, 2, 2),
    "n_group": (1, 1, 1), "topk_group": (1, 1, 1), "pad_token_id": (0, 0, 0), "bos_token_id": (1, 1, 1),
    "eos_token_id": (2, 2, 2), "decoder_start_token_id": (1, 1, 1),
    "image_size": (32, 24, 16), "patch_size": (8, 8, 4), "num_channels": (3, 3, 3), "depths": (None, None, None),
    "state_size": (8, 16, 4), "time_step_rank": (4, 8, 4), "num_mel_bins": (16, 16, 20), "sliding_window": (16, 16, 16),
    "use_cache": (False, False, False), "kv_lora_rank": (16, 16, 8), "q_lora_rank": (24, 24, 16),
    "qk_rope_head_dim": (8, 8, 8), "qk_nope_head_dim": (8, 8, 8), "v_head_dim": (12, 16, 8),
    "hidden_sizes": (None, None, None),
}  # fmt: skip
#: Lists whose length counts the stages of a model: kept at their length, with small entries.
_STAGES = {"depths": (1, 1, 1), "hidden_sizes": (16, 24, 12), "embed_dims": (16, 24, 12), "layer_types": ()}
_DTYPES = ("float32", "bfloat16", "float32")


def available() -> list[str]:
    """Libraries of LICENCES that can be imported here."""
    return [name for name in LICENCES if name == "nn" or importlib.util.find_spec(name) is not None]


def jobs(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Harvest tasks of the libraries, in the order of `names`. KVC0105 for one that is not installed."""
    for name in names:
        if name not in available():
            raise KvcError(
                "KVC0105", f"{name} is not installed", hint=f"pip install {name}, or leave it out of --sources"
            )
    for name in names:
        if name == "nn":
            yield from nn_modules.jobs()
        elif name == "transformers":
            yield from _transformers_jobs()
        else:
            yield from vision.jobs(name)


def reference(task: dict[str, Any]) -> Reference:
    """The reference that a task of `jobs` names. KvcError (KVC0102) where the library cannot build it."""
    library = task["library"]
    if library == "nn":
        origin, source, mode = nn_modules.variant(task["row"], task["number"])
        return Reference("nn", origin, LICENCES["nn"], source, mode=mode)
    if library == "transformers":
        return _transformers_reference(task["model"], task["number"])
    origin, source = vision.source(library, task["model"], task["number"])
    return Reference(library, origin, LICENCES[library], source)


# ---------------------------------------------------------------- transformers


def _transformers_jobs() -> Iterator[dict[str, Any]]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    types = sorted(set(CONFIG_MAPPING_NAMES) & set(MODEL_MAPPING_NAMES))
    for number in range(TRANSFORMERS_VARIANTS):
        for model in types:
            yield {"do": "harvest", "library": "transformers", "model": model, "number": number}


#: What the library raises where a configuration has no such model, or misses an optional package.
_REFUSED = (ImportError, AttributeError, TypeError, ValueError, KeyError, RuntimeError, OSError)


def _transformers_reference(model: str, number: int) -> Reference:
    try:
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_MAPPING

        default = AutoConfig.for_model(model)
        cls = MODEL_MAPPING[type(default)]
        kind = cls[0] if isinstance(cls, tuple) else cls
        main = getattr(kind, "main_input_name", "input_ids")
    except _REFUSED as error:
        raise KvcError("KVC0102", f"transformers cannot configure {model}: {type(error).__name__}: {error}") from None
    overrides = _overrides(default, number)
    _check_size(model, overrides)
    given = ", ".join(f"{key}={value!r}" for key, value in overrides.items())
    names, drawn = _inputs(main, default, overrides, number, bool(getattr(default, "is_encoder_decoder", False)))
    dtype = _DTYPES[number % len(_DTYPES)]
    cast = f".to(torch.{dtype})" if dtype != "float32" else ""
    if cast:
        drawn = [text.replace("torch.randn(", "torch.randn(").replace("))", f"), dtype=torch.{dtype})")
                 if "randn" in text else text for text in drawn]  # fmt: skip
    call = ", ".join(f"{n}={n}" for n in names)
    body = ",\n".join(f"        {text}" for text in drawn)
    source = (
        "import torch\nfrom transformers import AutoConfig, AutoModel\n\n\n"
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        config = AutoConfig.for_model({model!r}, {given})\n"
        f"        self.inner = AutoModel.from_config(config){cast}\n\n"
        f"    def forward(self, {', '.join(names)}):\n        return self.inner({call}, return_dict=False)[0]\n\n\n"
        f"def get_inputs():\n    return [\n{body},\n    ]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    return Reference("transformers", f"{model} {dtype} variant {number}", LICENCES["transformers"], source)


MAX_PARAMETERS = 8_000_000


def _check_size(model: str, overrides: dict[str, Any]) -> None:
    """KVC0102 where the model cannot be built at all, or stays large: it is built without storage first."""
    import torch
    from transformers import AutoConfig, AutoModel

    try:
        with torch.device("meta"):
            built = AutoModel.from_config(AutoConfig.for_model(model, **overrides))
    except _REFUSED as error:
        raise KvcError("KVC0102", f"{model} cannot be built: {type(error).__name__}: {str(error)[:200]}") from None
    count = sum(p.numel() for p in built.parameters())
    if count > MAX_PARAMETERS:
        raise KvcError("KVC0102", f"{model} has {count:,} parameters even in its small configuration")


def _overrides(config: Any, number: int) -> dict[str, Any]:
    """Small values for those fields that a configuration has, in its parts too; lists of stages at their own length."""
    found: dict[str, Any] = {}
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict"):
            found[name] = _overrides(part, number)
    known = config.to_dict()
    for name, values in _SMALL.items():
        value = values[number % len(values)]
        if name in known and isinstance(known[name], int | float) and value is not None:
            found[name] = type(known[name])(value) if isinstance(known[name], bool) else value
    for name, entries in _STAGES.items():
        if entries and isinstance(known.get(name), list | tuple):
            step = entries[number % len(entries)]
            count = len(known[name])
            found[name] = [step if name == "depths" else step * (i + 1) for i in range(count)]
    if isinstance(known.get("layer_types"), list) and "num_hidden_layers" in found:
        found["layer_types"] = known["layer_types"][: found["num_hidden_layers"]]
    return found


def _inputs(
    main: str, config: Any, overrides: dict[str, Any], number: int, is_seq2seq: bool
) -> tuple[list[str], list[str]]:
    """Names of the arguments and what draws them."""
    batch, length = ((2, 13), (1, 24), (3, 7))[number % 3]
    vocabulary = overrides.get("vocab_size", 64)
    if main == "pixel_values":
        side = overrides.get("image_size", 32)
        channels = overrides.get("num_channels", getattr(config, "num_channels", 3))
        return [main], [f"torch.randn(({min(batch, 2)}, {channels}, {side}, {side}))"]
    if main in ("input_features", "input_values"):
        bins = overrides.get("num_mel_bins", 16)
        shape = (1, bins, 80) if main == "input_features" else (1, 800)
        return [main], [f"torch.randn({shape})"]
    names, drawn = [main], [f"torch.randint(3, {vocabulary}, ({batch}, {length}))"]
    if is_seq2seq:
        names.append("decoder_input_ids")
        drawn.append(f"torch.randint(3, {vocabulary}, ({batch}, {max(length // 2, 3)}))")
    return names, drawn
