"""The commands on the page about the buffer's API work as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from penstock.process.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "buffer-api.md"


def test_the_commands_of_the_page_lead_to_a_first_batch(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = "set -e\ntrap 'kill $!' EXIT\n" + commands.replace("8889", str(free_ports(1)[0])).replace("penstock ", f"{sys.executable} -m penstock ")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert '"stale":false' in done.stdout
    assert "lease batch-1 was settled" in done.stdout
    assert "imbalance 0: everything is accounted for" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [(row["uid"], row["reward"], row["state"]) for row in rows] == [("math/0/0:0", 1.0, "spent"), ("math/0/0:1", 0.0, "spent")]
