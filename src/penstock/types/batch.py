"""What the learner computes with, and what it ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.types.tokens import BoolArray, Float32Array, Int32Array, NamedArrays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A trainable path through a trace, from its root to a kept leaf. All arrays have one entry per token of the path."""

    run: str
    environment: str
    group_id: str
    rollout_uid: str
    path: tuple[int, ...]
    """Segments of the trace that the path consists of, from the root."""
    lengths: tuple[int, ...]
    """Tokens in each of them."""
    ids: Int32Array
    loss_mask: BoolArray
    """True where the token carries loss: sampled by our policy, on the first kept path that holds it."""
    logprobs: Float32Array
    """The sampler's, 0 where nothing was sampled."""
    versions: Int32Array
    """Version that sampled the token, -1 where nothing was sampled."""
    advantages: Float32Array
    mixed_kv: BoolArray
    """True where the sampler's cache held older weights; such tokens are left out of the agreement check."""
    arrays: NamedArrays = field(default_factory=dict)
    media: tuple[tuple[int, str], ...] = ()
    """Digests of images or sounds on the path, each with the first token of the segment it stands in; by token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RlExample:
    """A packed batch: rows of equal width, each holding some prefix trees one after another.

    All `_RT` arrays are (row, token). A *segment* here is a node of a packed prefix tree: a run of tokens with one parent. Tokens attend to
    their own segment up to themselves and to all of its ancestors; nothing else.
    """

    input_ids: Int32Array
    loss_mask: BoolArray
    segment_ids: Int32Array
    """Number of the token's segment inside its row, from 1; 0 for padding."""
    position_ids: Int32Array
    """Distance from the root of the token's path."""
    predecessors: Int32Array
    """Column of the token that stands before this one on its path (its logits predict this one); -1 at a root and in padding."""
    advantages: Float32Array
    policy_logprobs: Float32Array
    versions: Int32Array
    """Version that sampled the token, -1 where nothing was sampled."""
    mixed_kv: BoolArray
    sample_ids: Int32Array
    """For tokens with loss: index of the sample they belong to, over the whole batch; -1 elsewhere."""
    parents: Int32Array
    """(row, segment + 1): parent of segment s is `parents[row, s]`; 0 for roots and unused places."""
    num_samples: int
    """Samples in the whole batch this example is a part of."""
    reference_logprobs: Float32Array | None = None
    arrays: NamedArrays = field(default_factory=dict)
    environments: tuple[str, ...] = ()
    """Environment of each sample of the whole batch; empty: not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a set of weights."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """Names a set of weights. The bytes are in `weights/<digest>.safetensors`."""

    run: str
    policy: str
    version: int
    digest: str
    """xxh3-128 in hex over sorted (name, dtype, shape, bytes), tied tensors once."""
    tensors: tuple[TensorEntry, ...] = ()
    num_bytes: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
