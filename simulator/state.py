"""Registers of a group of waves that stand at the same instruction.

Register arrays are immutable by convention: an instruction binds a new array, it never writes into one. A vector
register is [W, 64], or [W, 1] where all lanes are known to be equal; a scalar register is [W]. The dtype of an array is
any 4-byte type (whatever last wrote it); readers view it as what they need. Because arrays are never changed, values
made of several registers (64-bit pairs, lane masks, matrix fragments) can be cached and checked by identity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

U32 = np.dtype(np.uint32)
U64 = np.dtype(np.uint64)
F32 = np.dtype(np.float32)
BOOL = np.dtype(np.bool_)
ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)

LANES = 64
N_VECTOR = 512  # v0-v255, then a0-a255
VCC, M0, EXEC = 106, 124, 126
N_SCALAR = 128
SCALAR_BIT = N_VECTOR  # bit of s0 in register sets
SCC_BIT = N_VECTOR + N_SCALAR
VECTORS = (1 << N_VECTOR) - 1  # all vector registers as a set

Queue = tuple[list[Any], list[Any]]
View = tuple[np.ndarray, np.ndarray]  # an array of registers, and the rows in it that belong to the waves of a group
_ABSENT: Any = None  # where a register has no array yet: touching it is an error, never a wrong value


def unpack(bits: np.ndarray) -> np.ndarray:
    """uint64 [W] -> bool [W, 64], bit i to lane i."""
    raw = np.ascontiguousarray(bits).view(np.uint8).reshape(len(bits), 8)
    return np.unpackbits(raw, axis=1, bitorder="little").view(BOOL)


def pack(mask: np.ndarray) -> np.ndarray:
    """bool [W, 64] -> uint64 [W]."""
    return np.packbits(mask, axis=1, bitorder="little").view(U64)[:, 0]


class Group:
    """Waves in lockstep. `waves` are indices in the batch; `R` vector and `S` scalar registers.

    `pmask` has a bit for each register with poisoned (never written) bits, whose bit masks are in `poison`; `busy` a
    bit for each register with an outstanding memory operation; `lazy` one for each register that is still to be read
    from the group this one left (`views`: from where; `copies`: what was read, so that a write can be told).
    `watch` is their union, tested before each instruction.
    """

    __slots__ = (
        "R", "S", "W", "_em", "_execb", "age", "batch", "busy", "copies", "exec64", "fragments", "full", "lazy",
        "lds_base", "masks", "pairs", "pc", "pmask", "poison", "queue", "rows", "scc", "spairs", "views", "watch",
        "waves", "wg",
    )  # fmt: skip

    def __init__(self, batch: Any, waves: np.ndarray, pc: int) -> None:
        self.batch = batch
        self.waves = waves
        self.W = len(waves)
        self.wg = batch.wave_wg[waves]
        self.pc = pc
        self.age = 0
        self.lds_base = (self.wg * batch.lds_stride)[:, None]
        self.R: list[np.ndarray] = []
        self.S: list[np.ndarray] = []
        self.scc = np.zeros(self.W, bool)
        self.pairs: dict[int, tuple[Any, Any, np.ndarray]] = {}
        self.spairs: dict[int, tuple[Any, Any, np.ndarray]] = {}
        self.masks: dict[int, tuple[Any, Any, np.ndarray]] = {}
        self.fragments: dict[Any, Any] = {}
        self.poison: dict[int, np.ndarray] = {}
        self.pmask = 0
        self.busy = 0
        self.lazy = 0
        self.watch = 0
        self.rows = np.arange(self.W)
        self.views: dict[int, View] = {}
        self.copies: dict[int, np.ndarray] = {}
        self.queue: Queue = ([], [])
        self.set_exec(np.full(self.W, ALL))

    # ---- EXEC

    def set_exec(self, bits: np.ndarray) -> None:
        self.exec64 = bits
        self.full = bool((bits == ALL).all())
        self._execb: np.ndarray | None = None
        self._em: np.ndarray | None = None

    @property
    def execb(self) -> np.ndarray:
        """EXEC as bool [W, 64]."""
        if self._execb is None:
            self._execb = unpack(self.exec64)
        return self._execb

    @property
    def em(self) -> np.ndarray:
        """EXEC as uint32 [W, 64] of all ones or zero."""
        if self._em is None:
            self._em = (-self.execb.view(np.int8)).astype(np.int32).view(U32)
        return self._em

    # ---- wide and masked access

    def vector(self, register: int) -> np.ndarray:
        """Vector register as uint32 [W, 64]."""
        array = self.R[register]
        if array.dtype is not U32:
            array = array.view(U32)
        return array if array.shape[1] == LANES else np.broadcast_to(array, (self.W, LANES))

    def pair(self, register: int) -> np.ndarray:
        """Two consecutive vector registers as uint64 [W, 64] or [W, 1]."""
        low, high = self.R[register], self.R[register + 1]
        known = self.pairs.get(register)
        if known is not None and known[0] is low and known[1] is high:
            return known[2]
        out = np.empty((self.W, max(low.shape[1], high.shape[1]), 2), U32)
        out[..., 0] = low if low.dtype is U32 else low.view(U32)
        out[..., 1] = high if high.dtype is U32 else high.view(U32)
        value = out.view(U64)[..., 0]
        self.pairs[register] = (low, high, value)
        return value

    def spair(self, register: int) -> np.ndarray:
        """Two consecutive scalar registers as uint64 [W] (EXEC too)."""
        if register == EXEC:
            return self.exec64
        low, high = self.S[register], self.S[register + 1]
        known = self.spairs.get(register)
        if known is not None and known[0] is low and known[1] is high:
            return known[2]
        out = np.empty((self.W, 2), U32)
        out[:, 0] = low if low.dtype is U32 else low.view(U32)
        out[:, 1] = high if high.dtype is U32 else high.view(U32)
        value = out.view(U64)[:, 0]
        self.spairs[register] = (low, high, value)
        return value

    def mask(self, register: int) -> np.ndarray:
        """Scalar register pair as a lane mask, bool [W, 64]."""
        if register == EXEC:
            return self.execb
        low, high = self.S[register], self.S[register + 1]
        known = self.masks.get(register)
        if known is not None and known[0] is low and known[1] is high:
            return known[2]
        value = unpack(self.spair(register))
        self.masks[register] = (low, high, value)
        return value

    def write(self, register: int, value: np.ndarray) -> None:
        """Write a vector register under EXEC; `value` is any 4-byte type, [W or 1, 64 or 1]."""
        if value.shape[0] != self.W:
            value = np.repeat(value, self.W, axis=0)
        if self.full:
            self.R[register] = value
            return
        old = self.R[register]
        if old.dtype is not U32:
            old = old.view(U32)
        merged = ((value if value.dtype is U32 else value.view(U32)) ^ old) & self.em
        merged ^= old
        self.R[register] = merged

    def write_pair(self, register: int, value: np.ndarray) -> None:
        """Write two vector registers from an 8-byte type."""
        if value.shape[0] != self.W:
            value = np.repeat(value, self.W, axis=0)
        words = np.ascontiguousarray(value).view(U32).reshape(self.W, value.shape[1], 2)
        self.write(register, words[..., 0])
        self.write(register + 1, words[..., 1])
        if self.full:
            whole = words.view(U64)[..., 0]
            self.pairs[register] = (self.R[register], self.R[register + 1], whole)

    def write_words(self, register: int, words: np.ndarray) -> None:
        """Write consecutive vector registers from uint32 [W, lanes, count]."""
        for i in range(words.shape[2]):
            self.write(register + i, words[..., i])

    def swrite(self, register: int, value: np.ndarray) -> None:
        """Write a scalar register, [W] or [1] of a 4-byte type."""
        if value.shape[0] != self.W:
            value = np.repeat(value, self.W)
        if register >= EXEC:
            bits = self.exec64 & np.uint64(0xFFFF_FFFF << (32 if register == EXEC else 0))
            self.set_exec(bits | value.view(U32).astype(U64) << np.uint64(0 if register == EXEC else 32))
            return
        self.S[register] = value

    def swrite_pair(self, register: int, value: np.ndarray) -> None:
        """Write a scalar register pair (or EXEC), [W] or [1] of an 8-byte type."""
        if value.shape[0] != self.W:
            value = np.repeat(value, self.W)
        if value.dtype is not U64:
            value = value.view(U64)
        if register == EXEC:
            self.set_exec(value)
            return
        value = np.ascontiguousarray(value)
        words = value.view(U32).reshape(self.W, 2)
        low, high = words[:, 0], words[:, 1]
        self.S[register], self.S[register + 1] = low, high
        self.spairs[register] = (low, high, value)

    def write_mask(self, register: int, value: np.ndarray) -> None:
        """Write a lane mask, bool [W or 1, 64 or 1], zero in inactive lanes."""
        if value.shape != (self.W, LANES):
            value = np.broadcast_to(value, (self.W, LANES))
        if not self.full:
            value = value & self.execb
        self.swrite_pair(register, pack(value))
        if register != EXEC:
            self.masks[register] = (self.S[register], self.S[register + 1], value)

    # ---- poison

    def set_poison(self, register: int, bits: np.ndarray | None) -> None:
        """Say which bits of a register were never written (a register number of the set space); None for none."""
        if bits is not None and bits.any():
            self.poison[register] = bits
            self.pmask |= 1 << register
        else:
            self.poison.pop(register, None)
            self.pmask &= ~(1 << register)
        self.watch = self.pmask | self.busy | self.lazy

    def set_vector_poison(self, register: int, bits: np.ndarray | None) -> None:
        """The same for a vector register written under EXEC: inactive lanes keep what they had."""
        if not self.full:
            old = self.poison.get(register)
            if old is not None or bits is not None:
                zero = np.zeros((1, 1), U32)
                old = zero if old is None else old
                bits = ((zero if bits is None else bits) & self.em) | (old & ~self.em)
        self.set_poison(register, bits)

    # ---- splitting and joining

    def settle(self, registers: int) -> None:
        """Give the group its own arrays of those `registers` (a set) that it so far shares with the group it left."""
        todo = self.lazy & registers
        self.lazy ^= todo
        self.watch = self.pmask | self.busy | self.lazy
        while todo:
            lowest = todo & -todo
            todo ^= lowest
            register = lowest.bit_length() - 1
            base, rows = self.views[register]
            own = self.copies[register] = base.take(rows, axis=0)
            if register < SCALAR_BIT:
                self.R[register] = own
            else:
                self.S[register - SCALAR_BIT] = own

    def forget(self, registers: int) -> None:
        """As `settle`, for registers about to be written as a whole: their old value is not needed."""
        self.lazy &= ~registers
        self.watch = self.pmask | self.busy | self.lazy

    def _origins(self) -> dict[int, View]:
        """For each register in use the array that holds it and the rows of this group's waves in it."""
        unchanged, copies, views, R, S = self.rows, self.copies, self.views, self.R, self.S
        out: dict[int, View] = {}
        for register in self.batch.registers:
            array = R[register] if register < SCALAR_BIT else S[register - SCALAR_BIT]
            if register in views and array is copies.get(register):
                out[register] = views[register]
            else:
                out[register] = (array, unchanged)
        return out

    def take(self, chosen: np.ndarray) -> Group:
        """The waves that boolean `chosen` [W] selects, as a new group at the same instruction.

        Registers are not copied: the new group reads them from this one's arrays when it first needs them.
        """
        other = Group.__new__(Group)
        index = np.flatnonzero(chosen)
        other.batch = self.batch
        other.waves = self.waves[index]
        other.W = len(index)
        other.wg = self.wg[index]
        other.pc = self.pc
        other.age = self.age
        other.lds_base = self.lds_base[index]
        other.rows = np.arange(other.W)
        composed: dict[int, np.ndarray] = {id(self.rows): index}
        views: dict[int, View] = {}
        for register, (array, rows) in self._origins().items():
            known = composed.get(id(rows))
            if known is None:
                known = composed[id(rows)] = rows[index]
            views[register] = (array, known)
        other.views, other.copies = views, {}
        other.R, other.S = [_ABSENT] * len(self.R), [_ABSENT] * len(self.S)
        other.scc = self.scc[index]
        other.pairs, other.spairs, other.masks, other.fragments = {}, {}, {}, {}
        other.pmask = self.pmask
        other.busy = self.busy
        other.lazy = self.batch.register_set
        other.watch = other.pmask | other.busy | other.lazy
        other.queue = (list(self.queue[0]), list(self.queue[1]))
        other.set_exec(self.exec64[index])
        picked: dict[int, np.ndarray] = {}
        for bits in self.poison.values():
            if id(bits) not in picked:
                picked[id(bits)] = bits[index]
        other.poison = {register: picked[id(bits)] for register, bits in self.poison.items()}
        return other


