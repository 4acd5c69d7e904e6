import re
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from penstock.errors import InvalidError, MalformedError
from penstock.trace import Recorder, Span, checked_tokens
from penstock.types import InferenceMetadata, Message, Rollout, Source, StepFacts, Trace, VersionRun
from penstock.wire import MAX_DEPTH, decode_json, encode_json

USER = Message(role="user", content="hello")
REPLY = Message(role="assistant", content="hi")


def of(version: int, count: int, policy: str = "policy") -> VersionRun:
    return VersionRun(policy=policy, version=version, count=count)


def sampled(recorder: Recorder, ids: list[int], version: int = 1) -> Span:
    return recorder.append(ids, Source.SAMPLED, logprobs=[-float(token) for token in ids], versions=[of(version, len(ids))])


def shape(trace: Trace) -> list[tuple[int | None, list[int], str | None]]:
    return [(segment.parent, segment.ids.tolist(), segment.abandoned) for segment in trace.segments]


def test_appends_hang_on_each_other_in_order() -> None:
    recorder = Recorder()
    recorder.append([1, 2], Source.TEMPLATE)
    recorder.append([3], Source.ENV)
    sampled(recorder, [4, 5])
    assert shape(recorder.trace()) == [(None, [1, 2], None), (0, [3], None), (1, [4, 5], None)]
    assert recorder.ids().tolist() == [1, 2, 3, 4, 5]
    assert recorder.num_tokens == 5


def test_a_recorder_without_tokens_gives_an_empty_trace() -> None:
    recorder = Recorder()
    assert recorder.trace().segments == ()
    assert recorder.ids().tolist() == []
    assert recorder.tip is None


def test_a_message_marks_its_segments_with_all_that_is_known() -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.TEMPLATE)
    recorder.append([2, 3], Source.ENV)
    assert recorder.close_message(USER, timestamp=17) == 0
    recorder.open_message()
    sampled(recorder, [4])
    metadata = InferenceMetadata(finish_reason="stop")
    assert recorder.close_message(REPLY, inference=metadata, step=StepFacts(observation="door"), reward=0.5, rewards={"format": 1}) == 1
    user, reply = recorder.trace().marks
    assert (user.message, user.start, user.stop, user.timestamp) == (USER, 0, 2, 17)
    assert (reply.message, reply.start, reply.stop, reply.reward, reply.rewards) == (REPLY, 2, 3, 0.5, {"format": 1.0})
    assert reply.inference is metadata
    assert reply.step == StepFacts(observation="door")


def test_what_is_known_later_is_attached_to_the_message() -> None:
    recorder = Recorder()
    recorder.open_message()
    sampled(recorder, [1])
    reply = recorder.close_message(REPLY, rewards={"format": 1.0})
    before = recorder.trace()
    recorder.attach(reply, reward=0.25, rewards={"answer": 0.0}, step=StepFacts(done=True))
    mark = recorder.trace().marks[0]
    assert (mark.reward, mark.rewards, mark.step) == (0.25, {"format": 1.0, "answer": 0.0}, StepFacts(done=True))
    assert before.marks[0].reward is None


def test_a_message_without_tokens_is_an_empty_mark() -> None:
    recorder = Recorder()
    recorder.append([1], Source.ENV)
    recorder.open_message()
    recorder.close_message(USER)
    recorder.append([2], Source.ENV)
    assert [(mark.start, mark.stop) for mark in recorder.trace().marks] == [(1, 1)]


def test_a_reply_that_comes_token_by_token_is_one_segment_with_merged_versions() -> None:
    recorder = Recorder()
    recorder.open_message()
    for token, version in ((5, 1), (6, 1), (7, 2)):
        recorder.append([token], Source.SAMPLED, logprobs=[-float(token)], versions=[of(version, 1)], arrays={"value": np.array([token / 10])})
    recorder.close_message(REPLY)
    (segment,) = recorder.trace().segments
    assert segment.ids.tolist() == [5, 6, 7]
    assert segment.logprobs is not None
    assert segment.logprobs.tolist() == [-5.0, -6.0, -7.0]
    assert segment.versions == (of(1, 2), of(2, 1))
    assert segment.arrays["value"].tolist() == [0.5, 0.6, 0.7]


