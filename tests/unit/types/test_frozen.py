"""Nouns that are made quickly are the nouns they were."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, fields, replace

import pytest

from penstock.types import GroupRecord, GroupState, Payload, Purpose
from penstock.types.frozen import changed, quickly_made


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    name: str
    size: int = 3
    parts: list[str] = field(default_factory=list)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    name: str
    size: int = 3
    parts: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What its author gave it beside fields."""
        return self.name.title()


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alone:
    name: str


@pytest.mark.parametrize("values", [{"name": "a"}, {"name": "a", "size": 0}, {"name": "a", "parts": ["x"], "size": 9}])
def test_it_holds_what_a_plain_one_holds(values: dict[str, object]) -> None:
    quick, plain = Quick(**values), Plain(**values)  # type: ignore[arg-type]
    assert (quick.name, quick.size, quick.parts) == (plain.name, plain.size, plain.parts)
    assert repr(quick) == repr(plain).replace("Plain", "Quick")


def test_nothing_is_shared_between_two_that_were_left_empty() -> None:
    first, second = Quick(name="a"), Quick(name="a")
    assert first == second
    assert first.parts is not second.parts


def test_it_cannot_be_changed_but_copied_with_changes() -> None:
    quick = Quick(name="a")
    with pytest.raises(AttributeError):
        quick.size = 4  # type: ignore[misc]
    assert replace(quick, size=4) == changed(quick, size=4) == Quick(name="a", size=4)
    with pytest.raises(TypeError, match="colour"):
        changed(quick, colour=1)
    assert copy.deepcopy(quick) == quick
    assert pickle.loads(pickle.dumps(Payload(run="r", uid="u", content_type="json", body=b"", digest="d"))).uid == "u"


@pytest.mark.parametrize(
    ("values", "words"),
    [({}, "Missing required argument 'name'"), ({"name": "a", "colour": 1}, "Unexpected keyword argument 'colour'")],
)
def test_what_is_missing_or_unknown_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Quick(**values)  # type: ignore[arg-type]


def test_it_has_the_fields_the_words_and_the_names_of_the_dataclass() -> None:
    assert [field.name for field in fields(Quick)] == ["name", "size", "parts"]
    assert (Quick(name="ada").title, Quick.__qualname__, Quick.__module__) == ("Ada", "Quick", __name__)
    assert GroupRecord.__doc__ == "One group."


def test_one_that_is_equal_only_to_itself_stays_so() -> None:
    first, second = Alone(name="a"), Alone(name="a")
    assert first != second
    assert len({first, second, first}) == 2


def test_a_record_has_its_defaults() -> None:
    group = GroupRecord(run="r", id="g", environment="e", problem_id="p", purpose=Purpose.TRAIN, size=1, seed=0, state=GroupState.OPEN, order=0)
    assert (group.updates, group.reason, group.opened_at, group.arrival) == ((), None, 0.0, None)


@pytest.mark.parametrize(
    "members",
    [
        {"__annotations__": {"size": int}, "__post_init__": lambda self: None},
        {"__annotations__": {"size": int, "twice": int}, "twice": field(init=False, default=0)},
    ],
)
def test_one_that_does_more_when_it_is_made_is_refused(members: dict[str, object]) -> None:
    noun = dataclass(frozen=True, slots=True, kw_only=True)(type("More", (), members))
    with pytest.raises(TypeError, match="More does more than to keep named arguments"):
        quickly_made(noun)


def test_one_that_is_not_frozen_can_be_changed_and_has_defaults_of_its_own() -> None:
    @quickly_made
    @dataclass(slots=True, kw_only=True, eq=False)
    class Growing:
        size: int = 0
        parts: list[int] = field(default_factory=list)

    one, other = Growing(), Growing(size=2)
    one.size += 1
    one.parts.append(5)
    assert (one.size, one.parts, other.size, other.parts) == (1, [5], 2, [])
    assert one != Growing(size=1, parts=[5])


def test_one_that_stands_on_another_class_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Larger(Plain):
        weight: int

    with pytest.raises(TypeError, match="Larger does more than to keep named arguments"):
        quickly_made(Larger)