_CLEAN: dict[tuple[int, int], np.ndarray] = {}


def _clean(waves: int, lanes: int) -> np.ndarray:
    """Poison of a register without any: one shared array for each size."""
    if (waves, lanes) not in _CLEAN:
        _CLEAN[waves, lanes] = np.zeros((waves, 1) if lanes else waves, U32)
    return _CLEAN[waves, lanes]


class _Merge:
    """Puts the rows of several groups together, waves in order of their index."""

    def __init__(self, groups: list[Group]) -> None:
        waves = np.concatenate([group.waves for group in groups])
        self.order = np.argsort(waves)
        self.waves = waves[self.order]
        self.count = len(waves)
        self.arrays: dict[tuple[int, ...], np.ndarray] = {}
        self.indices: dict[tuple[int, ...], tuple[np.ndarray, bool]] = {}

    def rows(self, parts: list[np.ndarray]) -> tuple[np.ndarray, bool]:
        """Row numbers of all groups in an array that they share, and whether they count up from zero."""
        key = tuple(map(id, parts))
        got = self.indices.get(key)
        if got is None:
            every = np.concatenate(parts)[self.order]
            got = self.indices[key] = every, bool((every == np.arange(self.count)).all())
        return got

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        key = tuple(map(id, arrays))
        got = self.arrays.get(key)
        if got is None:
            if arrays[0].ndim == 2 and len({array.shape[1] for array in arrays}) > 1:
                arrays = [np.broadcast_to(array, (array.shape[0], LANES)) for array in arrays]
            if len({array.dtype for array in arrays}) > 1:
                arrays = [array.view(U32) for array in arrays]
            got = self.arrays[key] = np.concatenate(arrays).take(self.order, axis=0)
        return got


