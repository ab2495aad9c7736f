"""What a compiled kernel uses of the GPU, read from its assembly text, and whether that fits.

The figures stand in the `.amdgpu_metadata` block that LLVM writes for every kernel, whether clang or Triton drove it,
and in the comments after each function. The check is static: an oversized launch can "run" and return garbage.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from kvc.arch import ArchSpec
from kvc.diagnostics import Diagnostic, KvcError
from kvc.executor import LaunchPlan


@dataclass(frozen=True)
class Resources:
    """One kernel's use of the hardware.

    `vgprs` and `agprs` are architectural and accumulation registers a lane, `vgprs_total` what both cost in the unified
    file; `lds_bytes` and `scratch_bytes` are static, per workgroup and per lane; spills count registers.
    `waves_per_simd` is the occupancy that registers allow, LDS and workgroup size aside (see `occupancy`).
    """

    kernel: str
    vgprs: int
    agprs: int
    vgprs_total: int
    sgprs: int
    lds_bytes: int
    scratch_bytes: int
    vgpr_spills: int
    sgpr_spills: int
    max_threads: int
    wave_size: int
    kernarg_bytes: int
    dynamic_stack: bool
    waves_per_simd: int
    matrix_instructions: int

    @property
    def spills(self) -> int:
        return self.vgpr_spills + self.sgpr_spills


_BLOCK = re.compile(r"^\s*\.amdgpu_metadata\s*$(.*?)^\s*\.end_amdgpu_metadata", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^    \.(\w+): *(\S.*)$")
_COMMENT = re.compile(r"^; (NumVgprs|NumAgprs|TotalNumVgprs|Occupancy): (\d+)\s*$", re.MULTILINE)


def parse(asm: str) -> dict[str, Resources]:
    """Resources of every kernel in an assembly text, by name, in the order of the metadata.

    KVC0901 when the text has no metadata block or a kernel lacks a figure.
    """
    block = _BLOCK.search(asm)
    if block is None:
        hint = "give the text that `clang -S` or Triton's asm['amdgcn'] produced"
        raise KvcError("KVC0901", "no .amdgpu_metadata block in the assembly text", hint=hint)
    return {fields["name"]: _resources(fields, asm) for fields in _kernel_fields(block[1])}


def _kernel_fields(block: str) -> list[dict[str, str]]:
    """The scalar fields of each entry of `amdhsa.kernels` (a YAML list whose entries are indented by four)."""
    kernels: list[dict[str, str]] = []
    inside = False
    for line in block.splitlines():
        if not line.startswith(" "):
            inside = line.startswith("amdhsa.kernels:")
        elif inside:
            if line.startswith("  - "):
                kernels.append({})
                line = "    " + line[4:]
            found = _FIELD.match(line)
            if found and kernels:
                kernels[-1][found[1]] = found[2].strip().strip("'\"")
    return kernels


def _resources(fields: dict[str, str], asm: str) -> Resources:
    name = fields["name"]
    body = _function_text(asm, name)
    comments = {key: int(value) for key, value in _COMMENT.findall(body)}

    def number(key: str) -> int:
        if not fields.get(key, "").isdigit():
            raise KvcError("KVC0901", f"kernel {name!r} has no .{key} in its metadata")
        return int(fields[key])

    total = comments.get("TotalNumVgprs", number("vgpr_count"))
    agprs = comments.get("NumAgprs", int(fields.get("agpr_count", "0")))
    return Resources(
        kernel=name,
        vgprs=comments.get("NumVgprs", total - agprs),
        agprs=agprs,
        vgprs_total=total,
        sgprs=number("sgpr_count"),
        lds_bytes=number("group_segment_fixed_size"),
        scratch_bytes=number("private_segment_fixed_size"),
        vgpr_spills=number("vgpr_spill_count"),
        sgpr_spills=number("sgpr_spill_count"),
        max_threads=number("max_flat_workgroup_size"),
        wave_size=number("wavefront_size"),
        kernarg_bytes=number("kernarg_segment_size"),
        dynamic_stack=fields.get("uses_dynamic_stack", "false") in ("true", "1"),
        waves_per_simd=comments.get("Occupancy", 0),
        matrix_instructions=len(re.findall(r"^\s+v_s?mfma\w*\s", body, re.MULTILINE)),
    )


def _function_text(asm: str, name: str) -> str:
    """From the kernel's label up to the start of the next function (comments with its figures follow the code)."""
    start = re.search(rf"^{re.escape(name)}:", asm, re.MULTILINE)
    if start is None:
        return ""
    end = asm.find("-- Begin function", start.end())
    return asm[start.start() : end if end >= 0 else len(asm)]


