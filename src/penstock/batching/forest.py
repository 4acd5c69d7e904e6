"""The prefix trees of a batch as flat columns, one entry per node, every tree small enough for a row. Made for `packing`, pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from penstock.trace.tree import prefix_tree
from penstock.types import BoolArray, Sample

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """Nodes of all trees, tree after tree, each in depth-first order. `_K` is the axis of nodes, `_F` that of trees."""

    sample_K: IntArray
    """Index of the sample whose tokens `start_K` to `stop_K` the node holds."""
    start_K: IntArray
    stop_K: IntArray
    parent_K: IntArray
    """Index of the parent node, smaller than the node's own; -1 at the root of a tree."""
    repeated_K: BoolArray
    """True where the node stands for those who continue it in this piece of its tree; its loss lies in another piece, that of its whole sample."""

    @property
    def tokens_K(self) -> IntArray:
        """Tokens of each node."""
        return self.stop_K - self.start_K

    @property
    def roots_F(self) -> IntArray:
        """Index of the root of each tree, which is its first node."""
        return np.flatnonzero(self.parent_K < 0)

    @property
    def tokens_F(self) -> IntArray:
        """Tokens of each tree."""
        roots_F = self.roots_F
        return np.add.reduceat(self.tokens_K, roots_F) if len(roots_F) else roots_F


def forest(samples: Sequence[Sample], lengths_S: IntArray, is_sampled: BoolArray, *, tokens_per_row: int | None) -> Forest:
    """Merge the samples of each group into trees; cut trees that are bigger than a row into several that repeat what they share.

    `lengths_S` are the tokens of each sample, `is_sampled` says of all tokens, samples laid end to end, whether somebody sampled them or they carry
    loss. Groups are taken by id, whatever the order they come in; samples of one group in the order given. ValueError if one path alone is too long.
    """
    members = grouped(samples)
    whole = _flat(samples, members, lengths_S, _prompts(samples, members, _unsampled_lengths(lengths_S, is_sampled)))
    if tokens_per_row is None or not (too_big_F := whole.tokens_F > tokens_per_row).any():
        return whole
    return _split(whole, too_big_F, tokens_per_row, samples)


