"""From a verified candidate to the answer that a model learns: numbers become expressions over the sizes.

A number of a kernel says nothing about where it comes from: 32 may be an extent, a tile or a padding. So the rule that
wrote the kernel is asked again, once with extents that know their names (kvc.model.trace), and for the same spec with
other sizes: kernels that come out alike but for their numbers are witnesses, and for a number that lost its name an
expression has to fit at all of them. Every lifted answer is assembled again and must give the candidate back, token for
token.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from kvc.diagnostics import KvcError
from kvc.emitter import Candidate, Emitter, Knob, Launch
from kvc.kernel import KernelSpec, Size
from kvc.model.frame import NO_HELPERS, Frame, Run, assemble, needed, parse
from kvc.model.languages import Language, language, paragraphs, without_header
from kvc.model.prompt import Asked, spec_text
from kvc.model.sizes import NotAFrame, evaluate
from kvc.model.solve import Solver, domains_of
from kvc.model.trace import MARK, traced_knobs, traced_task, tracing

_NUMBER = re.compile(r"(?<![\w.$])\d+(?=LL\b|[^\w.]|\.(?!\d)|$)")
_FLOAT = re.compile(r"(?<![\w.$])\d+\.?\d*(?:e[-+]?\d+)?f?(?![\w.])")
#: A constant that has the name of a knob; it says the knob, whatever the witnesses had to tell.
_KNOB_LINE = re.compile(r"\b([A-Z][A-Z_0-9]*) = (\d+);")
#: What a rule may raise for sizes that contradict its spec; such a variant is no witness.
_CONTRADICTIONS = (KvcError, ValueError, ArithmeticError, LookupError, AssertionError)
WITNESSES, KNOB_WITNESSES = 3, 2
#: Numbers below this are as they are: a model can count so far. Those of COMMON are blocks and tiles.
NEAR = 17
COMMON = (32, 64, 128, 256, 512, 1024)
#: Other sizes at which the same answer is looked for.
ALIKE = 3
_EXPRESSION = re.compile(r"(\$\w*\((?:[^()]|\([^()]*\))*\))")


@dataclass(frozen=True)
class Witness:
    """The same kernel at other sizes or knobs: its numbers in order, those of the launches first. `alike`: whether the
    text is the same but for numbers; otherwise only the launches count."""

    asked: Asked
    candidate: Candidate
    numbers: list[int]
    alike: bool

    @property
    def knobs(self) -> dict[str, int]:
        return _integers(self.candidate.knobs)

    @property
    def sizes(self) -> dict[str, int]:
        return self.asked.sizes


@dataclass(frozen=True)
class Lifted:
    """An answer, and how sure it is: `witnesses` other sizes stood behind it (0: numbers are as in the source)."""

    asked: Asked
    target: str
    frame: Frame
    witnesses: int
    alike: tuple[Asked, ...] = ()  # the spec at other sizes, for which the rule's answer is the same text

    @property
    def answer(self) -> str:
        return self.frame.text()


def lift(candidate: Candidate, emitter: Emitter, seed: int = 0, others: int = ALIKE) -> Lifted:
    """The answer of a rule's candidate for a canonical task (`Asked.canonical_task`). NotAFrame where it cannot be put
    into a frame that gives it back. `others`: for how many other sizes to look whether the answer is the same."""
    asked = Asked(candidate.task)
    lang = language(candidate.target)
    base = _plain(candidate, lang)
    origins = _origins(candidate, emitter, base, lang)
    if _is_explained(candidate, base, asked, origins):
        frame = _lifted(candidate, base, asked, lang, [], origins)
        lifted = Lifted(asked, candidate.target, frame, 0)
        if is_exact(lifted, candidate):
            alike = list(_alike(candidate, emitter, base, lang, seed, others))
            return replace(lifted, witnesses=len(alike), alike=tuple(_also(lifted, candidate, alike)))
    witnesses = list(_witnesses(candidate, emitter, base, lang, seed))
    if any(w.alike for w in witnesses) or any(origins):
        frame = _lifted(candidate, base, asked, lang, witnesses, origins)
        lifted = Lifted(asked, candidate.target, frame, sum(w.alike for w in witnesses))
        if is_exact(lifted, candidate):
            return replace(lifted, alike=tuple(_also(lifted, candidate, witnesses))[:others])
    plain = Lifted(asked, candidate.target, _with_constants(base, asked, lang), 0)
    if not is_exact(plain, candidate):
        raise NotAFrame(f"{candidate.origin.emitter}: the frame does not give the candidate back")
    return plain


def _is_explained(candidate: Candidate, base: Frame, asked: Asked, origins: Sequence[str | None]) -> bool:
    """Whether every number has an origin, or is one that a model can copy: small, a power of two that no size is, in
    the prompt, a knob. A number of the launches needs an origin that follows the knobs."""
    _, numbers, first = _numbers(base)
    copied = {int(n) for n in re.findall(r"\d+", spec_text(asked))} | set(_integers(candidate.knobs).values())
    return all(
        origin is not None or n < NEAR or (n in copied if at >= first else n in COMMON)
        or (n in COMMON and n not in asked.sizes.values())
        for at, (n, origin) in enumerate(zip(numbers, origins, strict=True))
    )  # fmt: skip


def _also(lifted: Lifted, candidate: Candidate, witnesses: Sequence[Witness]) -> Iterator[Asked]:
    """The other sizes for which the very same answer gives what the rule writes there."""
    for w in witnesses:
        if w.alike and w.candidate.knobs == candidate.knobs and is_exact(replace(lifted, asked=w.asked), w.candidate):
            yield w.asked


def is_exact(lifted: Lifted, candidate: Candidate) -> bool:
    """Whether the answer's text, read back and assembled, is the candidate: same tokens, launches, scratch, knobs."""
    from kvc.vault.normalize import tokens

    try:
        again = assemble(parse(lifted.answer), lifted.asked, lifted.target, candidate.origin)
    except NotAFrame:
        return False
    launches = tuple(replace(launch, ahead=False) for launch in candidate.launches)  # an answer does not say it
    if (again.launches, again.workspace, again.knobs) != (launches, candidate.workspace, candidate.knobs):
        return False
    return [t for _, t in tokens(again.source, lifted.target)] == [
        t for _, t in tokens(candidate.source, lifted.target)
    ]


