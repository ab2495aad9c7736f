"""Writers of one store, killed at random moments; what they finished is there and whole, what they did not is not torn.

python -m tests.store_kills --kills 200 --writers 8 --seed 0
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NoReturn

from kvc.diagnostics import Diagnostic
from kvc.emitter import CodeObject, Compiled
from kvc.store import Key, Store
from kvc.store_upkeep import verify
from kvc.verify.verdict import Evidence, OutputError, Rejected, Verdict, Verified

KEYS = 200  # few enough that writers meet on the same key


@cache
def entry(number: int) -> tuple[Key, Verdict]:
    """The only right verdict under key `number`: blobs of up to 100 kB, some shared with other keys."""
    rng = random.Random(number)
    key = Key({"task": f"task{number % 7}", "number": number})
    if number % 5 == 0:
        return key, Rejected("compare", Diagnostic("KVC0701", f"differs at {number}"))
    binary = rng.randbytes(rng.randrange(10, 100_000))
    shared = random.Random(number % 3).randbytes(20_000).hex()
    error = OutputError("y", 1e-7 * number, 1e-4, 2e-7, 3e-6, "normal", (number,))
    evidence = Evidence("sim", "gfx942", number, ("lint",), ("normal",), (error,), {}, {}, ())
    return key, Verified(evidence, Compiled({"k": CodeObject(shared, binary, (("clang", "22"),))}))


@dataclass
class Writer:
    """A process that puts entries and says after each that it is done."""

    folder: Path
    seed: int
    pid: int = 0
    pipe: int = 0
    finished: set[int] = field(default_factory=set)
    _rest: bytes = b""

    def start(self) -> None:
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            self._write(write)
        os.close(write)
        self.pipe = read
        os.set_blocking(read, False)

    def _write(self, pipe: int) -> NoReturn:
        try:
            store, rng = Store(self.folder), random.Random(self.seed)
            while True:
                number = rng.randrange(KEYS)
                store.put(*entry(number))
                os.write(pipe, b"%d\n" % number)
        finally:
            os._exit(1)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        try:
            while data := os.read(self.pipe, 1 << 16):
                self._rest += data
        except BlockingIOError:
            pass
        os.close(self.pipe)
        *lines, _ = self._rest.split(b"\n")
        self._rest = b""
        self.finished |= {int(line) for line in lines}


def check(folder: Path, finished: set[int]) -> list[str]:
    """What is wrong: a finished entry that is missing, or any entry that is not the right one."""
    store, wrong = Store(folder), []
    for number in range(KEYS):
        key, right = entry(number)
        got = store.get(key)
        if got is None and number in finished:
            wrong.append(f"{number} was finished and is lost")
        elif got is not None and got != right:
            wrong.append(f"{number} is not what was put")
    wrong += [f"{p.what}: {p.name}" for p in verify(store)]
    return wrong


def kill_writers(folder: Path, kills: int, writers: int, seed: int, every: int = 20) -> tuple[list[str], int]:
    """Problems found, and the number of puts that were finished. The store is checked after every `every` kills."""
    rng = random.Random(seed)
    crew = [Writer(folder, seed * 1000 + n) for n in range(writers)]
    Store(folder)
    for writer in crew:
        writer.start()
    wrong: list[str] = []
    try:
        for n in range(1, kills + 1):
            time.sleep(rng.random() * 0.05)
            victim = rng.choice(crew)
            victim.kill()
            victim.seed += 100_000
            if n % every == 0 or n == kills:
                wrong += check(folder, set().union(*(w.finished for w in crew)))
            victim.start()
    finally:
        for writer in crew:
            writer.kill()
    finished = set().union(*(w.finished for w in crew))
    return [*wrong, *check(folder, finished)], len(finished)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvc-kills-") as folder:
        wrong, finished = kill_writers(Path(folder), given.kills, given.writers, given.seed)
    print(*wrong[:20], f"{given.kills} kills, {finished} different entries finished, {len(wrong)} problems", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
