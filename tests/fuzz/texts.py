"""Texts that readers get: valid ones that were changed, soups of their tokens, and deep nesting; and the readers.

A reader may refuse a text with a diagnostic (KvcError). Anything else that it raises, and any time without end, is a
fault. `READERS` maps a name to the texts to begin with, its tokens, and the reader.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from kvc.diagnostics import KvcError

from tests.simulator.tinyasm import PROLOGUE, kernel_text

ROOT = Path(__file__).parent.parent
DEEP = 3000


@dataclass(frozen=True)
class Reader:
    """`seeds()` are valid texts, `tokens` words of the language, `nest(n)` a text n levels deep, `read` the reader."""

    seeds: Callable[[], tuple[str, ...]]
    tokens: tuple[str, ...]
    nest: Callable[[int], str]
    read: Callable[[str], Any]


def refuses_or_reads(reader: Reader, text: str) -> str:
    """ "read" or the code of the diagnostic; whatever else the reader raises goes up."""
    try:
        reader.read(text)
    except KvcError as error:
        return error.code
    return "read"


# ---------------------------------------------------------------- the languages


@cache
def _kernels() -> tuple[str, ...]:
    texts = sorted(ROOT.glob("golden/partition/*.kir"))
    return tuple(t for path in texts if (t := path.read_text()) and len(t) < 6000 and t.lstrip().startswith("kernel"))


@cache
def _graphs() -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted(Path(__file__).parent.glob("graph*.kir")))


@cache
def _assemblies() -> tuple[str, ...]:
    body = (
        "  v_add_u32_e32 v2, 3, v1\n  global_load_dword v3, v1, s[6:7] offset:4\n  s_waitcnt vmcnt(0)\n"
        "  v_cmp_gt_f32_e32 vcc, 1.0, v3\n  s_and_saveexec_b64 s[8:9], vcc\n  s_cbranch_execz .L1\n"
        "  v_fma_f32 v3, v3, v3, -2.0 clamp\n.L1:\n  s_or_b64 exec, exec, s[8:9]\n  s_mov_b32 s10, 0x3f800000\n"
        "  ds_write_b32 v1, v3 offset:16\n  s_waitcnt lgkmcnt(0)\n  s_barrier\n  ds_read_b32 v4, v1 offset:16\n"
        "  s_waitcnt lgkmcnt(0)\n  global_store_dword v1, v4, s[4:5]\n"
    )
    return (kernel_text(PROLOGUE + body, lds=1024, args=2), kernel_text(PROLOGUE, args=2))


@cache
def _locks() -> tuple[str, ...]:
    record = json.loads((Path(__file__).parent / "lock.json").read_text())
    return (json.dumps(record, indent=1),)


_MODEL = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Linear(3, width)

    def forward(self, x):
        return torch.relu(self.body(x)).sum(-1)


def get_inputs():
    return [torch.randn(2, 3)]


def get_init_inputs():
    return [5]
"""


def _read_kernels(text: str) -> None:
    from kvc.check import check_kernel
    from kvc.text import parse_kernels, print_kernel

    for spec in parse_kernels(text):
        check_kernel(spec)
        print_kernel(spec)


def _read_graph(text: str) -> None:
    from kvc.check import check_graph
    from kvc.text import parse_graph, print_graph

    print_graph(check_graph(parse_graph(text)))


def _read_assembly(text: str) -> None:
    """Read, and run one wave: an instruction is looked at when it is first met."""
    from kvc.simulator import Memory, SimOptions, launch, load

    program = load(text, "gfx942")
    memory = Memory("gfx942")
    args = [memory.alloc(256, fill=b"\xcd", name="out"), memory.alloc(4096, fill=b"\0", name="in")]
    launch(program, "k", (1, 1, 1), (64, 1, 1), args, memory, options=SimOptions(max_instructions=2000))


def _read_lock(text: str) -> None:
    """Read, and compare the folder with another as `kvc diff` does."""
    from kvc.diff import diff, findings, render
    from kvc.folder import Folder

    def folder(lock: str) -> Folder:
        files = dict.fromkeys(("kernels.kir", "kernels/layer_norm.hip", "kernels/linear_relu.hip"), b"")
        return Folder("out", "out", {**files, "kvc.lock": lock.encode("utf-8", "surrogatepass")})

    changed = folder(text)
    changed.altered()
    found = diff(folder(_locks()[0]), changed)
    findings(found)
    render(found)


def _read_model(text: str) -> None:
    from kvc.frontends.fx.load import load

    before = set(sys.modules)
    with tempfile.TemporaryDirectory(prefix="kvc-fuzz-") as folder:
        path = Path(folder) / "model.py"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            load(str(path))
        finally:
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                    del sys.modules[name]
            importlib.invalidate_caches()


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(" "))


