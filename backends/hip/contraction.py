"""Contractions: the emitter that picks between matrix cores, FMA tiles and the skinny kernel, and their knob spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from kvc.arch import ArchSpec, MatrixShape
from kvc.backends.hip.gemm import FRAGMENT_BYTES, GemmKernel, Problem, Tiling
from kvc.backends.hip.source import VERSION, Knobs, alias_problem, buffer_of, operand_buffers
from kvc.backends.hip.tiles import LANES, Access, access_of, declare_batch
from kvc.backends.hip.unit import Kernel, Unit
from kvc.emitter import Candidate, Space, Support, Task
from kvc.kernel import KernelSpec
from kvc.patterns import Contraction, match_contraction

MIN_MATRIX = 16  # from this size of M, N and K on, the matrix cores do the work
MAX_CONFIGURATIONS = 48
MAX_REGISTERS = 256  # a lane; more leaves one wave a SIMD
BARRIER_CYCLES = 40.0  # that a barrier takes with all waves at hand
_BLOCKS = (16, 32, 64, 128, 256)
_SPLITS = (2, 4, 8, 16)
_WAVES = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1), (2, 4), (4, 2))


def problem_of(spec: KernelSpec) -> tuple[Contraction, Problem]:
    pattern = match_contraction(spec)
    assert isinstance(pattern, Contraction)
    return pattern, Problem.of(spec, pattern)


class ContractionEmitter:
    """Tiled contraction. Knobs: BLOCK_M, BLOCK_N, BLOCK_K (tile), WAVES_M, WAVES_N (waves of a workgroup), MI_M (rows
    of the matrix instruction; 0 for FMA), SPLIT_K (workgroups that share a tile's depth; their sums meet in a second
    launch, in fixed order), STAGES (tiles of an operand in LDS), DIRECT (1: memory to LDS past the registers)."""

    name = "hip.contraction"
    version = VERSION
    schedule = "contraction"

    def supports(self, task: Task) -> Support:
        spec = task.spec
        pattern = match_contraction(spec)
        problem = pattern if isinstance(pattern, str) else alias_problem(spec) or _symbolic_problem(spec, pattern)
        if problem:
            return Support(False, problem)
        assert isinstance(pattern, Contraction)
        sizes = Problem.of(spec, pattern)
        if not (sizes.m * sizes.n * sizes.k * sizes.batch):
            return Support(False, "it sums nothing or gives nothing")
        if sizes.m * sizes.n == 1:
            return Support(False, "it is a plain dot product")
        if any(o.alias is not None for o in spec.outputs):
            return Support(False, "an output lies in an input that other workgroups may still read")
        return Support(True)

    def space(self, task: Task) -> Space:
        _, problem = problem_of(task.spec)
        direct = moves_directly(task.spec, problem, task.arch)
        tilings = list(tilings_of(problem, task.arch, direct))
        tilings.sort(key=lambda t: cycles_of(t, problem, task.arch))
        return Space(tuple(t.knobs() for t in tilings[:MAX_CONFIGURATIONS]))

    def propose(self, task: Task, knobs: Knobs, history: Sequence[Any], seed: int) -> Iterator[Candidate]:
        pattern, _ = problem_of(task.spec)
        yield GemmKernel(task, pattern, knobs).candidate(self.name, self.schedule, knobs)


def _symbolic_problem(spec: KernelSpec, pattern: Contraction) -> str:
    """Why a contraction cannot take its symbolic sizes, "" where it can: no index may have to divide by one."""
    first = {axes[0] for axes in (pattern.batch, pattern.m, pattern.n, pattern.k) if axes}
    inner = [s.name for s in spec.sizes if s.size is None and s.name not in first]
    return f"the size of {inner[0]}, which is not outermost, is symbolic" if inner else ""


def _shapes(problem: Problem, arch: ArchSpec) -> list[MatrixShape | None]:
    """Matrix instructions for the problem, the deepest of each height; [None] (FMA) where it has none or is small."""
    if problem.accumulator.name != "f32" or min(problem.m, problem.n, problem.k) < MIN_MATRIX:
        return [None]
    first: dict[int, MatrixShape | None] = {}
    for shape in arch.matrix_for(problem.tile.name):
        first.setdefault(shape.m, shape)
    return list(first.values()) or [None]


def moves_directly(spec: KernelSpec, problem: Problem, arch: ArchSpec, copies: Sequence[str] = ()) -> bool:
    """Whether both operands may go from memory to LDS past the registers: the GPU does that 16 bytes a lane, and they
    lie in packs along the depth. `copies` lie in scratch."""
    if FRAGMENT_BYTES not in arch.lds_direct_load_bytes:
        return False
    return all(
        a.along == "k" and a.width * problem.tile.bytes == FRAGMENT_BYTES for a in accesses(spec, problem, copies)
    )


def accesses(spec: KernelSpec, problem: Problem, copies: Sequence[str] = ()) -> list[Access]:
    """How both operands move."""
    found = []
    for side in (problem.a, problem.b):
        buffers = operand_buffers(spec) | {t: buffer_of(spec, t, scratch=t) for t in copies}
        kernel = Kernel(Unit(spec), buffers, False, (*(o.name for o in spec.inputs), *copies))
        declare_batch(kernel, side.batch)
        found.append(access_of(spec, kernel, side, problem.tile))
    return found


def tilings_of(problem: Problem, arch: ArchSpec, direct: bool = False) -> Iterator[Tiling]:
    """Every tiling that the GPU can hold and that does not exceed the problem by a whole block; with `direct` those
    too that load straight into LDS."""
    for tiling in _single(problem, arch):
        yield tiling
        if tiling.shape is None:
            continue
        for past in (False, True) if direct and _suits_direct(tiling, problem) else (False,):
            double = replace(tiling, stages=2, direct=past)
            if _fits(double, problem, arch):
                yield double


def _suits_direct(t: Tiling, problem: Problem) -> bool:
    depth_bytes = t.block_k * problem.tile.bytes
    whole_waves = all(rows * depth_bytes // FRAGMENT_BYTES % LANES == 0 for rows in (t.block_m, t.block_n))
    return problem.even("k", t.block_k) and depth_bytes >= 8 * FRAGMENT_BYTES and whole_waves


def _single(problem: Problem, arch: ArchSpec) -> Iterator[Tiling]:
    """The tilings with one tile of each operand in LDS."""
    for shape in _shapes(problem, arch):
        fragment = FRAGMENT_BYTES // problem.tile.bytes
        step = LANES // shape.m * fragment if shape else 8
        depths = [d for d in (8, 16, 32, 64, 128) if d % step == 0]
        blocks = _BLOCKS if shape else (8, *_BLOCKS[:4])
        for block_m, block_n, block_k, waves in product(blocks, blocks, depths, _WAVES):
            whole = Tiling(block_m, block_n, block_k, *waves, shape)
            if not _fits(whole, problem, arch):
                continue
            yield whole
            for split_k in _SPLITS:
                tiling = replace(whole, split_k=split_k)
                if _is_worth_splitting(tiling, problem, arch):
                    yield tiling


def _is_worth_splitting(t: Tiling, problem: Problem, arch: ArchSpec) -> bool:
    """Too few tiles for the compute units, and a depth that leaves each share several tiles and none empty. Partial
    sums take scratch memory of known size."""
    if problem.unknown:
        return False
    tiles = -(-problem.m // t.block_m) * -(-problem.n // t.block_n) * problem.batch
    depth = t.split_depth(problem.k)
    return tiles * t.split_k <= 2 * arch.cu_count and depth >= 2 * t.block_k and (t.split_k - 1) * depth < problem.k


def _fits(t: Tiling, problem: Problem, arch: ArchSpec) -> bool:
    unit = t.shape.m if t.shape else 8
    if t.block_m % (t.waves_m * unit) or t.block_n % (t.waves_n * unit):
        return False
    # A block that is at least twice the problem wastes half its work.
    smallest = (unit, unit, LANES // t.shape.m * FRAGMENT_BYTES // problem.tile.bytes if t.shape else 8)
    blocks, sizes = (t.block_m, t.block_n, t.block_k), (problem.m, problem.n, problem.k)
    if any(b >= 2 * n and b > s for b, n, s in zip(blocks, sizes, smallest, strict=True)):
        return False
    return (
        t.threads <= arch.max_threads
        and t.lds_bytes(problem.tile) <= arch.lds_bytes
        and t.registers(problem.tile, problem.accumulator) <= MAX_REGISTERS - 32 * (t.stages > 1 and not t.direct)
    )


def cycles_of(t: Tiling, problem: Problem, arch: ArchSpec) -> float:
    """Rough cycles of the whole problem on one compute unit's share: arithmetic against LDS and cache traffic."""
    tiles = -(-problem.m // t.block_m) * -(-problem.n // t.block_n) * problem.batch * t.split_k
    depth = t.split_depth(problem.k)
    waves = t.threads // LANES
    resident = max(1, min(arch.lds_bytes // t.lds_bytes(problem.tile), 8 // waves or 1, -(-tiles // arch.cu_count)))
    simds = min(arch.simds_per_cu, waves * resident)
    if t.shape is not None:
        rate = t.shape.m * t.shape.n * t.shape.k / t.shape.cycles * simds
    else:
        rate = 16.0 * simds / (problem.accumulator.bytes // 4)
    arithmetic = t.block_m * t.block_n * depth / rate
    traffic = (t.block_m + t.block_n) * depth * problem.tile.bytes / arch.l2_bytes_per_clock
    if t.shape is not None:  # each wave reads its rows and columns from LDS, at 128 bytes a clock
        reads = t.waves_n * t.block_m + t.waves_m * t.block_n + t.block_m + t.block_n
        traffic = max(traffic, reads * depth * problem.tile.bytes / 128.0)
    latency = 600.0 * (depth // t.block_k) / resident
    # Barriers, and the way through registers: an LDS write and its wait a tile.
    latency += (depth // t.block_k) * (2 if t.stages == 1 else 1) * BARRIER_CYCLES / resident
    latency += 0 if t.direct else (depth // t.block_k) * BARRIER_CYCLES / resident
    rounds = -(-tiles // arch.cu_count)
    few_waves = 1.0 + 0.1 * max(0, 4 - waves)  # loads and barriers overlap better among several waves
    tile = max(arithmetic, traffic, latency) + 0.2 * (arithmetic + traffic + latency) + 1000.0 / resident
    results = problem.m * problem.n * problem.batch * problem.accumulator.bytes
    # A second launch, and partial sums to memory and back at the chip's bytes a cycle.
    finish = 4000.0 + 2 * t.split_k * results / (arch.hbm_gbps / arch.clock_ghz) if t.split_k > 1 else 0.0
    return few_waves * rounds * tile + finish
