"""Attention over trees must be invisible: every path through a tree gives what a pass over that path alone gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MethodType

import pytest
import torch
from transformers import PreTrainedModel

from penstock.models import load_model, token_scores, tree_hidden, tree_layout

Tree = tuple[list[int], list[int]]

TREES: dict[str, Tree] = {
    "one_path": ([7], [-1]),
    "a_group": ([5, 3, 4, 3], [-1, 0, 0, 0]),
    "two_groups_of_equal_shape": ([5, 3, 4, 5, 3, 4], [-1, 0, 0, -1, 3, 3]),
    "forks_in_forks": ([4, 2, 3, 1, 5, 2], [-1, 0, 1, 1, 0, 4]),
    "a_chain": ([2, 3, 4], [-1, 0, 1]),
    "children_that_stand_apart_from_a_parent": ([2, 3, 2, 4], [-1, -1, 0, 1]),
    "a_reply_longer_than_a_block": ([6, 600, 300], [-1, 0, 0]),
}


def paths_of(tree: Tree) -> list[list[int]]:
    """For each node, the places of all tokens from its root to its end: slow and obvious."""
    lengths, parents = tree
    paths: list[list[int]] = []
    start = 0
    for length, parent in zip(lengths, parents, strict=True):
        paths.append((paths[parent] if parent >= 0 else []) + list(range(start, start + length)))
        start += length
    return paths


def inputs_of(tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens = sum(tree[0])
    positions = torch.zeros(num_tokens, dtype=torch.long)
    for path in paths_of(tree):
        positions[path] = torch.arange(len(path))
    return torch.randint(0, 64, (num_tokens,), generator=torch.Generator().manual_seed(1)), positions


def exact_norms(model: PreTrainedModel) -> None:
    """Let norms compute in the model's own precision. Hugging Face's go through fp32, which hides everything below 1e-7."""

    def forward(norm: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return norm.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = MethodType(forward, module)


def scores_over_tree(model: PreTrainedModel, tree: Tree) -> torch.Tensor:
    """For each node the summed logprob of its whole path but the first token, through one pass over the tree."""
    ids, positions = inputs_of(tree)
    hidden = tree_hidden(model, ids, positions, tree_layout(*tree))
    return torch.stack([token_scores(model, hidden[path[:-1]], ids[path[1:]]).logprobs_T.sum() for path in paths_of(tree)])


def scores_path_by_path(model: PreTrainedModel, tree: Tree) -> torch.Tensor:
    """The same by plain passes of the unchanged model, one for each path."""
    ids, _ = inputs_of(tree)
    sums = []
    for path in paths_of(tree):
        logits = model(ids[path][None]).logits[0, :-1]
        sums.append(logits.log_softmax(-1).gather(-1, ids[path][1:, None]).sum())
    return torch.stack(sums)


def gradient(model: PreTrainedModel, scores: torch.Tensor) -> torch.Tensor:
    """Of a sum in which every path counts differently."""
    model.zero_grad()
    (scores * torch.linspace(1.0, 2.0, len(scores), dtype=scores.dtype)).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def compare(model: PreTrainedModel, tree: Tree, tolerance: float) -> None:
    over_tree = scores_over_tree(model, tree)
    gradient_over_tree = gradient(model, over_tree)
    model.set_attn_implementation("sdpa")
    path_by_path = scores_path_by_path(model, tree)
    gradient_path_by_path = gradient(model, path_by_path)
    assert torch.linalg.vector_norm(over_tree - path_by_path) <= tolerance * torch.linalg.vector_norm(path_by_path)
    assert torch.linalg.vector_norm(gradient_over_tree - gradient_path_by_path) <= tolerance * torch.linalg.vector_norm(gradient_path_by_path)


@pytest.mark.parametrize("tree", TREES)
def test_in_fp64_a_tree_equals_its_paths_to_1e_9(tree: str, directory_of: Callable[..., Path]) -> None:
    model = load_model(directory_of("llama"), dtype=torch.float64)
    exact_norms(model)
    compare(model, TREES[tree], 1e-9)


@pytest.mark.parametrize("family", ["llama", "llama_untied", "qwen2", "qwen3"])
def test_in_fp32_a_tree_equals_its_paths_to_1e_6_in_every_family(family: str, directory_of: Callable[..., Path]) -> None:
    compare(load_model(directory_of(family)), TREES["forks_in_forks"], 1e-6)


def test_a_sibling_changes_nothing(directory_of: Callable[..., Path]) -> None:
    model = load_model(directory_of("llama"))
    ids, positions = inputs_of(([4, 3, 3], [-1, 0, 0]))
    layout = tree_layout([4, 3, 3], [-1, 0, 0])
    changed = ids.clone()
    changed[7:] = (ids[7:] + 1) % 64
    before, after = tree_hidden(model, ids, positions, layout), tree_hidden(model, changed, positions, layout)
    assert torch.equal(before[:7], after[:7])
    assert not torch.equal(before[7:], after[7:])


def test_chains_are_joined_and_equal_shapes_share_a_call() -> None:
    layout = tree_layout([2, 3, 4, 4, 1], [-1, 0, 1, 1, 3])
    assert [(shape.count, shape.length, shape.prefix) for shape in layout.shapes] == [(1, 5, 0), (1, 4, 5), (1, 5, 5)]
    layout = tree_layout([2, 3, 3], [-1, 0, 0])
    assert [(shape.count, shape.length, shape.prefix) for shape in layout.shapes] == [(1, 2, 0), (2, 3, 2)]
    assert layout.key_index_K.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 5, 6, 7]


@pytest.mark.parametrize("lengths, parents", [([2, 0], [-1, 0]), ([2, 2], [1, -1]), ([2], [0]), ([1, 2], [-1])])
def test_what_is_no_tree_is_refused(lengths: list[int], parents: list[int]) -> None:
    with pytest.raises(ValueError):
        tree_layout(lengths, parents)


def test_a_call_without_a_layout_is_refused_with_a_way_out(directory_of: Callable[..., Path]) -> None:
    model = load_model(directory_of("llama"))
    with pytest.raises(ValueError, match="set_attn_implementation"):
        model(torch.zeros(1, 3, dtype=torch.long))
