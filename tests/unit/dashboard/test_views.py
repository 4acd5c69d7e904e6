from __future__ import annotations

from io import StringIO

import numpy as np
from rich.console import Console

from penstock.dashboard.history import Replay
from penstock.dashboard.replies import ShownReply, ShownToken, most_telling, shown
from penstock.dashboard.screen import colour, reply_text, screen
from penstock.dashboard.sentences import Teller
from penstock.dashboard.snapshot import Part, Snapshot
from penstock.dashboard.sparkline import sparkline
from penstock.types import Rollout, Segment, Source, Trace, VersionRun


def snapshot(**changes: object) -> Snapshot:
    known: dict[str, object] = {"run": "demo", "phase": "running", "elapsed_seconds": 83.0, "updates": 160}
    return Snapshot(**{**known, **changes})  # type: ignore[arg-type]


def drawn(now: Snapshot) -> str:
    console = Console(width=140, record=True, file=StringIO())
    console.print(screen(now))
    return console.export_text()


def reply(*versions: int, uid: str = "u") -> ShownReply:
    return ShownReply(uid=uid, prompt="sort 21>", tokens=tuple(ShownToken(text="1", version=version) for version in versions), reward=1.0)


def test_a_reply_knows_which_version_sampled_which_token() -> None:
    prompt = Segment(parent=None, ids=np.array([115, 62], np.int32), source=Source.ENV)
    runs = (VersionRun(policy="policy", version=4, count=1), VersionRun(policy="policy", version=5, count=2))
    said = Segment(parent=0, ids=np.array([49, 50, 51], np.int32), source=Source.SAMPLED, logprobs=np.zeros(3, np.float32), versions=runs)
    rollout = Rollout(
        run="r", environment="sort", problem_id="p", group_id="g/0/0", member=0, retry=0, rollout_uid="u", trace=Trace(segments=(prompt, said)), reward=1.0
    )
    found = shown(rollout, lambda ids: bytes(ids).decode())
    assert found.prompt == "s>"
    assert [(token.text, token.version) for token in found.tokens] == [("1", 4), ("2", 5), ("3", 5)]
    assert found.versions == (4, 5)


def test_the_reply_that_most_versions_sampled_is_shown_and_stays_until_another_tells_as_much() -> None:
    one, two, later = reply(1, 1, uid="a"), reply(1, 2, uid="b"), reply(7, 8, uid="c")
    assert most_telling([one, two, one], None) is two
    assert most_telling([one], two) is two
    assert most_telling([later, one], two) is later
    assert most_telling([], None) is None


def test_tokens_have_the_colour_of_their_version_and_control_characters_are_dots() -> None:
    text = reply_text(ShownReply(uid="u", prompt="p", tokens=(ShownToken(text="1", version=4), ShownToken(text="\x1b", version=5)), reward=None))
    assert text.plain.startswith("p1·   sampled by version 4, 5")
    styles = [span.style for span in text.spans]
    assert f"bold {colour(4)}" in styles and f"bold {colour(5)}" in styles and colour(4) != colour(5)


def test_the_view_shows_what_a_person_asks_for() -> None:
    now = snapshot(
        updates_done=84,
        rewards=(0.1, 0.5, 0.9),
        lags=(1.0, 2.0),
        lag_max=3,
        max_lag=4,
        sampled_per_second=(1000.0, 1000.0),
        trained_per_second=750.0,
        groups={"open": 3, "ready": 5, "bound": 16, "spent": 640, "dropped(stale)": 2},
        term=2,
        replay=Replay(term=2, first_update=80, last_update=83),
        parts=(Part(name="learner", state="starting", restarts=1), Part(name="buffer", state="ready")),
        reply=reply(83, 84),
        events=("killed the learner",),
    )
    text = drawn(now)
    for expected in (
        "update 84/160",
        "1:23",
        "0.50",
        "max 3 of 4 versions",
        "1,000 tokens/s",
        "750 tokens/s",
        "3 open, 0 complete, 5 ready, 16 bound, 640 spent, 2 dropped; all accounted for",
        "term 2, replaying updates 80-83",
        "learner starting (1 restart)",
        "sampled by version 83, 84",
        "killed the learner",
    ):
        assert expected in text, expected


def test_a_view_of_a_run_that_has_just_begun_is_not_empty() -> None:
    assert "waiting for the first update" in drawn(snapshot())


def test_groups_that_are_unaccounted_for_are_loud() -> None:
    assert "3 UNACCOUNTED FOR" in drawn(snapshot(imbalance=3))


def test_lines_tell_each_event_once_and_progress_now_and_then() -> None:
    teller = Teller(every_seconds=10.0)
    assert teller.lines(snapshot(elapsed_seconds=1.0)) == []
    (first,) = teller.lines(snapshot(elapsed_seconds=2.0, rewards=(0.25,), updates_done=1))
    assert first.startswith("[0:02] update 1/160: reward 0.25")
    assert teller.lines(snapshot(elapsed_seconds=3.0, rewards=(0.25, 0.5), updates_done=2)) == []
    killed = snapshot(elapsed_seconds=4.0, rewards=(0.25,), events=("killed",))
    assert teller.lines(killed) == ["[0:04] killed"]
    assert teller.lines(killed) == []
    replaying = snapshot(elapsed_seconds=5.0, rewards=(0.25,), events=("killed",), replay=Replay(term=2, first_update=1, last_update=2))
    assert teller.lines(replaying) == ["[0:05] term 2, replaying updates 1-2"]
    assert len(teller.lines(snapshot(elapsed_seconds=12.5, rewards=(0.25,), events=("killed",), replay=replaying.replay))) == 1


def test_a_sparkline_keeps_its_scale_and_its_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.5, 0.5], low=0.0, high=1.0) == "▅▅"
    assert len(sparkline(list(range(1000)), width=40)) == 40
    assert sparkline([3.0, 3.0]) == "▁▁"
