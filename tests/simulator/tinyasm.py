"""Hand-written kernels for the simulator's tests: a body of assembly in the smallest file that loads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from kvc.simulator import LaunchReport, Memory, SimOptions, launch, load

PROLOGUE = "  s_load_dwordx4 s[4:7], s[0:1], 0x0\n  v_lshlrev_b32_e32 v1, 2, v0\n  s_waitcnt lgkmcnt(0)\n"


def kernel_text(body: str, arch: str = "gfx942", lds: int = 0, args: int = 4, scratch: int = 0, user: int = 2) -> str:
    """Kernel `k` with `args` 8-byte pointers; s[0:1] is the kernarg pointer, s2 s3 s4 the workgroup, v0 the thread."""
    rows = "".join(
        f"      - .offset: {8 * i}\n        .size: 8\n        .value_kind: global_buffer\n" for i in range(args)
    )
    return (
        f'\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n\t.text\nk:\n{body}\n\ts_endpgm\n'
        f"\t.amdhsa_kernel k\n\t\t.amdhsa_group_segment_fixed_size {lds}\n"
        f"\t\t.amdhsa_private_segment_fixed_size {scratch}\n\t\t.amdhsa_kernarg_size {8 * args}\n"
        f"\t\t.amdhsa_user_sgpr_count {user}\n\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1\n"
        "\t\t.amdhsa_system_sgpr_workgroup_id_x 1\n\t\t.amdhsa_next_free_vgpr 64\n\t\t.amdhsa_next_free_sgpr 64\n"
        "\t\t.amdhsa_accum_offset 64\n\t.end_amdhsa_kernel\n"
        f"\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .args:\n{rows}    .name: k\n"
        f"    .kernarg_segment_size: {8 * args}\n    .max_flat_workgroup_size: 1024\n...\n\t.end_amdgpu_metadata\n"
    )


def run_body(
    body: str,
    buffers: Sequence[np.ndarray] = (),
    *,
    out_bytes: int = 256,
    arch: str = "gfx942",
    threads: int = 64,
    grid: int = 1,
    lds: int = 0,
    scratch: int = 0,
    prologue: bool = True,
    options: SimOptions | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, LaunchReport]:
    """Run a body with pointers out (s[4:5]), in (s[6:7]) and further ones; v1 is the thread's byte offset.

    Returns the output as uint32 and the report; the output starts as 0xCD bytes.
    """
    text = kernel_text((PROLOGUE if prologue else "") + body, arch, lds, args=1 + len(buffers), scratch=scratch)
    mem = Memory(arch)
    out = mem.alloc(out_bytes, fill=b"\xcd", name="out")
    args: list[Any] = [out, *(mem.upload(array, f"in{i}") for i, array in enumerate(buffers))]
    report = launch(
        load(text, arch), "k", (grid, 1, 1), (threads, 1, 1), args, mem, options=options or SimOptions(), seed=seed
    )
    return out.view(np.uint32).copy(), report
