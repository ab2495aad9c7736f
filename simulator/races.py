"""LDS: storage of a batch of workgroups, values never written, and the race tracker.

Between two barriers (an epoch) the tracker logs every LDS access and checks the epoch as a whole when the workgroup
passes the barrier or ends: bytes that one wave wrote and another wave read, wrote with another value, or changed by an
atomic are a race, whatever order the simulator happened to run the waves in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from kvc.simulator.faults import Trap
from kvc.simulator.memory import CARRIER, Misaligned
from kvc.simulator.state import LANES, Group

_LOG_LIMIT = 1 << 27  # logged elements before an epoch without barrier is checked in parts


class Access(NamedTuple):
    """One LDS access: byte addresses in the batch, [n] with waves [n] or [W, 64] with waves [W, 1]; values flat."""

    kind: str  # "read", "write", "atomic"
    address: np.ndarray
    waves: np.ndarray
    width: int
    values: np.ndarray | None
    pc: int


class Lds:
    """LDS of all workgroups of a batch, `stride` bytes apart; `limit` is what one workgroup may address."""

    def __init__(
        self, workgroups: int, limit: int, granule: int, waves_per_group: int, race: bool, uninit: bool
    ) -> None:
        self.limit = limit
        self.stride = (limit + 15) // 16 * 16
        self.granule = granule
        total = workgroups * self.stride
        self.bytes = np.zeros(total + 16, np.uint8)[:total]
        self.typed = {width: self.bytes.view(kind) for width, kind in CARRIER.items()}
        self.valid = np.zeros(total, np.uint8)
        self.valid_typed = {width: self.valid.view(kind) for width, kind in CARRIER.items() if width < 16}
        self.track_valid = uninit and total > 0
        self.all_valid = not self.track_valid
        self.race = race
        self.log: list[Access] = []
        self.logged = 0
        self.waves_per_group = waves_per_group
        self.one = np.array(1, np.uint8 if waves_per_group <= 8 else np.uint16)
        self.epochs = 0
        self.partial = False

    # ---- data

    def index(self, address: np.ndarray, width: int) -> tuple[np.ndarray, int]:
        """Indices into the carrier-typed view and its unit; Misaligned below min(width, 4) bytes."""
        low = int(np.bitwise_or.reduce(address, axis=None)) if address.size else 0
        unit = width if width in CARRIER and not low & (width - 1) else min(width, 4)
        if low & (unit - 1):
            raise Misaligned(f"LDS access of {width} bytes is not aligned to {unit}", (address & (unit - 1)) != 0)
        return address >> (unit.bit_length() - 1), unit

    def read(self, address: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Values (carrier-typed; uint32 [..., 3] for 12 bytes) and None or a mask of elements with stale bytes."""
        index, unit = self.index(address, width)
        if unit == width:
            values = self.typed[unit].take(index)
        else:
            index = index[..., None] + np.arange(width // 4)
            values = self.typed[4].take(index)
            values = values if width == 12 else values.view(CARRIER[width])[..., 0]
        return values, None if self.all_valid else self._stale(address, width)

    def _stale(self, address: np.ndarray, width: int) -> np.ndarray | None:
        piece = min(width & -width, 8) if width != 12 else 4
        if piece == 8 and int(np.bitwise_or.reduce(address, axis=None)) & 7:
            piece = 4
        view = self.valid_typed[piece]
        whole = view.dtype.type(int.from_bytes(b"\1" * piece, "little"))
        bad: np.ndarray | None = None
        for part in range(width // piece):
            stale = view.take((address + part * piece) >> (piece.bit_length() - 1)) != whole
            bad = stale if bad is None else bad | stale
        return bad if bad is not None and bad.any() else None

    def write(self, address: np.ndarray, values: np.ndarray, width: int, stale: np.ndarray | None = None) -> None:
        """Scatter values at [n] addresses; `stale` marks elements that carry values never written."""
        index, unit = self.index(address, width)
        if unit == width:
            self.typed[unit][index] = values
        else:
            words = values if width == 12 else np.ascontiguousarray(values).view(np.uint32).reshape(-1, width // 4)
            self.typed[4][index[:, None] + np.arange(width // 4)] = words
        if self.all_valid and stale is None:
            return
        if stale is not None and not self.track_valid:
            return
        self.all_valid = False
        piece = unit if unit < 16 else 8
        view = self.valid_typed[piece]
        ones = np.array(int.from_bytes(b"\1" * piece, "little"), view.dtype)
        mark: Any = ones if stale is None else np.where(stale, view.dtype.type(0), ones)
        for part in range(width // piece):
            view[(address + part * piece) >> (piece.bit_length() - 1)] = mark

    def settle(self) -> None:
        """Now and then see whether everything has been written, after which reads need no check."""
        self.epochs += 1
        if not self.all_valid and (self.epochs < 8 or self.epochs & (self.epochs - 1) == 0):
            self.all_valid = bool(self.valid.all())

    # ---- races

    def note(self, g: Group, kind: str, address: np.ndarray, width: int, values: Any, pc: int) -> None:
        """Log an access; `address` is [W, 64] (or flat) under a full EXEC, else the [n] active ones."""
        if g.full:
            self.note_flat(kind, address.reshape(g.W, LANES), g.waves[:, None], width, values, pc)
        else:
            waves = np.repeat(g.waves, np.bitwise_count(g.exec64))
            self.note_flat(kind, address, waves, width, values, pc)

    def note_flat(self, kind: str, address: np.ndarray, waves: np.ndarray, width: int, values: Any, pc: int) -> None:
        self.log.append(Access(kind, address, waves, width, values, pc))
        self.logged += address.size * max(width // self.granule, 1)
        if self.logged > _LOG_LIMIT:
            self.partial = True
            self.check()

    def check(
        self,
        passing: np.ndarray | None = None,
        wave_wg: np.ndarray | None = None,
        outstanding: frozenset[int] = frozenset(),
    ) -> None:
        """End the epoch of all workgroups, or of those that `passing` [workgroups] marks. RaceFound on a race.

        Reads by the instructions `outstanding` have not returned: they take part in the next epoch too.
        """
        log = self.log
        self.log, self.logged = [], 0
        if passing is not None and wave_wg is not None and not passing.all():
            log = self._select(log, passing, wave_wg)
        newest = {entry.pc: entry for entry in log if entry.kind == "read" and entry.pc in outstanding}
        self.log += newest.values()
        writes = [entry for entry in log if entry.kind == "write"]
        atomics = [entry for entry in log if entry.kind == "atomic"]
        if not writes and not atomics:
            return
        owner = self._mark(writes)
        for entry in log:
            bad = self._foreign(owner, entry)
            if bad is not None:
                self._judge(entry, bad, owner, writes, "a write of")
        if atomics:
            owner = self._mark(atomics)
            for entry in log:
                bad = None if entry.kind == "atomic" else self._foreign(owner, entry)
                if bad is not None:
                    self._fail(entry, bad, owner, "an atomic of")

    def _select(self, log: list[Access], passing: np.ndarray, wave_wg: np.ndarray) -> list[Access]:
        chosen = []
        for entry in log:
            now = passing[wave_wg[entry.waves.reshape(-1)]]
            if now.all():
                chosen.append(entry)
                continue
            for part, keep in ((now, chosen), (~now, self.log)):
                if part.any():
                    values = entry.values
                    if values is not None:
                        values = values[np.broadcast_to(part[:, None], entry.address.shape).reshape(-1)] if (
                            entry.address.ndim == 2) else values[part]  # fmt: skip
                    keep.append(entry._replace(address=entry.address[part], waves=entry.waves[part], values=values))
        self.logged = sum(entry.address.size for entry in self.log)
        return chosen

    def _stamp(self, waves: np.ndarray) -> np.ndarray:
        """One bit for each wave of a workgroup."""
        return np.left_shift(self.one, (waves % self.waves_per_group).astype(self.one.dtype))

    def _views(self, entry: Access) -> list[tuple[np.dtype[Any], np.ndarray]]:
        """How to see the marks of an access: (integer type that spans some granules, indices) for each piece of it."""
        spans = max(entry.width // self.granule, 1) * self.one.itemsize
        size = min(spans & -spans, 8)
        low = int(np.bitwise_or.reduce(entry.address, axis=None)) // self.granule * self.one.itemsize
        while size > self.one.itemsize and low & (size - 1):
            size //= 2
        dtype = np.dtype(f"u{size}")
        first = (entry.address // self.granule if self.granule > 1 else entry.address) * self.one.itemsize // size
        return [(dtype, first + i) for i in range(spans // size)]

    def _spread(self, stamp: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
        ones = sum(1 << 8 * self.one.itemsize * i for i in range(dtype.itemsize // self.one.itemsize))
        return stamp.astype(dtype) * dtype.type(ones)

    def _mark(self, entries: list[Access]) -> np.ndarray:
        """A table of the last wave to touch each granule, among these accesses."""
        owner = np.zeros(-(-self.valid.size // self.granule) + 8, self.one.dtype)
        owner = owner[: owner.size // 8 * 8]
        for entry in entries:
            stamp = self._stamp(entry.waves)
            for dtype, index in self._views(entry):
                owner.view(dtype)[index] = self._spread(stamp, dtype)
        return owner

    def _foreign(self, owner: np.ndarray, entry: Access) -> np.ndarray | None:
        """Elements of the access (shaped like its address) that another wave has marked, or None."""
        out: np.ndarray | None = None
        stamp = self._stamp(entry.waves)
        for dtype, index in self._views(entry):
            bad = owner.view(dtype).take(index) & ~self._spread(stamp, dtype)
            if bad.any():
                out = bad != 0 if out is None else out | (bad != 0)
        return out

    def _judge(self, entry: Access, bad: np.ndarray, owner: np.ndarray, writes: list[Access], what: str) -> None:
        """Waves that all wrote the same value do not race; nor does a wave that reads what it wrote itself so."""
        if entry.kind == "write" and entry.values is not None:
            rows = bad.reshape(-1)
            now, _ = self.read(entry.address.reshape(-1)[rows], entry.width)
            a, b = (
                np.ascontiguousarray(item).reshape(len(now), -1).view(np.uint8) for item in (entry.values[rows], now)
            )
            if _same(a, b):
                return
        if entry.kind == "read":
            own = self._written_by(writes)
            still = np.zeros(bad.shape, bool)
            for address, wave, where in zip(*self._elements(entry, bad), strict=True):
                granules = range(int(address) // self.granule, -(-(int(address) + entry.width) // self.granule))
                mark = 1 << int(wave) % self.waves_per_group
                still[where] = any(int(owner[item]) & ~mark and (int(wave), item) not in own for item in granules)
            if not still.any():
                return
            bad = still
        self._fail(entry, bad, owner, what)

    def _written_by(self, writes: list[Access]) -> set[tuple[int, int]]:
        """(wave, granule) of all writes: only for the rare epoch that looks like a race."""
        out: set[tuple[int, int]] = set()
        for entry in writes:
            span = max(entry.width // self.granule, 1)
            waves = np.broadcast_to(entry.waves, entry.address.shape).reshape(-1)
            first = entry.address.reshape(-1) // self.granule
            for i in range(span):
                out.update(zip(waves.tolist(), (first + i).tolist(), strict=True))
        return out

    def _elements(self, entry: Access, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[tuple[int, ...]]]:
        waves = np.broadcast_to(entry.waves, entry.address.shape)
        return entry.address[chosen], waves[chosen], list(zip(*np.nonzero(chosen), strict=True))

    def _fail(self, entry: Access, bad: np.ndarray, owner: np.ndarray, what: str) -> None:
        address, waves, _ = self._elements(entry, bad)
        first, wave = int(address[0]), int(waves[0])
        own = 1 << wave % self.waves_per_group
        marks = [int(owner[item]) for item in range(first // self.granule, -(-(first + entry.width) // self.granule))]
        other = next((mark & ~own for mark in marks if mark & ~own), 1)
        trap = Trap(
            "KVC0906",
            f"the {entry.kind} of LDS byte {first % self.stride} by instruction {entry.pc} meets {what} wave"
            f" {other.bit_length() - 1} with no barrier between",
            hint="an s_barrier (__syncthreads) is missing",
        )
        raise RaceFound(trap, wave, entry.pc)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether bytes of equal shape hold the same values. Two NaNs are the same whatever their bits: sign and payload
    follow from the order of operands, which waves that compute the same sum for themselves may choose differently."""
    if (a == b).all():
        return True
    # Bytes have no type: words of four are taken for fp32 (the upper one of fp64 has its exponent), others for fp16.
    kind, sign, infinity = ("<u4", 0x7FFFFFFF, 0x7F800000) if a.shape[-1] % 4 == 0 else ("<u2", 0x7FFF, 0x7C00)
    if a.shape[-1] % 2:
        return False
    one, other = (np.ascontiguousarray(item).view(kind) for item in (a, b))
    return bool(((one == other) | ((one & sign > infinity) & (other & sign > infinity))).all())


class RaceFound(Exception):
    """A race, with the batch index of the wave and the instruction that it was found at."""

    def __init__(self, trap: Trap, wave: int, pc: int) -> None:
        super().__init__(trap.message)
        self.trap = trap
        self.wave = wave
        self.pc = pc
