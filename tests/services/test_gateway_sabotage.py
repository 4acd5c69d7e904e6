"""Each promise of the gateway has a bug that breaks it inside the gateway's process; with it the trial that looks after the promise must fail.

A bug is text that the child's interpreter runs before anything else. Nothing in the package knows of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from tests.services import test_gateway
from tests.services.gateway_stage import Stage
from tests.services.test_gateway import ask, reply_ids, stored, train_session, trained, user
from tests.unit.gateway.stub_engine import StubEngine

Trial = Callable[[Stage, StubEngine], None]

FORGOTTEN_ANSWERS = """
from penstock.gateway.session import Session

Session._known_answer = lambda self, ask: None
"""
"""A retried request is recorded twice."""

KEPT_CHOICES = """
from penstock.gateway import rollouts

def abandoned(conversation, repeats, found=rollouts.abandoned):
    return {number: reason for number, reason in found(conversation, repeats).items() if reason != "unused_choice"}

rollouts.abandoned = abandoned
"""
"""A choice that nobody went on from is trained on."""

COPIED_PATHS = """
from penstock.trace import Recorder
from penstock.trace._runs import versions_between

def copied(self, after, tokens=None, fork=Recorder.fork):
    fork(self, after, tokens)
    path, place = [], self._tip
    while place is not None:
        run = self._runs[place[0]]
        path.append((run.joined(), place[1]))
        place = run.parent
    fork(self, None)
    for tokens, stop in reversed(path):
        logprobs = None if tokens.logprobs is None else tokens.logprobs[:stop]
        self.append(tokens.ids[:stop], tokens.source, logprobs=logprobs, versions=versions_between(tokens.versions, 0, stop))

Recorder.fork = copied
"""
"""A fork has a copy of what it shares, sampled tokens included."""

NO_MEMORY = """
from penstock.gateway.journal import BufferJournal

async def load(self, session):
    return []

BufferJournal.load = load
"""
"""A session is lost when its gateway is started again."""

LATE_REWARDS = """
from penstock.gateway.session import Session

async def tell(self, *, rewarded=None, tell=Session.tell, **others):
    ended = self.ended
    if rewarded is not None:
        self.ended = None
    try:
        await tell(self, rewarded=rewarded, **others)
    finally:
        self.ended = self.ended or ended

Session.tell = tell
"""
"""A reward is taken after the end."""


def one_choice_is_kept(stage: Stage, engine: StubEngine) -> None:
    test_gateway.test_of_several_choices_the_one_that_is_continued_is_kept(stage)


def nothing_is_said_after_the_end(stage: Stage, engine: StubEngine) -> None:
    test_gateway.test_the_end_may_be_told_twice_and_nothing_is_said_after_it(stage)


def a_fork_behind_a_reply_trains_each_token_once(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        messages = [user("one"), ask(client, [user("one")]).choices[0].message.model_dump(), user("two")]
        ask(client, messages)
        # The second reply is edited: the first is shared by both branches.
        ask(client, [*messages, {"role": "assistant", "content": "what I wish I had said"}, user("three")])
        ask(client, [*messages[:2], user("another two")])
    rollout = stored(stage, session)
    assert Counter(trained(rollout)) == Counter({reply_ids("reply 1.0"): 1, reply_ids("reply 2.0"): 2, reply_ids("reply 3.0"): 1})


def a_session_goes_on_after_a_restart(stage: Stage, engine: StubEngine) -> None:
    session = train_session(stage)
    with stage.agent(session) as client:
        messages = [user("one"), ask(client, [user("one")]).choices[0].message.model_dump(), user("two")]
        stage.kill_gateway()
        stage.start_again()
        ask(client, messages)
    assert trained(stored(stage, session)) == [reply_ids("reply 1.0"), reply_ids("reply 2.0")]


TRIALS: dict[str, tuple[str, Trial]] = {
    "a retried request is recorded twice": (
        FORGOTTEN_ANSWERS,
        test_gateway.test_the_same_key_is_the_same_request_however_often_and_a_retry_gets_what_was_sampled,
    ),
    "an unused choice is trained": (KEPT_CHOICES, one_choice_is_kept),
    "a fork shares a sampled token twice": (COPIED_PATHS, a_fork_behind_a_reply_trains_each_token_once),
    "a session is lost at a restart": (NO_MEMORY, a_session_goes_on_after_a_restart),
    "a reward after the end is accepted": (LATE_REWARDS, nothing_is_said_after_the_end),
}


def test_sound_gateways_pass_the_trials_that_are_made_here(stage: Stage, engine: StubEngine) -> None:
    stage.start_gateway("--name", "sound")
    for trial in (a_fork_behind_a_reply_trains_each_token_once, a_session_goes_on_after_a_restart):
        trial(stage, engine)


@pytest.mark.parametrize("what", list(TRIALS))
def test_a_gateway_that_breaks_a_promise_fails_its_trial(stage: Stage, engine: StubEngine, tmp_path: Path, what: str) -> None:
    bug, trial = TRIALS[what]
    (tmp_path / "sitecustomize.py").write_text(bug)
    stage.start_gateway("--name", what.replace(" ", "-"), PYTHONPATH=str(tmp_path))
    with pytest.raises((AssertionError, openai.APIError)):
        trial(stage, engine)
