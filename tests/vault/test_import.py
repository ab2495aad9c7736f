"""Foreign kernels in the shapes that corpora are published in, through the gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvc.diagnostics import KvcError
from kvc.vault.export import export
from kvc.vault.foreign import Foreign, read
from kvc.vault.hostcode import Host, Launched, Pointer, Unclear, take_apart
from kvc.vault.importing import REPORT, import_rows
from kvc.vault.judging import Settings
from kvc.vault.shards import records
from kvc.vault.standins import Notes

from tests.vault.samples import candidates, record

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.randn(40))

    def forward(self, x):
        return torch.relu(x * self.scale + self.bias)


def get_inputs():
    return [torch.randn(6, 40)]


def get_init_inputs():
    return [1.5]
"""
FUNCTIONAL = """
import torch


def module_fn(x, scale, bias):
    return torch.relu(x * scale + bias)


class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.zeros(40))

    def forward(self, x, fn=module_fn):
        return fn(x, self.scale, self.bias)


def get_inputs():
    return [torch.randn(6, 40)]


def get_init_inputs():
    return [1.5]
"""
HIP = r"""
#include <torch/extension.h>
#include <hip/hip_runtime.h>
#define BLOCK 64
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

template <typename scalar_t>
__device__ __forceinline__ scalar_t keep(scalar_t v) { return v < 0 ? 0 : v; }

template <typename scalar_t, int N>
__global__ void __launch_bounds__(BLOCK) fused(const scalar_t* x, const scalar_t* __restrict__ b, scalar_t* y,
                                               float s, int cols, int n) {
  int i = blockIdx.x * N + threadIdx.x;  // one element a thread
  if (i < n) y[i] = keep<scalar_t>(x[i] * s + b[i % cols]);
}

torch::Tensor run_it(torch::Tensor x, double scale, torch::Tensor bias) {
  TORCH_CHECK(x.is_cuda(), "on the GPU");
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int n = x.numel(), cols = x.size(1);
  dim3 block(BLOCK);
  dim3 grid(CEIL_DIV(n, BLOCK));
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto stream = at::cuda::getCurrentCUDAStream();
  if (n == 0) { return y; }
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fused", ([&] {
    fused<scalar_t, BLOCK><<<grid, block, 0, stream>>>(
        x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), (float)scale, cols, n);
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &run_it, "fused"); }
"""
TRITON = """
import torch
import triton
import triton.language as tl

WIDTH = tl.constexpr(2)


@triton.jit
def add(x, s, b):
    return x * s + b


@triton.autotune(configs=[triton.Config({"BLOCK": 32}, num_warps=2)], key=["n"])
@triton.jit
def fused(x_ptr, b_ptr, y_ptr, s, cols, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    x = tl.load(x_ptr + i, mask=inside)
    b = tl.load(b_ptr + i % cols, mask=inside)
    v = add(x, s, b)
    tl.store(y_ptr + i, tl.where(v < 0.0, 0.0, v), mask=inside)


class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.randn(40))

    def forward(self, x):
        y = torch.empty_like(x, device="cuda")
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
        with torch.cuda.device(x.device):
            fused[grid](x, self.bias, y, self.scale, x.shape[1], x.numel())
        return y


def get_init_inputs():
    return [1.5]
"""
INLINE = f'''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""{HIP}"""
ext = load_inline(name="x", cpp_sources="torch::Tensor run_it(torch::Tensor, double, torch::Tensor);",
                  cuda_sources=SOURCE.split("PYBIND11_MODULE")[0], functions=["run_it"])


class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = torch.nn.Parameter(torch.randn(40))

    def forward(self, x):
        return ext.run_it(x.cuda(), self.scale, self.bias)


def get_init_inputs():
    return [1.5]
'''


def judge(tmp_path: Path, *found: Foreign) -> list[dict[str, Any]]:
    import_rows(list(found), tmp_path / "out", Settings("hip", "gfx942"), 1)
    return [json.loads(line) for line in (tmp_path / "out" / REPORT).read_text().splitlines()]


# ---------------------------------------------------------------- verdicts


