"""Credit by step and by thinking level, from traces to tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from penstock.advantages import copo, gigpo, rlvcr
from penstock.advantages.config import GigpoConfig, RlvcrConfig
from penstock.errors import ConfigError, InvalidError
from penstock.learner.credit import AlgorithmConfig, credit
from penstock.learner.reports import Reporter
from penstock.learner.selection import Selection, trained
from penstock.learner.stats import StepStats
from penstock.learner.step import StepResult
from penstock.metrics import MemorySink, Metrics
from penstock.trace import Recorder
from penstock.types import (
    Annotation,
    CutRequest,
    Group,
    Message,
    Plan,
    Purpose,
    Rollout,
    Sample,
    Segment,
    Source,
    StepFacts,
    VersionRun,
)


def sampled(recorder: Recorder, ids: list[int], policy: str = "policy") -> None:
    recorder.append(ids, Source.SAMPLED, logprobs=np.full(len(ids), -0.5, np.float32), versions=(VersionRun(policy=policy, version=0, count=len(ids)),))


def episode(member: int, reward: float, steps: list[tuple[object, float | None, int]], *, value: float | None = None) -> Rollout:
    """Each step is (observation, step reward, number of sampled tokens); the environment says one token before each."""
    recorder = Recorder()
    for observation, step_reward, num_tokens in steps:
        recorder.open_message()
        recorder.append([7], Source.ENV)
        recorder.close_message(Message(role="user", content=f"you are in {observation}"))
        recorder.append([8], Source.TEMPLATE)
        recorder.open_message()
        sampled(recorder, list(range(10, 10 + num_tokens)))
        recorder.close_message(Message(role="assistant", content="go"), reward=step_reward, step=StepFacts(observation=observation, value_estimate=value))
    return rollout(member, reward, recorder)


def rollout(member: int, reward: float, recorder: Recorder) -> Rollout:
    return Rollout(
        run="run", environment="env", problem_id="p", group_id="s/0/0", member=member, retry=0, rollout_uid=f"r{member}", trace=recorder.trace(), reward=reward
    )


def group(*members: Rollout, annotations: tuple[Annotation, ...] = ()) -> Group:
    return Group(run="run", id="s/0/0", environment="env", problem_id="p", purpose=Purpose.TRAIN, rollouts=members, annotations=annotations)


PLAN = Plan(run="run", update=7, term=1, groups=(), newest_version=0, tokens=40, request=CutRequest(groups_per_update=1, seed=3))
GIGPO = AlgorithmConfig(adv_estimator="gigpo", gigpo=GigpoConfig(gamma=0.5))


def by_token(sample: Sample) -> list[float]:
    return [float(value) for value in sample.advantages[sample.loss_mask]]


# "win" leaves the hall, then the shed, and gets 1 at the end; "lose" leaves the hall, then the cellar, and gets nothing.
WIN = episode(0, 1.0, [("hall", 0.0, 2), ("shed", 1.0, 3)])
LOSE = episode(1, 0.0, [("hall", 0.0, 1), ("cellar", 0.0, 2)])


def test_gigpo_gives_each_sampled_token_the_advantage_of_its_step() -> None:
    # A_E = +-1/2. Returns 1/2, 1 and 0, 0; the hall was left with 1/2 and 0, so A_S = +-1/4 there and 0 elsewhere.
    win, lose = credit([group(WIN, LOSE)], PLAN, GIGPO)
    assert by_token(win) == [0.75, 0.75, 0.5, 0.5, 0.5]
    assert by_token(lose) == [-0.75, -0.5, -0.5]
    assert not win.advantages[~win.loss_mask].any()


def test_changing_one_word_changes_the_credit_and_nothing_else() -> None:
    for name, expected in (("grpo", 0.5 / (0.5**0.5 + 1e-6)), ("rloo", 1.0), ("dr_grpo", 0.5)):
        win, _ = credit([group(WIN, LOSE)], PLAN, AlgorithmConfig(adv_estimator=name))
        assert by_token(win) == pytest.approx([expected] * 5, rel=1e-6)


def test_steps_of_other_groups_are_not_compared() -> None:
    (alone, *_) = credit([group(WIN), replace(group(LOSE), id="s/0/1")], PLAN, GIGPO)
    assert by_token(alone) == [0.0] * 5


def test_unrewarded_steps_get_the_default_and_at_the_end_the_episodes_reward() -> None:
    config = AlgorithmConfig(adv_estimator="gigpo", gigpo=GigpoConfig(gamma=0.5, default_step_reward=-0.25))
    win = episode(0, 1.0, [("hall", None, 1), ("shed", None, 1)])
    lose = episode(1, 0.0, [("hall", None, 1)])
    found = credit([group(win, lose)], PLAN, config)
    # Returns: win -0.25 + 0.5 * 0.75 = 0.125, then 0.75; lose -0.25. The hall: 0.125 and -0.25, so +-0.1875.
    assert [by_token(sample) for sample in found] == [[0.6875, 0.5], [-0.6875]]


def test_what_the_policy_saw_can_be_the_state() -> None:
    # Other rooms, but the environment showed the same text last.
    first, second = episode(0, 1.0, [("hall", None, 1)]), episode(1, 0.0, [("hall", None, 1)])
    blind = [replace(one, trace=replace(one.trace, marks=tuple(replace(mark, step=None) for mark in one.trace.marks))) for one in (first, second)]
    config = AlgorithmConfig(adv_estimator="gigpo")
    assert [by_token(sample) for sample in credit([group(*blind)], PLAN, config)] == [[0.5], [-0.5]]
    seen = replace(config, gigpo=GigpoConfig(state_hashing_function="last_messages"))
    assert [by_token(sample) for sample in credit([group(*blind)], PLAN, seen)] == [[1.0], [-1.0]]
    with pytest.raises(ConfigError, match="state_hashing_function: must be observation, concatenated_content"):
        GigpoConfig(state_hashing_function="messages")
    with pytest.raises(ConfigError, match="'no_such_module:f' cannot be imported"):
        GigpoConfig(state_hashing_function="no_such_module:f")


def by_number(observation: object) -> object:
    """A state hashing function for observations that these here are not."""
    return observation + 1  # type: ignore[operator]


def test_a_state_hashing_function_that_fails_is_named_with_the_step() -> None:
    config = AlgorithmConfig(adv_estimator="gigpo", gigpo=GigpoConfig(state_hashing_function=f"{__name__}:by_number"))
    with pytest.raises(ConfigError, match=r"algorithm.gigpo: state_hashing_function by_number fails on step 0 of rollout r0: TypeError: "):
        credit([group(WIN, LOSE)], PLAN, config)


def test_the_control_deals_out_the_advantages_of_steps() -> None:
    groups = [group(*(episode(member, float(member), [("hall", 0.0, 1), (f"room {member}", float(member), 1)]) for member in range(4)))]
    honest = [value for sample in credit(groups, PLAN, GIGPO) for value in by_token(sample)]
    dealt = [value for sample in credit(groups, PLAN, replace(GIGPO, shuffle_advantages=True)) for value in by_token(sample)]
    assert sorted(dealt) == sorted(honest)
    assert dealt != honest


def test_a_rollout_without_messages_is_one_step() -> None:
    bare = Recorder()
    bare.append([1], Source.ENV)
    sampled(bare, [2, 3])
    assert [by_token(sample) for sample in credit([group(rollout(0, 1.0, bare), rollout(1, 0.0, bare))], PLAN, GIGPO)] == [[0.5, 0.5], [-0.5, -0.5]]


def test_what_another_policy_said_is_not_a_step() -> None:
    talk = Recorder()
    for policy, step_reward in (("policy", 0.0), ("opponent", None), ("policy", 1.0)):
        talk.open_message()
        sampled(talk, [5], policy)
        talk.close_message(Message(role="assistant", content="go"), reward=step_reward, step=StepFacts(observation="hall" if step_reward == 0 else None))
    win, _ = credit([group(rollout(0, 1.0, talk), LOSE)], PLAN, GIGPO)
    # The return of the first reply is 0.5 * 1, discounted once; with the opponent's move in between it would be 0.25.
    assert by_token(win) == [0.75, 0.5]


def test_gae_needs_a_value_of_every_step() -> None:
    config = AlgorithmConfig(adv_estimator="gae", options={"lam": 1.0})
    valued = [episode(0, 1.0, [("hall", 0.0, 1), ("shed", 1.0, 1)], value=0.25)]
    assert [by_token(sample) for sample in credit([group(*valued)], PLAN, config)] == [[0.75, 0.75]]
    with pytest.raises(ConfigError, match=r"algorithm.adv_estimator gae needs a critic's value of every step, and step 0 of rollout r0 has none"):
        credit([group(WIN, LOSE)], PLAN, config)


CONFIDENCE, COST = [0.9, 0.5, 0.3, 0.3], [0.0, 50.0, 125.0, 500.0]


def expanded(member: int, step: int, chosen: int, segments: tuple[Segment, ...] = (), spans: object = None) -> Annotation:
    return Annotation(
        run="run",
        rollout_uid=f"r{member}",
        name="thinking_levels",
        step=step,
        values={"chosen": chosen, "segments": spans},
        arrays={"level": np.array([1, 2, 3, 4]), "confidence": np.array(CONFIDENCE), "entropy": np.array([0.1, 0.5, 0.7, 0.7]), "cost": np.array(COST)},
        segments=segments,
    )


def failed(member: int, step: int | None) -> Annotation:
    return Annotation(run="run", rollout_uid=f"r{member}", name="thinking_levels", step=step, failed="no level in the reply")


def test_rlvcr_trains_the_level_that_was_sampled() -> None:
    notes = (expanded(0, 0, chosen=1), failed(0, 1), expanded(1, 1, chosen=3))
    config = AlgorithmConfig(adv_estimator="rlvcr", rlvcr=RlvcrConfig(thinking_diversity_w=0.0))
    win, lose = credit([group(WIN, LOSE, annotations=notes)], PLAN, config)
    # A_think of level 1: 0.9 - 0.5; of level 3: 0.3 - 0.5. The other steps keep +-1/2.
    assert by_token(win) == pytest.approx([0.9, 0.9, 0.5, 0.5, 0.5])
    assert by_token(lose) == pytest.approx([-0.5, -0.7, -0.7])


def test_the_share_of_a_level_counts_the_steps_that_say_theirs() -> None:
    def says(rollout: Rollout, *replies: str) -> Rollout:
        left = iter(replies)
        messages = [replace(mark.message, content=next(left)) if mark.message.role == "assistant" else mark.message for mark in rollout.trace.marks]
        marks = tuple(replace(mark, message=message) for mark, message in zip(rollout.trace.marks, messages, strict=True))
        return replace(rollout, trace=replace(rollout.trace, marks=marks))

    win = says(WIN, "<level>1</level><action>go</action>", "<level>1</level><action>go</action>")
    lose = says(LOSE, "<level>4</level><think>hm</think><action>go</action>", "go")
    notes = (expanded(0, 0, chosen=1), failed(1, None))
    config = AlgorithmConfig(adv_estimator="rlvcr", rlvcr=RlvcrConfig(thinking_diversity_w=0.5))
    found, _ = credit([group(win, lose, annotations=notes)], PLAN, config)
    # Of the steps that name a level two of three are at level 1; the last names none. A_think is 0.9 - 0.5.
    assert by_token(found)[:2] == pytest.approx([0.5 + 0.4 * (1 - 0.5 * 2 / 3)] * 2)


def test_rlvcr_in_the_loop_is_rlvcr_on_columns() -> None:
    notes = (expanded(0, 0, chosen=2), expanded(0, 1, chosen=2), expanded(1, 0, chosen=4), expanded(1, 1, chosen=1))
    settings = RlvcrConfig(mode="mean_std_norm", thinking_cost_alpha=0.5, signal="neg_entropy", step_advantage_w=2.0)
    found = credit([group(WIN, LOSE, annotations=notes)], PLAN, AlgorithmConfig(adv_estimator="rlvcr", rlvcr=settings))
    levels = [2, 2, 4, 1]
    columns = rlvcr(
        np.repeat([1.0, 0.0], 8),
        [0] * 16,
        [0.1, 0.5, 0.7, 0.7] * 4,
        COST * 4,
        np.repeat(np.arange(4), 4),
        trajectory=np.repeat([0, 1], 8),
        chosen=[level == chosen for chosen in levels for level in (1, 2, 3, 4)],
        level=[1, 2, 3, 4] * 4,
        **settings.options(),
    ).reshape(4, 4)
    want = [columns[step, level - 1] for step, level in enumerate(levels)]
    assert by_token(found[0]) == pytest.approx([want[0]] * 2 + [want[1]] * 3)
    assert by_token(found[1]) == pytest.approx([want[2]] + [want[3]] * 2)


def test_rlvcr_can_be_turned_off_and_keeps_its_documented_defaults() -> None:
    assert RlvcrConfig().options()["thinking_diversity_w"] == 0.5
    notes = (expanded(0, 0, chosen=1), expanded(1, 0, chosen=3))
    off = AlgorithmConfig(adv_estimator="rlvcr", rlvcr=RlvcrConfig(enable=False))
    win, lose = credit([group(WIN, LOSE, annotations=notes)], PLAN, off)
    assert (by_token(win), by_token(lose)) == ([0.5] * 5, [-0.5] * 3)


def test_a_batch_that_nobody_expanded_says_so() -> None:
    for name in ("rlvcr", "copo"):
        with pytest.raises(ConfigError, match=f"algorithm.adv_estimator {name} needs the annotation 'thinking_levels' on every rollout, and r0 has none"):
            credit([group(WIN, LOSE)], PLAN, AlgorithmConfig(adv_estimator=name))
    # Somebody looked and found nothing to expand: the episodes' credit alone.
    config = AlgorithmConfig(adv_estimator="rlvcr")
    win, _ = credit([group(WIN, LOSE, annotations=(failed(0, None), failed(1, None)))], PLAN, config)
    assert by_token(win) == [0.5] * 5


def alternative(parent: int, ids: list[int]) -> Segment:
    scored = {"logprobs": np.full(len(ids), -1.0, np.float32), "versions": (VersionRun(policy="policy", version=0, count=len(ids)),)}
    return Segment(parent=parent, ids=np.array(ids, np.int32), source=Source.INJECTED, **scored)  # type: ignore[arg-type]


def test_copo_trains_the_alternatives_too() -> None:
    # The first reply of "win" is segment 2 and hangs on segment 1. Level 1 was sampled; 2 is two segments, 3 is one, 4 has none that can be trained.
    size = len(WIN.trace.segments)
    assert WIN.trace.segments[2].source is Source.SAMPLED
    segments = (alternative(1, [31]), alternative(1, [21, 22]), alternative(size + 1, [23]))
    notes = (expanded(0, 0, chosen=1, segments=segments, spans=[None, [1, 3], [0, 1], None]), failed(1, None))
    found = credit([group(WIN, LOSE, annotations=notes)], PLAN, AlgorithmConfig(adv_estimator="copo"))
    weighed = copo([1.0] * 5 + [0.0] * 2, [0] * 7, [*CONFIDENCE, np.nan, np.nan, np.nan], [0, 0, 0, 0, -1, -1, -1], trajectory=[0] * 5 + [1] * 2)
    trained = {tuple(sample.ids[sample.loss_mask].tolist()): by_token(sample) for sample in found}
    assert trained[10, 11, 10, 11, 12] == pytest.approx([weighed[0]] * 2 + [weighed[4]] * 3)
    assert trained[21, 22, 23] == pytest.approx([weighed[1]] * 3)
    assert trained[31,] == pytest.approx([weighed[2]])
    assert trained[10, 10, 11] == pytest.approx([weighed[5]] * 3)
    assert len(trained) == 4


def test_copo_does_not_train_the_alternatives_of_a_step_whose_scoring_failed() -> None:
    whole = expanded(0, 0, chosen=1, segments=(alternative(1, [31]), alternative(1, [21])), spans=[None, [1, 2], [0, 1], None])
    confidence = np.array(whole.arrays["confidence"], dtype=np.float64)
    confidence[3] = np.nan
    note = replace(whole, arrays={**whole.arrays, "confidence": confidence})
    found = credit([group(WIN, LOSE, annotations=(note, failed(1, None)))], PLAN, AlgorithmConfig(adv_estimator="copo"))
    assert {tuple(sample.ids[sample.loss_mask].tolist()) for sample in found} == {(10, 11, 10, 11, 12), (10, 10, 11)}


def told(config: AlgorithmConfig, notes: tuple[Annotation, ...], refused: dict[str, str] | None = None) -> dict[str, float]:
    """Metrics of an update on WIN and LOSE."""
    groups = (group(WIN, LOSE, annotations=notes),)
    selection = Selection(groups=groups, refused=refused or {})
    left = trained(selection, PLAN, config)
    num_tokens = sum(int(sample.loss_mask.sum()) for sample in left.samples)
    sink = MemorySink()
    reporter = Reporter(Metrics(sink))
    reporter.batch(groups, selection, left)
    reporter.step(PLAN, StepResult(kind="applied", stats=stats_of(num_tokens)), 1.0)
    return dict(sink.emissions[0].values)


def stats_of(tokens: int) -> StepStats:
    ones = dict.fromkeys(("entropy", "clip_frac", "ratio_mean", "ratio_min", "ratio_max", "kl_k1", "kl_k2", "kl_k3", "effective_sample_size"), 1.0)
    return StepStats(tokens=tokens, loss=0.0, grad_norm=0.0, lr=0.0, packed_tokens=tokens, lag_mean=0.0, lag_max=0, **ones)  # type: ignore[arg-type]


def test_tokens_that_nobody_sampled_are_counted_where_they_are_trained() -> None:
    segments = (alternative(1, [31]), alternative(1, [21, 22]))
    notes = (expanded(0, 0, chosen=1, segments=segments, spans=[None, [1, 2], [0, 1], None]), failed(1, None))
    found = told(AlgorithmConfig(adv_estimator="copo"), notes)
    assert (found["learner/injected_tokens"], found["trained/env/injected_tokens"], found["learner/tokens"]) == (3, 3, 5 + 3 + 3)
    # Who is filtered out trains nothing, alternatives included; who trains none does not speak of them.
    assert told(AlgorithmConfig(adv_estimator="copo"), notes, {"r0": "over_long"})["learner/injected_tokens"] == 0
    assert "learner/injected_tokens" not in told(AlgorithmConfig(adv_estimator="rlvcr"), notes)


def test_steps_whose_levels_were_not_weighed_are_counted_by_reason() -> None:
    whole = expanded(0, 0, chosen=1)
    confidence = np.array([0.5, 0.5, np.nan, 0.5])
    three = {name: array[:3] for name, array in whole.arrays.items()}
    for notes, lacking in (
        ((whole, failed(0, 1), failed(1, None)), {"no_level_in_the_reply": 3}),
        ((replace(whole, arrays={**whole.arrays, "confidence": confidence}), failed(1, 0)), {"unscored": 1, "not_expanded": 2, "no_level_in_the_reply": 1}),
        ((replace(whole, arrays=three), expanded(0, 1, chosen=2), expanded(1, 0, chosen=4)), {"not_four_levels": 1, "not_expanded": 1}),
    ):
        for name in ("rlvcr", "copo"):
            found = told(AlgorithmConfig(adv_estimator=name), notes)
            assert found["thinking/env/steps"] == 4
            assert {key.rpartition("/")[2]: value for key, value in found.items() if key.startswith("thinking/env/lacking/")} == lacking


def test_two_annotations_of_one_step_are_refused() -> None:
    notes = (expanded(0, 0, chosen=1), expanded(0, 0, chosen=2), failed(1, None))
    with pytest.raises(InvalidError, match="there are two annotations 'thinking_levels' of step 0 of rollout r0"):
        credit([group(WIN, LOSE, annotations=notes)], PLAN, AlgorithmConfig(adv_estimator="rlvcr"))
    greedy = Annotation(run="run", rollout_uid="r0", name="greedy", values={"reward": 1.0})
    with pytest.raises(InvalidError, match="there are two annotations 'greedy' of rollout r0"):
        credit([group(WIN, LOSE, annotations=(greedy, replace(greedy, values={"reward": 0.0})))], PLAN, AlgorithmConfig(adv_estimator="remax"))


def test_an_annotation_that_does_not_fit_together_is_refused_with_its_place() -> None:
    config = AlgorithmConfig(adv_estimator="rlvcr")
    good = expanded(0, 0, chosen=1)
    broken = [
        (replace(good, values={"chosen": 9}), "says that level 9 was chosen, of levels 1, 2, 3, 4"),
        (replace(good, arrays={"level": np.array([1])}), "has no array 'confidence'"),
        (replace(good, arrays={**good.arrays, "cost": np.array([1.0])}), "has arrays of lengths 4, 4, 1"),
        (replace(good, values={"chosen": 1, "segments": [None, [0, 3], None, None]}), "gives level 2 segments 0 to 3 of 0"),
    ]
    for annotation, message in broken:
        with pytest.raises(InvalidError, match=f"annotation 'thinking_levels' of step 0 of rollout r0 {message}"):
            credit([group(WIN, LOSE, annotations=(annotation, failed(1, None)))], PLAN, config)


def test_the_columns_are_those_of_gigpo_on_its_own() -> None:
    config = AlgorithmConfig(adv_estimator="gigpo", gigpo=GigpoConfig(gamma=0.9, norm="mean_std_norm", combine="omega", omega=0.3, stats_over="steps"))
    found = credit([group(WIN, LOSE)], PLAN, config)
    alone = gigpo([0, 1, 0, 0], [0, 0, 1, 1], [0] * 4, ["hall", "shed", "hall", "cellar"], scores=[1, 1, 0, 0], **config.gigpo.options()).total
    assert by_token(found[0]) == pytest.approx([alone[0]] * 2 + [alone[1]] * 3)
    assert by_token(found[1]) == pytest.approx([alone[2]] + [alone[3]] * 2)
