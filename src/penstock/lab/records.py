"""What writers were told, against what the store holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from penstock.buffer.checks import Looked
from penstock.lab.archive import Archive

_ACK = re.compile(r"(\S+) ([0-9a-f]{32})\n")


def acknowledged(archive: Archive) -> Looked:
    """Every rollout that a writer was told is durable, by the writers' own notes."""
    num_lines, broken = 0, []
    for path in sorted((archive.run_dir / "acks").glob("*.log")):
        for uid, told in _acks(path):
            num_lines += 1
            stored = archive.buffer.store.rollout(archive.run, uid)
            if stored is None:
                broken.append(f"rollout {uid} was acknowledged and is not in the store")
            elif stored.digest != told:
                broken.append(f"rollout {uid} was acknowledged with digest {told} and is stored with {stored.digest}")
    return f"{num_lines} acknowledgements that writers noted", broken


def _acks(path: Path) -> Iterator[tuple[str, str]]:
    """Lines `uid digest`. Notes are not synced, so the power may have gone while one was written: what is not a whole line says nothing."""
    with path.open(newline="\n") as file:
        for line in file:
            note = _ACK.fullmatch(line)
            if note is not None:
                yield note[1], note[2]
