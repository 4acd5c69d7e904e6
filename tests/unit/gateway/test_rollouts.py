from __future__ import annotations

import pytest

from penstock.errors import InvalidError
from penstock.gateway.events import Rewarded
from penstock.gateway.rollouts import Rewards


def test_rewards_of_turns_that_add_up_to_more_than_a_number_can_be_are_refused() -> None:
    rewards = Rewards()
    for reply in (1, 3):
        rewards.apply(Rewarded(rewards={}, reply=reply, own=1e308))
    with pytest.raises(InvalidError, match="add up to more than a number"):
        rewards.named({1, 3})
    assert rewards.named({1}) == {"turns": 1e308}