def emit(asked: Asked, emitter: Emitter, knobs: tuple[tuple[str, Knob], ...]) -> Candidate | None:
    """What a rule writes for the canonical task under a setting; None for nothing."""
    try:
        return next(iter(emitter.propose(asked.canonical_task, knobs, [], 0)), None)
    except _CONTRADICTIONS:
        return None


# ---------------------------------------------------------------- frames without expressions


def _plain(candidate: Candidate, lang: Language) -> Frame:
    """The frame of a candidate with its numbers as they are."""
    code = lang.head_lines.sub("", without_header(candidate.source, lang.comment))
    if lang.constant_lines is not None:
        code = lang.constant_lines.sub("", code)
    parts = paragraphs(code)
    first = next((n for n, part in enumerate(parts) if lang.kernel.search(part)), len(parts))
    start, names = first, lang.helper_names
    while start and parts[start - 1] in names:  # those right before the kernels; others stay as text, to keep the order
        start -= 1
    uses = [names[part] for part in parts[start:first]]
    parts = [*parts[:start], *parts[first:]]
    shared = dict(_shared_options(candidate.knobs, lang))
    runs = tuple(_run(launch, shared, candidate.task.arch.wave_size, lang) for launch in candidate.launches)
    scratch = tuple((s.name, s.dtype, str(s.numel)) for s in candidate.workspace)
    body = "\n\n".join(parts)
    implied = list(needed(body, lang))
    uses = [] if implied == uses else uses or list(NO_HELPERS)  # what is implied need not be said
    return Frame(candidate.schedule, candidate.knobs, scratch, runs, tuple(uses), body)


def _shared_options(knobs: Sequence[tuple[str, object]], lang: Language) -> Iterator[tuple[str, object]]:
    return ((k, v) for k, v in knobs if k in lang.options)


def _run(launch: Launch, shared: dict[str, object], wave: int, lang: Language) -> Run:
    grid = [str(g) for g in launch.grid]
    while len(grid) > 1 and grid[-1] == "1":
        grid.pop()
    own = tuple((k, v) for k, v in launch.options if shared.get(k) != v)
    warps = dict(launch.options).get("num_warps")
    implied = isinstance(warps, int) and launch.block == (warps * wave, 1, 1)
    lds = str(launch.dynamic_lds) if launch.dynamic_lds else ""
    return Run(launch.kernel, launch.args, tuple(grid), "" if implied else str(launch.block[0]), lds, own)