def test_kernels_of_every_form_are_judged_and_a_wrong_one_is_rejected(tmp_path: Path) -> None:
    outcomes = judge(
        tmp_path,
        Foreign("hip", HIP, REFERENCE, FUNCTIONAL, "MIT"),
        Foreign("triton", TRITON, REFERENCE),
        Foreign("inline", INLINE, REFERENCE),
        Foreign("wrong", HIP.replace("b[i % cols]", "b[i % (cols - 1)]"), REFERENCE, FUNCTIONAL),
        Foreign("twice", HIP, REFERENCE, FUNCTIONAL.replace("fn(x, self.scale", "fn(x * 2, self.scale")),
    )
    assert [o["outcome"] for o in outcomes] == [
        "verified", "verified", "verified", "rejected at compare", "cannot be judged",
    ], outcomes  # fmt: skip
    assert "computes with torch: aten.mul" in outcomes[4]["why"]
    first = next(r for r in records(tmp_path / "out") if r.origin == "hip")
    assert first.licence == "MIT" and "fused<float , BLOCK>(" in first.source and first.reference == REFERENCE
    again = import_rows(
        [Foreign("hip", HIP, REFERENCE, FUNCTIONAL, "MIT")], tmp_path / "out", Settings("hip", "gfx942"), 1
    )
    assert again.rows == 0


