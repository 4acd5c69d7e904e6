"""Every metric that penstock emits: its name, what it means, how values of it are reduced. The names are a contract; `docs/metrics.md` is made from this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from penstock.errors import InvariantError

Reduction = Literal["mean", "sum", "max", "min", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One line of the catalogue. A part of the name in angle brackets stands for any text without a slash."""

    pattern: str
    reduction: Reduction
    meaning: str


_SECTIONS: dict[str, str] = {
    "What is in the buffer, per environment, when a batch is made by a cut or a lease": """
        replays/<env>/rollouts_in_buffer    last  Usable rollouts of groups that are ready, those that this batch takes included.
        replays/<env>/tokens_in_buffer      last  Tokens of those groups after prefix sharing.
        replays/<env>/frac_on_policy        last  Share of buffered sampled tokens that the newest version sampled.
        replays/<env>/new_rollouts          sum   Usable rollouts accepted since the last batch.
        replays/<env>/new_tokens            sum   Their tokens, prompts included.
        replays/<env>/new_generated_tokens  sum   Their sampled tokens.
        replays/<env>/reward/mean           mean  Reward of the new rollouts.
        replays/<env>/reward/std            last  Standard deviation of those rewards (ddof 0).
        replays/<env>/frac_truncated        mean  Share of the new rollouts that a limit cut off.
        replays/<env>/rewards/<name>/mean   mean  One named part of the reward of the new rollouts.
        replays/<env>/rewards/<name>/std    last  Standard deviation of that part (ddof 0).
        replays/<env>/frac_used_in_batch    last  Share of the pool's rollouts that this batch takes.
    """,
    "What is in a batch, per environment": """
        batches/<env>/rollouts_used         sum   Rollouts in the batch.
        batches/<env>/tokens_used           sum   Their tokens after prefix sharing.
        batches/<env>/frac_used             last  Share of the batch's tokens.
        batches/<env>/length                mean  Sampled tokens of a rollout in the batch.
        batches/<env>/longest               mean  Sampled tokens of the longest member of a group in the batch.
    """,
    "Learning": """
        reward/<env>/mean                   mean  Reward of the trained rollouts.
        eval/<env>/greedy                   mean  Held-out reward at temperature 0.
        eval/<env>/avg@<k>                  mean  Held-out reward, mean over k samples of each problem.
        eval/<env>/pass@<k>                 mean  Share of held-out problems that at least one of k samples solves.
        learner/loss                        mean  Loss of the update.
        learner/entropy                     mean  Entropy of the policy at the trained tokens, in nats.
        learner/grad_norm                   mean  Norm of the gradient before clipping.
        learner/clip_frac                   mean  Share of trained tokens that a bound of the loss has touched: clipped, truncated or masked.
        learner/clipped/<bound>             mean  The same by one bound: low, high, or dual (the second bound for negative advantages).
        learner/ratio_mean                  mean  Probability of a trained token under the weights before the update over the sampler's.
        learner/ratio_min                   min   The smallest such ratio.
        learner/ratio_max                   max   The largest such ratio.
        learner/kl_k1                       mean  Estimate of KL(sampler, learner): minus the log ratio.
        learner/kl_k2                       mean  Estimate of the same: half the squared log ratio.
        learner/kl_k3                       mean  Estimate of the same: ratio - 1 - log ratio.
        learner/kl_reference                mean  Estimate (k3) of KL(learner, reference), where there is a reference.
        learner/effective_sample_size       mean  (sum of ratios)^2 / (tokens x sum of squared ratios): 1 on policy, towards 0 when few tokens weigh all.
        learner/tokens_per_second           mean  Trained tokens per second of the update.
        learner/tokens                      sum   Tokens with loss.
        learner/injected_tokens             sum   Those of them that nobody sampled: scored alternatives, under an estimator that trains them.
        learner/learning_rate               last  Step size of the optimizer.
        learner/skipped                     sum   Updates that were skipped.
        learner/version                     last  Newest recorded version.
        learner/term                        last  Number of the learner's life.
        learner/replaying                   last  Updates that a new life is about to execute again; 0 when it has.
        learner/replay_equal                last  1 if a replay gave the recorded weights bit for bit, 0 if the run went on from a fork.
    """,
    "Trained tokens, per environment": """
        trained/<env>/tokens                sum   Tokens with loss.
        trained/<env>/injected_tokens       sum   See `learner/injected_tokens`.
        trained/<env>/entropy               mean  As `learner/entropy`, and so on with the other names.
        trained/<env>/clip_frac             mean  See `learner/clip_frac`.
        trained/<env>/clipped/<bound>       mean  See `learner/clipped/<bound>`.
        trained/<env>/ratio_mean            mean  See `learner/ratio_mean`.
        trained/<env>/ratio_min             min   See `learner/ratio_min`.
        trained/<env>/ratio_max             max   See `learner/ratio_max`.
        trained/<env>/kl_k1                 mean  See `learner/kl_k1`.
        trained/<env>/kl_k2                 mean  See `learner/kl_k2`.
        trained/<env>/kl_k3                 mean  See `learner/kl_k3`.
        trained/<env>/kl_reference          mean  See `learner/kl_reference`.
        trained/<env>/effective_sample_size mean  See `learner/effective_sample_size`.
        filtered/<env>/<filter>/rollouts    sum   Rollouts of planned groups that a filter took the loss from, in the learner.
        filtered/<env>/<filter>/length      mean  Their sampled tokens; `batches/<env>/length` has those of all.
        thinking/<env>/steps                sum   Steps of trained rollouts, under an estimator that weighs thinking levels.
        thinking/<env>/lacking/<reason>     sum   Those that keep their episode's credit alone: not_expanded, unscored, not_four_levels, or why it failed.
    """,
    "Freshness and agreement": """
        off_policy/lag/mean                 mean  Newest published version minus that of a trained token.
        off_policy/lag/max                  max   The largest such lag.
        mismatch/mean                       mean  Absolute difference of a token's logprob between sampler and learner, under the version that sampled it.
        mismatch/p999                       max   Its 99.9th percentile.
        mismatch/max                        max   Its maximum.
        mismatch/tokens                     sum   Tokens that were compared.
        mismatch/histogram/<bound>          sum   Compared tokens whose difference is at most this bound and above the next smaller one, twelve a decade.
        mismatch/mixed_kv                   sum   Tokens left out because the sampler's cache held older weights.
    """,
    "Time": """
        time/wait_for_batch                 sum   Seconds that the learner waited for a cut.
        time/wait_for_weights               sum   Seconds from the end of an update until all servers sample from its weights.
        time/<phase>                        sum   Seconds in another phase: fetch, credit, pack, step, record, publish, checkpoint, replay, eval.
    """,
    "The ledger": """
        ledger/<state>                      last  Groups of all environments in a state.
        ledger/imbalance                    last  Groups and members that the ledger cannot account for. Always 0.
        ledger/<env>/groups/<state>         last  Groups of an environment in a state.
        ledger/<env>/dropped/<reason>       last  Groups of an environment that were dropped for a reason.
        ledger/<env>/dropped_longest/<reason> last  Mean over such groups of the sampled tokens of the longest member; compare `batches/<env>/longest`.
        ledger/<env>/members/<state>        last  Members of an environment in a state.
        ledger/<env>/failed/<reason>        last  Members of an environment that failed for a reason.
        ledger/<env>/credit_tokens          last  Tokens that an environment may have under way.
        ledger/<env>/held_tokens            last  Tokens that it has under way.
        ledger/newest_version               last  Newest recorded version.
    """,
    "Servers and processes": """
        inference/running                   last  Requests that are being decoded.
        inference/waiting                   last  Requests that wait for a place.
        inference/kv_tokens                 last  Tokens in the cache.
        inference/tokens_sampled            last  Tokens sampled since the start.
        inference/tokens_per_second         mean  Tokens sampled per second.
        inference/version                   last  Version that is served.
        rollout/<env>/in_flight             last  Episodes under way.
        rollout/<env>/memory_mb             last  Memory of a worker's process, with what its environments have started.
        rollout/<env>/episodes              sum   Episodes that ended.
        rollout/<env>/infra_errors          sum   Episodes that ended in an infrastructure failure.
        rollout/<env>/errors/<kind>         sum   Episodes that failed, by what failed.
        rollout/<env>/written/<fate>        sum   Rollouts by what became of them at the buffer: accepted, stale, late, refused.
        rollout/<env>/reward                mean  Reward of usable episodes.
        rollout/<env>/turns                 mean  Replies in an episode.
        rollout/<env>/tokens                sum   Tokens that were sampled for episodes.
        rollout/<env>/truncated             sum   Episodes that a limit cut off.
        rollout/<env>/wait/<cause>          sum   Seconds waited, added over episodes: reply, place (no server had room), env, reward; slot, credit, write.
        gateway/open                        last  Sessions that are open.
        gateway/sessions                    last  Sessions opened since the start.
        gateway/turns                       last  Requests answered since the start.
        gateway/tokens_sampled              last  Tokens sampled for sessions since the start.
        gateway/redelivered                 last  Answers that were given again to a client that had not got them.
        gateway/clients_gone                last  Requests whose client left before the answer.
        gateway/ended/<status>              last  Sessions that ended since the start, by status or by what failed.
        gateway/written/<fate>              last  Rollouts of sessions by what became of them at the buffer.
        server/<part>/requests              last  Requests answered since the start.
        server/<part>/refused               last  Requests answered with a client's fault since the start.
        process/<part>/restarts             last  Times that a part was started again.
    """,
}


