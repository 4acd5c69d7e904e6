from collections.abc import Mapping

import pytest

from penstock.buffer.api import EnvironmentStatus, RunStatus
from penstock.orchestrator.stalls import explain_stall
from penstock.process.supervisor import PartState, PartStatus
from penstock.types import Laws, TermRecord, Version

FINE = (PartStatus(name="learner", state=PartState.READY, process=None, restarts=0),)


def status(groups: Mapping[str, int], *, members: Mapping[str, int] | None = None, held: int = 0, live: int = 4, laws: Laws | None = None) -> RunStatus:
    environment = EnvironmentStatus(credit_tokens=1000, held_tokens=held, mean_group_tokens=None, groups=groups, members=members or {})
    return RunStatus(
        run="r",
        laws=laws or Laws(),
        newest=Version(run="r", version=4, digest="d"),
        live_version=live,
        next_update=4,
        term=TermRecord(run="r", term=1, owner="o", expires_at=0.0, first_update=0),
        checkpoints=(),
        cursors={},
        environments={"sort": environment},
        imbalance=0,
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "the buffer does not answer"),
        (status({"open": 3}, members={"pending": 7}), "7 replies are waited for"),
        (status({"complete": 2}), "annotations are waited for"),
        (status({"bound": 2}), "the learner is at work"),
        (status({"ready": 2}, held=990), "990 of 1000 credit tokens held; they wait for the learner"),
        (status({"ready": 2}, laws=Laws(credit_groups=32)), "2 ready, 32 may be under way; they wait for the learner"),
        (status({"spent": 9, "dropped(stale)": 2}), "the workers open no group"),
        (status({"open": 3}, live=3), "the servers to take version 4; live is 3"),
    ],
)
def test_a_standstill_is_explained_by_who_waits_for_what(found: RunStatus | None, words: str) -> None:
    assert words in explain_stall(found, FINE)


def test_a_part_that_is_not_there_explains_everything_else() -> None:
    dead = PartStatus(name="server-0", state=PartState.PAUSED, process=None, restarts=2, last_exit="exit 1")
    assert explain_stall(status({"open": 3}), (*FINE, dead)) == "server-0 is paused (last: exit 1)"
