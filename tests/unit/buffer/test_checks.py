"""A buffer by itself is found unsound where it is: each breach is made with checksums in order."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.buffer.archiving import RUN, done, open_group, open_run, rollout, write

from penstock.buffer.checks import check_store
from penstock.buffer.compat.intake import read_items
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.errors import StoreError, UnknownError
from penstock.ledger.arrivals import ArrivalRules
from penstock.types import (
    GroupState,
    JournalEntry,
    Laws,
    LeaseRecord,
    LeaseRequest,
    LeaseState,
    MemberRecord,
    MemberState,
    PlannedGroup,
    Record,
    RunRecord,
    Version,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a group that a consumer has used up, one that it holds, and one that is ready."""
    store = SqliteStore(tmp_path / "store.sqlite")
    buffer = Buffer(store, iter(range(10**6)).__next__)
    open_run(buffer)
    for index in range(3):
        open_group(buffer, index)
        write(buffer, rollout(index, 0))
        write(buffer, rollout(index, 1))
    for lease in ("used", "held"):
        assert isinstance(done(buffer, buffer.take_lease(RUN, lease, "me", LeaseRequest(groups=1))), LeaseRecord)
    done(buffer, buffer.settle_lease(RUN, "used", "me"))
    store.close()
    return tmp_path / "store.sqlite"


def forge(path: Path, *records: Record) -> None:
    store = SqliteStore(path)
    store.submit(records).result()
    store.close()