def join(groups: list[Group], merge_queues: Callable[[list[Queue]], Queue], rebuild: Callable[[Group], None]) -> Group:
    """One group from several at the same instruction, waves in order of their index.

    A register that none of them has written since they parted stays where it is; only the others are put together.
    """
    first = groups[0]
    merge = _Merge(groups)
    out = Group.__new__(Group)
    out.batch, out.pc, out.age = first.batch, first.pc, max(group.age for group in groups)
    out.waves, out.W = merge.waves, merge.count
    out.rows = np.arange(out.W)
    out.wg = merge.join([group.wg for group in groups])
    out.lds_base = merge.join([group.lds_base for group in groups])
    out.views, out.copies, out.lazy = {}, {}, 0
    out.R, out.S = [_ABSENT] * len(first.R), [_ABSENT] * len(first.S)
    _join_registers(groups, merge, out)
    out.scc = merge.join([group.scc for group in groups])
    out.pairs, out.spairs, out.masks, out.fragments, out.poison = {}, {}, {}, {}, {}
    out.pmask = out.busy = out.watch = 0
    out.set_exec(merge.join([group.exec64 for group in groups]))
    for group in groups:
        out.pmask |= group.pmask
    for register in set().union(*(group.poison for group in groups)):
        lanes = LANES if register < N_VECTOR else 0
        out.poison[register] = merge.join([group.poison.get(register, _clean(group.W, lanes)) for group in groups])
    out.queue = merge_queues([group.queue for group in groups])
    rebuild(out)
    return out


def _join_registers(groups: list[Group], merge: _Merge, out: Group) -> None:
    """Registers of `out`, shared with an earlier group where all of `groups` still see that one's array."""
    origins = [group._origins() for group in groups]
    first, rest = origins[0], origins[1:]
    for register, (base, rows) in first.items():
        others = [origin[register] for origin in rest]
        array: Any = _ABSENT
        if all(other[0] is base for other in others):
            every, counts_up = merge.rows([rows, *(other[1] for other in others)])
            if counts_up and len(every) == len(base):
                array = base
            else:
                out.views[register] = (base, every)
                out.lazy |= 1 << register
        else:
            own = []
            for group in groups:
                if group.lazy >> register & 1:
                    group.settle(1 << register)
                own.append(group.R[register] if register < SCALAR_BIT else group.S[register - SCALAR_BIT])
            array = merge.join(own)
        if register < SCALAR_BIT:
            out.R[register] = array
        else:
            out.S[register - SCALAR_BIT] = array