READERS: dict[str, Reader] = {
    "kernel": Reader(
        _kernels,
        _words(
            'kernel x y m n ( ) [ ] { } : , = -> | # + - * / // % == < && || sum( max( scan scatter '
            'sort( argsort( where loop reverse exclusive f32 f32[ bf16( i64( 1 0 2.5 1e9 inf nan true '
            'strides align alias in .. hint multiple descending 99999999999999999999 -1 \n'
        ),
        lambda n: "kernel k(x: f32[m=2]) -> (y: f32[m]) {\n  y[m] = " + "(" * n + "x[m]" + ")" * n + "\n}",
        _read_kernels,
    ),
    "graph": Reader(
        _graphs,
        _words(
            'graph %x %y ( ) [ ] { } : , = -> f32 f32[2,3] linear relu gelu buffer @"x" # 1 2.0 true '
            'none "s" return strides dims=[0] \n'
        ),
        lambda n: "graph g(%x: f32[2]) {\n  %y = relu(" + "[" * n + "%x" + "]" * n + ") : f32[2]\n  return %y\n}",
        _read_graph,
    ),
    "assembly": Reader(
        _assemblies,
        _words(
            'v_add_f32 v_mov_b32 s_mov_b32 s_load_dwordx2 global_load_dword ds_read_b32 s_waitcnt v0 '
            'v1 v[0:3] v255 v256 s0 s[0:1] s[4:5] vcc exec m0 off 0x10 -1 1.0 offset:4 '
            'offset:99999999 lgkmcnt(0) vmcnt(63) , : .L1 .L1: s_branch s_cbranch_scc0 s_endpgm .text '
            '.amdhsa_kernel k .end_amdhsa_kernel .set .quad .long --- ... \n \t s_getpc_b64 s_setpc_b64 '
            'v_readlane_b32 v_mfma_f32_16x16x4_f32 a[0:3] neg_lo:[1,0] dst_sel:WORD_1'
        ),
        lambda n: kernel_text(f"  s_mov_b32 s5, {'(' * n}1{')' * n}\n", args=2),
        _read_assembly,
    ),
    "lock": Reader(
        _locks,
        _words('{ } [ ] , : "kernels" "format" null true 1 -1 1e999 "" "name" "x"'),
        lambda n: '{"format": ' + "[" * n + "]" * n + "}",
        _read_lock,
    ),
    "model": Reader(
        lambda: (_MODEL,),
        _words(
            'import torch nn class def return self x ( ) [ ] : , = . Net forward get_inputs '
            'get_init_inputs None 3 \n \n\t lambda raise yield del nn.Linear torch.randn '
            'super().__init__() Model'
        ),
        lambda n: "x = " + "(" * n + ")" * n,
        _read_model,
    ),
}  # fmt: skip


# ---------------------------------------------------------------- changed texts


def mutated(reader: Reader, rng: random.Random) -> str:
    """A text: a seed with a few changes, a soup of tokens, or nesting."""
    kind = rng.random()
    if kind < 0.08:
        return " ".join(rng.choice(reader.tokens) for _ in range(rng.randrange(80)))
    if kind < 0.1:
        return reader.nest(rng.choice((5, 50, 400, DEEP)))
    text = rng.choice(reader.seeds())
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = _change(text, reader, rng)
    return text


def _change(text: str, reader: Reader, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + rng.choice((1, 1, 2, 5, 20, 100)))
    token = rng.choice(reader.tokens)
    lines = text.split("\n")
    row = rng.randrange(len(lines))
    match rng.randrange(9):
        case 0:
            return text[:at] + text[end:]
        case 1:
            return text[:at] + token + text[at:]
        case 2:
            return text[:at] + token + text[end:]
        case 3:
            return text[:at] + chr(rng.choice((0, 9, 10, 34, 39, 92, 127, 233, 0x2028, 0x1F600, 0xFEFF))) + text[at:]
        case 4:
            return "\n".join(lines[:row] + lines[row + 1 :])
        case 5:
            return "\n".join([*lines[:row], lines[row], *lines[row:]])
        case 6:
            other = rng.randrange(len(lines))
            lines[row], lines[other] = lines[other], lines[row]
            return "\n".join(lines)
        case 7:
            return text[:at]
        case _:
            return _other_number(text, rng)


def _other_number(text: str, rng: random.Random) -> str:
    places = [n for n, c in enumerate(text) if c.isdigit()]
    if not places:
        return text
    at = rng.choice(places)
    fresh = rng.choice(("0", "1", "7", "255", "65536", "4294967296", "9" * 25, "-1", "1e9", "0x7fffffff", "nan"))
    return text[:at] + fresh + text[at + 1 :]


def texts(name: str) -> st.SearchStrategy[str]:
    """Hypothesis's choice of them: a failure shrinks to the smallest seed of `mutated`."""
    return st.integers(0, 2**32 - 1).map(lambda seed: mutated(READERS[name], random.Random(seed)))
