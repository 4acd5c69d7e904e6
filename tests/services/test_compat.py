"""The seed's routes over a real process: their shapes, and each thing that the original gets wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.services.buffers import Process

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Process] = []

    def begin(*arguments: str) -> Process:
        running.append(Process(tmp_path, *arguments))
        return running[-1]

    yield begin
    for process in running:
        process.kill()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("buffer"), "--group-size", "2")
    yield running
    running.kill()


@pytest.fixture
def buffer(one_process: Process, request: pytest.FixtureRequest) -> Process:
    """The buffer of the tests that need no settings of their own, as after a read: nothing is ready, nothing to be told."""
    pair(one_process, f"before {request.node.name}")
    assert read(one_process)["success"]
    return one_process


def item(uid: str, instance: Any = "a", reward: Any = 1.0, **fields: Any) -> dict[str, Any]:
    return {"uid": uid, "instance_id": instance, "messages": [{"role": "assistant", "content": "4"}], "reward": reward, **fields}


def write(buffer: Process, *items: dict[str, Any]) -> None:
    for one in items:
        status, answer = buffer.post("/buffer/write", json.dumps(one).encode())
        assert status == 200, answer


def pair(buffer: Process, instance: Any, rewards: tuple[Any, Any] = (1.0, 0.0)) -> None:
    write(buffer, *(item(f"{instance}-{place}", instance, reward) for place, reward in enumerate(rewards)))


def read(buffer: Process, **asked: Any) -> dict[str, Any]:
    status, answer = buffer.post("/get_rollout_data", json.dumps(asked).encode())
    assert status == 200, answer
    reply: dict[str, Any] = json.loads(answer)
    return reply


def uids(reply: dict[str, Any]) -> list[str]:
    return [found["uid"] for found in reply["data"]["data"]]


def test_items_go_in_and_a_group_comes_out_as_the_seed_says(buffer: Process) -> None:
    status, answer = buffer.post("/buffer/write", json.dumps(item("t0x", 7, 1, extra_info={"round_number": 1})).encode())
    assert (status, json.loads(answer)) == (
        200,
        {
            "success": True,
            "message": "Data has been successfully written to buffer",
            "data": {"data": [item("t0x", 7, 1, extra_info={"round_number": 1})], "meta_info": "write to buffer"},
        },
    )
    assert read(buffer)["message"] == "No data available to read"
    write(buffer, item("t0y", 7, False))
    reply = read(buffer)
    assert (reply["success"], reply["message"]) == (True, "Successfully read 2 items")
    first, second = reply["data"]["data"]
    assert (first["raw_reward"], second["raw_reward"]) == (1, 0)
    assert (first["reward"], second["reward"]) == (pytest.approx(1.0, abs=1e-7), pytest.approx(-1.0, abs=1e-7))
    assert first["extra_info"] == {"round_number": 1}
    meta = reply["data"]["meta_info"]
    assert (meta["total_samples"], meta["num_groups"], meta["avg_reward"], meta["finished_groups"]) == (2, 1, 0.5, ["7"])
    assert buffer.get("/") == {"message": "Rollout Buffer Server is running"}


def test_a_list_of_items_is_written_at_once_or_not_at_all(buffer: Process) -> None:
    status, answer = buffer.post("/buffer/write", json.dumps([item("t1x"), item("t1y", reward="much")]).encode())
    assert (status, json.loads(answer)["success"], json.loads(answer)["data"]) == (422, False, None)
    assert "item 1: reward" in json.loads(answer)["message"]
    assert buffer.get("/buffer/stats")[0]["current_size"] == 0
    status, answer = buffer.post("/buffer/write", json.dumps([item("t1x"), item("t1y", reward=0)]).encode())
    assert len(json.loads(answer)["data"]["data"]) == 2
    assert uids(read(buffer)) == ["t1x", "t1y"]
    for conflicting in (item("t1x", reward=0.5), item("t1new", reward=0.5)):
        status, answer = buffer.post("/buffer/write", json.dumps([item("t1new", reward=1), conflicting]).encode())
        assert (status, json.loads(answer)["error"]["code"]) == (409, "conflict")
    assert buffer.get("/buffer/stats")[0]["current_size"] == 0


def test_a_small_read_leaves_the_other_groups(buffer: Process) -> None:
    for instance in ("t2a", "t2b", "t2c"):
        pair(buffer, instance)
    assert uids(read(buffer, batch_size=3)) == ["t2a-0", "t2a-1", "t2b-0", "t2b-1"]
    short = read(buffer, batch_size="4")
    assert (short["success"], short["message"]) == (False, "Not enough data. Requested 4 items but only 2 available.")
    assert uids(read(buffer, batch_size=-1)) == ["t2c-0", "t2c-1"]


def test_one_item_without_content_spoils_no_read(buffer: Process) -> None:
    write(buffer, item("t3x", messages=[{"role": "assistant", "content": None}]), item("t3y", reward=0.0, messages=None), item("t3z", "t3b"))
    # Of a, one item is left after filtering, which is half.
    assert read(buffer)["data"]["meta_info"]["dropped"] == {}
    pair(buffer, "t3c")
    reply = read(buffer)
    assert uids(reply) == ["t3c-0", "t3c-1"]
    assert reply["data"]["meta_info"]["dropped"] == {}


def test_what_is_dropped_is_told_with_its_reason(buffer: Process) -> None:
    pair(buffer, "t4equal", (1.0, 1.0))
    assert read(buffer)["success"] is False
    pair(buffer, "t4failed", (1.0, None))
    pair(buffer, "t4good")
    reply = read(buffer)
    assert uids(reply) == ["t4good-0", "t4good-1"]
    assert reply["data"]["meta_info"]["dropped"] == {"equal_rewards": 2}
    assert reply["data"]["meta_info"]["finished_groups"] == ["t4equal", "t4failed", "t4good"]
    group = buffer.get("/v1/runs/default/groups/t4equal/0")["group"]
    assert (group["state"], group["reason"]) == ("dropped", "equal_rewards")
    assert buffer.get("/v1/runs/default/ledger")["imbalance"] == 0


@pytest.mark.parametrize("reward", ["NaN", "Infinity", "1e999", '"nan"', '"1"'])
def test_no_reward_that_is_no_number_reaches_training(buffer: Process, reward: str) -> None:
    wrong = json.dumps(item("t5x")).replace("1.0", reward)
    status, answer = buffer.post("/buffer/write", wrong.encode())
    assert (status, json.loads(answer)["success"]) == (422, False)
    pair(buffer, f"good {reward}")
    assert len(uids(read(buffer))) == 2


def test_duplicates_of_one_uid_do_not_fill_a_group(buffer: Process) -> None:
    write(buffer, item("t6x"))
    status, answer = buffer.post("/buffer/write", json.dumps(item("t6x")).encode())
    assert (status, json.loads(answer)["data"]["duplicate"]) == (200, True)
    assert buffer.post("/buffer/write", json.dumps(item("t6x", reward=0.0)).encode())[0] == 409
    assert read(buffer)["success"] is False
    write(buffer, item("t6y", reward=0.0))
    assert uids(read(buffer)) == ["t6x", "t6y"]


def test_late_items_do_not_reopen_a_group_that_was_read(start: Start) -> None:
    buffer = start("--group-size", "3", "--min-valid-group-size-ratio", "0.7", "--min-valid-item-size-ratio", "0.6")
    write(buffer, item("x"), item("y", reward=0.0))
    assert len(uids(read(buffer))) == 3
    write(buffer, item("z"))
    group = buffer.get("/v1/runs/default/groups/a/0")["group"]
    assert (group["state"], group["lease"] is not None) == ("spent", True)
    write(buffer, item("v"), item("w", reward=0.0))
    reply = read(buffer)
    assert {"v", "w"} == set(uids(reply))
    assert reply["data"]["meta_info"]["dropped"] == {"late": 1}


def test_everything_survives_a_kill(start: Start) -> None:
    buffer = start("--group-size", "2")
    pair(buffer, "read before")
    before = read(buffer)
    pair(buffer, "equal", (0.5, 0.5))
    assert read(buffer)["success"] is False
    pair(buffer, "ready")
    write(buffer, item("open-0", "open"))
    buffer.kill()
    buffer.start()
    write(buffer, item("open-1", "open", 0.0))
    reply = read(buffer)
    assert uids(reply) == ["ready-0", "ready-1", "open-0", "open-1"]
    meta = reply["data"]["meta_info"]
    assert (meta["total_samples"], meta["num_groups"], meta["avg_reward"]) == (6, 3, pytest.approx(0.5))
    assert (meta["finished_groups"], meta["dropped"]) == (["equal", "ready", "open"], {"equal_rewards": 1})
    stats = buffer.get("/buffer/stats")[0]
    assert (stats["current_size"], stats["total_written"], stats["total_read"]) == (0, 8, 6)
    again = read(buffer, read_id=before["data"]["meta_info"]["read_id"])
    assert again["data"]["data"] == before["data"]["data"]


def test_a_read_can_be_served_again_by_its_id(buffer: Process) -> None:
    pair(buffer, "t7a")
    first = read(buffer)
    read_id = first["data"]["meta_info"]["read_id"]
    assert buffer.get("/buffer/stats")[0]["last_read_id"] == read_id
    assert read(buffer, read_id=read_id)["data"]["data"] == first["data"]["data"]
    status, answer = buffer.post("/get_rollout_data", b'{"read_id": "read-0"}')
    assert (status, json.loads(answer)["message"]) == (404, "no read read-0")


@pytest.mark.parametrize("path", ["/buffer/write", "/get_rollout_data", "/buffer/read", "/buffer/peek", "/buffer/stats", "/start_rollout", "/"])
def test_what_is_refused_before_it_is_looked_at_has_the_shape_of_its_route(buffer: Process, path: str) -> None:
    for headers, expected in (({"X-Large": "x" * (65 << 10)}, 431), ({"Origin": "http://elsewhere"}, 403), ({"Content-Encoding": "gzip"}, 415)):
        status, answer = buffer.ask("POST", path, b"{}", headers)
        refused = json.loads(answer)
        assert (status, refused["success"], refused["data"], refused["message"]) == (expected, False, None, refused["error"]["message"])


def test_peek_takes_nothing(buffer: Process) -> None:
    pair(buffer, "t8a")
    assert [found["uid"] for found in buffer.get("/buffer/peek")["data"]["data"]] == ["t8a-0", "t8a-1"]
    assert len(uids(read(buffer))) == 2


def test_timeouts_are_acted_on_by_a_clock(start: Start) -> None:
    buffer = start("--group-size", "4", "--group-timeout-seconds", "0.2")
    write(buffer, item("a0", "few"), *(item(f"b{place}", "enough", 1.0) for place in range(3)))
    states: set[str] = set()
    while states != {"dropped(timeout)", "ready"}:
        states = set(buffer.get("/v1/runs/default/ledger")["balances"][0]["groups"])
    reply = read(buffer)
    # A group that timed out skips the test for unequal rewards, and is padded.
    assert uids(reply) == ["b0", "b1", "b2", "b0"]
    assert [found["reward"] for found in reply["data"]["data"]] == [0.0] * 4
    assert reply["data"]["meta_info"]["finished_groups"] == ["few", "enough"]


def test_a_full_buffer_holds_a_write_until_something_is_read(start: Start) -> None:
    buffer = start("--group-size", "2", "--max-buffer-size", "2", "--hold-seconds", "20")
    pair(buffer, "a")
    answers: list[int] = []
    held = threading.Thread(target=lambda: answers.append(buffer.post("/buffer/write", json.dumps(item("late")).encode())[0]))
    held.start()
    assert len(uids(read(buffer))) == 2
    held.join()
    assert answers == [200]


def test_a_full_buffer_refuses_in_the_end(start: Start) -> None:
    buffer = start("--group-size", "2", "--max-buffer-bytes", "300", "--hold-seconds", "0.1")
    pair(buffer, "a")
    status, answer = buffer.post("/buffer/write", json.dumps(item("more")).encode())
    assert (status, json.loads(answer)["success"]) == (429, False)
    assert "full" in json.loads(answer)["message"]
    status, answer = buffer.post("/buffer/write", json.dumps([item(f"many-{place}", "b") for place in range(4)]).encode())
    assert (status, "the buffer holds 1000000000 items and 300 bytes at most" in json.loads(answer)["message"]) == (413, True)
    # What is there already needs no room.
    status, answer = buffer.post("/buffer/write", json.dumps(item("a-0", "a")).encode())
    assert (status, json.loads(answer)["data"]["duplicate"]) == (200, True)


def test_a_rollout_may_be_started_with_less_room_and_never_with_more(start: Start, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "quiet_generator.py").write_text('TASK_TYPE = "quiet"\n\n\ndef run_rollout(data):\n    pass\n')
    (tmp_path / "problems.jsonl").write_text("{}\n")
    buffer = start("--generators", str(tmp_path / "files"), "--data-root", str(tmp_path), "--max-buffer-size", "5", "--hold-seconds", "0.1")
    payload = {"task_type": "quiet", "input_file": "problems.jsonl", "remote_engine_url": "http://127.0.0.1:1", "num_repeat_per_sample": 2}
    for asked, room in (("3", 3), (1_000_000_000, 5), (2, 2)):
        status, answer = buffer.post("/start_rollout", json.dumps(payload | {"max_buffer_size": asked}).encode())
        assert status == 200, answer
        assert buffer.get("/buffer/stats")[0]["max_size"] == room
        buffer.post("/generators/quiet/stop", b"")
    pair(buffer, "a")
    assert buffer.post("/buffer/write", json.dumps(item("more")).encode())[0] == 429
    buffer.kill()
    buffer.start()
    assert buffer.get("/buffer/stats")[0]["max_size"] == 2


@pytest.mark.parametrize("batch_size", ['"eight"', "1.5", "[]", "true"])
def test_a_batch_size_that_is_no_number_is_refused(buffer: Process, batch_size: str) -> None:
    pair(buffer, f"size {batch_size}")
    assert buffer.post("/get_rollout_data", b'{"batch_size": %b}' % batch_size.encode())[0] == 422
    assert len(uids(read(buffer))) == 2


def test_every_refusal_has_the_compatible_shape(buffer: Process) -> None:
    for method, path, body, headers, expected in (
        ("GET", "/buffer/write", None, {}, 405),
        ("POST", "/buffer/stats", b"{}", {}, 405),
        ("POST", "/buffer/write", b"{", {}, 400),
        ("POST", "/get_rollout_data", b"[1]", {}, 422),
        ("POST", "/start_rollout", b'{"task_type": "nobody has it"}', {}, 422),
        # Before a route is asked at all.
        ("POST", "/buffer/write", b"{}", {"Content-Encoding": "gzip"}, 415),
        ("GET", "/buffer/stats", None, {"Host": "example.com"}, 403),
    ):
        status, answer = buffer.ask(method, path, body, headers)
        assert status == expected
        reply = json.loads(answer)
        assert (reply["success"], reply["data"]) == (False, None)
        assert reply["message"]


def test_a_big_read_comes_whole_and_writers_go_on_meanwhile(buffer: Process) -> None:
    text = "t11x" * 5000
    for number in range(0, 200, 20):
        items = [item(f"big {n}-{place}", f"big {n}", float(place), text=text) for n in range(number, number + 20) for place in range(2)]
        assert buffer.post("/buffer/write", json.dumps(items).encode())[0] == 200
    reply = read(buffer)
    assert len(uids(reply)) == len(set(uids(reply))) == 400
    assert len(reply["data"]["meta_info"]["finished_groups"]) == 200


def test_native_leases_and_compatible_reads_never_share_a_group(buffer: Process) -> None:
    pair(buffer, "t12a")
    pair(buffer, "t12b")
    status, _ = buffer.post("/v1/runs/default/leases", json.dumps({"lease": "l1", "consumer": "me", "request": {"groups": 1}}).encode())
    assert status == 200
    assert uids(read(buffer)) == ["t12b-0", "t12b-1"]
