"""The only maker of `Trace`. Used by the rollout worker and the gateway, one recorder for each episode or session.

Each call costs what it adds or goes back over, however long the history is; only `trace` and `resume` look at all of it, and `ids` after a fork.

    recorder = Recorder()
    recorder.open_message()
    recorder.append(prompt_ids, Source.ENV)
    recorder.close_message(Message(role="user", content="2+2?"))
    recorder.open_message()
    recorder.append(reply_ids, Source.SAMPLED, logprobs=..., versions=...)
    reply = recorder.close_message(Message(role="assistant", content="4"))
    recorder.attach(reply, reward=1.0)
    trace = recorder.trace()
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy.typing as npt

from penstock.errors import InvalidError
from penstock.trace._path import PathIds
from penstock.trace._runs import Place, Run, Tokens
from penstock.trace._taken import checked_tokens, tokens_of
from penstock.trace.checks import check_trace, checked_number
from penstock.types import InferenceMetadata, Int32Array, Mark, Message, SamplerFacts, Segment, Source, StepFacts, Trace, Usage, VersionRun
from penstock.types.frozen import quickly_made
from penstock.wire import check_noun


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tokens `start` to `stop` of a run in a recorder: what one append wrote. Stays valid whatever is recorded, forked or abandoned later."""

    run: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(slots=True, kw_only=True, eq=False)
