"""What the simulator believes of every opcode, written down so that the first real GPU can contradict it.

For each opcode a tiny kernel feeds random and edge operands to one instruction and stores what it returns. `golden`
holds the simulator's answers; on hardware the same assembled kernels are run on the same inputs and `compare` lists
the differences, which go into one JSON file (`save_corrections`). Kernels have two pointer arguments: results (dwords,
[result, 64 lanes]) and operands ([operand dword, 64 lanes]).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.diagnostics import KvcError
from kvc.simulator.isa import ALU
from kvc.simulator.isa.table import REGISTRY, Op
from kvc.simulator.launch import launch
from kvc.simulator.memory import Memory
from kvc.simulator.operands import WIDE, dwords
from kvc.simulator.program import load

KERNEL = "kvc_selftest"
LANES = 64
_IMPLICIT = ("scc", "exec", "vcc", "fp8", "bitop3")
_SCALAR = ("sop1", "sop2", "sopk", "sopc")
_LITERAL = {"v_fmamk_f32": 1, "v_madmk_f32": 1, "v_madmk_f16": 1, "v_fmaak_f32": 2, "v_madak_f32": 2, "v_madak_f16": 2}
_EDGES = np.array(
    [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000,
     0x00800000, 0x007FFFFF, 0x7F7FFFFF, 0x3C003C00, 0x7C00FC00],
    np.uint32,
)  # fmt: skip


@dataclass(frozen=True)
class SelfTest:
    """One opcode: `text` is a whole assembly file, `operands` uint32 [dwords, 64], `results` how many dwords [64]."""

    name: str
    arch: str
    text: str
    operands: np.ndarray
    results: int


def cases(arch: str) -> list[SelfTest]:
    """A case for each ALU opcode of the chip in the order of their names, then lane movement and matrix opcodes."""
    found = [REGISTRY[name] for name in sorted(ALU)]
    alu = [_case(item, arch) for item in found if item.archs is None or arch in item.archs]
    return alu + [_lane_case(text, arch) for text in _lane_texts(arch)] + _matrix_cases(arch)


def golden(arch: str, names: list[str] | None = None) -> dict[str, np.ndarray]:
    """The simulator's results, uint32 [results, 64] by opcode."""
    return {case.name: simulate(case) for case in cases(arch) if names is None or case.name in names}


def simulate(case: SelfTest) -> np.ndarray:
    """Run one case: uint32 [results, 64]. KvcError where the simulator does not know the opcode's form."""
    mem = Memory(case.arch)
    out = mem.alloc(case.results * LANES * 4, fill=b"\0", name="results")
    program = load(case.text, case.arch)
    launch(program, KERNEL, (1, 1, 1), (LANES, 1, 1), [out, mem.upload(case.operands, "operands")], mem)
    return out.view(np.uint32, (case.results, LANES)).copy()


@dataclass(frozen=True)
class Difference:
    """An opcode whose measured result is not the simulator's: the first lane that differs, with its operands."""

    name: str
    lanes: int
    lane: int
    operands: tuple[int, ...]
    simulated: tuple[int, ...]
    measured: tuple[int, ...]


def compare(arch: str, measured: dict[str, np.ndarray]) -> list[Difference]:
    """Differences between results measured on hardware and `golden`. Bits are compared, so NaN payloads count."""
    out = []
    for case in cases(arch):
        if case.name not in measured:
            continue
        mine, theirs = simulate(case), np.asarray(measured[case.name], np.uint32).reshape(case.results, LANES)
        bad = (mine != theirs).any(axis=0)
        if bad.any():
            lane = int(bad.argmax())
            out.append(
                Difference(
                    case.name, int(bad.sum()), lane, tuple(map(int, case.operands[:, lane])),
                    tuple(map(int, mine[:, lane])), tuple(map(int, theirs[:, lane])),
                )
            )  # fmt: skip
    return out


