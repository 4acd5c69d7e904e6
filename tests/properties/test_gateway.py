"""Whatever a client does to its history, every reply is trained once or abandoned with a reason, and the journal gives the same session again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties.styles import template

from penstock.gateway.events import Ended, Event, Manner, Opened, Repeats, Rewarded, Slot
from penstock.gateway.journal import Note
from penstock.gateway.requests import Ask
from penstock.gateway.rollouts import rollout_of, verdict
from penstock.gateway.sampling import OnTokens, Order, Sampled
from penstock.gateway.session import Session, Surroundings
from penstock.gateway.watching import Gone
from penstock.trace import samples
from penstock.types import Message, Rollout, RolloutStatus, Source, VersionRun
from penstock.wire import decode_msgpack, encode_msgpack

SPEECHES = ("yes", "<think>\nhm\n</think>\n\nno", "<think>again</think>perhaps", " spaced ")


class Scripted:
    """An engine that says the speeches in turn, a number before each so that no two replies are alike."""

    def __init__(self, style: str) -> None:
        self._template = template(style)
        self.num_said = 0
        self.prompts: list[list[int]] = []
        self.said: list[tuple[int, ...]] = []

    async def sample(self, order: Order, *, deadline_seconds: float, on_tokens: OnTokens | None = None) -> list[Sampled]:
        self.prompts.append(order.ids.tolist())
        return [self._reply() for _ in range(order.num_choices)]

    async def abort(self, request_id: str) -> None:
        raise AssertionError("nobody leaves here")

    def _reply(self) -> Sampled:
        speech = SPEECHES[self.num_said % len(SPEECHES)]
        self.num_said += 1
        ids = [*self._template.encode_text(f"{speech}{self.num_said}", control_tokens=True).tolist(), self._template.eos_ids[0]]
        self.said.append(tuple(ids))
        run = VersionRun(policy="policy", version=0, count=len(ids))
        return Sampled(ids=ids, logprobs=[-(place + 1) / 8 for place in range(len(ids))], versions=[run], finish="stop")


class Kept:
    """A journal of bytes."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []

    async def append(self, session: str, index: int, events: Sequence[Event], note: Note | None = None) -> None:
        assert index == len(self.entries)
        self.entries += [encode_msgpack(event) for event in events]

    async def load(self, session: str) -> list[Event]:
        return [decode_msgpack(body, Event) for body in self.entries]

    async def note(self, note: Note) -> None: ...

    async def notes(self) -> dict[str, Note]:
        return {}


def ask(messages: list[Message], num_choices: int) -> Ask:
    return Ask(
        digest=f"{hash(tuple(messages)):x}",
        is_keyed=False,
        is_retry=False,
        model="m",
        messages=tuple(messages),
        tools=(),
        calls_tools=False,
        num_choices=num_choices,
        max_tokens=64,
        temperature=1.0,
        seed=None,
        stop=(),
        wants_logprobs=False,
        num_alternatives=0,
        filters={},
        return_token_ids=False,
        stream=False,
        include_usage=False,
    )


