"""One chat service with the OpenAI interface: retries, rate limits, token accounting and a cap on what it may cost.

The official client carries the requests. Tries are counted here and not in the client, because an answer can be
useless with status 200 (no choices, no text, no JSON), and because every try, also a failed one, has to pass the rate
limit and the accounts. The accounts are a file that all processes of a machine share, so that a cap holds for a build
and not for each of its workers, and goes on holding when the build is resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from kvc.diagnostics import KvcError
from kvc.model.infer.generate import Sampling

#: Characters a token, for what a prompt will cost before the service has counted it; low, so that a cap errs early.
CHARS_PER_TOKEN = 3
WINDOW_S = 60.0
#: Statuses after which the same request can succeed; the client's own list.
_TRANSIENT = frozenset({408, 409, 425, 429})
#: Statuses that say that this one request is not to be had (too long, refused); others may be.
_THIS_REQUEST = frozenset({400, 413, 422})
MAX_BACKOFF_S = 60.0

Message = dict[str, str]


@dataclass(frozen=True)
class Service:
    """An address: `URL#MODEL`, then `?name=value&...` for any of the fields below.

    `timeout_s`: seconds for one try. `tries`: of one request. `rpm`, `tpm`: requests and tokens a minute, 0 without
    limit. `price_in`, `price_out`: dollars for a million tokens. `cap_usd`, `cap_tokens`: where asking ends, 0 for
    never. `ledger`: file of the accounts, "" for accounts of this process alone. `turns`: attempts at a task. `roles`:
    "full" (generator, evaluator, reflector) or "generator". `tokens`: longest answer; `limit`: what the service calls
    it (newer models: max_completion_tokens). `temperature`: of attempts after the first; negative is not sent."""

    url: str
    model: str
    timeout_s: float = 120.0
    tries: int = 5
    rpm: float = 0.0
    tpm: float = 0.0
    price_in: float = 0.0
    price_out: float = 0.0
    cap_usd: float = 0.0
    cap_tokens: float = 0.0
    ledger: str = ""
    turns: int = 4
    roles: str = "full"
    tokens: int = 4096
    temperature: float = 0.6
    limit: str = "max_tokens"

    @staticmethod
    def parse(address: str) -> Service:
        """KVC0106 for an address that names no model or an unknown or impossible setting."""
        url, _, rest = address.partition("#")
        model, _, query = rest.partition("?")
        if not url or not model:
            raise KvcError("KVC0106", f"openai:{address}", hint="write openai:URL#MODEL, then ?rpm=60&cap_usd=5")
        made = Service(url, model)
        kinds = {f.name: type(getattr(made, f.name)) for f in fields(made) if f.name not in ("url", "model")}
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name not in kinds:
                raise KvcError("KVC0106", f"setting {name!r} of a service", hint=f"one of: {', '.join(kinds)}")
            try:
                value = kinds[name](text)
            except ValueError:
                raise KvcError("KVC0106", f"{name}={text} of a service is no {kinds[name].__name__}") from None
            made = replace(made, **{name: value})
        if made.roles not in ("full", "generator"):
            raise KvcError("KVC0106", f"roles={made.roles}", hint="full or generator")
        if made.limit not in ("max_tokens", "max_completion_tokens"):
            raise KvcError("KVC0106", f"limit={made.limit}", hint="max_tokens or max_completion_tokens")
        if made.tries < 1 or made.turns < 1 or made.tokens < 1 or made.timeout_s <= 0:
            raise KvcError("KVC0106", f"openai:{address}", hint="tries, turns, tokens and timeout_s are positive")
        return made

    def cost_usd(self, prompt: float, completion: float) -> float:
        return (prompt * self.price_in + completion * self.price_out) / 1e6


@dataclass(frozen=True)
class Answer:
    """A text; `is_whole` is False where the service cut it at the longest answer."""

    text: str
    is_whole: bool
    prompt_tokens: int
    completion_tokens: int


@dataclass
class Accounts:
    """What was asked so far. Tokens are the service's count, or an estimate where it sent none (`estimated`)."""

    requests: int = 0
    failed: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    by_role: dict[str, int] = field(default_factory=dict)  # tokens
    held: dict[str, list[float]] = field(default_factory=dict)  # reservation -> tokens, dollars, when it lapses
    recent: list[list[float]] = field(default_factory=list)  # when, tokens

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Ledger:
    """Accounts in a file under a lock, or in memory. A request reserves the most that it can cost, and settles what it
    did cost; a reservation of a process that died lapses."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.time) -> None:
        self._service, self._clock = service, clock
        self._path = Path(service.ledger) if service.ledger else None
        self._memory = Accounts()
        self._lock = threading.Lock()

    def read(self) -> Accounts:
        with self._open() as accounts:
            return accounts

    def reserve(self, tokens: int, usd: float) -> tuple[str, float]:
        """(reservation, 0), or ("", seconds to wait) where a rate limit says so. KVC0504 where a cap would break."""
        with self._open() as accounts:
            now, service = self._clock(), self._service
            accounts.held = {k: v for k, v in accounts.held.items() if v[2] > now}
            held_tokens, held_usd = (sum(v[n] for v in accounts.held.values()) for n in (0, 1))
            spent = f"{accounts.tokens} tokens and ${accounts.usd:.4f} were spent on {service.model}"
            if service.cap_usd and accounts.usd + held_usd + usd > service.cap_usd:
                raise KvcError("KVC0504", spent, hint=f"cap_usd is {service.cap_usd:g}; raise it to go on")
            if service.cap_tokens and accounts.tokens + held_tokens + tokens > service.cap_tokens:
                raise KvcError("KVC0504", spent, hint=f"cap_tokens is {service.cap_tokens:g}; raise it to go on")
            accounts.recent = [r for r in accounts.recent if r[0] > now - WINDOW_S]
            wait = self._wait(accounts.recent, tokens, now)
            if wait > 0:
                return "", wait
            key = uuid.uuid4().hex[:12]
            accounts.held[key] = [tokens, usd, now + service.timeout_s + WINDOW_S]
            accounts.recent.append([now, tokens])
            return key, 0.0

    def _wait(self, recent: Sequence[Sequence[float]], tokens: int, now: float) -> float:
        """Seconds until the oldest requests have left the window so far that this one fits. A request that is larger
        than the limit itself goes alone."""
        service, left, wait = self._service, list(recent), 0.0
        while left:
            many = service.rpm and len(left) + 1 > service.rpm
            much = service.tpm and sum(r[1] for r in left) + tokens > service.tpm
            if not (many or much):
                break
            wait = left.pop(0)[0] + WINDOW_S - now
        return max(wait, 0.0)

    def settle(
        self, key: str, role: str, answer: Answer | None, *, failed: bool = False, estimated: bool = False
    ) -> None:
        """Close a reservation; None: no answer came, which services do not charge."""
        with self._open() as accounts:
            accounts.held.pop(key, None)
            accounts.requests += 1
            accounts.failed += failed or answer is None
            if answer is None:
                return
            accounts.estimated += estimated
            accounts.prompt_tokens += answer.prompt_tokens
            accounts.completion_tokens += answer.completion_tokens
            accounts.usd += self._service.cost_usd(answer.prompt_tokens, answer.completion_tokens)
            accounts.by_role[role] = accounts.by_role.get(role, 0) + answer.prompt_tokens + answer.completion_tokens

    @contextlib.contextmanager
    def _open(self) -> Iterator[Accounts]:
        """The accounts, kept when the block ends well."""
        with self._lock:
            if self._path is None:
                yield self._memory
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            with os.fdopen(descriptor, "r+", encoding="utf-8") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                text = stream.read()
                try:
                    accounts = Accounts(**json.loads(text)) if text else Accounts()
                except (ValueError, TypeError) as error:
                    raise KvcError("KVC0803", f"{self._path} holds no accounts: {error}") from None
                yield accounts
                stream.seek(0)
                stream.truncate()
                stream.write(json.dumps(asdict(accounts)))
                stream.flush()


class Useless(Exception):
    """An answer with status 200 that holds nothing to read. It costs what it says all the same."""

    def __init__(self, why: str, cost: Answer) -> None:
        super().__init__(why)
        self.cost = cost


class Chat:
    """Asks one service. `sleep` is there for tests."""

    def __init__(self, service: Service, sleep: Callable[[float], None] = time.sleep) -> None:
        try:
            from openai import OpenAI
        except ImportError:
            raise KvcError("KVC0108", "openai is not installed", hint="pip install 'kvc[model]'") from None
        self.service, self.ledger, self._sleep = service, Ledger(service), sleep
        self._client = OpenAI(
            base_url=service.url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            timeout=service.timeout_s,
            max_retries=0,
        )

    def ask(self, messages: Sequence[Message], sampling: Sampling, seed: int, role: str = "generator") -> Answer:
        """The answer to a conversation. KVC0503 where none came: `details["scope"]` is "passing" after all tries,
        "request" where this one is refused (too long), "service" where any would be. KVC0504 where a cap is reached."""
        most = min(sampling.most, self.service.tokens)
        expected = sum(len(m["content"]) for m in messages) // CHARS_PER_TOKEN + 8 * len(messages)
        problem = ""
        for number in range(self.service.tries):
            key = self._admitted(expected + most, self.service.cost_usd(expected, most))
            cost: Answer | None = None
            failed, estimated = True, False
            try:
                cost, estimated = self._once(messages, replace(sampling, most=most), seed + number, expected)
                failed = False
                return cost
            except Useless as useless:
                problem, wait, cost = str(useless), _backoff(number), useless.cost
            except _errors() as error:
                problem, wait = self._failure(error, number)
            finally:
                self.ledger.settle(key, role, cost, failed=failed, estimated=estimated)
            if number + 1 < self.service.tries:
                self._sleep(wait)
        raise KvcError("KVC0503", f"{self.service.model}: {problem} ({self.service.tries} tries)", scope="passing")

    def _admitted(self, tokens: int, usd: float) -> str:
        while True:
            key, wait = self.ledger.reserve(tokens, usd)
            if key:
                return key
            self._sleep(wait)

    def _once(self, messages: Sequence[Message], sampling: Sampling, seed: int, expected: int) -> tuple[Answer, bool]:
        sent: Any = [dict(m) for m in messages]
        more: dict[str, Any] = {self.service.limit: sampling.most}
        if self.service.temperature >= 0:
            more |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
        reply: Any = self._client.chat.completions.create(
            model=self.service.model, messages=sent, seed=seed & 0x7FFFFFFF, **more
        )
        usage = getattr(reply, "usage", None)
        counts: list[Any] = [getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens")]
        counted = all(isinstance(c, int) and c >= 0 for c in counts)
        choices: Any = getattr(reply, "choices", None)
        message = getattr(choices[0], "message", None) if choices else None
        text = getattr(message, "content", None)
        if not isinstance(text, str) or not text.strip():
            what = "text" if choices else "choices"
            raise Useless(f"the answer holds no {what}", Answer("", True, *(counts if counted else (0, 0))))
        if not counted:
            counts = [expected, len(text) // CHARS_PER_TOKEN + 1]
        return Answer(text, choices[0].finish_reason != "length", counts[0], counts[1]), not counted

    def _failure(self, error: Exception, number: int) -> tuple[str, float]:
        """(what happened, seconds to wait) of a failure that may pass; KVC0503 for one that will not."""
        from openai import APIStatusError, APITimeoutError

        if isinstance(error, APITimeoutError):
            return f"no answer within {self.service.timeout_s:g} s", _backoff(number)
        if isinstance(error, APIStatusError):
            status = error.status_code
            if status not in _TRANSIENT and status < 500:
                raise KvcError(
                    "KVC0503", f"{self.service.model}: status {status}: {_first(error)}",
                    hint="" if status in _THIS_REQUEST else "check the address, the model's name and OPENAI_API_KEY",
                    scope="request" if status in _THIS_REQUEST else "service",
                ) from None  # fmt: skip
            return f"status {status}: {_first(error)}", _asked_wait(error.response.headers) or _backoff(number)
        if isinstance(error, json.JSONDecodeError):
            return "the answer is no JSON", _backoff(number)
        return _first(error), _backoff(number)


def _errors() -> tuple[type[Exception], ...]:
    from openai import OpenAIError

    # The client lets the decoder's own error through where a body with status 200 is no JSON.
    return (OpenAIError, json.JSONDecodeError)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _backoff(number: int) -> float:
    return min(0.5 * 2.0**number, MAX_BACKOFF_S)


def _asked_wait(headers: Any) -> float:
    """Seconds of a Retry-After header, 0 where there is none that is a number."""
    try:
        return min(max(float(headers.get("retry-after", "0")), 0.0), 10 * MAX_BACKOFF_S)
    except ValueError:
        return 0.0
