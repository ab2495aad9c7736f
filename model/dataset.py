"""Training examples: prompts and answers made of verified records of the vault.

A record's kernel is written again by the rule that wrote it (and compared with the record: same text but for names and
numbers), then for the canonical spec, lifted (kvc.model.lift) and kept with its rank among the kernels of its spec.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kvc.diagnostics import KvcError
from kvc.emitter import Emitter
from kvc.model.prompt import GOOD, Asked, prompt, setting

COLUMNS = (
    "spec_text", "spec_hash", "structure", "target", "arch", "numerics", "op_class", "split", "emitter", "schedule",
    "knobs", "normalized_hash", "status", "estimate_us", "measured_us",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """`prompt` and `answer` are what the model reads and writes; the rest says where they come from."""

    prompt: str
    answer: str
    target: str
    arch: str
    split: str
    rank: str
    emitter: str
    op_class: str
    spec_hash: str
    structure: str
    spec_text: str
    knobs: str
    witnesses: int
    microseconds: float | None = None
    more: tuple[str, ...] = ()  # prompts of the same spec at other sizes, for which the answer is the same


@dataclass
class Built:
    """What came of a set of records."""

    examples: list[Example] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)


@cache
def rule(target: str, name: str) -> Emitter | None:
    """A rule emitter of a target by name."""
    from kvc.emitter import target as find

    return next((e for e in find(target).emitters() if e.name == name), None)


def groups(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Verified rows by spec, target, GPU and numerics, the fastest first: measured time before estimates."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] == "verified":
            found.setdefault((row["spec_hash"], row["target"], row["arch"], row["numerics"]), []).append(row)
    for members in found.values():
        members.sort(key=lambda r: (_time(r) is None, _time(r) or 0.0))
    return found


def _time(row: dict[str, Any]) -> float | None:
    return row["measured_us"] if row["measured_us"] is not None else row["estimate_us"]


def rank_of(row: dict[str, Any], first: dict[str, Any], is_first: bool) -> str:
    """best, good or any (kvc.model.prompt.RANKS); without times all but the first are "any"."""
    if is_first:
        return "best"
    mine, best = _time(row), _time(first)
    return "good" if mine is not None and best and mine <= GOOD * best else "any"


def chosen(members: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows of a group: the best, then one of each schedule that is new, then the fastest of the rest."""
    first, seen = [], set()
    for row in members:
        key = (row["emitter"], row["schedule"], row["normalized_hash"])
        if key not in seen:
            seen.add(key)
            first.append(row)
    rest = [row for row in members if not any(row is f for f in first)]
    return [*first, *rest][:most]


def build_group(members: Sequence[dict[str, Any]], most: int) -> Built:
    """Examples of one spec, target and GPU."""
    built = Built()
    first: dict[str, Any] | None = None
    for row in chosen(members, most):
        first = first or row
        rank = rank_of(row, first, row is first)
        example = example_of(row, rank, built.lost)
        if example is not None:
            built.examples.append(example)
        elif row is first:
            first = None  # the best of those that are left is the best
    return built


def example_of(row: dict[str, Any], rank: str, lost: Counter[str]) -> Example | None:
    """The example of a row; None, with the reason counted in `lost`, where the row cannot be put into a frame."""
    from kvc.model.lift import emit, lift
    from kvc.model.sizes import NotAFrame

    emitter = rule(row["target"], row["emitter"])
    if emitter is None:
        lost["no rule wrote it"] += 1
        return None
    asked = asked_of(row)
    knobs = tuple((name, value) for name, value in json.loads(row["knobs"]))
    candidate = emit(asked, emitter, knobs)
    if candidate is None or not _is_current(asked, emitter, knobs, row):
        lost["the rule writes another kernel now"] += 1
        return None
    try:
        lifted = lift(candidate, emitter)
    except NotAFrame:
        lost["no frame gives it back"] += 1
        return None
    except KvcError as error:  # an emitter's own, at other sizes
        lost[f"{row['emitter']}: {error}"] += 1
        return None
    # The best is the model's own choice; every other answer is one of many, and its prompt says which.
    wanted = "" if rank == "best" else setting(candidate.schedule, knobs)
    texts = [prompt(a, row["target"], rank=rank, wanted=wanted) for a in (asked, *lifted.alike)]
    return Example(
        texts[0], lifted.answer, row["target"], row["arch"], row["split"], rank,
        row["emitter"], row["op_class"], row["spec_hash"], row["structure"], row["spec_text"], row["knobs"],
        lifted.witnesses, _time(row), tuple(texts[1:]),
    )  # fmt: skip


