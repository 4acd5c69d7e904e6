"""A glance at many rollouts takes no rollout that the full look refuses, and sees in it what the full look sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext
from tests.properties.test_wire import same, values

from penstock.buffer.intake import rollout_intake, rollout_intakes
from penstock.buffer.intake_child import packed, unpacked
from penstock.errors import InputError
from penstock.types import Mark, Message, Rollout, Segment, Source, StepFacts, Trace, VersionRun
from penstock.wire import decode_msgpack, encode_json, encode_msgpack, view_rollouts

Path = tuple[str | int, ...]


def rollout() -> Rollout:
    """One of everything that a rollout may hold."""
    prompt = Segment(parent=None, ids=np.array([7, 70_000], np.int32), source=Source.ENV, media=("ab",))
    runs = (VersionRun(policy="policy", version=3, count=1), VersionRun(policy="judge", version=0, count=1))
    logprobs = np.array([-0.5, -0.25], np.float32)
    entropies = np.array([[0.5, 1.0], [0.25, 2.0]], np.float64)
    reply = Segment(parent=0, ids=np.array([5, 6], np.int32), source=Source.SAMPLED, logprobs=logprobs, versions=runs, arrays={"entropy": entropies})
    said = Message(role="assistant", content="hi", tool_calls=({"name": "add", "arguments": [1, 2.5]},))
    mark = Mark(message=said, start=1, stop=2, reward=0.5, rewards={"format": 1.0}, step=StepFacts(observation={"room": 3}, info={"seen": [True]}))
    return Rollout(
        run="run",
        environment="sort",
        problem_id="p",
        group_id="s/0/1",
        member=0,
        retry=0,
        rollout_uid="u",
        trace=Trace(segments=(prompt, reply), marks=(mark,)),
        reward=1.0,
        rewards={"exact": 1.0},
        metadata={"note": {"a": [1]}},
    )


def array(dtype: str, *numbers: float, stored: str | None = None) -> Ext:
    """An array as msgpack has it, whether it may stand there or not."""
    codes = {name: code for code, name in enumerate(("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"))}
    return Ext(1, bytes((codes[stored or dtype], codes[dtype], 1)) + np.array(numbers, stored or dtype).tobytes())


POISON = [
    *(float("nan"), float("inf"), -1, 0, 1, 2**63, 1.5, True, None, "", "a..b", "a\nb", "a b", "x" * 257, "ok", b"bytes", [], {}, [[]], {"": 0}, {"a..b": 1.0}),
    *(
        array("i4", 1, 2),
        array("i4", 1, -2),
        array("i4"),
        array("i4", 1),
        array("i8", 1, 2),
        array("f8", 1, 2),
        array("u2", 1, 2),
        array("i4", 1, 2, stored="i1"),
    ),
    *(array("f4", -1, -2), array("f4", 0, np.nan), array("f4", -np.inf, 0), array("f4", 0.5, 0), array("f8", -1, -2), array("f4", -1)),
    *(Ext(1, b""), Ext(1, b"\x05"), Ext(1, b"\x05\x05\x01\x00"), Ext(1, b"\x05\x05\x09"), Ext(2, array("i4", 1, 2).data), Ext(1, b"\xff\xff\x01")),
    *({"deep": [[]]}, {"note": float("nan")}, {"note": b"x"}, {"note": Ext(1, b"")}, {1: 2}),
]


def paths(value: Any) -> Iterator[Path]:
    """Where something stands in a plain value."""
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield (key,)
            yield from ((key, *path) for path in paths(child))


def changed(body: bytes, path: Path, poison: Any) -> bytes:
    """The body with another value at `path`, or with none."""
    tree = place = msgspec.msgpack.decode(body, strict=False)
    for step in path[:-1]:
        place = place[step]
    if poison is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = poison
    return msgspec.msgpack.encode(tree)


def agrees(bodies: list[bytes]) -> list[bool]:
    """Holds the quick way against the slow and obvious one, for all of `bodies` at once; which of them are right."""
    right = []
    views, intakes = view_rollouts(bodies), rollout_intakes("run", bodies, "msgpack")
    for body, view, intake in zip(bodies, views, intakes, strict=True):
        try:
            expected = decode_msgpack(body, Rollout)
        except InputError as refused:
            assert view is None, body
            assert (type(intake), str(intake)) == (type(refused), str(refused))
            right.append(False)
            continue
        try:
            assert same(intake, rollout_intake("run", body, "msgpack"))
            # And on its way from another process nothing changes.
            assert unpacked(packed([intake[0], None])) == [intake[0], None]  # type: ignore[index]
        except InputError as refused:  # it was meant for another run
            assert str(intake) == str(refused)
        if view is not None:
            assert same(plain(view), plain(expected))
        right.append(True)
    return right


def plain(value: Any) -> Any:
    """A noun, or what stands for it, without its classes; integers in one width."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64) if value.dtype.kind in "iu" and value.ndim == 1 else value
    if isinstance(value, (list, tuple)):
        return [plain(child) for child in value]
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    return value if names is None else {name: plain(getattr(value, name)) for name in names}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(values(Rollout), max_size=3))
def test_every_rollout_of_our_encoder_is_taken_at_a_glance(rollouts: list[Rollout]) -> None:
    bodies = [encode_msgpack(value) for value in rollouts]
    assert None not in view_rollouts(bodies)
    assert all(agrees(bodies))


