"""Checkpoint directories: complete or invisible, and refused with a reason when they are not what they should be.

    checkpoints/term                    newest term that has opened the directory
    checkpoints/update_N/               state before update N, that is with updates 0 to N-1 in it
        weights.safetensors             the policy
        moments.safetensors             the optimizer's moments, as `first/<name>` and `second/<name>`
        state.json                      counters, and facts that the caller wants back
        manifest.json                   schema, run, update, and SHA-256 of the files above

The SHA-256 of the manifest names the checkpoint: that is what the buffer registers. Nothing in it depends on when, where or by whom it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import CorruptError, FencedError, SchemaError, UnknownError, WeightsError
from penstock.learner.optim import Moments
from penstock.learner.step import LearnerState
from penstock.models import Tensors, read_weights, sync, weights_digest, write_weights
from penstock.types import Json

SCHEMA = 1
_FILES = ("weights.safetensors", "moments.safetensors", "state.json")
_NAME = re.compile(r"update_(0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    update: int
    digest: str
    state: LearnerState
    facts: Mapping[str, Json]
    """What the caller gave to `save`."""


class Checkpoints:
    """The checkpoints of one run, written under one term.

    A learner of an older term that still lives can neither open the directory nor save into it (`FencedError`). The buffer's registration is what
    makes a checkpoint count; this keeps the files of a fenced learner out of the way as well.
    """

    def __init__(self, directory: Path, *, run: str, term: int) -> None:
        """Open `directory`, made if missing, for `term`."""
        self._directory, self._run, self._term = directory, run, term
        directory.mkdir(parents=True, exist_ok=True)
        self._check_term()
        _write_durably(directory / "term", f"{term}\n".encode())
        for leftover in directory.glob(".update_*"):
            shutil.rmtree(leftover)

    def updates(self) -> tuple[int, ...]:
        """Updates that a complete directory exists for, ascending. Whether its content is whole is found by `read`."""
        return _updates(self._directory)

    def save(self, update: int, state: LearnerState, facts: Mapping[str, Json] | None = None) -> str:
        """Make the checkpoint of `update` exist, durably, and return its digest. One that is there and equal is left alone; another is replaced."""
        self._check_term()
        temporary = self._directory / f".update_{update}.{os.getpid()}.new"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            digest = self._write(temporary, update, state, facts or {})
            self._move_into_place(temporary, update, digest)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return digest

    def read(self, update: int, *, digest: str | None = None) -> Checkpoint:
        """See `read_checkpoint`."""
        return read_checkpoint(self._directory, update, run=self._run, digest=digest)

    def retire(self, update: int) -> None:
        """Remove a checkpoint, all of it at once; nothing happens if it is not there."""
        self._check_term()
        place = self._directory / f"update_{update}"
        if place.exists():
            _remove(place)

    def _check_term(self) -> None:
        path = self._directory / "term"
        newest = int(path.read_text()) if path.exists() else 0
        if newest > self._term:
            raise FencedError(f"the checkpoints belong to term {newest} now; term {self._term} is over")

    def _write(self, place: Path, update: int, state: LearnerState, facts: Mapping[str, Json]) -> str:
        write_weights(place / "weights.safetensors", state.weights)
        write_weights(place / "moments.safetensors", _joined(state.moments))
        content = {"num_applied": state.num_applied, "version": state.version, "weights_digest": weights_digest(state.weights), "facts": dict(facts)}
        _write_durably(place / "state.json", _json_bytes(content))
        manifest = {"schema": SCHEMA, "run": self._run, "update": update, "files": {name: _sha256(place / name) for name in _FILES}}
        _write_durably(place / "manifest.json", _json_bytes(manifest))
        return hashlib.sha256(_json_bytes(manifest)).hexdigest()

    def _move_into_place(self, temporary: Path, update: int, digest: str) -> None:
        place = self._directory / f"update_{update}"
        if place.exists():
            if _holds(place, digest):
                return
            _remove(place)
        temporary.replace(place)
        sync(self._directory)


def read_checkpoint(directory: Path, update: int, *, run: str, digest: str | None = None) -> Checkpoint:
    """The checkpoint of `update`, every byte checked; `digest` is what was registered for it, if anything was. Needs no term: it only looks.

    Raises `UnknownError` when there is none, `CorruptError` when a byte is wrong, `SchemaError` for one of a newer penstock and `WeightsError` for
    one of another run.
    """
    place = directory / f"update_{update}"
    if not place.is_dir():
        raise UnknownError(f"there is no checkpoint of update {update}; there are {list(_updates(directory))}")
    manifest, found = _read_manifest(place)
    if manifest.get("schema") != SCHEMA:
        raise SchemaError(f"checkpoint update_{update} has schema {manifest.get('schema')!r}, this version reads {SCHEMA}")
    if manifest.get("run") != run or manifest.get("update") != update:
        raise WeightsError(f"checkpoint update_{update} is update {manifest.get('update')} of run {manifest.get('run')!r}, not of {run!r}")
    if digest is not None and found != digest:
        raise CorruptError(f"checkpoint update_{update} is {found}, registered was {digest}")
    for name in _FILES:
        if _sha256(place / name) != manifest["files"].get(name):
            raise CorruptError(f"{name} of checkpoint update_{update} is missing or fails its checksum")
    return _read_state(place, update, found)


def _updates(directory: Path) -> tuple[int, ...]:
    names = (_NAME.fullmatch(path.name) for path in directory.iterdir()) if directory.is_dir() else ()
    return tuple(sorted(int(match[1]) for match in names if match))


def _holds(place: Path, digest: str) -> bool:
    """Whether a directory is the checkpoint of that digest, whole."""
    try:
        manifest, found = _read_manifest(place)
    except CorruptError:
        return False
    return found == digest and all(_sha256(place / name) == manifest["files"][name] for name in _FILES)


def _read_manifest(place: Path) -> tuple[dict[str, Any], str]:
    """The manifest and its SHA-256."""
    try:
        body = (place / "manifest.json").read_bytes()
        manifest = json.loads(body)
    except (OSError, ValueError) as error:
        raise CorruptError(f"the manifest of checkpoint {place.name} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CorruptError(f"the manifest of checkpoint {place.name} names no files")
    return manifest, hashlib.sha256(body).hexdigest()


def _read_state(place: Path, update: int, digest: str) -> Checkpoint:
    content = json.loads((place / "state.json").read_bytes())
    state = LearnerState(
        weights=read_weights(place / "weights.safetensors"),
        moments=_parted(read_weights(place / "moments.safetensors")),
        num_applied=content["num_applied"],
        version=content["version"],
    )
    return Checkpoint(update=update, digest=digest, state=state, facts=content["facts"])


def _joined(moments: Moments) -> Tensors:
    return {f"first/{name}": tensor for name, tensor in moments.first.items()} | {f"second/{name}": tensor for name, tensor in moments.second.items()}


def _parted(tensors: Tensors) -> Moments:
    def under(prefix: str) -> Tensors:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

    return Moments(first=under("first/"), second=under("second/"))


def _json_bytes(content: Mapping[str, Json]) -> bytes:
    """The same bytes for the same content; refuses NaN."""
    return json.dumps(content, sort_keys=True, allow_nan=False, indent=1).encode() + b"\n"


def _write_durably(path: Path, body: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(body)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def _sha256(path: Path) -> str | None:
    """SHA-256 of a file in hex; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _remove(place: Path) -> None:
    """First out of sight, by one rename, then away: a kill in between leaves a leftover that the next life clears, never half a checkpoint."""
    hidden = place.with_name(f".{place.name}.{os.getpid()}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    place.rename(hidden)
    sync(place.parent)
    shutil.rmtree(hidden)
