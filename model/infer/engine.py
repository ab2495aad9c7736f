"""The compiled engine: built once a machine with the bundled clang, called through ctypes without a lock."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from kvc.model.weights import Weights

_FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-shared", "-fPIC", "-fno-math-errno",
          "-ffp-contract=fast", "-fno-trapping-math", "-fno-sanitize=all", "-std=gnu11", "-w")  # fmt: skip
_TIMEOUT_S = 300
MAX_ROWS = 64  # tokens of one call

_F, _B, _I = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = ("norm", "q_norm", "k_norm", "mlp_norm")


class Unavailable(Exception):
    """Why there is no compiled engine on this machine."""


class _Layer(ctypes.Structure):
    _fields_ = [(n, _B) for n in _MATRICES] + [(f"{n}_scale", _F) for n in _MATRICES] + [(n, _F) for n in _NORMS]


class _Model(ctypes.Structure):
    _fields_ = [
        *((n, _I) for n in ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head", "inner", "context")),
        ("epsilon", ctypes.c_float), ("embed", _B), ("embed_scale", _F), ("norm", _F), ("cosine", _F), ("sine", _F),
        ("layer", ctypes.POINTER(_Layer)),
    ]  # fmt: skip


class _State(ctypes.Structure):
    _fields_ = [*((n, _F) for n in ("keys", "values", "x", "y", "q", "kv", "a", "b", "scores")), ("context", _I)]


@cache
def library() -> ctypes.CDLL:
    """The compiled engine, from the cache where it is there. Unavailable where it cannot be built."""
    from kvc.store import cache_dir

    spec = importlib.util.find_spec("ziglang")
    if spec is None:
        raise Unavailable("the ziglang package, which carries the C compiler, is not installed")
    source = (Path(__file__).parent / "engine.c").read_text(encoding="utf-8")
    info = Path("/proc/cpuinfo")
    keep = ("model name", "flags", "Features", "CPU part")
    lines = info.read_text().splitlines() if info.is_file() else [platform.processor()]
    processor = "\n".join(sorted({line for line in lines if line.startswith(keep)}))
    parts = (source, " ".join(_FLAGS), importlib.metadata.version("ziglang"), processor)
    target = cache_dir() / "model" / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    try:
        if not target.is_file():
            _build(source, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise Unavailable(str(error)) from None


def _build(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file, made = Path(folder) / "engine.c", Path(folder) / "engine.so"
        file.write_text(source, encoding="utf-8")
        command = [sys.executable, "-m", "ziglang", "cc", *_FLAGS, str(file), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"the compiler took more than {_TIMEOUT_S} s") from None
        if done.returncode:
            raise Unavailable(f"the engine does not compile: {done.stderr[-400:]}")
        os.replace(made, target)


class Engine:
    """A model with room for `slots` sequences side by side. One engine serves one thread; weights may be shared."""

    def __init__(self, weights: Weights, slots: int = 1, context: int | None = None) -> None:
        self.shape = s = weights.shape
        self.slots, self.context = slots, min(context or s.context, s.context)
        self._run = library().kvc_forward
        self._run.restype = None
        self._kept: list[np.ndarray] = []
        self._model = self._describe(weights)
        self._state = self._reserve()

    def _pointer(self, array: np.ndarray) -> int:
        kept = np.ascontiguousarray(array)
        self._kept.append(kept)
        return int(kept.ctypes.data)

    def _describe(self, w: Weights) -> _Model:
        s = self.shape
        names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
                 "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "norm": "input_layernorm",
                 "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
                 "mlp_norm": "post_attention_layernorm"}  # fmt: skip
        layers = (_Layer * s.layers)()
        for n, layer in enumerate(layers):
            for short in _MATRICES:
                name = f"model.layers.{n}.{names[short]}.weight"
                setattr(layer, short, self._pointer(w.matrices[name]))
                setattr(layer, f"{short}_scale", self._pointer(w.scales[name]))
            for short in _NORMS:
                setattr(layer, short, self._pointer(w.vectors[f"model.layers.{n}.{names[short]}.weight"]))
        cosine, sine = rotary(s.head, self.context, s.theta)
        embed = "model.embed_tokens.weight"
        return _Model(
            s.vocabulary, s.hidden, s.layers, s.heads, s.kv_heads, s.head, s.inner, self.context, s.epsilon,
            self._pointer(w.matrices[embed]), self._pointer(w.scales[embed]),
            self._pointer(w.vectors["model.norm.weight"]), self._pointer(cosine), self._pointer(sine), layers,
        )  # fmt: skip

    def _reserve(self) -> _State:
        s = self.shape
        cache = self.slots * s.layers * s.kv_heads * self.context * s.head
        wide = max(s.heads * s.head, s.hidden)
        sizes = [cache, cache, MAX_ROWS * s.hidden, MAX_ROWS * wide, MAX_ROWS * wide,
                 MAX_ROWS * 2 * s.kv_heads * s.head, MAX_ROWS * s.inner, MAX_ROWS * s.inner, self.context]  # fmt: skip
        return _State(*(self._pointer(np.zeros(n, np.float32)) for n in sizes), self.context)

    def forward(self, tokens: np.ndarray, slots: np.ndarray, positions: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Logits, float32 [wanted rows, vocabulary], of at most MAX_ROWS tokens. Rows of a slot stand in order of
        position, from the first that is not cached on. ValueError for what does not fit."""
        rows = len(tokens)
        if not 0 < rows <= MAX_ROWS or positions.max() >= self.context or slots.max() >= self.slots:
            raise ValueError(f"{rows} rows to position {positions.max()} of {self.context}")
        if tokens.max() >= self.shape.vocabulary or min(tokens.min(), slots.min(), positions.min()) < 0:
            raise ValueError("token, slot or position out of range")
        kept = [np.ascontiguousarray(a, np.int32) for a in (tokens, slots, positions)]
        flags = np.ascontiguousarray(wanted, np.uint8)
        logits = np.empty((int(np.count_nonzero(flags)), self.shape.vocabulary), np.float32)
        self._run(
            ctypes.byref(self._model), ctypes.byref(self._state), rows, *(_address(a) for a in kept),
            _address(flags), _address(logits),
        )  # fmt: skip
        return logits


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def rotary(head: int, context: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine, float32 [context, head / 2], of the rotary embedding."""
    angles = np.outer(np.arange(context), theta ** (-np.arange(0, head, 2) / head))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
