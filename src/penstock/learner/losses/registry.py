"""Losses by name: the built-in ones, those that installed packages offer, and `module:function`."""

from __future__ import annotations

from typing import cast

from penstock.config.plugins import named_part
from penstock.errors import ConfigError
from penstock.learner.config import LOSS_ENTRY_POINTS
from penstock.learner.losses.cispo import cispo
from penstock.learner.losses.gspo import gspo
from penstock.learner.losses.icepop import icepop
from penstock.learner.losses.inputs import Loss
from penstock.learner.losses.ppo_clip import ppo_clip
from penstock.learner.losses.reinforce_tis import reinforce_tis

LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "gspo": gspo, "cispo": cispo, "reinforce_tis": reinforce_tis, "icepop": icepop}


def loss_named(name: str) -> Loss:
    """The loss of that name: built-in, or an entry point of the group `penstock.losses`, or `module:function`.

    Raises `ConfigError` that suggests the nearest name, or says what cannot be imported.
    """
    found = named_part(name, LOSSES, LOSS_ENTRY_POINTS, key="algorithm.loss.name")
    if not callable(found):
        raise ConfigError(f"algorithm.loss.name {name!r} is {found!r}, which cannot be called")
    return cast(Loss, found)
