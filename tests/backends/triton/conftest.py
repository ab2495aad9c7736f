"""Runs Triton candidates in the simulator and compares them with the oracle, as the verifier does."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from kvc.backends.triton.toolchain import compile_candidate
from kvc.emitter import Candidate
from kvc.kernel import KernelSpec
from kvc.simulator.executor import SimExecutor
from kvc.verify.buffers import bind, launch_plans, outputs_of
from kvc.verify.compare import compare
from kvc.verify.oracle import Examiner


def simulate(candidate: Candidate, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs of a candidate, compiled for its task's chip and run on the simulator."""
    compiled = compile_candidate(candidate)
    buffers, fresh = bind(candidate, inputs)
    done = SimExecutor(candidate.task.arch).execute(launch_plans(candidate, compiled), buffers, outputs=fresh)
    return outputs_of(candidate.task.spec, done.buffers)


def problems(candidate: Candidate, examiner: Examiner, sets: tuple[str, ...]) -> list[str]:
    """What the verifier's comparison objects to, on the named input sets."""
    spec: KernelSpec = candidate.task.spec
    found = []
    for name in sets:
        reference = examiner.reference(name)
        got = simulate(candidate, reference.inputs)
        for out in spec.outputs:
            result = compare(
                out.name, out.dtype, got[out.name], reference.oracle[out.name], reference.working[out.name],
                reference.probe[out.name], growth=examiner.growth_on(name), input_set=name,
            )  # fmt: skip
            if result.diagnostic is not None:
                found.append(str(result.diagnostic))
    return found
