"""A real buffer and a real gateway in processes of their own, in front of an engine that says what it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import openai

from penstock.buffer.client import BufferClient
from penstock.chat import write_byte_tokenizer
from penstock.types import Laws, Rollout
from penstock.wire import decode_msgpack

T = TypeVar("T")
SECONDS = 40.0


def counting(prompt: str, index: int) -> str:
    """Another reply for each turn and each choice."""
    return f"reply {prompt.count('assistant')}.{index}"


def started(command: list[str], log: Path, port_file: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server process, once it takes connections, and its URL."""
    port_file.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(command, stderr=output, stdout=output, env=os.environ | environment)
    # One that ends is seen at once. One that is slow may be so because the machine is.
    deadline = time.monotonic() + 3 * SECONDS
    while not port_file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process, f"http://127.0.0.1:{port_file.read_text()}"


class Stage:
    """Everything that a session needs."""

    def __init__(self, directory: Path, engine_url: str, *, model: Path | None = None) -> None:
        self.directory, self.engine_url = directory, engine_url
        self.model = model or directory / "model"
        if model is None:
            write_byte_tokenizer(self.model, "chatml")
        command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(directory / "buffer"), "--port", "0", "--port-file", str(directory / "buffer.port")]
        self.buffer, self.buffer_url = started(command, directory / "buffer.log", directory / "buffer.port")
        self.asked(lambda client: client.open_run(Laws(credit_tokens=100_000), "0" * 32))
        self.port = 0
        self.gateway: subprocess.Popen[bytes]

    @contextlib.contextmanager
    def without_gateway(self) -> Iterator[Stage]:
        """This stage for a test that starts a gateway of its own, which ends with it."""
        self.port = 0
        yield self
        self.kill_gateway()

    def close(self) -> None:
        for process in (self.gateway, self.buffer):
            process.kill()
            process.wait()

    def start_gateway(self, *words: str, **environment: str) -> None:
        """Start it, or start it again where it was."""
        command = [sys.executable, "-m", "penstock", "gateway", "--engine", self.engine_url, "--buffer", self.buffer_url, "--model", str(self.model)]
        command += ["--port", str(self.port), "--port-file", str(self.directory / "gateway.port"), *words]
        self._words, self._environment = words, environment
        self.gateway, self.url = started(command, self.directory / "gateway.log", self.directory / "gateway.port", **environment)
        self.port = int(self.url.rpartition(":")[2])

    def start_again(self) -> None:
        """Start it as it was started last."""
        self.start_gateway(*self._words, **self._environment)

    def kill_gateway(self) -> None:
        self.gateway.kill()
        self.gateway.wait()

    def asked(self, verb: Callable[[BufferClient], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            async with BufferClient(self.buffer_url, "run") as client:
                return await verb(client)

        return asyncio.run(ask())

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and reply of a request to the gateway."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"} | headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def open(self, **wanted: Any) -> dict[str, Any]:
        status, session = self.call("POST", "/sessions", wanted)
        assert status == 201, session
        return dict(session)

    @contextlib.contextmanager
    def agent(self, session: dict[str, Any], **options: Any) -> Iterator[openai.OpenAI]:
        with openai.OpenAI(base_url=session["base_url"], api_key="none", max_retries=options.pop("max_retries", 0), **options) as client:
            yield client

    def end(self, session: dict[str, Any], **body: Any) -> dict[str, Any]:
        status, ended = self.call("POST", f"/sessions/{session['id']}/end", body)
        assert status == 200, ended
        return dict(ended)

    def rollout(self, uid: str) -> Rollout:
        """As the buffer has it."""
        with urllib.request.urlopen(f"{self.buffer_url}/v1/runs/run/rollouts/{uid}") as answer:
            return decode_msgpack(answer.read(), Rollout)


@contextlib.contextmanager
def buffer_alone(directory: Path, engine_url: str) -> Iterator[Stage]:
    """A stage without a gateway: a buffer that several tests share."""
    made = Stage(directory, engine_url)
    yield made
    made.buffer.kill()
    made.buffer.wait()