# ---------------------------------------------------------------- origins


def _origins(candidate: Candidate, emitter: Emitter, base: Frame, lang: Language) -> list[str | None]:
    """For each number of `_numbers` the expression that the rule made it by; None where it lost its origin."""
    skeleton, numbers, _ = _numbers(base)
    nothing: list[str | None] = [None] * len(numbers)
    with tracing() as trace:
        task = traced_task(replace(candidate.task, spec=Asked(candidate.task).spec))
        try:
            made = next(iter(emitter.propose(task, traced_knobs(candidate.knobs), [], 0)), None)
        except _CONTRADICTIONS:
            return nothing
        if made is None:
            return nothing
        frame = _plain(made, lang)
        texts = [*_launch_texts(frame), frame.body]
    marked = re.compile(f"{MARK.pattern}|{_NUMBER.pattern}")
    if _blank(marked.sub("0", "\n".join(texts))) != _blank("\n".join(skeleton[:-1])):
        return nothing
    found = [trace.expression(m) if m[1] else None for text in texts for m in marked.finditer(text)]
    if len(found) != len(numbers):
        return nothing
    names = asked_names(candidate)
    shown = {int(n) for n in re.findall(r"\d+", spec_text(Asked(candidate.task)))}
    return [
        t if t is not None and _is_value(t, n, names) and _is_plain(t, shown) else None
        for t, n in zip(found, numbers, strict=True)
    ]


def _is_plain(text: str, shown: Collection[int]) -> bool:
    """Whether a model can write the numbers within an expression: small ones, powers of two, those of its prompt."""
    return all(n < NEAR or n in COMMON or n in shown for n in map(int, re.findall(r"(?<!\w)\d+(?!\w)", text)))


def _blank(text: str) -> str:
    return re.sub(r"\s", "", text)


def asked_names(candidate: Candidate) -> dict[str, int]:
    """What an expression of an answer may name: knobs and sizes."""
    return _integers(candidate.knobs) | Asked(candidate.task).sizes


def _is_value(text: str, number: int, names: Mapping[str, int]) -> bool:
    try:
        return evaluate(text, names) == number
    except NotAFrame:
        return False


# ---------------------------------------------------------------- witnesses


def _launch_texts(frame: Frame) -> list[str]:
    return [s[2] for s in frame.scratch] + [g for run in frame.runs for g in run.grid] + [r.block for r in frame.runs]


def _numbers(frame: Frame) -> tuple[list[str], list[int], int]:
    """A frame's texts without their numbers, the numbers in order, and how many of them belong to the launches."""
    skeleton: list[str] = []
    numbers: list[int] = []
    first = 0
    for text in [*_launch_texts(frame), frame.body]:
        first = len(numbers)
        skeleton.append(_NUMBER.sub("0", text))
        numbers += [int(n) for n in _NUMBER.findall(text)]
    return [*skeleton, repr((frame.schedule, frame.uses))], numbers, first


def _shape(frame: Frame) -> list[object]:
    """What two frames must share for the numbers of their launches to stand for each other."""
    return [
        frame.schedule,
        [s[:2] for s in frame.scratch],
        [(r.kernel, r.args, r.lds, len(r.grid), bool(r.block)) for r in frame.runs],
    ]


def _integers(knobs: Sequence[tuple[str, object]]) -> dict[str, int]:
    return {k: v for k, v in knobs if isinstance(v, int) and not isinstance(v, bool)}


def _witnesses(candidate: Candidate, emitter: Emitter, base: Frame, lang: Language, seed: int) -> Iterator[Witness]:
    """The same kernel at other sizes, so that every axis varies that can, and under other knobs."""
    task = candidate.task
    witness = partial(_witness, candidate, emitter, base, lang)
    varied: set[str] = set()
    found = 0
    free = [s.name for s in task.spec.sizes if s.size is not None and s.size > 1]
    for spec, changed in _variants(task.spec, free, seed):
        if set(changed) <= varied and (found >= WITNESSES or len(changed) == 1):
            continue  # it would show nothing new
        made = witness(spec, candidate.knobs)
        if made is not None and made.alike:
            found += 1
            varied |= set(changed)
            yield made
        if found >= WITNESSES and varied >= set(free):
            break
    yield from _other_knobs(candidate, emitter, witness, seed)