moves = st.lists(
    st.tuples(st.sampled_from(["go_on", "go_on", "retry", "edit_reply", "edit_user", "drop", "start_over"]), st.integers(1, 3), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


class Client:
    """Keeps a history, and does to it what a move says."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages = [Message(role="user", content="question 0")]
        self.num_asked = 0

    async def move(self, kind: str, num_choices: int, chosen: int) -> None:
        if kind == "edit_reply":
            self.messages = [Message(role="assistant", content="edited") if message.role == "assistant" else message for message in self.messages]
        elif kind == "edit_user":
            self.messages[0] = Message(role="user", content=f"another question {self.num_asked}")
        elif kind == "drop" and len(self.messages) > 2:
            self.messages = self.messages[2:]
        elif kind == "start_over":
            self.messages = [Message(role="user", content="question 0")]
        for _ in range(2 if kind == "retry" else 1):
            answer = await self.session.complete(ask(self.messages, num_choices), id=f"chatcmpl-{self.num_asked}", gone=Gone())
            self.session.delivered(ask(self.messages, num_choices))
            self.num_asked += 1
        said = answer.choices[chosen % num_choices].message
        self.messages += [said, Message(role="user", content=f"question {self.num_asked}")]


async def play(style: str, steps: list[tuple[str, int, int]], repeats: Repeats) -> tuple[Surroundings, Session, Scripted, Kept]:
    engine, journal = Scripted(style), Kept()
    around = Surroundings(template=template(style), engine=engine, journal=journal)
    slot = Slot(run="run", environment="env", problem_id="p", group_id="g/0/0", member=0, retry=0)
    opened = Opened(session="s", slot=slot, seed=1, deadline_at=0.0, manner=Manner(repeats=repeats))
    session = Session(around, opened)
    await session.append([Event(at=0, opened=opened)])
    client = Client(session)
    for step in steps:
        await client.move(*step)
    await session.tell(rewarded=Rewarded(rewards={"reward": 1.0}))
    await session.tell(ended=Ended(status=RolloutStatus.OK))
    return around, session, engine, journal


def rollout(session: Session) -> Rollout:
    assert session.ended is not None
    return rollout_of(session.opened, session.conversation, session.rewards, session.ended, trainable_policy="policy")


@pytest.mark.parametrize("style", ["chatml", "chatml_think", "plain", "qwen3_style", "llama3_style"])
@pytest.mark.parametrize("repeats", ["retry", "sample"])
@given(steps=moves)
@settings(max_examples=12)
def test_every_reply_is_trained_once_or_abandoned_and_the_journal_tells_the_same(style: str, repeats: Repeats, steps: list[tuple[str, int, int]]) -> None:
    around, session, engine, journal = asyncio.run(play(style, steps, repeats))
    made = rollout(session)
    sampled = [segment for segment in made.trace.segments if segment.source is Source.SAMPLED]
    # Each reply is there once, in one piece or cut where somebody left it.
    assert Counter(id for segment in sampled for id in segment.ids.tolist()) == Counter(id for ids in engine.said for id in ids)
    trained = Counter(id for sample in samples(made) for id in sample.ids[sample.loss_mask].tolist())
    abandoned = made.metadata["abandoned"]
    kept = [point for point in session.conversation.points if point.choice is not None and point.number in _kept(session)]
    assert trained == Counter(id for point in kept if point.choice is not None for id in point.choice.ids.tolist())
    assert len(kept) + sum(abandoned.values()) == len(engine.said)
    assert abandoned.keys() <= {"unused_choice", "client_retry"}
    # Whatever the client went on from is kept.
    assert all(point.number in _kept(session) for point in session.conversation.points if point.is_continued)
    again = rollout(Session.replayed(around, asyncio.run(journal.load("s"))))
    assert encode_msgpack(again) == encode_msgpack(made)
    assert not any(segment.ids.flags.writeable for segment in again.trace.segments), "nobody may write there"


def _kept(session: Session) -> frozenset[int]:
    assert session.ended is not None
    return verdict(session.opened, session.conversation, session.rewards, session.ended, trainable_policy="policy").kept


@pytest.mark.parametrize("style", ["chatml", "chatml_think", "plain", "qwen3_style", "llama3_style"])
@given(steps=moves)
@settings(max_examples=12)
def test_the_engine_is_sent_what_the_template_shows_of_the_clients_messages(style: str, steps: list[tuple[str, int, int]]) -> None:
    """Reference: the whole conversation rendered anew. Ids may differ where a reply was not cut up as the tokenizer would; the text may not."""
    _, session, engine, _ = asyncio.run(play(style, steps, "retry"))
    made = template(style)
    asked = [point for point in session.conversation.points if point.choice is None]
    spelled = {made.decode(np.array(prompt, np.int32)) for prompt in engine.prompts}
    for point in asked:
        whole = made.decode(made.open(point.messages).ids)
        assert any("".join(text.split()) == "".join(whole.split()) for text in spelled), (whole, spelled)
