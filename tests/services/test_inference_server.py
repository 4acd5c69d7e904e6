"""A real server process on loopback, asked by the official client, by raw sockets and by our own client."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import string
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest
import torch

from penstock.errors import ConflictError, FencedError, InfraError, InvalidError, WeightsError
from penstock.inference.client import Continuation, InferenceClient, read_reply
from penstock.models import keep_weights, model_tensors
from penstock.testing.inference import RunningServer, random_model, running_server, write_model
from penstock.types import WeightManifest

torch.set_num_threads(1)
LONG = 7000
"""Tokens of a reply that does not end by itself while a test looks at it."""


def model(seed: int) -> Any:
    return random_model("qwen2", seed=seed, max_positions=8192)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("inference")
    write_model(directory / "model", model(0))
    (directory / "weights").mkdir()
    return directory


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[RunningServer]:
    with running_server(home, home / "model", "--weights-dir", str(home / "weights"), "--max-running", "4", "--max-queued", "2") as running:
        yield running


@pytest.fixture(scope="module")
def official(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[InferenceClient]:
    async with InferenceClient(server.url, deadline_seconds=60) as client:
        yield client


def post(server: RunningServer, path: str, body: bytes | dict[str, Any]) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    status, data = answer.status, answer.read()
    connection.close()
    return status, json.loads(data) if data else None


async def gauge(session: aiohttp.ClientSession, server: RunningServer, name: str) -> float:
    async with session.get(f"{server.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"penstock_inference_{name} ")))


async def until_running(session: aiohttp.ClientSession, server: RunningServer, count: int) -> None:
    async with asyncio.timeout(20):
        while await gauge(session, server, "running") != count:
            pass


def test_the_official_client_completes_text_and_ids(official: openai.OpenAI) -> None:
    assert [model.id for model in official.models.list()] == ["model"]
    text = official.completions.create(
        model="anything", prompt="hello", max_tokens=6, seed=1, temperature=0.8, logprobs=2, extra_body={"return_token_ids": True}
    )
    ids = official.completions.create(
        model="custom", prompt=list(b"hello"), max_tokens=6, seed=1, temperature=0.8, logprobs=2, extra_body={"return_token_ids": True}
    )
    (choice,) = text.choices
    assert choice.model_extra is not None and ids.choices[0].model_extra is not None
    assert choice.model_extra["token_ids"] == ids.choices[0].model_extra["token_ids"]
    assert choice.model_extra["prompt_token_ids"] == list(b"hello")
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None and choice.logprobs.top_logprobs is not None
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == len(choice.model_extra["token_ids"])
    assert text.usage is not None and (text.usage.prompt_tokens, text.usage.completion_tokens) == (5, len(choice.model_extra["token_ids"]))


def test_several_prompts_and_choices_come_back_in_order(official: openai.OpenAI) -> None:
    reply = official.completions.create(
        model="m", prompt=[[1, 2], [3, 4]], n=2, max_tokens=3, seed=5, extra_body={"return_token_ids": True, "ignore_eos": True}
    )
    alone = official.completions.create(model="m", prompt=[3, 4], n=2, max_tokens=3, seed=5, extra_body={"return_token_ids": True, "ignore_eos": True})
    found = [choice.model_extra for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [one["prompt_token_ids"] for one in found if one] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert [one["token_ids"] for one in found if one][2:] == [choice.model_extra["token_ids"] for choice in alone.choices if choice.model_extra]


def test_a_chat_streams_to_the_same_text(official: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "seed": 4, "n": 2, "logprobs": True}
    whole = official.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    texts, logprobs, ids, finishes = ["", ""], [[], []], [[], []], [None, None]
    for chunk in official.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}, extra_body={"return_token_ids": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            logprobs[choice.index] += [one.logprob for one in (choice.logprobs.content if choice.logprobs else None) or []]
            ids[choice.index] += choice.token_ids
            finishes[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert ids == [choice.token_ids for choice in whole.choices]
    assert logprobs == [[one.logprob for one in choice.logprobs.content] for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert chunk.usage is not None and chunk.usage.completion_tokens == whole.usage.completion_tokens == sum(map(len, ids))


def test_a_completion_streams_to_the_same_text(official: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": "hi", "max_tokens": 60, "seed": 9, "logprobs": 1}
    whole = official.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in official.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [one for chunk in chunks for one in chunk.logprobs.text_offset] == whole.logprobs.text_offset
    assert chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].versions == whole.versions


def test_the_last_message_can_be_continued(official: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]
    reply = official.chat.completions.create(model="m", messages=messages, max_tokens=2, extra_body={"continue_final_message": True, "return_token_ids": True})
    assert bytes(id for id in reply.model_extra["prompt_token_ids"] if id < 256).endswith(b"Well, ")


def test_tools_are_shown_to_the_model(official: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "look_around", "parameters": {"type": "object", "properties": {}}}}
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "extra_body": {"return_token_ids": True}}
    with_tools = official.chat.completions.create(**asked, tools=[tool])
    without = official.chat.completions.create(**asked)
    assert b"look_around" in bytes(id for id in with_tools.prompt_token_ids if id < 256)
    assert b"look_around" not in bytes(id for id in without.prompt_token_ids if id < 256)


def test_a_stop_text_is_not_shown_but_its_tokens_are_kept(official: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    free = official.completions.create(model="m", prompt="abc", max_tokens=60, seed=2, extra_body=extra).choices[0]
    # A character that the model really said, and that no control token has in its name.
    stop = next(chr(id) for id in free.token_ids[5:] if id < 128 and chr(id) in string.ascii_uppercase + "!#$%&*+")
    cut = official.completions.create(model="m", prompt="abc", max_tokens=60, seed=2, stop=[stop], extra_body=extra).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == free.text.partition(stop)[0]
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert cut.token_ids[-1] == ord(stop)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "n": 10**9}),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}),
        ("/v1/completions", b'{"prompt": "a", "temperature": NaN}'),
        ("/v1/completions", {"prompt": [5] * 9000}),
        ("/v1/completions", {"prompt": [512]}),
        ("/v1/completions", {"prompt": [-1]}),
        ("/v1/completions", {"prompt": ""}),
        ("/v1/completions", b"{"),
        ("/v1/completions", b'{"prompt": "a", "prompt": "b"}'),
        ("/v1/completions", b'{"prompt": "\\ud800"}'),
        ("/v1/completions", b"[" * 100),
        ("/v1/chat/completions", {"messages": [{"role": "wizard", "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "continue_final_message": True}),
    ],
)
def test_bad_input_is_400_in_the_shape_that_clients_know_and_the_engine_lives(server: RunningServer, official: openai.OpenAI, path: str, body: Any) -> None:
    status, answer = post(server, path, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]
    assert official.completions.create(model="m", prompt="a", max_tokens=1).choices


def test_the_official_client_sees_a_bad_request(official: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        official.completions.create(model="m", prompt="a", max_tokens=-1)


def test_a_body_over_the_limit_is_413(server: RunningServer) -> None:
    status, answer = post(server, "/v1/completions", b" " * (16 * 1024 * 1024 + 1))
    assert (status, answer["error"]["code"]) == (413, "limit")


async def test_special_tokens_in_a_message_stay_text(client: InferenceClient, server: RunningServer) -> None:
    _, plain = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "<|im_end|>"}], "max_tokens": 1, "return_token_ids": True})
    assert bytes(id for id in plain["prompt_token_ids"] if id < 256).count(b"<|im_end|>") == 1


async def test_too_many_requests_are_told_to_come_back(server: RunningServer, client: InferenceClient) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "max_tokens": LONG, "n": 4, "ignore_eos": True}
        tasks = [asyncio.create_task(session.post(f"{server.url}/v1/completions", json=body))]
        await until_running(session, server, 4)
        tasks += [asyncio.create_task(session.post(f"{server.url}/v1/completions", json=body)) for _ in range(2)]
        async with asyncio.timeout(20):
            while await gauge(session, server, "waiting") != 2:
                pass
        async with session.post(f"{server.url}/v1/completions", json=body) as refused:
            assert refused.status == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert (await refused.json())["error"]["type"] == "rate_limit_error"
        assert await client.abort() == 12
        for task in tasks:
            async with await task as answer:
                reply = await answer.json()
                assert {choice["finish_reason"] for choice in reply["choices"]} == {"abort"}
    assert (await client.complete(Continuation(ids=list(b"abc"), max_tokens=2))).ids.size > 0


async def test_an_aborted_request_answers_with_what_it_has(server: RunningServer, client: InferenceClient) -> None:
    async with aiohttp.ClientSession() as session:
        body = {"prompt": "a", "max_tokens": LONG, "ignore_eos": True, "request_id": "mine", "return_token_ids": True, "logprobs": 0}
        task = asyncio.create_task(session.post(f"{server.url}/v1/completions", json=body))
        await until_running(session, server, 1)
        assert await client.abort(["another"]) == 0
        assert await client.abort(["mine"]) == 1
        async with await task as answer:
            reply = await answer.json()
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "abort"
    assert 0 < len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == reply["usage"]["completion_tokens"] < LONG
    assert sum(run["count"] for run in choice["versions"]) == len(choice["token_ids"])


async def test_an_aborted_chat_goes_on_from_its_own_tokens(server: RunningServer, client: InferenceClient) -> None:
    # A random model says bytes that are no text: encoding what was shown of them again would give other tokens.
    messages = [{"role": "user", "content": "go on"}]
    settings = {"max_tokens": LONG, "ignore_eos": True, "request_id": "chat", "return_token_ids": True}
    text, ids, prompt = "", [], None
    async with aiohttp.ClientSession() as session:
        for is_first in (True, False, False):
            said = [] if is_first else [{"role": "assistant", "content": text}]
            body = {"messages": messages + said, "continue_final_message": not is_first, **settings}
            task = asyncio.create_task(session.post(f"{server.url}/v1/chat/completions", json=body))
            await until_running(session, server, 1)
            assert post(server, "/abort", {"request_id": "chat"}) == (200, {"aborted": 1})
            async with await task as answer:
                reply = await answer.json()
            (choice,) = reply["choices"]
            prompt = reply["prompt_token_ids"] if is_first else prompt
            assert (choice["finish_reason"], reply["prompt_token_ids"]) == ("abort", prompt + ids)
            assert reply["usage"]["completion_tokens"] == len(choice["token_ids"])
            text += choice["message"]["content"]
            ids += choice["token_ids"]
    assert list(text.encode()) != ids
    last = {"messages": [*messages, {"role": "assistant", "content": text}], "continue_final_message": True, **settings, "max_tokens": 1}
    assert post(server, "/v1/chat/completions", last)[1]["prompt_token_ids"] == prompt + ids


@pytest.mark.parametrize("body", [{"ids": "mine"}, {"ids": [1]}, {"request_id": 1}, {"rid": "mine"}, []])
def test_an_abort_that_names_nobody_well_ends_nobody(server: RunningServer, body: Any) -> None:
    assert post(server, "/abort", json.dumps(body).encode())[0] == 422


@pytest.mark.parametrize("stream", [{"stream": True}, {"stream": False}, {}], ids=["stream", "no stream", "whole"])
async def test_a_client_that_leaves_ends_the_work(server: RunningServer, stream: dict[str, bool]) -> None:
    async with aiohttp.ClientSession() as session:
        before = await gauge(session, server, "tokens_sampled")
        body = json.dumps({"prompt": "a", "max_tokens": LONG, "ignore_eos": True} | stream).encode()
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await until_running(session, server, 1)
        await until_running(session, server, 0)
        assert 0 < await gauge(session, server, "tokens_sampled") - before < LONG


def test_a_stream_that_is_asked_for_in_escapes_is_refused_and_nothing_goes_on(server: RunningServer) -> None:
    status, answer = post(server, "/v1/completions", b'{"prompt": "a", "max_tokens": 2, "str\\u0065am": true}')
    assert status == 400
    assert "stream" in json.dumps(answer)
    assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200


async def test_weights_change_under_a_reply_and_every_token_says_whose_it_is(home: Path, server: RunningServer, client: InferenceClient) -> None:
    models = {0: model(0), 1: model(1)}
    manifest = WeightManifest(run="r", policy="policy", version=1, digest=keep_weights(home / "weights", model_tensors(models[1])))
    prompt = list(range(40, 140))
    body = {"prompt": prompt, "max_tokens": LONG, "seed": 3, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    async with aiohttp.ClientSession() as session:
        running = asyncio.create_task(session.post(f"{server.url}/v1/completions", json=body))
        await until_running(session, server, 1)
        served = await client.push(manifest, term=5)
        assert (served.version, served.digest, served.newest_version) == (1, manifest.digest, 1)
        assert await client.push(manifest, term=5) == served
        sampled = await gauge(session, server, "tokens_sampled")
        async with asyncio.timeout(20):
            while await gauge(session, server, "tokens_sampled") < sampled + 5:
                pass
        await client.abort()
        async with await running as answer:
            reply = read_reply(await answer.read())
    later = await client.complete(Continuation(ids=prompt, max_tokens=20, seed=3))
    assert [run.version for run in reply.versions] == [0, 1]
    assert [run.version for run in later.versions] == [1]
    for one in (reply, later):
        assert sum(run.count for run in one.versions) == len(one.ids) == len(one.logprobs)
        start = 0
        for run in one.versions:
            assert (run.policy, run.evidence, run.mixed_kv) == ("policy", "digest", False)
            with torch.no_grad():
                rows = torch.log_softmax(models[run.version](torch.tensor([[*prompt, *one.ids.tolist()]])).logits[0, len(prompt) - 1 : -1], dim=-1)
            expected = rows.gather(1, torch.tensor(one.ids).long()[:, None])[:, 0].numpy()
            assert np.abs(expected - one.logprobs)[start : start + run.count].max() <= 1e-5
            start += run.count


async def test_wrong_weights_leave_the_old_ones_serving(home: Path, server: RunningServer, client: InferenceClient) -> None:
    before = await client.served()
    weights = home / "weights"
    good = model_tensors(model(2))
    nan = keep_weights(weights, good | {"model.norm.weight": good["model.norm.weight"] * torch.nan})
    (weights / f"{'a' * 32}.safetensors").write_bytes((weights / f"{nan}.safetensors").read_bytes())
    (weights / f"{'b' * 32}.safetensors").write_bytes(b"\x80\x04 pickled, say")
    push: dict[str, Any] = {"policy": "policy", "version": 7}
    expected = [(nan, 422), ("a" * 32, 422), ("b" * 32, 415), ("c" * 32, 422), ("../../etc/passwd", 422), ("A" * 32, 422)]
    for digest, status in expected:
        assert post(server, "/v1/weights", push | {"digest": digest})[0] == status, digest
        assert (await client.complete(Continuation(ids=[5], max_tokens=1))).versions[0].version == before.version
    with pytest.raises(WeightsError):
        await client.push(WeightManifest(run="r", policy="policy", version=7, digest="c" * 32))
    assert not await client.is_ready()  # it was told of version 7 and does not have it
    for wrong in ({"version": -1}, {"version": True}, {"policy": "other"}, {"policy": 5}, {"digest": None}, {"term": "x"}):
        assert post(server, "/v1/weights", push | {"digest": nan} | wrong)[0] == 422
    with pytest.raises(ConflictError):
        await client.push(WeightManifest(run="r", policy="policy", version=before.version, digest=nan))
    again = await client.push(WeightManifest(run="r", policy="policy", version=before.version, digest=before.digest), term=6)
    with pytest.raises(FencedError):
        await client.push(WeightManifest(run="r", policy="policy", version=8, digest=nan), term=5)
    assert (again.version, again.digest, again.newest_version) == (before.version, before.digest, before.version)
    await client.push(WeightManifest(run="r", policy="policy", version=9, digest=before.digest), term=6)
    with pytest.raises(ConflictError, match="comes too late"):
        await client.push(WeightManifest(run="r", policy="policy", version=8, digest=before.digest), term=6)
    assert (await client.complete(Continuation(ids=[5], max_tokens=1))).versions[0].version == 9
    assert await client.is_ready()


async def test_our_client_names_what_was_refused_and_gives_up_in_time(server: RunningServer, client: InferenceClient) -> None:
    with pytest.raises(InvalidError, match="leaves no room"):
        await client.complete(Continuation(ids=[1] * 9000, max_tokens=5))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with InferenceClient(f"http://127.0.0.1:{taken.getsockname()[1]}", deadline_seconds=0.3) as nobody:
            with pytest.raises(InfraError, match="no answer"):
                await nobody.complete(Continuation(ids=[1], max_tokens=1))


def test_a_reply_ends_where_the_context_does_however_much_was_asked_for(server: RunningServer) -> None:
    status, answer = post(server, "/v1/completions", {"prompt": [5] * 8190, "max_tokens": 1000, "ignore_eos": True})
    assert (status, answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == (200, "length", 2)


async def test_our_client_gets_the_same_reply_for_the_same_seed(client: InferenceClient) -> None:
    first, second, other = [await client.complete(Continuation(ids=list(b"abc"), max_tokens=30, seed=seed)) for seed in (1, 1, 2)]
    assert first.ids.tolist() == second.ids.tolist() != other.ids.tolist()
    assert first.logprobs.tolist() == second.logprobs.tolist()
    assert first.metadata.sampler.engine == "penstock"
    assert second.metadata.usage.cached_tokens == second.metadata.usage.prompt_tokens == 3


def run_once(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "penstock", "serve", *words], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_what_keeps_a_server_from_starting_is_told_in_one_line(home: Path, server: RunningServer) -> None:
    port = server.url.rpartition(":")[2]
    assert run_once("--model", str(home / "model"), "--host", "0.0.0.0") == (
        2,
        "penstock: host 0.0.0.0 is not loopback: a server that others can reach needs a token\n",
    )
    code, words = run_once("--model", str(home / "model"), "--port", port)
    assert code == 1 and words.count("\n") == 1 and f":{port}" in words
    code, words = run_once("--model", str(home / "none"), "--port", "0")
    assert code == 2 and words.count("\n") == 1 and "is not a model directory" in words
    code, words = run_once("--model", str(home / "model"), "--port", "0", "--weights-dir", str(home / "weights"), "--digest", "0" * 32)
    assert code == 3 and words.count("\n") == 1 and f"there are no weights {'0' * 32}.safetensors" in words


def test_sigterm_answers_what_is_under_way(home: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with running_server(tmp_path, home / "model", "--token-file", str(token)) as own:
        connection = http.client.HTTPConnection(own.url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/v1/models")
        refused = connection.getresponse()
        assert (refused.status, refused.read() != b"") == (401, True)
        headers = {"Authorization": "Bearer secret"}
        body = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True})
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        first = answer.readline()
        own.process.terminate()
        rest = answer.read()
        assert first.startswith(b"data: ") and rest.endswith(b"data: [DONE]\n\n")
        assert own.process.wait(timeout=15) == 0


def test_a_model_without_a_tokenizer_is_served_by_ids_and_says_so(tmp_path: Path) -> None:
    write_model(tmp_path / "bare", model(0))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / name).unlink(missing_ok=True)
    with running_server(tmp_path, tmp_path / "bare") as own:
        assert "has no tokenizer.json: only /v1/completions with token ids is served" in own.log.read_text()
        status, answer = post(own, "/v1/completions", {"prompt": [5, 6], "max_tokens": 2, "return_token_ids": True, "ignore_eos": True})
        assert (status, len(answer["choices"][0]["token_ids"])) == (200, 2)
        for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})):
            status, answer = post(own, path, body)
            assert status == 400
            assert "this model has no tokenizer" in answer["error"]["message"]
