"""Long runs of the text fuzzer.

python -m tests.fuzz.run --seconds 60                    every reader in turn
python -m tests.fuzz.run --seconds 60 --reader kernel
python -m tests.fuzz.run --reader lock --seed 17         one text, shown
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import random
import signal
import sys
import time
import traceback
from types import FrameType

from tests.fuzz.texts import READERS, Reader, mutated, refuses_or_reads

HANG_S = 20


class Hang(Exception):
    """A reader that takes longer than HANG_S seconds for a text."""


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang


def outcome(reader: Reader, text: str) -> str:
    """ "read", a code, or what went wrong: "!", the exception and its place."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(HANG_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return refuses_or_reads(reader, text)
    except Exception as error:  # what this program looks for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"! {type(error).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
    finally:
        signal.alarm(0)


def fuzz(name: str, seconds: float, start: int = 0) -> tuple[collections.Counter[str], dict[str, list[int]]]:
    """Outcomes by kind, and the seeds of each fault."""
    ends, counts, faults = time.monotonic() + seconds, collections.Counter[str](), {}
    seed = start
    while time.monotonic() < ends:
        what = outcome(READERS[name], mutated(READERS[name], random.Random(seed)))
        counts[what] += 1
        if what.startswith("!"):
            faults.setdefault(what, []).append(seed)
        seed += 1
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader")
    parser.add_argument("--reader", choices=sorted(READERS))
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="only this one, with its text")
    given = parser.parse_args()
    if given.seed is not None:
        text = mutated(READERS[given.reader], random.Random(given.seed))
        print(text, "-" * 40, sep="\n")
        print(refuses_or_reads(READERS[given.reader], text))
        return 0
    bad = 0
    for name in [given.reader] if given.reader else READERS:
        counts, faults = fuzz(name, given.seconds, given.start)
        print(f"{name}: {sum(counts.values())} texts; " + ", ".join(f"{n} {k}" for k, n in counts.most_common()))
        for what, seeds in faults.items():
            print(f"  {what} [{', '.join(map(str, seeds[:5]))}]")
        bad += len(faults)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