def save_corrections(path: Path, arch: str, device: str, differences: list[Difference]) -> None:
    """Write or extend the corrections file: {arch: {"device": ..., "opcodes": {name: first difference}}}."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    rows = {
        item.name: {"lanes": item.lanes, "operands": list(item.operands), "simulated": list(item.simulated),
                    "measured": list(item.measured)}
        for item in differences
    }  # fmt: skip
    known[arch] = {"device": device, "opcodes": rows}
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def load_corrections(path: Path, arch: str) -> frozenset[str]:
    """Opcodes that hardware has shown the simulator to have wrong on this chip. KVC0803 for a file that is none."""
    try:
        known = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise KvcError("KVC0803", f"{path}: {error}") from None
    return frozenset(known.get(arch, {}).get("opcodes", {}))


# ---- the kernels


def _case(op: Op, arch: str) -> SelfTest:
    body, words, results = (_scalar if op.fmt in _SCALAR else _vector)(op)
    return SelfTest(op.name, arch, _file(body, arch), _random(op.name, words), results)


_DPP = ("quad_perm:[3,0,2,1]", "row_shl:3", "row_shr:5", "row_ror:4", "wave_shl:1", "wave_shr:1", "wave_rol:1",
        "wave_ror:1", "row_mirror", "row_half_mirror", "row_bcast:15", "row_bcast:31", "row_newbcast:7")  # fmt: skip
_LANE_OPS = ("ds_bpermute_b32 v16, v64, v65", "ds_permute_b32 v16, v64, v65", "ds_swizzle_b32 v16, v64 offset:0x401f",
             "v_mbcnt_lo_u32_b32 v16, v64, v65", "v_mbcnt_hi_u32_b32 v16, v64, v65", "v_swap_b32 v16, v64")  # fmt: skip
# Name after v_mfma_ by generation ("" where it does not exist; CDNA 2, 3, 4), dwords of A and B, dwords of the result.
_MATRIX = (
    ("f32_32x32x1f32", "f32_32x32x1_2b_f32", "f32_32x32x1_2b_f32", 1, 32),
    ("f32_16x16x1f32", "f32_16x16x1_4b_f32", "f32_16x16x1_4b_f32", 1, 16),
    ("f32_4x4x1f32", "f32_4x4x1_16b_f32", "f32_4x4x1_16b_f32", 1, 4),
    ("f32_32x32x2f32", "f32_32x32x2_f32", "f32_32x32x2_f32", 1, 16),
    ("f32_16x16x4f32", "f32_16x16x4_f32", "f32_16x16x4_f32", 1, 4),
    ("f32_32x32x4f16", "f32_32x32x4_2b_f16", "f32_32x32x4_2b_f16", 2, 32),
    ("f32_16x16x4f16", "f32_16x16x4_4b_f16", "f32_16x16x4_4b_f16", 2, 16),
    ("f32_4x4x4f16", "f32_4x4x4_16b_f16", "f32_4x4x4_16b_f16", 2, 4),
    ("f32_32x32x8f16", "f32_32x32x8_f16", "f32_32x32x8_f16", 2, 16),
    ("f32_16x16x16f16", "f32_16x16x16_f16", "f32_16x16x16_f16", 2, 4),
    ("f32_32x32x8bf16_1k", "f32_32x32x8_bf16", "f32_32x32x8_bf16", 2, 16),
    ("f32_16x16x16bf16_1k", "f32_16x16x16_bf16", "f32_16x16x16_bf16", 2, 4),
    ("f32_4x4x4bf16_1k", "f32_4x4x4_16b_bf16", "f32_4x4x4_16b_bf16", 2, 4),
    ("f32_32x32x4bf16", "", "", 1, 16),
    ("i32_32x32x8i8", "i32_32x32x16_i8", "i32_32x32x16_i8", 0, 16),
    ("i32_16x16x16i8", "i32_16x16x32_i8", "i32_16x16x32_i8", 0, 4),
    ("f64_16x16x4f64", "f64_16x16x4_f64", "f64_16x16x4_f64", 2, 8),
    ("f64_4x4x4f64", "f64_4x4x4_4b_f64", "f64_4x4x4_4b_f64", 2, 2),
    ("", "f32_16x16x8_xf32", "", 2, 4),
    ("", "f32_32x32x4_xf32", "", 2, 16),
    ("", "f32_16x16x32_fp8_fp8", "f32_16x16x32_fp8_fp8", 2, 4),
    ("", "f32_16x16x32_bf8_fp8", "f32_16x16x32_bf8_fp8", 2, 4),
    ("", "f32_32x32x16_bf8_bf8", "f32_32x32x16_bf8_bf8", 2, 16),
    ("", "", "f32_16x16x32_f16", 4, 4),
    ("", "", "f32_32x32x16_bf16", 4, 16),
    ("", "", "i32_16x16x64_i8", 4, 4),
    ("", "", "f32_16x16x128_f8f6f4", 8, 4),
    ("", "", "f32_32x32x64_f8f6f4", 8, 16),
)


def _generation(arch: str) -> int:
    return ("none", "fnuz", "ocp").index(arch_row(arch).fp8)


def _lane_texts(arch: str) -> list[str]:
    moves = [f"v_mov_b32_dpp v16, v64 {control} row_mask:0xf bank_mask:0xf" for control in _DPP]
    moves += [f"{text} bound_ctrl:1" for text in moves]
    swaps = [f"v_permlane{width}_swap_b32_e32 v16, v64" for width in (16, 32)] if _generation(arch) == 2 else []
    return [*moves, *_LANE_OPS, *swaps]


def _lane_case(text: str, arch: str) -> SelfTest:
    """One result in v16 (and v64, which swaps change) from v64, v65 and the old v16."""
    loads = [*_load("v16", 0), *_load("v64", 1), *_load("v65", 2), "s_waitcnt vmcnt(0)"]
    body = [*loads, text, "s_nop 4", "s_waitcnt lgkmcnt(0)", *_stores(["v16", "v64"])]
    return SelfTest(text, arch, _file(body, arch), _random(text, 3), 2)


def _matrix_cases(arch: str) -> list[SelfTest]:
    out = []
    for *names, words, size in _MATRIX:
        name = f"v_mfma_{names[_generation(arch)]}"
        if name == "v_mfma_":
            continue
        words = words or (1 if _generation(arch) == 0 else 2)
        body: list[str] = []
        for i in range(words):
            body += [*_load(f"v{64 + i}", i), *_load(f"v{72 + i}", words + i)]
        for i in range(size):
            body += _load(f"v{16 + i}", 2 * words + i)
        target = _range("v", 16, size)
        body += ["s_waitcnt vmcnt(0)", f"{name} {target}, {_range('v', 64, words)}, {_range('v', 72, words)}, {target}"]
        body += ["s_nop 15", "s_nop 15", *_stores([f"v{16 + i}" for i in range(size)])]
        out.append(SelfTest(name, arch, _file(body, arch), _matrix_operands(name, 2 * words + size), size))
    return out


def _random(name: str, words: int) -> np.ndarray:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    operands = rng.integers(0, 1 << 32, (max(words, 1), LANES), dtype=np.uint32)
    pick = rng.random(operands.shape) < 0.4
    operands[pick] = rng.choice(_EDGES, int(pick.sum()))
    return operands


def _matrix_operands(name: str, words: int) -> np.ndarray:
    """Dwords that are small finite numbers in every format (0x40 and 0x3c bytes), so that sums are comparable."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if "f64" in name:
        values = rng.integers(-4, 5, (words // 2, LANES)).astype(np.float64).view(np.uint32)
        return np.ascontiguousarray(values.reshape(words // 2, LANES, 2).transpose(0, 2, 1)).reshape(words, LANES)
    choices = np.array([0, 0x40004000, 0x3C003C00, 0xC000C000, 0x3F803F80], np.uint32)
    return rng.choice(choices, (words, LANES))


def _sizes(kind: str) -> int:
    base = kind.removeprefix("D.").split(".")[0]
    return WIDE.get(base) or dwords(base)


def _range(file: str, first: int, count: int) -> str:
    return f"{file}{first}" if count == 1 else f"{file}[{first}:{first + count - 1}]"


def _vector(op: Op) -> tuple[list[str], int, int]:
    """Operands in v[64...], the target in v[16...] (loaded too: some opcodes keep part of it)."""
    lines, words, at = [], 0, 64
    target_words = sum(_sizes(kind) for kind in op.dst if kind not in ("mask", "vcc", "exec", "scc"))
    texts, masks = [], 0
    for i in range(target_words):
        lines += _load(f"v{16 + i}", words)
        words += 1
    lines += _mask_setup()
    explicit = 0
    for kind in op.src:
        if kind in _IMPLICIT or kind.startswith("D."):
            continue
        explicit += 1
        if kind == "mask":
            texts.append("vcc")
            masks += 1
        elif _LITERAL.get(op.name) == explicit - 1:
            texts.append("0x4248" if op.name.endswith("f16") else "0x40490fdb")
        else:
            at += at & 1
            for i in range(_sizes(kind)):
                lines += _load(f"v{at + i}", words)
                words += 1
            texts.append(_range("v", at, _sizes(kind)))
            at += _sizes(kind)
    lines.append("s_waitcnt vmcnt(0)")
    targets, register = [], 16
    for kind in op.dst:
        if kind in ("mask", "vcc"):
            targets.append("vcc")
        elif kind not in ("exec", "scc"):
            targets.append(_range("v", register, _sizes(kind)))
            register += _sizes(kind)
    tail = " bitop3:0x6c" if "bitop3" in op.src else ""
    lines.append(f"{op.name} {', '.join([*targets, *texts])}{tail}")
    lines.append("s_nop 4")
    lines += ["s_mov_b64 s[20:21], exec", "s_mov_b64 exec, -1"] if "exec" in op.dst else []
    values = [f"v{16 + i}" for i in range(target_words)]
    lines += ["v_mov_b32_e32 v8, vcc_lo", "v_mov_b32_e32 v9, vcc_hi"]
    values += ["v8", "v9"]
    if "exec" in op.dst:
        lines += ["v_mov_b32_e32 v10, s20", "v_mov_b32_e32 v11, s21"]
        values += ["v10", "v11"]
    return lines + _stores(values), words, len(values)


def _load(register: str, word: int) -> list[str]:
    return [f"v_add_u32_e32 v2, {256 * word}, v1", f"global_load_dword {register}, v2, s[6:7]"]


def _mask_setup() -> list[str]:
    """VCC with a pattern of its own, for opcodes that read it."""
    return ["s_mov_b32 vcc_lo, 0x5a3c96e1", "s_mov_b32 vcc_hi, 0x0ff0c35a"]


def _scalar(op: Op) -> tuple[list[str], int, int]:
    """Operands in s[16...] from lane 0's column, the target in s[40...], results to all lanes."""
    lines, words, at = [], 0, 16
    texts = []
    targets = [kind for kind in op.dst if kind not in _IMPLICIT]
    register, values = 40, []
    names = []
    for kind in targets:
        for i in range(_sizes(kind)):
            lines.append(f"s_load_dword s{register + i}, s[6:7], {256 * words:#x}")
            values.append(f"s{register + i}")
            words += 1
        names.append(_range("s", register, _sizes(kind)))
        register += _sizes(kind) + (_sizes(kind) & 1)
    for kind in op.src:
        if kind in _IMPLICIT or kind.startswith("D."):
            continue
        if kind in ("simm16", "uimm16"):
            texts.append("0x7321")
            continue
        for i in range(_sizes(kind)):
            lines.append(f"s_load_dword s{at + i}, s[6:7], {256 * words:#x}")
            words += 1
        texts.append(_range("s", at, _sizes(kind)))
        at += 2
    lines += ["s_waitcnt lgkmcnt(0)", "s_cmp_eq_u32 s6, s6", f"{op.name} {', '.join([*names, *texts])}"]
    lines += ["s_cselect_b32 s60, 1, 0"]
    moved = []
    for i, value in enumerate([*values, "s60"]):
        lines.append(f"v_mov_b32_e32 v{8 + i}, {value}")
        moved.append(f"v{8 + i}")
    return lines + _stores(moved), words, len(moved)


def _stores(values: list[str]) -> list[str]:
    lines = []
    for i, value in enumerate(values):
        lines += [f"v_add_u32_e32 v2, {256 * i}, v1", f"global_store_dword v2, {value}, s[4:5]"]
    return lines


def _file(body: list[str], arch: str) -> str:
    head = ["s_load_dwordx4 s[4:7], s[0:1], 0x0", "v_lshlrev_b32_e32 v1, 2, v0", "s_waitcnt lgkmcnt(0)"]
    code = "\n".join(f"\t{line}" for line in [*head, *body, "s_endpgm"])
    return f"""\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
\t.amdhsa_code_object_version 5
\t.text
\t.globl {KERNEL}
\t.p2align 8
\t.type {KERNEL},@function
{KERNEL}:
{code}
\t.section .rodata,"a",@progbits
\t.p2align 6
\t.amdhsa_kernel {KERNEL}
\t\t.amdhsa_kernarg_size 16
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_next_free_vgpr 160
\t\t.amdhsa_next_free_sgpr 64
\t\t.amdhsa_accum_offset 160
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space: global
        .offset: 0
        .size: 8
        .value_kind: global_buffer
      - .address_space: global
        .offset: 8
        .size: 8
        .value_kind: global_buffer
    .group_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .kernarg_segment_size: 16
    .max_flat_workgroup_size: 64
    .name: {KERNEL}
    .private_segment_fixed_size: 0
    .sgpr_count: 70
    .symbol: {KERNEL}.kd
    .vgpr_count: 160
    .wavefront_size: 64
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""
