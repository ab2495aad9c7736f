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

Queue = tuple[list[Any], list[Any]]


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
    bit for each register with an outstanding memory operation; `watch` is their union, tested before each instruction.
    """

    __slots__ = (
        "R", "S", "W", "_em", "_execb", "age", "batch", "busy", "exec64", "fragments", "full", "lds_base", "masks",
        "pairs", "pc", "pmask", "poison", "queue", "scc", "spairs", "watch", "waves", "wg",
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
        self.watch = 0
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
        self.watch = self.pmask | self.busy

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

    def take(self, chosen: np.ndarray) -> Group:
        """The waves that boolean `chosen` [W] selects, as a new group at the same instruction."""
        other = Group.__new__(Group)
        other.batch = self.batch
        other.waves = self.waves[chosen]
        other.W = len(other.waves)
        other.wg = self.wg[chosen]
        other.pc = self.pc
        other.age = self.age
        other.lds_base = self.lds_base[chosen]
        seen: dict[int, np.ndarray] = {}

        def pick(array: np.ndarray) -> np.ndarray:
            got = seen.get(id(array))
            if got is None:
                got = seen[id(array)] = array[chosen]
            return got

        other.R = [pick(array) for array in self.R]
        other.S = [pick(array) for array in self.S]
        other.scc = self.scc[chosen]
        other.pairs, other.spairs, other.masks, other.fragments = {}, {}, {}, {}
        other.pmask = self.pmask
        other.busy = self.busy
        other.watch = self.watch
        other.queue = (list(self.queue[0]), list(self.queue[1]))
        other.set_exec(self.exec64[chosen])
        other.poison = {register: pick(bits) for register, bits in self.poison.items()}
        return other


_CLEAN: dict[tuple[int, int], np.ndarray] = {}


def _clean(waves: int, lanes: int) -> np.ndarray:
    """Poison of a register without any: one shared array for each size."""
    if (waves, lanes) not in _CLEAN:
        _CLEAN[waves, lanes] = np.zeros((waves, 1) if lanes else waves, U32)
    return _CLEAN[waves, lanes]


def join(groups: list[Group], merge_queues: Callable[[list[Queue]], Queue], rebuild: Callable[[Group], None]) -> Group:
    """One group from several at the same instruction, waves in order of their index."""
    first = groups[0]
    out = Group.__new__(Group)
    out.batch, out.pc, out.age = first.batch, first.pc, max(group.age for group in groups)
    waves = np.concatenate([group.waves for group in groups])
    order = np.argsort(waves)
    out.waves = waves[order]
    out.W = len(waves)
    out.wg = np.concatenate([group.wg for group in groups])[order]
    out.lds_base = np.concatenate([group.lds_base for group in groups])[order]
    seen: dict[tuple[int, ...], np.ndarray] = {}

    def merge(arrays: list[np.ndarray]) -> np.ndarray:
        key = tuple(map(id, arrays))
        got = seen.get(key)
        if got is None:
            if arrays[0].ndim == 2 and len({array.shape[1] for array in arrays}) > 1:
                arrays = [np.broadcast_to(array, (array.shape[0], LANES)) for array in arrays]
            if len({array.dtype for array in arrays}) > 1:
                arrays = [array.view(U32) for array in arrays]
            got = seen[key] = np.concatenate(arrays)[order]
        return got

    out.R = [merge(list(arrays)) for arrays in zip(*(group.R for group in groups), strict=True)]
    out.S = [merge(list(arrays)) for arrays in zip(*(group.S for group in groups), strict=True)]
    out.scc = merge([group.scc for group in groups])
    out.pairs, out.spairs, out.masks, out.fragments, out.poison = {}, {}, {}, {}, {}
    out.pmask = out.busy = out.watch = 0
    out.set_exec(merge([group.exec64 for group in groups]))
    for group in groups:
        out.pmask |= group.pmask
    for register in set().union(*(group.poison for group in groups)):
        lanes = LANES if register < N_VECTOR else 0
        out.poison[register] = merge([group.poison.get(register, _clean(group.W, lanes)) for group in groups])
    out.queue = merge_queues([group.queue for group in groups])
    rebuild(out)
    return out
