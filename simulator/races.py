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
    """One LDS access of a group: byte addresses [n] in the batch, their waves [n], `width` bytes each."""

    kind: str  # "read", "write", "atomic"
    address: np.ndarray
    waves: np.ndarray
    width: int
    values: np.ndarray | None
    pc: int


class Lds:
    """LDS of all workgroups of a batch, `stride` bytes apart; `limit` is what one workgroup may address."""

    def __init__(self, workgroups: int, limit: int, granule: int, race: bool, uninit: bool) -> None:
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
        self.writer = np.zeros(total // granule if race else 0, np.int64)
        self.atomic = np.zeros(0, np.int64)
        self.base = 1
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
        """Log an access; `address` is [W, 64] under a full EXEC, else the [n] active ones."""
        waves = np.repeat(g.waves, LANES) if g.full else np.repeat(g.waves, np.bitwise_count(g.exec64))
        self.note_flat(kind, address.reshape(-1), waves, width, values, pc)

    def note_flat(self, kind: str, address: np.ndarray, waves: np.ndarray, width: int, values: Any, pc: int) -> None:
        self.log.append(Access(kind, address, waves, width, values, pc))
        self.logged += address.size * max(width // self.granule, 1)
        if self.logged > _LOG_LIMIT:
            self.partial = True
            self.check()

    def check(self, passing: np.ndarray | None = None, wave_wg: np.ndarray | None = None) -> None:
        """End the epoch of all workgroups, or of those that `passing` [workgroups] marks. KVC0906 on a race."""
        log = self.log
        self.log, self.logged = [], 0
        if passing is not None and wave_wg is not None:
            log = self._select(log, passing, wave_wg)
        if not log:
            return
        base, self.base = self.base, self.base + 4096 * 16
        expanded = [self._expand(entry) for entry in log]
        if any(entry.kind == "atomic" for entry in log):
            self._mark_atomics(log, expanded, base)
        for entry, flat in zip(log, expanded, strict=True):
            if entry.kind == "write":
                self.writer[flat] = (entry.waves + base)[:, None]
        for entry, flat in zip(log, expanded, strict=True):
            owner = self.writer.take(flat)
            bad = (owner >= base) & (owner != (entry.waves + base)[:, None])
            if bad.any():
                self._judge(entry, flat, bad, log, expanded, base)
            if self.atomic.size and entry.kind != "atomic":
                owner = self.atomic.take(flat)
                bad = (owner >= base) & (owner != (entry.waves + base)[:, None])
                if bad.any():
                    self._fail(entry, bad, owner - base, "an atomic of")

    def _select(self, log: list[Access], passing: np.ndarray, wave_wg: np.ndarray) -> list[Access]:
        chosen = []
        for entry in log:
            now = passing[wave_wg[entry.waves]]
            if now.all():
                chosen.append(entry)
                continue
            for part, keep in ((now, chosen), (~now, self.log)):
                if part.any():
                    values = None if entry.values is None else entry.values[part]
                    keep.append(Access(entry.kind, entry.address[part], entry.waves[part], entry.width, values, entry.pc))
        self.logged = sum(entry.address.size for entry in self.log)
        return chosen

    def _expand(self, entry: Access) -> np.ndarray:
        shift = self.granule.bit_length() - 1
        first = entry.address >> shift
        return first[:, None] + np.arange(max(entry.width // self.granule, 1))

    def _mark_atomics(self, log: list[Access], expanded: list[np.ndarray], base: int) -> None:
        if not self.atomic.size:
            self.atomic = np.zeros_like(self.writer)
        for entry, flat in zip(log, expanded, strict=True):
            if entry.kind == "atomic":
                self.atomic[flat] = (entry.waves + base)[:, None]

    def _judge(
        self, entry: Access, flat: np.ndarray, bad: np.ndarray, log: list[Access], expanded: list[np.ndarray], base: int
    ) -> None:
        """Waves that all wrote the same value do not race; nor does a wave that reads what it wrote itself so."""
        rows = bad.any(axis=1)
        if entry.kind == "write" and entry.values is not None and self._same(entry, rows):
            return
        if entry.kind == "read":
            size = self.writer.size
            keys = (flat + size * entry.waves[:, None])[bad]
            own = [
                (other_flat + size * other.waves[:, None]).reshape(-1)
                for other, other_flat in zip(log, expanded, strict=True)
                if other.kind == "write"
            ]
            still = ~np.isin(keys, np.concatenate(own))
            if not still.any():
                return
            bad = bad.copy()
            bad[bad] = still
        self._fail(entry, bad, self.writer.take(flat) - base, "a write of")

    def _same(self, entry: Access, rows: np.ndarray) -> bool:
        values = entry.values[rows] if entry.values is not None else None
        now, _ = self.read(entry.address[rows], entry.width)
        if values is None:
            return False
        a, b = (np.ascontiguousarray(item).reshape(len(now), -1).view(np.uint8) for item in (values, now))
        return bool((a == b).all())

    def _fail(self, entry: Access, bad: np.ndarray, owner: np.ndarray, what: str) -> None:
        row, column = np.unravel_index(int(bad.argmax()), bad.shape)
        trap = Trap(
            "KVC0906",
            f"the {entry.kind} of LDS byte {int(entry.address[row]) % self.stride} by instruction {entry.pc} meets {what}"
            f" wave {int(owner[row, column])} of the batch with no barrier between",
            hint="an s_barrier (__syncthreads) is missing",
        )
        raise RaceFound(trap, int(entry.waves[row]), entry.pc)


class RaceFound(Exception):
    """A race, with the batch index of the wave and the instruction that it was found at."""

    def __init__(self, trap: Trap, wave: int, pc: int) -> None:
        super().__init__(trap.message)
        self.trap = trap
        self.wave = wave
        self.pc = pc
