"""A run whose ended groups are in Parquet files is verified and replayed like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from tests.unit.lab.conftest import ALGORITHM, LEARNER, RUN, UPDATES
from tests.unit.lab.tampering import Forger

from penstock.buffer.archive.collecting import collect, filed
from penstock.buffer.archive.config import ArchiveConfig
from penstock.buffer.archive.files import file_digest, file_path, show_file, write_file
from penstock.errors import CorruptError
from penstock.lab.replay import replay
from penstock.lab.verify import verify

EAGER = ArchiveConfig(after_seconds=0.0, most_wait_seconds=0.0)


@pytest.fixture
def archived(run_dir: Path) -> Path:
    """The run, with everything that has ended in one file."""
    with Forger(run_dir, RUN) as forger:
        found = collect(forger.store, RUN, EAGER, now=1e9)
        written = write_file(file_path(run_dir / "archive", RUN, 0), found.rows)
        forger.put(*filed(found.groups, written, store_directory=run_dir / "buffer", number=0, updates={}, now=1e9))
    show_file(written.path)
    return run_dir


def broken(run_dir: Path) -> list[str]:
    return [sentence for finding in verify(run_dir) for sentence in finding.broken]


def test_it_is_sound_and_gives_the_same_weights(run_dir: Path, archived: Path, model: Path) -> None:
    assert broken(archived) == []
    checked = [finding.checked for finding in verify(archived)]
    # Two groups are spent and one was skipped; the last one trained waits for its checkpoint.
    assert "1 archive files with 6 rollouts" in checked
    assert "bytes of 8 stored rollouts" in checked
    with Forger(archived, RUN) as forger:
        assert [file.name for file in forger.store.archive_files(RUN)] == ["../archive/small.00000000.parquet"]
        snapshot = forger.store.load(RUN)
        assert snapshot is not None
    assert replay(archived, model, ALGORITHM, LEARNER).digest == snapshot.versions[-1].digest
    assert replay(archived, model, ALGORITHM, LEARNER).updates == UPDATES


def test_one_exchanged_rollout_in_the_file_makes_both_fail(archived: Path, model: Path) -> None:
    path = archived / "archive" / "small.00000000.parquet"
    with Forger(archived, RUN) as forger:
        _, _, rollout = forger.planned(0)
        _, payload = forger.exchanged(rollout)
        (file,) = forger.store.archive_files(RUN)
    rows = parquet.read_table(path).to_pylist()
    next(row for row in rows if row["uid"] == rollout.uid).update(body=payload.body, digest=payload.digest)
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=parquet.read_schema(path)), path)
    found = broken(archived)
    assert f"the archive file ../archive/small.00000000.parquet is not as it was written (digest {file.digest})" in found
    with pytest.raises(CorruptError, match="is not what was stored"):
        replay(archived, model, ALGORITHM, LEARNER)
    # The file's own digest can be forged; those of its rollouts are on record elsewhere.
    with Forger(archived, RUN) as forger:
        forger.put(replace(file, digest=file_digest(path), size_bytes=path.stat().st_size))
    assert [sentence for sentence in broken(archived) if f"{rollout.uid!r} in row" in sentence]
    with pytest.raises(CorruptError, match="is not what was stored"):
        replay(archived, model, ALGORITHM, LEARNER)


def test_a_lost_file_makes_both_fail(archived: Path, model: Path) -> None:
    (archived / "archive" / "small.00000000.parquet").unlink()
    assert "the archive file ../archive/small.00000000.parquet with 6 rollouts is not there" in broken(archived)
    with pytest.raises(CorruptError, match="which is not there"):
        replay(archived, model, ALGORITHM, LEARNER)