def tamper(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        store.execute(statement)


def broken(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in check_store(path, run=RUN)[RUN]:
        found.setdefault(finding.promise, []).extend(finding.broken)
    return {promise: sentences for promise, sentences in found.items() if sentences}


def test_a_sound_buffer_has_nothing_broken_also_while_it_is_written(path: Path) -> None:
    assert broken(path) == {}
    checked = [finding.checked for finding in check_store(path)[RUN]]
    assert checked[:2] == ["bytes of 6 stored rollouts", "3 groups and 6 members"]
    assert "2 leased groups" in checked
    writer = SqliteStore(path)
    assert broken(path) == {}
    writer.close()
    with pytest.raises(UnknownError, match="no run other"):
        check_store(path, run="other")


def test_a_group_that_is_formed_by_arrival_has_a_member_for_each_item(path: Path) -> None:
    store = SqliteStore(path)
    buffer = Buffer(store, iter(range(100, 10**6)).__next__)
    rules = ArrivalRules(group_size=3)
    for item in read_items(b'[{"uid": "x", "instance_id": "a", "reward": 1}, {"uid": "y", "instance_id": "a", "reward": null}]', "task"):
        done(buffer, buffer.arrive(RUN, rules, item))
    store.close()
    assert broken(path) == {}
    member = MemberRecord(run=RUN, group_id="a/0", member=2, state=MemberState.FAILED, reason="late", environment="task")
    forge(path, member)
    assert "8 members were issued and 9 are on record" in " ".join(broken(path)["D5"])


def test_a_rollout_that_fills_two_slots_is_found(path: Path) -> None:
    store = SqliteStore(path, read_only=True)
    member = store.members(RUN, "env/0/1")[0]
    store.close()
    forge(path, replace(member, uid="env/0/0:0:0"))
    assert broken(path)["E3"][:2] == [
        "rollout env/0/0:0:0 fills a slot of group env/0/0 and one of env/0/1",
        "member 0 of group env/0/1 was filled by env/0/0:0:0, which is no rollout of that slot",
    ]


def test_a_slot_with_two_rollouts_is_found(path: Path) -> None:
    store = SqliteStore(path, read_only=True)
    known, payload = store.rollout(RUN, "env/0/2:0:0"), store.payload(RUN, "env/0/2:0:0")
    store.close()
    assert known is not None
    forge(path, replace(known, uid="twin"), replace(payload, uid="twin"))
    assert "group env/0/2 has 3 usable rollouts for 2 filled slots" in broken(path)["E3"]


def test_a_group_that_no_longer_holds_what_made_it_ready_is_found(path: Path) -> None:
    store = SqliteStore(path, read_only=True)
    group = store.group(RUN, "env/0/2")
    store.close()
    assert group is not None
    forge(path, replace(group, digest="0" * 32))
    assert broken(path) == {"E3": [f"group env/0/2 no longer holds what it was made of when it became ready (digest {'0' * 32})"]}


def test_leases_and_groups_that_tell_two_stories_are_found(path: Path) -> None:
    store = SqliteStore(path, read_only=True)
    used, held, group = store.lease(RUN, "used"), store.lease(RUN, "held"), store.group(RUN, "env/0/1")
    store.close()
    assert used is not None
    assert held is not None
    assert group is not None
    forge(path, replace(used, state=LeaseState.RELEASED))
    assert broken(path) == {"E4": ["group env/0/0 is spent by the lease used, which is released"]}
    forge(path, used, replace(held, groups=(PlannedGroup(id="env/0/2", digest="d"),)))
    assert set(broken(path)["E4"]) >= {
        "group env/0/1 is bound by the lease held, which does not name it",
        "the lease held is taken and its group env/0/2 is not bound to it",
    }
    forge(path, held, replace(group, state=GroupState.SPENT, updates=(3,)))
    assert set(broken(path)["E4"]) >= {
        "group env/0/1 is spent by the lease held, which is taken",
        "group env/0/1 is under the lease held and in update 3",
    }


def test_damage_is_told_of_its_own_run_and_of_one_that_cannot_be_opened(path: Path) -> None:
    forge(path, RunRecord(run="other", laws=Laws(), opened_at=0.0), Version(run="other", version=0, digest="0", live=True, recorded_at=0.0))
    tamper(path, "UPDATE payloads SET body = zeroblob(3) WHERE uid = 'env/0/2:1:0'")
    found = check_store(path)
    assert (len(found[RUN][-1].broken), found["other"][-1].broken) == (1, ())
    tamper(path, "UPDATE facts SET body = zeroblob(3) WHERE kind = 'run' AND run = 'other'")
    found = check_store(path)
    assert [finding.checked for finding in found["other"]] == ["a run that cannot be opened"]
    assert "fails its checksum" in found["other"][0].broken[0]
    assert check_store(path, run="other") == {"other": found["other"]}
    assert list(check_store(path, run=RUN)) == [RUN]
    with pytest.raises(UnknownError, match="no run another"):
        check_store(path, run="another")


def test_a_run_without_the_weights_it_began_with_is_found(path: Path) -> None:
    tamper(path, "DELETE FROM facts WHERE kind = 'version'")
    assert broken(path)["F2"] == ["the weights that the run began with, version 0, are not on record"]


def test_a_journal_with_a_hole_or_a_damaged_entry_is_found(path: Path) -> None:
    forge(path, *(JournalEntry(run=RUN, episode=episode, index=index, body=b"[1]") for episode in ("a", "b") for index in range(3)))
    assert broken(path) == {}
    assert "6 entries in the journals of 2 episodes" in [finding.checked for finding in check_store(path)[RUN]]
    tamper(path, "DELETE FROM journal WHERE episode = 'a' AND idx = 1")
    tamper(path, "UPDATE journal SET body = 'x' WHERE episode = 'b' AND idx = 2")
    (hole, damage) = broken(path)["D3"]
    assert hole == "the journal of a has a hole: there are 2 entries, the last is number 2"
    assert damage.startswith("journal 'b 2' of run")


def test_an_empty_file_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.touch()
    with pytest.raises(StoreError, match=r"/store\.sqlite is empty: nothing was ever stored in it, or what was is lost"):
        check_store(path)
    assert path.stat().st_size == 0


def test_a_store_that_cannot_be_read_is_called_by_its_own_name(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192 + path.read_bytes()[12288:])
    with pytest.raises(StoreError, match=r"/store\.sqlite is damaged"):
        check_store(path)
    assert [found.name for found in path.parent.iterdir() if found.name.startswith(".")] == []