UNCLEAR = {
    "holds no kernel": Foreign("a", "", REFERENCE),
    "no PyTorch reference": Foreign("a", HIP),
    "launched no kernel": Foreign("a", REFERENCE, REFERENCE),
    "no host code": Foreign("a", HIP[: HIP.index("torch::Tensor run_it")], REFERENCE, FUNCTIONAL),
    "computes with torch": Foreign("a", TRITON.replace("return y\n", "return y + 1\n"), REFERENCE),
    "needs that": Foreign(
        "a", HIP.replace("empty_like", "zeros_like").replace("y[i] =", "y[i] +="), REFERENCE, FUNCTIONAL
    ),
    "gives shape": Foreign("a", TRITON.replace("return y\n", "return y.view(-1)\n"), REFERENCE),
    "at::cuda::magic": Foreign("a", HIP.replace("x.size(1)", "at::cuda::magic(x)"), REFERENCE, FUNCTIONAL),
    "beyond what is simulated": Foreign("a", TRITON, REFERENCE.replace("randn(6, 40)", "randn(60000, 40)")),
    "foreign code fails: ZeroDivisionError": Foreign(
        "a", TRITON.replace("y = torch", "1 / 0\n        y = torch"), REFERENCE
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("why", UNCLEAR)
def test_what_cannot_be_judged_says_why(tmp_path: Path, why: str) -> None:
    (outcome,) = judge(tmp_path, UNCLEAR[why])
    assert outcome["outcome"] == "cannot be judged" and why in outcome["why"]


def test_our_own_exports_come_back(tmp_path: Path) -> None:
    kept = [record(c) for c in (candidates()[0], candidates(language="triton")[0])]
    for kind in ("rl", "sft"):
        export(kept, kind, tmp_path / f"{kind}.jsonl")
        found = list(read(tmp_path / f"{kind}.jsonl"))
        assert all(f.spec and f.launch and f.code for f in found)
    assert {o["outcome"] for o in judge(tmp_path, *found)} == {"verified"}


# ---------------------------------------------------------------- readers


def test_shapes_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tree = tmp_path / "tree" / "level1" / "7"
    tree.mkdir(parents=True)
    (tree / "info.json").write_text(json.dumps({"name": "relu", "hip_file": "k.hip", "license": "BSD-3-Clause"}))
    (tree / "k.hip").write_text(HIP)
    (tree / "module.py").write_text(REFERENCE)
    (tree / "functional.py").write_text(FUNCTIONAL)
    assert list(read(tmp_path / "tree")) == [Foreign("level1/7", HIP, REFERENCE, FUNCTIONAL, "BSD-3-Clause")]

    truth = {"hip_code": HIP, "pytorch_module_code": REFERENCE, "pytorch_functional_code": FUNCTIONAL, "atol": 1e-4}
    for name, value in (("nested", truth), ("text", json.dumps(truth))):
        row = {"prompt": [], "reward_model": {"style": "rule", "ground_truth": value}}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        (found,) = read(tmp_path / f"{name}.jsonl", "MIT")
        assert found == Foreign(f"{name}.jsonl:1", HIP, REFERENCE, FUNCTIONAL, "MIT")

    asked = {"role": "user", "content": f"Speed this up:\n```python\n{REFERENCE}```"}
    said = {"role": "assistant", "content": f"Here it is.\n```python\n{TRITON}```\nIt is fast."}
    (tmp_path / "chat.json").write_text(json.dumps([{"messages": [asked, said]}]))
    (found,) = read(tmp_path / "chat.json")
    assert (found.code, found.reference) == (TRITON, REFERENCE)

    book = {
        "entry_point": "Net", "python_code": REFERENCE.replace("Model", "Net"), "triton_code": TRITON, "licenses": ["MIT"],  # noqa: E501
        "uuid": 3,
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([book]), tmp_path / "book.parquet")
    (found,) = read(tmp_path / "book.parquet")
    assert found.licence == "MIT" and found.reference.endswith("Model = Net\n") and found.origin == "book.parquet:1 Net"
    with pytest.raises(KvcError, match="KVC0101"):
        list(read(tmp_path / "nothing"))


def test_a_file_name_in_info_json_cannot_reach_outside(tmp_path: Path) -> None:
    (tmp_path / "secret.hip").write_text("secret")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "info.json").write_text('{"hip_file": "../secret.hip"}')
    (found,) = read(tmp_path / "tree")
    assert "secret" not in found.code.replace("../secret.hip", "")


# ---------------------------------------------------------------- host code


def host(body: str, *args: Any, more: str = "") -> list[Launched]:
    import torch

    text = f"__global__ void k(float* x, int n) {{}}\n{more}\ntorch::Tensor go(torch::Tensor x, int n) {{ {body} return x; }}"  # noqa: E501
    notes = Notes()
    made = Host(take_apart(text), notes.library, notes.method)
    made.call("go", args or (torch.zeros(6, 7), 5))
    return made.launches


@pytest.mark.parametrize(
    ("body", "grid", "block", "scalar"),
    [
        ("int t = 256; k<<<(n + t - 1) / t, t>>>(x.data_ptr<float>(), n);", (1, 1, 1), (256, 1, 1), 5),
        ("k<<<dim3(x.size(0), 2), dim3(8, 8)>>>((float*)x.data_ptr(), x.size(-1));", (6, 2, 1), (8, 8, 1), 7),
        ("int b = std::min(1024, n * 3); for (int i = 0; i < 2; ++i) { b += i; } k<<<b, 64>>>(x.data_ptr<float>(), -7 / 2);",  # noqa: E501
         (16, 1, 1), (64, 1, 1), -3),
        ("if (n > 4) { n = 2; } else n = 9; hipLaunchKernelGGL(k, dim3(n), dim3(64), 0, 0, x.data_ptr<float>(), n);",
         (2, 1, 1), (64, 1, 1), 2),
        ("auto s = x.sizes(); int64_t m = s[0] * s[1]; k<<<up(m, 4), 1 << 5>>>(x.data_ptr<float>(), n > 3 ? 1 : 0);",
         (11, 1, 1), (32, 1, 1), 1),
    ],
)  # fmt: skip
def test_launches_follow_from_the_host_code(body: str, grid: Any, block: Any, scalar: int) -> None:
    (launch,) = host(body, more="inline int up(int a, int b) { return (a + b - 1) / b; }")
    assert (launch.grid, launch.block, launch.args[1]) == (grid, block, scalar)
    assert isinstance(launch.args[0], Pointer)


@pytest.mark.parametrize(
    "body",
    [
        "k<<<blocks_for(n), 64>>>(x.data_ptr<float>(), n);",
        "int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount; k<<<sms, 64>>>(x.data_ptr<float>(), n);",  # noqa: E501
        "while (true) { n += 1; }",
        "std::vector<int> v; for (auto e : v) {}",
        "k<<<n / 0, 64>>>(x.data_ptr<float>(), n);",
        "k<<<n, 64>>>(x.data_ptr<float>(), n;",
    ],
)
def test_what_is_not_understood_is_never_guessed(body: str) -> None:
    with pytest.raises(Unclear):
        host(body)
