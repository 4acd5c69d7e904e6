"""Sets of weights: their identity, and files that hold them whole or not at all. Safetensors only; nothing here reads pickle.

The digest is xxh3-128 over the tensors in the order of their names, each as

    name NUL dtype NUL shape NUL bytes

with names in UTF-8, dtypes as `float32`, shapes as `512x128` and bytes little-endian in row-major order. Names that share one storage are one tensor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from penstock.errors import WeightsError

Tensors = dict[str, torch.Tensor]
"""Tensors by name."""

_DIGEST = re.compile(r"[0-9a-f]{32}")


def model_tensors(model: torch.nn.Module) -> Tensors:
    """The tensors of `model` by name, sharing its memory. A tied tensor appears once, under the name that Hugging Face files use."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | {
        name: tensor.detach() for name, tensor in model.state_dict().items() if name in _buffer_names(model)
    }


def load_tensors(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy `tensors` into `model`. Raises `WeightsError`, with nothing changed, if they are those of another model."""
    check_tensors(model, tensors)
    for name, own in model_tensors(model).items():
        own.copy_(tensors[name])


def check_tensors(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises `WeightsError` unless names, shapes and dtypes of `tensors` are exactly those of `model`."""
    own = model_tensors(model)
    if own.keys() != tensors.keys():
        missing, foreign = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        raise WeightsError(f"these weights are of another model: missing {missing[:3]}, unknown {foreign[:3]}")
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise WeightsError(
                f"{name} is {_dtype_name(tensor)} {tuple(tensor.shape)}, the model has {_dtype_name(own[name])} {tuple(own[name].shape)}",
            )


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """xxh3-128 of `tensors` as 32 hex digits; see the module's docstring.

    >>> weights_digest({"b": torch.zeros(2), "a": torch.ones(1)}) == weights_digest({"a": torch.ones(1), "b": torch.zeros(2)})
    True
    """
    state = xxhash.xxh3_128()
    for name, tensor in sorted(_untied(tensors).items()):
        state.update(f"{name}\0{_dtype_name(tensor)}\0{'x'.join(map(str, tensor.shape))}\0".encode())
        if tensor.numel() > 0:
            state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def read_weights(path: Path) -> Tensors:
    """The tensors in the safetensors file `path`. Raises `WeightsError` when it is missing, truncated or something else.

    They are copies in memory that torch aligned, so that arithmetic on them does not round by how the file happens to lie.
    """
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except FileNotFoundError:
        raise WeightsError(f"there is no weights file {path.name}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path.name} is not a whole safetensors file: {error}") from error


def write_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make `path` hold `tensors`, durably: a reader sees the file as it was before or whole, whenever the power fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Hugging Face refuses files that do not name their framework.
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in _untied(tensors).items()}, temporary, metadata={"format": "pt"})
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def weights_path(directory: Path, digest: str) -> Path:
    """Where the weights of `digest` lie. Raises `WeightsError` for anything that is not a digest, so that no foreign string becomes a path."""
    if _DIGEST.fullmatch(digest) is None:
        raise WeightsError(f"a digest of weights is 32 hex digits, got {digest[:64]!r}")
    return directory / f"{digest}.safetensors"


def keep_weights(directory: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write `tensors` to their place in `directory` unless they are there, and return their digest."""
    digest = weights_digest(tensors)
    path = weights_path(directory, digest)
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_weights(path, tensors)
    return digest


def sync(path: Path) -> None:
    """fsync the file or directory `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _untied(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """One name for each storage: the one that sorts last, which for a head tied to its embedding is the embedding, as in Hugging Face files."""
    names = {_place(tensor) if tensor.numel() > 0 else name: name for name, tensor in sorted(tensors.items())}
    return {name: tensors[name] for name in names.values()}


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _buffer_names(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_buffers()}


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
