"""Merges the samples of a group into a tree, so that tokens they have in common are computed once. Called by `batching`.

Two kinds of sharing, in this order along a path:

- *By ids*, before the first sampled token: prompts of different rollouts that begin alike are one run of nodes up to where they differ.
- *By identity*, from there on: two paths through the same segments of one rollout share them. Equal ids of different rollouts do not.

A token with loss lies in exactly one node, and that node belongs to the sample that carries the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from penstock.types import BoolArray, Sample

_ROOT = -1


class Node(NamedTuple):
    """A run of tokens with one parent: the tokens `start` to `stop` of a sample.

    Nothing is copied: the node's ids are `tree.samples[node.sample].ids[node.start : node.stop]`, and so for `loss_mask`, `logprobs`, `versions`,
    `advantages`, `mixed_kv` and each of `arrays`. Its tokens with loss belong to sample `node.sample`; other samples through the node have none there.
    """

    parent: int
    """Index of the node that this one continues, smaller than its own; -1 at a root."""
    sample: int
    """Index into `PrefixTree.samples` of the sample whose arrays hold the tokens."""
    start: int
    """First token, counted from the root of the path: also the position of the node's first token."""
    stop: int
    """One past the last token; larger than `start`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """Samples with their common tokens merged. Several roots where samples do not begin alike."""

    samples: tuple[Sample, ...]
    """As given to `prefix_tree`."""
    nodes: tuple[Node, ...]
    """In depth-first order: parents before children, every subtree in one piece, children in the order of the samples that brought them."""
    leaves: tuple[int, ...]
    """For each sample, the node that its path ends with; -1 for a sample without tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens after sharing."""
        return sum(node.stop - node.start for node in self.nodes)

    def path(self, sample: int) -> tuple[int, ...]:
        """The nodes that spell a sample, from the root."""
        path = []
        index = self.leaves[sample]
        while index != _ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return tuple(reversed(path))


def prefix_tree(samples: Sequence[Sample]) -> PrefixTree:
    """The tree of `samples`, normally those of one group. A pure function of the samples and their order.

    Samples of one rollout that both carry loss on a segment they have in common (the same sample given twice) do not share by identity.
    """
    samples = tuple(samples)
    if len(samples) == 1 and len(samples[0].ids) > 0:
        return PrefixTree(samples=samples, nodes=(Node(_ROOT, 0, 0, len(samples[0].ids)),), leaves=(0,))
    prefixes = [sample.ids[: _shareable_length(sample)].tobytes() for sample in samples]
    repeated = _repeated_uids(samples)
    # Most groups are one prompt and a reply to it from each member: there is nothing to search for.
    if not repeated and len(set(prefixes)) == 1 and prefixes[0]:
        length = len(prefixes[0]) // samples[0].ids.itemsize
        if all(len(sample.ids) > length for sample in samples):
            return _one_prompt(samples, length)
    return _merged(samples, prefixes, repeated)


def _one_prompt(samples: tuple[Sample, ...], length: int) -> PrefixTree:
    """The tree of samples that share their first `length` tokens and nothing else."""
    replies = [Node(0, index, length, len(sample.ids)) for index, sample in enumerate(samples)]
    return PrefixTree(samples=samples, nodes=(Node(_ROOT, 0, 0, length), *replies), leaves=tuple(range(1, len(samples) + 1)))


def _merged(samples: tuple[Sample, ...], prefixes: Sequence[bytes], repeated: set[str]) -> PrefixTree:
    """The tree of any samples: their shareable prefixes by ids, then the rest by identity."""
    draft = _Draft(samples=samples)
    prefix_ends: dict[bytes, int] = {}
    copies: dict[str, list[list[int]]] = {}
    tails: dict[tuple[int, str, int, int], int] = {}
    ends = []
    for index, (sample, prefix) in enumerate(zip(samples, prefixes, strict=True)):
        length = len(prefix) // sample.ids.itemsize
        end = prefix_ends.get(prefix)
        if end is None:
            end = prefix_ends[prefix] = draft.add_prefix(index, length)
        if sample.rollout_uid in repeated:
            copy = _copy_to_join(samples, copies.setdefault(sample.rollout_uid, []), index)
            end = draft.add_segments(index, end, copy, tails)
        elif length < len(sample.ids):
            end = draft.add_node(end, index, length, len(sample.ids))
        ends.append(end)
    return draft.finished(ends)


def _shareable_length(sample: Sample) -> int:
    """Tokens before the first one that was sampled, carries loss or stands for media: equal ids mean equal content only up to there."""
    length = sample.media[0][0] if sample.media else len(sample.ids)
    length = _first_true(sample.loss_mask[:length], length)
    # Nearly always nothing was sampled before the first loss; one maximum tells, without an array of comparisons.
    if length == 0 or sample.versions[:length].max() < 0:
        return length
    return _first_true(sample.versions[:length] >= 0, length)


def _first_true(mask_T: BoolArray, length: int) -> int:
    """Place of the first True among `length` entries, `length` if there is none."""
    if length == 0:
        return 0
    first = mask_T.argmax()  # 0 as well where nothing is True, so the place is looked at again
    return int(first) if mask_T[first] else length


def _repeated_uids(samples: tuple[Sample, ...]) -> set[str]:
    """Rollouts with more than one sample; only they can share by identity."""
    uids = [sample.rollout_uid for sample in samples]
    if len(set(uids)) == len(uids):
        return set()
    return {uid for uid, count in Counter(uids).items() if count > 1}


def _copy_to_join(samples: tuple[Sample, ...], copies: list[list[int]], index: int) -> int:
    """Number of the first copy of the rollout with which the sample does not collide, joined. Nearly always 0."""
    for number, members in enumerate(copies):
        if not any(_collide(samples[member], samples[index]) for member in members):
            members.append(index)
            return number
    copies.append([index])
    return len(copies) - 1


def _collide(one: Sample, other: Sample) -> bool:
    """Whether both carry loss on the segments with which both paths begin."""
    tokens = 0
    for mine, its, length in zip(one.path, other.path, one.lengths, strict=False):
        if mine != its:
            break
        tokens += length
    return bool(one.loss_mask[:tokens].any() and other.loss_mask[:tokens].any())


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A tree under construction. A node's `stop` never changes once made, so that its index may be remembered as the end of a prefix."""

    samples: tuple[Sample, ...]
    parents: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    by_first_id: dict[tuple[int, int], int] = field(default_factory=dict)
    """(parent, first id) to the node that continues a shared prefix so."""

    def add_node(self, parent: int, owner: int, start: int, stop: int) -> int:
        """A new last child of `parent`."""
        node = len(self.parents)
        self.parents.append(parent)
        self.owners.append(owner)
        self.starts.append(start)
        self.stops.append(stop)
        self.children.append([])
        (self.roots if parent == _ROOT else self.children[parent]).append(node)
        return node

    def add_prefix(self, index: int, length: int) -> int:
        """Make the first `length` ids of a sample a path from the root, and give the node it ends with."""
        ids = self.samples[index].ids
        node, depth = _ROOT, 0
        while depth < length:
            child = self.by_first_id.get((node, int(ids[depth])))
            if child is None:
                child = self.add_node(node, index, depth, length)
                self.by_first_id[node, int(ids[depth])] = child
                return child
            stop = min(length, self.stops[child])
            differs = ids[depth:stop] != self.samples[self.owners[child]].ids[depth:stop]
            depth = depth + int(differs.argmax()) if differs.any() else stop
            node = child if depth == self.stops[child] else self._split(child, depth)
        return node

    def _split(self, node: int, depth: int) -> int:
        """Cut a prefix node in two at `depth`; the new upper part is returned, the lower one keeps its index and its children."""
        parent, start, ids = self.parents[node], self.starts[node], self.samples[self.owners[node]].ids
        upper = self.add_node(parent, self.owners[node], start, depth)
        siblings = self.roots if parent == _ROOT else self.children[parent]
        siblings[siblings.index(node)] = siblings.pop()
        self.children[upper].append(node)
        self.parents[node], self.starts[node] = upper, depth
        self.by_first_id[parent, int(ids[start])] = upper
        self.by_first_id[upper, int(ids[depth])] = node
        return upper

    def add_segments(self, index: int, end: int, copy: int, tails: dict[tuple[int, str, int, int], int]) -> int:
        """Hang what follows `end` in a sample under it, segment by segment, sharing those that are there."""
        sample = self.samples[index]
        for segment, stop in zip(sample.path, accumulate(sample.lengths), strict=True):
            start = 0 if end == _ROOT else self.stops[end]
            if stop <= start:
                continue
            key = (end, sample.rollout_uid, copy, segment)
            node = tails.get(key)
            if node is None:
                node = tails[key] = self.add_node(end, index, start, stop)
            elif sample.loss_mask[start:stop].any():
                self.owners[node] = index
            end = node
        return end

    def finished(self, ends: list[int]) -> PrefixTree:
        """Number the nodes depth first, and join a node with its only child where nothing else ends or branches between them."""
        is_end = set(ends)
        nodes: list[Node] = []
        numbers: dict[int, int] = {_ROOT: _ROOT}
        stack = [(root, _ROOT) for root in reversed(self.roots)]
        while stack:
            node, parent = stack.pop()
            start, owner, below = self.starts[node], self.owners[node], self.children[node]
            while len(below) == 1 and node not in is_end and self.owners[below[0]] == owner:
                node = below[0]
                below = self.children[node]
            number = numbers[node] = len(nodes)
            if below:
                stack.extend([(child, number) for child in reversed(below)])
            nodes.append(Node(parent, owner, start, self.stops[node]))
        return PrefixTree(samples=self.samples, nodes=tuple(nodes), leaves=tuple(numbers[end] for end in ends))