def asked_of(row: dict[str, Any]) -> Asked:
    """The task of a row."""
    from kvc.arch import arch
    from kvc.emitter import Task
    from kvc.text import parse_kernel

    return Asked(Task(parse_kernel(row["spec_text"]), arch(row["arch"]), row["numerics"]))


def _is_current(asked: Asked, emitter: Emitter, knobs: tuple[tuple[str, Any], ...], row: dict[str, Any]) -> bool:
    """Whether the rule still writes the kernel that was verified. (For the canonical spec it may break lines elsewhere,
    since names have other lengths; so the record's own spec is asked.)"""
    from kvc.vault.normalize import normalized
    from kvc.vault.record import digest

    made = next(iter(emitter.propose(asked.task, knobs, [], 0)), None)
    return made is not None and digest(normalized(made.source, row["target"])) == row["normalized_hash"]


def _build(task: tuple[list[dict[str, Any]], int]) -> Built:
    return build_group(*task)


def build(
    rows: Iterable[dict[str, Any]], out: Path, most: int = 4, jobs: int = 2, known: set[str] | None = None
) -> Built:
    """Write the examples of rows to a gzipped file of JSON lines; gives the counts (examples are not kept). `known`:
    keys of groups that are left out."""
    total = Built()
    tasks = [(g, most) for key, g in groups(rows).items() if known is None or "/".join(key) not in known]

    def made(pool: ProcessPoolExecutor) -> Iterator[dict[str, Any]]:
        for built in pool.map(_build, tasks, chunksize=8):
            total.lost.update(built.lost)
            yield from map(asdict, built.examples)

    with ProcessPoolExecutor(jobs) as pool:
        total.lost["kept"] = write(out, made(pool))
    return total


def write(out: Path, examples: Iterable[dict[str, Any]]) -> int:
    """Write examples to a gzipped file of JSON lines, whole or not at all; gives their number."""
    number, temporary = 0, out.with_name(f".{out.name}.tmp")
    with gzip.open(temporary, "wt", encoding="utf-8") as stream:
        for example in examples:
            number += 1
            stream.write(json.dumps(example) + "\n")
    temporary.replace(out)
    return number


def read(path: Path) -> Iterator[Example]:
    """Examples of a file or of every .jsonl.gz of a folder, in order of name."""
    for file in sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path]:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                data = json.loads(line)
                yield Example(**{**data, "more": tuple(data["more"])})


def keys(path: Path) -> set[str]:
    """Keys of the groups that examples on file belong to, as `build` names them."""
    return {f"{e.spec_hash}/{e.target}/{e.arch}/{e.prompt.split()[2]}" for e in read(path)}


def canonical_sources(vault: Path, most: int) -> Iterator[tuple[str, str]]:
    """(target, source) of a vault's kernels as their rules write them for the canonical spec."""
    from kvc.model.lift import emit
    from kvc.vault.shards import rows

    for number, row in enumerate(rows(vault, COLUMNS)):
        if number == most:
            return
        emitter = rule(row["target"], row["emitter"])
        if emitter is not None:
            knobs = tuple((name, value) for name, value in json.loads(row["knobs"]))
            made = emit(asked_of(row), emitter, knobs)
            if made is not None:
                yield row["target"], made.source


def function_sources() -> Iterator[tuple[str, str]]:
    """(target, source) of kernels that apply each function of kvc.functions, in f32 and bf16, as every rule of every
    target writes them for the canonical spec."""
    from kvc.arch import DEFAULT_ARCH, arch
    from kvc.emitter import Task, targets
    from kvc.functions import FUNCTIONS
    from kvc.model.languages import LANGUAGES
    from kvc.model.lift import emit
    from kvc.text import parse_kernel

    for name, function in FUNCTIONS.items():
        if function.arity > 2 or function.result not in ("same", "float"):
            continue
        for dtype in ("f32", "bf16"):
            inputs = ", ".join(
                f"{x}: {dtype}[i=64,j=96]" if x == "x" else f"{x}: {dtype}[i,j]" for x in "xz"[: function.arity]
            )
            args = ", ".join(f"{x}[i,j]" for x in "xz"[: function.arity])
            text = f"kernel k({inputs}) -> (y: {dtype}[i,j]) {{\n  y[i,j] = {name}({args})\n}}"
            try:
                asked = Asked(Task(parse_kernel(text), arch(DEFAULT_ARCH)))
            except KvcError:
                continue  # an infix function, which is no call in the text
            for target in LANGUAGES:
                for emitter in targets()[target].emitters():
                    if emitter.supports(asked.canonical_task).ok:
                        made = emit(asked, emitter, emitter.space(asked.canonical_task).default)
                        if made is not None:
                            yield target, made.source