def test_a_message_of_one_run_is_the_same_as_one_that_is_opened_and_closed() -> None:
    tokens = [checked_tokens([1, 2], Source.ENV), checked_tokens([3], Source.ENV)]
    at_once, step_by_step = Recorder(), Recorder()
    for number, run in enumerate(tokens):
        message = Message(role="user", content=str(number))
        assert at_once.append_message(run, message, timestamp=number) == number
        step_by_step.open_message()
        step_by_step.append_checked(run)
        step_by_step.close_message(message, timestamp=number)
    assert encode_json(at_once.trace()) == encode_json(step_by_step.trace())
    assert at_once.ids().tolist() == [1, 2, 3]
    at_once.open_message()
    with pytest.raises(InvalidError, match="while a message is open"):
        at_once.append_message(tokens[0], Message(role="user", content="inside"))


def test_a_message_border_is_a_segment_border() -> None:
    recorder = Recorder()
    recorder.append([9], Source.ENV)
    for token in (1, 2):
        recorder.open_message()
        recorder.append([token], Source.ENV)
        recorder.close_message(USER)
    recorder.append([3], Source.ENV)
    trace = recorder.trace()
    assert [segment.ids.tolist() for segment in trace.segments] == [[9], [1], [2], [3]]
    assert [(mark.start, mark.stop) for mark in trace.marks] == [(1, 2), (2, 3)]


@pytest.mark.parametrize("other", [{"media": ("digest",)}, {"arrays": {"value": [1.0]}}])
def test_appends_that_are_not_alike_stay_apart(other: dict[str, object]) -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.ENV)
    recorder.append([2], Source.ENV, **other)  # type: ignore[arg-type]
    assert len(recorder.trace().segments) == 2


def test_a_fork_at_a_border_splits_nothing() -> None:
    recorder = Recorder()
    prompt = recorder.append([1, 2], Source.ENV)
    sampled(recorder, [3])
    recorder.fork(prompt)
    sampled(recorder, [4])
    assert shape(recorder.trace()) == [(None, [1, 2], None), (0, [3], None), (0, [4], None)]


def test_a_fork_inside_a_segment_splits_it_and_keeps_everything_aligned() -> None:
    recorder = Recorder()
    recorder.append([9], Source.ENV)
    recorder.open_message()
    reply = recorder.append(
        [1, 2, 3, 4], Source.SAMPLED, logprobs=[-1, -2, -3, -4], versions=[of(1, 1), of(2, 3)], arrays={"value": np.array([[1], [2], [3], [4]])}
    )
    recorder.close_message(REPLY)
    after = recorder.append([8], Source.ENV)
    recorder.append([5], Source.ENV, after=Span(run=reply.run, start=0, stop=2))
    recorder.open_message()
    recorder.append([6], Source.ENV)
    recorder.close_message(USER)
    trace = recorder.trace()
    assert shape(trace) == [(None, [9], None), (0, [1, 2], None), (1, [3, 4], None), (2, [8], None), (1, [5], None), (4, [6], None)]
    assert [(mark.start, mark.stop) for mark in trace.marks] == [(1, 3), (5, 6)]
    upper, lower = trace.segments[1:3]
    assert upper.versions == (of(1, 1), of(2, 1))
    assert lower.versions == (of(2, 2),)
    assert upper.logprobs is not None
    assert lower.logprobs is not None
    assert (upper.logprobs.tolist(), lower.logprobs.tolist()) == ([-1.0, -2.0], [-3.0, -4.0])
    assert (upper.arrays["value"].tolist(), lower.arrays["value"].tolist()) == ([[1], [2]], [[3], [4]])
    recorder.fork(after)
    assert recorder.ids().tolist() == [9, 1, 2, 3, 4, 8]


