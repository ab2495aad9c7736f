"""`kvc selftest`: kernels with known answers on an executor, then every opcode of the chip.

On a device each opcode's tiny kernel is assembled, run and compared bit for bit with the simulator; what differs goes
into one corrections file. On the simulator there is nothing to compare opcodes with: they are run, so that a broken
table shows, and the result says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from kvc.arch import ArchSpec
from kvc.backends.device.selftest import cases as kernel_cases
from kvc.backends.device.selftest import run_case
from kvc.backends.hip.toolchain import assemble, compile_hip
from kvc.diagnostics import KvcError
from kvc.executor import Argument, Executor, LaunchPlan
from kvc.executors import executor as make_executor
from kvc.simulator.selftest import KERNEL, LANES, SelfTest, compare, save_corrections, simulate
from kvc.simulator.selftest import cases as opcode_cases


def selftest(
    executor: str, row: ArchSpec, corrections: Path | None = None, note: Callable[[str], None] = print
) -> dict[str, Any]:
    """{"ok", "executor", "arch", "kernels", "opcodes", "failures", "differences"}. `note` gets a line as each part is
    done; `corrections` is where differences from the simulator are kept."""
    runner = make_executor(executor, row.name)
    kernels = [_kernel(case, runner, row) for case in kernel_cases()]
    passed = sum(k["passed"] for k in kernels)
    note(f"{passed} of {len(kernels)} kernels right on {executor} for {row.name}")
    for kernel in kernels:
        if not kernel["passed"]:
            note(f"  {kernel['name']}: error {kernel['error']:.2e} of {kernel['tolerance']:.0e} {kernel['message']}")
    found = opcode_cases(row.name)
    if executor == "sim":
        failures = _simulate_all(found)
        differences: list[dict[str, Any]] = []
        note(f"{len(found) - len(failures)} of {len(found)} opcodes run on the simulator (no device to compare with)")
    else:
        measured, failures = _measure(found, runner, row)
        compared = compare(row.name, measured)
        differences = [asdict(d) for d in compared]
        note(f"{len(measured) - len(compared)} of {len(found)} opcodes agree with the simulator bit for bit")
        for difference in compared:
            note(f"  {difference.name}: {difference.lanes} lanes differ, the first {difference.lane}")
        if corrections is not None:
            save_corrections(corrections, row.name, executor, compared)
            note(f"differences written to {corrections}")
    for name, message in failures.items():
        note(f"  {name}: {message}")
    return {
        "ok": passed == len(kernels) and not failures and not differences,
        "executor": executor,
        "arch": row.name,
        "kernels": kernels,
        "opcodes": len(found),
        "failures": failures,
        "differences": differences,
    }


def _kernel(case: Any, runner: Executor, row: ArchSpec) -> dict[str, Any]:
    try:
        result = asdict(run_case(case, runner, compile_hip, row))
    except KvcError as error:
        return {"name": case.name, "passed": False, "error": 0.0, "tolerance": case.tolerance, "message": str(error)}
    return {key: result[key] for key in ("name", "passed", "error", "tolerance", "message")}


def _simulate_all(found: list[SelfTest]) -> dict[str, str]:
    failures = {}
    for case in found:
        try:
            simulate(case)
        except KvcError as error:
            failures[case.name] = error.diagnostic.message
    return failures


def _measure(found: list[SelfTest], runner: Executor, row: ArchSpec) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Results of each opcode on a device, and the opcodes that could not be run."""
    measured: dict[str, np.ndarray] = {}
    failures: dict[str, str] = {}
    for case in found:
        out = np.zeros((case.results, LANES), np.uint32)
        args: tuple[Argument, ...] = (("buffer", "results"), ("buffer", "operands"))
        try:
            binary = assemble(case.text, row.name)
            plan = LaunchPlan(binary, case.text, KERNEL, (1, 1, 1), (LANES, 1, 1), 0, args)
            results = runner.run([plan], {"results": out, "operands": case.operands})
        except KvcError as error:
            failures[case.name] = error.diagnostic.message
            continue
        measured[case.name] = results["results"]
    return measured, failures
