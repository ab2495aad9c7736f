"""Global memory: a flat 64-bit address space of separate allocations with unmapped gaps between them.

Every access is checked against the allocation it falls into, so that an index that leaves its buffer faults even when
another buffer follows. Values never written are tracked per byte in allocations that were made without a fill.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from kvc.arch import arch as arch_row
from kvc.simulator.faults import Trap

HEAP_BASE = 0x7F00_0000_0000
GAP = 1 << 20  # unmapped bytes after each allocation

# What holds the bits of one access of that many bytes; complex128 is only a carrier of 16 bytes.
CARRIER: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64),
    16: np.dtype(np.complex128),
}  # fmt: skip
_INT64 = np.dtype(np.int64)


class Buffer:
    """One allocation: `addr` in the simulated address space, `nbytes`, `name`."""

    def __init__(self, addr: int, nbytes: int, name: str, tracked: bool) -> None:
        self.addr = addr
        self.nbytes = nbytes
        self.name = name
        self.end = addr + nbytes
        padded = (nbytes + 15) // 16 * 16
        store = np.zeros(padded + 16, np.uint8)
        shift = -store.ctypes.data % 16
        self.bytes = store[shift : shift + padded]
        self.typed: dict[int, np.ndarray] = {width: self.bytes.view(kind) for width, kind in CARRIER.items()}
        self.written: np.ndarray | None = np.zeros(padded, bool) if tracked else None
        self.read_only = False

    def view(self, dtype: Any, shape: Any = None) -> np.ndarray:
        """The contents as a NumPy view (not a copy); `shape` defaults to one dimension."""
        flat = self.bytes[: self.nbytes].view(dtype)
        return flat if shape is None else flat[: int(np.prod(shape))].reshape(shape)


class Memory:
    """The address space of one simulated device. Not thread-safe; buffers live until the Memory goes."""

    def __init__(self, arch: str) -> None:
        self.arch = arch_row(arch)
        self.buffers: list[Buffer] = []
        self._starts: list[int] = []
        self._next = HEAP_BASE
        self._last: Buffer | None = None

    def alloc(self, nbytes: int, align: int = 256, fill: bytes | None = None, name: str = "") -> Buffer:
        """Reserve `nbytes` (bytes) at a multiple of `align`. Without `fill` reads before writes are tracked."""
        start = (self._next + align - 1) // align * align
        buffer = Buffer(start, nbytes, name or f"buffer{len(self.buffers)}", tracked=fill is None)
        if fill:
            whole = nbytes // len(fill) * len(fill)
            buffer.bytes[:whole].reshape(-1, len(fill))[:] = np.frombuffer(fill, np.uint8)
            buffer.bytes[whole:nbytes] = np.frombuffer(fill[: nbytes - whole], np.uint8)
        self._next = (buffer.end + GAP) // GAP * GAP + GAP
        self.buffers.append(buffer)
        self._starts.append(start)
        return buffer

    def upload(self, array: np.ndarray, name: str = "") -> Buffer:
        """A buffer with the bytes of `array` (made contiguous first)."""
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        buffer = self.alloc(flat.nbytes, fill=b"\0", name=name)
        buffer.bytes[: flat.nbytes] = flat
        return buffer

    def map_at(self, addr: int, data: bytes, name: str) -> Buffer:
        """Map constant data at a fixed address (below the heap)."""
        buffer = Buffer(addr, len(data), name, tracked=False)
        buffer.bytes[: len(data)] = np.frombuffer(data, np.uint8)
        buffer.read_only = True
        at = bisect_right(self._starts, addr)
        self.buffers.insert(at, buffer)
        self._starts.insert(at, addr)
        return buffer

    def alloc_at(self, addr: int, nbytes: int, fill: bytes | None = None, name: str = "") -> Buffer:
        """Reserve `nbytes` at a fixed address behind all others: the next part of a buffer with gaps in it."""
        buffer = Buffer(addr, nbytes, name, tracked=fill is None)
        if self.buffers and addr < self.buffers[-1].end:
            raise ValueError(f"{addr:#x} is not free")
        self._next = (buffer.end + GAP) // GAP * GAP + GAP
        self.buffers.append(buffer)
        self._starts.append(addr)
        return buffer

    def unmap(self, buffer: Buffer) -> None:
        """Forget an allocation; later accesses to it fault."""
        at = self.buffers.index(buffer)
        del self.buffers[at], self._starts[at]
        if self._last is buffer:
            self._last = None

    def find(self, addr: int) -> Buffer | None:
        """The allocation that contains `addr`, if any."""
        last = self._last
        if last is not None and last.addr <= addr < last.end:
            return last
        at = bisect_right(self._starts, addr) - 1
        if at < 0 or addr >= self.buffers[at].end:
            return None
        self._last = self.buffers[at]
        return self._last

    def describe(self, addr: int) -> str:
        """The nearest allocation, for messages."""
        if not self.buffers:
            return "no buffer is allocated"

        def distance(buffer: Buffer) -> int:
            return max(buffer.addr - addr, addr - buffer.end + 1, 0)

        near = min(self.buffers, key=distance)
        side = f"{addr - near.end} bytes past the end" if addr >= near.end else f"{near.addr - addr} bytes before"
        inside = near.addr <= addr < near.end
        where = f"{addr - near.addr} bytes inside, crossing the end" if inside else side
        return f"nearest buffer {near.name!r} ({near.nbytes} bytes at {near.addr:#x}): {where}"

    def _split(self, addr: np.ndarray, width: int) -> list[tuple[Buffer, np.ndarray | None]]:
        """Buffers of the accesses with the boolean selection of each; [(buffer, None)] where it is just one."""
        buffer = self.find(int(addr.min()))
        if buffer is not None and int(addr.max()) + width <= buffer.end:
            return [(buffer, None)]
        starts = np.array(self._starts, np.uint64)
        ends = np.array([item.end for item in self.buffers], np.uint64)
        at = np.searchsorted(starts, addr, side="right").astype(np.int64) - 1
        safe = np.maximum(at, 0)
        bad = (at < 0) | (addr + np.uint64(width) > (ends[safe] if len(ends) else 0))
        if bad.any():
            first = int(addr.reshape(-1)[int(bad.reshape(-1).argmax())])
            raise OutOfBounds(f"access of {width} bytes at {first:#x}: {self.describe(first)}", bad)
        return [(self.buffers[index], at == index) for index in np.unique(at)]

    def load(self, addr: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Gather `width` bytes at each address (uint64, any shape, not empty).

        Returns the carrier-typed values (uint32 [..., 3] for 12 bytes), and None or a boolean array of the elements
        that contain bytes never written. Raises OutOfBounds or Misaligned with a mask shaped like `addr`.
        """
        parts = self._split(addr, width)
        if len(parts) == 1:
            return _gather(parts[0][0], addr, width)
        shape = addr.shape + ((3,) if width == 12 else ())
        out = np.empty(shape, CARRIER[4 if width == 12 else width])
        stale: np.ndarray | None = None
        for buffer, chosen in parts:
            out[chosen], some = _gather(buffer, addr[chosen], width)
            if some is not None:
                stale = np.zeros(addr.shape, bool) if stale is None else stale
                stale[chosen] = some
        return out, stale

    def store(self, addr: np.ndarray, values: np.ndarray, width: int) -> None:
        """Scatter 1-D `values` (carrier-typed, uint32 [n, 3] for 12 bytes) to 1-D addresses; the last lane wins."""
        for buffer, chosen in self._split(addr, width):
            if chosen is None:
                _scatter(buffer, addr, values, width)
            else:
                _scatter(buffer, addr[chosen], values[chosen], width)

    def locate(self, addr: np.ndarray, width: int) -> list[tuple[Buffer, np.ndarray | None, np.ndarray]]:
        """For atomics: [(buffer, selection or None, element indices)] of 1-D addresses, aligned to `width`."""
        out = []
        for buffer, chosen in self._split(addr, width):
            index, unit = _indices(buffer, addr if chosen is None else addr[chosen], width)
            if unit != width:
                raise Misaligned(f"atomic of {width} bytes is not aligned", np.ones(addr.shape, bool))
            out.append((buffer, chosen, index))
        return out