def waves_by_registers(resources: Resources, arch: ArchSpec) -> int:
    """Waves a SIMD that the vector registers leave room for; the compiler's own figure where the text has it."""
    if resources.waves_per_simd:
        return min(resources.waves_per_simd, arch.max_waves_per_simd)
    used = max(resources.vgprs_total, 1)
    granule = arch.vgpr_granule
    return max(min(arch.max_waves_per_simd, arch.vgprs // (math.ceil(used / granule) * granule)), 1)


def occupancy(resources: Resources, arch: ArchSpec, threads: int, dynamic_lds: int = 0) -> int:
    """Waves a SIMD that registers, LDS and the workgroup size leave room for together (0: it does not fit at all)."""
    waves = math.ceil(threads / arch.wave_size)
    by_registers = waves_by_registers(resources, arch) * arch.simds_per_cu // waves
    lds = resources.lds_bytes + dynamic_lds
    workgroups = min(by_registers, arch.lds_bytes // lds) if lds else by_registers
    return max(workgroups * waves // arch.simds_per_cu, min(workgroups, 1))


def check(resources: Resources, arch: ArchSpec, launch: LaunchPlan) -> list[Diagnostic]:
    """KVC0402 for every limit of the GPU, or of the compiled kernel, that a launch exceeds; empty when it fits."""
    lds = resources.lds_bytes + launch.dynamic_lds
    parts = f" ({resources.lds_bytes:,} static + {launch.dynamic_lds:,} dynamic)" if launch.dynamic_lds else ""
    block = " x ".join(str(extent) for extent in launch.block)
    compiled_for = "raise __launch_bounds__ (num_warps in Triton) or launch fewer threads"
    limits = (
        ("lds", lds, arch.lds_bytes, f"LDS {lds:,} B of {arch.lds_bytes:,} B{parts}", "smaller tiles or fewer stages"),
        (
            "threads", launch.threads, arch.max_threads,
            f"{block} = {launch.threads:,} threads a workgroup of {arch.max_threads:,}", "use a smaller workgroup",
        ),
        (
            "launch_bounds", launch.threads, resources.max_threads,
            f"{block} = {launch.threads:,} threads a workgroup, compiled for {resources.max_threads:,}", compiled_for,
        ),
        (
            "vgprs", resources.vgprs_total, arch.vgprs,
            f"{resources.vgprs} VGPRs + {resources.agprs} AGPRs = {resources.vgprs_total} of {arch.vgprs}",
            "use smaller register tiles",
        ),
    )  # fmt: skip
    found = [
        _limit(resources, rule, text, hint, used, limit) for rule, used, limit, text, hint in limits if used > limit
    ]
    if min(*launch.grid, *launch.block) < 1:
        text = f"empty launch: grid {launch.grid}, block {launch.block}"
        found.append(_limit(resources, "empty", text, "skip launches of no work", 0, 1))
    if resources.wave_size != arch.wave_size:
        text = f"compiled for waves of {resources.wave_size} lanes, {arch.name} has {arch.wave_size}"
        found.append(
            _limit(resources, "wave_size", text, f"compile for {arch.name}", resources.wave_size, arch.wave_size)
        )
    return found


def _limit(resources: Resources, rule: str, text: str, hint: str, used: int, limit: int) -> Diagnostic:
    details = {"rule": rule, "kernel": resources.kernel, "used": used, "limit": limit}
    return Diagnostic("KVC0402", f"{resources.kernel}: {text}", hint=hint, details=details)
