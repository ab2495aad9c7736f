"""What the text of a CUDA kernel says: loops, bytes, sectors, bank conflicts, waits; and of a CDNA kernel."""

from __future__ import annotations

import pytest
from kvc.arch import arch
from kvc.autotune import gcn, ptx
from kvc.autotune.work import Work, with_counters

HEAD = """.visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0
)
{
	ld.param.b64 	%rd1, [k_param_0];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ctaid.x;
"""


def work(body: str, grid: int = 4, block: int = 64) -> Work:
    return ptx.work_of(HEAD + body + "\n\tret;\n}\n", b"", "k", (grid, 1, 1), (block, 1, 1), 0)


def test_neighbouring_lanes_share_sectors() -> None:
    found = work("\tmul.wide.u32 %rd2, %r1, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n\tld.global.b32 %r3, [%rd3];")
    assert (found.workgroups, found.waves, found.memory) == (4, 2, 1)
    assert found.read_bytes == found.moved_bytes == 128 and found.access_cycles == 1
    assert found.exposed == 1 and found.flight_bytes == 128


def test_a_strided_access_moves_a_sector_a_lane() -> None:
    found = work("\tmul.wide.u32 %rd2, %r1, 4096;\n\tadd.s64 %rd3, %rd1, %rd2;\n\tld.global.b32 %r3, [%rd3+8];")
    assert found.read_bytes == 128 and found.moved_bytes == 32 * 32 and found.access_cycles == 32


def test_lanes_that_a_guard_leaves_out_move_nothing() -> None:
    body = "\tsetp.lt.u32 %p1, %r1, 8;\n\tmul.wide.u32 %rd2, %r1, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n"
    found = work(body + "\t@%p1 st.global.b32 [%rd3], %r1;")
    assert found.write_bytes == 32 and found.moved_bytes == 32


LOOP = """\tmov.b32 	%r5, {start};
$L__BB0_1:
	mul.wide.u32 %rd2, %r5, 4;
	add.s64 %rd3, %rd1, %rd2;
	ld.global.b32 %r6, [%rd3];
	fma.rn.f32 %f1, %f1, %f1, %f1;
	add.s32 	%r5, %r5, {step};
	setp.{compare} 	%p1, %r5, {bound};
	@%p1 bra 	$L__BB0_1;"""


@pytest.mark.parametrize(
    ("start", "step", "compare", "bound", "passes"),
    [(0, 32, "lt.s32", 1024, 32), (-64, 64, "lt.u32", 960, 16), (0, 1, "ne.s32", 7, 7), (10, -1, "gt.s32", 0, 10)],
)
def test_passes_of_a_counted_loop(start: int, step: int, compare: str, bound: int, passes: int) -> None:
    if compare == "lt.u32":
        start = 0
        bound = 1024
    found = work(LOOP.format(start=start, step=step, compare=compare, bound=bound))
    assert found.memory == passes and found.exposed == passes


def test_a_loop_whose_bound_depends_on_the_workgroup_is_averaged() -> None:
    body = "\tshl.b32 %r9, %r2, 5;\n\tadd.s32 %r9, %r9, 32;\n" + LOOP.format(
        start=0, step=32, compare="lt.s32", bound="%r9"
    )
    found = work(body, grid=64)
    assert 24 < found.memory < 40  # 1 to 64 passes, 32.5 on average


def test_bank_conflicts_and_merged_accesses() -> None:
    base = "\tmov.b32 %r7, global_smem;\n\tshl.b32 %r8, %r1, {shift};\n\tadd.s32 %r9, %r7, %r8;\n"
    free = work(base.format(shift=2) + "\tld.shared.b32 %r3, [%r9];")
    worst = work(base.format(shift=7) + "\tld.shared.b32 %r3, [%r9];")
    assert free.lds_cycles == 1 and worst.lds_cycles == 32
    four = "".join(f"\tld.shared.b32 %r{n}, [%r9+{4 * n}];\n" for n in range(4))
    merged = work(base.format(shift=4) + four)
    assert merged.lds == 1 and merged.lds_cycles == 4


def test_matrix_instructions_and_a_repair_path() -> None:
    tensor = "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r3}, {%r4}, {%r5}, {%r6};\n"
    guarded = "\tld.global.b32 %r3, [%rd1];\n\tsetp.eq.b32 %p1, %r3, 0;\n\t@%p1 bra $L__BB0_9;\n"
    repair = "\tfma.rn.f32 %f1, %f1, %f1, %f1;\n" * 9 + "$L__BB0_9:\n"
    found = work(tensor + guarded + repair)
    assert found.matrix == 1 and found.matrix_flops == 2 * 16 * 8 * 16 and found.matrix_type == "bf16"
    assert found.vector < 9  # data decides about the repair: usual data needs none
    assert work(guarded + repair).vector > 9  # without matrix work it is the kernel


CDNA = """k:
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	s_mov_b32 s6, 0
.LBB0_1:
	global_load_dwordx4 v[0:3], v4, s[0:1]
	s_waitcnt vmcnt(0)
	ds_write_b128 v5, v[0:3]
	v_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
	v_exp_f32_e32 v1, v1
	s_add_i32 s6, s6, 32
	s_cmp_lt_u32 s6, 0x400
	s_cbranch_scc1 .LBB0_1
	s_endpgm
.Lfunc_end0:
	.amdgpu_metadata
amdhsa.kernels:
  - .name: k
    .vgpr_count: 32
    .agpr_count: 16
    .sgpr_count: 16
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 0
    .vgpr_spill_count: 0
    .sgpr_spill_count: 0
    .max_flat_workgroup_size: 256
    .wavefront_size: 64
    .kernarg_segment_size: 8
	.end_amdgpu_metadata
"""


def test_a_cdna_kernel_in_the_same_terms_and_counted() -> None:
    found = gcn.work_of(CDNA, "k", arch("gfx942"), (8, 1, 1), (256, 1, 1), 0)
    assert (found.workgroups, found.waves, found.lds_bytes) == (8, 4, 1024)
    assert found.memory == found.matrix == found.special == found.exposed == 32
    assert found.read_bytes == 32 * 64 * 16 and found.matrix_flops == 32 * 2 * 32 * 32 * 8
    counters = {
        "waves": 32, "by_class": {"vmem": 64 * 32, "mfma": 32, "valu": 320, "lds": 32, "salu": 64},
        "global_read_bytes": 32 * 4096, "global_write_bytes": 0, "global_transactions_64b": 32 * 64,
        "lds_bytes": 32 * 1280, "lds_conflict_cycles": 320, "mfma_flops": 32 * 1000, "atomics": 0, "barriers": 0,
    }  # fmt: skip
    counted = with_counters(found, counters)
    assert counted.memory == 64 and counted.exposed == 64  # twice the loads, twice the waits
    assert counted.lds_cycles == 20 and counted.matrix_flops == 1000 and counted.moved_bytes == 4096