def _read(section: str) -> tuple[Metric, ...]:
    lines = (line.split(maxsplit=2) for line in section.strip().splitlines())
    return tuple(Metric(pattern=pattern, reduction=reduction, meaning=meaning) for pattern, reduction, meaning in lines)  # type: ignore[arg-type]


_BY_SECTION: dict[str, tuple[Metric, ...]] = {title: _read(section) for title, section in _SECTIONS.items()}

METRICS: Mapping[str, Metric] = {metric.pattern: metric for metrics in _BY_SECTION.values() for metric in metrics}
"""The catalogue, by name pattern."""

_PLACEHOLDER = re.compile(r"<(\w+)>")


@cache
def _matchers() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    """Fewest placeholders first, so that a name of its own goes before a pattern that would fit too."""
    ordered = sorted(METRICS.values(), key=lambda metric: metric.pattern.count("<"))
    return tuple((re.compile(_PLACEHOLDER.sub(r"(?P<\1>[^/]+)", re.sub(r"([@.])", r"\\\1", metric.pattern))), metric) for metric in ordered)


@cache
def find(name: str) -> tuple[Metric, Mapping[str, str]]:
    """The line of the catalogue that a name falls under, and what its placeholders stand for. Raises `InvariantError` if there is none.

    >>> metric, labels = find("eval/sort/pass@4")
    >>> metric.pattern, labels
    ('eval/<env>/pass@<k>', {'env': 'sort', 'k': '4'})
    """
    for matcher, metric in _matchers():
        if found := matcher.fullmatch(name):
            return metric, found.groupdict()
    raise InvariantError(f"metric {name!r} is not in the catalogue: add it to penstock.metrics with its meaning, or use a name from docs/metrics.md")


