"""Small random models of every family, and real inference servers on loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "llama-gqa-bias-llama3": {
        "num_key_value_heads": 2,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
    "llama-linear": {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
}
"""What the tested models differ in, by name; the part before the first dash is the family."""


def random_model(name: str, *, seed: int = 0, max_positions: int = 1024) -> Any:
    """A Hugging Face model of `FAMILIES[name]`, small, with weights big enough that every part of the forward pass matters."""
    import torch
    import transformers

    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[name.partition("-")[0]]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=max_positions,
        eos_token_id=257,
        **FAMILIES[name],
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.mul_(4.0)
    return model


def write_model(directory: Path, model: Any) -> None:
    """Make `directory` a model directory with a byte-level tokenizer."""
    from penstock.chat import write_byte_tokenizer
    from penstock.models import model_tensors, write_weights

    directory.mkdir()
    model.config.save_pretrained(directory)
    write_weights(directory / "model.safetensors", model_tensors(model))
    write_byte_tokenizer(directory, "chatml")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server process."""

    url: str
    """Without `/v1`."""
    process: subprocess.Popen[bytes]
    log: Path


@contextlib.contextmanager
def running_server(directory: Path, model: Path, *words: str, seconds: float = 60.0) -> Iterator[RunningServer]:
    """A real server for `model` on a free port of loopback; port file and log lie in `directory`. Ended with the block."""
    port_file, log = directory / "port", directory / "server.log"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "penstock", "serve", "--model", str(model), "--port", "0", "--port-file", str(port_file), *words]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        deadline = time.monotonic() + seconds
        while not port_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start: {log.read_text()}")
            time.sleep(0.02)
        url = f"http://127.0.0.1:{port_file.read_text()}"
        # The port is open before the server answers: the first request waits for it.
        with urlopen(f"{url}/livez", timeout=seconds):
            yield RunningServer(url=url, process=process, log=log)
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
