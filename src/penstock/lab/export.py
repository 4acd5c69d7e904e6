"""`penstock export`: stored rollouts as lines of JSON or as a Parquet file. Streams; the file is complete or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, StoreError

_ROWS_AT_ONCE = 256


def write_export(lines: Iterable[bytes], out: Path) -> int:
    """Write lines of JSON, one rollout each, to a `.jsonl` or `.parquet` file; gives how many. Raises `ConfigError` for another ending."""
    writers = {".jsonl": _write_jsonl, ".ndjson": _write_jsonl, ".parquet": _write_parquet}
    writer = writers.get(out.suffix)
    if writer is None:
        raise ConfigError(f"--out: {out} must end in .jsonl or .parquet")
    if not out.parent.is_dir():
        raise ConfigError(f"--out: {out.parent} is not a directory")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    # The first line is asked for before anything is made: a run that is not there leaves no file.
    rows = iter(lines)
    first = list(islice(rows, 1))
    try:
        count = writer(chain(first, rows), part)
        part.replace(out)
    except OSError as error:
        raise StoreError(f"cannot write {out}: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return count


def _write_jsonl(lines: Iterable[bytes], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
    return count


def _write_parquet(lines: Iterable[bytes], path: Path) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("--out: Parquet needs pyarrow: pip install 'penstock[archive]', or give a .jsonl file") from None
    schema = _schema(pyarrow)
    count = 0
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _batches(lines):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


def _batches(lines: Iterable[bytes]) -> Iterator[list[dict[str, Any]]]:
    rest = iter(lines)
    while rows := [json.loads(line) for line in islice(rest, _ROWS_AT_ONCE)]:
        for row in rows:
            # Rollouts of different environments have no columns in common: each stays one text.
            row["rollout"] = None if row["rollout"] is None else json.dumps(row["rollout"], ensure_ascii=False)
        yield rows


def _schema(pyarrow: Any) -> Any:
    text, whole, real = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    columns = {
        "run": text,
        "group_id": text,
        "state": text,
        "reason": text,
        "purpose": text,
        "environment": text,
        "problem_id": text,
        "member": whole,
        "retry": whole,
        "uid": text,
        "status": text,
        "reward": real,
        "failure": text,
        "stale": pyarrow.bool_(),
        "stored_at": real,
        "tokens": whole,
        "sampled_tokens": whole,
        "oldest_version": whole,
        "newest_version": whole,
        "updates": pyarrow.list_(whole),
        "digest": text,
        "annotations": pyarrow.list_(text),
        "rollout": text,
        "damaged": text,
    }
    return pyarrow.schema(list(columns.items()))
