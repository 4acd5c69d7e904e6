"""What is minimised: functions from the tokens with loss to one loss per token, one file each. `denominators` says how they are averaged.

    ppo_clip        clipped ratios, with an optional second bound for bad tokens that became likelier
    gspo            the same with one ratio for a whole sample
    cispo           clipped ratios as constant weights: every token keeps its gradient
    reinforce_tis   truncated ratios as constant weights, by token or by sample
    icepop          ratios as constant weights, 0 outside of two bounds

`penalties` adds what every loss may have: a KL to a reference, and a bonus for entropy.
"""

from penstock.learner.losses.cispo import cispo
from penstock.learner.losses.gspo import gspo
from penstock.learner.losses.icepop import icepop
from penstock.learner.losses.inputs import Loss, LossInputs, TokenLosses
from penstock.learner.losses.penalties import kl_estimates, penalties
from penstock.learner.losses.ppo_clip import ppo_clip
from penstock.learner.losses.registry import LOSSES, loss_named
from penstock.learner.losses.reinforce_tis import reinforce_tis

__all__ = [
    "LOSSES",
    "Loss",
    "LossInputs",
    "TokenLosses",
    "cispo",
    "gspo",
    "icepop",
    "kl_estimates",
    "loss_named",
    "penalties",
    "ppo_clip",
    "reinforce_tis",
]
