from dataclasses import replace

import numpy as np
import pytest
import xxhash

from penstock.errors import InvalidError
from penstock.trace import Advantages, Recorder, Span, facts, injected_tokens, samples, step_marks, steps
from penstock.types import Message, Rollout, RolloutStatus, Source, StepFacts, VersionRun


def of(version: int, count: int, policy: str = "policy", mixed_kv: bool = False) -> VersionRun:
    return VersionRun(policy=policy, version=version, count=count, mixed_kv=mixed_kv)


def rollout_of(recorder: Recorder) -> Rollout:
    return Rollout(run="run", environment="env", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="uid", trace=recorder.trace(), reward=1.0)


def says(recorder: Recorder, role: str, ids: list[int], version: int = 1, policy: str = "policy", step: StepFacts | None = None) -> Span:
    """Record a whole message; an assistant's tokens are sampled with logprob -id/10."""
    recorder.open_message()
    if role == "assistant":
        span = recorder.append(ids, Source.SAMPLED, logprobs=[-token / 10 for token in ids], versions=[of(version, len(ids), policy)])
    else:
        span = recorder.append(ids, Source.ENV)
    recorder.close_message(Message(role=role, content=f"{role} {ids}"), step=step)
    return span


def two_turns() -> Recorder:
    recorder = Recorder()
    says(recorder, "user", [1, 2])
    says(recorder, "assistant", [3], version=4)
    says(recorder, "tool", [5])
    says(recorder, "assistant", [6, 7], version=5)
    return recorder


def test_a_chain_is_one_sample_with_loss_on_what_was_sampled() -> None:
    (sample,) = samples(rollout_of(two_turns()), advantages=0.5)
    assert (sample.run, sample.environment, sample.group_id, sample.rollout_uid) == ("run", "env", "g/0/0", "uid")
    assert sample.path == (0, 1, 2, 3)
    assert sample.lengths == (2, 1, 1, 2)
    assert sample.ids.tolist() == [1, 2, 3, 5, 6, 7]
    assert sample.loss_mask.tolist() == [False, False, True, False, True, True]
    assert np.allclose(sample.logprobs, [0, 0, -0.3, 0, -0.6, -0.7])
    assert sample.versions.tolist() == [-1, -1, 4, -1, 5, 5]
    assert sample.advantages.tolist() == [0, 0, 0.5, 0, 0.5, 0.5]


@pytest.mark.parametrize("advantages", [[2.0, -1.0], {1: 2.0, 3: -1.0}, np.array([2.0, -1.0])])
def test_advantages_may_be_given_by_step_or_by_message(advantages: Advantages) -> None:
    (sample,) = samples(rollout_of(two_turns()), advantages=advantages)
    assert sample.advantages.tolist() == [0, 0, 2, 0, -1, -1]


