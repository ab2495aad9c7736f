"""A server with the OpenAI interface that gives the answers of a script, also those that real ones give rarely."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """`body`: a dict as JSON, bytes as they are. `delay_s` comes before the first byte."""

    body: Any
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0


def said(text: str | None, reason: str = "stop", usage: tuple[int, int] | None = (100, 10)) -> Reply:
    """A usual answer."""
    body: dict[str, Any] = {
        "id": "1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}],
    }  # fmt: skip
    if usage:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return Reply(body)


@dataclass
class Scripted:
    url: str
    replies: list[Reply]
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.url}#m"


@contextmanager
def scripted(replies: Sequence[Reply]) -> Iterator[Scripted]:
    """Serves each reply once; afterwards the last one for ever."""
    state = Scripted("", list(replies))
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                state.asked.append(body)
                reply = state.replies.pop(0) if len(state.replies) > 1 else state.replies[0]
            time.sleep(reply.delay_s)
            data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in (("content-type", "application/json"), *reply.headers):
                self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that ran out of patience is part of the script."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
