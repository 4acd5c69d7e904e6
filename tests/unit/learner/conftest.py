from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from penstock.models import load_model, model_tensors, write_weights
from penstock.types import RlExample, Sample

torch.set_num_threads(1)

VOCABULARY = 40


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 9k parameters with weights large enough that everything matters."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    directory = tmp_path_factory.mktemp("model")
    config.save_pretrained(directory)
    write_weights(directory / "model.safetensors", model_tensors(LlamaForCausalLM(config)))
    return directory


@pytest.fixture
def model(model_directory: Path) -> PreTrainedModel:
    return load_model(model_directory)


@pytest.fixture
def exact_model(model_directory: Path) -> PreTrainedModel:
    """In fp64 throughout. Hugging Face's norms go through fp32, which hides everything below 1e-7; these do not."""

    def forward(norm: torch.nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        return norm.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)

    loaded = load_model(model_directory, dtype=torch.float64)
    for module in loaded.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = MethodType(forward, module)
    return loaded


def make_sample(group: int, member: int, prompt: Sequence[int], reply: Sequence[int], *, advantage: float = 1.0, version: int = 0) -> Sample:
    num_tokens = len(prompt) + len(reply)
    mask = np.arange(num_tokens) >= len(prompt)
    return Sample(
        run="run",
        environment="env",
        group_id=f"source/0/{group}",
        rollout_uid=f"{group}-{member}",
        path=(0, 1),
        lengths=(len(prompt), len(reply)),
        ids=np.array([*prompt, *reply], dtype=np.int32),
        loss_mask=mask,
        logprobs=np.zeros(num_tokens, dtype=np.float32),
        versions=np.where(mask, version, -1).astype(np.int32),
        advantages=np.where(mask, advantage, 0).astype(np.float32),
        mixed_kv=np.zeros(num_tokens, dtype=np.bool_),
    )


@pytest.fixture
def samples() -> list[Sample]:
    """Three groups of three replies with prompts and replies of several lengths."""
    random = np.random.default_rng(0)
    made = []
    for group in range(3):
        prompt = random.integers(0, VOCABULARY, 4 + 3 * group).tolist()
        for member in range(3):
            # The first token says which member it is, so that replies share the prompt and nothing more.
            reply = [member, *random.integers(0, VOCABULARY, int(random.integers(0, 9))).tolist()]
            made.append(make_sample(group, member, prompt, reply, advantage=float(random.normal())))
    return made


@pytest.fixture
def one_sample_a_row() -> Callable[[Sequence[Sample]], RlExample]:
    """The slow and obvious packing: nothing is shared, every sample has a row."""

    def build(samples: Sequence[Sample]) -> RlExample:
        width = max(len(sample.ids) for sample in samples)
        shape = (len(samples), width)
        example = RlExample(
            input_ids=np.zeros(shape, np.int32),
            loss_mask=np.zeros(shape, np.bool_),
            segment_ids=np.zeros(shape, np.int32),
            position_ids=np.zeros(shape, np.int32),
            predecessors=np.full(shape, -1, np.int32),
            advantages=np.zeros(shape, np.float32),
            policy_logprobs=np.zeros(shape, np.float32),
            versions=np.full(shape, -1, np.int32),
            mixed_kv=np.zeros(shape, np.bool_),
            sample_ids=np.full(shape, -1, np.int32),
            parents=np.zeros((len(samples), 2), np.int32),
            num_samples=len(samples),
        )
        for row, sample in enumerate(samples):
            for column in range(len(sample.ids)):
                example.input_ids[row, column] = sample.ids[column]
                example.loss_mask[row, column] = sample.loss_mask[column]
                example.segment_ids[row, column] = 1
                example.position_ids[row, column] = column
                example.predecessors[row, column] = column - 1
                example.advantages[row, column] = sample.advantages[column]
                example.policy_logprobs[row, column] = sample.logprobs[column]
                example.versions[row, column] = sample.versions[column]
                example.mixed_kv[row, column] = sample.mixed_kv[column]
                example.sample_ids[row, column] = row if sample.loss_mask[column] else -1
        return example

    return build


def plain_logprobs(model: PreTrainedModel, sample: Sample, *, temperature: float = 1.0) -> torch.Tensor:
    """Logprob of every token but the first, by a plain pass over the sample alone."""
    ids = torch.from_numpy(sample.ids.astype(np.int64))
    implementation = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    logits = model(ids[None]).logits[0, :-1] / temperature
    model.set_attn_implementation(implementation)
    return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]


@pytest.fixture
def sampled_by() -> Callable[..., list[Sample]]:
    """Gives samples the logprobs that a model gives them, plus `noise` times a normal deviate."""

    def give(model: PreTrainedModel, samples: Sequence[Sample], *, noise: float = 0.0, version: int = 0, temperature: float = 1.0) -> list[Sample]:
        random = np.random.default_rng(1)
        given = []
        for sample in samples:
            with torch.no_grad():
                logprobs = np.concatenate([[0.0], plain_logprobs(model, sample, temperature=temperature).double().numpy()])
            logprobs += noise * random.normal(size=len(logprobs))
            versions = np.where(sample.loss_mask, version, -1).astype(np.int32)
            given.append(replace(sample, logprobs=np.where(sample.loss_mask, logprobs, 0).astype(np.float32), versions=versions))
        return given

    return give


@pytest.fixture
def plain_logprobs_of() -> Callable[..., torch.Tensor]:
    return plain_logprobs