def test_a_fork_before_the_first_token_of_a_span_hangs_on_what_it_hung_on() -> None:
    recorder = Recorder()
    first = recorder.append([1], Source.ENV)
    second = recorder.append([2], Source.ENV)
    recorder.fork(second, tokens=0)
    recorder.append([3], Source.ENV)
    recorder.fork(first, tokens=0)
    recorder.append([4], Source.ENV)
    recorder.fork(None)
    recorder.append([5], Source.ENV)
    assert shape(recorder.trace()) == [(None, [1], None), (0, [2], None), (0, [3], None), (None, [4], None), (None, [5], None)]


@pytest.mark.parametrize(("num_tokens", "parent"), [(0, None), (1, [1]), (2, [1, 2]), (3, [3]), (5, [4, 5])])
def test_rewinding_goes_back_along_the_path_to_a_number_of_tokens(num_tokens: int, parent: list[int] | None) -> None:
    recorder = Recorder()
    recorder.append([1, 2], Source.ENV)
    recorder.append([3], Source.ENV)
    recorder.append([4, 5], Source.ENV)
    recorder.rewind(num_tokens)
    assert recorder.ids().tolist() == [1, 2, 3, 4, 5][:num_tokens]
    recorder.append([7], Source.ENV)
    trace = recorder.trace()
    hangs_on = trace.segments[-1].parent
    assert (None if hangs_on is None else trace.segments[hangs_on].ids.tolist()) == parent


def test_an_abandoned_branch_says_why_and_the_tip_leaves_it() -> None:
    recorder = Recorder()
    recorder.append([1], Source.ENV)
    choice = sampled(recorder, [2])
    recorder.append([3], Source.TEMPLATE)
    recorder.abandon(choice, "client_retry")
    sampled(recorder, [4])
    assert shape(recorder.trace()) == [(None, [1], None), (0, [2], "client_retry"), (1, [3], None), (0, [4], None)]


def test_abandoning_another_branch_leaves_the_tip_alone() -> None:
    recorder = Recorder()
    prompt = recorder.append([1], Source.ENV)
    unused = sampled(recorder, [2])
    recorder.fork(prompt)
    sampled(recorder, [3])
    recorder.abandon(unused, "unused_choice")
    assert recorder.ids().tolist() == [1, 3]


def test_a_branch_may_be_abandoned_from_inside_a_segment() -> None:
    recorder = Recorder()
    recorder.open_message()
    sampled(recorder, [1])
    tail = sampled(recorder, [2, 3])
    recorder.close_message(REPLY)
    recorder.abandon(tail, "cut_short")
    recorder.append([4], Source.TEMPLATE)
    assert shape(recorder.trace()) == [(None, [1], None), (0, [2, 3], "cut_short"), (0, [4], None)]


def test_a_snapshot_shares_token_arrays_and_does_not_change_later() -> None:
    recorder = Recorder()
    span = sampled(recorder, [1, 2, 3])
    first = recorder.trace()
    recorder.fork(span, tokens=1)
    recorder.append([4], Source.ENV)
    recorder.abandon(span, "client_retry")
    assert shape(first) == [(None, [1, 2, 3], None)]
    second = recorder.trace()
    assert np.shares_memory(first.segments[0].ids, second.segments[0].ids)
    assert np.shares_memory(first.segments[0].ids, second.segments[1].ids)


def test_a_snapshot_of_an_open_message_does_not_change_when_the_message_goes_on() -> None:
    recorder = Recorder()
    recorder.open_message()
    sampled(recorder, [1])
    snapshot = recorder.trace()
    sampled(recorder, [2])
    assert shape(snapshot) == [(None, [1], None)]
    assert shape(recorder.trace()) == [(None, [1, 2], None)]


def test_recorded_tokens_are_the_recorders_own() -> None:
    ids = np.array([1, 2], np.int32)
    recorder = Recorder()
    recorder.append(ids, Source.ENV)
    ids[0] = 7
    (segment,) = recorder.trace().segments
    assert segment.ids.tolist() == [1, 2]
    assert not segment.ids.flags.writeable


def test_tokens_that_are_closed_for_writing_are_taken_as_they_are_and_a_view_of_others_is_not() -> None:
    ids = np.array([1, 2, 3], np.int32)
    view = ids[:2]
    view.setflags(write=False)
    recorder = Recorder()
    recorder.append(view, Source.ENV)
    ids[0] = 7
    ids.setflags(write=False)
    recorder.append(ids, Source.TEMPLATE)
    first, second = recorder.trace().segments
    assert first.ids.tolist() == [1, 2]
    assert second.ids is ids


