"""Advantages: pure functions from rewards and group labels to credit, one small file per estimator.

Flat columns of N rows in, N float64 out (or an object that holds them as `total`); interleaved groups, any hashable labels, no loop over rows, no torch.
Used by the credit step of the loop, and on its own by anyone who has arrays. `declared` says what an estimator needs. A new estimator is one file, one
line in `registry.ESTIMATORS` and a slow reference in the tests; a user's own is an entry point or `module:function`. docs/algorithms.md compares them.
"""

from penstock.advantages._thinking import NUM_LEVELS
from penstock.advantages.copo import copo
from penstock.advantages.declaration import COLUMNS, Declaration, Estimator, RowKind, declaration, declares
from penstock.advantages.dr_grpo import dr_grpo
from penstock.advantages.gae import GaeAdvantages, gae
from penstock.advantages.gigpo import GigpoAdvantages, gigpo
from penstock.advantages.grpo import grpo
from penstock.advantages.maxrl import maxrl
from penstock.advantages.opo import opo
from penstock.advantages.pass_at_k import pass_at_k_rewards
from penstock.advantages.registry import ESTIMATORS, declared, estimator
from penstock.advantages.reinforce_pp import reinforce_pp
from penstock.advantages.remax import remax
from penstock.advantages.returns import discounted_returns
from penstock.advantages.rloo import rloo
from penstock.advantages.rlvcr import rlvcr, thinking_advantages
from penstock.advantages.slime_normalize import slime_normalize
from penstock.advantages.state_hashing import hash_concatenated_content, hash_last_messages, hash_structured
from penstock.advantages.step_data import system_apply_gigpo_to_batch_steps

__all__ = [
    "COLUMNS",
    "ESTIMATORS",
    "NUM_LEVELS",
    "Declaration",
    "Estimator",
    "GaeAdvantages",
    "GigpoAdvantages",
    "RowKind",
    "copo",
    "declaration",
    "declared",
    "declares",
    "discounted_returns",
    "dr_grpo",
    "estimator",
    "gae",
    "gigpo",
    "grpo",
    "hash_concatenated_content",
    "hash_last_messages",
    "hash_structured",
    "maxrl",
    "opo",
    "pass_at_k_rewards",
    "reinforce_pp",
    "remax",
    "rloo",
    "rlvcr",
    "slime_normalize",
    "system_apply_gigpo_to_batch_steps",
    "thinking_advantages",
]
