"""ONNX models through the same pipeline: names, sizes, diagnostics, ONNX's own cases, onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kvc.diagnostics import KvcError
from kvc.frontends.fx.capture import capture_loaded
from kvc.frontends.fx.load import load
from kvc.text import parse_graph, print_graph

onnx = pytest.importorskip("onnx")
from kvc.frontends.onnx import conformance, state_dict  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def weight(name: str, *shape: int) -> Any:
    values = np.random.default_rng(len(name)).standard_normal(shape) / 4
    return numpy_helper.from_array(values.astype(np.float32), name)


def number(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def save(path: Path, nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, int], weights: list[Any],
         opset: int = 17, kind: int = TensorProto.FLOAT, **options: Any) -> str:  # fmt: skip
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * rank) for n, rank in outputs.items()], weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path), **options)
    return str(path)


@pytest.fixture
def net(tmp_path: Path) -> str:
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["a"], name="/conv/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="/relu"),
        helper.make_node("Shape", ["b"], ["s"], end=1),
        helper.make_node("Concat", ["s", "rest"], ["s2"], axis=0),
        helper.make_node("Reshape", ["b", "s2"], ["c"]),
        helper.make_node("Gemm", ["c", "fc/w", "onnx::Gemm_9"], ["y"], name="/fc", transB=1),
    ]
    weights = [weight("conv.weight", 2, 3, 3, 3), weight("conv.bias", 2), weight("fc/w", 4, 32)]
    return save(tmp_path / "net.onnx", nodes, {"x": ["batch", 3, 4, 4]}, {"y": 2},
                [*weights, weight("onnx::Gemm_9", 4), number("rest", -1)])  # fmt: skip


def test_a_model_becomes_the_same_graph_as_its_operators_in_torch(net: str) -> None:
    captured = capture_loaded(load(f"{net}:batch=2"))
    assert [n.op for n in captured.graph.nodes] == ["conv2d", "relu", "view", "linear"]
    assert captured.graph.types[captured.graph.outputs[0]].shape == (2, 4)
    targets = [i.target for i in captured.graph.inputs if i.kind == "param"]
    assert sorted(targets) == ["conv.bias", "conv.weight", "fc/w", "onnx::Gemm_9"]


def test_nodes_say_where_in_the_file_they_stand_and_the_text_keeps_it(net: str) -> None:
    graph = capture_loaded(load(f"{net}:batch=2")).graph
    assert [str(n.loc) for n in graph.nodes][:2] == ["net.onnx#conv.Conv:1", "net.onnx#relu:2"]
    assert parse_graph(print_graph(graph)) == graph


def test_state_dict_has_the_names_of_the_initializers(net: str) -> None:
    weights = state_dict(net)
    assert set(weights) == {"conv.weight", "conv.bias", "fc/w", "onnx::Gemm_9", "rest"}
    module = load(f"{net}:batch=2").module
    x = torch.randn(2, 3, 4, 4)
    before = module(x)
    module.load_state_dict({**weights, "conv.weight": torch.zeros(2, 3, 3, 3)})
    assert not torch.equal(module(x), before)


def test_another_dtype_goes_through_constants_and_casts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.array([0.5, 2.0], np.float32))),
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "half"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [3, 2]}, {"y": 2}, [])
    graph = capture_loaded(load(path), dtype="bf16").graph
    assert {graph.types[o].dtype.name for o in graph.outputs} == {"bf16"}


@pytest.mark.parametrize(
    ("suffix", "code", "said"),
    [
        ("", "KVC0107", "--dim batch=1"),
        (":batch=2,depth=3", "KVC0106", "dimensions: batch"),
        (":batch=two", "KVC0106", "NAME=NUMBER"),
    ],
)
def test_sizes_must_be_known(net: str, suffix: str, code: str, said: str) -> None:
    with pytest.raises(KvcError, match=said) as error:
        load(net + suffix)
    assert error.value.code == code


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    for name, code in (("bad.onnx", "KVC0102"), ("none.onnx", "KVC0101")):
        with pytest.raises(KvcError) as error:
            load(str(tmp_path / name))
        assert error.value.code == code


def test_what_is_outside_names_the_node_and_a_way_out(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Det", ["a"], ["y"], name="/head/Det")]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 3, 3]}, {"y": 1}, [])
    with pytest.raises(KvcError) as error:
        load(path)
    found = error.value.diagnostic
    assert (found.code, str(found.location)) == ("KVC0204", "m.onnx#head.Det:2")
    assert "Det" in found.message and "kvc onnx ops" in found.hint


def test_a_branch_on_data_is_refused_and_one_on_sizes_is_taken(tmp_path: Path) -> None:
    def branch(op: str) -> Any:
        out = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3])
        return helper.make_graph([helper.make_node(op, ["x"], ["r"])], op, [], [out])

    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    by_size = [helper.make_node("Size", ["x"], ["n"]), helper.make_node("Equal", ["n", "six"], ["c"]), choose]
    path = save(tmp_path / "size.onnx", by_size, {"x": [2, 3]}, {"y": 2}, [numpy_helper.from_array(np.int64(6), "six")])
    assert [n.op for n in capture_loaded(load(path)).graph.nodes] == ["relu"]
    total = helper.make_node("ReduceMax", ["x"], ["t"], keepdims=0)
    by_data = [total, helper.make_node("Greater", ["t", "zero"], ["c"]), choose]
    path = save(tmp_path / "data.onnx", by_data, {"x": [2, 3]}, {"y": 2}, [weight("zero")])
    with pytest.raises(KvcError) as error:
        load(path)
    assert error.value.code == "KVC0202"


def test_external_data_and_saved_inputs(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": [2, 64]}, {"y": 2}, [weight("w", 64, 8)],
                save_as_external_data=True, size_threshold=16, location="m.data")  # fmt: skip
    given = np.arange(128, dtype=np.float32).reshape(2, 64)
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(given).SerializeToString())
    loaded = load(path)
    assert torch.equal(loaded.args[0], torch.from_numpy(given))
    expected = given @ numpy_helper.to_array(weight("w", 64, 8))
    assert torch.allclose(loaded.module(*loaded.args), torch.from_numpy(expected), rtol=1e-4)


def test_indices_stay_inside_what_they_index(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"ids": [50]}, {"y": 2}, [weight("table", 7, 4)], kind=TensorProto.INT64)
    ids = load(path).args[0]
    assert int(ids.min()) >= 0 and int(ids.max()) < 7 and len(ids.unique()) > 1


def test_onnxruntime_agrees_and_the_oracle_says_so(net: str) -> None:
    pytest.importorskip("onnxruntime")
    said = load(f"{net}:batch=2").module.confirmed()
    assert said.startswith("ONNX model in float64; onnxruntime ") and "agrees within" in said


@pytest.mark.parametrize("pattern", ["test_lstm", "test_resize_", "test_slice", "test_maxpool_2d", "test_scatter"])
def test_onnx_s_own_cases(pattern: str) -> None:
    results = conformance.run(pattern, "table")
    wrong = {r.name: r.reason for r in results if r.state not in ("passed", "out of scope")}
    assert wrong == {} and sum(r.state == "passed" for r in results) >= 3


@pytest.mark.long
def test_most_of_onnx_s_own_cases_pass_as_index_notation() -> None:
    found = conformance.summary(conformance.run("", "interpreter"), "interpreter")
    assert found["in_scope"] >= 1400 and found["share"] >= 0.95, found["not_passed"]


@pytest.mark.long
@pytest.mark.parametrize("target", ["hip", "triton"])
def test_a_sample_of_onnx_s_own_cases_passes_as_kernels(target: str) -> None:
    run = conformance.simulator(target, "gfx942", "sim")
    found = conformance.summary(conformance.run("", "simulator", run, limit=40), "simulator")
    assert found["share"] >= 0.9, found["not_passed"]
