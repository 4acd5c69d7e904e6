"""One episode: an agent and an environment take turns until one of them, or a limit, ends it. What fails becomes a status, never a reward."""

from __future__ import annotations

import logging

from penstock.envs import Env
from penstock.rollout.play import Failed, Play, failed_rollout
from penstock.rollout.setting import Setting, Ticket
from penstock.types import Problem, Rollout

log = logging.getLogger(__name__)

__all__ = ["Setting", "Ticket", "failed_rollout", "finished", "run_episode"]


async def run_episode(ticket: Ticket, problem: Problem, env: Env, setting: Setting) -> Rollout:
    """Play one episode and give the rollout of it, whatever happens.

    `metadata` says how it ended (`end`: `env`, `terminate`, `regex`, the limit's name, or `critical_error`), what failed (`error`), how many `steps` it
    had, and how many `seconds` it waited for whom. Time is bounded by `episode_seconds` plus one reply and one step. Cancelling it is the only way to get
    nothing.
    """
    return await finished(Play(ticket, problem, env, setting))


async def finished(play: Play, *, is_scored: bool = True) -> Rollout:
    """Play to the end and give the rollout with its rewards (unless nobody is there to give any), or with what failed."""
    try:
        status = await play.play()
        judgement = await play.rewards(play.rollout(status)) if is_scored else None
    except Failed as failed:
        return play.rollout(failed.status, failed=failed)
    except Exception as error:  # nobody thought of it: it costs this episode, and not all those beside it
        log.exception("%s failed in a way of its own", play.ticket.uid)
        return failed_rollout(play.ticket, play.problem.id, "unforeseen", f"{type(error).__name__}: {error}")
    finally:
        await play.close()
    return play.rollout(status, judgement=judgement)
