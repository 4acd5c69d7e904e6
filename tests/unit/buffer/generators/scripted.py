"""HTTP servers that a test writes: an engine that says what it is told to, and a buffer that takes what it gets."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = Callable[[str, Any], tuple[int, Any]]


@contextlib.contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """The URL of a server that answers `POST path` with `answers(path, body)`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if isinstance(answers, Buffer):
                answers.tokens.append(self.headers["Authorization"])
            status, value = answers(self.path, body)
            told = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def completion(text: str, finish_reason: str = "stop", *, num_tokens: int | None = None, version: int = 0, **fields: Any) -> dict[str, Any]:
    """A reply of one token for each letter."""
    ids = [ord(letter) for letter in text]
    count = len(ids) if num_tokens is None else num_tokens
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish_reason,
        "token_ids": ids,
        "logprobs": {"content": [{"token": letter, "logprob": -0.5, "bytes": None, "top_logprobs": []} for letter in text]},
        "versions": [{"policy": "p", "version": version, "count": len(ids), "mixed_kv": False, "evidence": "digest"}] if ids else [],
    }
    usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
    shape = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage, "prompt_token_ids": [7]}
    return shape | fields


class Buffer:
    """Keeps the items that are written to it."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, Any]] = []
        """Answers to the next writes; then they are taken."""
        self.tokens: list[str | None] = []
        """What each request said about who sends it."""

    def __call__(self, path: str, body: Any) -> tuple[int, Any]:
        """Answer a write."""
        assert path == "/buffer/write", path
        if self.refusals:
            return self.refusals.pop(0)
        self.items.append(body)
        return 200, {"success": True, "message": "", "data": None}
