"""Kernels of a program: descriptor, arguments, and the registers a wave starts with.

Sources: LLVM's AMDGPU usage guide (kernel descriptor for gfx6-gfx9 and gfx90a, code object V5, initial kernel
execution state, hidden arguments).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from kvc.diagnostics import KvcError
from kvc.simulator.asm import Assembly


@dataclass(frozen=True)
class KernelArg:
    """One argument: byte `offset` and `size` in the kernarg segment; `kind` is the metadata's value_kind."""

    name: str
    offset: int
    size: int
    kind: str

    @property
    def hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Descriptor:
    """The fields of the 64-byte kernel descriptor that decide how a wave starts."""

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    user_sgprs: int
    private_segment_buffer: bool
    dispatch_ptr: bool
    queue_ptr: bool
    kernarg_ptr: bool
    dispatch_id: bool
    flat_scratch_init: bool
    private_segment_size: bool
    preload_dwords: int
    preload_offset: int
    enable_private_segment: bool
    workgroup_id: tuple[bool, bool, bool]
    workgroup_info: bool
    workitem_id: int  # 0: x, 1: x and y, 2: x, y and z
    accum_offset: int  # VGPRs before the first AGPR
    vgprs: int  # VGPRs and AGPRs allocated, in the descriptor's granularity where read from a code object


@dataclass(frozen=True)
class KernelInfo:
    """What a caller may ask of a kernel. Bytes for `lds`, `scratch`, `kernarg_bytes`; counts for the rest."""

    name: str
    args: tuple[KernelArg, ...]
    kernarg_bytes: int
    lds: int
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch: int
    wave_size: int
    max_flat_workgroup: int
    entry: int
    descriptor: Descriptor
    required_block: tuple[int, ...] | None = None
    hidden: dict[str, KernelArg] = field(default_factory=dict)


def descriptor_from_text(assembly: Assembly, kernel: str) -> Descriptor:
    """Evaluate the `.amdhsa_` block, symbolic expressions included. KVC0901 when it is missing or not understood."""
    if kernel not in assembly.descriptors:
        raise KvcError("KVC0901", f"kernel {kernel!r} has no .amdhsa_kernel block")
    table = assembly.descriptors[kernel]

    def value(key: str, default: int = 0) -> int:
        return assembly.evaluate(table[key]) if key in table else default

    def flag(key: str, default: int = 0) -> bool:
        return bool(value(key, default))

    preload = value("user_sgpr_kernarg_preload_length")
    pieces = ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2), ("kernarg_segment_ptr", 2)
    tail = ("dispatch_id", 2), ("flat_scratch_init", 2), ("private_segment_size", 1)
    natural = sum(size * flag(f"user_sgpr_{name}") for name, size in pieces + tail) + preload
    vgprs = value("next_free_vgpr")
    return Descriptor(
        lds_bytes=value("group_segment_fixed_size"),
        scratch_bytes=value("private_segment_fixed_size"),
        kernarg_bytes=value("kernarg_size"),
        user_sgprs=value("user_sgpr_count", natural),
        private_segment_buffer=flag("user_sgpr_private_segment_buffer"),
        dispatch_ptr=flag("user_sgpr_dispatch_ptr"),
        queue_ptr=flag("user_sgpr_queue_ptr"),
        kernarg_ptr=flag("user_sgpr_kernarg_segment_ptr"),
        dispatch_id=flag("user_sgpr_dispatch_id"),
        flat_scratch_init=flag("user_sgpr_flat_scratch_init"),
        private_segment_size=flag("user_sgpr_private_segment_size"),
        preload_dwords=preload,
        preload_offset=value("user_sgpr_kernarg_preload_offset"),
        enable_private_segment=flag("system_sgpr_private_segment_wavefront_offset") or flag("enable_private_segment"),
        workgroup_id=(
            flag("system_sgpr_workgroup_id_x", 1),
            flag("system_sgpr_workgroup_id_y"),
            flag("system_sgpr_workgroup_id_z"),
        ),
        workgroup_info=flag("system_sgpr_workgroup_info"),
        workitem_id=value("system_vgpr_workitem_id"),
        accum_offset=value("accum_offset", 256),
        vgprs=vgprs,
    )


def descriptor_from_code_object(image: bytes, kernel: str) -> Descriptor:
    """Read `<kernel>.kd` from an ELF code object. KVC0901 when the object or the symbol is not there."""
    raw = _elf_symbol(image, f"{kernel}.kd", 64)
    lds, scratch, kernarg = struct.unpack_from("<III", raw, 0)
    rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", raw, 44)
    properties, preload = struct.unpack_from("<HH", raw, 56)
    return Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        user_sgprs=rsrc2 >> 1 & 31,
        private_segment_buffer=bool(properties & 1),
        dispatch_ptr=bool(properties & 2),
        queue_ptr=bool(properties & 4),
        kernarg_ptr=bool(properties & 8),
        dispatch_id=bool(properties & 16),
        flat_scratch_init=bool(properties & 32),
        private_segment_size=bool(properties & 64),
        preload_dwords=preload & 127,
        preload_offset=preload >> 7,
        enable_private_segment=bool(rsrc2 & 1),
        workgroup_id=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        workgroup_info=bool(rsrc2 >> 10 & 1),
        workitem_id=rsrc2 >> 11 & 3,
        accum_offset=((rsrc3 & 63) + 1) * 4,
        vgprs=((rsrc1 & 63) + 1) * 8,
    )


