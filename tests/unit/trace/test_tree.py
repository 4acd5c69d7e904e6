from itertools import accumulate

import numpy as np

from penstock.trace import Node, Recorder, prefix_tree, samples
from penstock.types import Rollout, Sample, Source, VersionRun


def sample(uid: str, *segments: tuple[int, str], media: tuple[tuple[int, str], ...] = ()) -> Sample:
    """Segments are (index, ids as digits); lower case `s...` marks ids that were sampled with loss, `c...` ids sampled with loss elsewhere."""
    texts = [text for _, text in segments]
    ids = [int(digit) for text in texts for digit in text.lstrip("sc")]
    lengths = tuple(len(text.lstrip("sc")) for text in texts)
    loss = [text.startswith("s") for text in texts for _ in text.lstrip("sc")]
    drawn = [text[0] in "sc" for text in texts for _ in text.lstrip("sc")]
    zeros = np.zeros(len(ids), np.float32)
    return Sample(
        run="r",
        environment="e",
        group_id="g",
        rollout_uid=uid,
        path=tuple(index for index, _ in segments),
        lengths=lengths,
        ids=np.array(ids, np.int32),
        loss_mask=np.array(loss, np.bool_),
        logprobs=zeros,
        versions=np.where(drawn, 1, -1).astype(np.int32),
        advantages=zeros,
        mixed_kv=np.zeros(len(ids), np.bool_),
        media=media,
    )


def test_one_sample_is_one_node() -> None:
    tree = prefix_tree([sample("a", (0, "12"), (1, "s3"), (2, "4"), (3, "s5"))])
    assert tree.nodes == (Node(-1, 0, 0, 5),)
    assert tree.leaves == (0,)


def test_no_samples_give_an_empty_tree() -> None:
    tree = prefix_tree([])
    assert (tree.nodes, tree.leaves, tree.num_tokens) == ((), (), 0)


def test_members_of_a_group_share_their_prompt() -> None:
    tree = prefix_tree([sample("a", (0, "123"), (1, "s4")), sample("b", (0, "123"), (1, "s45")), sample("c", (0, "123"), (1, "s4"))])
    assert tree.nodes == (Node(-1, 0, 0, 3), Node(0, 0, 3, 4), Node(0, 1, 3, 5), Node(0, 2, 3, 4))
    assert tree.leaves == (1, 2, 3)
    assert tree.num_tokens == 7
    assert tree.path(1) == (0, 2)


def test_prompts_are_shared_up_to_where_they_differ_however_they_are_cut() -> None:
    tree = prefix_tree(
        [
            sample("a", (0, "1234"), (1, "s9")),
            sample("b", (0, "1"), (1, "256"), (2, "s9")),
            sample("c", (0, "12"), (1, "s9")),
            sample("d", (0, "7"), (1, "s9")),
            sample("e", (0, "1256"), (1, "s8")),
        ]
    )
    assert tree.nodes == (
        Node(-1, 0, 0, 2),
        Node(0, 0, 2, 5),
        Node(0, 1, 2, 4),
        Node(2, 1, 4, 5),
        Node(2, 4, 4, 5),
        Node(0, 2, 2, 3),
        Node(-1, 3, 0, 2),
    )
    assert tree.leaves == (1, 3, 5, 6, 4)


def test_a_prompt_that_was_cut_is_found_again_below_the_cut() -> None:
    prompts = ["1234", "7", "125", "1239"]
    tree = prefix_tree([sample(prompt, (0, prompt), (1, "s0")) for prompt in prompts])
    assert tree.nodes == (
        Node(-1, 0, 0, 2),
        Node(0, 0, 2, 3),
        Node(1, 0, 3, 5),
        Node(1, 3, 3, 5),
        Node(0, 2, 2, 4),
        Node(-1, 1, 0, 2),
    )


def test_sampled_tokens_of_different_rollouts_are_never_merged() -> None:
    tree = prefix_tree([sample("a", (0, "s12")), sample("b", (0, "s12"))])
    assert tree.nodes == (Node(-1, 0, 0, 2), Node(-1, 1, 0, 2))


def test_what_follows_a_sampled_token_is_shared_inside_one_rollout_only() -> None:
    tree = prefix_tree(
        [sample("a", (0, "1"), (1, "s2"), (2, "3"), (3, "s4")), sample("a", (0, "1"), (1, "c2"), (4, "3"), (5, "s4")), sample("b", (0, "1"), (1, "s2"))]
    )
    assert tree.nodes == (Node(-1, 0, 0, 1), Node(0, 0, 1, 2), Node(1, 0, 2, 4), Node(1, 1, 2, 4), Node(0, 2, 1, 2))


def test_a_shared_node_belongs_to_the_sample_that_carries_its_loss() -> None:
    later, first = sample("a", (0, "1"), (1, "c2"), (2, "s3")), sample("a", (0, "1"), (1, "s2"), (3, "s4"))
    tree = prefix_tree([later, first])
    assert tree.nodes == (Node(-1, 0, 0, 1), Node(0, 1, 1, 2), Node(1, 0, 2, 3), Node(1, 1, 2, 3))
    assert tree.leaves == (2, 3)


def test_a_sample_given_twice_shares_only_its_prompt() -> None:
    one, fork = sample("a", (0, "1"), (1, "s2"), (2, "s3")), sample("a", (0, "1"), (1, "c2"), (3, "s4"))
    tree = prefix_tree([one, one, fork, fork])
    loss_tokens = sum(int(tree.samples[node.sample].loss_mask[node.start : node.stop].sum()) for node in tree.nodes)
    assert loss_tokens == 2 + 2 + 1 + 1
    assert tree.num_tokens == 1 + (1 + 1 + 1) * 2


def test_placeholders_of_different_pictures_are_not_merged() -> None:
    tree = prefix_tree([sample("a", (0, "1"), (1, "77"), (2, "s2"), media=((1, "cat"),)), sample("b", (0, "1"), (1, "77"), (2, "s2"), media=((1, "dog"),))])
    assert tree.nodes == (Node(-1, 0, 0, 1), Node(0, 0, 1, 4), Node(0, 1, 1, 4))


def test_a_sample_that_another_one_continues_ends_at_a_node() -> None:
    tree = prefix_tree([sample("a", (0, "123")), sample("b", (0, "12")), sample("c", (0, ""))])
    assert tree.nodes == (Node(-1, 0, 0, 2), Node(0, 0, 2, 3))
    assert tree.leaves == (1, 0, -1)


def test_a_long_chat_with_a_late_fork_is_three_nodes() -> None:
    recorder = Recorder()
    for token in range(0, 40, 2):
        recorder.append([token], Source.ENV)
        reply = recorder.append([token + 1], Source.SAMPLED, logprobs=[-1], versions=[VersionRun(policy="policy", version=1, count=1)])
    recorder.rewind(38)
    recorder.append([50, 51], Source.SAMPLED, logprobs=[-1, -1], versions=[VersionRun(policy="policy", version=1, count=2)])
    assert reply.run == 39
    rollout = Rollout(run="r", environment="e", problem_id="p", group_id="g", member=0, retry=0, rollout_uid="u", trace=recorder.trace())
    tree = prefix_tree(samples(rollout))
    assert tree.nodes == (Node(-1, 0, 0, 38), Node(0, 0, 38, 40), Node(0, 1, 38, 40))
    assert list(accumulate(node.stop - node.start for node in tree.nodes)) == [38, 40, 42]
