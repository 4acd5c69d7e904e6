"""What docs/agents.md shows works as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"


def test_the_programs_on_the_page_run() -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 3
    subprocess.run([sys.executable, "-c", "\n".join(programs)], check=True, timeout=60)
