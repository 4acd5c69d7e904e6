import re
from dataclasses import replace

import numpy as np
import pytest

from penstock.errors import InvalidError
from penstock.trace import Recorder, check_trace
from penstock.types import Mark, Message, Segment, Source, Trace, VersionRun
from penstock.wire import encode_msgpack

USER = Message(role="user", content="hello")
ONE = (VersionRun(policy="policy", version=0, count=1),)


def env(ids: list[int], parent: int | None = None) -> Segment:
    return Segment(parent=parent, ids=np.array(ids, np.int32), source=Source.ENV)


def test_what_a_recorder_makes_passes() -> None:
    recorder = Recorder()
    recorder.open_message()
    recorder.append([1], Source.ENV)
    recorder.append([2], Source.SAMPLED, logprobs=[-1.0], versions=[VersionRun(policy="policy", version=0, count=1)])
    recorder.close_message(USER, reward=1.0)
    check_trace(recorder.trace(), vocabulary_size=3)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (Trace(segments=(env([1], parent=0),)), ["segments[0].parent", "0"]),
        (Trace(segments=(env([1]), env([1], parent=-1))), ["segments[1].parent", "-1"]),
        (Trace(segments=(env([1]), env([-4]))), ["segments[1].ids", "-4"]),
        (Trace(segments=(env([1]), env([10]))), ["segments[1].ids", "10", "vocabulary"]),
        (Trace(segments=(replace(env([1]), source=Source.SAMPLED),)), ["segments[0].logprobs"]),
        (Trace(segments=(replace(env([1]), source=Source.INJECTED, logprobs=np.array([0.5], np.float32)),)), ["segments[0].logprobs[0]", "0.5"]),
        (Trace(segments=(replace(env([1]), arrays={"value": np.zeros(2)}),)), ["segments[0].arrays['value']", "(2,)"]),
        (Trace(segments=(env([1]),), marks=(Mark(message=USER, start=0, stop=2),)), ["marks[0]", "2"]),
        (Trace(segments=(env([1]),), marks=(Mark(message=USER, start=1, stop=0),)), ["marks[0]", "1 to 0"]),
        (Trace(segments=(env([1]), env([2])), marks=(Mark(message=USER, start=0, stop=2),)), ["marks[0]", "segment 1", "None"]),
        (Trace(segments=(env([1]),), marks=(Mark(message=USER, start=0, stop=1),) * 2), ["marks[1]", "marks[0]", "segment 0"]),
        (Trace(segments=(), marks=(Mark(message=USER, start=0, stop=0, reward=float("nan")),)), ["marks[0].reward", "nan"]),
        (Trace(segments=(env([]),)), ["segments[0].ids", "(0,)"]),
        (Trace(segments=(replace(env([1]), source=Source.INJECTED, versions=ONE),)), ["segments[0].versions", "logprobs"]),
        (Trace(segments=(replace(env([1]), media=("a", "../x")),)), ["segments[0].media[1]", "'../x'"]),
        (Trace(segments=(replace(env([1]), media=("",)),)), ["segments[0].media[0]", "''"]),
        (Trace(segments=(), marks=(Mark(message=USER, start=0, stop=0, rewards={"a b": 1.0}),)), ["marks[0].rewards['a b']"]),
        (Trace(segments=(), marks=(Mark(message=USER, start=0, stop=0, rewards={"a": True}),)), ["marks[0].rewards['a']", "True"]),
    ],
)
def test_a_wrong_trace_is_refused_with_place_and_value_and_is_not_sent_either(trace: Trace, words: list[str]) -> None:
    with pytest.raises(InvalidError) as caught:
        check_trace(trace, vocabulary_size=10)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    if "vocabulary" not in words:
        with pytest.raises(InvalidError, match=re.escape(str(caught.value))):
            encode_msgpack(trace)
