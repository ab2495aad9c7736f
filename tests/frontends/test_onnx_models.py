"""Small ONNX models of the usual kinds, as exporters write them, translated to both targets and verified as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from kvc.commands import TranslateRequest, run_translate
from kvc.console import Console
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Collects nodes and initializers; a node's output is named after it."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        values = self.random.normal(scale=0.4, size=shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def ints(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"{kind.lower()}{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0]

    def model(self, shape: list[int], out: str, rank: int) -> onnx.ModelProto:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(out, TensorProto.FLOAT, [None] * rank)
        graph = helper.make_graph(self.nodes, "net", [x], [y], self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(made)
        return made


def mlp() -> onnx.ModelProto:
    net = Net()
    h = net.op("Gelu", net.op("Gemm", "x", net.weight(8, 12), net.weight(12)))
    return net.model(
        [4, 8], net.op("Softmax", net.op("Gemm", h, net.weight(3, 12), net.weight(3), transB=1), axis=-1), 2
    )


def cnn() -> onnx.ModelProto:
    net = Net()
    h = net.op("Conv", "x", net.weight(6, 3, 3, 3), net.weight(6), pads=[1, 1, 1, 1])
    h = net.op("MaxPool", net.op("Relu", h), kernel_shape=[2, 2], strides=[2, 2])
    h = net.op("Conv", h, net.weight(8, 3, 3, 3), group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    h = net.op("Flatten", net.op("GlobalAveragePool", net.op("HardSwish", h)))
    return net.model([2, 3, 8, 8], net.op("Gemm", h, net.weight(8, 5), net.weight(5)), 2)


def attention() -> onnx.ModelProto:
    """Two heads of width four over five tokens, as exporters spell them out."""
    net = Net()
    norm = net.op("LayerNormalization", "x", net.weight(8), net.weight(8), axis=-1)

    def heads(order: list[int]) -> str:
        projected = net.op("MatMul", norm, net.weight(8, 8))
        return net.op("Transpose", net.op("Reshape", projected, net.ints(0, 0, 2, 4)), perm=order)

    scores = net.op("MatMul", heads([0, 2, 1, 3]), heads([0, 2, 3, 1]))
    scale = "scale"
    net.weights.append(numpy_helper.from_array(np.array(0.5, np.float32), scale))
    mixed = net.op("MatMul", net.op("Softmax", net.op("Mul", scores, scale), axis=-1), heads([0, 2, 1, 3]))
    joined = net.op("Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.ints(0, 0, 8))
    return net.model([2, 5, 8], net.op("Add", "x", net.op("MatMul", joined, net.weight(8, 8))), 3)


def lstm() -> onnx.ModelProto:
    net = Net()
    hidden = net.op(
        "LSTM", "x", net.weight(1, 20, 4), net.weight(1, 20, 5), net.weight(1, 40), outputs=3, hidden_size=5
    )
    return net.model([3, 2, 4], net.op("Squeeze", hidden, net.ints(1)), 3)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {"mlp": mlp, "cnn": cnn, "attention": attention, "lstm": lstm}


@pytest.mark.long
@pytest.mark.parametrize("target", ["hip", "triton"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_translated_and_verified(name: str, target: str, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.onnx"
    onnx.save(MODELS[name](), file)
    out = tmp_path / "out"
    request = TranslateRequest(
        str(file), out, target, "gfx942", None, "eval", "sim", "strict", True, (), 0, 1, True,
    )  # fmt: skip
    summary = run_translate(request, Console(quiet=True))
    assert summary["kernels"] > 0 and not summary["fallbacks"]
    (evidence,) = json.loads((out / "kvc.lock").read_text())["model"]["end_to_end"]
    assert "onnxruntime" in evidence["oracle"] and evidence["launches"] == summary["launches"]
