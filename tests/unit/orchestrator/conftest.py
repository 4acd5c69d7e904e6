from pathlib import Path

import pytest

RUN = """
run: {name: tiny, updates: 3, dir: DIR/runs}
model: {path: DIR/model}
envs: {sort: {kind: sort}}
actor: {group_size: 4, max_tokens: 8}
batch: {groups_per_update: 2}
"""


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    """A config whose model directory exists as far as a config can tell."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("DIR", str(tmp_path)))
    return path
