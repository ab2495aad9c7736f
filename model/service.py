"""The emitter behind `openai:`: a language-model service in three roles, told after each attempt what the gates said.

The generator writes a frame. The verdict is the gates' alone; the evaluator is shown kernel and verdict and says what
in the kernel explains it, and the reflector turns the attempts so far into instructions for the next one. Each role
sees the same task text as every other writer (kvc.model.prompt). A verified kernel ends the matter, or, where the
caller goes on asking, the same roles look for a faster one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvc.diagnostics import Diagnostic, KvcError
from kvc.emitter import Candidate, Knob, Task
from kvc.model.chat import Answer, Chat, Message
from kvc.model.emitter import Budget, ModelEmitter, seed_of
from kvc.model.infer.generate import Sampling
from kvc.model.languages import language, without_header
from kvc.model.prompt import Asked, prompt
from kvc.model.writer import ServerWriter
from kvc.verify.verdict import Rejected, Verdict, Verified

EVALUATOR = """\
You review a GPU kernel for AMD CDNA that was compiled, executed on several input sets and compared with an oracle.
You get the task in index notation, the kernel, and the verdict. The verdict is a fact. Say in at most 120 words which
statements of the kernel explain it; for a verified kernel, what limits its speed. No code."""
REFLECTOR = """\
You lead the work on a GPU kernel for AMD CDNA. You get the task in index notation and the attempts so far, each with
its verdict and a review. Write at most five short instructions for the next attempt: what to keep, what to change, what
not to try again. No code."""
_WORDS = Sampling(temperature=0.0, most=400)  # of reviews and plans
_SHOWN = 6000  # characters of a kernel or message that a role is shown
_KEPT = 4  # attempts that the reflector sees


@dataclass(frozen=True)
class Attempt:
    """An answer of the generator, its verdict (None while it is not known) and what the evaluator made of it."""

    text: str
    verdict: Verdict | None
    review: str = ""

    def outcome(self, task: Task) -> str:
        """The verdict in words."""
        if self.verdict is None:
            return "not judged: it repeats an earlier attempt"
        if isinstance(self.verdict, Rejected):
            return f"rejected at {self.verdict.stage}: {self.verdict.diagnostic}"[:_SHOWN]
        from kvc.estimate import estimate

        found = estimate(task.spec, task.arch, self.verdict.evidence.counters)
        words = ", ".join(f"{k} {found[k]}" for k in ("floor_us", "counted_us", "bytes", "counted_bytes") if k in found)
        return f"verified. Estimate ({found['bound']}-bound): {words}"


class ServiceEmitter(ModelEmitter):
    """A kvc.emitter.Emitter over a chat service. `propose` raises KVC0503 and KVC0504 as kvc.model.chat does."""

    def __init__(self, name: str, target: str, source: ServerWriter) -> None:
        service = source.chat.service
        sampling = Sampling(temperature=max(service.temperature, 0.0), most=service.tokens)
        super().__init__(name, target, source, Budget(service.turns, sampling))
        self.chat: Chat = source.chat

    def propose(
        self, task: Task, knobs: tuple[tuple[str, Knob], ...], history: Sequence[Any], seed: int
    ) -> Iterator[Any]:
        """Candidates, and a Rejected for an answer that is none; `history` grows by verdicts between turns."""
        asked = Asked(task)
        attempts: list[Attempt] = []
        seen: set[str] = set()
        for turn in range(self._budget.turns):
            number = seed_of(seed, task, turn)
            try:
                answer = self._generate(asked, attempts, turn, number)
            except KvcError as error:
                if error.diagnostic.details.get("scope") != "request":
                    raise
                yield Rejected("propose", error.diagnostic)  # the service refuses this conversation, which only grows
                return
            made = self._read(answer, asked, number)
            if isinstance(made, Rejected):
                yield made
                attempts.append(Attempt(answer.text, made))  # its diagnostic says all that a review could
                continue
            text = without_header(made.source, language(self._target).comment)  # the header names the turn's seed
            if text in seen:
                attempts.append(Attempt(answer.text, None))
                continue
            seen.add(text)
            before = len(history)
            yield made
            verdict = history[before][1] if len(history) > before else None
            attempts.append(self._reviewed(asked, Attempt(answer.text, verdict), number, turn))

    def _read(self, answer: Answer, asked: Asked, number: int) -> Candidate | Rejected:
        made = self.read(answer.text, asked, number)
        if isinstance(made, Rejected) and not answer.is_whole:
            most = self.chat.service.tokens
            return Rejected("propose", Diagnostic("KVC0301", f"the answer was cut at {most} tokens: write less"))
        return made

    # ------------------------------------------------------------ roles
    def _generate(self, asked: Asked, attempts: Sequence[Attempt], turn: int, number: int) -> Answer:
        messages: list[Message] = [{"role": "user", "content": self.text(asked, ())}]
        if attempts:
            last = attempts[-1]
            parts = [f"Verdict: {last.outcome(asked.task)}"]
            parts += [f"Review: {last.review}"] if last.review else []
            plan = self._plan(asked, attempts, number)
            parts += [f"Instructions:\n{plan}"] if plan else []
            wanted = "a faster one" if isinstance(last.verdict, Verified) else "a right one"
            parts.append(f"Write the whole frame again, as {wanted}. Answer with the frame and nothing else.")
            messages.append({"role": "assistant", "content": last.text[:_SHOWN]})
            messages.append({"role": "user", "content": "\n\n".join(parts)})
        warm = self._budget.sampling.temperature if turn else 0.0
        return self.chat.ask(messages, Sampling(warm, most=self._budget.sampling.most), number, "generator")

    def _reviewed(self, asked: Asked, attempt: Attempt, number: int, turn: int) -> Attempt:
        """The attempt with the evaluator's words, where another turn can use them."""
        is_last = turn + 1 == self._budget.turns
        if is_last or attempt.verdict is None or self.chat.service.roles != "full":
            return attempt
        text = self._show(asked, [attempt])
        return Attempt(attempt.text, attempt.verdict, self._words("evaluator", EVALUATOR, text, number))

    def _plan(self, asked: Asked, attempts: Sequence[Attempt], number: int) -> str:
        """The reflector's instructions; one attempt alone has its verdict and review, and needs none."""
        if len(attempts) < 2 or self.chat.service.roles != "full":
            return ""
        return self._words("reflector", REFLECTOR, self._show(asked, attempts[-_KEPT:]), number)

    def _show(self, asked: Asked, attempts: Sequence[Attempt]) -> str:
        parts = [f"Task:\n{prompt(asked, self._target)}"]
        for number, attempt in enumerate(attempts, 1):
            parts.append(f"Attempt {number}:\n{attempt.text[:_SHOWN]}\nVerdict: {attempt.outcome(asked.task)}")
            parts += [f"Review: {attempt.review}"] if attempt.review else []
        return "\n\n".join(parts)

    def _words(self, role: str, system: str, text: str, number: int) -> str:
        """What a role says; "" where the service has nothing to say this once, since a verdict stands without it."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        try:
            return self.chat.ask(messages, _WORDS, number, role).text.strip()[:_SHOWN]
        except KvcError as error:
            if error.code != "KVC0503" or error.diagnostic.details["scope"] == "service":
                raise
            return ""


@cache
def _server(argument: str) -> ServerWriter:
    return ServerWriter(argument)


def openai(target: str, argument: str) -> ServiceEmitter:
    """`openai:URL#MODEL[?SETTING=VALUE&...]` (kvc.model.chat.Service). The name is without settings, so that a record
    says who wrote it and not what it cost."""
    source = _server(argument)
    service = source.chat.service
    return ServiceEmitter(f"openai:{service.url}#{service.model}", target, source)
