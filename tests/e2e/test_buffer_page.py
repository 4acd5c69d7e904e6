"""The commands on the pages about the buffer work as they stand there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from penstock.process.ports import free_ports

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """What stands between fences on a page."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def run(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Type the commands into a shell; the port is another, since the usual one may be taken."""
    port = str(free_ports(1)[0])
    started = commands.replace("--port 8889", "").replace("penstock buffer", f"penstock buffer --port {port}")
    script = "set -e\ntrap 'kill $!' EXIT\n" + started.replace("8889", port).replace("penstock ", f"{sys.executable} -m penstock ")
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_a_stranger_gets_a_first_batch_with_curl_alone_and_the_answer_that_the_page_shows(tmp_path: Path) -> None:
    done = run("\n".join(blocks("buffer.md", "sh")), tmp_path)
    (shown,) = blocks("buffer.md", "json")
    # Apart from spaces, which are the page's own, and what it leaves out.
    parts = [re.escape(re.sub(r"\s", "", part)) for part in shown.split("...")]
    assert re.search("[^{}]*".join(parts), re.sub(r"\s", "", done.stdout)), done.stdout
    assert "group sum-7/0 is spent" in done.stdout
    assert "imbalance 0: everything is accounted for" in done.stdout
    assert '"raw_reward"' not in done.stdout.partition("everything is accounted for")[2]
    assert [line for line in done.stdout.splitlines() if '"lease":"step-1"' in line and '"state":"settled"' in line]


def test_the_commands_of_the_page_lead_to_a_first_batch(tmp_path: Path) -> None:
    (commands,) = blocks("buffer-api.md", "sh")
    done = run(commands, tmp_path)
    assert '"stale":false' in done.stdout
    assert "lease batch-1 was settled" in done.stdout
    assert "imbalance 0: everything is accounted for" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert [(row["uid"], row["reward"], row["state"]) for row in rows] == [("math/0/0:0", 1.0, "spent"), ("math/0/0:1", 0.0, "spent")]