class Recorder:
    """Builds the segment tree of one episode. Not thread-safe; belongs to one task."""

    _runs: list[Run] = field(default_factory=list)
    _tip: Place | None = None
    _marks: list[Mark] = field(default_factory=list)
    """Their `start` and `stop` count runs, not segments: runs keep their numbers when they are cut."""
    _message_start: int | None = None
    """First run of the message that is open."""
    _path: PathIds | None = field(default_factory=PathIds)
    """The tokens on the path to the tip. None after a fork, until somebody looks."""
    _known_sampler: SamplerFacts | None = None
    """Facts in which nothing was found wrong. All replies of an episode mostly share one object of them."""

    @classmethod
    def resume(cls, trace: Trace) -> Self:
        """A recorder that holds `trace` and goes on at the end of its last segment (`fork` or `rewind` to go on elsewhere).

        Segment i of the trace is run i of the recorder, so that `Span(run=i, start=0, stop=len(segment.ids))` names it.
        """
        check_trace(trace)
        recorder = cls(_marks=list(trace.marks), _path=None)
        for index, segment in enumerate(trace.segments):
            parent = None if segment.parent is None else (segment.parent, recorder._runs[segment.parent].length)
            recorder._runs.append(_run_of(segment, parent, recorder._depth(parent)))
            recorder._tip = (index, len(segment.ids))
        return recorder

    @property
    def num_tokens(self) -> int:
        """Tokens on the path to the tip."""
        return self._depth(self._tip)

    @property
    def tip(self) -> Span | None:
        """Where the next append will hang, as an empty span to `fork` from later; None before the first token."""
        return None if self._tip is None else Span(run=self._tip[0], start=self._tip[1], stop=self._tip[1])

    def ids(self) -> Int32Array:
        """The tokens on the path to the tip: what an engine is given to continue. A view that is right for ever, and cannot be written to."""
        if self._path is None:
            self._path = PathIds()
            self._path.new += self._way_to(self._tip)
        return self._path.ids()

    def append(
        self,
        ids: npt.ArrayLike,
        source: Source,
        *,
        after: Span | None = None,
        logprobs: npt.ArrayLike | None = None,
        versions: Sequence[VersionRun] = (),
        arrays: Mapping[str, npt.ArrayLike] | None = None,
        media: Sequence[str] = (),
    ) -> Span:
        """Record tokens at the tip, or after another span (`fork` first, then append), and move the tip to their end.

        Sampled tokens need logprobs and versions; injected ones may carry a scorer's. Raises `InvalidError` for what could not be sent.
        Inside one message, appends in a row that are alike become one segment; a message's border is always a segment's border.
        """
        tokens = checked_tokens(ids, source, logprobs=logprobs, versions=versions, arrays=arrays, media=media)
        if after is not None:
            self.fork(after)
        run, stop = self.append_checked(tokens)
        return Span(run=run, start=stop - len(tokens.ids), stop=stop)

    def append_checked(self, tokens: Tokens) -> Place:
        """As `append`, of what `checked_tokens` gave. Where the tip is then."""
        tip, runs = self._tip, self._runs
        length, depth = len(tokens.ids), 0
        place = len(runs), length
        if tip is not None:
            run, offset = runs[tip[0]], tip[1]
            depth = run.depth + offset
            if self._message_start is not None and tip[0] >= self._message_start and run.may_grow(offset, tokens):
                run.grow(tokens)
                place = tip[0], run.length
            elif offset < run.length:
                run.cuts.add(offset)
        if place[0] == len(runs):
            runs.append(Run(parent=tip, depth=depth, chunks=[tokens], length=length))
        self._tip = place
        if self._path is not None:
            self._path.new.append(tokens.ids)
        return place

    def open_message(self) -> None:
        """What is appended until `close_message` spells one message."""
        if self._message_start is not None:
            raise InvalidError("a message is open already: close it before the next")
        self._message_start = len(self._runs)

    def close_message(
        self,
        message: Message,
        *,
        inference: InferenceMetadata | None = None,
        step: StepFacts | None = None,
        reward: float | None = None,
        rewards: Mapping[str, float] | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Say which message the tokens since `open_message` spell, and give its number among `Trace.marks`.

        A message that begins inside another one (after a fork there) holds only the tokens from the fork on.
        """
        if self._message_start is None:
            raise InvalidError(f"no message is open for the message of {message.role!r}")
        mark = Mark(message=message, start=self._message_start, stop=len(self._runs), inference=inference, timestamp=timestamp)
        self._check_fresh(mark)
        if reward is not None or rewards is not None or step is not None:
            mark = _with_later_facts(mark, reward, rewards, step)
        self._marks.append(mark)
        self._message_start = None
        for run in self._runs[mark.start :]:
            if len(run.chunks) > 1:
                run.joined()
        return len(self._marks) - 1

    def append_message(self, tokens: Tokens, message: Message, *, inference: InferenceMetadata | None = None, timestamp: int | None = None) -> int:
        """As `open_message`, `append_checked` and `close_message`, for a message that is one run of tokens."""
        self._check_no_message("begin another message")
        mark = Mark(message=message, start=len(self._runs), stop=len(self._runs) + 1, inference=inference, timestamp=timestamp)
        self._check_fresh(mark)
        self.append_checked(tokens)
        self._marks.append(mark)
        return len(self._marks) - 1

    def attach(self, mark: int, *, reward: float | None = None, rewards: Mapping[str, float] | None = None, step: StepFacts | None = None) -> None:
        """Add to a closed message what is known only later. None leaves what is there; named rewards are added to the others."""
        self._check_mark(mark)
        self._marks[mark] = _with_later_facts(self._marks[mark], reward, rewards, step)

    def message_spans(self, mark: int) -> tuple[Span, ...]:
        """The tokens of a closed message: `fork` after the last span to go on from it, `abandon` the first to give it up."""
        self._check_mark(mark)
        start, stop = self._marks[mark].start, self._marks[mark].stop
        return tuple(Span(run=run, start=0, stop=self._runs[run].length) for run in range(start, stop))

    def fork(self, after: Span | None, tokens: int | None = None) -> None:
        """Go on after the first `tokens` tokens of a span (all of them by default), or at a new root. What is there stays, and is kept."""
        if after is None:
            self._move(None)
            return
        self._check_span(after)
        if tokens is not None and not 0 <= tokens <= len(after):
            raise InvalidError(f"tokens must lie in 0..{len(after)}, the length of the span, got {tokens}")
        self._move(self._place(after.run, after.stop if tokens is None else after.start + tokens))

    def rewind(self, num_tokens: int) -> None:
        """Fork after the first `num_tokens` tokens of the path to the tip."""
        if not 0 <= num_tokens <= self.num_tokens:
            raise InvalidError(f"num_tokens must lie in 0..{self.num_tokens}, the length of the path, got {num_tokens}")
        place = self._tip
        while place is not None and self._runs[place[0]].depth >= num_tokens:
            place = self._runs[place[0]].parent
        self._move(None if place is None else (place[0], num_tokens - self._runs[place[0]].depth))

    def abandon(self, branch: Span, reason: str) -> None:
        """Nobody goes on from `branch`: it and all that hangs on it, now or later, is stored and never trained.

        If the tip stands there, it goes back to where the branch began.
        """
        self._check_span(branch)
        if not reason:
            raise InvalidError("reason is empty: an abandoned branch says why")
        if len(branch) == 0:
            raise InvalidError(f"branch must hold a token, got {branch}")
        self._check_no_message("abandon")
        run, before = self._runs[branch.run], self._place(branch.run, branch.start)
        self._check_cut(before)
        if branch.start > 0:
            run.cuts.add(branch.start)
        run.abandoned[branch.start] = reason
        if self._stands_on(branch):
            self._stand_at(before)

    def trace(self) -> Trace:
        """All that was recorded so far. Later calls do not change it. Tokens of a message that is still open have no mark."""
        if not any(run.cuts for run in self._runs):  # then segments are numbered as runs are
            whole = [run.segment(None if run.parent is None else run.parent[0]) for run in self._runs]
            return Trace(segments=tuple(whole), marks=tuple(self._marks))
        segments: list[Segment] = []
        first_segments: list[int] = []
        ends: dict[Place, int] = {}
        for number, run in enumerate(self._runs):
            first_segments.append(len(segments))
            parent = None if run.parent is None else ends[run.parent]
            for stop, segment in run.segments(parent, len(segments)):
                ends[number, stop] = len(segments)
                segments.append(segment)
        first_segments.append(len(segments))
        marks = tuple(replace(mark, start=first_segments[mark.start], stop=first_segments[mark.stop]) for mark in self._marks)
        return Trace(segments=tuple(segments), marks=marks)

    def _depth(self, place: Place | None) -> int:
        return 0 if place is None else self._runs[place[0]].depth + place[1]

    def _place(self, run: int, offset: int) -> Place | None:
        """Before the first token of a run is after the last one of what it hangs on."""
        return (run, offset) if offset > 0 else self._runs[run].parent

    def _move(self, place: Place | None) -> None:
        self._check_no_message("fork")
        self._check_cut(place)
        self._stand_at(place)

    def _stand_at(self, place: Place | None) -> None:
        if place != self._tip:
            self._tip, self._path = place, None

    def _way_to(self, place: Place | None) -> list[Int32Array]:
        """The tokens from the root to a place, run by run."""
        parts = []
        while place is not None:
            run = self._runs[place[0]]
            parts.append(run.joined().ids[: place[1]])
            place = run.parent
        return parts[::-1]

    def _stands_on(self, branch: Span) -> bool:
        """Whether the tip is one of the branch's tokens or hangs on one."""
        depth = self._runs[branch.run].depth + branch.start
        place = self._tip
        while place is not None and place[0] != branch.run and self._runs[place[0]].depth > depth:
            place = self._runs[place[0]].parent
        return place is not None and place[0] == branch.run and place[1] > branch.start

    def _check_cut(self, place: Place | None) -> None:
        """A segment does not say which of its tokens media stand behind, so it cannot be cut in two."""
        if place is None:
            return
        run, offset = self._runs[place[0]], place[1]
        if run.chunks[0].media and offset < run.length:
            raise InvalidError(f"cannot fork after {offset} of {run.length} tokens with media {run.chunks[0].media}: record media in a segment of their own")

    def _check_no_message(self, verb: str) -> None:
        if self._message_start is not None:
            raise InvalidError(f"cannot {verb} while a message is open: its tokens must be one chain")

    def _check_fresh(self, mark: Mark) -> None:
        """Check a mark without rewards and facts. Of most messages nothing but their text could be wrong, and a full look costs as much as recording them."""
        inference = mark.inference
        is_known = inference is None or (inference.sampler is self._known_sampler and _is_counted(inference.usage) and _is_text(inference.finish_reason))
        if is_known and _is_plain(mark.message):
            return
        check_noun(mark)
        self._known_sampler = None if inference is None else inference.sampler

    def _check_mark(self, mark: int) -> None:
        if not 0 <= mark < len(self._marks):
            raise InvalidError(f"mark must be the number of one of {len(self._marks)} closed messages, got {mark}")

    def _check_span(self, span: Span) -> None:
        if not (0 <= span.run < len(self._runs) and 0 <= span.start <= span.stop <= self._runs[span.run].length):
            raise InvalidError(f"span must be one that this recorder gave, got {span}")


def _is_counted(usage: Usage) -> bool:
    """Whether all are numbers that can be sent."""
    prompt, cached, sampled, seconds = usage.prompt_tokens, usage.cached_tokens, usage.sampled_tokens, usage.seconds
    if not (type(prompt) is type(cached) is type(sampled) is int and type(seconds) is float):
        return False
    return 0 <= prompt < 2**63 and 0 <= cached < 2**63 and 0 <= sampled < 2**63 and 0.0 <= seconds < math.inf


def _is_plain(message: Message) -> bool:
    """Whether nothing is wrong with a message: one without calls, of texts that can be sent."""
    if message.tool_calls or not _is_text(message.role) or not _is_text(message.content):
        return False
    return (message.tool_call_id is None or _is_text(message.tool_call_id)) and (message.name is None or _is_text(message.name))


def _is_text(value: str) -> bool:
    """Whether it is a text that can be sent."""
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_later_facts(mark: Mark, reward: float | None, rewards: Mapping[str, float] | None, step: StepFacts | None) -> Mark:
    """A mark that was checked, with more in it. Only what is new is looked at."""
    known = Mark(
        message=mark.message,
        start=mark.start,
        stop=mark.stop,
        reward=mark.reward if reward is None else checked_number(reward, "reward"),
        rewards={**mark.rewards, **{name: checked_number(value, f"rewards[{name!r}]") for name, value in rewards.items()}} if rewards else mark.rewards,
        inference=mark.inference,
        step=mark.step if step is None else step,
        timestamp=mark.timestamp,
    )
    if rewards:
        check_noun(known)
    elif step is not None:
        try:
            check_noun(step)
        except InvalidError:
            check_noun(known)  # says where in the message it stands
            raise
    return known


def _run_of(segment: Segment, parent: Place | None, depth: int) -> Run:
    """A stored segment as a run. Its arrays are shared: stored traces are never written to."""
    abandoned = {} if segment.abandoned is None else {0: segment.abandoned}
    return Run(parent=parent, depth=depth, chunks=[tokens_of(segment)], length=len(segment.ids), abandoned=abandoned)
