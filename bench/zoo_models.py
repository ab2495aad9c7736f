"""The zoo: architectures of public model libraries at sizes that a simulator can run, one row each.

A row names classes of a library, never copies them; weights are drawn under a fixed seed. Sizes keep what makes an
architecture what it is (grouped heads, windows, experts, several stages) and shrink the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvc.diagnostics import KvcError

if TYPE_CHECKING:
    import torch

VOCABULARY = 99
LENGTH = 12  # tokens of a text input
_SPECIAL = 2  # tokens below have a meaning for some libraries (padding, begin, end)

Inputs = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A model: `library` must be importable; `build` makes the module; `inputs(module)` the keyword arguments of a
    call (or, under the key "", positional ones)."""

    name: str
    library: str
    build: Callable[[], torch.nn.Module]
    inputs: Inputs
    kind: str = field(default="", compare=False)


# ---------------------------------------------------------------- inputs


def _ids(length: int = LENGTH) -> Any:
    import torch

    return torch.randint(_SPECIAL, VOCABULARY, (2, length))


def text(module: Any) -> dict[str, Any]:
    return {"input_ids": _ids()}


def text_to_text(module: Any) -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(7)}


def image(size: int, channels: int = 3, batch: int = 2, name: str = "pixel_values") -> Inputs:
    """A batch of images as the argument `name` ("": positional)."""

    def inputs(module: Any) -> dict[str, Any]:
        import torch

        pixels = torch.randn(batch, channels, size, size)
        return {name: (pixels,) if not name else pixels}

    return inputs


def sound(samples: int) -> Inputs:
    def inputs(module: Any) -> dict[str, Any]:
        import torch

        return {"input_values": torch.randn(2, samples)}

    return inputs


def spectrogram(module: Any) -> dict[str, Any]:
    import torch

    config = module.config
    features = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": features, "decoder_input_ids": _ids(7)}


def text_and_image(size: int) -> Inputs:
    def inputs(module: Any) -> dict[str, Any]:
        return {**text(module), **image(size)(module)}

    return inputs


# ---------------------------------------------------------------- transformers


def _config(name: str, settings: Mapping[str, Any]) -> Any:
    transformers = import_module("transformers")
    made = {k: _config(*v) if isinstance(v, tuple) and v and isinstance(v[0], str) else v for k, v in settings.items()}
    return getattr(transformers, f"{name}Config")(**made)


def hf(model: str, inputs: Inputs, config: str = "", kind: str = "", **settings: Any) -> Entry:
    """A row for `transformers.<model>`; `settings` are those of its configuration, whose name is the model's up to
    "Model" or "For" unless `config` says it. A nested configuration is (name, settings)."""
    stem = config or model.split("Model")[0].split("For")[0]

    def build() -> torch.nn.Module:
        transformers = import_module("transformers")
        made = _config(stem, settings)
        if hasattr(made, "use_cache"):
            made.use_cache = False  # a cache is an object of the library, no tensor
        built: torch.nn.Module = getattr(transformers, model)(made)
        return built

    return Entry(model, "transformers", build, inputs, kind)


