"""Nouns on the wire: the envelope, the fields, and what each refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.errors import InvalidError
from penstock.types import (
    Annotation,
    GroupRecord,
    GroupState,
    Mark,
    Message,
    Outcome,
    Payload,
    Purpose,
    Rollout,
    RolloutStatus,
    Segment,
    Source,
    Trace,
    VersionRun,
)
from penstock.wire import check_id, check_noun, decode_json, decode_msgpack, encode_json, encode_msgpack


def prompt(*ids: int) -> Segment:
    return Segment(parent=None, ids=np.array(ids, np.int32), source=Source.ENV)


def reply(*ids: int, version: int = 3) -> Segment:
    logprobs = np.full(len(ids), -0.5, np.float32)
    return Segment(
        parent=0,
        ids=np.array(ids, np.int32),
        source=Source.SAMPLED,
        logprobs=logprobs,
        versions=(VersionRun(policy="policy", version=version, count=len(ids)),),
    )


def rollout(**changes: Any) -> Rollout:
    plain = Rollout(
        run="demo",
        environment="sort",
        problem_id="sort-1",
        group_id="sort/0/1",
        member=2,
        retry=0,
        rollout_uid="u1",
        trace=Trace(segments=(prompt(1, 2), reply(3, 4, 5)), marks=(Mark(message=Message(role="assistant", content="hi"), start=1, stop=2),)),
        reward=1.0,
    )
    return replace(plain, **changes)


def as_json(**changes: Any) -> dict[str, Any]:
    """The plain form of a good rollout's value, with changes by dotted path."""
    tree = msgspec.json.decode(encode_json(rollout()))
    for path, value in changes.items():
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("__"))
        place = tree["value"]
        for step in steps:
            place = place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return dict(tree)


def refusal(**changes: Any) -> str:
    with pytest.raises(InvalidError) as refused:
        decode_json(msgspec.json.encode(as_json(**changes)), Rollout)
    return str(refused.value)


def test_a_noun_travels_in_an_envelope_that_names_schema_and_kind() -> None:
    assert encode_json(VersionRun(policy="p", version=1, count=2)) == (
        b'{"schema":1,"kind":"version_run","value":{"policy":"p","version":1,"count":2,"mixed_kv":false,"evidence":"asserted"}}'
    )


def test_json_arrays_are_plain_lists() -> None:
    value = as_json()["value"]
    assert value["trace"]["segments"][1]["ids"] == [3, 4, 5]
    assert value["trace"]["segments"][1]["logprobs"] == [-0.5, -0.5, -0.5]


def test_fields_with_a_default_may_be_left_out_and_keys_may_come_in_any_order() -> None:
    tree = as_json(metadata=..., rewards=..., failure=..., trace__segments__0__logprobs=...)
    tree["value"] = dict(reversed(tree["value"].items()))
    read = decode_json(msgspec.json.format(msgspec.json.encode(tree)), Rollout)
    assert encode_msgpack(read) == encode_msgpack(rollout())


@pytest.mark.parametrize("limit, width", [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (70_000, 4), (2**31 - 1, 4)])
@pytest.mark.parametrize("count", [100, 2000])
def test_token_ids_take_the_narrowest_type_on_the_wire_and_come_back_as_int32(limit: int, width: int, count: int) -> None:
    given = [place % 200 for place in range(count)] + [limit]
    short, long = prompt(limit), prompt(*given)
    assert len(encode_msgpack(long)) - len(encode_msgpack(short)) == pytest.approx(count * width, abs=4)
    ids = decode_msgpack(encode_msgpack(long), Segment).ids
    assert ids.dtype == np.int32 and ids.tolist() == given


@pytest.mark.parametrize("reward", ["nan", "1", True, None, [], {}])
def test_a_reward_that_is_no_number_is_refused(reward: object) -> None:
    assert "reward" in refusal(reward=reward)


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_a_reward_that_is_not_finite_is_refused_by_name(literal: bytes) -> None:
    body = encode_json(rollout()).replace(b'"reward":1.0', b'"reward":' + literal, 1)
    with pytest.raises(InvalidError, match=r"reward must be a finite number"):
        decode_json(body, Rollout)