@pytest.mark.parametrize(
    ("advantages", "words"),
    [
        (float("nan"), "advantages must be a finite number, got nan"),
        ([1.0], "one per step, got 1 for 2 steps"),
        ({1: 1.0}, "no value for the message that segments\\[3\\] belongs to"),
        ({9: 1.0}, "name message 9, but the trace has 4"),
        ([1.0, float("inf")], "advantages\\[3\\] must be a finite number, got inf"),
    ],
)
def test_advantages_that_do_not_fit_are_refused(advantages: Advantages, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        samples(rollout_of(two_turns()), advantages=advantages)


def test_a_shared_sampled_segment_carries_loss_on_the_first_path_only() -> None:
    recorder = Recorder()
    says(recorder, "user", [1])
    reply = says(recorder, "assistant", [2, 3])
    says(recorder, "user", [4])
    says(recorder, "assistant", [5])
    recorder.fork(reply, tokens=1)  # the client stripped the end of the reply
    says(recorder, "user", [6])
    says(recorder, "assistant", [7])
    first, second = samples(rollout_of(recorder))
    assert (first.ids.tolist(), first.loss_mask.tolist()) == ([1, 2, 3, 4, 5], [False, True, True, False, True])
    assert (second.ids.tolist(), second.loss_mask.tolist()) == ([1, 2, 6, 7], [False, False, False, True])
    assert second.versions.tolist() == [-1, 1, -1, 1]


def test_an_abandoned_branch_is_never_trained() -> None:
    recorder = Recorder()
    prompt = says(recorder, "user", [1])
    unused = says(recorder, "assistant", [2])
    recorder.fork(prompt)
    says(recorder, "assistant", [3])
    recorder.abandon(unused, "unused_choice")
    (sample,) = samples(rollout_of(recorder))
    assert sample.ids.tolist() == [1, 3]


def test_a_path_without_loss_is_no_sample() -> None:
    recorder = Recorder()
    prompt = says(recorder, "user", [1])
    says(recorder, "assistant", [2])
    recorder.fork(prompt)
    says(recorder, "user", [3])
    assert [sample.ids.tolist() for sample in samples(rollout_of(recorder))] == [[1, 2]]
    assert samples(rollout_of(Recorder())) == []


def test_tokens_of_other_policies_are_context() -> None:
    recorder = Recorder()
    says(recorder, "user", [1])
    says(recorder, "assistant", [2], version=9, policy="summariser")
    recorder.append([3, 4, 5], Source.SAMPLED, logprobs=[-1, -2, -3], versions=[of(1, 1), of(8, 1, "opponent"), of(2, 1, mixed_kv=True)])
    (sample,) = samples(rollout_of(recorder))
    assert sample.loss_mask.tolist() == [False, False, True, False, True]
    assert sample.versions.tolist() == [-1, -1, 1, -1, 2]
    assert sample.logprobs.tolist() == [0, 0, -1, 0, -3]
    assert sample.mixed_kv.tolist() == [False, False, False, False, True]
    (theirs,) = samples(rollout_of(recorder), policy="summariser")
    assert theirs.loss_mask.tolist() == [False, True, False, False, False]


def test_named_arrays_and_media_follow_the_path() -> None:
    recorder = Recorder()
    recorder.append([1, 1], Source.ENV, media=("one", "two"))
    recorder.append([2], Source.ENV)
    recorder.append([3], Source.SAMPLED, logprobs=[-1], versions=[of(1, 1)], arrays={"routes": np.array([[4, 5]], np.int8)})
    recorder.append([1], Source.ENV, media=("three",))
    (sample,) = samples(rollout_of(recorder))
    assert sample.arrays["routes"].tolist() == [[0, 0], [0, 0], [0, 0], [4, 5], [0, 0]]
    assert sample.arrays["routes"].dtype == np.int8
    assert sample.media == ((0, "one"), (0, "two"), (4, "three"))


def test_named_arrays_of_two_shapes_on_one_path_are_refused() -> None:
    recorder = Recorder()
    recorder.append([1], Source.ENV, arrays={"routes": [[1, 2]]})
    recorder.append([2], Source.SAMPLED, logprobs=[-1], versions=[of(1, 1)], arrays={"routes": [1]})
    with pytest.raises(InvalidError, match="arrays\\['routes'\\]"):
        samples(rollout_of(recorder))


def test_injected_tokens_carry_loss_only_where_that_is_declared() -> None:
    recorder = Recorder()
    prompt = says(recorder, "user", [1])
    says(recorder, "assistant", [2])
    recorder.fork(prompt)
    recorder.append([3, 4], Source.INJECTED, logprobs=[-1, -2], versions=[of(6, 2)])
    assert [sample.ids.tolist() for sample in samples(rollout_of(recorder))] == [[1, 2]]
    _, injected = samples(rollout_of(recorder), train_injected=True)
    assert injected.loss_mask.tolist() == [False, True, True]
    assert injected.logprobs.tolist() == [0, -1, -2]
    assert injected.versions.tolist() == [-1, 6, 6]
    assert injected_tokens(rollout_of(recorder)) == 2
    assert injected_tokens(rollout_of(recorder), policy="summariser") == 0


@pytest.mark.parametrize(("logprobs", "missing"), [(None, "logprobs"), ([-1.0], "versions")])
def test_injected_tokens_without_a_scorers_word_are_not_trained_silently(logprobs: list[float] | None, missing: str) -> None:
    recorder = Recorder()
    says(recorder, "assistant", [1])
    recorder.append([2], Source.INJECTED, logprobs=logprobs)
    with pytest.raises(InvalidError, match=f"segments\\[1\\] is injected and has no {missing}"):
        samples(rollout_of(recorder), train_injected=True)


def test_a_step_for_each_assistants_message() -> None:
    recorder = Recorder()
    says(recorder, "user", [1])
    says(recorder, "assistant", [2, 3], step=StepFacts(observation="hall", action={"type": "tool_call"}, info={"ok": True}, value_estimate=0.5))
    recorder.attach(1, reward=0.25)
    says(recorder, "tool", [4])
    says(recorder, "tool", [5])
    says(recorder, "assistant", [6])
    first, second = steps(rollout_of(recorder))
    assert (first.system_step_index, first.observation_data, first.action_taken) == (0, "hall", {"type": "tool_call"})
    assert (first.step_info, first.policy_value_estimate, first.is_done, first.base_reward) == ({"ok": True}, 0.5, False, 0.25)
    assert first.raw_policy_output == "assistant [2, 3]"
    assert [message.content for message in first.resulting_messages_history] == ["user [1]", "assistant [2, 3]", "tool [4]", "tool [5]"]
    assert first.policy_logprobs["token_ids"] == [2, 3]
    assert np.allclose(first.policy_logprobs["logprobs"], [-0.2, -0.3])
    assert second.system_step_index == 1
    assert second.observation_data == [
        {"role": "user", "content": "user [1]"},
        {"role": "assistant", "content": "assistant [2, 3]"},
        {"role": "tool", "content": "tool [4]"},
        {"role": "tool", "content": "tool [5]"},
    ]
    assert second.action_taken == {"type": "text", "content": "assistant [6]"}
    assert (second.is_done, second.base_reward, second.advantage) == (True, None, None)
    assert len(second.resulting_messages_history) == 5


def test_the_last_step_of_a_truncated_rollout_is_not_done() -> None:
    rollout = replace(rollout_of(two_turns()), status=RolloutStatus.TRUNCATED)
    assert [step.is_done for step in steps(rollout)] == [False, False]


def test_steps_follow_their_own_branch_and_skip_abandoned_ones() -> None:
    recorder = Recorder()
    prompt = says(recorder, "user", [1])
    unused = says(recorder, "assistant", [2])
    recorder.fork(prompt)
    says(recorder, "assistant", [3])
    says(recorder, "user", [4])
    recorder.abandon(unused, "unused_choice")
    rollout = rollout_of(recorder)
    (step,) = steps(rollout)
    assert step_marks(rollout.trace) == [2]
    assert [message.content for message in step.resulting_messages_history] == ["user [1]", "assistant [3]", "user [4]"]


def test_an_abandoned_answer_is_not_in_the_history_of_its_step() -> None:
    recorder = Recorder()
    says(recorder, "assistant", [1])
    mistaken = says(recorder, "user", [2])
    recorder.abandon(mistaken, "client_retry")
    says(recorder, "user", [3])
    (step,) = steps(rollout_of(recorder))
    assert [message.content for message in step.resulting_messages_history] == ["assistant [1]", "user [3]"]


def test_a_message_that_a_path_leaves_before_its_end_is_not_in_its_history() -> None:
    recorder = Recorder()
    says(recorder, "user", [1])
    edited = says(recorder, "user", [2, 3])
    says(recorder, "assistant", [4])
    recorder.fork(edited, tokens=1)
    says(recorder, "user", [5])
    says(recorder, "assistant", [6])
    _, second = steps(rollout_of(recorder))
    assert [message.content for message in second.resulting_messages_history] == ["user [1]", "user [5]", "assistant [6]"]


def test_messages_without_tokens_follow_each_other() -> None:
    recorder = Recorder()
    for role in ("user", "assistant", "user", "assistant"):
        recorder.open_message()
        recorder.close_message(Message(role=role, content=role))
    first, second = steps(rollout_of(recorder))
    assert [message.role for message in first.resulting_messages_history] == ["user", "assistant", "user"]
    assert first.policy_logprobs is None
    assert len(second.resulting_messages_history) == 4


def test_tool_calls_are_part_of_what_the_policy_saw() -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.ENV)
    recorder.close_message(Message(role="tool", content="3", tool_call_id="c1", name="add"))
    says(recorder, "assistant", [2])
    (step,) = steps(rollout_of(recorder))
    assert step.observation_data == [{"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}]


def test_facts_count_kept_branches_and_our_versions() -> None:
    recorder = Recorder()
    recorder.append([1], Source.TEMPLATE)
    prompt = says(recorder, "user", [2, 3])
    unused = says(recorder, "assistant", [9, 9, 9], version=2)
    recorder.fork(prompt)
    says(recorder, "assistant", [4], version=7)
    says(recorder, "assistant", [5], version=1, policy="summariser")
    says(recorder, "assistant", [6, 7], version=5)
    recorder.abandon(unused, "unused_choice")
    found = facts(rollout_of(recorder))
    assert (found.tokens, found.sampled_tokens, found.prefix_tokens) == (7, 3, 3)
    assert (found.versions, found.oldest_version, found.newest_version) == ((5, 7), 5, 7)
    assert found.prefix_digest == xxhash.xxh3_128_hexdigest(np.array([1, 2, 3], "<i4").tobytes())


def test_a_prefix_does_not_depend_on_how_it_was_cut_into_segments() -> None:
    one, other = Recorder(), Recorder()
    one.append([1, 2, 3], Source.ENV)
    other.append([1], Source.TEMPLATE)
    other.append([2, 3], Source.ENV)
    for recorder in (one, other):
        says(recorder, "assistant", [4])
    assert facts(rollout_of(one)) == facts(rollout_of(other))


def test_a_prefix_ends_inside_a_segment_that_another_policy_began() -> None:
    recorder = Recorder()
    recorder.append([1, 2, 3], Source.SAMPLED, logprobs=[-1, -1, -1], versions=[of(3, 2, "opponent"), of(4, 1)])
    assert facts(rollout_of(recorder)).prefix_tokens == 2


def test_a_prefix_ends_before_media() -> None:
    recorder = Recorder()
    recorder.append([1], Source.ENV)
    recorder.append([2], Source.ENV, media=("digest",))
    says(recorder, "assistant", [3])
    assert facts(rollout_of(recorder)).prefix_tokens == 1


def test_a_rollout_without_tokens_has_facts_too() -> None:
    found = facts(rollout_of(Recorder()))
    assert (found.tokens, found.sampled_tokens, found.prefix_tokens, found.versions, found.oldest_version) == (0, 0, 0, (), None)


def silent(recorder: Recorder, role: str, content: str) -> None:
    recorder.open_message()
    recorder.close_message(Message(role=role, content=content))


def test_messages_without_tokens_belong_to_the_history_of_what_follows_them() -> None:
    recorder = Recorder()
    silent(recorder, "system", "rules")
    silent(recorder, "user", "")
    recorder.append([1, 2], Source.TEMPLATE)
    says(recorder, "assistant", [3])
    silent(recorder, "user", "on")
    says(recorder, "assistant", [4])
    histories = [[message.content for message in step.resulting_messages_history] for step in steps(rollout_of(recorder))]
    assert histories == [["rules", "", "assistant [3]", "on"], ["rules", "", "assistant [3]", "on", "assistant [4]"]]


def test_messages_without_tokens_do_not_join_branches() -> None:
    recorder = Recorder()
    says(recorder, "user", [1])
    says(recorder, "assistant", [2])
    silent(recorder, "user", "on the first branch")
    recorder.fork(recorder.message_spans(0)[-1])
    says(recorder, "assistant", [3])
    histories = [[message.content for message in step.resulting_messages_history] for step in steps(rollout_of(recorder))]
    assert histories[1] == ["user [1]", "assistant [3]"]
