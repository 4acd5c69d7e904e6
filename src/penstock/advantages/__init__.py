"""Advantages: pure functions from rewards and group labels to credit, one small file per estimator.

Flat columns of N rows in, N float64 out; interleaved groups, any hashable labels, no loop over rows, no torch. Used by the credit step of the
loop, and on its own by anyone who has arrays. A new estimator is one file, one line in `registry.ESTIMATORS` and a slow reference in the tests.
"""

from penstock.advantages.grpo import grpo
from penstock.advantages.registry import ESTIMATORS, Estimator, estimator
from penstock.advantages.rloo import rloo

__all__ = ["ESTIMATORS", "Estimator", "estimator", "grpo", "rloo"]