def test_message_spans_name_the_tokens_of_a_message() -> None:
    recorder = Recorder()
    recorder.append([1], Source.ENV)
    recorder.open_message()
    recorder.append([2], Source.TEMPLATE)
    sampled(recorder, [3, 4])
    reply = recorder.close_message(REPLY)
    assert recorder.message_spans(reply) == (Span(run=1, start=0, stop=1), Span(run=2, start=0, stop=2))


def test_a_resumed_recorder_goes_on_where_the_trace_ends() -> None:
    recorder = Recorder()
    prompt = recorder.append([1, 2], Source.ENV)
    recorder.open_message()
    choice = sampled(recorder, [3])
    recorder.close_message(REPLY)
    recorder.abandon(choice, "unused_choice")
    recorder.fork(prompt, tokens=1)
    sampled(recorder, [4])
    resumed = Recorder.resume(recorder.trace())
    assert resumed.ids().tolist() == [1, 4]
    assert resumed.attach(0, reward=1.0) is None
    resumed.append([5], Source.ENV)
    assert shape(resumed.trace()) == [(None, [1], None), (0, [2], None), (1, [3], "unused_choice"), (0, [4], None), (3, [5], None)]
    assert [(mark.start, mark.stop, mark.reward) for mark in resumed.trace().marks] == [(2, 3, 1.0)]


ONE = [of(1, 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ids": []}, ["ids", "(0,)"]),
        ({"ids": [[1]]}, ["ids", "(1, 1)"]),
        ({"ids": [[1], [1, 2]]}, ["ids"]),
        ({"ids": [-1]}, ["ids", "-1"]),
        ({"ids": [2**31]}, ["ids", "2147483648"]),
        ({"ids": [1.0]}, ["ids", "float64"]),
        ({"ids": [True]}, ["ids", "bool"]),
        ({"ids": [1], "logprobs": [-1.0]}, ["logprobs", "env"]),
        ({"ids": [1], "versions": ONE}, ["versions", "env"]),
        ({"source": Source.TEMPLATE, "ids": [1], "logprobs": [-1.0]}, ["logprobs", "template"]),
        ({"source": Source.INJECTED, "ids": [1], "versions": ONE}, ["versions", "logprobs"]),
        ({"source": Source.SAMPLED, "ids": [1], "versions": ONE}, ["logprobs are missing"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0]}, ["versions are missing"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0, -1.0], "versions": ONE}, ["logprobs", "(2,)"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [0.5], "versions": ONE}, ["logprobs[0]", "0.5"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [1e-60], "versions": ONE}, ["logprobs[0]", "1e-60"]),
        ({"source": Source.SAMPLED, "ids": [1, 2], "logprobs": [-1.0, float("nan")], "versions": [of(1, 2)]}, ["logprobs[1]", "nan"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-float("inf")], "versions": ONE}, ["logprobs[0]", "-inf"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1e300], "versions": ONE}, ["logprobs[0]", "-1e+300"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": ["-1"], "versions": ONE}, ["logprobs", "<U2"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [of(1, 2)]}, ["versions", "1 tokens", "2"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [of(1, 1), of(1, 0)]}, ["versions[1].count", "0"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [of(-1, 1)]}, ["versions[0].version", "-1"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [of(1, 1, policy="")]}, ["versions[0].policy"]),
        ({"ids": [1], "arrays": {"value": [1.0, 2.0]}}, ["arrays['value']", "(2,)"]),
        ({"ids": [1], "arrays": {"value": 1.0}}, ["arrays['value']", "()"]),
        ({"ids": [1], "arrays": {"value": ["x"]}}, ["arrays['value']", "<U1"]),
        ({"ids": [1], "arrays": {"value": [float("inf")]}}, ["arrays['value']", "inf"]),
        ({"ids": [1], "arrays": {"value": np.ones(1, np.longdouble)}}, ["arrays['value']", "float128"]),
        ({"ids": [1], "arrays": {"value": np.ones(1, ">f4")}}, ["arrays['value']", ">f4"]),
        ({"ids": [1], "arrays": {"value": np.ones((1,) * 9)}}, ["arrays['value']", "9"]),
        ({"ids": [1], "arrays": {"a b": [1.0]}}, ["arrays['a b']"]),
        ({"ids": [1], "media": ["../x y"]}, ["media[0]", "'../x y'"]),
        ({"source": "sampled", "ids": [1]}, ["source", "'sampled'"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [of(1, 1, policy="my policy")]}, ["versions[0].policy", "'my policy'"]),
        ({"source": Source.SAMPLED, "ids": [1], "logprobs": [-1.0], "versions": [VersionRun(policy="p", version=1, count=1.0)]}, ["versions[0].count", "1.0"]),  # type: ignore[arg-type]
    ],
)
def test_wrong_tokens_are_refused_with_field_and_value(arguments: dict[str, object], words: list[str]) -> None:
    recorder = Recorder()
    with pytest.raises(InvalidError) as caught:
        recorder.append(**{"source": Source.ENV, **arguments})  # type: ignore[arg-type]
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert recorder.trace().segments == ()


