"""Writers and a reader of the seed's routes while the buffer is killed again and again: nothing that was acknowledged is lost, repeated or mixed."""

from __future__ import annotations

import json
import threading
import urllib.error
from collections import Counter
from pathlib import Path
from typing import Any

from tests.services.buffers import Process

NUM_KILLS = 4
NUM_WRITERS = 4
GROUP_SIZE = 4


def until_answered(buffer: Process, path: str, body: bytes, over: threading.Event) -> tuple[int, bytes] | None:
    """Ask again until somebody answers; None once it is over and nobody does."""
    while True:
        try:
            return buffer.post(path, body)
        except (urllib.error.URLError, OSError):
            # Asked without a pause, a buffer that starts would get less of the machine than those who wait for it.
            if over.wait(0.05):
                return None


class Writer(threading.Thread):
    """Writes whole groups, each item until it is acknowledged."""

    def __init__(self, buffer: Process, name: str, stop: threading.Event, over: threading.Event) -> None:
        super().__init__(name=name)
        self.buffer, self.stop, self.over = buffer, stop, over
        self.acknowledged: set[str] = set()

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            for place in range(GROUP_SIZE):
                uid = f"{self.name}-{number}-{place}"
                item = {"uid": uid, "instance_id": f"{self.name}-{number}", "messages": [], "reward": place % 2}
                answer = until_answered(self.buffer, "/buffer/write", json.dumps(item).encode(), self.over)
                assert answer is not None
                assert answer[0] == 200, answer
                self.acknowledged.add(uid)
            number += 1


def read(buffer: Process, asked: dict[str, Any]) -> dict[str, Any]:
    status, answer = buffer.post("/get_rollout_data", json.dumps(asked).encode())
    assert status == 200, answer
    reply: dict[str, Any] = json.loads(answer)
    return reply


def test_nothing_acknowledged_is_lost_repeated_or_mixed_by_kills(tmp_path: Path) -> None:
    buffer = Process(tmp_path, "--group-size", str(GROUP_SIZE))
    stop, over = threading.Event(), threading.Event()
    writers = [Writer(buffer, f"w{number}", stop, over) for number in range(NUM_WRITERS)]
    for writer in writers:
        writer.start()
    reads: dict[str, list[dict[str, Any]]] = {}
    try:
        for _ in range(NUM_KILLS):
            while not (reply := read(buffer, {"batch_size": GROUP_SIZE}))["success"]:
                pass
            reads[reply["data"]["meta_info"]["read_id"]] = reply["data"]["data"]
            buffer.kill()
            buffer.start()
            # What was told before the kill is told again after it.
            read_id = reply["data"]["meta_info"]["read_id"]
            assert read(buffer, {"read_id": read_id})["data"]["data"] == reads[read_id]
        stop.set()
        for writer in writers:
            writer.join()
        last = read(buffer, {})
        reads["last"] = last["data"]["data"]
        ledger = buffer.get("/v1/runs/default/ledger")
    finally:
        stop.set()
        over.set()
        buffer.kill()
    items = [item for batch in reads.values() for item in batch]
    delivered = Counter(item["uid"] for item in items)
    acknowledged = set().union(*(writer.acknowledged for writer in writers))
    assert set(delivered) == acknowledged
    assert set(delivered.values()) == {1}
    for batch in reads.values():
        groups = [batch[start : start + GROUP_SIZE] for start in range(0, len(batch), GROUP_SIZE)]
        assert all(len({item["instance_id"] for item in group}) == 1 for group in groups)
    assert ledger["imbalance"] == 0
