"""The segment tree of an episode: recorded once by `Recorder`, read through views.

- `Recorder` and `Span` write, `checked_tokens` for what is written often; `check_trace` checks a trace that came from outside.
- `samples`, `injected_tokens`: trainable paths.
- `steps`, `step_marks`: what the agent did, step by step.
- `facts`: what the ledger keeps about a rollout's tokens.
- `prefix_tree`: samples of a group with their common tokens merged.
"""

from penstock.trace._runs import Tokens
from penstock.trace._taken import checked_tokens
from penstock.trace.checks import check_trace
from penstock.trace.fact_view import RolloutFacts, facts
from penstock.trace.paths import step_marks
from penstock.trace.recorder import Recorder, Span
from penstock.trace.sample_view import Advantages, injected_tokens, samples
from penstock.trace.step_view import steps
from penstock.trace.tree import Node, PrefixTree, prefix_tree

__all__ = [
    "Advantages",
    "Node",
    "PrefixTree",
    "Recorder",
    "RolloutFacts",
    "Span",
    "Tokens",
    "check_trace",
    "checked_tokens",
    "facts",
    "injected_tokens",
    "prefix_tree",
    "samples",
    "step_marks",
    "steps",
]