@pytest.mark.parametrize(
    ("ids", "logprobs", "words"),
    [
        ([1, -2, 3], [-1.0, -1.0, -1.0], "-2"),
        ([1, 2, 3], [-1.0, np.nan, -2.0], "logprobs[1]"),
        ([1, 2, 3], [-1.0, -np.inf, np.nan], "logprobs[1]"),
        ([1, 2, 3], [-1.0, -2.0, 0.5], "logprobs[2]"),
    ],
)
def test_wrong_values_are_found_in_arrays_of_the_usual_types(ids: list[int], logprobs: list[float], words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        Recorder().append(np.array(ids, np.int32), Source.SAMPLED, logprobs=np.array(logprobs, np.float32), versions=[of(1, 3)])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("message", "facts", "words"),
    [
        (REPLY, {"rewards": {"a b": 1.0}}, "rewards['a b']"),
        (REPLY, {"step": StepFacts(observation=(1, 2))}, "step.observation must be a JSON value"),
        (Message(role="assistant", content="\ud800"), {}, "lone surrogate"),
        (Message(role="assistant", tool_calls=(2**64,)), {}, "64 bits"),
    ],
)
def test_a_message_that_could_not_be_sent_is_refused_and_stays_open(message: Message, facts: dict[str, Any], words: str) -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.ENV)
    with pytest.raises(InvalidError, match=re.escape(words)):
        recorder.close_message(message, **facts)
    assert recorder.close_message(REPLY) == 0


def test_a_step_that_is_too_deep_for_a_rollout_is_refused_by_the_recorder() -> None:
    def nested(depth: int) -> list[Any]:
        return [nested(depth - 1)] if depth > 1 else []

    # The envelope, the rollout, its trace, the marks, the mark and the step stand around an observation.
    room = MAX_DEPTH - 6
    recorder = Recorder()
    recorder.open_message()
    with pytest.raises(MalformedError, match="nested deeper"):
        recorder.close_message(REPLY, step=StepFacts(observation=nested(room + 1)))
    recorder.close_message(REPLY, step=StepFacts(observation=nested(room)))
    whole = Rollout(run="r", environment="e", problem_id="p", group_id="g", member=0, retry=0, rollout_uid="u", trace=recorder.trace(), reward=1.0)
    assert decode_json(encode_json(whole), Rollout).trace.marks[0].step == recorder.trace().marks[0].step


def test_a_recorder_owns_its_tokens_whatever_they_came_in() -> None:
    for make in (np.array, lambda values: array("i", values), lambda values: memoryview(array("i", values)), torch.tensor):
        given = [make([1, 2, 3]) for _ in range(2)]
        recorder = Recorder()
        recorder.append(given[0], Source.ENV, arrays={"value": given[1]})
        before = recorder.trace().segments[0]
        for values in given:
            values[0] = 99
        after = recorder.trace().segments[0]
        for segment in (before, after):
            assert (segment.ids.tolist(), segment.arrays["value"].tolist()) == ([1, 2, 3], [1, 2, 3])


