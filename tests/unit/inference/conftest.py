from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.inference.engine.architecture import Architecture, read_architecture
from penstock.inference.engine.core import Engine, Served
from penstock.inference.engine.packing import check_tensors, pack
from penstock.inference.engine.requests import Choice, Request
from penstock.inference.engine.sampling import Sampling
from penstock.inference.limits import EngineLimits
from penstock.models import model_tensors, weights_digest
from penstock.testing.inference import random_model

torch.set_num_threads(1)


def byte_text(ids: Any) -> str:
    return bytes(id for id in ids if id < 256).decode("utf-8", "replace")


class Bench:
    """A Hugging Face model and engines with the same weights."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.model = random_model(name)
        self.model.config.save_pretrained(directory)
        self.architecture: Architecture = read_architecture(directory)

    def served(self, version: int = 0, model: Any = None) -> Served:
        tensors = model_tensors(model if model is not None else self.model)
        check_tensors(tensors, self.architecture)
        return Served(policy="policy", version=version, digest=weights_digest(tensors), weights=pack(tensors, self.architecture))

    def engine(self, **limits: int) -> Engine:
        return Engine(self.served(), EngineLimits(**limits), decode=byte_text)

    def other_model(self, seed: int) -> Any:
        return random_model(self.name, seed=seed)


@pytest.fixture(scope="session")
def bench_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    made: dict[str, Bench] = {}

    def bench(name: str) -> Bench:
        if name not in made:
            made[name] = Bench(name, tmp_path_factory.mktemp(name))
        return made[name]

    return bench


@pytest.fixture(scope="session")
def llama(bench_of: Callable[[str], Bench]) -> Bench:
    return bench_of("llama")


@pytest.fixture(scope="session")
def asked() -> Callable[..., Request]:
    """Makes a request from a prompt; `seed`, `temperature` and the like go to its sampling."""

    def request(
        prompt: Any, *, id: str = "r", max_tokens: int = 16, num_choices: int = 1, stop_ids: Any = (), stop_texts: Any = (), **sampling: Any
    ) -> Request:
        return Request(
            id=id,
            prompt=np.asarray(prompt, np.int32),
            max_tokens=max_tokens,
            num_choices=num_choices,
            sampling=Sampling(**sampling),
            stop_ids=frozenset(stop_ids),
            stop_texts=tuple(stop_texts),
        )

    return request


@pytest.fixture(scope="session")
def replies() -> Callable[..., dict[tuple[str, int], Choice]]:
    """Runs an engine until it has nothing to do; replies by request id and index."""

    def run(engine: Engine, *requests: Request) -> dict[tuple[str, int], Choice]:
        for request in requests:
            engine.submit(request)
        ended: dict[tuple[str, int], Choice] = {}
        while engine.has_work:
            for choice in engine.step():
                assert (choice.request.id, choice.index) not in ended, "a reply ends once"
                if choice.finish is not None:
                    ended[choice.request.id, choice.index] = choice
        return ended

    return run


@pytest.fixture(scope="session")
def reference_logprobs() -> Callable[..., torch.Tensor]:
    """Logprobs of a reply by one whole forward pass of the Hugging Face model, in the slow obvious way."""

    def logprobs(model: Any, prompt: Any, reply: list[int], temperature: float = 1.0) -> torch.Tensor:
        ids = torch.tensor([*[int(id) for id in prompt], *reply])[None]
        with torch.no_grad():
            rows = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature, dim=-1)
        return rows.gather(1, torch.tensor(reply)[:, None])[:, 0]

    return logprobs
