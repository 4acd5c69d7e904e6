"""What an engine answers is looked at before it is kept or told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from penstock.errors import InfraError
from penstock.gateway.engine import HttpEngine
from penstock.gateway.sampling import Order

RUN = {"policy": "policy", "version": 3, "count": 2, "mixed_kv": False, "evidence": "digest"}
RIGHT: dict[str, Any] = {"token_ids": [5, 6], "token_logprobs": [-0.5, 0.0], "versions": [RUN]}


async def sampled(**changed: Any) -> tuple[list[int], list[float], int]:
    fields = RIGHT | changed
    choice = {"index": 0, "finish_reason": "stop", "token_ids": fields["token_ids"], "versions": fields["versions"]}
    answer = json.dumps({"choices": [choice | {"logprobs": {"token_logprobs": fields["token_logprobs"]}}]})

    async def complete(_: web.Request) -> web.Response:
        return web.Response(text=answer, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with HttpEngine([f"http://127.0.0.1:{runner.addresses[0][1]}"]) as engine:
            order = Order(ids=np.array([1], np.int32), num_choices=1, max_tokens=4, temperature=1.0, seed=0)
            (reply,) = await engine.sample(order, deadline_seconds=20.0)
    finally:
        await runner.cleanup()
    return reply.ids, reply.logprobs, reply.versions[0].version


async def test_what_is_right_is_taken() -> None:
    assert await sampled() == ([5, 6], [-0.5, 0.0], 3)


@pytest.mark.parametrize(
    "changed",
    [
        {"token_ids": [5, -1]},
        {"token_ids": [5, 2**31]},
        {"token_ids": [5, 1.5]},
        {"token_ids": ["5", "6"]},
        {"token_logprobs": [-0.5, 0.25]},
        {"token_logprobs": [-0.5, None]},
        {"token_logprobs": [-0.5, -1e300]},
        {"token_logprobs": ["-1", "-1"]},
        {"versions": [RUN | {"version": -1}]},
        {"versions": [RUN | {"version": "3"}]},
        {"versions": [RUN | {"policy": "my policy"}]},
        {"versions": [RUN | {"count": 3}]},
    ],
)
async def test_garbage_is_a_failure_of_the_engine_and_never_recorded(changed: dict[str, Any]) -> None:
    with pytest.raises(InfraError, match="the engine"):
        await sampled(**changed)


async def test_the_run_is_asked_for_the_version_of_those_servers_alone_that_do_not_name_it() -> None:
    told: list[Any] = [[RUN], [RUN], None, None, [RUN], [RUN]]
    answers, asked = iter(told), 0

    async def complete(_: web.Request) -> web.Response:
        choice = {"index": 0, "finish_reason": "stop", "token_ids": [5, 6], "versions": next(answers), "logprobs": {"token_logprobs": [-0.5, 0.0]}}
        return web.json_response({"choices": [choice]})

    async def published() -> int:
        nonlocal asked
        asked += 1
        return 10 + asked

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    found = []
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with HttpEngine([f"http://127.0.0.1:{runner.addresses[0][1]}"], version=published) as engine:
            order = Order(ids=np.array([1], np.int32), num_choices=1, max_tokens=4, temperature=1.0, seed=0)
            for _ in told:
                (reply,) = await engine.sample(order, deadline_seconds=20.0)
                found.append((reply.versions[0].version, asked))
    finally:
        await runner.cleanup()
    # Asked before the first, when nobody knows the server; then when it stops naming them, and before each until it does again.
    assert found == [(3, 1), (3, 1), (12, 2), (13, 3), (3, 4), (3, 4)]
