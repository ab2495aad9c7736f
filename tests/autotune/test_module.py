"""How a written module launches: packed once, and recorded as a graph. The device is a stand-in."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kvc.templates import render
from kvc.verify.model import written_module


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    row = {"constant": "_K", "file": "k.co", "symbol": "k", "grid": (4, 2, 1), "block": (64, 1, 1), "lds": 256,
           "modes": "rsi", "padding": 1}  # fmt: skip
    text = render(
        "module.py.j2", title="small", version="0", arch="gfx942", target="hip", native=False, mode="eval", distinct=1,
        fallbacks="no", arena_bytes=256, kernels=[row], regions=[], region_dtypes=[], constants=False,
        tensors=[{"name": "'count'", "shape": (1,), "strides": (1,), "dtype": "float32", "kind": "buffer"}],
        safetensors_dtypes={}, tied={}, used=["'count'"], signature=", x, scale=1.0", prologue=[], device="x.device",
        body=["w[0].add_(1)", "y = x * scale"], result='{"y": y}', init_record="None", init_arguments="",
        derived=[], library=[],
    )  # fmt: skip
    (tmp_path / "module.py").write_text(text)
    with written_module(tmp_path) as written:
        yield written


def test_launches_share_one_place_for_their_arguments(module: ModuleType) -> None:
    seen: list[list[int]] = []

    def launch(function: Any, *rest: Any) -> int:
        extra = rest[-1]
        seen.append(list(ctypes.cast(extra[1], ctypes.POINTER(ctypes.c_uint64 * 4)).contents))
        return 0

    module._hip = lambda: SimpleNamespace(hipModuleLaunchKernel=launch)  # type: ignore[attr-defined]
    loads: list[Any] = []
    module._load = lambda kernel, device: loads.append(kernel) or module._prepare(kernel, device, 7)  # type: ignore[attr-defined]
    arena, x = torch.zeros(64, dtype=torch.uint8), torch.zeros(3)
    call = module._Call(torch.device("cuda", 0), 77, arena, arena.data_ptr())
    for n in (5, 6):
        module._launch(module._K, call, (x, module._Region(16, 8), n))
    assert seen == [[x.data_ptr(), arena.data_ptr() + 16, n, 0] for n in (5, 6)]
    assert len(loads) == 1


def test_a_launch_off_the_gpu_says_where_to_go(module: ModuleType) -> None:
    arena = torch.zeros(64, dtype=torch.uint8)
    call = module._Call(torch.device("cpu"), 0, arena, arena.data_ptr())
    with pytest.raises(RuntimeError, match="kvc verify"):
        module._launch(module._K, call, (arena, module._Region(0, 8), 1))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch.cuda's streams and graphs, replaced by a note of what was asked."""
    told: list[str] = []

    class Stream:
        def wait_stream(self, other: Any) -> None:
            told.append("wait")

    class Graph:
        def replay(self) -> None:
            told.append("replay")

    def note(what: str) -> Any:
        @contextlib.contextmanager
        def block(_: Any, **settings: Any) -> Iterator[None]:
            told.append(what)
            yield
            told.append(f"end {what}")

        return block

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "stream", note("side"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", note("record"))
    return told


def test_what_is_read_in_place_is_not_copied(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    told = stand_in(monkeypatch)
    example, other = torch.ones(3), torch.ones(3)
    recorded = module.Model().record((example,), {"scale": 2.0}, fixed=(0,), pool=7)
    assert recorded.given[0] is example and recorded.fixed == [(0, example.data_ptr())]
    example.fill_(3.0)
    recorded(example, scale=2.0)
    assert told[-1] == "replay" and recorded.stays((example, 2.0)) and not recorded.stays((other, 2.0))
    with pytest.raises(ValueError, match="record again"):
        recorded(other, scale=2.0)


def test_triton_is_asked_once_which_kernel_to_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.py").write_text("asked = []\nran = []\nclass K:\n    def __getitem__(self, grid):\n"
        "        return lambda *args, **options: asked.append((grid, args, options)) or self.chosen\n"
        "    class chosen:\n        def __class_getitem__(cls, grid):\n"
        "            return lambda *args, stream: ran.append((grid, args, stream))\nk = K()\n")  # fmt: skip
    row = {"constant": "_K", "file": "k.co", "symbol": "k", "grid": (4, 1, 1), "block": (64, 1, 1), "lds": 0,
           "modes": "rs", "padding": 0, "options": {"num_warps": 4}, "source": "k.py"}  # fmt: skip
    whole = row | {"constant": "_N", "modes": "ri"}
    text = render(
        "module.py.j2", title="small", version="0", arch="gfx942", target="triton", native=True, mode="eval",
        distinct=1, fallbacks="no", arena_bytes=256, kernels=[row, whole], regions=[], constants=False,
        region_dtypes=[("k", (None, "bfloat16"))], tensors=[], safetensors_dtypes={}, tied={}, used=[], signature=", x",
        prologue=[], device="x.device", body=[], result="x", init_record="None", init_arguments="",
        derived=[], library=[],
    )  # fmt: skip
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    arena, x = torch.zeros(64, dtype=torch.uint8), torch.zeros(3)
    with written_module(tmp_path) as written:
        call = written._Call(torch.device("cuda", 0), 77, arena, arena.data_ptr())
        for _ in range(3):
            written._launch_triton(written._K, call, (x, written._Region(16, 8)))
        source = written._ready[id(written._K), -1].__getitem__.__globals__
        ((grid, args, options),) = source["asked"]
        assert grid == (4, 1, 1) and args[0] is x and args[1].dtype == torch.bfloat16 and options == {"num_warps": 4}
        assert source["ran"] == [((4, 1, 1), (x.data_ptr(), arena.data_ptr() + 16), 77)] * 2
        for _ in range(2):  # Triton may choose another kernel for another number
            written._launch_triton(written._N, call, (x, torch.zeros(2)))
        assert len(written._ready[id(written._N), -1].__getitem__.__globals__["asked"]) == 2


def test_a_recorded_call_copies_replays_and_checks(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = module.Model()
    model.count.zero_()
    told = stand_in(monkeypatch)
    example = torch.ones(3)
    recorded = model.capture(example, scale=2.0)
    assert told == ["wait", "side", "end side", "wait", "record", "end record"]
    # Warming up leaves no trace in buffers: only what stands for the recording ran.
    assert model.count.item() == 1
    result = recorded(torch.full((3,), 5.0), scale=2.0)
    assert told[-1] == "replay" and result is recorded(torch.full((3,), 6.0), scale=2.0)
    assert recorded.given[0].tolist() == [6.0] * 3 and example.tolist() == [1.0] * 3
    for bad in (torch.ones(4), torch.ones(3, dtype=torch.float64)):
        with pytest.raises(ValueError, match="record again"):
            recorded(bad, scale=2.0)
    with pytest.raises(ValueError, match="translate again"):
        recorded(example, scale=3.0)
    with pytest.raises(ValueError, match="structure"):
        recorded(example)
