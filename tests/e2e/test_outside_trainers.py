"""The trainers of others, as their page starts them: against a real buffer, killed where it hurts, and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.services.buffers import Process

from penstock.testing.inference import running_server

EXAMPLES = Path(__file__).parents[2] / "examples" / "outside_trainers"
LIVES = Path(__file__).parents[1] / "data" / "outside_trainers" / "lives.py"
KILLED = "ended: -9"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "nano"
    subprocess.run([sys.executable, "-m", "penstock", "init", "model", str(directory)], check=True, capture_output=True)
    return str(directory)


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[Process]:
    (tmp_path / "buffer").mkdir()
    running = Process(tmp_path / "buffer")
    yield running
    running.kill()


def lived(*lives: dict[str, Any], folder: Path) -> list[str]:
    """What the lives of examples printed, one after another."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "PYTHONPATH": str(LIVES.parent)}
    done = subprocess.run(
        [sys.executable, str(LIVES), str(EXAMPLES), json.dumps(lives)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "ended: 1" not in done.stdout.splitlines(), done.stderr
    return done.stdout.splitlines()


def states(buffer: Process, run: str) -> dict[str, int]:
    (balance,) = buffer.get(f"/v1/runs/{run}/ledger")["balances"]
    return dict(balance["groups"])


def weights(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor for name, tensor in load_file(path).items() if name.startswith("model/")}


def same(one: Path, other: Path) -> bool:
    left, right = weights(one), weights(other)
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


# A plain loop


def test_a_torch_loop_that_is_killed_anywhere_trains_every_group_once(buffer: Process, model: str, tmp_path: Path) -> None:
    def play(run: str) -> dict[str, Any]:
        return {"module": "play", "words": ["--buffer", buffer.url, "--run", run, "--model", model, "--groups", "6", "--group-size", "3", "--tokens", "6"]}

    def loop(run: str, steps: int, **death: Any) -> dict[str, Any]:
        words = ["--buffer", buffer.url, "--run", run, "--model", model, "--checkpoint", f"{run}.safetensors", "--groups-per-step", "2"]
        return {"module": "torch_loop", "words": [*words, "--steps", str(steps)], **death}

    told = lived(
        play("calm"),
        loop("calm", 3),
        play("killed"),
        loop("killed", 3, dies_in="Policy.save"),  # its first step is leased and trained, not saved
        loop("killed", 3, dies_in="settle", count=2),  # saved, not settled
        loop("killed", 3),
        play("late"),
        loop("late", 4, dies_in="settle", count=2),
        # The lease is over before the trainer is back: its groups are there for all again.
        {"post": f"{buffer.url}/v1/runs/late/leases/torch-loop-0.0/release", "body": {"consumer": "torch-loop"}},
        loop("late", 4),
        folder=tmp_path,
    )
    assert told.count(KILLED) == 3
    assert same(tmp_path / "killed.safetensors", tmp_path / "calm.safetensors")
    # The first two groups came a second time: they were left out, and settled.
    assert "step 1: 0 groups, 0 rows, loss 0.0000" in told
    assert same(tmp_path / "late.safetensors", tmp_path / "calm.safetensors")
    assert [states(buffer, run) for run in ("calm", "killed", "late")] == [{"spent": 6}] * 3


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.usefixtures("examples")
def test_rows_follow_the_kept_branches_and_every_sampled_token_carries_loss_once() -> None:
    from leases import Row, rows_of

    segments = [
        {"parent": None, "ids": [1, 2], "source": "env"},
        {"parent": 0, "ids": [3, 4], "source": "sampled", "logprobs": [-0.1, -0.2]},
        {"parent": 1, "ids": [5], "source": "env"},
        {"parent": 2, "ids": [6], "source": "sampled", "logprobs": [-0.3]},
        {"parent": 1, "ids": [7], "source": "sampled", "logprobs": [-0.4]},
        {"parent": 2, "ids": [8], "source": "sampled", "logprobs": [-0.5], "abandoned": "retried"},
    ]
    assert rows_of({"reward": 1.0, "trace": {"segments": segments}}) == [
        Row(ids=[1, 2, 3, 4, 5, 6], mask=[0, 0, 1, 1, 0, 1], logprobs=[0.0, 0.0, -0.1, -0.2, 0.0, -0.3]),
        Row(ids=[1, 2, 3, 4, 7], mask=[0, 0, 0, 0, 1], logprobs=[0.0, 0.0, 0.0, 0.0, -0.4]),
    ]
    assert rows_of({"reward": None, "status": "infra_error", "trace": {"segments": segments}}) == []


@pytest.mark.usefixtures("examples")
def test_a_step_makes_what_was_rewarded_likelier_and_its_loss_is_worked_out_from_ratios(model: str) -> None:
    from leases import Row
    from policy import Policy

    policy = Policy(model, learning_rate=1e-3)
    good, bad = [5, 6, 7, 8], [5, 6, 9]
    before = [policy.logprobs(ids).tolist() for ids in (good, bad)]
    # The sampler found the first reply's tokens e^0.1 times likelier, the second's half as likely: the ratio is 2, and clipping keeps the worse of 2 and 1.2.
    rows = [
        Row(ids=good, mask=[0, 0, 1, 1], logprobs=[0.0, 0.0, before[0][1] + 0.1, before[0][2] + 0.1]),
        Row(ids=bad, mask=[0, 0, 1], logprobs=[0.0, 0.0, before[1][1] - np.log(2)]),
    ]
    loss = policy.step(rows, [0.5, -0.5])
    assert loss == pytest.approx(-(2 * np.exp(-0.1) * 0.5 - 2 * 0.5) / 3, rel=1e-4)
    after = [policy.logprobs(ids).tolist() for ids in (good, bad)]
    assert sum(after[0][1:]) > sum(before[0][1:])
    assert after[1][1] < before[1][1]


# TRL


def written(buffer: Process, run: str, group: str, rewards: list[float | None]) -> None:
    """A group whose members are what `rewards` says; None is one that failed."""
    buffer.post(f"/v1/runs/{run}", json.dumps({"laws": {"max_retries": 0}, "initial_digest": "none"}).encode())
    opened = {"id": group, "environment": "env", "problem_id": "p", "size": len(rewards), "first_estimate": 10}
    buffer.post(f"/v1/runs/{run}/groups", json.dumps({"groups": [opened]}).encode())
    for member, reward in enumerate(rewards):
        runs = [{"policy": "policy", "version": 0, "count": 2}]
        segments = [
            {"parent": None, "ids": [10, 11, 12], "source": "env"},
            {"parent": 0, "ids": [20, 21 + member], "source": "sampled", "logprobs": [-5.0, -6.0 - member], "versions": runs},
            {"parent": 1, "ids": [30], "source": "env"},
            {"parent": 2, "ids": [40, 41], "source": "sampled", "logprobs": [-4.0, -7.0], "versions": runs},
        ]
        facts = {"run": run, "environment": "env", "problem_id": "p", "group_id": group, "member": member, "retry": 0, "rollout_uid": f"{group}:{member}"}
        outcome = {"reward": reward} if reward is not None else {"reward": None, "status": "infra_error", "failure": "the tool hung"}
        body = [{"schema": 1, "kind": "rollout", "value": {**facts, **outcome, "trace": {"segments": segments}}}]
        status, answer = buffer.post(f"/v1/runs/{run}/rollouts", json.dumps(body).encode())
        assert status == 200, answer


def test_trl_trains_on_leased_tokens_without_its_own_normalisation_and_settles_what_it_has_saved(buffer: Process, model: str, tmp_path: Path) -> None:
    for number, rewards in enumerate([[1.0, 0.0, None], [4.0, 1.0, 1.0], [0.0, 1.0, 0.5], [1.0, 0.0, 0.0]]):
        written(buffer, "trl", f"s/0/{number}", rewards)
    words = ["--buffer", buffer.url, "--run", "trl", "--model", model, "--out", "out", "--steps", "2", "--groups-per-step", "2", "--group-size", "3"]
    told = lived(
        {"module": "watched_trl", "words": words, "dies_in": "trl_grpo.Feed.settle"},  # the first checkpoint is there, nothing is settled
        {"module": "watched_trl", "words": words},
        folder=tmp_path,
    )
    assert [line for line in told if line.startswith("ended")] == [KILLED, "ended: 0"]
    first, second = (json.loads(line.removeprefix("batch: ")) for line in told if line.startswith("batch: "))
    # Rewards less the mean of their group; the failed member's place is empty.
    assert first["advantages"] == pytest.approx([0.5, -0.5, 0.0, 2.0, -1.0, -1.0])
    assert first["tokens"] == [[20, 21, 30, 40, 41], [20, 22, 30, 40, 41], [], [20, 21, 30, 40, 41], [20, 22, 30, 40, 41], [20, 23, 30, 40, 41]]
    assert first["trained"] == [[20, 21, 40, 41], [20, 22, 40, 41], [], [20, 21, 40, 41], [20, 22, 40, 41], [20, 23, 40, 41]]
    assert first["old"][1] == pytest.approx([-5.0, -7.0, -4.0, -7.0])
    # The second life goes on behind the checkpoint: other groups, and the first ones are settled.
    assert second["advantages"] == pytest.approx([-0.5, 0.5, 0.0, 2 / 3, -1 / 3, -1 / 3])
    assert states(buffer, "trl") == {"spent": 4}


# In the old style


def test_a_polling_client_goes_on_from_its_checkpoint_with_the_same_buffer_and_with_a_new_one(model: str, tmp_path: Path) -> None:
    problems = (EXAMPLES / "letters.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "all.jsonl").write_text("".join(problems))
    (tmp_path / "some.jsonl").write_text("".join(problems[:4]))
    (tmp_path / "served").mkdir()
    buffers = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        buffers.append(Process(tmp_path / name, "--generators", str(EXAMPLES / "generator"), "--data-root", str(tmp_path)))
    old, new = buffers
    try:
        with running_server(tmp_path / "served", Path(model)) as server:

            def client(buffer: Process, file: str, steps: int, **death: Any) -> dict[str, Any]:
                words = ["--buffer", buffer.url, "--engine", server.url, "--model", model, "--input-file", file, "--poll-seconds", "0.1", "--max-tokens", "16"]
                return {"module": "polling_client", "words": [*words, "--steps", str(steps)], **death}

            told = lived(
                client(old, "some.jsonl", 1, dies_in="Reads._note"),  # the buffer gave, and the client does not know it
                client(old, "some.jsonl", 1, dies_in="Policy.save"),  # read and trained, not saved
                client(old, "some.jsonl", 1),
                client(new, "all.jsonl", 100),
                folder=tmp_path,
            )
        assert told.count(KILLED) == 2
        again = [line for line in told if "not in the checkpoint" in line]
        assert len(again) == 2
        read_ids = [json.loads(line)["read_id"] for line in (tmp_path / "polling_client.reads").read_text().splitlines()]
        assert len(read_ids) == len(set(read_ids))
        facts = checkpoint_facts(tmp_path / "polling_client.safetensors")
        (steps,) = (line for line in told if line.startswith("the generator has ended"))
        assert facts["step"] == int(steps.split()[-2]) > 1
        # The new buffer was given the instances that were not done, and no others.
        done_before = {line for line in told if "instances are done" in line}
        assert any("generator letters is started, 0 instances" in line for line in done_before)
        made = {row["problem_id"] for row in exported(new)}
        assert made == {json.loads(line)["instance_id"] for line in problems} - finished_in(old)
        assert len(made) >= 4
    finally:
        for running in buffers:
            running.kill()


def checkpoint_facts(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        facts: dict[str, Any] = json.loads(file.metadata()["facts"])
    return facts


def exported(buffer: Process) -> list[dict[str, Any]]:
    status, answer = buffer.ask("GET", "/v1/runs/default/export")
    assert status == 200, answer
    return [json.loads(line) for line in answer.splitlines()]


def finished_in(buffer: Process) -> set[str]:
    """Instances of which a read has told that they are finished."""
    return {row["problem_id"] for row in exported(buffer) if row["state"] == "spent" or row["reason"] is not None}


def test_of_a_surplus_the_newest_groups_are_taken() -> None:
    done = subprocess.run([sys.executable, "-m", "doctest", str(EXAMPLES / "polling_client.py")], cwd=EXAMPLES, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_the_page_starts_what_is_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "outside-trainers.md").read_text()
    for file in sorted(path.name for path in EXAMPLES.glob("*.py")):
        assert file in page, file
