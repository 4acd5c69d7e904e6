"""Rewards that follow from a rule."""

from .._folders import extended

__path__ = extended(__path__, "reward_utils")
