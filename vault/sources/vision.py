"""Small vision models of torchvision and timm: families with their width and depth turned down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvc.diagnostics import KvcError

VARIANTS = 2
_SIDES = (32, 48)

#: name -> expression that builds the model. torchvision is `m`, torchvision.models.
TORCHVISION: dict[str, str] = {
    "resnet_basic": "m.resnet.ResNet(m.resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)",
    "resnet_bottleneck": "m.resnet.ResNet(m.resnet.Bottleneck, [1, 1, 1, 1], groups=4, width_per_group=4)",
    "densenet": "m.DenseNet(growth_rate=8, block_config=(2, 2, 2), num_init_features=16, num_classes=10)",
    "mobilenet_v2": "m.MobileNetV2(num_classes=10, width_mult=0.25)",
    "mobilenet_v3_small": "m.mobilenet_v3_small(weights=None, width_mult=0.25)",
    "mobilenet_v3_large": "m.mobilenet_v3_large(weights=None, width_mult=0.25)",
    "shufflenet_v2": "m.ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 48], num_classes=10)",
    "mnasnet": "m.MNASNet(0.25, num_classes=10)",
    "squeezenet": "m.SqueezeNet('1_1', num_classes=10)",
    "vit": "m.VisionTransformer(image_size={side}, patch_size=8, num_layers=1, num_heads=4, hidden_dim=48, mlp_dim=96)",
    "swin": "m.SwinTransformer([4, 4], 24, [1, 1], [2, 4], window_size=[4, 4], num_classes=10)",
    "swin_v2": "m.SwinTransformer([4, 4], 24, [1, 1], [2, 4], window_size=[4, 4], num_classes=10, "
    "block=m.swin_transformer.SwinTransformerBlockV2, downsample_layer=m.swin_transformer.PatchMergingV2)",
    "convnext": "m.ConvNeXt([m.convnext.CNBlockConfig(16, 32, 1), m.convnext.CNBlockConfig(32, None, 1)])",
    "maxvit": "m.MaxVit((64, 64), 16, 4, [16, 32], 8, [1, 1], 0.0)",
    "regnet": "m.RegNet(m.regnet.BlockParams.from_init_params(depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8))",
    "googlenet": "m.GoogLeNet(num_classes=10, aux_logits=False, init_weights=False)",
    "alexnet": "m.AlexNet(num_classes=10)",
}

_SMALL_VIT = "img_size={side}, patch_size=8, embed_dim=48, depth=1, num_heads=4"
_SMALL_MLP = "img_size={side}, patch_size=8, embed_dim=48, num_blocks=1"

#: timm's own tiny models for tests, and families that take their sizes as arguments.
TIMM: dict[str, str] = {
    "test_vit": "timm.create_model('test_vit')",
    "test_vit2": "timm.create_model('test_vit2')",
    "test_vit3": "timm.create_model('test_vit3')",
    "test_vit4": "timm.create_model('test_vit4')",
    "test_efficientnet": "timm.create_model('test_efficientnet')",
    "test_efficientnet_ln": "timm.create_model('test_efficientnet_ln')",
    "test_efficientnet_gn": "timm.create_model('test_efficientnet_gn')",
    "test_efficientnet_evos": "timm.create_model('test_efficientnet_evos')",
    "test_byobnet": "timm.create_model('test_byobnet')",
    "test_resnet": "timm.create_model('test_resnet')",
    "test_convnext": "timm.create_model('test_convnext')",
    "test_convnext2": "timm.create_model('test_convnext2')",
    "test_convnext3": "timm.create_model('test_convnext3')",
    "test_nfnet": "timm.create_model('test_nfnet')",
    "mixer": "timm.create_model('mixer_s16_224', " + _SMALL_MLP + ")",
    "resmlp": "timm.create_model('resmlp_12_224', " + _SMALL_MLP + ")",
    "gmlp": "timm.create_model('gmlp_ti16_224', " + _SMALL_MLP + ")",
    "deit": "timm.create_model('deit3_small_patch16_224', " + _SMALL_VIT + ")",
    "beit": "timm.create_model('beit_base_patch16_224', " + _SMALL_VIT + ")",
    "eva": "timm.create_model('eva02_tiny_patch14_224', " + _SMALL_VIT + ")",
    "xcit": "timm.create_model('xcit_nano_12_p8_224', embed_dim=48, depth=1, num_heads=4)",
    "poolformer": "timm.create_model('poolformer_s12', layers=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48))",
    "pvt": "timm.create_model('pvt_v2_b0', depths=(1, 1, 1, 1), embed_dims=(16, 24, 32, 48))",
    "convmixer": "timm.create_model('convmixer_768_32', dim=32, depth=2, patch_size=4)",
    "ghostnet": "timm.create_model('ghostnet_050', width=0.25)",
    "mobilenetv4": "timm.create_model('mobilenetv4_conv_small_035')",
    "lcnet": "timm.create_model('lcnet_035')",
    "tinynet": "timm.create_model('tinynet_e')",
}  # fmt: skip
_TABLES = {"torchvision": TORCHVISION, "timm": TIMM}
_IMPORTS = {"torchvision": "import torchvision.models as m", "timm": "import timm"}


def jobs(library: str) -> Iterator[dict[str, Any]]:
    """A harvest task for each model and size of a library."""
    for number in range(VARIANTS):
        for model in _TABLES[library]:
            yield {"do": "harvest", "library": library, "model": model, "number": number}


def source(library: str, model: str, number: int) -> tuple[str, str]:
    """(origin, source text). KVC0105 for a model that is in no table."""
    made = _TABLES[library].get(model)
    if made is None:
        raise KvcError("KVC0105", f"{library} has no {model!r} here")
    side = 64 if model == "maxvit" else 160 if model.startswith("test_") else _SIDES[number % len(_SIDES)]
    text = (
        f"import torch\n{_IMPORTS[library]}\n\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        self.inner = {made.format(side=side)}\n\n"
        "    def forward(self, x):\n        return self.inner(x)\n\n\n"
        f"def get_inputs():\n    return [torch.randn(({number + 1}, 3, {side}, {side}))]\n\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    return f"{library} {model} {side}x{side}", text
