"""An inference server that answers at once, with the same reply to everybody: what is left is the cost of the client.

python benchmarks/_stub_server.py    prints its port, then serves until it is ended
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import httptools
import uvloop

TOKENS = 16


def answer() -> bytes:
    """A whole HTTP response."""
    choice = {
        "index": 0,
        "text": "go to the door.",
        "finish_reason": "stop",
        "token_ids": [*b"go to the door.", 257],
        "logprobs": {"token_logprobs": [-0.125 * (1 + place % 7) for place in range(TOKENS)]},
        "versions": [{"policy": "policy", "version": 0, "count": TOKENS, "mixed_kv": False, "evidence": "digest"}],
    }
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 90}, "completion_tokens": TOKENS, "seconds": 0.01}
    facts = {"temperature": 1.0, "engine": "stub", "dtype": "float32", "template_digest": "0" * 32, "tokenizer_digest": "1" * 32}
    body = json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage, "sampler": facts}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Stub(asyncio.Protocol):
    """One connection."""

    reply = answer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(self.reply)


async def serve() -> None:
    """Until ended."""
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