def test_a_missing_reward_is_refused() -> None:
    assert refusal(reward=...) == "rollout.reward must be a number when the status is ok, got none"


def test_a_failure_is_never_a_reward() -> None:
    assert "rollout.reward must be absent when the status is infra_error" in refusal(status="infra_error")
    failed = rollout(status=RolloutStatus.ENV_ERROR, reward=None, failure="broken")
    assert decode_msgpack(encode_msgpack(failed), Rollout).failure == "broken"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trace__segments__1__logprobs__1": 0.5}, "rollout.trace.segments[1].logprobs[1] must be a finite logprob, at most 0, got 0.5"),
        ({"trace__segments__1__logprobs__1": -1e300}, "logprobs[1] must be a finite logprob, at most 0, got -inf"),
        ({"trace__segments__1__logprobs__1": True}, "got True in place 1"),
        ({"trace__segments__1__logprobs": [-0.5]}, "rollout.trace.segments[1].logprobs must have one entry for each of 3 tokens, got shape (1,)"),
        ({"trace__segments__1__logprobs": None}, "rollout.trace.segments[1].logprobs are missing"),
        ({"trace__segments__1__versions": []}, "rollout.trace.segments[1].versions are missing"),
        ({"trace__segments__1__versions__0__count": 2}, "rollout.trace.segments[1].versions must count to 3 tokens, got 2"),
        ({"trace__segments__1__versions__0__count": 0}, "versions[0].count must be 1 or more, got 0"),
        ({"trace__segments__1__versions__0__version": -1}, "versions[0].version must be 0 or more, got -1"),
        ({"trace__segments__0__logprobs": [-1.0, -1.0]}, "rollout.trace.segments[0].logprobs must be absent"),
        ({"trace__segments__1__arrays": {"values": [0.5]}}, "arrays['values'] must have one entry for each of 3 tokens"),
        ({"trace__segments__1__arrays": {"a b": [0.5, 1, 2]}}, "arrays['a b'] must be 1 to 256 of"),
        ({"trace__segments__0__ids": {"dtype": "int32", "data": []}}, "rollout.trace.segments[0].ids must hold one token or more, got shape (0,)"),
        ({"trace__segments__1__source": "injected", "trace__segments__1__logprobs": None}, "segments[1].versions must not come without logprobs"),
        ({"trace__segments__0__media": ["ok", "../x y"]}, "rollout.trace.segments[0].media[1] must be a digest"),
        ({"trace__segments__0__ids__0": -1}, "rollout.trace.segments[0].ids[0] must be a token id, 0 or more, got -1"),
        ({"trace__segments__0__ids__0": 2**31}, "must fit int32"),
        ({"trace__segments__0__ids__0": 1.0}, "got 1.0 in place 0"),
        ({"trace__segments__0__ids__0": True}, "got True in place 0"),
        ({"trace__segments__0__parent": 0}, "rollout.trace.segments[0].parent must be smaller than the segment's own index 0, got 0"),
        ({"trace__segments__1__parent": -1}, "rollout.trace.segments[1].parent must be 0 or more, got -1"),
        ({"trace__marks__0__stop": 3}, "rollout.trace.marks[0] must lie inside 2 segments, got 1 to 3"),
        ({"trace__marks__0__start": -1}, "rollout.trace.marks[0] must lie inside 2 segments, got -1 to 2"),
        ({"trace__marks__0__stop": 0}, "rollout.trace.marks[0] must lie inside 2 segments, got 1 to 0"),
        ({"member": -1}, "rollout.member must be 0 or more, got -1"),
        ({"member": True}, "rollout.member: Expected `int`, got `bool` (in True)"),
        ({"member": 1.0}, "rollout.member: Expected `int`, got `float` (in 1.0)"),
        ({"member": 2**64}, "$.value.member must fit 64 bits"),
        ({"rewards": {"exact": "x"}}, "rollout.rewards[...]: Expected `float`, got `str` (in {'exact': 'x'})"),
        ({"status": "fine"}, "rollout.status: Invalid enum value 'fine' (in 'fine')"),
        ({"run": ...}, "Object missing required field `run`"),
        ({"rollout_uid": ""}, "rollout.rollout_uid must be 1 to 256 of"),
        ({"group_id": "a/../b"}, "rollout.group_id must be 1 to 256 of"),
        ({"problem_id": "a\nb"}, r"got 'a\nb'"),
        ({"environment": "x" * 257}, "rollout.environment must be 1 to 256 of"),
        ({"trace__marks__0__message__colour": "red"}, "rollout.trace.marks[0].message has no field 'colour'"),
        ({"rewrd": 1}, "rollout has no field 'rewrd'; did you mean 'reward'?"),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_value(change: dict[str, Any], words: str) -> None:
    assert words in refusal(**change)


