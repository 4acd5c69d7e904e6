"""Exact attention over packed prefix trees, through unmodified Hugging Face classes.

Tokens of many trees stand in one line, node after node. A token attends to its own node up to itself and to all of the node's ancestors, nothing else.
No mask over the line is ever built: nodes of equal shape (own tokens, tokens before them) form one *call* of SDPA on queries and keys that were gathered
for it. Prompts that members of a group share are so computed once, in all layers.

The layout travels as the keyword `tree` of `model(...)`, which Hugging Face hands to every attention layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import embedding, scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TREE_ATTENTION = "penstock_tree"
"""Name of the attention in transformers, once it is registered."""

_QUERIES_PER_CALL = 256
"""Longer nodes are cut, so that what causality forbids is neither computed nor masked but for one block at the edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """Nodes that are computed in one call."""

    count: int
    length: int
    """Own tokens of each."""
    prefix: int
    """Tokens of the ancestors of each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeLayout:
    """Who attends to whom in a line of tokens. Made by `tree_layout`."""

    num_tokens: int
    shapes: tuple[NodeShape, ...]
    query_index_T: torch.Tensor
    """Tokens in the order of the calls."""
    key_index_K: torch.Tensor
    """For each node of each call: tokens of its ancestors from the root, then its own."""
    output_index_T: torch.Tensor
    """Inverse of `query_index_T`."""


def tree_layout(lengths: Sequence[int], parents: Sequence[int]) -> TreeLayout:
    """Layout of nodes that stand one after another: `lengths[n]` tokens hang on node `parents[n]` (-1: a root), which stands before n.

    >>> tree_layout([3, 2, 2], [-1, 0, 0]).shapes
    (NodeShape(count=1, length=3, prefix=0), NodeShape(count=2, length=2, prefix=3))
    """
    lengths, parents = _without_chains(lengths, parents)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    own = [np.arange(starts[node], starts[node + 1]) for node in range(len(lengths))]
    paths: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    nodes_by_shape: dict[tuple[int, int], list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        paths.append(own[node] if parent < 0 else np.concatenate([paths[parent], own[node]]))
        nodes_by_shape[len(paths[node]) - lengths[node], lengths[node]].append(node)
    # Sorted, so that the arithmetic does not depend on which tree came first.
    calls = sorted(nodes_by_shape.items())
    order = [node for _, nodes in calls for node in nodes]
    query_index_T = np.concatenate([own[node] for node in order]) if order else np.zeros(0, np.int64)
    return TreeLayout(
        num_tokens=int(starts[-1]),
        shapes=tuple(NodeShape(count=len(nodes), length=length, prefix=prefix) for (prefix, length), nodes in calls),
        query_index_T=torch.from_numpy(query_index_T),
        key_index_K=torch.from_numpy(np.concatenate([paths[node] for node in order]) if order else np.zeros(0, np.int64)),
        output_index_T=torch.from_numpy(np.argsort(query_index_T)),
    )


def tree_hidden(model: PreTrainedModel, input_ids_T: torch.Tensor, position_ids_T: torch.Tensor, layout: TreeLayout) -> torch.Tensor:
    """Last hidden states (token, hidden) of a line of tokens laid out as `layout` says. `model` comes from `load_model`."""
    output = model.base_model(input_ids=input_ids_T[None], position_ids=position_ids_T[None], use_cache=False, tree=layout)
    hidden_TD: torch.Tensor = output.last_hidden_state[0]
    return hidden_TD


def register_tree_attention() -> None:
    """Make the attention known to transformers. Any number of times."""
    from transformers import AttentionInterface

    AttentionInterface.register(TREE_ATTENTION, _tree_attention)


def _tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    tree: TreeLayout | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: (1, heads, tokens, size) in, (1, tokens, heads, size) out."""
    if tree is None:
        raise ValueError('this model attends over trees: call `tree_hidden`, or `model.set_attn_implementation("sdpa")` for plain calls')
    queries = torch.split(_gather(query, tree.query_index_T), [shape.count * shape.length for shape in tree.shapes])
    key_counts = [shape.count * (shape.prefix + shape.length) for shape in tree.shapes]
    keys, values = (torch.split(_gather(states, tree.key_index_K), key_counts) for states in (key, value))
    stairs = _stairs(_deepest(tree.shapes), query.dtype, query.device)
    outputs = [_attend(shape, q, k, v, stairs, scaling) for shape, q, k, v in zip(tree.shapes, queries, keys, values, strict=True)]
    return torch.cat(outputs).index_select(0, tree.output_index_T)[None], None


def _attend(shape: NodeShape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stairs: torch.Tensor, scaling: float | None) -> torch.Tensor:
    """Attention of nodes of one shape; (nodes * tokens, heads, size) in and out."""
    q, k, v = (x.view(shape.count, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    gqa = q.shape[1] != k.shape[1]
    if shape.prefix == 0:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=gqa).transpose(1, 2).flatten(0, 1)
    blocks = []
    for start in range(0, shape.length, _QUERIES_PER_CALL):
        stop = min(start + _QUERIES_PER_CALL, shape.length)
        before, after = shape.prefix + start, shape.prefix + stop
        # The stairs of a shallower block are the right end of the deepest one's.
        mask = stairs[: stop - start, stairs.shape[1] - _QUERIES_PER_CALL - before :][:, :after]
        blocks.append(scaled_dot_product_attention(q[:, :, start:stop], k[:, :, :after], v[:, :, :after], attn_mask=mask, scale=scaling, enable_gqa=gqa))
    joined = blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)
    return joined.transpose(1, 2).flatten(0, 1)


def _gather(states: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of (1, heads, tokens, size) as (rows, heads, size). By `embedding`: its backward sums rows many times faster than that of `index_select`."""
    _, heads, tokens, size = states.shape
    return embedding(index, states.transpose(1, 2).reshape(tokens, heads * size)).view(-1, heads, size)


def _deepest(shapes: Sequence[NodeShape]) -> int:
    """Most keys that stand before a block of queries."""
    return max((shape.prefix + (shape.length - 1) // _QUERIES_PER_CALL * _QUERIES_PER_CALL for shape in shapes if shape.prefix > 0), default=0)


@lru_cache(maxsize=2)
def _stairs(depth: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """(queries, depth + queries): 0 where query i may see key j <= depth + i, -inf elsewhere."""
    stairs = torch.full((_QUERIES_PER_CALL, depth + _QUERIES_PER_CALL), -torch.inf, dtype=dtype, device=device)
    return stairs.triu_(depth + 1)


def _without_chains(lengths: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Join each node to its parent when it is the only child and stands right after it: fewer, larger calls that mean the same."""
    if len(lengths) != len(parents):
        raise ValueError(f"{len(lengths)} lengths but {len(parents)} parents")
    num_children = np.bincount([parent for parent in parents if parent >= 0], minlength=len(parents))
    joined_lengths: list[int] = []
    joined_parents: list[int] = []
    new_number: list[int] = []
    for node, (length, parent) in enumerate(zip(lengths, parents, strict=True)):
        if length < 1 or parent >= node:
            raise ValueError(f"node {node} has {length} tokens and parent {parent}: it needs a token and a parent that stands before it")
        if parent == node - 1 and parent >= 0 and num_children[parent] == 1:
            joined_lengths[-1] += length
        else:
            joined_lengths.append(length)
            joined_parents.append(new_number[parent] if parent >= 0 else -1)
        new_number.append(len(joined_lengths) - 1)
    return joined_lengths, joined_parents