def _witness(
    candidate: Candidate, emitter: Emitter, base: Frame, lang: Language, spec: KernelSpec,
    knobs: tuple[tuple[str, Knob], ...],
) -> Witness | None:  # fmt: skip
    """What the rule writes for another spec or setting, where it can stand for the candidate."""
    asked = Asked(replace(candidate.task, spec=spec))
    other = emit(asked, emitter, knobs)
    if other is None:
        return None
    frame = _plain(other, lang)
    again, numbers, _ = _numbers(frame)
    alike = again == _numbers(base)[0]
    if not alike and _shape(frame) != _shape(base):
        return None
    return Witness(asked, other, numbers, alike)


def _alike(
    candidate: Candidate, emitter: Emitter, base: Frame, lang: Language, seed: int, most: int
) -> Iterator[Witness]:
    """At most `most` other sizes at which the kernel is alike, of twice as many that are tried."""
    free = [s.name for s in candidate.task.spec.sizes if s.size is not None and s.size > 1]
    found = 0
    for spec, _ in islice(_variants(candidate.task.spec, free, seed), 2 * most):
        made = _witness(candidate, emitter, base, lang, spec, candidate.knobs)
        if made is not None and made.alike:
            found += 1
            yield made
        if found == most:
            return


def _other_knobs(
    candidate: Candidate,
    emitter: Emitter,
    witness: Callable[[KernelSpec, tuple[tuple[str, Knob], ...]], Witness | None],
    seed: int,
) -> Iterator[Witness]:
    """Witnesses for the same spec under a few other settings that have the same knobs."""
    names = [k for k, _ in candidate.knobs]
    rng = random.Random(f"{candidate.task.spec.hash}:{candidate.knobs}:{seed}")
    settings = [c for c in emitter.space(candidate.task).configurations if c != candidate.knobs]
    rng.shuffle(settings)
    found = 0
    for knobs in settings[: 2 * KNOB_WITNESSES]:
        made = witness(candidate.task.spec, knobs) if [k for k, _ in knobs] == names else None
        if made is not None:
            found += 1
            yield made
        if found == KNOB_WITNESSES:
            return


def _variants(spec: KernelSpec, free: list[str], seed: int) -> Iterator[tuple[KernelSpec, list[str]]]:
    """The spec at other sizes: all axes by odd factors, the large ones alone, axes of one extent by one factor (what
    coincides stays so), then one at a time. Odd factors keep what the choice of a schedule hangs on: the powers of two
    that divide a size."""
    rng = random.Random(f"{spec.hash}:{seed}")
    for least in (2, 2, 9, 9):
        some = [a for a in free if spec.extent(a) >= least]
        factors = {a: rng.choice((1, 3, 5, 7)) for a in some}
        if any(f > 1 for f in factors.values()):
            yield _scaled(spec, factors), [a for a, f in factors.items() if f > 1]
    for least in (2, 2, 9, 9):
        by_extent = {spec.extent(a): rng.choice((1, 3, 5, 7)) for a in free if spec.extent(a) >= least}
        factors = {a: by_extent[spec.extent(a)] for a in free if spec.extent(a) >= least}
        if any(f > 1 for f in factors.values()):
            yield _scaled(spec, factors), [a for a, f in factors.items() if f > 1]
    for axis in free:
        yield _scaled(spec, {axis: 3}), [axis]
        extent = spec.extent(axis)
        step = 2 * (extent & -extent)
        yield _resized(spec, {axis: extent + step}), [axis]


def _scaled(spec: KernelSpec, factors: dict[str, int]) -> KernelSpec:
    return _resized(spec, {a: f * spec.extent(a) for a, f in factors.items()})


def _resized(spec: KernelSpec, extents: dict[str, int]) -> KernelSpec:
    sizes = tuple(Size(s.name, extents[s.name]) if s.name in extents else s for s in spec.sizes)
    return replace(spec, sizes=sizes)


# ---------------------------------------------------------------- expressions