def test_one_wrong_value_in_any_place_is_seen() -> None:
    good = encode_msgpack(rollout())
    found = list(paths(msgspec.msgpack.decode(good)))
    assert len(found) > 80
    for path in found:
        verdicts = agrees([good, *(changed(good, path, poison) for poison in [*POISON, ...])])
        assert verdicts[0]
        # Some values may stand where they were put, but not all in any place.
        assert not all(verdicts), path


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_several_wrong_values_and_damaged_bytes_are_seen(data: st.DataObject) -> None:
    good = encode_msgpack(rollout())
    bodies = [good]
    for _ in range(data.draw(st.integers(1, 3))):
        body = good
        for _ in range(data.draw(st.integers(1, 3))):
            tree = list(paths(msgspec.msgpack.decode(body)))
            body = changed(body, data.draw(st.sampled_from(tree)), data.draw(st.sampled_from([*POISON[:-1], ...]))) if tree else body
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(body) - 1))
            body = body[:at] + data.draw(st.binary(max_size=2)) + body[at + data.draw(st.integers(0, 2)) :]
        bodies.append(body)
    assert agrees(data.draw(st.permutations(bodies))).count(True) >= 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x83\xa6schema\x01", b"\x84\xa6schema\x01\xa6schema\x01"),
        (b"\xa5retry\x00", b"\xa5retry\x00\xa5retry\x00"),
        (b"\xa5retry\x00", b"\xa5retry\xd0\x00"),
        (b"\xa6schema\x01", b"\xa6schema\x02"),
        (b"\xa4kind\xa7rollout", b"\xa4kind\xa5group"),
        (b"\xa4note\x81\xa1a\x91\x01", b"\xa4note\x82\xa1a\x91\x01\xa1a\x91\x01"),
        (b"\xa2hi", b"\xa2\xed\xa0"),
    ],
)
def test_what_is_spelled_in_another_way_is_left_to_the_full_look(old: bytes, new: bytes) -> None:
    good = encode_msgpack(rollout())
    assert good.count(old) == 1
    body = good.replace(old, new)
    assert view_rollouts([good, body])[1] is None
    agrees([body, good])


@pytest.mark.parametrize("counts", [(2, 0), (3, -1)])
def test_a_run_of_no_tokens_is_seen_although_the_sum_is_right(counts: tuple[int, int]) -> None:
    body = encode_msgpack(rollout())
    for place, number in enumerate(counts):
        body = changed(body, ("value", "trace", "segments", 1, "versions", place, "count"), number)
    assert agrees([body]) == [False]


def test_rollouts_in_json_are_taken_one_by_one() -> None:
    good = encode_json(rollout())
    taken, refused = rollout_intakes("run", [good, good.replace(b'"reward":1.0', b'"reward":NaN')], "json")
    assert same(taken, rollout_intake("run", good, "json"))
    assert isinstance(refused, InputError)


def test_nothing_comes_of_nothing() -> None:
    assert view_rollouts([]) == []
    assert view_rollouts([b""]) == [None]
