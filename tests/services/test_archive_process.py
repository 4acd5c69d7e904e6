"""A real buffer archives, is killed at every point of it, and goes on: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from tests.services.buffers import group, rollout
from tests.services.gateway_stage import started

from penstock.buffer import api
from penstock.buffer.checks import check_store
from penstock.buffer.client import BufferClient
from penstock.buffer.store import SqliteStore
from penstock.types import Laws, LeaseRequest

OPTIONS = ["--archive-after-seconds", "0", "--archive-rollouts-per-file", "4", "--archive-most-wait-seconds", "0", "--archive-every-seconds", "0.1"]
NUM_GROUPS = 6


def start(directory: Path, **environment: str) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "penstock", "buffer", "--dir", str(directory), "--port", "0", "--port-file", str(directory / "port"), *OPTIONS]
    return started(command, directory / "log", directory / "port", **environment)


async def spend(url: str) -> None:
    """Write some groups and have an outside consumer use them up."""
    async with BufferClient(url, "run") as client:
        await client.open_run(Laws(), "0" * 32)
        await client.open_groups([group(index) for index in range(NUM_GROUPS)])
        await client.write([rollout(f"s/0/{index}", member) for index in range(NUM_GROUPS) for member in range(2)])
        await client.take_lease("lease", "me", LeaseRequest())
        await client.settle_lease("lease", "me")


def archived_uids(directory: Path) -> Counter[str]:
    """How often each rollout is in a file that can be seen."""
    return Counter(uid for path in (directory / "archive").glob("*.parquet") for uid in parquet.read_table(path, columns=["uid"])["uid"].to_pylist())


def hot_uids(directory: Path) -> set[str]:
    store = SqliteStore(directory / "store.sqlite", read_only=True)
    try:
        return {found.uid for found in store.scan_rollouts("run") if store.moved("run", found.uid) is None}
    finally:
        store.close()


def wait_until_all_is_archived(directory: Path) -> None:
    deadline = time.monotonic() + 60
    while hot_uids(directory) or sum(archived_uids(directory).values()) < 2 * NUM_GROUPS:
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("point", ["buffer.archive_written:2", "buffer.archive_registered"])
def test_killed_while_it_archives_it_loses_nothing_and_has_nothing_twice(tmp_path: Path, point: str) -> None:
    process, url = start(tmp_path, PENSTOCK_DIE_AT=point, PENSTOCK_DIE_ONCE=str(tmp_path / "died"))
    try:
        asyncio.run(spend(url))
        assert process.wait(60) == -signal.SIGKILL
        every = {f"s/0/{index}:{member}:0" for index in range(NUM_GROUPS) for member in range(2)}
        seen = archived_uids(tmp_path)
        assert set(seen.values()) <= {1}
        # What can be seen in a file has left the store; what was registered is read from its hidden file until it has its name.
        assert not set(seen) & hot_uids(tmp_path)
        assert [sentence for finding in check_store(tmp_path / "store.sqlite")["run"] for sentence in finding.broken] == []
        process, url = start(tmp_path)
        wait_until_all_is_archived(tmp_path)
        assert archived_uids(tmp_path) == Counter(every)
        assert asyncio.run(written_again(url)) == [True] * 2 * NUM_GROUPS
        assert [path.name for path in (tmp_path / "archive").glob(".*")] == []
        said = subprocess.run([sys.executable, "-m", "penstock", "verify", url], capture_output=True, text=True, check=False)
        assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "everything is accounted for"), said.stdout + said.stderr
        assert "3 archive files with 12 rollouts" in said.stdout
    finally:
        process.kill()


async def written_again(url: str) -> list[bool]:
    async with BufferClient(url, "run") as client:
        answers: tuple[api.Written, ...] = await client.write([rollout(f"s/0/{index}", member) for index in range(NUM_GROUPS) for member in range(2)])
        return [answer.duplicate for answer in answers]


def test_verify_looks_at_a_buffer_that_is_being_written_and_finds_what_is_wrong(tmp_path: Path) -> None:
    process, url = start(tmp_path)
    try:
        asyncio.run(spend(url))
        wait_until_all_is_archived(tmp_path)
        sound = subprocess.run([sys.executable, "-m", "penstock", "verify", str(tmp_path)], capture_output=True, text=True, check=False)
        assert (sound.returncode, sound.stdout.splitlines()[-1]) == (0, "everything is accounted for"), sound.stdout + sound.stderr
        (tmp_path / "archive" / "run.00000001.parquet").unlink()
        for asked in (str(tmp_path), url):
            said = subprocess.run([sys.executable, "-m", "penstock", "verify", asked], capture_output=True, text=True, check=False)
            assert said.returncode == 1
            assert "BROKEN  D3  3 archive files with 12 rollouts" in said.stdout
            assert "the archive file archive/run.00000001.parquet with 4 rollouts is not there" in said.stdout
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    finally:
        process.kill()


def test_without_pyarrow_a_buffer_works_and_says_once_that_it_does_not_archive(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    # A finder that has never heard of pyarrow, put in place before anything else is imported.
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "sys.modules['pyarrow'] = None\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'pyarrow' else found(name, package)\n"
    )
    process, url = start(tmp_path, PYTHONPATH=os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")])))
    try:
        asyncio.run(spend(url))
        assert asyncio.run(written_again(url)) == [True] * 2 * NUM_GROUPS
        assert (tmp_path / "log").read_text().count("pyarrow is not installed") == 1
        assert not (tmp_path / "archive").exists()
    finally:
        process.kill()
