"""What a conversation remembers of the request before last, and of requests that overlap, is what its events say."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.gateway.conversation import Conversation, Prompt
from penstock.gateway.events import Choice, Replied
from penstock.gateway.recording import recorded
from penstock.types import Json, Message, SamplerFacts, VersionRun
from penstock.wire import encode_msgpack

TOOL: Json = {"type": "function", "function": {"name": "look", "parameters": {}}}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    directory = tmp_path_factory.mktemp("model")
    write_byte_tokenizer(directory, "chatml")
    return ChatTemplate.load(directory)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def answer(template: ChatTemplate, prompt: Prompt, *texts: str) -> Replied:
    """The event of a prompt that was answered, with a choice for each text."""
    choices = []
    for text in texts:
        ids = np.array([*template.encode_text(text).tolist(), template.eos_ids[0]], np.int32)
        versions = (VersionRun(policy="policy", version=0, count=len(ids)),)
        logprobs = np.full(len(ids), -0.5, np.float32)
        choices.append(Choice(ids=ids, logprobs=logprobs, versions=versions, text=text, message=said(text), finish="stop"))
    return Replied(
        id=f"id-{'-'.join(texts)}",
        request="-".join(texts),
        tools=prompt.tools,
        parent=prompt.parent,
        shared=prompt.shared,
        keep=prompt.keep,
        messages=prompt.messages,
        pieces=prompt.pieces,
        choices=tuple(choices),
        sampler=SamplerFacts(),
    )


def replayed(template: ChatTemplate, events: list[Replied]) -> Conversation:
    conversation = Conversation(template)
    for at, event in enumerate(events):
        conversation.apply(event, at)
    return conversation


def live(template: ChatTemplate) -> tuple[Conversation, list[Replied], dict[str, list[int]]]:
    """Requests that overlap, repeat, fork, leave out the last message and differ in nothing but their tools; and, by reply, the tokens that were asked."""
    conversation, events, asked = Conversation(template), [], {}

    def apply(prompt: Prompt, *texts: str) -> None:
        event = answer(template, prompt, *texts)
        conversation.apply(event, len(events))
        events.append(event)
        asked.update(dict.fromkeys(texts, prompt.ids.tolist()))

    apply(conversation.prompt((user("one"),)), "first", "other")
    one = (user("one"), said("first"))
    overlapping = [conversation.prompt((*one, user("two"))), conversation.prompt((*one, user("three")))]
    for prompt, text in zip(overlapping, ("second", "third"), strict=True):
        apply(prompt, text)
    for prompt, text in zip([conversation.prompt((*one, user("four"))) for _ in range(2)], ("seventh", "eighth"), strict=True):
        apply(prompt, text)
    again = (*one, user("three"))
    with_tools, without = conversation.prompt(again, [TOOL]), conversation.prompt(again)
    apply(with_tools, "fourth")
    apply(without, "fifth")
    apply(conversation.prompt((user("one"), said("edited"), user("two"))), "sixth")
    apply(conversation.prompt((user("alone"), user("beside"))), "ninth")
    apply(conversation.prompt((user("alone"),)), "tenth")
    return conversation, events, asked


@pytest.mark.parametrize(
    "messages",
    [
        (user("one"),),
        (user("one"), said("other"), user("more")),
        (user("one"), said("first"), user("two"), said("second"), user("more")),
        (user("one"), said("first"), user("three"), said("third"), user("more")),
        (user("one"), said("first"), user("three"), said("fifth"), user("more")),
        (user("one"), said("edited"), user("two"), said("sixth"), user("more")),
        (user("one"), said("first"), user("four"), said("eighth"), user("more")),
        (user("alone"), said("tenth"), user("more")),
        (user("else"),),
    ],
)
@pytest.mark.parametrize("tools", [(), (TOOL,)])
def test_a_prompt_is_the_same_whether_the_session_was_held_or_comes_from_its_journal(
    template: ChatTemplate, messages: tuple[Message, ...], tools: tuple[Json, ...]
) -> None:
    conversation, events, _ = live(template)
    held, found = conversation.prompt(messages, tools), replayed(template, events).prompt(messages, tools)
    assert held.ids.tolist() == found.ids.tolist()
    assert (held.tools, held.parent, held.shared, held.keep, held.digests) == (found.tools, found.parent, found.shared, found.keep, found.digests)
    if not tools:
        assert template.decode(held.ids).endswith(f"{messages[-1].content}<|im_end|>\n<|im_start|>assistant\n")


def test_the_trace_is_the_same_and_may_be_made_again(template: ChatTemplate) -> None:
    conversation, events, _ = live(template)
    first = encode_msgpack(recorded(conversation).recorder.trace())
    assert encode_msgpack(recorded(conversation).recorder.trace()) == first
    assert encode_msgpack(recorded(replayed(template, events)).recorder.trace()) == first


def test_every_reply_is_recorded_once_behind_its_own_prompt(template: ChatTemplate) -> None:
    conversation, _, asked = live(template)
    made = recorded(conversation)
    trace = made.recorder.trace()
    for point in conversation.points:
        if point.choice is None:
            continue
        mark = trace.marks[made.marks[point.number]]
        assert mark.message == point.choice.message
        path, segment = [], trace.segments[mark.stop - 1]
        while segment.parent is not None:
            segment = trace.segments[segment.parent]
            path.append(segment.ids)
        assert np.concatenate(path[::-1]).tolist() == asked[point.choice.text]


def test_every_message_of_a_prompt_is_marked_at_its_own_tokens(template: ChatTemplate) -> None:
    conversation, _, _ = live(template)
    trace = recorded(conversation).recorder.trace()
    asked = [mark for mark in trace.marks if mark.message.role == "user"]
    assert len(asked) > 3
    for mark in asked:
        text = template.decode(np.concatenate([segment.ids for segment in trace.segments[mark.start : mark.stop]]))
        assert text == mark.message.content
