"""The reference page says what the dataclasses say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.config import page, reference
from penstock.orchestrator.config import RunConfig
from penstock.types import CutRequest, Laws


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One worker."""

    replicas: int = 1
    """How many of it;
    on one machine."""


@dataclass(frozen=True, kw_only=True)
class Base:
    name: str
    """What it is called | and listed as."""


@dataclass(frozen=True, kw_only=True)
class Config(Base):
    """All of it."""

    envs: Mapping[str, Worker] = field(default_factory=dict)
    judge: Worker | None = None
    """Who grades."""


def test_every_key_has_its_type_default_and_meaning() -> None:
    assert reference(Config) == (
        "## Config\n\nAll of it.\n\n"
        "| key | type | default | meaning |\n"
        "|---|---|---|---|\n"
        "| `name` | text | **required** | What it is called \\| and listed as. |\n"
        "| `envs` | keys with a section | `{}` |  |\n"
        "| `envs.<name>.replicas` | an integer | `1` | How many of it; on one machine. |\n"
        "| `judge` | a section or null | `null` | Who grades. |\n"
        "| `judge.replicas` | an integer | `1` | How many of it; on one machine. |\n"
    )


def test_the_page_is_what_the_sections_say() -> None:
    written = (Path(__file__).parents[3] / "docs" / "config.md").read_text()
    assert written == page([RunConfig]), "run: python -m penstock.config penstock.orchestrator.config:RunConfig > docs/config.md"


def test_the_page_can_be_printed() -> None:
    words = ["penstock.types:Laws", "penstock.types:CutRequest"]
    printed = subprocess.run([sys.executable, "-m", "penstock.config", *words], capture_output=True, text=True, check=True)
    assert printed.stdout == page([Laws, CutRequest])
    refused = subprocess.run([sys.executable, "-m", "penstock.config", "penstock.types"], capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "usage" in refused.stderr