def _lifted(
    candidate: Candidate, base: Frame, asked: Asked, lang: Language, witnesses: Sequence[Witness],
    origins: Sequence[str | None],
) -> Frame:  # fmt: skip
    """The frame with each number that follows from sizes and knobs as an expression: the one that the rule made it by,
    else one that fits all witnesses."""
    _, numbers, first = _numbers(base)
    domains, wave = domains_of(asked.spec), asked.task.arch.wave_size
    own = Witness(asked, candidate, numbers, True)
    groups = [
        [own, *witnesses],
        [own, *(w for w in witnesses if w.alike)],
        [own, *(w for w in witnesses if w.alike and w.knobs == own.knobs)],
    ]
    groups = [g for n, g in enumerate(groups) if len(g) > 1 and g not in groups[:n]]
    solvers = [Solver([w.sizes for w in g], domains, [w.knobs for w in g], wave) for g in groups]
    position = iter(range(len(numbers)))
    known: dict[tuple[tuple[int, ...], int], str | None] = {}

    def expression(at: int) -> str | None:
        for n, (group, solver) in enumerate(zip(groups, solvers, strict=True)):
            if at >= first and not all(w.alike for w in group):
                continue
            key = (tuple(w.numbers[at] for w in group), n)
            if key not in known:
                known[key] = solver.solve(key[0], at < first)
            if known[key] is not None:
                return known[key]
        return None

    def replaced(found: re.Match[str]) -> str:
        at = next(position)
        text = origins[at] or expression(at)
        if text is None:
            return found[0]
        is_glued = found.end() < len(found.string) and found.string[found.end()].isalnum()  # 64LL
        return f"$({text})" if is_glued else f"${_wrapped(text)}"

    texts = [_NUMBER.sub(replaced, text) for text in [*_launch_texts(base), base.body]]
    blocks = range(len(texts) - 1 - len(base.runs), len(texts) - 1)
    texts[:-1] = [_block_knob(text, own.knobs) if n in blocks else text for n, text in enumerate(texts[:-1])]
    texts[-1] = _KNOB_LINE.sub(lambda m: f"{m[1]} = ${m[1]};" if own.knobs.get(m[1]) == int(m[2]) else m[0], texts[-1])
    texts[-1] = _literals(texts[-1], asked)
    return _with_constants(_with_texts(base, texts), asked, lang)


def _block_knob(text: str, knobs: Mapping[str, int]) -> str:
    """`$BLOCK` for a block of as many threads, whether or not a witness had another: one way to say it."""
    return "$BLOCK" if text.isdigit() and knobs.get("BLOCK") == int(text) else text


def _literals(body: str, asked: Asked) -> str:
    """The body with an offset that is a literal of the spec's indices times a stride as that product: `$(100*15)`."""
    spec = asked.spec
    if not spec.is_static:
        return body
    strides = {s for o in (*spec.inputs, *spec.outputs) for s in spec.strides_of(o.name)}
    shown = {int(n) for n in re.findall(r"\d+", spec_text(asked))}
    products = {n * s: f"$({n}*{s})" for n in sorted(shown) for s in sorted(strides) if n > 1 and s > 1}
    near = {p + k: f"{text[:-1]}+{k})" for p, text in products.items() for k in range(1, NEAR)}

    def replaced(found: re.Match[str]) -> str:
        value = int(found[0])
        is_plain = value < NEAR or value in shown or (value <= 1024 and value & (value - 1) == 0)
        return found[0] if is_plain else (near | products).get(value, found[0])

    parts = _EXPRESSION.split(body)  # what stands between expressions, and the expressions
    return "".join(part if n % 2 else _NUMBER.sub(replaced, part) for n, part in enumerate(parts))


def _with_texts(frame: Frame, texts: list[str]) -> Frame:
    """The frame with its texts in the order of `_launch_texts`, then the body."""
    it = iter(texts)
    scratch = tuple((name, dtype, next(it)) for name, dtype, _ in frame.scratch)
    grids = [tuple(next(it) for _ in run.grid) for run in frame.runs]
    blocks = [next(it) for _ in frame.runs]
    runs = tuple(replace(r, grid=g, block=b) for r, g, b in zip(frame.runs, grids, blocks, strict=True))
    return replace(frame, scratch=scratch, runs=runs, body=next(it))


def _wrapped(expression: str) -> str:
    """Names and single calls stand alone; everything else in parentheses."""
    return expression if re.fullmatch(r"\w+(\([^()]*\))?", expression) else f"({expression})"


def _with_constants(frame: Frame, asked: Asked, lang: Language) -> Frame:
    """The frame with the long constants of the spec by name."""
    texts = {lang.float_text(value): name for name, value in asked.constants.items()}
    body = _FLOAT.sub(lambda m: f"${texts[m[0]]}" if m[0] in texts else m[0], frame.body)
    return replace(frame, body=body)