def test_a_message_that_is_no_chain_of_segments_is_refused() -> None:
    fork = Trace(segments=(prompt(1), reply(2), replace(reply(3), parent=0)), marks=(Mark(message=Message(role="assistant"), start=1, stop=3),))
    with pytest.raises(InvalidError, match=r"trace.marks\[0\] must be a chain, but segment 2 hangs on 0"):
        encode_json(fork)


def test_a_segment_belongs_to_one_message() -> None:
    mark = Mark(message=Message(role="user"), start=0, stop=1)
    with pytest.raises(InvalidError, match=r"trace.marks\[1\] must not hold segment 0, which marks\[0\] holds already"):
        encode_json(Trace(segments=(prompt(1),), marks=(mark, mark)))


@pytest.mark.parametrize("vocabulary", [None, 6])
def test_a_noun_may_be_checked_without_being_sent(vocabulary: int | None) -> None:
    check_noun(rollout(), vocabulary=vocabulary)
    with pytest.raises(InvalidError, match=r"rollout.run must be 1 to 256"):
        check_noun(rollout(run="no spaces"), vocabulary=vocabulary)
    with pytest.raises(InvalidError, match=r"vocabulary's 5, got 5"):
        check_noun(rollout(), vocabulary=5)


def test_text_keeps_control_characters_and_markup() -> None:
    text = "<b>\x1b[31m\r\n\x00{{x}}\u2028"
    message = Message(role="user", content=text)
    assert decode_json(encode_json(message), Message) == decode_msgpack(encode_msgpack(message), Message) == message


def test_a_vocabulary_bounds_token_ids() -> None:
    body = encode_msgpack(rollout())
    assert decode_msgpack(body, Rollout, vocabulary=6).member == 2
    with pytest.raises(InvalidError, match=r"rollout.trace.segments\[1\].ids must be below the vocabulary's 5, got 5"):
        decode_msgpack(body, Rollout, vocabulary=5)


def test_segments_of_an_annotation_may_hang_on_the_stored_trace() -> None:
    note = Annotation(run="demo", rollout_uid="u1", name="levels", segments=(replace(reply(1), parent=17),))
    assert decode_json(encode_json(note), Annotation).segments[0].parent == 17


@pytest.mark.parametrize(
    ("envelope", "words"),
    [
        ({"schema": 2}, "rollout has schema 2; this penstock reads 1: use the penstock that wrote it"),
        ({"schema": True}, "rollout has schema True"),
        ({"schema": "1"}, "rollout has schema '1'"),
        ({"kind": "trace"}, "expected a rollout, got a 'trace'"),
        ({"extra": 1}, "rollout must come as"),
    ],
)
def test_a_foreign_envelope_is_refused_with_a_way_out(envelope: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError) as refused:
        decode_json(msgspec.json.encode(as_json() | envelope), Rollout)
    assert words in str(refused.value)


def test_a_newer_schema_is_named_even_if_its_fields_are_others() -> None:
    with pytest.raises(InvalidError, match="has schema 2"):
        decode_msgpack(msgspec.msgpack.encode({"schema": 2, "kind": "rollout", "value": {"all": "new"}}), Rollout)


