"""The rules that a kernel is judged by, and a rejection in words.

Each rule stands for a way in which published kernel generators or their benchmarks were fooled (V1 to V22), or for a
fault that users meet on AMD GPUs (A1 to A10). Its key is stable; so are the diagnostic codes. docs/verification.md is
this table with the mutants that prove each rule (tests/adversarial).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvc.diagnostics import CODES
from kvc.verify.verdict import Rejected


@dataclass(frozen=True)
class Rule:
    """`stage`: where a kernel that breaks it is turned down ("-": not a matter of one kernel); `codes`: with which
    diagnostics; `how`: what is done; `absent`: why a target has no mutant of it, by target ("" for both)."""

    key: str
    title: str
    stage: str
    codes: tuple[str, ...]
    how: str
    absent: tuple[tuple[str, str], ...] = ()


def _not_of_a_kernel(reason: str) -> tuple[tuple[str, str], ...]:
    return (("hip", reason), ("triton", reason))


RULES: tuple[Rule, ...] = (
    Rule("V1", "output unwritten, or an earlier result shows through", "execute, compare", ("KVC0702", "KVC0905"),
         "outputs start as never written (0xFF); a read before the write faults; nothing of the reference is near"),
    Rule("V2", "a library does the work", "lint", ("KVC0403",),
         "HIP: functions without a body, foreign includes; Triton: imports and attributes by allow-list"),
    Rule("V3", "falls back to the reference, or inherits it", "lint, compile", ("KVC0403", "KVC0502"),
         "a Triton file holds imports, constants and functions of plain statements; device C++ has no exceptions"),
    Rule("V4", "constant or zero output under an absolute tolerance", "compare", ("KVC0701",),
         "tolerances scale with the reference; inputs on which zeros or the mean would pass are drawn again"),
    Rule("V5", "degenerate reference", "-", ("KVC0707",),
         "a reference that stays constant on every draw is a warning of the evidence",
         _not_of_a_kernel("a property of the spec: test_judge.test_a_degenerate_reference_is_reported")),
    Rule("V6", "input changed in place", "execute", ("KVC0703",), "inputs are compared byte by byte after each run"),
    Rule("V7", "work on a side stream or thread", "lint", ("KVC0403",), "no host code, no import of threads"),
    Rule("V8", "lazy tensor subclass", "lint", ("KVC0403",),
         "kernels see raw buffers; a class in a Triton file is refused",
         (("hip", "device code knows no tensor types"),)),
    Rule("V9", "timer or comparison patched", "lint", ("KVC0403",),
         "nothing runs on import; clocks are refused; the judge is another process than the candidate's"),
    Rule("V10", "result replayed by pointer or call count", "lint, determinism", ("KVC0403", "KVC0705"),
         "no variable outlives a launch; every run has fresh buffers; the first input set is repeated last"),
    Rule("V11", "behaviour that changes after N calls", "lint, determinism", ("KVC0403", "KVC0705"), "as V10"),
    Rule("V12", "only the tested shape works", "compare, execute", ("KVC0711",),
         "symbolic axes are tried at 1, at primes, around one wave and beyond the hint, with the stated launch"),
    Rule("V13", "inputs of one distribution", "compare", ("KVC0701", "KVC0706"),
         "eight sets: normal, special (NaN, inf, zeros, subnormals, the spec's constants), offset, large, rows, small, "
         "negative, spread (every magnitude alike)"),
    Rule("V14", "precision quietly lowered", "compare", ("KVC0701",),
         "twice the working dtype's own error; for narrow results the signed mean and the mean square too"),
    Rule("V15", "races, uninitialised LDS, order dependence", "execute, compare, determinism",
         ("KVC0905", "KVC0906", "KVC0907", "KVC0908", "KVC0705", "KVC0702"),
         "the simulator's trackers; a second run with other orders of waves and workgroups, compared bitwise"),
    Rule("V16", "more LDS or threads than the device has", "resources", ("KVC0402",),
         "launch, compiler metadata and the ArchSpec are compared before anything runs",
         (("triton", "LDS is the compiler's choice, and compared with the chip; num_warps is A5"),)),
    Rule("V17", "harness edited or its frames walked", "lint", ("KVC0403",),
         "files, frames and interpreters are out of reach of the source; and the worker's sandbox"),
    Rule("V18", "speed-up against a wrong baseline", "-", (),
         "kvc bench times kernel and baseline interleaved, in one process, on the same inputs (bench/timing.py)",
         _not_of_a_kernel("a property of the benchmark")),
    Rule("V19", "faster than physics", "-", ("KVC0713",), "a time below half the roofline floor is no measurement",
         _not_of_a_kernel("a property of a time: test_rules.test_a_time_below_the_roofline_is_no_measurement")),
    Rule("V20", "missing outputs", "propose, compare", ("KVC0302", "KVC0702", "KVC0708"),
         "every output of the spec is compared: shape, dtype, every element"),
    Rule("V21", "access outside of a buffer", "execute", ("KVC0903", "KVC0704"),
         "buffers are islands in unmapped space on the simulator, and have guard bands on a device"),
    Rule("V22", "copy of a known source", "propose", ("KVC0712",),
         "a hash that names, layout and comments do not change (kvc.verify.likeness)"),
    Rule("A1", "written for waves of 32", "lint, compare", ("KVC0403", "KVC0701", "KVC0702"),
         "lint of shuffles, votes and lane arithmetic; what it cannot see gives wrong results on 64 lanes"),
    Rule("A2", "missing store mask", "lint, execute", ("KVC0403", "KVC0903"),
         "Triton: every block axis needs a mask; what a wrong mask lets through faults"),
    Rule("A3", "bf16 that truncates", "compare", ("KVC0701",), "the signed error of narrow floats has no bias"),
    Rule("A4", "LDS sized for another chip", "lint", ("KVC0403", "KVC0402"),
         "static LDS against the ArchSpec of the chip",
         (("triton", "LDS is the compiler's choice; what it asks for is compared with the chip"),)),
    Rule("A5", "32 waves of 64 lanes", "lint, resources", ("KVC0403", "KVC0402"), "threads of a workgroup, num_warps"),
    Rule("A6", "fp8 FNUZ against OCP", "compare", ("KVC0701", "KVC0706"), "both are dtypes of their own"),
    Rule("A7", "shared cache races, incomplete keys", "-", ("KVC0803", "KVC0804"),
         "code objects are content-addressed, written atomically, and checked when read (tests/test_store.py)",
         _not_of_a_kernel("a property of the store")),
    Rule("A8", "bf16 rounding left out", "compare", ("KVC0710",),
         "where it shows, results must agree with the spec as it rounds, not with the spec without that rounding"),
    Rule("A9", "int32 offset overflows", "execute", ("KVC0903",),
         "layouts beyond 1 GiB are held in segments with nothing between them"),
    Rule("A10", "a configuration that takes everything down", "execute", ("KVC0909", "KVC0604"),
         "instruction and time limits; a worker that dies costs one candidate"),
)  # fmt: skip


def rules_of(rejected: Rejected) -> list[Rule]:
    """The rules that a rejection may mean: those with its code and its stage."""
    code, stage = rejected.diagnostic.code, rejected.stage
    return [rule for rule in RULES if code in rule.codes and stage in rule.stage]


def explain(rejected: Rejected, seed: int, replay: str = "") -> list[str]:
    """Lines for a person: which check, which element, what was expected, how far off it is, and how to see it again.

    `replay` is the command without its --replay option, "" to leave that line out.
    """
    found = rejected.diagnostic
    details: dict[str, Any] = found.details
    lines = [f"rejected at {rejected.stage}: {CODES[found.code]} ({found.code})", f"  {found.message}"]
    if found.location is not None:
        lines.append(f"  at {found.location}")
    if "got" in details and "expected" in details:
        place = f"[{', '.join(map(str, details.get('where', ())))}]"
        lines.append(f"  element {details['output']}{place}: expected {details['expected']}, got {details['got']}")
    if details.get("allowed"):
        eager = details["working"]
        times = f", {details['error'] / eager:,.0f} times eager's own" if eager else ""
        lines.append(
            f"  error {details['error']:.2e} of the reference's magnitude{times} ({eager:.2e}); tolerance "
            f"{details['tolerance']:.1e}, allowed beside eager {details['allowed']:.2e}"
        )
    if "line" in details and "instruction" in details:
        lines.append(f"  assembly line {details['line']}: {details['instruction']}")
    named = [f"{rule.key} ({rule.title})" for rule in rules_of(rejected)]
    if named:
        lines.append(f"  rule: {' or '.join(named)}; docs/verification.md")
    if found.hint:
        lines.append(f"  hint: {found.hint}")
    if replay and details.get("input_set"):
        lines.append(f"  see it again: {replay} --replay {seed}/{details['input_set']}")
    return lines
