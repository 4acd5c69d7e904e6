"""The gateway in front of vLLM, as it was recorded with a real one (`tests/recorded`): the same requests must be made, and every token be stored as it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.recorded.vllm_exchange import RECORDING, Replayer, play
from tests.services.gateway_stage import Stage

from penstock.chat import ChatTemplate
from penstock.trace import samples
from penstock.types import Evidence, Rollout, RolloutStatus

Choice = tuple[list[int], list[float]]


@pytest.fixture
def replayer() -> Iterator[Replayer]:
    made = Replayer(json.loads(RECORDING.read_text())["exchanges"])
    yield made
    made.server.close()


@pytest.fixture
def stage(tmp_path: Path, replayer: Replayer) -> Iterator[Stage]:
    made = Stage(tmp_path, replayer.server.url)
    made.start_gateway()
    yield made
    made.close()


def recorded() -> list[list[Choice]]:
    """What the engine sampled, answer by answer: ids and logprobs of each choice."""
    answers = []
    for exchange in json.loads(RECORDING.read_text())["exchanges"]:
        if exchange["path"] != "/v1/completions" or exchange["status"] != 200:
            continue
        events = [json.loads(line[5:]) for line in exchange["answer"].splitlines() if line.startswith("data: {")] or [json.loads(exchange["answer"])]
        choices: dict[int, Choice] = {}
        for choice in (choice for event in events for choice in event["choices"]):
            ids, logprobs = choices.setdefault(choice["index"], ([], []))
            ids += choice["token_ids"]
            logprobs += choice["logprobs"]["token_logprobs"]
        answers.append([choices[index] for index in sorted(choices)])
    return answers


def trained(rollout: Rollout) -> tuple[list[int], list[float], set[Any]]:
    (sample,) = samples(rollout)
    evidence = {(run.policy, run.version, run.evidence) for segment in rollout.trace.segments for run in segment.versions}
    return sample.ids[sample.loss_mask].tolist(), sample.logprobs[sample.loss_mask].tolist(), evidence


def test_a_conversation_with_vllm_is_stored_as_it_was_sampled(stage: Stage, replayer: Replayer) -> None:
    group = {"group_size": 2, "environment": "env", "problem_id": "p"}
    plain, bent = stage.open(group_id="plain/0/0", **group), stage.open(group_id="bent/0/0", allow_filters=True, **group)
    played = play(plain["base_url"], bent["base_url"])
    assert (replayer.strangers, replayer.num_left) == ([], 0)
    answers = recorded()
    # What clients are told is what the tokens spell.
    template = ChatTemplate.load(stage.model)
    assert played.told == [[template.split_reply(ids).text for ids, _ in choices] for choices in answers]
    assert "context length" in played.refused
    assert played.alternatives == 2
    rollout = stage.rollout(stage.end(plain, reward=1.0)["rollout_uid"])
    kept = [answers[0][1], *(choices[0] for choices in answers[1:4])]
    ids, logprobs, evidence = trained(rollout)
    assert ids == [id for choice in kept for id in choice[0]]
    assert logprobs == np.array([logprob for choice in kept for logprob in choice[1]], np.float32).tolist()
    assert evidence == {("policy", 0, Evidence.ASSERTED)}
    assert rollout.metadata["abandoned"] == {"unused_choice": 1}
    assert [turn.inference_metadata.finish_reason for turn in rollout if turn.role == "assistant"][-2:] == played.finished[2:4]
    # Bent sampling is stored and carries no loss.
    filtered = stage.rollout(stage.end(bent, reward=1.0)["rollout_uid"])
    assert (filtered.status, filtered.metadata["error"]) == (RolloutStatus.ENV_ERROR, "not_trainable")
