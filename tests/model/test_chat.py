"""The chat client against a scripted server: retries, useless answers, rate limits, accounts, caps."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kvc.diagnostics import KvcError
from kvc.model.chat import Accounts, Answer, Chat, Ledger, Service
from kvc.model.infer.generate import Sampling

from tests.model.scripted import Reply, said, scripted

pytest.importorskip("openai")
ASKED = [{"role": "user", "content": "x" * 300}]
ERROR = {"error": {"message": "come back later", "type": "t"}}


def ask(replies: list[Reply], more: str = "", naps: list[float] | None = None) -> tuple[Answer, Accounts]:
    with scripted(replies) as server:
        chat = Chat(Service.parse(f"{server.address}?tries=3{more}"), (naps if naps is not None else []).append)
        return chat.ask(ASKED, Sampling(), 7), chat.ledger.read()


USELESS = {
    "no JSON": Reply(b"<html>busy</html>"),
    "JSON cut short": Reply(b'{"choices": [{"mess'),
    "not even an object": Reply([1, 2]),
    "another content type": Reply(b"hello", headers=(("content-type", "text/plain"),)),
    "no choices": Reply({"id": "1", "choices": []}),
    "no message": Reply({"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "text of null": said(None),
    "blank text": said(" \n"),
    "server error": Reply(ERROR, 500),
    "overloaded": Reply(ERROR, 503),
}


@pytest.mark.parametrize("first", USELESS.values(), ids=USELESS)
def test_a_useless_answer_is_asked_for_again(first: Reply) -> None:
    answer, accounts = ask([first, said("fine")])
    assert (answer.text, answer.is_whole) == ("fine", True)
    spent = 220 if isinstance(first.body, dict) and "usage" in first.body else 110  # an empty answer costs, too
    assert (accounts.requests, accounts.failed, accounts.tokens, accounts.held) == (2, 1, spent, {})


def test_a_request_that_times_out_is_asked_again() -> None:
    slow = Reply({}, delay_s=1.0)
    assert ask([slow, said("fine")], "&timeout_s=0.3")[0].text == "fine"


def test_a_rate_limit_is_waited_for_as_long_as_it_says() -> None:
    naps: list[float] = []
    ask([Reply(ERROR, 429, (("retry-after", "17"),)), Reply(ERROR, 429), said("fine")], naps=naps)
    assert naps == [17.0, 1.0]


def test_no_answer_in_all_tries_may_pass_and_a_wrong_key_will_not() -> None:
    with pytest.raises(KvcError, match=r"KVC0503.*no choices.*3 tries") as passing:
        ask([USELESS["no choices"]])
    with pytest.raises(KvcError, match=r"KVC0503.*status 401: .*later") as lasting:
        ask([Reply(ERROR, 401)])
    with pytest.raises(KvcError, match=r"KVC0503.*status 400") as one:
        ask([Reply(ERROR, 400)])
    assert [e.value.diagnostic.details["scope"] for e in (passing, lasting, one)] == ["passing", "service", "request"]


def test_a_server_that_is_not_there_is_a_diagnostic() -> None:
    chat = Chat(Service.parse("http://127.0.0.1:9/v1#m?tries=2"), [].append)
    with pytest.raises(KvcError, match=r"KVC0503.*2 tries"):
        chat.ask(ASKED, Sampling(), 0)


def test_a_cut_answer_says_so_and_tokens_are_estimated_where_none_are_counted() -> None:
    answer, accounts = ask([said("half of a", "length", usage=None)])
    assert not answer.is_whole
    assert accounts.estimated == 1 and accounts.prompt_tokens >= 100 and accounts.completion_tokens >= 3


def test_the_cap_holds_over_processes_and_runs(tmp_path: Path) -> None:
    """Prices are such that a request reserves 0.62 dollars at most and costs 0.12."""
    ledger = tmp_path / "accounts.json"
    more = f"?tokens=500&price_in=1000&price_out=1000&cap_usd=1&ledger={ledger}"
    with scripted([said("fine", usage=(110, 10))]) as server:
        for _ in range(4):  # a new client each time, as a resumed build has
            Chat(Service.parse(server.address + more)).ask(ASKED, Sampling(), 0)
        with pytest.raises(KvcError, match=r"KVC0504.*\$0\.4800"):
            Chat(Service.parse(server.address + more)).ask(ASKED, Sampling(), 0)
        assert len(server.asked) == 4
    assert json.loads(ledger.read_text())["by_role"] == {"generator": 480}


def test_reservations_of_many_threads_never_break_a_cap(tmp_path: Path) -> None:
    service = Service.parse(f"http://x/v1#m?cap_tokens=1000&ledger={tmp_path / 'l'}")

    def take(_: int) -> bool:
        try:
            return bool(Ledger(service).reserve(90, 0.0)[0])
        except KvcError:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(40))) == 11


def test_a_reservation_of_a_dead_process_lapses() -> None:
    now = [0.0]
    ledger = Ledger(Service.parse("http://x/v1#m?cap_tokens=100&timeout_s=10"), lambda: now[0])
    assert ledger.reserve(80, 0.0)[0]
    with pytest.raises(KvcError, match=r"KVC0504"):
        ledger.reserve(80, 0.0)
    now[0] = 71.0
    assert ledger.reserve(80, 0.0)[0]


def test_rate_limits_count_requests_and_tokens_of_the_last_minute() -> None:
    now = [100.0]
    ledger = Ledger(Service.parse("http://x/v1#m?rpm=3&tpm=100"), lambda: now[0])
    assert ledger.reserve(50, 0.0)[0]
    now[0] = 110.0
    assert ledger.reserve(40, 0.0)[0]
    assert ledger.reserve(40, 0.0) == ("", 50.0)  # tokens: when the first has left the window
    assert ledger.reserve(70, 0.0) == ("", 60.0)
    assert ledger.reserve(5, 0.0)[0]
    assert ledger.reserve(1, 0.0) == ("", 50.0)  # requests
    now[0] = 171.0
    assert ledger.reserve(500, 0.0)[0]  # larger than the limit: alone


@pytest.mark.parametrize(
    "address", ["http://x/v1", "#m", "http://x#m?turn=3", "http://x#m?tries=few", "http://x#m?tries=0"]
)
def test_bad_addresses_are_diagnostics(address: str) -> None:
    with pytest.raises(KvcError, match=r"KVC0106"):
        Service.parse(address)
