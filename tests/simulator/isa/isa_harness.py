"""Runs one opcode of the table and its pseudo-code on the same operands."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from kvc.simulator.isa.table import REGISTRY, Op

from tests.simulator.isa.isa_operands import LANES, SHAPES, draw, from_array, to_array
from tests.simulator.isa.minifloats import undefined_function
from tests.simulator.isa.pcode import Program
from tests.simulator.isa.pcode_values import Unsupported, Value

# LLVM's name where it differs from the document's.
_ALIASES = {
    "v_fma_mix_f32": "v_mad_mix_f32",
    "v_fma_mixlo_f16": "v_mad_mixlo_f16",
    "v_fma_mixhi_f16": "v_mad_mixhi_f16",
    "v_mul_lo_i32": "v_mul_lo_u32",
}
# Where the text's operands are not S0, S1, S2 in order.
_NAMES = {
    "v_fmamk_f32": ("S0", "SIMM32", "S1"), "v_fmaak_f32": ("S0", "S1", "SIMM32"),
    "v_madmk_f16": ("S0", "SIMM16", "S1"), "v_madak_f16": ("S0", "S1", "SIMM16"),
}  # fmt: skip


# Filled by the tests, reported at the end of the run.
CHECKED: dict[str, set[str]] = {"document": set(), "errata": set()}


@cache
def _texts() -> dict[str, str]:
    from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

    formats = ("SOP1Op", "SOP2Op", "SOPKOp", "SOPCOp", "VOP1Op", "VOP2Op", "VOP3Op", "VOP3POp", "VOP3SDOp", "VOPCOp")
    return {
        key.name.lower().removesuffix("_e32").removesuffix("_e64"): text
        for key, text in PCODE.items()
        if type(key).__name__ in formats
    }


@cache
def program(flavour: str, name: str) -> Program | None:
    """The pseudo-code of a mnemonic on a chip whose 8-bit formats are `flavour`; None where the document has none."""
    text = _texts().get(_ALIASES.get(name, name))
    return None if text is None else Program(text, partial(program, flavour), partial(undefined_function, flavour))


@dataclass
class Case:
    """Operands and results of one opcode. `sources[i][lane]` and `results[i][lane]` are raw bits (masks: 0 or 1)."""

    op: Op
    sources: list[list[int]]
    results: list[list[int]]

    def lanes(self) -> int:
        return len(self.results[0])

    def inputs(self, lane: int) -> list[int]:
        return [column[lane] for column in self.sources]


def plain(kind: str) -> str:
    """The storage type of an operand type: without D., .keep, .lo, .hi."""
    return kind.removeprefix("D.").split(".")[0]


def run_table(name: str, waves: int = 2, seed: int = 0, clamp: bool = False, **fixed: Any) -> Case:
    """Draw operands for an opcode and run its function; `fixed` gives the value of "fp8" or "bitop3" sources.

    `clamp` calls the saturating form.
    """
    op = REGISTRY[name]
    rng = random.Random(f"{name}{seed}")
    sources: list[list[int]] = []
    arguments: list[Any] = []
    for kind in op.src:
        if kind in ("fp8", "bitop3"):
            sources.append([0] * (waves * LANES))
            arguments.append(fixed[kind])
        elif kind in ("mask", "vcc", "scc"):
            sources.append([rng.getrandbits(1) for _ in range(waves * LANES)])
            arguments.append(np.array(sources[-1], np.bool_).reshape(-1, LANES))
        else:
            sources.append(draw(rng, plain(kind), waves))
            arguments.append(to_array(sources[-1], plain(kind)))
    with np.errstate(all="ignore"):
        function = op.clamp_fn if clamp else op.fn
        assert function is not None
        outcome = function(*arguments)
    outcomes = outcome if isinstance(outcome, tuple) else (outcome,)
    assert len(outcomes) == len(op.dst)
    results = [_raw(value, kind) for value, kind in zip(outcomes, op.dst, strict=True)]
    return Case(op, sources, results)


def _raw(value: Any, kind: str) -> list[int]:
    if kind in ("mask", "vcc", "scc", "exec"):
        assert value.dtype == np.bool_, value.dtype
        return value.reshape(-1).astype(int).tolist()
    return from_array(value, plain(kind))


def _registers(case: Case, lane: int, truth_table: int) -> dict[str, Value]:
    lane_id = lane % LANES
    registers = {
        "laneId": Value("u", 32, lane_id), "D0": Value("b", 1024, 0), "VCC": Value("b", 64, 0),
        "SCC": Value("u", 1, 0), "EXEC": Value("b", 64, 0), "TRUTH_TABLE": Value("b", 8, truth_table),
    }  # fmt: skip
    explicit = iter(_NAMES.get(case.op.name, ("S0", "S1", "S2")))
    for kind, column in zip(case.op.src, case.sources, strict=True):
        if kind in ("fp8", "bitop3"):
            continue
        if kind == "scc":
            registers["SCC"] = Value("u", 1, column[lane])
        elif kind in ("mask", "vcc"):
            registers["VCC"] = Value("b", 64, column[lane] << lane_id)
        elif kind.startswith("D."):
            registers["D0"] = Value("b", 1024, column[lane])
        else:
            bits, count, _ = SHAPES[kind]
            registers[next(explicit)] = Value("b", max(bits * count, 32), column[lane])
    if case.op.fmt == "vopc":
        registers["D0"] = Value("b", 64, 0)
    return registers


def run_document(case: Case, lane: int, flavour: str = "ocp", truth_table: int = 0) -> list[int]:
    """The raw results that the pseudo-code gives for one lane. Unsupported where the document does not define it."""
    text = program(flavour, case.op.name)
    if text is None:
        raise Unsupported(case.op.name)
    names = text.run(_registers(case, lane, truth_table))
    results = []
    for i, kind in enumerate(case.op.dst):
        if kind == "scc":
            results.append(names["SCC"].bits & 1)
        elif kind == "exec":
            results.append(int(names["EXEC"].bits != 0))
        elif kind == "mask":
            source = "D1" if "D1" in names else "D0" if case.op.fmt == "vopc" else "VCC"
            results.append(int(names[source].bits != 0))
        else:
            assert i == 0
            bits, count, _ = SHAPES[plain(kind)]
            shift = 16 if kind.endswith(".hi") else 0
            results.append(names["D0"].bits >> shift & ((1 << (bits * count)) - 1))
    return results
