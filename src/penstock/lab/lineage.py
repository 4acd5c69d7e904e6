"""Checkpoints and weights of a run, against what the buffer has on record."""

from __future__ import annotations

from penstock.buffer.checks import Looked
from penstock.errors import PenstockError
from penstock.lab.archive import Archive


def kept(archive: Archive) -> Looked:
    """Checkpoints that resume may start from are whole, and hold the weights that their version names."""
    from penstock.learner.checkpoints import read_checkpoint
    from penstock.models import weights_digest

    broken = []
    for record in archive.ledger.checkpoints.values():
        try:
            state = read_checkpoint(archive.run_dir / "checkpoints", record.update, run=archive.run, digest=record.digest).state
        except PenstockError as error:
            broken.append(str(error))
            continue
        version = archive.ledger.versions.get(state.version)
        if version is None or weights_digest(state.weights) != version.digest:
            broken.append(f"checkpoint update_{record.update} holds other weights than version {state.version}")
    return f"{len(archive.ledger.checkpoints)} kept checkpoints", broken


def servable(archive: Archive) -> Looked:
    """The weights that a server may be asked for are in their files."""
    from penstock.models import read_weights, weights_digest, weights_path

    ledger, broken = archive.ledger, []
    versions = [version for version in ledger.versions.values() if version.version >= ledger.newest_version - ledger.laws.max_lag]
    for version in versions:
        try:
            found = weights_digest(read_weights(weights_path(archive.run_dir / "weights", version.digest)))
        except PenstockError as error:
            broken.append(f"version {version.version}: {error}")
            continue
        if found != version.digest:
            broken.append(f"version {version.version}: the file of {version.digest} holds {found}")
    return f"weights of the newest {len(versions)} versions", broken
