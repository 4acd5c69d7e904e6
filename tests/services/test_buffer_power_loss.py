"""Power is lost at every commit of a real buffer's process: before each sync, after it, and between. What clients were told by then is there.

`tests/properties/test_buffer_power_loss.py` asks the same of the protocol, on a disk of its own; here it is asked of SQLite and how it is used.
`PENSTOCK_LOSSES=N` gives what is in doubt N fates at each moment.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.services.buffers import Process
from tests.services.recorded_disk import RECORDED_DISK, UNSYNCED, losses
from tests.services.sabotage import running

from penstock import ledger as law
from penstock.buffer.core import Buffer
from penstock.buffer.store import SqliteStore
from penstock.types import GroupState

SEEDS = int(os.environ.get("PENSTOCK_LOSSES", "1"))
RUN = "default"
INSTANCES = "abcdef"
ARGUMENTS = ("--group-size", "2", "--no-archive")


@dataclass
class Told:
    """What clients were told, and how much had happened on the disk when they were."""

    notes: Path
    items: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    """Groups that were read, or leased and settled."""

    def write(self, process: Process, instance: str) -> None:
        for member in range(2):
            uid = f"{instance}{member}"
            body = item(uid)
            assert process.post("/buffer/write", body)[0] == 200
            self.items[uid] = self._now(), body

    def read(self, process: Process) -> None:
        data = json.loads(process.post("/get_rollout_data", b"{}")[1])["data"]["data"]
        self.spent |= {f"{given['instance_id']}/0": self._now() for given in data}

    def lease(self, process: Process, name: str) -> None:
        asked = {"lease": name, "consumer": "me", "wait_seconds": 0}
        taken = json.loads(process.post(f"/v1/runs/{RUN}/leases", json.dumps(asked).encode())[1])["lease"]
        assert process.post(f"/v1/runs/{RUN}/leases/{name}/settle", b'{"consumer": "me"}')[0] == 200
        self.spent |= {group["id"]: self._now() for group in taken["groups"]}

    def _now(self) -> int:
        return self.notes.stat().st_size


def item(uid: str) -> bytes:
    return json.dumps({"uid": uid, "instance_id": uid[0], "messages": [{"role": "user", "content": uid * 50}], "reward": int(uid[1])}).encode()


def lived(process: Process, notes: Path) -> Told:
    """Items, reads and a lease, in two lives: the second moves what the first has left in the log into the tables."""
    told = Told(notes)
    for instance in "abc":
        told.write(process, instance)
    told.read(process)
    process.kill()
    process.start()
    told.write(process, "d")
    told.lease(process, "step-0")
    told.write(process, "e")
    told.read(process)
    told.write(process, "f")
    process.kill()
    return told


def lost_by(told: Told, directory: Path, happened: int) -> list[str]:
    """What is wrong with the store that a loss of power has left."""
    store = SqliteStore(directory / "store.sqlite")
    try:
        buffer = Buffer(store, lambda: 0.0)
        found = [f"{found} is damaged" for found in store.corrupt()]
        for uid, (at, body) in told.items.items():
            if at <= happened and (store.rollout(RUN, uid) is None or store.payload(RUN, uid).body != body):
                found.append(f"{uid} was acknowledged and lost")
        for group, at in told.spent.items():
            known = store.group(RUN, group)
            if at <= happened and (known is None or known.state is not GroupState.SPENT):
                found.append(f"{group} was given and is there again")
        if buffer.has(RUN):
            found += ["the ledger does not add up"] if law.imbalance(buffer.ledger(RUN)) else []
            for known in store.scan_groups(RUN):
                uids = [rollout.uid for rollout in store.rollouts(RUN, known.id)]
                found += [] if len(uids) == len({*uids}) <= 2 and {uid[0] for uid in uids} <= {known.problem_id} else [f"{known.id} has {uids}"]
        return found
    finally:
        store.close()


def left(directory: Path, files: dict[str, bytes]) -> Path:
    """A directory with these files, and no others."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_TEST_NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


def test_whenever_power_is_lost_all_that_was_acknowledged_is_there_and_the_rest_can_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: Path
) -> None:
    with running(tmp_path, monkeypatch, RECORDED_DISK, arguments=ARGUMENTS) as process:
        told = lived(process, notes)
    assert len(told.spent) == 5
    disk = tmp_path / "disk"
    num_losses = 0
    for seed in range(SEEDS):
        for happened, files in losses(notes, seed):
            assert lost_by(told, left(disk, files), happened) == [], (seed, happened)
            num_losses += 1
    assert num_losses > 60
    # In the middle of it: a buffer goes on there, and whoever does not know what became of his items sends them again.
    middle = sorted(losses(notes, 0), key=lambda loss: abs(loss[0] - told.items["c0"][0]))[0]
    again = Process(left(disk, middle[1]), *ARGUMENTS)
    try:
        for instance in INSTANCES:
            told.write(again, instance)
        told.read(again)
        assert again.get("/buffer/stats")[0]["total_written"] == 2 * len(INSTANCES)
        ledger = again.get(f"/v1/runs/{RUN}/ledger")
        assert (ledger["imbalance"], ledger["balances"][0]["groups"]) == (0, {"spent": len(INSTANCES)})
    finally:
        again.kill()


def test_a_buffer_that_does_not_sync_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notes: Path) -> None:
    with running(tmp_path, monkeypatch, RECORDED_DISK, UNSYNCED, arguments=ARGUMENTS) as process:
        told = lived(process, notes)
    found = [broken for happened, files in losses(notes, 0) for broken in lost_by(told, left(tmp_path / "disk", files), happened)]
    assert any("was acknowledged and lost" in broken for broken in found)