def test_injected_tokens_may_carry_a_scorers_logprobs_and_version() -> None:
    recorder = Recorder()
    recorder.append([1], Source.INJECTED)
    recorder.append([2], Source.INJECTED, logprobs=[-1.0])
    recorder.append([3], Source.INJECTED, logprobs=[-1.0], versions=ONE)
    assert [len(segment.versions) for segment in recorder.trace().segments] == [0, 0, 1]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), True, "1"])
def test_a_reward_that_is_no_finite_number_is_refused(reward: float) -> None:
    recorder = Recorder()
    recorder.open_message()
    mark = recorder.close_message(REPLY)
    with pytest.raises(InvalidError, match="reward must be a finite number"):
        recorder.attach(mark, reward=reward)
    with pytest.raises(InvalidError, match="rewards\\['format'\\] must be a finite number"):
        recorder.attach(mark, rewards={"format": reward})


def test_a_message_that_is_refused_stays_open() -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.ENV)
    with pytest.raises(InvalidError, match="reward must be"):
        recorder.close_message(USER, reward=float("nan"))
    assert recorder.trace().marks == ()
    assert recorder.close_message(USER, reward=0.0) == 0


def test_calls_out_of_order_are_refused() -> None:
    recorder = Recorder()
    span = recorder.append([1, 2], Source.ENV)
    with pytest.raises(InvalidError, match="no message is open"):
        recorder.close_message(USER)
    with pytest.raises(InvalidError, match="got 0"):
        recorder.attach(0, reward=1.0)
    with pytest.raises(InvalidError, match=r"tokens must lie in 0\.\.2"):
        recorder.fork(span, tokens=3)
    with pytest.raises(InvalidError, match=r"num_tokens must lie in 0\.\.2"):
        recorder.rewind(3)
    with pytest.raises(InvalidError, match="span must be one"):
        recorder.fork(Span(run=1, start=0, stop=1))
    with pytest.raises(InvalidError, match="reason is empty"):
        recorder.abandon(span, "")
    assert recorder.tip is not None
    with pytest.raises(InvalidError, match="branch must hold a token"):
        recorder.abandon(recorder.tip, "client_retry")
    recorder.open_message()
    with pytest.raises(InvalidError, match="open already"):
        recorder.open_message()
    with pytest.raises(InvalidError, match="cannot fork while a message is open"):
        recorder.fork(span)
    with pytest.raises(InvalidError, match="cannot abandon while a message is open"):
        recorder.abandon(span, "client_retry")


def test_tokens_with_media_are_not_cut() -> None:
    recorder = Recorder()
    picture = recorder.append([1, 1, 1], Source.ENV, media=("digest",))
    with pytest.raises(InvalidError, match="after 2 of 3 tokens with media"):
        recorder.fork(picture, tokens=2)
    with pytest.raises(InvalidError, match="after 1 of 3 tokens with media"):
        recorder.abandon(Span(run=picture.run, start=1, stop=3), "client_retry")
    recorder.fork(picture)
    assert recorder.trace().segments[0].media == ("digest",)


def test_tokens_that_were_checked_once_are_recorded_again_and_again() -> None:
    shown = checked_tokens([1, 2], Source.ENV)
    recorder = Recorder()
    for _ in range(2):
        recorder.append_checked(shown)
        sampled(recorder, [3])
    assert shape(recorder.trace()) == [(None, [1, 2], None), (0, [3], None), (1, [1, 2], None), (2, [3], None)]
    with pytest.raises(InvalidError, match="logprobs"):
        checked_tokens([1], Source.SAMPLED)


def test_the_tokens_of_the_path_stay_right_whatever_is_recorded_later() -> None:
    recorder, expected, looks = Recorder(), [], []
    for number in range(40):
        added = list(range(number * 17, number * 17 + 17))
        recorder.append(added, Source.ENV)
        expected = expected + added
        looks.append((recorder.ids(), expected))
        if number % 10 == 9:
            recorder.rewind(len(expected) - 20)
            expected = expected[:-20]
    for ids, what_it_was in looks:
        assert ids.tolist() == what_it_was
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = 9
