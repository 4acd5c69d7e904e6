"""Supervised warm-up: teaches a new model to answer at all, so that reinforcement has something to reinforce."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.errors import ConfigError
from penstock.models.scores import token_scores
from penstock.models.tree import tree_hidden, tree_layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A prompt and a reply to imitate, as token ids, and what follows if it has several turns. Loss lies on the replies."""

    prompt: tuple[int, ...]
    """At least one token: the first token of the reply is predicted from it."""
    reply: tuple[int, ...]
    later_turns: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """(what is said next, the reply to it), each pair after the one before."""

    @property
    def turns(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """All (what is said, the reply to it)."""
        return ((self.prompt, self.reply), *self.later_turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpConfig:
    """How to imitate."""

    steps: int = 400
    batch_size: int = 64
    """Demonstrations in one step."""
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.95)
    lr_warmup_steps: int = 50
    """Steps over which the learning rate rises linearly; constant afterwards."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.lr_warmup_steps < 1:
            raise ConfigError(f"warm-up needs 1 or more steps, demonstrations in a batch and lr_warmup_steps, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpResult:
    """How it went."""

    losses: tuple[float, ...]
    """Mean negative logprob of the reply tokens, for each step."""


def warm_up(
    model: PreTrainedModel,
    demonstrations: Iterable[Demonstration],
    config: WarmUpConfig,
    *,
    console: Console | None = None,
    enough: Callable[[int], bool] = lambda steps: False,
) -> WarmUpResult:
    """Train `model` (from `load_model`) in place by AdamW until `config.steps` are done, `demonstrations` run out or `enough(steps done)` is true.

    Draws a progress bar on `console` if one is given. No randomness but that of `demonstrations`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=config.betas, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / config.lr_warmup_steps))
    losses: list[float] = []
    with _bar(console) as bar:
        task = bar.add_task("warm-up", total=config.steps, loss=float("nan"))
        for batch in islice(_batches(demonstrations, config.batch_size), config.steps):
            loss = _loss(model, batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            bar.update(task, advance=1, loss=losses[-1])
            if enough(len(losses)):
                break
    return WarmUpResult(losses=tuple(losses))


def _loss(model: PreTrainedModel, batch: list[Demonstration]) -> torch.Tensor:
    """Mean negative logprob of all reply tokens, the demonstrations laid one after another."""
    lengths = [sum(len(said) + len(reply) for said, reply in demonstration.turns) for demonstration in batch]
    turns = [turn for demonstration in batch for turn in demonstration.turns]
    ids_T = torch.tensor([token for said, reply in turns for token in (*said, *reply)])
    positions_T = torch.tensor([position for length in lengths for position in range(length)])
    is_target_T = torch.tensor([is_reply for turn in turns for is_reply, ids in zip((False, True), turn, strict=True) for _ in ids])
    targets = is_target_T.nonzero()[:, 0]
    hidden_TD = tree_hidden(model, ids_T, positions_T, tree_layout(lengths, [-1] * len(lengths)))
    return -token_scores(model, hidden_TD[targets - 1], ids_T[targets]).logprobs_T.mean()


def _batches(demonstrations: Iterable[Demonstration], size: int) -> Iterator[list[Demonstration]]:
    source = iter(demonstrations)
    while len(batch := list(islice(source, size))) == size:
        yield batch


def _bar(console: Console | None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.3f}"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=console is None)