class OutOfBounds(Trap):
    def __init__(self, message: str, where: np.ndarray) -> None:
        super().__init__("KVC0903", message, None)
        self.mask = where


class Misaligned(Trap):
    def __init__(self, message: str, where: np.ndarray) -> None:
        super().__init__("KVC0904", message, None)
        self.mask = where


def _indices(buffer: Buffer, addr: np.ndarray, width: int) -> tuple[np.ndarray, int]:
    """Element indices into the carrier-typed view, and the unit (4 where a wide access is only dword-aligned)."""
    offset = (addr - np.uint64(buffer.addr)).view(_INT64)
    if width == 1:
        return offset, 1
    low = int(np.bitwise_or.reduce(offset, axis=None))
    unit = width if width in CARRIER and not low & (width - 1) else min(width, 4)
    if low & (unit - 1):
        bad = (offset & (unit - 1)) != 0
        first = int(addr.reshape(-1)[int(bad.reshape(-1).argmax())])
        raise Misaligned(f"access of {width} bytes at {first:#x} is not aligned to {unit}", bad)
    return offset >> (unit.bit_length() - 1), unit


def _gather(buffer: Buffer, addr: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    index, unit = _indices(buffer, addr, width)
    if unit == width:
        values = buffer.typed[unit].take(index)
    else:
        values = buffer.typed[4].take(index[..., None] + np.arange(width // 4))
        if width in CARRIER:
            values = values.view(CARRIER[width])[..., 0]
    if buffer.written is None:
        return values, None
    offset = (addr - np.uint64(buffer.addr)).view(_INT64)
    stale = ~np.all(buffer.written.take(offset[..., None] + np.arange(width)), axis=-1)
    assert isinstance(stale, np.ndarray)
    return values, stale if bool(stale.any()) else None


def _scatter(buffer: Buffer, addr: np.ndarray, values: np.ndarray, width: int) -> None:
    if buffer.read_only:
        raise OutOfBounds(f"store to constant memory {buffer.name!r}", np.ones(addr.shape, bool))
    index, unit = _indices(buffer, addr, width)
    if unit == width:
        buffer.typed[unit][index] = values
    else:
        words = values if width == 12 else values.reshape(-1, 1).view(np.uint32)
        buffer.typed[4][index[:, None] + np.arange(width // 4)] = words
    if buffer.written is not None:
        offset = (addr - np.uint64(buffer.addr)).view(_INT64)
        if unit >= 4:
            words_written = buffer.written.view(np.uint32)
            words_written[(offset[:, None] >> 2) + np.arange(width // 4)] = 0x01010101
        else:
            buffer.written[offset[:, None] + np.arange(width)] = True
