"""The shipped base of generators, in this process, against servers that the test writes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.buffer.generators.scripted import Buffer, completion, serving

from penstock.buffer.compat.shim.generator import base_generator, sending
from penstock.buffer.compat.shim.generator.base_generator import BaseGenerator
from penstock.buffer.compat.shim.generator.rollouts import read_problems
from penstock.buffer.compat.shim.generator.sending import BufferAwayError, send_item
from penstock.buffer.compat.shim.generator.workers import worked_off

SAMPLING_PARAMS = {"temperature": 0.25}


def echo(path: str, body: Any) -> tuple[int, Any]:
    """An engine that says the sum it is asked for, and tells how it was asked."""
    question = body["messages"][-1]["content"]
    if question == "fail":
        return 400, {"error": {"message": "no"}}
    return 200, completion(str(sum(map(int, question.split("+")))))


def write_problems(path: Path, *problems: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


SUMS = [{"instance_id": f"s{number}", "prompt": f"{number}+1", "label": str(number + 1 if number else 7)} for number in range(3)]


def generate(engine_url: str, buffer_url: str, input_file: Path, num_epoch: int = 1, **settings: Any) -> None:
    generator = BaseGenerator(engine_url, buffer_url, **{"num_repeat_per_sample": 2, "num_process": 2, "max_tokens": 8, **settings})
    generator.entry(input_file, base_generator.query_single_turn, base_generator.get_rule_based_math_reward, num_epoch)


def test_every_problem_is_rolled_out_as_often_as_asked_in_every_epoch(tmp_path: Path) -> None:
    buffer = Buffer()
    with serving(echo) as engine_url, serving(buffer) as buffer_url:
        generate(engine_url, buffer_url, write_problems(tmp_path / "sums", *SUMS), num_epoch=2, skip_instance_ids=["s1"])
    # One occurrence of s1 is one epoch of it.
    assert Counter(item["instance_id"] for item in buffer.items) == {"s0": 4, "s1": 2, "s2": 4}
    assert len({item["uid"] for item in buffer.items}) == 10
    assert {item["instance_id"]: item["reward"] for item in buffer.items} == {"s0": 0, "s1": 1, "s2": 1}
    (one, *_) = (item for item in buffer.items if item["instance_id"] == "s2")
    assert one["messages"] == [{"role": "user", "content": "2+1"}, {"role": "assistant", "content": "3"}]
    extra = one["extra_info"]
    assert (extra["label"], extra["round_number"], extra["finish_reason"], extra["tokens"], extra["logprobs"]) == ("3", 1, "stop", [51], [-0.5])
    # The dict of the file that makes the generator, which is this one.
    assert (extra["temperature"], extra["max_tokens"], extra["versions"][0]["count"]) == (0.25, 8, 1)
    assert float(extra["timestamp"]) > 0


def test_a_rollout_that_fails_is_stored_as_failed_and_the_others_go_on(tmp_path: Path) -> None:
    buffer = Buffer()
    problems = [*SUMS[1:], {"instance_id": 5, "prompt": [{"role": "user", "content": "fail"}], "label": "0"}]
    with serving(echo) as engine_url, serving(buffer) as buffer_url:
        generate(engine_url, buffer_url, write_problems(tmp_path / "sums", *problems))
    assert Counter((item["instance_id"], item["reward"]) for item in buffer.items) == {("s1", 1): 2, ("s2", 1): 2, (5, -1): 2}
    failed = next(item for item in buffer.items if item["reward"] == -1)
    assert failed["messages"][-1] == {"role": "assistant", "content": ""}
    assert "QueryError" in failed["extra_info"]["error"] and failed["extra_info"]["finish_reason"] == "error"


@pytest.mark.parametrize("reward", [None, "1", float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_a_failure_and_not_a_reward(tmp_path: Path, reward: Any) -> None:
    buffer = Buffer()
    with serving(echo) as engine_url, serving(buffer) as buffer_url:
        generator = BaseGenerator(engine_url, buffer_url, num_process=1)
        generator.run(write_problems(tmp_path / "sums", SUMS[0]), base_generator.query_single_turn, lambda item: reward)
    assert [item["reward"] for item in buffer.items] == [-1]


def test_a_rollout_function_may_give_messages_with_the_reason_of_their_end(tmp_path: Path) -> None:
    buffer = Buffer()
    with serving(buffer) as buffer_url:
        generator = BaseGenerator("http://127.0.0.1:1", buffer_url, num_process=1)
        generator.run(
            write_problems(tmp_path / "sums", SUMS[0]),
            lambda client, messages, params: ([*messages, {"role": "assistant", "content": "1"}], "length"),
            lambda item: len(item["messages"]) / 4,
        )
    assert [(item["reward"], item["extra_info"]["finish_reason"]) for item in buffer.items] == [(0.5, "length")]


def square(task: dict[str, Any]) -> dict[str, Any]:
    if task["n"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"n": task["n"] ** 2, "pid": os.getpid()}


def test_a_worker_that_dies_costs_its_own_task_and_is_replaced() -> None:
    results = list(worked_off([{"n": n} for n in range(8)], square, lambda task, why: {"n": -task["n"], "why": why}, num_process=2))
    assert sorted(result["n"] for result in results) == [-3, 0, 1, 4, 16, 25, 36, 49]
    assert [result["why"] for result in results if "why" in result] == ["its worker process died with exit code -9"]
    assert 2 <= len({result["pid"] for result in results if "pid" in result}) <= 3


def test_tasks_are_taken_as_they_can_be_worked_on() -> None:
    taken: list[int] = []

    def tasks() -> Any:
        for n in (0, 1, 2, 4, 5, 6):
            taken.append(n)
            yield {"n": n}

    results = worked_off(tasks(), square, lambda task, why: {}, num_process=2)
    next(results)
    assert len(taken) <= 3
    results.close()


def test_an_item_is_sent_again_until_it_is_taken_and_a_refused_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSES_SECONDS", (0.0,))
    buffer = Buffer()
    buffer.refusals = [(503, {}), (429, {}), (500, {})]
    with serving(buffer) as url:
        assert send_item(url + "/", {"uid": "a"})
        buffer.refusals = [(422, {"message": "reward"})]
        assert not send_item(f"{url}/buffer/write", {"uid": "b"})
    assert buffer.items == [{"uid": "a"}]
    monkeypatch.setattr(sending, "GIVE_UP_SECONDS", -1.0)
    with pytest.raises(BufferAwayError):
        send_item(url, {"uid": "c"})


def test_an_item_comes_with_the_token_that_the_buffer_gave_its_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer()
    with serving(buffer) as url:
        send_item(url, {"uid": "a"})
        monkeypatch.setenv("PENSTOCK_TOKEN", "mine")
        send_item(url, {"uid": "b"})
        send_item(url.replace("//", "//penstock:a%40b@"), {"uid": "c"})
    assert buffer.tokens == [None, "Bearer mine", "Basic cGVuc3RvY2s6YUBi"], "what stands in the URL was meant for it"


def test_problems_without_ids_have_their_line_numbers_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "problems"
    path.write_text('{"prompt": "a"}\n\n{"prompt": [{"role": "user", "content": "b"}]}\n')
    assert [(one["instance_id"], one["prompt"][0]["content"]) for one in read_problems(path)] == [(0, "a"), (2, "b")]
    path.write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    with pytest.raises(ValueError, match="line 2 "):
        read_problems(path)


def test_a_generator_with_a_loop_of_its_own_finds_what_the_original_has() -> None:
    # By position, as subclasses pass them on.
    generator = BaseGenerator("http://engine/v1", "http://buffer", 2, 100, 3, "own", 64, 10, ["a", "b"])
    assert (generator.queue_size, generator.num_process, generator.task_type, generator.max_tokens, generator.num_repeats) == (100, 3, "own", 64, 10)
    assert generator.skip_instance_ids == ["a", "b", "a", "b"]
    assert str(generator.client.base_url).rstrip("/") == "http://engine/v1"
    own: Callable[..., Any] = partial(BaseGenerator, "http://engine", "http://buffer")
    assert own().skip_instance_ids is None