_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 32,
}  # fmt: skip
_DECODER: dict[str, Any] = {**_ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED: dict[str, Any] = {**_DECODER, "num_key_value_heads": 2}
_SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip
_SWIN: dict[str, Any] = {
    "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
_SPEECH: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "conv_dim": (16, 16), "conv_stride": (4, 3), "conv_kernel": (7, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

TRANSFORMERS: tuple[Entry, ...] = (
    # encoders
    hf("BertModel", text, kind="encoder", **_ENCODER),
    hf("RobertaModel", text, kind="encoder", **_ENCODER),
    hf("DistilBertModel", text, kind="encoder", vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
       max_position_embeddings=32),
    hf("AlbertModel", text, kind="encoder", **_ENCODER, embedding_size=16),
    hf("ElectraModel", text, kind="encoder", **_ENCODER, embedding_size=16),
    hf("DebertaV2Model", text, kind="encoder", **_ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    hf("MPNetModel", text, kind="encoder", **_ENCODER),
    hf("ModernBertModel", text, kind="encoder", **_DECODER, cls_token_id=3, sep_token_id=4),
    hf("FNetModel", text, kind="encoder", **_ENCODER),
    hf("XLMRobertaForSequenceClassification", text, config="XLMRoberta", kind="encoder", **_ENCODER, num_labels=5),
    # decoders
    hf("GPT2LMHeadModel", text, config="GPT2", kind="decoder", vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4,
       n_positions=32, bos_token_id=1, eos_token_id=2),
    hf("GPTNeoXForCausalLM", text, config="GPTNeoX", kind="decoder", **_DECODER),
    hf("LlamaForCausalLM", text, kind="decoder", **_GROUPED),
    hf("MistralForCausalLM", text, kind="decoder", **_GROUPED, sliding_window=8),
    hf("Qwen2ForCausalLM", text, kind="decoder", **_GROUPED),
    hf("Qwen3ForCausalLM", text, kind="decoder", **_GROUPED, head_dim=8),
    hf("Gemma2ForCausalLM", text, kind="decoder", **_GROUPED, head_dim=8, sliding_window=8),
    hf("Phi3ForCausalLM", text, kind="decoder", **_GROUPED),
    hf("OPTForCausalLM", text, config="OPT", kind="decoder", vocab_size=VOCABULARY, hidden_size=32,
       num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=32, word_embed_proj_dim=32,
       pad_token_id=0, bos_token_id=1, eos_token_id=2),
    hf("BloomForCausalLM", text, kind="decoder", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4,
       pad_token_id=0, bos_token_id=1, eos_token_id=2),
    hf("FalconForCausalLM", text, kind="decoder", vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
       num_attention_heads=4, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    hf("CohereForCausalLM", text, kind="decoder", **_GROUPED),
    hf("Olmo2ForCausalLM", text, kind="decoder", **_GROUPED),
    hf("StableLmForCausalLM", text, kind="decoder", **_GROUPED),
    # mixtures of experts
    hf("MixtralForCausalLM", text, kind="experts", **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    hf("Qwen3MoeForCausalLM", text, kind="experts", **_GROUPED, **_EXPERTS, head_dim=8),
    hf("OlmoeForCausalLM", text, kind="experts", **_GROUPED, num_experts=4, num_experts_per_tok=2),
    # state spaces and linear recurrences
    hf("MambaForCausalLM", text, kind="state space", vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2,
       state_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2),
    hf("Mamba2ForCausalLM", text, kind="state space", vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2,
       state_size=8, head_dim=8, num_heads=4, n_groups=2, chunk_size=8, pad_token_id=0, bos_token_id=1,
       eos_token_id=2),
    hf("RwkvForCausalLM", text, kind="state space", vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2,
       context_length=32, rescale_every=0),
    # encoder-decoders
    hf("T5ForConditionalGeneration", text_to_text, kind="encoder-decoder", vocab_size=VOCABULARY, d_model=32, d_kv=8,
       d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0),
    hf("BartForConditionalGeneration", text_to_text, kind="encoder-decoder", **_SEQ2SEQ),
    hf("MBartForConditionalGeneration", text_to_text, kind="encoder-decoder", **_SEQ2SEQ),
    hf("PegasusForConditionalGeneration", text_to_text, kind="encoder-decoder", **_SEQ2SEQ),
    hf("MarianMTModel", text_to_text, config="Marian", kind="encoder-decoder", **_SEQ2SEQ),
    # speech
    hf("WhisperForConditionalGeneration", spectrogram, kind="speech",
       **{k: v for k, v in _SEQ2SEQ.items() if k != "max_position_embeddings"}, num_mel_bins=8,
       max_source_positions=10, max_target_positions=32, suppress_tokens=None, begin_suppress_tokens=None),
    hf("Wav2Vec2Model", sound(200), kind="speech", **_SPEECH),
    hf("HubertModel", sound(200), kind="speech", **_SPEECH),
    # vision
    hf("ViTForImageClassification", image(16), kind="vision", **_VISION),
    hf("DeiTModel", image(16), kind="vision", **_VISION),
    hf("BeitModel", image(16), kind="vision", **_VISION, use_relative_position_bias=True),
    hf("Dinov2Model", image(16), kind="vision", **_VISION),
    hf("SwinForImageClassification", image(32), kind="vision", **_SWIN),
    hf("Swinv2Model", image(32), kind="vision", **_SWIN),
    hf("ConvNextForImageClassification", image(32), config="ConvNext", kind="vision", hidden_sizes=[8, 12, 16, 24],
       depths=[1, 1, 2, 1], image_size=32),
    hf("ConvNextV2Model", image(32), kind="vision", hidden_sizes=[8, 12, 16, 24], depths=[1, 1, 2, 1], image_size=32),
    hf("ResNetForImageClassification", image(32), config="ResNet", kind="vision", embedding_size=8,
       hidden_sizes=[8, 16], depths=[2, 2], layer_type="bottleneck"),
    hf("RegNetModel", image(32), kind="vision", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2],
       groups_width=4),
    hf("MobileNetV2Model", image(32), kind="vision", depth_multiplier=0.25, min_depth=8),
    hf("MobileViTModel", image(64), kind="vision", hidden_sizes=[16, 20, 24],
       neck_hidden_sizes=[8, 8, 16, 16, 20, 24, 32], num_attention_heads=2, image_size=64),
    hf("SegformerForSemanticSegmentation", image(64), config="Segformer", kind="vision", depths=[1, 1, 1, 1],
       hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16),
    hf("PvtV2Model", image(64), kind="vision", image_size=64, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32],
       num_attention_heads=[1, 2, 2, 4]),
    hf("PoolFormerModel", image(64), config="PoolFormer", kind="vision", depths=[1, 1, 1, 1],
       hidden_sizes=[8, 16, 16, 32]),
    # two towers
    hf("CLIPModel", text_and_image(16), kind="two towers",
       text_config={**_DECODER}, vision_config={**_VISION}, projection_dim=16),
    hf("SiglipModel", text_and_image(16), kind="two towers", text_config={**_DECODER}, vision_config={**_VISION}),
)  # fmt: skip


# ---------------------------------------------------------------- timm, torchvision


def timm(name: str, size: int, kind: str = "vision", **settings: Any) -> Entry:
    """A row for `timm.create_model(name)`."""

    def build() -> torch.nn.Module:
        made: torch.nn.Module = import_module("timm").create_model(name, pretrained=False, num_classes=10, **settings)
        return made

    return Entry(f"timm/{name}", "timm", build, image(size, batch=1, name=""), kind)


def vision(name: str, size: int, kind: str = "vision", part: str = "models", **settings: Any) -> Entry:
    """A row for `torchvision.<part>.<name>`."""

    def build() -> torch.nn.Module:
        made: torch.nn.Module = getattr(import_module(f"torchvision.{part}"), name)(weights=None, **settings)
        return made

    return Entry(f"torchvision/{name}", "torchvision", build, image(size, batch=1, name=""), kind)


TIMM: tuple[Entry, ...] = (
    timm("vit_tiny_patch16_224", 32, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3),
    timm("deit_tiny_distilled_patch16_224", 32, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3),
    timm("swin_tiny_patch4_window7_224", 32, img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2),
         num_heads=(2, 4)),
    timm("mixer_s16_224", 32, img_size=32),
    timm("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(8, 12, 16, 24)),
    timm("resnet18", 32, layers=(1, 1, 1, 1), channels=(8, 16, 24, 32)),
    timm("seresnet18", 32, layers=(1, 1, 1, 1), channels=(8, 16, 24, 32)),
    timm("mobilenetv3_small_050", 32),
    timm("efficientnet_lite0", 32),
    timm("regnetx_002", 32),
    timm("ghostnet_050", 32),
    timm("coat_lite_tiny", 32, img_size=32, embed_dims=(32, 32, 32, 64), serial_depths=(1, 1, 1, 1)),
    timm("pvt_v2_b0", 32, depths=(1, 1, 1, 1), embed_dims=(8, 16, 16, 32), num_heads=(1, 2, 2, 4)),
    timm("maxvit_rmlp_pico_rw_256", 64, img_size=64),
    timm("levit_128s", 224, img_size=224),
    timm("poolformer_s12", 64),
)  # fmt: skip

TORCHVISION: tuple[Entry, ...] = (
    vision("resnet18", 32, width_per_group=64),
    vision("vgg11_bn", 32),
    vision("alexnet", 64),
    vision("squeezenet1_1", 32),
    vision("densenet121", 32),
    vision("googlenet", 32, init_weights=False, aux_logits=False),
    vision("mobilenet_v2", 32, width_mult=0.25),
    vision("mobilenet_v3_small", 32, width_mult=0.25),
    vision("shufflenet_v2_x0_5", 32),
    vision("mnasnet0_5", 32),
    vision("efficientnet_b0", 32),
    vision("regnet_y_400mf", 32),
    vision("convnext_tiny", 32),
    vision("swin_t", 32),
    vision("vit_b_16", 32, image_size=32),
    vision("lraspp_mobilenet_v3_large", 32, kind="segmentation", part="models.segmentation", weights_backbone=None),
    vision("fcn_resnet50", 32, kind="segmentation", part="models.segmentation", weights_backbone=None),
)

ENTRIES: tuple[Entry, ...] = (*TRANSFORMERS, *TIMM, *TORCHVISION)


def entries(names: frozenset[str], libraries: frozenset[str]) -> list[Entry]:
    """The rows of those libraries, restricted to `names` (any case) where given. KVC0106 for a name that is none."""
    known = {e.name.lower(): e for e in ENTRIES}
    for name in names:
        if name.lower() not in known:
            raise KvcError("KVC0106", f"no model {name!r} in the zoo", hint=f"one of: {', '.join(sorted(known))}")
    wanted = {n.lower() for n in names}
    return [e for e in ENTRIES if (not wanted or e.name.lower() in wanted) and e.library in libraries]
