"""Generators that send their items by themselves, to a real buffer that wants a token: they know nothing but the URL in their payload."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.services.buffers import Process

ROOT = {"Authorization": "Bearer root-5f1e"}
SENDING = """
import asyncio, json
import aiohttp, requests
from penstock.buffer.compat.shim.fallback import requests as stand_in
from generator.base_generator import BaseGenerator

TASK_TYPE = "sending"

def item(uid, reward):
    return {"uid": uid, "instance_id": "i", "messages": [], "reward": reward}

async def with_aiohttp(url):
    async with aiohttp.ClientSession() as session, session.post(url + "/buffer/write", json=item("d", 0.0)) as answer:
        return answer.status

def run_rollout(data):
    url = data["remote_buffer_url"].rstrip("/")
    print("payload", json.dumps(data))
    print(requests.post(url + "/buffer/write", json=item("a", 1.0)).status_code)
    print(stand_in.post(url + "/buffer/write", json=item("b", 0.0)).status_code)
    BaseGenerator(data["remote_engine_url"], data["remote_buffer_url"], 1, 10, 1, "sending", 8, 1, []).send_data_to_buffer(item("c", 1.0))
    print(asyncio.run(with_aiohttp(url)))
    print("to read", requests.post(url + "/get_rollout_data", json={}).status_code)
    requests.get(url + "/v1/nothing").raise_for_status()
"""


def ended(process: Process) -> dict[str, Any]:
    """The generator's state when it has ended."""
    deadline = time.monotonic() + 60
    while True:
        states = json.loads(process.ask("GET", "/generators", None, ROOT)[1])["generators"]
        (found,) = [state for state in states if state["task_type"] == "sending"]
        if found["ended_at"] is not None:
            return dict(found)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_generator_that_sends_its_items_by_itself_writes_to_a_buffer_with_tokens(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "sending_generator.py").write_text(SENDING)
    (tmp_path / "tokens").write_text("root-5f1e\n")
    (tmp_path / "buffer").mkdir()
    arguments = ("--token-file", str(tmp_path / "tokens"), "--generators", str(tmp_path / "files"), "--group-size", "4")
    process = Process(tmp_path / "buffer", *arguments)
    try:
        payload = {"task_type": "sending", "remote_engine_url": "http://127.0.0.1:1", "remote_buffer_url": f"http://localhost:{process.port}/"}
        assert process.ask("POST", "/start_rollout", json.dumps(payload).encode(), ROOT) == (200, b'{"message":"Rollout started"}')
        state = ended(process)
        told = process.ask("GET", "/generators/sending/log", None, ROOT)[1].decode()
        lines = json.loads(told)["lines"]
        assert [line for line in lines if line in ("200", "to read 403")] == ["200", "200", "200", "to read 403"], told
        read = json.loads(process.ask("POST", "/get_rollout_data", b"{}", ROOT)[1])
        assert [item["uid"] for item in read["data"]["data"]] == ["a", "b", "c", "d"]
        # The generator has printed its URL, and failed with it: nobody sees the token that stood there.
        assert state["state"] == "failed"
        shown = told + json.dumps(state)
        assert shown.count(f"http://penstock:***@127.0.0.1:{process.port}") >= 3
        printed = (tmp_path / "buffer" / "generators" / "sending.log").read_text()
        secret = printed.partition("http://penstock:")[2].partition("@")[0]
        assert len(secret) >= 32 and secret not in shown + (tmp_path / "buffer" / "log").read_text()
        process.kill()
        process.start()
        assert process.ask("POST", "/buffer/write", b"[]", {"Authorization": f"Bearer {secret}"})[0] == 401, "it ends with the life of the buffer"
    finally:
        process.kill()