@pytest.mark.parametrize(
    "wrong",
    [
        rollout(reward=float("nan")),
        rollout(reward=True),
        rollout(reward=None),
        rollout(rewards={"x": float("inf")}),
        rollout(metadata={"x": (1, 2)}),
        rollout(metadata={"x": np.float32(1)}),
        rollout(metadata={"x": "\ud800"}),
        rollout(metadata={"x": 2**64}),
        rollout(member=2**64),
        rollout(run="no spaces"),
        rollout(trace=Trace(segments=(Segment(parent=None, ids=np.array([1], np.int64), source=Source.ENV),))),  # type: ignore[arg-type]
    ],
)
def test_what_would_be_refused_on_arrival_is_not_sent(wrong: Rollout) -> None:
    for encode in (encode_json, encode_msgpack):
        with pytest.raises(InvalidError):
            encode(wrong)


def test_numpy_scalars_are_sent_as_numbers() -> None:
    sent = rollout(reward=np.float64(0.5), member=np.int64(1))
    read = decode_json(encode_json(sent), Rollout)
    assert (type(read.reward), read.reward, type(read.member), read.member) == (float, 0.5, int, 1)


def test_bytes_are_exact_in_both_formats() -> None:
    payload = Payload(run="demo", uid="u1", content_type="json", body=bytes(range(256)), digest="ab")
    assert decode_json(encode_json(payload), Payload) == decode_msgpack(encode_msgpack(payload), Payload) == payload


def test_a_field_called_kind_does_not_meet_the_envelope() -> None:
    outcome = Outcome(run="demo", update=3, kind="skipped", reason="nan")
    assert decode_json(encode_json(outcome), Outcome) == outcome


def test_a_digest_cannot_become_a_path() -> None:
    with pytest.raises(InvalidError, match=r"outcome.digest must be a digest"):
        encode_json(Outcome(run="demo", update=3, kind="applied", version=1, digest="../../etc"))


def test_a_record_says_all_of_itself() -> None:
    record = GroupRecord(run="r", id="s/0/1", environment="e", problem_id="p", purpose=Purpose.TRAIN, size=4, seed=1, state=GroupState.OPEN, order=0)
    assert len(msgspec.msgpack.decode(encode_msgpack(record))["value"]) == len(GroupRecord.__dataclass_fields__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request that a part declares for itself."""

    session: str
    limit: int = 1
    rollouts: tuple[Rollout, ...] = ()
    window: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A reply that holds nouns by name."""

    runs: Mapping[str, VersionRun]


def test_a_wrong_value_inside_a_mapping_of_nouns_is_refused_with_what_is_known_of_its_place() -> None:
    body = encode_json(Register(runs={"a": VersionRun(policy="p", version=1, count=2)})).replace(b'"count":2', b'"count":"x"')
    with pytest.raises(InvalidError, match=r"register.runs\[\.\.\.\]\.count: Expected `int`, got `str` \(in \{'a': "):
        decode_json(body, Register)


def test_any_part_can_send_its_own_requests() -> None:
    claim = decode_msgpack(encode_msgpack(Claim(session="s", rollouts=(rollout(),))), Claim)
    assert claim.limit == 1 and encode_json(claim.rollouts[0]) == encode_json(rollout())
    with pytest.raises(InvalidError, match=r"claim.rollouts\[0\].reward must be a finite number"):
        encode_json(Claim(session="s", rollouts=(rollout(reward=float("nan")),)))
    with pytest.raises(InvalidError, match=r"claim.window\[1\] must be a finite number"):
        encode_json(Claim(session="s", window=(1, float("nan"))))


@pytest.mark.parametrize("text", ["a", "math/0/17", "A-z_0.9:@+=%~", "x" * 256])
def test_a_good_id_is_given_back(text: str) -> None:
    assert check_id(text, "run") == text


@pytest.mark.parametrize("text", ["", "..", "a b", "a\n", "é", "a\x00", "x" * 257, "a\ud800"])
def test_a_bad_id_is_refused_under_the_name_of_its_field(text: str) -> None:
    with pytest.raises(InvalidError, match=r"^run must be"):
        check_id(text, "run")
