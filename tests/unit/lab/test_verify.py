"""Everything that `verify` looks into, found when it is broken. Each breach is made with checksums in order, unless checksums are what is tried."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.lab.conftest import RUN, SKIPPED, UPDATES
from tests.unit.lab.tampering import Forger

from penstock.buffer.store import SqliteStore
from penstock.errors import ConflictError, CorruptError, UnknownError
from penstock.lab.verify import verify
from penstock.models import read_weights, write_weights
from penstock.types import GroupState, Outcome, Purpose


def broken(run_dir: Path) -> dict[str, list[str]]:
    """What is wrong, by promise."""
    found: dict[str, list[str]] = {}
    for finding in verify(run_dir):
        found.setdefault(finding.promise, []).extend(finding.broken)
    return {promise: sentences for promise, sentences in found.items() if sentences}


def test_a_run_whose_own_record_is_damaged_is_called_so(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.sql("UPDATE facts SET body = zeroblob(3) WHERE kind = 'run'")
    with pytest.raises(CorruptError, match=f"holds a run that cannot be opened: run .* of run '{RUN}' fails its checksum"):
        verify(run_dir)


def test_a_sound_run_has_nothing_broken_and_everything_was_looked_at(run_dir: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.is_file() and path.suffix != ".sqlite-shm"}
    findings = verify(run_dir)
    assert [sentence for finding in findings for sentence in finding.broken] == []
    assert [finding.checked for finding in findings] == [
        "8 acknowledgements that writers noted",
        "weights of the newest 2 versions",
        "2 kept checkpoints",
        "bytes of 8 stored rollouts",
        "5 groups and 10 members",
        "2 groups that the newest checkpoint contains",
        "4 outcomes",
        "3 groups in plans",
        "8 filled slots of 5 groups",
        "4 planned groups",
        "0 leased groups",
        "versions of 8 trained rollouts",
        "4 versions",
        "0 entries in the journals of 0 episodes",
        "0 archive files with 0 rollouts",
        "0 damaged records set aside",
    ]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())


def test_a_run_that_is_alive_is_left_for_later(run_dir: Path) -> None:
    store = SqliteStore(run_dir / "buffer" / "store.sqlite")
    with pytest.raises(ConflictError, match="run small is running; verify it when it has ended"):
        verify(run_dir)
    store.close()
    assert broken(run_dir) == {}


def test_a_directory_without_a_run_is_told_from_one_with(tmp_path: Path) -> None:
    with pytest.raises(UnknownError, match="is not the directory of a run"):
        verify(tmp_path)


def test_what_a_writer_was_told_must_be_in_the_store(run_dir: Path) -> None:
    acks = run_dir / "acks" / "worker.log"
    kept = acks.read_text()
    acks.write_text(f"{kept}source/0/9:0:0 {'a' * 32}\nsource/0/0:0:0 {'b' * 32}\n")
    missing, other = broken(run_dir)["D1"]
    assert missing == "rollout source/0/9:0:0 was acknowledged and is not in the store"
    assert other.startswith(f"rollout source/0/0:0:0 was acknowledged with digest {'b' * 32} and is stored with ")
    acks.write_text(f"{kept}source/0/9:0:0 aaaa")
    assert broken(run_dir) == {}


def test_an_exchanged_rollout_is_found_however_far_the_exchange_went(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        _, _, rollout = forger.planned(0)
        record, payload = forger.exchanged(rollout)
        forger.put(payload)
    assert broken(run_dir) == {"D3": [f"rollout {rollout.uid} was accepted with digest {rollout.digest} and holds other bytes"]}
    told = f"rollout {rollout.uid} was acknowledged with digest {rollout.digest} and is stored with {record.digest}"
    with Forger(run_dir, RUN) as forger:
        forger.put(record)
    found = broken(run_dir)
    assert found.keys() == {"D1", "E3"}
    assert found["D1"] == [told]
    assert found["E3"][1].startswith("update 0: group source/0/0 no longer holds what was planned")
    with Forger(run_dir, RUN) as forger:
        forger.put(*forger.exchanged_throughout(0))
    assert [sentence.partition(" and is ")[0] for sentence in broken(run_dir).pop("D1")] == [told.partition(" and is ")[0]]


def test_lost_or_flipped_bytes_are_found(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.sql("DELETE FROM payloads WHERE uid = 'source/0/1:0:0'")
        forger.sql("UPDATE payloads SET body = zeroblob(5) WHERE uid = 'source/0/1:1:0'")
    found = broken(run_dir)
    assert found["D3"][0] == "rollout source/0/1:0:0 is on record but its bytes are not in the store"
    assert found["D3"][1].startswith("payload 'source/0/1:1:0' of run 'small' fails its checksum")
    assert found.keys() == {"D3", "E3"}


def test_a_record_must_follow_from_its_bytes(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        rollout = forger.planned(3)[2]
        forger.put(replace(rollout, reward=0.5))
    assert broken(run_dir) == {"D3": [f"rollout {rollout.uid} is on record with facts that do not follow from its bytes"]}


def test_a_lost_group_or_member_is_missed(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.sql("DELETE FROM members WHERE group_id = 'source/0/0' AND member = 1")
    assert "10 members were issued and 9 are on record" in broken(run_dir)["D5"]
    with Forger(run_dir, RUN) as forger:
        forger.sql("DELETE FROM groups WHERE id = 'source/0/1'")
    assert "1 groups, members or credits are unaccounted for" in broken(run_dir)["D5"]


def test_a_damaged_group_hides_nothing_else(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.sql("UPDATE groups SET checksum = 0 WHERE id = 'source/0/0'")
    found = broken(run_dir)
    assert "counting the records one by one gives another account than the ledger's own" in found["D5"]
    assert [sentence for sentence in found["D3"] if "group 'source/0/0'" in sentence]


def test_groups_are_spent_by_checkpoints_and_by_nothing_else(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        first, last = forger.planned(0)[1], forger.planned(UPDATES - 1)[1]
        forger.put(replace(first, state=GroupState.BOUND), replace(last, state=GroupState.SPENT))
    assert set(broken(run_dir)["D5"]) >= {"group source/0/3 is spent but no checkpoint contains it", "group source/0/0 is in a checkpoint but not spent"}


def test_an_outcome_without_a_plan_is_found(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.put(replace(forger.planned(0)[0], void=True))
    assert broken(run_dir)["E1"] == ["update 0 has an outcome and no plan"]


def test_a_damaged_plan_is_a_finding_and_not_the_end(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.sql("UPDATE facts SET checksum = 0 WHERE kind = 'plan' AND key = 0")
    assert broken(run_dir)["E1"] == ["plan 'plan 0' of run 'small' fails its checksum"]


def test_a_group_that_trained_twice_is_found(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        first, last = forger.planned(0)[0], forger.planned(UPDATES - 1)[0]
        forger.put(replace(last, groups=first.groups))
    assert broken(run_dir)["E2"] == ["group source/0/0 trained 2 updates, 1 allowed"]


def test_a_group_for_evaluation_is_never_trained(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.put(replace(forger.planned(0)[1], purpose=Purpose.EVAL))
    assert broken(run_dir)["E3"] == ["update 0: group source/0/0 is for eval and was cut"]


def test_stale_tokens_and_tokens_from_the_future_are_found(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        plan = forger.planned(0)[0]
        forger.put(replace(plan, newest_version=2))
    assert "update 0: rollout source/0/0:0:0 of version 0 was cut when version 2 was the newest, max_lag is 1" in broken(run_dir)["F1"]
    with Forger(run_dir, RUN) as forger:
        last = forger.planned(UPDATES - 1)[0]
        forger.put(plan, replace(last, newest_version=1))
    assert "update 3: rollout source/0/3:0:0 names version 2, which was not recorded when it was cut" in broken(run_dir)["F1"]


def test_an_outcome_must_name_the_weights_of_its_version(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        forger.put(Outcome(run=RUN, update=0, kind="applied", version=1, digest="c" * 32))
    assert broken(run_dir)["F2"] == [f"update 0 recorded version 1 as {'c' * 32}, and the registry does not"]


def test_a_missing_or_changed_checkpoint_is_found(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "checkpoints" / "update_0")
    weights = run_dir / "checkpoints" / "update_2" / "weights.safetensors"
    write_weights(weights, {name: tensor + 1 for name, tensor in read_weights(weights).items()})
    gone, changed = broken(run_dir)["C1"]
    assert gone.startswith("there is no checkpoint of update 0")
    assert "weights.safetensors of checkpoint update_2 is missing or fails its checksum" in changed


def test_weights_that_a_server_may_ask_for_must_be_in_their_files(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        ledger_versions = forger.store.load(RUN)
        assert ledger_versions is not None
        newest, older = ledger_versions.versions[-1], ledger_versions.versions[-2]
    (run_dir / "weights" / f"{older.digest}.safetensors").unlink()
    write_weights(run_dir / "weights" / f"{newest.digest}.safetensors", {"a": torch.zeros(1)})
    gone, changed = broken(run_dir)["F4"]
    assert gone.startswith(f"version {older.version}: there is no weights file")
    assert changed.startswith(f"version {newest.version}: the file of {newest.digest} holds ")


def test_a_skipped_update_is_neither_trained_nor_spent(run_dir: Path) -> None:
    with Forger(run_dir, RUN) as forger:
        group = forger.planned(SKIPPED)[1]
    assert (group.state, group.reason) == (GroupState.DROPPED, "skipped:non_finite")
    assert broken(run_dir) == {}