def named(pattern: str, **labels: str) -> str:
    """The name that a pattern of the catalogue gives for some labels. Slashes in them are written `%2F`.

    >>> named("replays/<env>/reward/mean", env="games/chess")
    'replays/games%2Fchess/reward/mean'
    """
    if pattern not in METRICS or set(_PLACEHOLDER.findall(pattern)) != labels.keys():
        raise InvariantError(f"metric {pattern!r} with labels {sorted(labels)} is not in the catalogue")
    return _PLACEHOLDER.sub(lambda found: labels[found[1]].replace("/", "%2F"), pattern)


def reference() -> str:
    """The catalogue as Markdown: the text of `docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Made from the catalogue by `python -m penstock.metrics`; do not edit by hand.",
        "",
        "Each line of `metrics.jsonl` is an object with `step` (the update), `time` (seconds since 1970) and one entry for each metric, by name. A part of a",
        "name in angle brackets stands for any text; slashes in it are written `%2F`. *Reduced by* says how several values of one emission become one number.",
    ]
    for title, metrics in _BY_SECTION.items():
        lines += ["", f"## {title}", "", "| name | reduced by | meaning |", "|---|---|---|"]
        lines += [f"| `{metric.pattern}` | {metric.reduction} | {metric.meaning} |" for metric in metrics]
    return "\n".join(lines) + "\n"
