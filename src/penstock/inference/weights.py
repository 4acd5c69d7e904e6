"""Weights on their way into the engine: read, checked against digest and architecture, packed. Nothing that fails a check is ever served."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from penstock.errors import WeightsError
from penstock.inference.engine.architecture import Architecture
from penstock.inference.engine.core import Served
from penstock.inference.engine.packing import check_tensors, pack
from penstock.models.weights import read_weights, weights_digest, weights_path

LARGEST_HEADER_BYTES = 100_000_000


class NotSafetensorsError(WeightsError):
    """The file is of another format."""

    http_status = 415


def served_from_model(directory: Path, architecture: Architecture, *, policy: str, version: int) -> Served:
    """The weights of a model directory, in fp32 whatever they are stored in."""
    tensors = {name: tensor.float() for file in _model_files(directory) for name, tensor in read_weights(file).items()}
    if architecture.tied:
        # Some writers store the head beside the embedding that it is tied to; the digest counts it once.
        tensors.pop("lm_head.weight", None)
    own = {name: _owned(tensor) for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    return _checked(own, architecture, policy=policy, version=version)


def served_from_digest(weights_dir: Path, architecture: Architecture, *, policy: str, version: int, digest: str) -> Served:
    """The weights `<digest>.safetensors`. Raises `WeightsError` unless the file is there, is safetensors, fits the model and has the digest."""
    path = weights_path(weights_dir, digest)
    _check_format(path)
    served = _checked({name: _owned(tensor) for name, tensor in read_weights(path).items()}, architecture, policy=policy, version=version)
    if served.digest != digest:
        raise WeightsError(f"{path.name} holds weights with the digest {served.digest}")
    return served


def _checked(tensors: dict[str, Tensor], architecture: Architecture, *, policy: str, version: int) -> Served:
    check_tensors(tensors, architecture)
    return Served(policy=policy, version=version, digest=weights_digest(tensors), weights=pack(tensors, architecture))


def _owned(tensor: Tensor) -> Tensor:
    """A copy in memory of our own: what is hashed must be what is served, even if somebody writes to the file meanwhile."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _model_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [directory / Path(name).name for name in sorted(names)]


def _check_format(path: Path) -> None:
    """Raises `NotSafetensorsError` unless the file begins as one: the length of a header, and the header's brace."""
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError:
        raise WeightsError(f"there are no weights {path.name}") from None
    if len(start) < 9 or start[8:9] != b"{" or int.from_bytes(start[:8], "little") > LARGEST_HEADER_BYTES:
        raise NotSafetensorsError(f"{path.name} is not a safetensors file")
