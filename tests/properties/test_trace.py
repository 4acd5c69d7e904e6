"""Random episodes against a slow obvious account of them: one entry per token, told what happened in the same words as the recorder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.trace import Recorder, Span, check_trace, facts, prefix_tree, samples
from penstock.types import Message, Rollout, Sample, Source, Trace, VersionRun

POLICIES = ("policy", "policy", "opponent")


@dataclass
class Token:
    """All there is to know about one token. Its number is stored beside it in the trace, as the named array `number`."""

    parent: int | None
    id: int
    source: Source
    logprob: float | None = None
    weights: tuple[str, int] | None = None
    abandoned: bool = False
    message: int | None = None


@dataclass
class Episode:
    """A recorder and the account of what it was told."""

    recorder: Recorder = field(default_factory=Recorder)
    tokens: list[Token] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """For each token its run in the recorder and its offset there."""
    tip: int | None = None
    num_messages: int = 0
    is_open: bool = False

    def append(self, ids: list[int], source: Source, versions: list[int]) -> None:
        runs = [VersionRun(policy=POLICIES[version], version=version, count=1) for version in versions[: len(ids)]] if source is Source.SAMPLED else []
        first = len(self.tokens)
        for offset, token_id in enumerate(ids):
            logprob, weights = (-(first + offset) / 64, (runs[offset].policy, runs[offset].version)) if runs else (None, None)
            message = self.num_messages if self.is_open else None
            self.tokens.append(Token(parent=self.tip, id=token_id, source=source, logprob=logprob, weights=weights, message=message))
            self.tip = first + offset
        numbers = np.arange(first, len(self.tokens))
        span = self.recorder.append(ids, source, logprobs=-numbers / 64 if runs else None, versions=runs, arrays={"number": numbers})
        self.places.extend((span.run, offset) for offset in range(span.start, span.stop))

    def toggle_message(self) -> None:
        if self.is_open:
            self.recorder.close_message(Message(role="assistant", content=str(self.num_messages)))
            self.num_messages += 1
        else:
            self.recorder.open_message()
        self.is_open = not self.is_open

    def fork(self, token: int | None) -> None:
        """Go on after a token."""
        self.recorder.fork(None if token is None else self.span(token))
        self.tip = token

    def rewind(self, num_tokens: int) -> None:
        path = self.path(self.tip)
        self.recorder.rewind(num_tokens)
        self.tip = path[num_tokens - 1] if num_tokens else None

    def abandon(self, token: int) -> None:
        self.recorder.abandon(self.span(token), "unused")
        self.tokens[token].abandoned = True
        if token in self.path(self.tip):
            self.tip = self.tokens[token].parent

    def span(self, token: int) -> Span:
        run, offset = self.places[token]
        return Span(run=run, start=offset, stop=offset + 1)

    def path(self, token: int | None) -> list[int]:
        path = []
        while token is not None:
            path.append(token)
            token = self.tokens[token].parent
        return path[::-1]

    def is_kept(self, token: int) -> bool:
        return not any(self.tokens[number].abandoned for number in self.path(token))

    def kept_leaf_paths(self) -> list[list[int]]:
        kept = [number for number in range(len(self.tokens)) if self.is_kept(number)]
        continued = {self.tokens[number].parent for number in kept}
        return [self.path(number) for number in kept if number not in continued]

    def resumed(self) -> Episode:
        trace = self.recorder.trace()
        other = Episode(
            recorder=Recorder.resume(trace),
            tokens=[Token(**vars(token)) for token in self.tokens],
            places=[(0, 0)] * len(self.tokens),
            num_messages=self.num_messages,
        )
        for index, segment in enumerate(trace.segments):
            for offset, number in enumerate(segment.arrays["number"].tolist()):
                other.places[number] = (index, offset)
        other.fork(self.tip)
        return other

    def rollout(self, uid: str = "uid") -> Rollout:
        return Rollout(run="r", environment="e", problem_id="p", group_id="g", member=0, retry=0, rollout_uid=uid, trace=self.recorder.trace())


Op = tuple[str, list[int], Source, list[int], int]

OPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "append", "message", "fork", "rewind", "abandon"]),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.sampled_from([Source.SAMPLED, Source.SAMPLED, Source.ENV, Source.TEMPLATE, Source.INJECTED]),
        st.lists(st.integers(0, 2), min_size=4, max_size=4),
        st.integers(0, 1000),
    ),
    max_size=25,
)


def play(episode: Episode, ops: list[Op]) -> None:
    """Do what the ops say; what may not be done while a message is open closes it first."""
    for verb, ids, source, versions, choice in ops:
        if verb == "append":
            episode.append(ids, source, versions)
        elif verb == "message":
            episode.toggle_message()
        elif episode.tokens:
            close(episode)
            if verb == "fork":
                token = choice % (len(episode.tokens) + 1)
                episode.fork(None if token == len(episode.tokens) else token)
            elif verb == "rewind":
                episode.rewind(choice % (len(episode.path(episode.tip)) + 1))
            else:
                episode.abandon(choice % len(episode.tokens))
    close(episode)


def close(episode: Episode) -> None:
    if episode.is_open:
        episode.toggle_message()


def played(ops: list[Op]) -> Episode:
    episode = Episode()
    play(episode, ops)
    return episode


def numbers_of(trace: Trace) -> list[list[int]]:
    return [segment.arrays["number"].tolist() for segment in trace.segments]


@given(OPS)
@settings(max_examples=150, deadline=None)
def test_a_trace_says_of_every_token_what_the_recorder_was_told(ops: list[Op]) -> None:
    episode = played(ops)
    trace = episode.recorder.trace()
    check_trace(trace)
    numbers = numbers_of(trace)
    gone: list[bool] = []
    seen = {}
    for index, segment in enumerate(trace.segments):
        gone.append(segment.abandoned is not None or (segment.parent is not None and gone[segment.parent]))
        weights = [(run.policy, run.version) for run in segment.versions for _ in range(run.count)] or [None] * len(segment.ids)
        logprobs = segment.logprobs.tolist() if segment.logprobs is not None else [None] * len(segment.ids)
        parent = None if segment.parent is None else numbers[segment.parent][-1]
        for offset, number in enumerate(numbers[index]):
            seen[number] = (parent, int(segment.ids[offset]), segment.source, logprobs[offset], weights[offset], not gone[index])
            parent = number
    told = {
        number: (token.parent, token.id, token.source, token.logprob, token.weights, episode.is_kept(number)) for number, token in enumerate(episode.tokens)
    }
    assert seen == told
    for message, mark in enumerate(trace.marks):
        assert mark.message.content == str(message)
        marked = [number for numbers_here in numbers[mark.start : mark.stop] for number in numbers_here]
        assert marked == [number for number, token in enumerate(episode.tokens) if token.message == message]
    assert episode.recorder.ids().tolist() == [episode.tokens[number].id for number in episode.path(episode.tip)]


@given(OPS)
@settings(max_examples=150, deadline=None)
def test_every_sampled_token_on_a_kept_branch_is_trained_exactly_once(ops: list[Op]) -> None:
    episode = played(ops)
    trained: Counter[int] = Counter()
    leaf_paths = episode.kept_leaf_paths()
    for sample in samples(episode.rollout(), advantages=2.0):
        numbers = sample.arrays["number"].tolist()
        assert numbers in leaf_paths
        assert sample.ids.tolist() == [episode.tokens[number].id for number in numbers]
        assert sample.loss_mask.any()
        for place, number in enumerate(numbers):
            token = episode.tokens[number]
            ours = token.weights is not None and token.weights[0] == "policy"
            assert (sample.logprobs[place], sample.versions[place]) == ((token.logprob, token.weights[1]) if ours and token.weights else (0, -1))
            assert sample.advantages[place] == (2.0 if sample.loss_mask[place] else 0.0)
        trained.update(number for number, loss in zip(numbers, sample.loss_mask.tolist(), strict=True) if loss)
    kept_and_ours = [n for n, token in enumerate(episode.tokens) if token.weights and token.weights[0] == "policy" and episode.is_kept(n)]
    assert trained == Counter(kept_and_ours)


@given(OPS)
@settings(max_examples=100, deadline=None)
def test_facts_equal_a_count_of_all_kept_tokens(ops: list[Op]) -> None:
    episode = played(ops)
    found = facts(episode.rollout())
    kept = [token for number, token in enumerate(episode.tokens) if episode.is_kept(number)]
    versions = [token.weights[1] for token in kept if token.weights and token.weights[0] == "policy"]
    assert found.tokens == len(kept)
    assert found.sampled_tokens == len(versions)
    assert found.versions == tuple(sorted(set(versions)))
    assert found.oldest_version == min(versions, default=None)
    assert found.newest_version == max(versions, default=None)
    prefixes = set()
    for path in episode.kept_leaf_paths():
        tokens = [episode.tokens[number] for number in path]
        ours = [place for place, token in enumerate(tokens) if token.weights and token.weights[0] == "policy"]
        ids = [token.id for token in tokens[: min(ours, default=len(tokens))]]
        prefixes.add((len(ids), xxhash.xxh3_128_hexdigest(np.array(ids, "<i4").tobytes())))
    assert (found.prefix_tokens, found.prefix_digest) in (prefixes or {(0, xxhash.xxh3_128_hexdigest(b""))})


def distinct_tokens(group: list[Sample]) -> int:
    """How many tokens a perfect sharing must compute: prompts by their ids so far, the rest by the segments so far."""
    keys = set()
    for sample in group:
        ids, offset = sample.ids.tolist(), 0
        sampled = [place for place, version in enumerate(sample.versions.tolist()) if version >= 0]
        for depth, (segment, length) in enumerate(zip(sample.path, sample.lengths, strict=True)):
            for place in range(offset, offset + length):
                by_identity = (sample.rollout_uid, sample.path[: depth + 1], place)
                keys.add((tuple(ids[: place + 1]),) if place < min(sampled) else by_identity)
            assert segment == sample.path[depth]
            offset += length
    return len(keys)


@given(st.lists(OPS, min_size=1, max_size=4), OPS)
@settings(max_examples=100, deadline=None)
def test_a_prefix_tree_spells_its_samples_and_shares_all_that_may_be_shared(tails: list[list[Op]], start: list[Op]) -> None:
    group = [sample for uid, tail in enumerate(tails) for sample in samples(played(start[:4] + tail).rollout(str(uid)))]
    tree = prefix_tree(group)
    for index, sample in enumerate(group):
        parts = [tree.nodes[node] for node in tree.path(index)]
        assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
        assert parts[-1].stop == len(sample.ids)
        spelled = [tree.samples[part.sample].ids[part.start : part.stop] for part in parts]
        assert np.concatenate(spelled).tolist() == sample.ids.tolist()
        for part in parts:
            here = slice(part.start, part.stop)
            assert tree.samples[part.sample].versions[here].tolist() == sample.versions[here].tolist()
            assert tree.samples[part.sample].logprobs[here].tolist() == sample.logprobs[here].tolist()
            assert part.sample == index or not sample.loss_mask[here].any()
    assert sum(int(tree.samples[node.sample].loss_mask[node.start : node.stop].sum()) for node in tree.nodes) == sum(int(s.loss_mask.sum()) for s in group)
    assert tree.num_tokens == distinct_tokens(group)
    assert tree.num_tokens <= sum(len(sample.ids) for sample in group)


@given(st.lists(st.lists(st.integers(0, 1), max_size=6), max_size=8))
@settings(max_examples=100, deadline=None)
def test_prompts_that_begin_alike_are_computed_once(prompts: list[list[int]]) -> None:
    group = []
    for uid, prompt in enumerate(prompts):
        episode = Episode()
        if prompt:
            episode.append(prompt, Source.ENV, [])
        episode.append([0], Source.SAMPLED, [0])
        group += samples(episode.rollout(str(uid)))
    tree = prefix_tree(group)
    assert tree.num_tokens == len(prompts) + len({tuple(prompt[:length]) for prompt in prompts for length in range(1, len(prompt) + 1)})
    assert [sum(tree.nodes[node].stop - tree.nodes[node].start for node in tree.path(index)) for index in range(len(prompts))] == [len(p) + 1 for p in prompts]


@given(st.lists(OPS, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_a_prefix_tree_is_numbered_depth_first(tails: list[list[Op]]) -> None:
    tree = prefix_tree([sample for uid, tail in enumerate(tails) for sample in samples(played(tail).rollout(str(uid)))])
    ancestors: list[int] = []
    for index, node in enumerate(tree.nodes):
        while ancestors and ancestors[-1] != node.parent:
            ancestors.pop()
        assert node.parent == (ancestors[-1] if ancestors else -1)
        ancestors.append(index)


@given(OPS, OPS)
@settings(max_examples=100, deadline=None)
def test_a_resumed_recorder_continues_identically(before: list[Op], after: list[Op]) -> None:
    episode = played(before)
    resumed = episode.resumed()
    play(episode, after)
    play(resumed, after)
    assert spelled(episode.recorder.trace()) == spelled(resumed.recorder.trace())


def spelled(trace: Trace) -> object:
    """A trace as values that can be compared."""
    segments = [
        (s.parent, s.ids.tolist(), s.source, None if s.logprobs is None else s.logprobs.tolist(), s.versions, s.arrays["number"].tolist(), s.abandoned)
        for s in trace.segments
    ]
    return segments, trace.marks