def _elf_symbol(image: bytes, name: str, size: int) -> bytes:
    if image[:4] != b"\x7fELF":
        raise KvcError("KVC0901", "the code object is no ELF file")
    (shoff,) = struct.unpack_from("<Q", image, 40)
    shentsize, shnum = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, shoff + i * shentsize) for i in range(shnum)]
    for section in sections:
        if section[1] not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        strings = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            st_name, _, _, shndx, value, _ = struct.unpack_from("<IBBHQQ", image, at)
            end = image.index(b"\0", strings + st_name)
            if image[strings + st_name : end].decode() == name and 0 < shndx < shnum:
                home = sections[shndx]
                start = home[4] + value - home[3]
                return image[start : start + size]
    raise KvcError("KVC0901", f"symbol {name!r} is not in the code object")


#: What a descriptor or metadata can sensibly say, largest values: beyond, the text is no compiler's.
_LARGEST = {
    "kernarg_bytes": 1 << 16, "lds": 1 << 20, "vgprs": 1024, "agprs": 1024, "sgprs": 1024, "vgpr_spills": 1 << 20,
    "sgpr_spills": 1 << 20, "scratch": 1 << 24, "wave_size": 64, "max_flat_workgroup": 1 << 16,
}  # fmt: skip


def kernels_of(assembly: Assembly, code_object: bytes | None) -> dict[str, KernelInfo]:
    """All kernels of a file by name. KVC0901 where metadata or descriptors are not what a compiler writes."""
    try:
        found = _kernels_of(assembly, code_object)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, struct.error) as error:
        raise KvcError("KVC0901", f"metadata or descriptor: {type(error).__name__}: {error}") from error
    for info in found.values():
        for name, most in _LARGEST.items():
            value = getattr(info, name)
            if type(value) is not int or not 0 <= value <= most:
                raise KvcError("KVC0901", f"kernel {info.name}: {name} is {value!r}")
        if not 0 <= info.descriptor.user_sgprs <= 32:
            raise KvcError("KVC0901", f"kernel {info.name}: {info.descriptor.user_sgprs} user SGPRs, of at most 32")
        for arg in (*info.args, *info.hidden.values()):
            place = (arg.offset, arg.size)
            if any(type(n) is not int or not 0 <= n <= _LARGEST["kernarg_bytes"] for n in place):
                raise KvcError("KVC0901", f"kernel {info.name}: argument {arg.name} lies at {place}")
    return found


def _kernels_of(assembly: Assembly, code_object: bytes | None) -> dict[str, KernelInfo]:
    out: dict[str, KernelInfo] = {}
    metadata = {entry[".name"]: entry for entry in assembly.metadata.get("amdhsa.kernels") or []}
    for name in assembly.descriptors:
        if name not in assembly.labels:
            raise KvcError("KVC0901", f"kernel {name!r} has no code in this file")
        text = descriptor_from_text(assembly, name)
        descriptor = descriptor_from_code_object(code_object, name) if code_object else text
        entry = metadata.get(name, {})
        args = tuple(
            KernelArg(str(arg.get(".name", f"arg{i}")), arg[".offset"], arg[".size"], arg[".value_kind"])
            for i, arg in enumerate(entry.get(".args") or [])
        )
        required = entry.get(".reqd_workgroup_size")
        out[name] = KernelInfo(
            name=name,
            args=tuple(arg for arg in args if not arg.hidden),
            kernarg_bytes=max(descriptor.kernarg_bytes, entry.get(".kernarg_segment_size", 0)),
            lds=descriptor.lds_bytes,
            vgprs=entry.get(".vgpr_count", text.vgprs),
            agprs=entry.get(".agpr_count", 0),
            sgprs=entry.get(".sgpr_count", 0),
            vgpr_spills=entry.get(".vgpr_spill_count", 0),
            sgpr_spills=entry.get(".sgpr_spill_count", 0),
            scratch=descriptor.scratch_bytes,
            wave_size=entry.get(".wavefront_size", 64),
            max_flat_workgroup=entry.get(".max_flat_workgroup_size", 1024),
            entry=assembly.labels[name],
            descriptor=descriptor,
            required_block=tuple(required) if required else None,
            hidden={arg.kind: arg for arg in args if arg.hidden},
        )
    return out
