"""Weights of the last versions, to ask what the sampler should have said when it sampled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from penstock.errors import WeightsError
from penstock.models import Tensors, check_tensors, model_tensors, read_weights, weights_digest, weights_path


class Snapshots:
    """Keeps the `keep` newest versions that were put in memory; others that have a name are read from `<directory>/<digest>.safetensors`."""

    def __init__(self, *, keep: int, directory: Path | None = None) -> None:
        self._keep = keep
        self._directory = directory
        self._tensors: dict[int, Tensors] = {}
        self._digests: dict[int, str] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """Those in memory, ascending."""
        return tuple(sorted(self._tensors))

    def put(self, version: int, tensors: Tensors) -> None:
        """Keep `tensors`, which nobody may change any more, and let go of versions that are too old."""
        self._tensors[version] = tensors
        for old in self.versions[: -self._keep] if self._keep > 0 else self.versions:
            del self._tensors[old]

    def name(self, version: int, digest: str) -> None:
        """Say which file holds a version, for a life that did not compute it."""
        self._digests[version] = digest

    def get(self, version: int) -> Tensors:
        """Weights of `version`. Raises `WeightsError` when they are neither in memory nor on disk, or are not what their name says."""
        if version in self._tensors:
            return self._tensors[version]
        digest = self._digests.get(version)
        if digest is None or self._directory is None:
            raise WeightsError(f"version {version} sampled tokens of this batch but its weights are not kept: in memory are {list(self.versions)}")
        tensors = read_weights(weights_path(self._directory, digest))
        if weights_digest(tensors) != digest:
            raise WeightsError(f"the weights file of version {version} does not hold {digest}")
        self.put(version, tensors)
        return tensors


@contextmanager
def holding(model: torch.nn.Module, tensors: Tensors) -> Iterator[None]:
    """Let `model` compute with `tensors` for a while. Nothing is copied. Raises `WeightsError` for tensors of another model."""
    check_tensors(model, tensors)
    own = model_tensors(model)
    try:
        set_tensors(model, tensors)
        yield
    finally:
        set_tensors(model, own)


def set_tensors(model: torch.nn.Module, tensors: Tensors) -> None:
    """Make `tensors` themselves the parameters of `model`. What was there before is not changed."""
    for name, parameter in model.named_parameters():
        parameter.data = tensors[name]