def grouped(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of the samples of each group, groups by run and id."""
    members: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        members[sample.run, sample.group_id].append(index)
    return [members[key] for key in sorted(members)]


def _prompts(samples: Sequence[Sample], members: Sequence[Sequence[int]], unsampled_S: IntArray) -> IntArray:
    """For each group that is one prompt and a reply to it from each member, the tokens of the prompt; 0 for a sample alone; -1 for any other group.

    Most batches consist of such groups. Their trees need no search, so that they are never built one by one.
    """
    lengths = unsampled_S.tolist()
    return np.array([_prompt(samples, indices, lengths) for indices in members], dtype=np.int64)


def _prompt(samples: Sequence[Sample], indices: Sequence[int], lengths: Sequence[int]) -> int:
    first = samples[indices[0]].ids
    if len(indices) == 1:
        return 0 if len(first) > 0 else -1
    length = lengths[indices[0]]
    if length == 0 or len({samples[index].rollout_uid for index in indices}) < len(indices):
        return -1
    prompt = first[:length].tobytes()
    for index in indices:
        ids = samples[index].ids
        if lengths[index] != length or len(ids) <= length or ids[:length].tobytes() != prompt:
            return -1
    return length


def _unsampled_lengths(lengths_S: IntArray, is_sampled: BoolArray) -> IntArray:
    """Tokens of each sample before the first that was sampled."""
    starts_S = before(lengths_S)
    # One more behind the end, for samples after the last sampled token.
    places = np.append(np.flatnonzero(is_sampled), len(is_sampled))
    return np.minimum(places[np.searchsorted(places, starts_S)] - starts_S, lengths_S)


def _flat(samples: Sequence[Sample], members: Sequence[Sequence[int]], lengths_S: IntArray, prompt_P: IntArray) -> Forest:
    """The nodes of the trees of all groups, one after another; a group whose samples begin differently brings several trees."""
    trees = {group: prefix_tree([samples[index] for index in members[group]]) for group in np.flatnonzero(prompt_P < 0).tolist()}
    size_P = np.array([len(indices) for indices in members], dtype=np.int64)
    # A prompt is a node, and so is each reply.
    num_nodes_P = size_P + (prompt_P > 0)
    num_nodes_P[list(trees)] = [len(tree.nodes) for tree in trees.values()]
    first_node_P = before(num_nodes_P)
    batch_index = np.fromiter(chain.from_iterable(members), dtype=np.int64, count=int(size_P.sum()))

    table = np.empty((int(num_nodes_P.sum()), 4), dtype=np.int64)
    shared_P = np.flatnonzero(prompt_P > 0)
    table[first_node_P[shared_P]] = np.stack([np.full(len(shared_P), -1), before(size_P)[shared_P], np.zeros_like(shared_P), prompt_P[shared_P]], axis=1)
    is_plain_S = np.repeat(prompt_P >= 0, size_P)
    prompt_S, root_S = np.repeat(prompt_P, size_P)[is_plain_S], np.repeat(first_node_P, size_P)[is_plain_S]
    place_S = (np.arange(len(batch_index)) - np.repeat(before(size_P), size_P))[is_plain_S]
    replies = np.stack([np.where(prompt_S > 0, root_S, -1), np.flatnonzero(is_plain_S), prompt_S, lengths_S[batch_index][is_plain_S]], axis=1)
    table[root_S + (prompt_S > 0) + place_S] = replies
    for group, tree in trees.items():
        own = np.array(tree.nodes, dtype=np.int64).reshape(-1, 4)
        own[:, 0] = np.where(own[:, 0] < 0, -1, own[:, 0] + first_node_P[group])
        own[:, 1] += before(size_P)[group]
        table[first_node_P[group] : first_node_P[group] + len(own)] = own
    return Forest(
        sample_K=batch_index[table[:, 1]],
        start_K=table[:, 2],
        stop_K=table[:, 3],
        parent_K=table[:, 0],
        repeated_K=np.zeros(len(table), dtype=np.bool_),
    )


def before(counts: IntArray) -> IntArray:
    """How many there are in all entries before each."""
    return np.cumsum(counts) - counts


def _split(whole: Forest, too_big_F: BoolArray, tokens_per_row: int, samples: Sequence[Sample]) -> Forest:
    """The same forest with every tree that is too big replaced by its pieces."""
    edges = [*whole.roots_F.tolist(), len(whole.parent_K)]
    nodes: list[int] = []
    parents: list[int] = []
    piece_sizes: list[int] = []
    for tree, too_big in enumerate(too_big_F.tolist()):
        own = range(edges[tree], edges[tree + 1])
        for piece in _pieces(whole, own, tokens_per_row, samples) if too_big else [list(own)]:
            place = {node: len(nodes) + index for index, node in enumerate(piece)}
            place[-1] = -1
            parents += [place[parent] for parent in whole.parent_K[piece].tolist()]
            nodes += piece
            piece_sizes.append(len(piece))
    take_K = np.array(nodes, dtype=np.int64)
    return Forest(
        sample_K=whole.sample_K[take_K],
        start_K=whole.start_K[take_K],
        stop_K=whole.stop_K[take_K],
        parent_K=np.array(parents, dtype=np.int64),
        repeated_K=_repeated(whole, take_K, np.repeat(np.arange(len(piece_sizes)), piece_sizes)),
    )


def _repeated(whole: Forest, take_K: IntArray, piece_K: IntArray) -> BoolArray:
    """Which copies of nodes carry no loss: those outside of the piece in which the last node of their sample first stands.

    That piece holds the sample's whole path, so all tokens with loss of a sample lie in one row: losses that look at whole samples can be computed.
    """
    last_node_S = np.zeros(int(whole.sample_K.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(last_node_S, whole.sample_K, np.arange(len(whole.sample_K)))
    first_piece_N = piece_K[np.unique(take_K, return_index=True)[1]]
    is_repeated_K: BoolArray = piece_K != first_piece_N[last_node_S][whole.sample_K[take_K]]
    return is_repeated_K


def _pieces(whole: Forest, own: range, tokens_per_row: int, samples: Sequence[Sample]) -> list[list[int]]:
    """Cut one tree: go through its nodes depth first and open a new piece, with the whole path, whenever the next node does not fit."""
    tokens = dict(zip(own, whole.tokens_K[own.start : own.stop].tolist(), strict=True))
    parents = dict(zip(own, whole.parent_K[own.start : own.stop].tolist(), strict=True))
    pieces: list[list[int]] = []
    free = -1
    for node in own:
        path = [node]
        while (parent := parents[path[-1]]) >= 0:
            path.append(parent)
        here = set(pieces[-1]) if pieces else set()
        missing = [step for step in reversed(path) if step not in here]
        if sum(tokens[step] for step in missing) > free:
            missing = path[::-1]
            pieces.append([])
            free = tokens_per_row
        free -= sum(tokens[step] for step in missing)
        if free < 0:
            sample = samples[int(whole.sample_K[node])]
            raise ValueError(f"rollout {sample.rollout_uid} of group {sample.group_id} has a path of {whole.stop_K[node]} tokens; a row holds {tokens_per_row}")
        pieces[-1] += missing
    return pieces
